"""The bounds of M1 (project by a Wishart matrix, then add noise), one theorem per file; ``_...`` is their workshop."""
