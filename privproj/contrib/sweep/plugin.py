"""What the feature adds to the core: a command."""

COMMANDS = {
    "sweep": (
        "Runs",
        "A grid of questions to a CSV or Parquet table; resumable.",
        "privproj.contrib.sweep.command:sweep_command",
    )
}
