"""Implement ``privproj explain`` and ``privproj bounds``.

``cli/words.toml`` has the texts of ``privproj explain``.
"""

import re
import tomllib
from collections.abc import Container, Iterable, Iterator
from importlib.resources import files
from json import loads
from pathlib import Path
from typing import Any

import click

import privproj
from privproj.assumptions import Requirement, short_name
from privproj.errors import EXIT_CODES, unknown_name
from privproj.mechanisms.methods import METHODS, find_method
from privproj.mechanisms.registry import bound_names, find_bound, mechanism_named, mechanism_names, registry
from privproj.sampling import SCHEMES, Scheme

from . import render
from .options import command_with, completing, json_option


def word_groups() -> list[dict[str, Any]]:
    """Return the groups of terms that ``privproj explain`` explains, in order.

    A group is a dictionary with a ``title``, the ``kind`` of its terms, and the list of terms ``word``.
    """
    groups = data("words")["group"]
    for path in sorted(Path(privproj.__file__).parent.glob("contrib/*/words.toml")):
        for added in tomllib.loads(path.read_text(encoding="utf-8"))["group"]:
            _add_group(groups, added)
    of_kind = {group["kind"]: group["word"] for group in groups}
    for entry in of_kind["exit code"]:
        code = EXIT_CODES[int(entry["name"])]
        entry["means"] = " ".join([f"{code[0].upper()}{code[1:]}.", entry.get("means", "")]).strip()
    named = {entry["name"] for entry in of_kind["sampling scheme"]}
    of_kind["sampling scheme"][:0] = [
        {"name": str(name), "means": meaning_of(scheme)} for name, scheme in SCHEMES.items() if name not in named
    ]
    taken = spellings(of_kind["mechanism"])
    of_kind["mechanism"] += [
        {"name": name, "means": mechanism_named(name).summary}
        for name in mechanism_names()
        if spelling(name) not in taken
    ]
    groups.append({"title": "Requirements", "kind": "requirement", "word": _requirements()})
    groups.append({"title": "Published methods", "kind": "method", "word": _methods()})
    groups.append({"title": "Commands", "kind": "command", "word": _commands()})
    of_kind["JSON key"] += _json_keys(spellings(all_entries(groups)))
    return groups


def _add_group(groups: list[dict[str, Any]], added: dict[str, Any]) -> None:
    """Add the terms of an optional feature to the groups of ``privproj explain``."""
    same = next((group for group in groups if group["title"] == added["title"]), None)
    if same is None:
        groups.append(added)
        return
    by_name = {word["name"]: word for word in same["word"]}
    for word in added["word"]:
        if word["name"] in by_name:
            by_name[word["name"]].setdefault("cases", []).extend(word["cases"])
        else:
            same["word"].append(word)


def _requirements() -> list[dict[str, Any]]:
    """Return an entry of ``privproj explain`` for each requirement."""
    others = [scheme.requirements for scheme in SCHEMES.values()]
    others += [member for name in mechanism_names() for member in mechanism_named(name).requirements]
    others += [text for bound in registry() for text in bound.requirements(bound.mechanism)]
    texts = {short: text for text in (*Requirement, *others) if (short := short_name(text))}
    return [{"name": name, "means": f"{text[0].upper()}{text[1:].rstrip('.')}."} for name, text in texts.items()]


def _methods() -> list[dict[str, Any]]:
    """Return an entry of ``privproj explain`` for each published method."""
    return [{"name": m.name, "also": list(m.also), "means": m.text, "see": list(m.mechanisms)} for m in METHODS]


def _commands() -> list[dict[str, Any]]:
    """Return an entry of ``privproj explain`` for each command."""
    from .main import command_groups

    lines = {name: line for commands in command_groups().values() for name, line in commands.items()}
    return [
        {"name": name, "means": f"{line} `privproj {name} --help` lists its options."} for name, line in lines.items()
    ]


