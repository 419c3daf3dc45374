"""Implement ``privproj explain`` (its texts: ``cli/words.toml``) and ``privproj bounds``."""

import re
import tomllib
from importlib.resources import files
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
    """Return the groups of glossary entries in order: each has a ``title``, the ``kind`` of its entries, and ``word``.

    An entry has ``name`` and ``means``. It may have ``also`` (other spellings), ``cases`` (pairs of ``when`` and
    ``instead``) and ``see`` (related entries). A sampling scheme or mechanism without an entry
    is described by its record.
    """
    groups = data("words")["group"]
    for path in sorted(Path(privproj.__file__).parent.glob("contrib/*/words.toml")):
        for added in tomllib.loads(path.read_text(encoding="utf-8"))["group"]:
            same = [group for group in groups if group["title"] == added["title"]]
            groups = groups if same else [*groups, added]
            by_name = {word["name"]: word for word in same[0]["word"]} if same else {}
            for word in added["word"] if same else ():
                if word["name"] in by_name:
                    by_name[word["name"]].setdefault("cases", []).extend(word["cases"])
                else:
                    same[0]["word"].append(word)
    (codes,) = (group["word"] for group in groups if group["kind"] == "exit code")
    for entry in codes:
        code = EXIT_CODES[int(entry["name"])]
        entry["means"] = " ".join([f"{code[0].upper()}{code[1:]}.", entry.get("means", "")]).strip()
    (samplers,) = (group["word"] for group in groups if group["kind"] == "sampling")
    named = {entry["name"] for entry in samplers}
    samplers[:0] = [
        {"name": str(name), "means": meaning_of(scheme)} for name, scheme in SCHEMES.items() if name not in named
    ]
    (mechanisms,) = (group["word"] for group in groups if group["kind"] == "mechanism")
    taken = {spelling(name) for entry in words_of(groups) for name in (entry["name"], *entry.get("also", ()))}
    mechanisms += [
        {"name": name, "means": mechanism_named(name).summary}
        for name in mechanism_names()
        if spelling(name) not in taken
    ]
    methods = [{"name": m.name, "also": list(m.also), "means": m.words, "see": list(m.mechanisms)} for m in METHODS]
    taken = {spelling(name) for entry in words_of(groups) for name in (entry["name"], *entry.get("also", ()))}
    others = [scheme.requirements for scheme in SCHEMES.values()]
    others += [member for name in mechanism_names() for member in mechanism_named(name).requirements]
    texts = {short: text for text in (*Requirement, *others) if (short := short_name(text))}
    texts = {short: text for short, text in texts.items() if spelling(short) not in taken}
    required = [{"name": name, "means": f"{text[0].upper()}{text[1:]}."} for name, text in texts.items()]
    groups = [*groups, {"title": "Requirements", "kind": "requirement", "word": required}]
    return [*groups, {"title": "Published methods", "kind": "method", "word": methods}]


def meaning_of(scheme: Scheme) -> str:
    """Return the description of a sampling scheme: its assumptions, and the relations that it supports."""
    default = f" Default: {scheme.why_default}" if scheme.why_default else ""
    text = f"{scheme.requirements[0].upper()}{scheme.requirements[1:]}"
    return f"{text}. It goes with {' and '.join(scheme.relations)}.{default}"


def data(name: str) -> dict[str, Any]:
    """Return the contents of one of the TOML files of the command line."""
    return tomllib.loads(files("privproj_cli").joinpath(f"{name}.toml").read_text(encoding="utf-8"))


@command_with(
    "explain",
    click.Argument(
        ["word"], nargs=-1, metavar="[WORD]", shell_complete=completing(lambda _: known_words(word_groups()))
    ),
    json_option(),
)
def explain_command(word: tuple[str, ...], json: bool) -> int:
    """Explain a term of the output: an exit code, an outcome, a status, a mechanism, a bound, a claim, and others.

    Without a term, the command lists all of them.

    \b
    Examples:
      privproj explain 3
      privproj explain conditional
      privproj explain noise multiplier
      privproj explain C5
    """
    groups = word_groups()
    chosen = entries(groups, " ".join(word)) if word else words_of(groups)
    if json:
        click.echo(render.as_json({"results": chosen}))
    else:
        click.echo("\n\n".join(map(text, chosen)) if word else overview(groups))
    return 0


