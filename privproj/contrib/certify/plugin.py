"""Register the command ``certify``, and certificates for ``privproj verify``."""

COMMANDS = {
    "certify": (
        "Checks",
        "Prove epsilon, delta or sigma in ball arithmetic.",
        "privproj.contrib.certify.command:command",
    )
}

DOCUMENTS = {"certificate": "privproj.contrib.certify.document:KIND"}
