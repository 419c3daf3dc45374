"""Register the command ``audit``."""

COMMANDS = {
    "audit": (
        "Training and audits",
        "Attacks that can refute a claimed epsilon; none confirms one.",
        "privproj.contrib.audit.command:command",
    )
}
