"""Write the page of the source papers from ``cli/papers.toml`` and the records of bounds."""

import re
from pathlib import Path
from typing import Any

from privproj_cli.papers import papers, value_text
from privproj_cli.render import as_sentence

DOCS = Path(__file__).parent
HEADER = "<!-- Written by docs/build.py from cli/papers.toml and the registry: edit those. -->\n"

PAPERS = """# Papers

Every theorem, figure, table and algorithm of the source papers: a command, its value and a verdict. `privproj papers
PAPER` and `privproj explain "Theorem 5"` print the same. A test runs each command and compares its value.

| verdict | meaning |
| --- | --- |
| proved | privproj has a complete proof |
| conditional | proved under an assumption on the data |
| refuted | a counterexample exists; the value is not a guarantee |
| constant not given | the paper leaves a constant open |
| standard | a known fact that privproj uses |
| reproduced | privproj runs it |
| partly reproduced | privproj runs a part of it, or runs it on other data |
| not confirmed | on the data at hand, privproj finds something else |
| not implemented | privproj does not have it |

`privproj papers PAPER --csv` writes the published and the improved values side by side. `privproj compare` prints all
bounds of one query (`--csv` for a table), and `privproj sweep --plot` draws them against a parameter:

```
$ privproj papers 2601.21719 --csv
$ privproj compare m2 --dim 2048 --rank 16 --change-rank 10 --noise-multiplier 0.7787 --epsilon 1 --csv
$ privproj sweep examples/m2-ranks.toml -o figure.csv --plot figure.svg
```

The column *published* has the value of the paper's own formula. The column *privproj* has the value of the named bound
for the same release. An empty cell means that no such value is listed."""


def paper_pages() -> dict[Path, str]:
    """Return the page of the papers."""
    sections = "\n".join(map(section, papers()))
    return {DOCS / "papers.md": f"{HEADER}\n{PAPERS}\n\n{sections}"}


def section(paper: dict[str, Any]) -> str:
    """Return the table of a paper, then commands, reasons and deviations of its items."""
    early = " (early version)" if paper["number"].endswith("early") else ""
    title = f"## {paper['title']}\n\narXiv {paper['number'].partition('-')[0]}{early}. {paper.get('note', '')}".rstrip()
    rows = [f"| {' | '.join(cells(item))} |\n" for item in paper["item"]]
    values = "Values are epsilon unless another quantity is named. The command below has the parameters.\n\n"
    table = "| item | subject | verdict | published | privproj |\n| --- | --- | --- | --- | --- |\n" + "".join(rows)
    return f"{title}\n\n{values}{table}\n{''.join(map(details, paper['item']))}"


def cells(item: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of an item in the table of its paper."""
    verdict = item["verdict"]
    if "proof" in item:
        verdict += f" ([{item['proof']}](proofs.md#{item['proof'].lower()}))"
    improved = f"{item['improved_value']:.7g} ({item['improved']})" if "improved" in item else ""
    return tuple(
        map(_cell, (item["name"], item["subject"], verdict, value_text(item).removesuffix(" (epsilon)"), improved))
    )


def details(item: dict[str, Any]) -> str:
    """Return the command, the reason and the deviation of an item; empty if it has none."""
    lines = [f"`{item[key]}`" for key in ("command", "figure") if key in item]
    lines += [as_sentence(item[key]) for key in ("reason", "deviation") if item.get(key)]
    return f"* **{item['name']}.** {' '.join(map(_cell, lines))}\n" if lines else ""


def _cell(text: str) -> str:
    """Return a text with options as code, in which bars do not end a cell."""
    text = re.sub(r"(?<![`\w-])(--[a-z][a-z-]*)(?![^`]*`(?:[^`]*`[^`]*`)*[^`]*$)", r"`\1`", text)
    return text.replace("|", "\\|")
