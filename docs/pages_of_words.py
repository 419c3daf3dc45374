"""Write the pages of terms from the entries of ``privproj explain``, and the claims that it explains."""

import json
import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from privproj_cli.explain import word_groups

from privproj.mechanisms.methods import METHODS

DOCS = Path(__file__).parent
PROOFS = DOCS / "proofs.md"
CLAIMS = DOCS.parent / "cli" / "claims.toml"
HEADER = "<!-- Written by docs/build.py from {}: edit that. -->\n"
OF_TEXTS = HEADER.format("cli/words.toml")
OF_ASSUMPTIONS = HEADER.format("privproj/assumptions.py")
CONDITIONS = ("requirement", "assumption on the data")  # kinds of entries on a page of their own
OTHER_PAGES = (*CONDITIONS, "method", "command", "JSON key")  # kinds of entries that other pages have
# terms of the field, warnings, which state their own remedy, and entries that other pages describe
ONLY_PRINTED = ("term", "warning", "mechanism", "quantity")
# entries that the page leaves out, because the label or another entry says what they mean
OBVIOUS = (
    "meaning", "warning", "error", "noise", "formula, reason, example, summary", "trained, wrote, time", "epoch", "ok",
    "AUC", "not_converged", "precision_limit", "published", "confidence", "composer", "mpmath",
    "certified", "fixed plan", "batches", "run", "steps", "neighbors", "not a guarantee", "sampling",
    "algorithm, noise, size, ranking", "dp-sgd", "sampling rate", "comparison", "budget", "plan", "not used",
    "none", "bound", "numerics", "event", "m2 per-layer",
)  # fmt: skip

EXPLAIN = """# Output and exit codes

This page explains the exit codes and the labels of the output. `privproj explain NAME` prints one entry. The command
also explains [requirements](requirements.md), [mechanisms](how-to-choose.md#1-mechanism), [published
methods](published-methods.md), [bounds](bounds/README.md) and warnings."""
GLOSSARY = """# Glossary

This page defines the terms that privproj introduces, or uses in a narrow sense. Each link leads to the full entry.
[Notation](notation.md) lists the symbols."""
REQUIREMENTS = """# Requirements and assumptions

A number that privproj prints holds only if your program meets the requirements and your data meet the assumptions.
privproj cannot check these conditions. The output names the requirements in the line `requires`, and states the
assumptions in the line `assumes`. On this page, the sensitivity is the clipping norm C, or 2C under the relation
replace."""
PUBLISHED = """# Published methods

This table names the [mechanism](how-to-choose.md#1-mechanism) of privproj for each published training method. Check the
order of clipping, noise and projection in your code, because implementations differ. Unless a row says otherwise, each
step is one release. C is a clipping norm, and z is a noise multiplier. `privproj explain NAME` prints one row."""

# names of mechanisms in the table of published methods; "sketch" is also a noun
MECHANISM_USED = re.compile(
    r"(?<![\w-])(?:gaussian|m2|laplace|sketch-public|jl-clip|(?<=use )sketch(?= with))(?![\w-])"
)


def word_pages() -> dict[Path, str]:
    """Return the pages of terms, and the data file of claims."""
    groups = word_groups()
    conditions = [group for kind in CONDITIONS for group in groups if group["kind"] == kind]
    others = [group for group in groups if group["kind"] not in (*OTHER_PAGES, *ONLY_PRINTED)]
    claims = "".join(f"{name} = {json.dumps(wording)}\n" for name, wording in claims_of(PROOFS.read_text()).items())
    return {
        DOCS / "explain.md": f"{OF_TEXTS}\n{EXPLAIN}\n\n{_sections(others, OBVIOUS)}",
        DOCS / "requirements.md": f"{OF_ASSUMPTIONS}\n{REQUIREMENTS}\n\n{_sections(conditions)}",
        DOCS / "glossary.md": f"{OF_TEXTS}\n{GLOSSARY}\n\n{_glossary(groups)}",
        DOCS / "published-methods.md": f"{HEADER.format('methods.toml')}\n{PUBLISHED}\n\n{_methods()}",
        CLAIMS: f"# Written by docs/build.py from docs/proofs.md: edit that.\n\n[claim]\n{claims}",
    }


