"""Write the page of the source papers from ``cli/papers.toml`` and the records of bounds."""

import re
from pathlib import Path
from typing import Any

from pages_of_words import with_links
from privproj_cli import render
from privproj_cli.papers import full_name, papers

DOCS = Path(__file__).parent
HEADER = "<!-- Written by docs/build.py from cli/papers.toml and the registry: edit those. -->\n"

PAPERS = """# Papers

This page lists theorems, figures, tables and algorithms of the papers whose mechanisms privproj implements. The
verdict of privproj is in parentheses after each name. With the arXiv number of a paper, `privproj papers` prints
commands for the items of that paper, and compares the values of the paper's formulas with other bounds.

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
    """Return an item with its verdict and remarks as an entry of the list."""
    proof = f", [proof](proofs.md#{item['proof'].lower()})" if "proof" in item else ""
    parts = (item["subject"], item.get("reason"), item.get("deviation"))
    text = " ".join(render.as_sentence(part) for part in parts if part)
    return f"* **{full_name(item)}** ({item['verdict']}{proof}). {_prose(text)}\n"


def _prose(text: str) -> str:
    """Return a text with options as code and names of pages as links."""
    text = re.sub(r"(?<![`\w-])(--[a-z][a-z-]*)(?![^`]*`(?:[^`]*`[^`]*`)*[^`]*$)", r"`\1`", text)
    return with_links(text)
