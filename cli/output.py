"""What goes to standard output and standard error."""

import sys
from typing import TextIO


def write(text: str, stream: TextIO | None = None) -> None:
    """Write a text and the end of its line, to standard output unless told otherwise."""
    print(text, file=stream, flush=True)


def one_line(message: str) -> str:
    """Return a message on one line; characters that would move a terminal's cursor are shown, not obeyed."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in " ".join(message.split()))


def complain(message: str, code: int) -> int:
    """Print the error, in which a file's own words may stand, as one line on standard error; returns the exit code."""
    write("error: " + one_line(message), sys.stderr)
    return code
