"""Write the page of the source papers from ``cli/papers.toml`` and the records of bounds."""

import re
from pathlib import Path
from typing import Any

from pages_of_words import with_links
from privproj_cli import render
from privproj_cli.papers import full_name, papers, quantity_of

DOCS = Path(__file__).parent
HEADER = "<!-- Written by docs/build.py from cli/papers.toml and the registry: edit those. -->\n"

PAPERS = """# Papers

This page lists theorems, figures, tables and algorithms of the papers whose mechanisms privproj implements. The
verdict of privproj is in parentheses after each name. `privproj papers 2601.21719` prints commands for the items of
one paper.

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
EXAMPLES = """## Examples

Each row compares the formula of a paper with another bound of privproj, for the same release or training run. The
formula of a refuted item is not a guarantee. `privproj papers` with the arXiv number of the paper prints the commands
with all parameters.

| item of the paper | quantity | value by the paper's formula | mechanism | bound of privproj | value by this bound |
| --- | --- | --- | --- | --- | --- |"""


def paper_pages() -> dict[Path, str]:
    """Return the page of the papers."""
    sections = "\n".join(map(section, papers()))
    return {DOCS / "papers.md": f"{HEADER}\n{PAPERS}\n\n{sections}\n{examples()}"}


def section(paper: dict[str, Any]) -> str:
    """Return the list of the items of a paper, without standard facts."""
    early = " (early version)" if paper["number"].endswith("early") else ""
    title = f"## {paper['title']}\n\narXiv {paper['number'].partition('-')[0]}{early}. {paper.get('note', '')}".rstrip()
    return f"{title}\n\n{''.join(entry(item) for item in paper['item'] if item['verdict'] != 'standard')}"


def entry(item: dict[str, Any]) -> str:
    """Return an item with its verdict and remarks as an entry of the list."""
    proof = f", [proof](proofs.md#{item['proof'].lower()})" if "proof" in item else ""
    parts = (item["subject"], item.get("reason"), item.get("deviation"))
    text = " ".join(render.as_sentence(part) for part in parts if part)
    return f"* **{full_name(item)}** ({item['verdict']}{proof}). {_prose(text)}\n"


def examples() -> str:
    """Return a table of the values of published bounds, each with another bound of privproj and its value."""
    shown = [(paper, item) for paper in papers() for item in paper["item"] if item["verdict"] != "standard"]
    return "\n".join([EXAMPLES, *(example(paper, item) for paper, item in shown if "improved" in item), ""])


def example(paper: dict[str, Any], item: dict[str, Any]) -> str:
    """Return an item that names another bound as a row of the table of examples."""
    value, other = (f"{item[key]:.4g}" for key in ("value", "improved_value"))
    early = ", early version" if paper["number"].endswith("early") else ""
    name = f"{full_name(item)} ({paper['number'].partition('-')[0]}{early})"
    refuted = " (refuted)" if item["verdict"] == "refuted" else ""
    mechanism = f"`{item['command'].split()[2]}`"
    cells = (name, quantity_of(item), value + refuted, mechanism, f"`{item['improved']}`", other)
    return f"| {' | '.join(cells)} |"


def _prose(text: str) -> str:
    """Return a text with options as code and names of pages as links."""
    text = re.sub(r"(?<![`\w-])(--[a-z][a-z-]*)(?![^`]*`(?:[^`]*`[^`]*`)*[^`]*$)", r"`\1`", text)
    return with_links(text)
