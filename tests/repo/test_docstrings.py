"""Public names have full docstrings whose examples run; comments cite claims that exist.

A full docstring is a summary sentence, ``Args:`` (or ``Attributes:``) with every parameter, ``Returns:``, ``Raises:``
and a doctest. Public is what ``__all__`` of a public module lists.
"""

import ast
import doctest
import enum
import inspect
import re
from importlib import import_module
from typing import is_typeddict

import pytest
from helpers import ROOT, needs, parsed

from privproj.errors import PrivprojError

CORE = (
    *("privproj", "privproj.accounting", "privproj.errors", "privproj.run", "privproj.schedule", "privproj.io"),
    *("privproj.mechanisms.wishart.alignment", "privproj.mechanisms.sketch.lora_noise"),
)
EXAMPLES_NEED = {"privproj.contrib.certify": ("flint",)}
"""Modules of the core whose examples need an extra."""
EXTRAS = {
    "privproj.training": ("torch", "opacus"),
    "privproj.contrib.audit": ("torch", "opacus"),
    "privproj.integrations.dp_accounting": (),
    "privproj.integrations.opacus": ("torch", "opacus"),
    "privproj.integrations.peft": (),
    "privproj.integrations.transformers": ("torch", "opacus", "peft", "transformers", "accelerate"),
}
"""Public modules outside the core, and what their examples need."""
OPTIONAL = [f"privproj.contrib.{stub.parent.name}" for stub in sorted(ROOT.glob("privproj/contrib/*/__init__.pyi"))]
"""Optional features that list public names."""
SECTIONS = re.compile(r"^(Args|Attributes|Returns|Raises):$", re.MULTILINE)
ENTRY = re.compile(r"^    (\*{0,2}\w+):", re.MULTILINE)


def public(needed):
    """``(module, name)`` of every public name, with the mark of a module that needs an extra."""
    for module in dict.fromkeys((*CORE, *EXTRAS, *OPTIONAL)):
        marks = [pytest.mark.extra] if needed.get(module) else []
        for name in import_module(module).__all__:
            yield pytest.param(module, name, id=f"{module}.{name}", marks=marks)


EVERY = [*public(EXTRAS)]
WITH_EXAMPLES = [*public(EXTRAS | EXAMPLES_NEED)]


def sections(text):
    """The sections of a docstring: name to text."""
    parts = SECTIONS.split(text)
    return {name: arguments.split("\n\n")[0] for name, arguments in zip(parts[1::2], parts[2::2], strict=True)}


def parameters(thing):
    """Names of the parameters as a docstring lists them; those of a typed dictionary are its keys."""
    if is_typeddict(thing):
        return list(thing.__annotations__)
    stars = {inspect.Parameter.VAR_KEYWORD: "**", inspect.Parameter.VAR_POSITIONAL: "*"}
    found = inspect.signature(thing).parameters.values()
    return [stars.get(p.kind, "") + p.name for p in found if p.name not in ("self", "cls")]


def lacking(thing):
    """What a full docstring would have and this one lacks."""
    text = inspect.cleandoc(thing.__doc__ or "")
    summary = text.split("\n\n")[0]
    found = sections(text)
    if not re.search(r"[.!?]$", summary) or "\n" in summary:
        yield "a summary sentence in one line"
    if not doctest.DocTestParser().get_examples(text):
        yield "an example"
    if inspect.isclass(thing) and issubclass(thing, enum.Enum | Exception):
        return
    listed = set(ENTRY.findall(found.get("Args", "") + "\n" + found.get("Attributes", "")))
    for name in parameters(thing):
        if name not in listed:
            yield f"words about {name}"
    if not inspect.isclass(thing):
        if "Returns" not in found and inspect.signature(thing).return_annotation not in (None, "None"):
            yield "Returns"
        if "Raises" not in found and parameters(thing):
            yield "Raises"


@pytest.mark.parametrize(("module", "name"), EVERY)
def test_public_name_has_full_docstring(module, name):
    needs(*EXTRAS.get(module, ()))
    assert not list(lacking(getattr(import_module(module), name)))


@pytest.mark.parametrize(("module", "name"), WITH_EXAMPLES)
def test_public_name_examples_run(module, name):
    needs(*(EXTRAS | EXAMPLES_NEED).get(module, ()))
    thing = getattr(import_module(module), name)
    finder = doctest.DocTestFinder()
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    tests = finder.find(thing, name, module=False, globs={})
    assert sum(len(test.examples) for test in tests) > 0
    for test in tests:
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


def own_members(kind):
    """Public methods and properties that a class defines itself."""
    for name, member in vars(kind).items():
        function = getattr(member, "fget", None) or getattr(member, "__func__", member)
        if not name.startswith("_") and inspect.isfunction(function):
            yield name, function


@pytest.mark.parametrize(("module", "name"), EVERY)
def test_public_methods_have_docstrings(module, name):
    needs(*EXTRAS.get(module, ()))
    thing = getattr(import_module(module), name)
    if inspect.isclass(thing) and not issubclass(thing, PrivprojError):
        for method, function in own_members(thing):
            assert re.search(r"\w.*[.!?]$", (function.__doc__ or "").strip().split("\n")[0]), method


def test_lacking_detects_incomplete_docstring():
    def poor(rank: int) -> int:
        """Rank, somehow"""
        return rank

    found = ["a summary sentence in one line", "an example", "words about rank", "Returns", "Raises"]
    assert list(lacking(poor)) == found


FILES = sorted([*(ROOT / "privproj").rglob("*.py"), *(ROOT / "cli").rglob("*.py")])


def documented(path):
    """Every docstring of a file with the name of what it describes."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Module):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "name", path.name), text


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_docstring_first_paragraph_is_complete(path):
    for name, text in documented(path):
        first = text.split("\n\n")[0].rstrip()
        assert first.endswith((".", ":", "?", "!", "::", "```", ")")), f"{name}: {first!r}"


CLAIM = re.compile(r"\bC(\d{1,2})\b")

CLAIMS = set(re.findall(r'<a id="c(\d+)"></a>', (ROOT / "docs" / "proofs.md").read_text()))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_comments_cite_existing_claims(path):
    comments = re.findall(r"#[^\n]*", path.read_text()) + [text for _, text in documented(path)]
    assert {number for text in comments for number in CLAIM.findall(text)} <= CLAIMS


THEOREMS = sorted(path for path in (ROOT / "privproj" / "mechanisms").glob("*/[a-z]*.py"))


def computes(tree):
    """True if a function of the file does arithmetic: one that only hands over has its formula elsewhere."""
    bodies = [line for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) for line in node.body]
    found = [part for line in bodies for part in ast.walk(line) if isinstance(part, ast.BinOp)]
    return any(not isinstance(part.op, ast.BitOr) for part in found)


@pytest.mark.parametrize("path", THEOREMS, ids=lambda p: f"{p.parent.name}.{p.stem}")
def test_theorem_has_formula_comment(path):
    lines = path.read_text().splitlines()
    if computes(parsed(path)):
        assert any(re.match(r"\s+# .*[=<>(]", line) for line in lines), "no comment states the formula"
