"""The faults that can be planted in the release code, by name; plain text, so that the command line can list them."""

FAULTS = ("half-noise", "isotropic", "reused-projection", "wrong-dimension", "replace-as-add-remove", "clip-after-mean")
"""Contract: these are the choices of ``privproj audit mechanism --fault``."""
