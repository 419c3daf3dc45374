"""Register the command ``sweep``."""

COMMANDS = {
    "sweep": (
        "Runs",
        "A grid of questions to a CSV or Parquet table; resumable.",
        "privproj.contrib.sweep.command:sweep_command",
    )
}
