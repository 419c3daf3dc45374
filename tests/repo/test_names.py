"""Private names stay in their module, names are not vague, and the examples of the accounting modules run."""

import ast
import doctest
from importlib import import_module

import pytest
from helpers import ROOT, parsed

SOURCES = sorted((ROOT / "privproj").rglob("*.py"))
VAGUE = {"found", "known", "whole", "kept", "own", "said", "given", "shown"}  # names that do not tell which value


def ids(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=ids)
def test_private_names_are_not_imported(path):
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("privproj"):
            assert not [
                alias.name for alias in node.names if alias.name.startswith("_") and alias.name != "__version__"
            ]


@pytest.mark.parametrize("path", [*SOURCES, *sorted((ROOT / "cli").rglob("*.py"))], ids=ids)
def test_names_are_not_vague(path):
    names = [
        getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "arg", None) or node.name
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.arg | ast.FunctionDef | ast.ClassDef)
        or (isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store))
    ]
    assert not [name for name in names if name.strip("_") in VAGUE]


MODULES_WITH_EXAMPLES = sorted(
    path.stem for path in (ROOT / "privproj" / "accounting").glob("*.py") if ">>> " in path.read_text()
)


@pytest.mark.parametrize("module", MODULES_WITH_EXAMPLES)
def test_accounting_module_examples_run(module):
    tested = doctest.testmod(import_module(f"privproj.accounting.{module}"))
    assert tested.attempted > 0 and tested.failed == 0
