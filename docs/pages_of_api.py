"""Write the pages of ``docs/api`` from docstrings.

There is one page per public module. A page is plain Markdown. Each public name has a heading, a signature, a list of
arguments and an example. griffe reads the docstrings; a package is imported only if its source does not list its public
names.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path

import griffe

ROOT = Path(__file__).parent.parent
API = ROOT / "docs" / "api"
HEADER = "<!-- Written by docs/build.py from the docstrings: edit those. -->\n"
MODULES = {
    "privproj": "queries, mechanisms and results",
    "privproj.accounting": "results of comparisons, of rankings and of queries with arrays",
    "privproj.errors": "exceptions",
    "privproj.run": "training runs: steps, sampling and neighboring relation",
    "privproj.schedule": "runs of several phases",
    "privproj.io": "ledgers, which record training runs",
    "privproj.training": "training of torch models (extra `torch`)",
    "privproj.contrib.audit": "attacks that can refute a claimed epsilon",
    "privproj.integrations.dp_accounting": "events and accountants for dp-accounting",
    "privproj.integrations.opacus": "an accountant for Opacus (extra `torch`)",
    "privproj.integrations.peft": "dimensions and ranks of the layers of a PEFT adapter (extra `peft`)",
    "privproj.integrations.transformers": "a private Trainer for transformers (extras `torch` and `peft`)",
    "privproj.mechanisms.wishart.alignment": "estimates for `--misalignment` of `wishart` (not a guarantee)",
    "privproj.mechanisms.sketch.lora_noise": "mean and variance of the random error of LoRA updates (not a guarantee)",
    "privproj.contrib.jl_clip": "the mechanism `jl-clip`: clipping by estimated norms (DP-SGD-JL)",
    "privproj.contrib.mixing": "the mechanism `mixing`: a secret sketch of records plus noise",
}
"""The public modules with their contents. The public names of a module are those in its ``__all__``."""
FOR_USERS = {"Phase": {"as_dict"}, "Composition": {"as_dict", "done", "done_phases", "epsilon", "delta", "scaled",
             "calibrated", "risk", "gdp_mu", "meets", "more_steps", "remaining"}}  # fmt: skip
"""The members for users, for classes whose other members are internal."""
RETURNS = r"(.*?)(?:\nReturns:\n((?:    [^\n]*(?:\n|$)|\n(?=    ))+)(.*))?"
"""A docstring in three parts: the text before the section Returns, this section, and the text after it."""
FIRST = ("epsilon", "delta", "sigma", "steps", "rate", "rank", "compare", "evaluate", "make_private", "M2", "Gaussian")
"""The most used names, which come first; all others are in alphabetical order."""
WIDTH = 100
"""Characters; a longer signature is split into lines."""

Documented = griffe.Object | griffe.Alias


def api_pages() -> dict[Path, str]:
    """Return the text of every page by its path."""
    package = griffe.load("privproj", search_paths=[ROOT])
    pages = {API / f"{name}.md": _module_page(name, _member(package, name)) for name in MODULES}
    return {API / "README.md": _index(), **pages}


def _member(package: Documented, path: str) -> Documented:
    """Return the object at a dotted path, which begins with the name of the package."""
    inner = path.removeprefix("privproj").lstrip(".")
    return package[inner] if inner else package


def _index() -> str:
    """Return the list of modules."""
    rows = "\n".join(f'| <a id="{name}"></a>`{name}` | {what} |' for name, what in MODULES.items())
    head = (
        "Each public module has a page with the signature and the docstring of every public name. In Python, "
        "`help(privproj.epsilon)` prints the docstring of one name."
    )
    return f"{HEADER}\n# Python API\n\n{head}\n\n| module | contents |\n| --- | --- |\n{rows}\n"


def _module_page(path: str, module: Documented) -> str:
    """Return the page of a module: functions, classes, exceptions."""
    names = [module[name] for name in module.exports or import_module(path).__all__]
    kinds = {
        "Functions": [m for m in names if m.is_function],
        "Classes": [m for m in names if m.is_class and not _is_error(m)],
        "Errors": [m for m in names if m.is_class and _is_error(m)],
    }
    parts = [HEADER, f"# {path}", _sections(module)]
    for head, members in kinds.items():
        parts += [f"## {head}"] if members else []
        parts += [_entry(member) for member in sorted(members, key=_place)]
    return "\n\n".join(part for part in parts if part).replace("-->\n\n\n", "-->\n\n") + "\n"


def _place(member: Documented) -> tuple[int, str, str]:
    """Return the sort key of a name."""
    return FIRST.index(member.name) if member.name in FIRST else len(FIRST), member.name.lower(), member.name


def _is_error(member: Documented) -> bool:
    """Return whether a class is an exception."""
    bases = {str(base) for base in member.bases}
    return bool(bases & {"Exception", "ValueError", "PrivprojError", "QueryError"})


def _entry(member: Documented, level: int = 3) -> str:
    """Return heading, signature and docstring of a name and of its public methods."""
    parts = [f"{'#' * level} {member.name}", _signature(member), _sections(member)]
    if member.is_class:
        parts += [_entry(m, level + 1) for m in _methods(member)]
    return "\n\n".join(part for part in parts if part)


def _methods(kind: Documented) -> Iterator[Documented]:
    """Return public methods and properties that the class itself defines."""
    for name, member in kind.members.items():
        is_shown = not name.startswith("_") and name in FOR_USERS.get(kind.name, {name})
        if is_shown and (member.is_function or "property" in member.labels) and member.has_docstring:
            yield member


def _signature(member: Documented) -> str:
    """Return the signature as a block, or an empty text if there is none to show."""
    if "property" in member.labels:
        return ""
    parameters = list(_parameters(member))
    returned = f" -> {member.returns}" if member.is_function and member.returns else ""
    line = f"{member.name}({', '.join(parameters)}){returned}"
    if len(line) > WIDTH:
        line = f"{member.name}(\n" + "".join(f"    {p},\n" for p in parameters) + f"){returned}"
    return "" if member.is_class and not parameters else f"```text\n{line}\n```"


def _default_of(text: str) -> str:
    """Return the source of a default value.

    For a declaration by ``parameter`` or ``flag`` it is the source of the declared default.
    """
    call = ast.parse(text, mode="eval").body
    if not isinstance(call, ast.Call) or ast.unparse(call.func) not in ("parameter", "flag"):
        return text
    named = {word.arg: ast.unparse(word.value) for word in call.keywords}
    return "False" if ast.unparse(call.func) == "flag" else named.get("default", "None")


def _parameters(member: Documented) -> Iterator[str]:
    """Return each parameter with its type and default.

    A star precedes keyword-only parameters.
    """
    starred = False
    for p in member.parameters:
        if p.name in ("self", "cls"):
            continue
        if p.kind is griffe.ParameterKind.keyword_only and not starred:
            starred = True
            yield "*"
        stars = {"variadic keyword": "**", "variadic positional": "*"}.get(str(p.kind.value), "")
        annotation = f": {p.annotation}" if p.annotation else ""
        default = f" = {_default_of(str(p.default))}" if p.default is not None and not stars else ""
        yield f"{stars}{p.name}{annotation}{default}"


def _sections(member: Documented) -> str:
    """Return a docstring as Markdown."""
    if not member.docstring:
        return ""
    # griffe takes the text before a colon in Returns for a type, so this section is cut out first.
    before, returned, after = re.fullmatch(RETURNS, member.docstring.value, re.DOTALL).groups()
    parts = [_section(part) for part in _parsed(before, member)]
    parts += [f"**Returns** {_prose(' '.join(returned.split()))}"] if returned else []
    parts += [_section(part) for part in _parsed(after or "", member)]
    return "\n\n".join(part for part in parts if part)


def _parsed(text: str, member: Documented) -> list[griffe.DocstringSection]:
    """Return the sections of a part of a docstring."""
    # griffe removes the common indent of all lines except the first one, so an empty line comes first.
    return griffe.Docstring("\n" + text.strip("\n"), parent=member).parse(
        "google", warn_unknown_params=False, warn_missing_types=False
    )


def _section(part: griffe.DocstringSection) -> str:
    """Return a section as Markdown, either a list or prose."""
    kind = part.kind.value
    if kind in ("parameters", "attributes"):
        return f"**{kind.capitalize()}**\n\n" + _items((p.name, p.description) for p in part.value)
    if kind == "raises":
        return "**Raises**\n\n" + _items((str(p.annotation), p.description) for p in part.value)
    if kind != "text":
        raise SystemExit(f"expected Args, Attributes, Returns or Raises in a docstring, got {kind}: {part.value}")
    return _with_examples(part.value)


def _items(pairs: Iterable[tuple[str, str]]) -> str:
    """Return a list of names with their descriptions."""
    return "\n".join(f"* `{name}`: {_prose(' '.join(text.split()))}" for name, text in pairs)


def _with_examples(text: str) -> str:
    """Return prose with doctests as code blocks."""
    blocks = [block for block in text.split("\n\n") if block.strip()]
    return "\n\n".join(
        f"```pycon\n{block.strip()}\n```" if block.lstrip().startswith(">>>") else _prose(block) for block in blocks
    )


def _prose(text: str) -> str:
    """Return text with the roles and double backquotes of docstrings as Markdown code."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)
    return text.replace("``", "`")
