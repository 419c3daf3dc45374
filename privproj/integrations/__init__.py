"""Connect privproj to other packages. Each module imports its own package; no core module imports this package."""
