"""The bounds of M2 (add noise, then project to a random subspace), one theorem per file; ``_...`` is their workshop."""
