"""Register the command ``sweep``."""

COMMANDS = {
    "sweep": (
        "Runs",
        "Evaluate a grid of queries, and write a table.",
        "privproj.contrib.sweep.command:sweep_command",
    )
}
