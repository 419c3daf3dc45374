"""Questions and their answers: a mechanism and a run are put to a bound, forwards (epsilon) or backwards (sigma)."""
