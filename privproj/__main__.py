"""``python -m privproj``: the command line."""

from privproj_cli.main import main  # pyright: ignore[reportMissingImports]

main()
