"""Connect privproj to dp-accounting, Opacus, PEFT and transformers, with one module for each package.

Each module imports its own package. No core module imports this package.
"""