def words_of(groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return all entries of the groups, each with its kind."""
    return [{"kind": group["kind"], **entry} for group in groups for entry in group["word"]]


def entries(groups: list[dict[str, Any]], word: str) -> list[dict[str, Any]]:
    """Return every entry and every bound of this name; raises with a suggestion if there is none."""
    asked = spelling(word)
    matches = [entry for entry in words_of(groups) if asked in map(spelling, (entry["name"], *entry.get("also", ())))]
    matches += [bound_entry(*line) for line in bound_names() if asked in (spelling(line[1]), spelling(".".join(line)))]
    matches += [claim_entry(name, claim) for name, claim in claims().items() if asked == spelling(name)]
    if not matches:
        names = [name for name in known_words(groups) if ("." in name) == ("." in word)]
        raise unknown_name("WORD", word, "a word", names, "`privproj explain` lists them")
    return matches


def known_words(groups: list[dict[str, Any]]) -> list[str]:
    """Return every name that has an explanation."""
    words = [name for entry in words_of(groups) for name in (entry["name"], *entry.get("also", ()))]
    return list(dict.fromkeys([*words, *(name for _, name in bound_names()), *map(".".join, bound_names()), *claims()]))


def claims() -> dict[str, str]:
    """Return the statement of each claim of the proofs, by its number."""
    return data("claims")["claim"]


def claim_entry(name: str, claim: str) -> dict[str, Any]:
    """Return a claim as an entry: its statement, the bounds that cite it, and the place of its proof."""
    bounds = [".".join(line) for line in bound_names() if find_bound(mechanism_named(line[0]), line[1]).proof == name]
    page = f"Proved in docs/proofs.md#{name.lower()}, of the source and of the site."
    return {"kind": "claim", "name": name, "means": f"{claim} {page}", "see": bounds}


def spelling(word: str) -> str:
    """Return a name without the differences between spellings: capitals, hyphens, underscores and repeated spaces."""
    return " ".join(re.split(r"[\s_-]+", word.strip().lower()))


def bound_entry(mechanism: str, name: str) -> dict[str, Any]:
    """Return a bound as an entry: its summary, its status, and a reference to its page."""
    bound = find_bound(mechanism_named(mechanism), name)
    full = f"{mechanism}.{name}"
    means = f"A bound of {mechanism}: {bound.summary}. Its status is {bound.status}."
    means += f" Why: {bound.reason}." if bound.reason else ""
    page = f"`privproj bounds {full}` shows its formula, its source and what it assumes."
    return {"kind": "bound", "name": full, "means": f"{means} {page}", "see": [str(bound.status)]}


def text(entry: dict[str, Any]) -> str:
    """Return an entry as text: name and kind, meaning, cases with remedies, related entries."""
    lines = [f"{entry['name']}  ({entry['kind']})", *render.wrap_line("  ", entry["means"])]
    for case in entry.get("cases", ()):
        lines += render.wrap_line("  - when ", f"{case['when']}:")
        lines += render.wrap_line("         ", case["instead"])
    return "\n".join(lines + render.wrap_line("  see also: ", ", ".join(entry.get("see", ()))))


def overview(groups: list[dict[str, Any]]) -> str:
    """Return the names of all entries by group."""
    named = {group["title"]: ", ".join(entry["name"] for entry in group["word"]) for group in groups}
    named |= {"Bounds": "any name that `privproj bounds` lists", "Claims of the proofs": "C1, C2, ..."}
    lines = [line for title, words in named.items() for line in (title, *render.wrap_line("  ", words))]
    return "\n".join([*lines, "", "`privproj explain WORD` explains one."])


# --- the catalog of bounds ------------------------------------------------------------------------------------


def _completions() -> list[str]:
    """Return the names of mechanisms, of bounds, and of both together."""
    return [*dict(bound_names()), *(name for _, name in bound_names()), *map(".".join, bound_names())]


@command_with(
    "bounds",
    click.Argument(["name"], required=False, metavar="[NAME]", shell_complete=completing(lambda _: _completions())),
    json_option(),
)
def bounds_command(name: str | None, json: bool) -> int:
    """List the bounds, or describe one of them.

    NAME is a bound, also as MECHANISM.NAME, which is shown in full. For a mechanism or a published method (DP-SGD,
    DP-GRAPE, ...) the command lists the bounds that account for it.

    \b
    Example:
      privproj bounds rank-free
    """
    pages = [b for b in registry() if name in (b.name, f"{b.mechanism.name}.{b.name}")]
    method = None if pages or name is None else find_method(name)
    mechanisms = method.mechanisms if method else (name,)
    listed = [b for b in registry() if name is None or b.mechanism.name in mechanisms]
    chosen = [*pages, *listed]
    if not chosen:
        names = (
            [f"{kind}.{bound}" for kind, bound in bound_names()]
            if "." in str(name)
            else [bound for _, bound in bound_names()]
        )
        raise unknown_name("NAME", name, "a bound", names, "`privproj bounds` lists them")
    if json:
        click.echo(render.as_json({"results": [render.bound_record(b) for b in chosen]}))
        return 0
    parts = [render.wrap_line(f"{method.name}: ", method.words)] if method else []
    parts += map(render.bound_page, pages)
    rows = [(b.mechanism.name, b.name, str(b.status), b.summary) for b in listed]
    parts += [render.table_lines("<", [("mechanism", "bound", "status", "summary"), *rows])] if rows else []
    click.echo("\n\n".join(map("\n".join, parts)))
    return 0


COMMANDS = {"explain": explain_command, "bounds": bounds_command}
