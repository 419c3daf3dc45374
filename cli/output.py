"""What goes to standard output and standard error, without click."""

import sys
from typing import TextIO


def write(text: str, stream: TextIO | None = None) -> None:
    """Write a text and the end of its line, to standard output unless told otherwise."""
    print(text, file=stream, flush=True)


def complain(message: str, code: int) -> int:
    """Print the error as one line on standard error, and return the exit code.

    What a file says stands in messages: characters that would move a terminal's cursor are shown, not obeyed.
    """
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(message.split()))
    write("error: " + shown, sys.stderr)
    return code
