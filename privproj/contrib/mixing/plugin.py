"""Register the bound of Gaussian mixing."""

BOUNDS = {("mixing", "two-stage"): ("privproj.contrib.mixing.two_stage:TWO_STAGE",)}
