"""Write the page of the source papers from ``cli/papers.toml`` and the records of bounds."""

import re
from pathlib import Path
from typing import Any

from pages_of_words import with_links
from privproj_cli import render
from privproj_cli.papers import papers, quantity_of

DOCS = Path(__file__).parent
HEADER = "<!-- Written by docs/build.py from cli/papers.toml and the registry: edit those. -->\n"

PAPERS = """# Papers

This page lists theorems, figures, tables and algorithms of the papers whose mechanisms privproj implements. The
parenthesis after each name contains the verdict of privproj. Numbers of an example are rounded.
`privproj papers 2601.21719` prints the commands that compute them.

| verdict | meaning |
| --- | --- |
| proved | [Proofs](proofs.md) has a complete proof |
| conditional | [Proofs](proofs.md) has a complete proof under an assumption on the data |
| refuted | a counterexample exists, so the item is not a guarantee |
| constant not given | the paper does not state a constant, so no number follows |
| reproduced | privproj implements the item |
| partly reproduced | privproj implements a part of the item, or ran it with other data or parameters |
| not confirmed | experiments with privproj, on other data than in the paper, had another result |
| not implemented | privproj does not implement the item |"""


def paper_pages() -> dict[Path, str]:
    """Return the page of the papers."""
    sections = "\n".join(map(section, papers()))
    return {DOCS / "papers.md": f"{HEADER}\n{PAPERS}\n\n{sections}"}


def section(paper: dict[str, Any]) -> str:
    """Return the list of the items of a paper, without standard facts."""
    early = " (early version)" if paper["number"].endswith("early") else ""
    title = f"## {paper['title']}\n\narXiv {paper['number'].partition('-')[0]}{early}. {paper.get('note', '')}".rstrip()
    return f"{title}\n\n{''.join(entry(item) for item in paper['item'] if item['verdict'] != 'standard')}"


def entry(item: dict[str, Any]) -> str:
    """Return an item with its verdict, remarks and example as an entry of the list."""
    proof = f", [proof](proofs.md#{item['proof'].lower()})" if "proof" in item else ""
    parts = (item["subject"], item.get("reason"), example(item), item.get("deviation"))
    text = " ".join(render.as_sentence(part) for part in parts if part)
    return f"* **{item['name']}** ({item['verdict']}{proof}). {_prose(text)}\n"


def example(item: dict[str, Any]) -> str:
    """Return the values of the published bound and of another one; empty if an item names no other bound."""
    if "improved" not in item:
        return ""
    value, other = (f"{item[key]:.4g}" for key in ("value", "improved_value"))
    name = f"`{item['improved']}` of `{item['command'].split()[2]}`"
    first, second = ("by the refuted formula", "") if item["verdict"] == "refuted" else ("", "tighter ")
    given = f"Example parameters give {quantity_of(item)} {value} {first}".rstrip()
    return f"{given}, and {other} by the {second}bound {name}"


def _prose(text: str) -> str:
    """Return a text with options as code and names of pages as links."""
    text = re.sub(r"(?<![`\w-])(--[a-z][a-z-]*)(?![^`]*`(?:[^`]*`[^`]*`)*[^`]*$)", r"`\1`", text)
    return with_links(text)
