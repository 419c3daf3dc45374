"""Register the command ``audit``."""

COMMANDS = {
    "audit": (
        "Training and audits",
        "Attack an implementation to refute a claimed epsilon.",
        "privproj.contrib.audit.command:command",
    )
}
