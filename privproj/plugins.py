"""Load the optional features of the package, and the tables of their plugins.

A feature is a package below ``privproj.contrib`` with a module ``plugin``. The module has tables (``BOUNDS``,
``COMMANDS``, ...). Their values are references ``"module:attribute"``, so that reading a table does not import the
feature.
"""

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


@cache
def plugins() -> tuple[Any, ...]:
    """Return the ``plugin`` module of each installed feature, sorted by name."""
    folders = sorted(Path(__file__).parent.glob("contrib/*/plugin.py"))
    return tuple(import_module(f"privproj.contrib.{path.parent.name}.plugin") for path in folders)


def plugin_table(name: str) -> dict[Any, Any]:
    """Return a plugin table, such as ``BOUNDS``, merged over all optional features."""
    return {key: value for plugin in plugins() for key, value in getattr(plugin, name, {}).items()}


def load(place: str) -> Any:
    """Return the attribute that ``"module:attribute"`` refers to."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)
