"""Register the command ``certify`` and the certificate as a kind of document."""

COMMANDS = {
    "certify": (
        "Checks",
        "Prove epsilon, delta or sigma in ball arithmetic.",
        "privproj.contrib.certify.command:command",
    )
}

DOCUMENTS = {"certificate": "privproj.contrib.certify.document:KIND"}
