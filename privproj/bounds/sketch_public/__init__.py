"""The bounds of the public Gaussian sketch, one theorem per file."""
