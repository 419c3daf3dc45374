"""What is imported when it is asked for: public names, so that importing a package loads nothing slow, and extras."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

LazyNames = tuple[Callable[[str], object], Callable[[], list[str]]]
"""The ``__getattr__`` and the ``__dir__`` of a module (PEP 562)."""


def lazy_names(package: str, homes: Mapping[str, tuple[str, ...]], extra: str = "") -> LazyNames:
    """The ``__getattr__`` and ``__dir__`` of a package whose public names, ``__all__``, live in these modules of it.

    What is missing where the ``extra`` is not installed stays an import error, and names the extra.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def find(name: str) -> object:
        if name == "__all__":
            return [*home_of]
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(f"{package}.{home_of[name]}"), name)
        except ModuleNotFoundError as error:
            if not extra or error.name is None or error.name.startswith("privproj"):
                raise
            from privproj.errors import MissingPackage

            words = MissingPackage(error.name, f"{package}.{name}", extra).sentence("")
            raise ModuleNotFoundError(words, name=error.name) from error

    return find, lambda: [*(name for name in vars(sys.modules[package]) if name.startswith("__")), *home_of]


def import_extra(module: str, needed_by: str, extra: str, otherwise: str = "") -> Any:
    """A module that needs an optional extra; :class:`privproj.MissingPackage` where that is not installed.

    ``needed_by`` says who needs it, and ``otherwise`` what to do instead, in words.
    """
    try:
        return import_module(module)
    except ImportError as error:
        from privproj.errors import MissingPackage

        raise MissingPackage(error.name, needed_by, extra, otherwise) from None
