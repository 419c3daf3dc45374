"""Names say who may use them, constants say what they are, and the examples of public functions run."""

import ast
import doctest
import re
from collections import Counter
from importlib import import_module
from itertools import pairwise

import pytest
from helpers import ROOT, parsed

SOURCES = sorted((ROOT / "privproj").rglob("*.py"))
FOLDERS = ("privproj", "cli", "tests", "benchmarks", "docs")
RECORD_FIELDS = {
    "representation",
    "ball_profile",
    "promises",
    "needs",
    "refuses",
    "notes",
    "law",
    "is_attained",
    "status_of",
}
"""Functions of a bound that are named after the field of its record."""

VAGUE = {"found", "known", "whole", "kept", "own", "said", "given", "shown"}
"""Words that say that there is a value, but not which."""

WORDS = {
    path: set(re.findall(r"\w+", path.read_text()))
    for folder in FOLDERS
    for path in (ROOT / folder).rglob("*.py*")
    if path.suffix in (".py", ".pyi")
}
FILES_WITH = Counter(word for words in WORDS.values() for word in words)
"""In how many files a word stands."""


def ids(path):
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=ids)
def test_what_only_its_own_file_uses_begins_with_an_underscore(path):
    if path.name.endswith("kernels.py"):
        return  # compiled together, as one namespace
    named = [node.name for node in parsed(path).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    listed = [
        node.value for node in parsed(path).body if isinstance(node, ast.Assign) and "__all__" in ast.unparse(node)
    ]
    exported = {name.value for value in listed for name in ast.walk(value) if isinstance(name, ast.Constant)}
    public = {name for name in named if not name.startswith("_")} - RECORD_FIELDS - exported
    assert not [name for name in public if FILES_WITH[name] <= (name in WORDS[path])]


@pytest.mark.parametrize("path", SOURCES, ids=ids)
def test_private_names_stay_in_their_file(path):
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("privproj"):
            assert not [
                alias.name for alias in node.names if alias.name.startswith("_") and alias.name != "__version__"
            ]


@pytest.mark.parametrize("path", [*SOURCES, *sorted((ROOT / "cli").rglob("*.py"))], ids=ids)
def test_a_value_is_named_after_what_it_is(path):
    names = [
        getattr(node, "id", None) or getattr(node, "attr", None) or getattr(node, "arg", None) or node.name
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.arg | ast.FunctionDef | ast.ClassDef)
        or (isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store))
    ]
    assert not [name for name in names if name.strip("_") in VAGUE]


@pytest.mark.parametrize("path", SOURCES, ids=ids)
def test_a_constant_has_a_line_and_words_of_its_own(path):
    body = parsed(path).body
    lines = path.read_text().splitlines()
    for node, after in zip(body, [*body[1:], None], strict=True):
        if not isinstance(node, ast.Assign | ast.AnnAssign):
            continue
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        names = [part.id for part in ast.walk(target) if isinstance(part, ast.Name)]
        is_record = isinstance(node.value, ast.Call) and ast.unparse(node.value.func) in ("Bound", "_without_a_number")
        if not names or not names[0].isupper() or is_record or names[0] == "RECORDS":
            continue
        said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        begin = node.lineno - 1
        while begin and lines[begin - 1].strip():
            begin -= 1
        grouped = lines[begin].startswith("#")
        assert len(names) == 1, names
        assert said or grouped, names


@pytest.mark.parametrize("path", SOURCES, ids=ids)
def test_a_constant_that_was_measured_says_so_in_its_kind(path):
    body = parsed(path).body
    for node, after in pairwise(body):
        if isinstance(node, ast.Assign) and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            words = str(after.value.value)
            assert not re.search(r"\bProof\b", words), words
            if "Soundness" in words and re.search(r"\b(measured|observed)\b", words, re.IGNORECASE):
                assert "Soundness (measured)" in words, words


@pytest.mark.parametrize("room", ["accounting.question", "accounting.calibration", "accounting.spec"])
def test_examples_of_public_functions_print_what_they_say(room):
    found = doctest.testmod(import_module(f"privproj.{room}"))
    assert found.attempted > 0 and found.failed == 0
