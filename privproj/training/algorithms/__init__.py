"""The training algorithms, one per file."""
