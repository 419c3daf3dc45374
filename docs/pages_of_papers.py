"""Write the page of the source papers from ``cli/papers.toml`` and the records of bounds."""

import re
from pathlib import Path
from typing import Any

from pages_of_words import with_links
from privproj_cli.papers import papers, quantity_of
from privproj_cli.render import as_sentence

DOCS = Path(__file__).parent
HEADER = "<!-- Written by docs/build.py from cli/papers.toml and the registry: edit those. -->\n"

PAPERS = """# Papers

This page states which theorems, figures, tables and algorithms of the source papers privproj proves, refutes or
reproduces. `privproj papers PAPER` and `privproj explain "Theorem 5"` print the same entries with all commands, and
standard facts as well.

| verdict | meaning |
| --- | --- |
| proved | privproj has a complete proof |
| conditional | privproj has a complete proof under an assumption on the data |
| refuted | a counterexample exists; the value is not a guarantee |
| constant not given | the paper does not state a constant, so no number follows |
| reproduced | privproj implements the item |
| partly reproduced | privproj implements a part of the item, or ran it on other data |
| not confirmed | experiments with privproj, on other data than in the paper, had another result |
| not implemented | privproj does not implement the item |

In the tables, *published* is the value of the formula of the paper. *privproj* is the value of the bound in
parentheses for the same release. Values are rounded epsilons, unless the cell names another quantity. `-` means that
there is no value. The list below each table has commands, which print the published values, and remarks. *The copy
we had* is the text of the paper from which privproj was written."""


def paper_pages() -> dict[Path, str]:
    """Return the page of the papers."""
    sections = "\n".join(map(section, papers()))
    return {DOCS / "papers.md": f"{HEADER}\n{PAPERS}\n\n{sections}"}


def section(paper: dict[str, Any]) -> str:
    """Return the table of a paper, then commands, reasons and deviations of its items, without standard facts."""
    early = " (early version)" if paper["number"].endswith("early") else ""
    title = f"## {paper['title']}\n\narXiv {paper['number'].partition('-')[0]}{early}. {paper.get('note', '')}".rstrip()
    items = [item for item in paper["item"] if item["verdict"] != "standard"]
    rows = [f"| {' | '.join(cells(item))} |\n" for item in items]
    table = "| item | subject | verdict | published | privproj |\n| --- | --- | --- | --- | --- |\n" + "".join(rows)
    return f"{title}\n\n{table}\n{''.join(map(details, items))}"


def cells(item: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of an item in the table of its paper."""
    verdict = item["verdict"]
    if "proof" in item:
        verdict += f" ([{item['proof']}](proofs.md#{item['proof'].lower()}))"
    improved = f"{item['improved_value']:.4g} ({item['improved']})" if "improved" in item else "-"
    quantity = quantity_of(item) if "value" in item else "epsilon"
    published = f"{item['value']:.4g}" + f" ({quantity})" * (quantity != "epsilon") if "value" in item else "-"
    return tuple(map(_cell, (item["name"], item["subject"], verdict, published, improved)))


def details(item: dict[str, Any]) -> str:
    """Return the reason and the deviation of an item, and the command of its value; empty if it has none."""
    lines = [f"`{item['command']}`."] if "value" in item else []
    lines += [as_sentence(item[key]) for key in ("reason", "deviation") if item.get(key)]
    return f"* **{item['name']}.** {' '.join(map(_cell, lines))}\n" if lines else ""


def _cell(text: str) -> str:
    """Return a text with options as code and names of pages as links, in which bars do not end a cell."""
    text = re.sub(r"(?<![`\w-])(--[a-z][a-z-]*)(?![^`]*`(?:[^`]*`[^`]*`)*[^`]*$)", r"`\1`", text)
    return with_links(text).replace("|", "\\|")
