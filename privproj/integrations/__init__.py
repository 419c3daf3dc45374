"""Connect privproj to dp-accounting, Opacus, PEFT and transformers.

There is one module for each of these packages.
"""
