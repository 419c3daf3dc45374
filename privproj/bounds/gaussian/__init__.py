"""The bounds of the Gaussian mechanism, one theorem per file."""
