"""Implement ``privproj papers``, which lists results of the source papers.

``papers.toml`` lists the papers and their items: theorems, figures and algorithms.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import click

from privproj.errors import unknown_name
from privproj.mechanisms.registry import find_bound, mechanism_named

from . import render
from .explain import data, spelling
from .main import ONE_NUMBER
from .options import command_with, completing, csv_option, json_option

# verdict on an item, by the status of its bound
VERDICTS = {
    "proved": "proved",
    "conditional": "conditional",
    "asymptotic": "constant not given",
    "refuted": "refuted",
}


def papers() -> list[dict[str, Any]]:
    """Return the source papers with their items: theorems, figures and algorithms."""
    return [{**paper, "item": [*map(completed, paper["item"])]} for paper in data("papers")["paper"]]


def completed(item: dict[str, Any]) -> dict[str, Any]:
    """Return a theorem, figure or algorithm with added fields, such as ``proof``."""
    complete = dict(item)
    if "bound" in item:
        mechanism, _, name = item["bound"].partition(".")
        bound = find_bound(mechanism_named(mechanism), name)
        of_bound = {"verdict": VERDICTS[bound.status], "reason": bound.reason, "proof": bound.proof}
        complete = {**{name: text for name, text in of_bound.items() if text}, **complete}
    if "improved" in item:
        complete["improved_command"] = improved_command(item["command"], item["improved"])
    return complete


def improved_command(command: str, bound: str) -> str:
    """Return a command line with ``bound`` in place of the published bound."""
    return re.sub(r" --(allow-refuted|split \S+|tau \S+)", "", re.sub(r"--bound \S+", f"--bound {bound}", command))


def find_papers(name: str) -> list[dict[str, Any]]:
    """Return the source papers with this arXiv number, title or other name."""
    wanted = spelling(name).removeprefix("arxiv").removeprefix(":")
    return [
        paper
        for paper in papers()
        if wanted in map(spelling, (paper["number"], paper["title"], *paper["also"]))
        or spelling(paper["number"]).startswith(f"{wanted}early")
    ]


def paper_names() -> list[str]:
    """Return the numbers, titles and other names of all source papers."""
    return [name for paper in data("papers")["paper"] for name in (paper["number"], *paper["also"], paper["title"])]


def item_names() -> list[str]:
    """Return the names of all theorems, figures and algorithms of the source papers."""
    items = [item for paper in data("papers")["paper"] for item in paper["item"]]
    return list(dict.fromkeys(name for item in items for name in (item["name"], *item.get("also", ()))))


def paper_entries(word: str) -> Iterator[dict[str, Any]]:
    """Yield the papers and theorems with this name as entries of ``privproj explain``.

    A theorem may be named with its paper, such as ``2601.21719 Theorem 5``.
    """
    for paper in find_papers(word):
        counts = ", ".join(f"{count} {verdict}" for verdict, count in Counter(verdicts(paper)).items())
        means = f"{paper['title']}. Items: {counts}. `privproj papers {paper['number']}` lists them with commands."
        yield {"kind": "paper", "name": paper["number"], "means": f"{means} The page is docs/papers.md."}
    wanted = spelling(word)
    for paper in papers():
        for item in paper["item"]:
            names = [spelling(name) for name in (item["name"], *item.get("also", ()))]
            of_paper = ("", *map(spelling, (paper["number"], *paper["also"])))
            if wanted in [prefix + name for prefix in of_paper for name in names]:
                yield item_entry(paper, item)


def item_entry(paper: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    """Return a theorem, figure or algorithm as an entry of ``privproj explain``."""
    see = [name for name in (item.get("bound"), item.get("proof")) if name]
    name = f"{paper['number']} {full_name(item)}"
    return {"kind": "paper", "name": name, "means": item["subject"], "lines": item_lines(item), "see": see}


def verdicts(paper: dict[str, Any]) -> list[str]:
    """Return the verdict on every theorem, figure and algorithm of a paper."""
    return [item["verdict"] for item in paper["item"]]


def item_parts(item: dict[str, Any]) -> dict[str, str]:
    """Return the nonempty texts about a theorem, figure or algorithm, by label."""
    parts = {
        "verdict": item["verdict"] + (f" (docs/proofs.md, {item['proof']})" if "proof" in item else ""),
        "remarks": remarks(item),
        "command": item.get("command", ""),
        "value": value_text(item),
        "other bound": f"{item['improved_value']:.7g} ({item['improved']})" if "improved" in item else "",
        "its command": item.get("improved_command", ""),
        "plot": item.get("figure", ""),
    }
    return {label: text for label, text in parts.items() if text}


def remarks(item: dict[str, Any]) -> str:
    """Return the reason for a theorem's verdict, and deviations from the paper."""
    return " ".join(render.as_sentence(item[key]) for key in ("reason", "deviation") if item.get(key))


