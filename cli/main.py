"""The ``privproj`` command: where errors become exit codes."""

import os
import sys

from privproj.errors import InvalidParameter, PrivprojError
from privproj.validation import is_printable

from .commands import run_command
from .output import complain


def option_name(parameter: str) -> str:
    """Name a parameter as the command line does: ``--dim`` for ``dim``."""
    return (
        parameter
        if parameter.startswith("-") or ":" in parameter or parameter.isupper()
        else "--" + parameter.replace("_", "-")
    )


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code; every failure is one line on standard error."""
    # A name that the encoding of the output lacks is shown by its numbers.
    if sys.stdout is not None:
        sys.stdout.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]
    if sys.argv[1:2] != ["train"]:
        # The products of matrices here are small: threads of OpenBLAS wait for each other longer than they work.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(exit_code(arguments))


def exit_code(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        # The name of a file, for instance, that could not be printed as it is.
        for word in words:
            if not is_printable(word):
                raise InvalidParameter("WORD", ascii(word)[:60], "words that can be printed on one line")
        return run_command(words)
    except InvalidParameter as error:
        return complain(error.sentence(option_name(error.name)), error.exit_code)
    except PrivprojError as error:
        return complain(str(error), error.exit_code)
    except KeyboardInterrupt:
        return complain("interrupted", 130)
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except RecursionError:
        return complain("expected a file whose tables are not nested so deeply", 2)
    except (ArithmeticError, ValueError, LookupError, RuntimeError, MemoryError) as error:
        return complain(f"expected a computable question, got an undefined value ({error}); please report it", 5)
    except OSError as error:
        place = error.filename or "the standard output"
        return complain(f"expected a file that can be read or written, got {place}; {error.strerror}", 2)
