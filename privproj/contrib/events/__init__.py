"""Accept events of dp-accounting as phases of a run."""
