"""Write the page of the source papers from ``cli/papers.toml`` and the records of bounds."""

import re
from pathlib import Path
from typing import Any

from pages_of_words import with_links
from privproj_cli.papers import papers, quantity_of, remarks

DOCS = Path(__file__).parent
HEADER = "<!-- Written by docs/build.py from cli/papers.toml and the registry: edit those. -->\n"

PAPERS = """# Papers

This page lists theorems, figures, tables and algorithms of the papers whose mechanisms privproj implements, with a
verdict on each item. `privproj papers 2601.21719` also prints the command that computes each value.
`privproj explain "2601.21719 Theorem 5"` prints a single item.

| verdict | meaning |
| --- | --- |
| proved | [Proofs](proofs.md) has a complete proof |
| conditional | [Proofs](proofs.md) has a complete proof under an assumption on the data |
| refuted | a counterexample exists; the value is not a guarantee |
| constant not given | the paper does not state a constant, so no number follows |
| reproduced | privproj implements the item |
| partly reproduced | privproj implements a part of the item, or ran it on other data |
| not confirmed | experiments with privproj, on other data than in the paper, had another result |
| not implemented | privproj does not implement the item |

*Value* is the result of the item's formula or attack for example parameters. *Other bound* is the result of another
bound of privproj for the same release, with the name of this bound. Numbers are rounded epsilons, unless the cell names
another quantity. `-` means none."""


def paper_pages() -> dict[Path, str]:
    """Return the page of the papers."""
    sections = "\n".join(map(section, papers()))
    return {DOCS / "papers.md": f"{HEADER}\n{PAPERS}\n\n{sections}"}


def section(paper: dict[str, Any]) -> str:
    """Return the table of a paper and the remarks on its items, without standard facts."""
    early = " (early version)" if paper["number"].endswith("early") else ""
    title = f"## {paper['title']}\n\narXiv {paper['number'].partition('-')[0]}{early}. {paper.get('note', '')}".rstrip()
    items = [item for item in paper["item"] if item["verdict"] != "standard"]
    rows = [f"| {' | '.join(cells(item))} |\n" for item in items]
    table = "| item | subject | verdict | value | other bound |\n| --- | --- | --- | --- | --- |\n" + "".join(rows)
    return f"{title}\n\n{table}\nRemarks:\n\n{''.join(map(remark, items))}"


def cells(item: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of an item in the table of its paper."""
    verdict = item["verdict"]
    if "proof" in item:
        verdict += f" ([{item['proof']}](proofs.md#{item['proof'].lower()}))"
    improved = f"{item['improved_value']:.4g} ({item['improved']})" if "improved" in item else "-"
    quantity = quantity_of(item) if "value" in item else "epsilon"
    value = f"{item['value']:.4g}" + f" ({quantity})" * (quantity != "epsilon") if "value" in item else "-"
    return tuple(map(_cell, (item["name"], item["subject"], verdict, value, improved)))


def remark(item: dict[str, Any]) -> str:
    """Return the remarks on an item; empty if it has none."""
    return f"* **{item['name']}.** {_cell(remarks(item))}\n" if remarks(item) else ""


def _cell(text: str) -> str:
    """Return a text with options as code and names of pages as links, in which bars do not end a cell."""
    text = re.sub(r"(?<![`\w-])(--[a-z][a-z-]*)(?![^`]*`(?:[^`]*`[^`]*`)*[^`]*$)", r"`\1`", text)
    return with_links(text).replace("|", "\\|")
