"""What the feature adds to the core: a command that proves a number, and certificates as documents."""

COMMANDS = {
    "certify": (
        "Checks",
        "Prove an epsilon, delta or sigma in ball arithmetic.",
        "privproj.contrib.certify.command:command",
    )
}

DOCUMENTS = {"certificate": "privproj.contrib.certify.document:KIND"}
