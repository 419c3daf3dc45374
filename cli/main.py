"""The ``privproj`` command: where errors become exit codes.

A plain question for one number is answered without click, which takes longer to import than such an answer.
"""

import sys
from importlib import import_module
from types import ModuleType

from privproj.errors import InvalidParameter, PrivprojError

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
    delay_import("inspect")
    sys.exit(exit_code(arguments))


def delay_import(name: str) -> None:
    """Import a module of the standard library only when one of its names is used, unless it is imported already.

    For ``inspect``, which dataclasses imports and hardly uses: it takes as long as all that a plain answer needs of the
    mechanism and the bound.
    """

    def load(attribute: str) -> object:
        if sys.modules.get(name) is stand_in:
            del sys.modules[name]
        return getattr(import_module(name), attribute)

    stand_in = ModuleType(name)
    stand_in.__dict__["__getattr__"] = load
    sys.modules.setdefault(name, stand_in)


def answer_plain_question(words: list[str]) -> int | None:
    """Answer without click where the words are a plain question; None for all others."""
    if len(words) < 4 or words[0].startswith("-"):
        return None
    from .answer import answer_question, plain_question

    question = plain_question(words)
    return None if question is None else answer_question(*question)


def exit_code(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    try:
        code = answer_plain_question(words)
        if code is None:
            from .commands import run_command

            return run_command(words)
        return code
    except InvalidParameter as error:
        return complain(error.sentence(option_name(error.name)), error.exit_code)
    except PrivprojError as error:
        return complain(str(error), error.exit_code)
    except KeyboardInterrupt:
        return complain("interrupted", 130)
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except (ArithmeticError, ValueError, LookupError, RuntimeError, MemoryError) as error:
        if "null byte" in str(error):
            return complain("expected a file name without a null byte", 2)
        return complain(f"expected a computable question, got an undefined value ({error}); please report it", 5)
    except OSError as error:
        return complain(f"expected to read and write files, got {error.strerror}", 5)
