"""List the bugs that audits can inject into the release code and the loader."""

# choices of ``privproj audit mechanism --fault``
FAULTS = ("half-noise", "isotropic", "reused-projection", "wrong-dimension", "replace-as-add-remove", "clip-after-mean")

LOADER_FAULTS = ("same-assignment", "two-bins", "uneven")  # choices of ``privproj audit loader --fault``
