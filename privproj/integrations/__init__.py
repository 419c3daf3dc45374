"""Connect privproj to dp-accounting, Opacus, PEFT and transformers."""