def value_text(item: dict[str, Any]) -> str:
    """Return the stated value of a theorem or figure with its quantity; may be empty."""
    return f"{item['value']:.7g} ({quantity_of(item)})" if "value" in item else ""


def quantity_of(item: dict[str, Any]) -> str:
    """Return the quantity that the ``command`` of a theorem computes, such as epsilon."""
    query = item["command"].split()[1]
    quantity = item.get("key", "value")
    if quantity == "value":
        quantity = query if query in ONE_NUMBER else "epsilon"
    return {"auc": "AUC"}.get(quantity, render.SYMBOLS.get(quantity, quantity)).replace("_", " ")


def full_name(item: dict[str, Any]) -> str:
    """Return the name of a theorem and of others that its entry covers, as text."""
    *others, last = (item["name"], *item.get("also", ()))
    return f"{', '.join(others)} and {last}" if others else last


def row(paper: dict[str, Any], item: dict[str, Any]) -> dict[str, Any]:
    """Return a theorem, figure or algorithm as a row of CSV."""
    names = ("name", "verdict", "value", "improved_value", "improved", "command", "improved_command")
    return {"paper": paper["number"], **{name: item.get(name) for name in names}}


def paper_text(paper: dict[str, Any]) -> str:
    """Return the theorems, figures and algorithms of a paper as text."""
    lines = [f"arXiv {paper['number'].partition('-')[0]}  {paper['title']}"]
    lines += render.wrap_line("", paper.get("note", ""))
    for item in paper["item"]:
        lines += ["", *render.wrap_line(f"{full_name(item)}: ", item["subject"]), *item_lines(item)]
    return "\n".join(lines)


def item_lines(item: dict[str, Any]) -> list[str]:
    """Return the labeled texts about a theorem, figure or algorithm as wrapped lines."""
    lines = []
    for label, text in item_parts(item).items():
        named = f"  {label + ':':<12} "
        # A command stays on one line, so that it can be copied.
        lines += [named + text] if label in ("command", "its command", "plot") else render.wrap_line(named, text)
    return lines


def overview() -> str:
    """Return a table of source papers with their numbers of items and refuted items."""
    rows = [
        (paper["number"], str(len(paper["item"])), str(Counter(verdicts(paper))["refuted"]), paper["title"])
        for paper in papers()
    ]
    table = render.table_lines("<><", [("arXiv", "items", "refuted", "title"), *rows])
    return "\n".join([*table, "", "`privproj papers NUMBER` lists the items of one paper with commands."])


@command_with(
    "papers",
    click.Argument(["paper"], required=False, metavar="[PAPER]", shell_complete=completing(lambda _: paper_names())),
    json_option(),
    csv_option(),
)
def papers_command(paper: str | None, json: bool, csv: bool) -> int:
    """List theorems, figures and algorithms of the source papers with commands, values and verdicts.

    PAPER is an arXiv number or a name, such as PRISM. Without it, the command lists the papers.

    \b
    Examples:
      privproj papers 2601.21719
      privproj papers 2601.21719 --csv
      privproj explain "Theorem 5"
    """
    chosen = papers() if paper is None else find_papers(paper)
    if not chosen:
        raise unknown_name("PAPER", paper, "paper", paper_names(), "`privproj papers` lists them")
    if json:
        click.echo(render.as_json({"results": chosen}))
    elif csv:
        click.echo(render.as_csv([row(one, item) for one in chosen for item in one["item"]]))
    else:
        click.echo(overview() if paper is None else "\n\n".join(map(paper_text, chosen)))
    return 0


COMMANDS = {"papers": papers_command}