def _json_keys(taken: Container[str]) -> list[dict[str, Any]]:
    """Return entries of ``privproj explain`` for keys of JSON results, except ``taken``."""
    schema = loads(files("privproj").joinpath("schema.json").read_text(encoding="utf-8"))
    described = {name: key["description"] for name, key in _properties(schema) if "description" in key}
    return [
        {"name": name, "means": f"{text[0].upper()}{text[1:].rstrip('.')}."}
        for name, text in described.items()
        if spelling(name) not in taken
    ]


def _properties(schema: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the schema of each key in a JSON schema, at all levels."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {}).items()
        for part in schema.values():
            yield from _properties(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _properties(part)


def meaning_of(scheme: Scheme) -> str:
    """Return requirements, relations and default relation of a sampling scheme."""
    default = f" Default: {scheme.why_default}" if scheme.why_default else ""
    return f"{scheme.requirements} It works with {' and '.join(scheme.relations)}.{default}"


def data(name: str) -> dict[str, Any]:
    """Return the contents of the file ``<name>.toml`` in this package."""
    return tomllib.loads(files("privproj_cli").joinpath(f"{name}.toml").read_text(encoding="utf-8"))


@command_with(
    "explain",
    click.Argument(
        ["word"], nargs=-1, metavar="[WORD]", shell_complete=completing(lambda _: known_names(word_groups()))
    ),
    json_option(),
)
def explain_command(word: tuple[str, ...], json: bool) -> int:
    """Explain a term: a label, requirement, warning, exit code, mechanism, bound, claim, method or theorem of a paper.

    Case, hyphens and spaces do not matter. Without a term, the command lists all of them.

    \b
    Examples:
      privproj explain 3
      privproj explain conditional
      privproj explain poisson-sampling
      privproj explain DP-SGD
      privproj explain C5
      privproj explain "Theorem 5"
    """
    groups = word_groups()
    chosen = entries(groups, " ".join(word)) if word else all_entries(groups)
    if json:
        click.echo(render.as_json({"results": chosen}))
    else:
        click.echo("\n\n".join(map(text, chosen)) if word else overview(groups))
    return 0


def all_entries(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the explained terms of all groups, each with the kind of its group."""
    return [{"kind": group["kind"], **entry} for group in groups for entry in group["word"]]


def entries(groups: list[dict[str, Any]], word: str) -> list[dict[str, Any]]:
    """Return the explanations of a term, bound, claim, paper, theorem or warning text.

    Raises :class:`InvalidParameterError`, with a suggestion, if the term is unknown.
    """
    from .papers import paper_entries

    wanted, every = spelling(word), all_entries(groups)
    matches = [entry for entry in every if wanted in spellings([entry])]
    matches += [bound_entry(*line) for line in bound_names() if wanted in (spelling(line[1]), spelling(".".join(line)))]
    matches += [claim_entry(name, claim) for name, claim in claims().items() if wanted == spelling(name)]
    matches += paper_entries(word)
    matches = matches or [entry for entry in every if any(spelling(text) in wanted for text in entry.get("texts", ()))]
    if not matches:
        names = [name for name in known_names(groups) if ("." in name) == ("." in word)]
        raise unknown_name("WORD", word, "term", names, "`privproj explain` lists them")
    return matches


def known_names(groups: list[dict[str, Any]]) -> list[str]:
    """Return every name that ``privproj explain`` accepts."""
    from .papers import item_names, paper_names

    names = [name for entry in all_entries(groups) for name in (entry["name"], *entry.get("also", ()))]
    bounds = [*(name for _, name in bound_names()), *map(".".join, bound_names())]
    return list(dict.fromkeys([*names, *bounds, *claims(), *paper_names(), *item_names()]))


def claims() -> dict[str, str]:
    """Return the statement of each claim of docs/proofs.md, by number ("C5")."""
    return data("claims")["claim"]


def claim_entry(name: str, claim: str) -> dict[str, Any]:
    """Return the explanation of a claim of the proofs, with the bounds that it proves."""
    bounds = [".".join(line) for line in bound_names() if find_bound(mechanism_named(line[0]), line[1]).proof == name]
    page = f"The proof is in docs/proofs.md#{name.lower()}."
    return {"kind": "claim", "name": name, "means": f"{claim} {page}", "see": bounds}


def spelling(word: str) -> str:
    """Return a name in lower case, without hyphens, underscores and spaces."""
    return re.sub(r"[\s_-]+", "", word.lower())


def spellings(chosen: Iterable[dict[str, Any]]) -> set[str]:
    """Return the normalized names of some explained terms."""
    return {spelling(name) for entry in chosen for name in (entry["name"], *entry.get("also", ()))}


def bound_entry(mechanism: str, name: str) -> dict[str, Any]:
    """Return the explanation of a bound: its summary, status and a reference."""
    bound = find_bound(mechanism_named(mechanism), name)
    full = f"{mechanism}.{name}"
    means = f"{bound.summary[0].upper()}{bound.summary[1:]}. Mechanism: {mechanism}. Status: {bound.status}."
    means += f" Reason: {bound.reason}." if bound.reason else ""
    page = f"`privproj bounds {full}` prints its formula, source and requirements."
    return {"kind": "bound", "name": full, "means": f"{means} {page}", "see": [str(bound.status)]}


def text(entry: dict[str, Any]) -> str:
    """Return the explanation of one term as text."""
    lines = [f"{entry['name']}  ({entry['kind']})", *render.wrap_line("  ", entry["means"], entry.get("more", ""))]
    lines += entry.get("lines", ())
    for case in entry.get("cases", ()):
        lines += render.wrap_line("  - when ", f"{case['when']}:")
        lines += render.wrap_line("         ", case["instead"])
    return "\n".join(lines + render.wrap_line("  see also: ", ", ".join(entry.get("see", ()))))


def overview(groups: list[dict[str, Any]]) -> str:
    """Return the list of all explained terms, by group, as text."""
    named = {group["title"]: ", ".join(entry["name"] for entry in group["word"]) for group in groups}
    named |= {"Bounds": "any name that `privproj bounds` lists", "Claims of the proofs": "C1, C2, ..."}
    named |= {"Papers": "any number or item that `privproj papers` lists, such as Theorem 5"}
    lines = [line for title, names in named.items() for line in (title, *render.wrap_line("  ", names))]
    return "\n".join([*lines, "", "`privproj explain WORD` explains one."])


# --- the catalog of bounds ------------------------------------------------------------------------------------


def _completions() -> list[str]:
    """Return all names of mechanisms and bounds, and MECHANISM.BOUND, for completion."""
    return [*dict(bound_names()), *(name for _, name in bound_names()), *map(".".join, bound_names())]


@command_with(
    "bounds",
    click.Argument(["name"], required=False, metavar="[NAME]", shell_complete=completing(lambda _: _completions())),
    json_option(),
)
def bounds_command(name: str | None, json: bool) -> int:
    """List the bounds, or describe one of them.

    NAME may be BOUND or MECHANISM.BOUND: the command prints all details of the bound. For a mechanism or a published
    method (DP-SGD, DP-GRAPE, ...), the command lists the bounds that account for it.

    \b
    Example:
      privproj bounds rank-free
    """
    pages = [b for b in registry() if name in (b.name, f"{b.mechanism.name}.{b.name}")]
    method = None if pages or name is None else find_method(name)
    mechanisms = method.mechanisms if method else (name,)
    listed = [b for b in registry() if name is None or b.mechanism.name in mechanisms]
    chosen = [*pages, *listed]
    if not chosen and method is None:
        names = (
            [f"{kind}.{bound}" for kind, bound in bound_names()]
            if "." in str(name)
            else [bound for _, bound in bound_names()]
        )
        raise unknown_name("NAME", name, "bound", names, "`privproj bounds` lists them")
    if json:
        click.echo(render.as_json({"results": [render.bound_record(b) for b in chosen]}))
        return 0
    parts = [render.wrap_line(f"{method.name}: ", method.text)] if method else []
    parts += map(render.bound_page, pages)
    rows = [(b.mechanism.name, b.name, str(b.status), b.summary) for b in listed]
    parts += [render.table_lines("<", [("mechanism", "bound", "status", "summary"), *rows])] if rows else []
    click.echo("\n\n".join(map("\n".join, parts)))
    return 0


COMMANDS = {"explain": explain_command, "bounds": bounds_command}
