"""The faults that can be planted in release code and loader, by name; plain text, which the command line can list."""

FAULTS = ("half-noise", "isotropic", "reused-projection", "wrong-dimension", "replace-as-add-remove", "clip-after-mean")
"""Contract: these are the choices of ``privproj audit mechanism --fault``."""

LOADER_FAULTS = ("same-assignment", "two-bins", "uneven")
"""Contract: these are the choices of ``privproj audit loader --fault``."""
