"""What Gaussian mixing adds to the core."""

BOUNDS = {("mixing", "two-stage"): ("privproj.contrib.mixing.two_stage:TWO_STAGE",)}
