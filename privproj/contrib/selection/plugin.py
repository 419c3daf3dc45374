"""Register the command ``select``."""

COMMANDS = {
    "select": (
        "Runs",
        "Compute the privacy of the best of a random number of runs.",
        "privproj.contrib.selection.command:select_command",
    )
}
