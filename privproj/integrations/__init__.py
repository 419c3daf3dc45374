"""Doors into other packages. Each file imports its own package, and nothing here is imported by the core."""