def claims_of(proofs: str) -> dict[str, str]:
    """Return the statement of each claim: its title, and the sentences of its first paragraph before any symbol."""
    found = {}
    for name, title, paragraph in re.findall(r"^## (C\d+) (.*)\n\n((?:.+\n)+)", proofs, re.MULTILINE):
        wording = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", " ".join(paragraph.split()))
        plain = re.split(r"(?<=\.) (?=[A-Z`])", wording.partition("*Setting.*")[0].strip())
        kept = list(takewhile(lambda sentence: "$" not in sentence, plain))
        found[name] = " ".join(filter(None, [f"{title}.", *kept])).replace("`", "")
    return dict(sorted(found.items(), key=lambda claim: int(claim[0][1:])))


def _glossary(groups: list[dict[str, Any]]) -> str:
    """Return the terms of this project in alphabetical order, each with a link to its full entry."""
    own = [word for group in groups for word in group["word"] if word.get("own")]
    lines = [
        f"* [**{word['name']}**](explain.md#{_anchor(word['name'])}): {_prose(_first_sentence(word['means']))}\n"
        for word in sorted(own, key=lambda word: word["name"])
    ]
    return "".join(lines)


def _first_sentence(text: str) -> str:
    """Return the first sentence of a text."""
    return re.split(r"(?<=\.) (?=[A-Z`]|privproj)", text)[0]


def _methods() -> str:
    """Return the table of published methods for which privproj has a mechanism."""
    rows = []
    for m in (method for method in METHODS if method.mechanisms):
        advice = f"{m.mistake}{_refuted(m.refuted)}"
        texts = (MECHANISM_USED.sub(r"`\g<0>`", text) for text in (m.accounted, advice))
        cells = ", ".join((m.name, *m.also)), m.released, *texts, m.source.removeprefix("arXiv ")
        rows.append(f"| {' | '.join(map(_prose, cells))} |\n")
    heads = "| method | what it releases | mechanism to use | caution | arXiv |\n"
    return heads + "| --- | --- | --- | --- | --- |\n" + "".join(rows)


def _refuted(reason: str) -> str:
    """Return why a claim is refuted; empty if it is not."""
    return f" The published claim is [refuted](not-a-guarantee.md): {reason}." if reason else ""


def _anchor(name: str) -> str:
    """Return the anchor of a heading, as Markdown makes it."""
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", name).strip().lower())


def _sections(groups: list[dict[str, Any]], hidden: Sequence[str] = ()) -> str:
    """Return a section for each group, without hidden entries."""
    return "\n".join(f"## {group['title']}\n\n{_entries(group, hidden)}" for group in groups)


def _entries(group: dict[str, Any], hidden: Sequence[str]) -> str:
    """Return a section for each entry of a group, without hidden entries."""
    prefix = "Exit " if group["kind"] == "exit code" else ""
    shown = [word for word in group["word"] if word["name"] not in hidden]
    return "\n".join(f"### {prefix}{word['name']}\n\n{_entry(word)}" for word in shown)


def _entry(word: dict[str, Any]) -> str:
    """Return the meaning of an entry, its details, and when it occurs and what to do then."""
    text = _prose(" ".join([word["means"], *([word["more"]] if "more" in word else [])])) + "\n"
    if word.get("cases"):
        rows = "".join(f"| {_prose(c['when'])} | {_prose(c['instead'])} |\n" for c in word["cases"])
        text += f"\n| when | what to do |\n| --- | --- |\n{rows}"
    return text


def with_links(text: str) -> str:
    """Return a text in which names of claims and pages are links."""
    text = re.sub(r"docs/proofs\.md, (C\d+)", lambda found: f"[{found[1]}](proofs.md#{found[1].lower()})", text)
    return re.sub(r"docs/([\w/-]+)\.md(#[\w-]+)?", r"[\1](\1.md\2)", text)


def _prose(text: str) -> str:
    """Return a text with options as code and names of pages as links, in which bars do not end a cell."""
    valued = r"--(?:bound|sampling|relation|clipping) [a-z-]+|--[a-z-]+ (?:[A-Z]|\d+)\b"
    text = re.sub(rf"(?<![`\w-])({valued}|--[a-z][a-z0-9-]*)(?![^`]*`(?:[^`]*`[^`]*`)*[^`]*$)", r"`\1`", text)
    return with_links(text).replace("|", "\\|")
