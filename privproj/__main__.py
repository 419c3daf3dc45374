"""Run the command line with ``python -m privproj``."""

from privproj_cli.main import main  # pyright: ignore[reportMissingImports]

main()
