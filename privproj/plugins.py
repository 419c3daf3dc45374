"""Find what optional features add to the core, without naming one.

A feature is a package below ``privproj.contrib``. Its module ``plugin`` holds tables, and a table that adds to the core
has the same name in every feature (``BOUNDS``, ``COMMANDS``, ...). Values name what they add as ``"module:attribute"``,
so that reading a table loads no feature.
"""

from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


@cache
def plugins() -> tuple[Any, ...]:
    """Return the ``plugin`` module of every optional feature that is installed, in alphabetical order."""
    folders = sorted(Path(__file__).parent.glob("contrib/*/plugin.py"))
    return tuple(import_module(f"privproj.contrib.{path.parent.name}.plugin") for path in folders)


def plugin_table(name: str) -> dict[Any, Any]:
    """Return the entries of the tables of this name in all features."""
    return {key: value for plugin in plugins() for key, value in getattr(plugin, name, {}).items()}


def load(place: str) -> Any:
    """Return the attribute that ``"module:attribute"`` names."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)
