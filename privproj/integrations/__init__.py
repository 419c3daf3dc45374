"""Doors into other packages; each file imports its own, and nothing here is imported by the core."""
