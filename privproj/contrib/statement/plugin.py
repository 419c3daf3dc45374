"""Register ``privproj report``; let ``verify`` check and ``train`` write statements."""

COMMANDS = {
    "report": (
        "Reports",
        "Write a privacy statement for a model card.",
        "privproj.contrib.statement.command:command",
    )
}

DOCUMENTS = {"statement": "privproj.contrib.statement.document:KIND"}

TRAIN_DOCUMENTS = {"statement": ("statement.md", "privproj.contrib.statement.command:write_statement_of_training")}
