"""The bounds of the secret Gaussian sketch, one theorem per file; ``_...`` is their workshop."""
