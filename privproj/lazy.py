"""Import public names on first use, so that importing a package is fast."""

import re
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from os.path import splitext
from typing import Any

# __getattr__ and __dir__ of a module (PEP 562)
LazyNames = tuple[Callable[[str], object], Callable[[], list[str]]]
# An import in a stub: the module, and the imported names, each of which is repeated after "as".
STUB_IMPORT = re.compile(r"^from (\S+) import (\([^)]*\)|.*)$", re.MULTILINE)


def lazy_names(module: str, extra: str = "") -> LazyNames:
    """Return ``__getattr__`` and ``__dir__`` (PEP 562) for a module with lazy imports.

    The public names are those that the stub of the module (its ``.pyi`` file) imports. ``extra`` is the optional extra
    that an import error names.
    """
    with open(f"{splitext(str(sys.modules[module].__file__))[0]}.pyi", encoding="utf-8") as stub:
        imports = STUB_IMPORT.findall(stub.read())
    home_of = {name: home for home, names in imports for name in re.findall(r"\bas ([^\W_]\w*)", names)}

    def find(name: str) -> object:
        if name == "__all__":
            return [*home_of]
        if name not in home_of and name in _submodules(module):
            return import_module(f"{module}.{name}")
        if name not in home_of:
            from privproj.errors import unknown_attribute

            raise AttributeError(unknown_attribute(f"module {module!r}", name))
        try:
            value = getattr(import_module(home_of[name]), name)
        except ModuleNotFoundError as error:
            if not extra or error.name is None or error.name.startswith("privproj"):
                raise
            from privproj.errors import MissingPackageError

            text = str(MissingPackageError(error.name, f"{module}.{name}", extra))
            raise ModuleNotFoundError(text, name=error.name) from error
        setattr(sys.modules[module], name, value)  # later accesses do not call this function
        return value

    def names() -> list[str]:
        special = (name for name in vars(sys.modules[module]) if name.startswith("__"))
        return [*special, *home_of, *(name for name in _submodules(module) if name not in home_of)]

    return find, names


@cache
def _submodules(module: str) -> list[str]:
    """Return the public submodules of a package; an empty list for any other module."""
    from pkgutil import iter_modules

    path = vars(sys.modules[module]).get("__path__", [])  # getattr would call __getattr__ of the module
    return [submodule.name for submodule in iter_modules(path) if not submodule.name.startswith("_")]


def import_extra(module: str, needed_by: str, extra: str, otherwise: str = "") -> Any:
    """Import a module of an optional extra, and return it.

    Args:
        module: The module to import.
        needed_by: The feature that needs it, for the error message.
        extra: The name of the extra.
        otherwise: What to do instead, for the error message.

    Raises:
        MissingPackageError: The module is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        from privproj.errors import MissingPackageError

        raise MissingPackageError(error.name, needed_by, extra, otherwise) from None
