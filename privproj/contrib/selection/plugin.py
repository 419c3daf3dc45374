"""Register the command ``select``."""

COMMANDS = {
    "select": (
        "Runs",
        "The best of a random number of runs: what choosing it costs.",
        "privproj.contrib.selection.command:select_command",
    )
}
