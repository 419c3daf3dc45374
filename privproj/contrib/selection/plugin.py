"""Register the command ``privproj select``."""

COMMANDS = {
    "select": (
        "Runs",
        "Compute the privacy of the best of several runs.",
        "privproj.contrib.selection.command:select_command",
    )
}
