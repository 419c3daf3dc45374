"""Convert a privacy loss distribution given as data to epsilon and delta."""
