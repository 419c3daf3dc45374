"""The bounds of the vector Wishart projection, one theorem per file; ``_...`` is their workshop."""
