"""What is imported when it is asked for: public names, so that importing a package loads nothing slow, and extras."""

import re
import sys
from collections.abc import Callable
from importlib import import_module
from os.path import splitext
from typing import Any

# the ``__getattr__`` and the ``__dir__`` of a module (PEP 562)
LazyNames = tuple[Callable[[str], object], Callable[[], list[str]]]
# an import of a stub: where its names live, and the names, each said again after ``as``
STUB_IMPORT = re.compile(r"^from (\S+) import (\([^)]*\)|.*)$", re.MULTILINE)


def lazy_names(module: str, extra: str = "") -> LazyNames:
    """The ``__getattr__`` and ``__dir__`` of a module whose public names, its ``__all__``, are what its stub imports.

    The stub is the ``.pyi`` beside the module's file: type checkers read the same lines, so a name is said once. What
    is missing where the ``extra`` is not installed stays an import error, and names the extra.
    """
    with open(f"{splitext(str(sys.modules[module].__file__))[0]}.pyi", encoding="utf-8") as stub:
        imports = STUB_IMPORT.findall(stub.read())
    home_of = {name: home for home, names in imports for name in re.findall(r"\bas ([^\W_]\w*)", names)}

    def find(name: str) -> object:
        if name == "__all__":
            return [*home_of]
        if name not in home_of:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        try:
            return getattr(import_module(home_of[name]), name)
        except ModuleNotFoundError as error:
            if not extra or error.name is None or error.name.startswith("privproj"):
                raise
            from privproj.errors import MissingPackage

            words = str(MissingPackage(error.name, f"{module}.{name}", extra))
            raise ModuleNotFoundError(words, name=error.name) from error

    return find, lambda: [*(name for name in vars(sys.modules[module]) if name.startswith("__")), *home_of]


def import_extra(module: str, needed_by: str, extra: str, otherwise: str = "") -> Any:
    """A module that needs an optional extra; :class:`privproj.errors.MissingPackage` where that is not installed.

    ``needed_by`` says who needs it, and ``otherwise`` what to do instead, in words.
    """
    try:
        return import_module(module)
    except ImportError as error:
        from privproj.errors import MissingPackage

        raise MissingPackage(error.name, needed_by, extra, otherwise) from None
