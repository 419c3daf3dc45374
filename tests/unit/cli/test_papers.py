"""Every item of a source paper has a verdict, its command runs, and the value of the command is the stored one."""

import csv
import json
import re
import shlex

import click
import pytest
from helpers import ROOT, full_if
from privproj_cli.explain import entries, word_groups
from privproj_cli.main import cli, command_named
from privproj_cli.papers import improved_command, papers

from privproj.mechanisms.registry import find_bound, mechanism_named

ITEMS = [(paper, item) for paper in papers() for item in paper["item"]]
VALUES = [(item["command"], item.get("key", "value"), item["value"]) for _, item in ITEMS if "value" in item]
VALUES += [(item["improved_command"], "value", item["improved_value"]) for _, item in ITEMS if "improved" in item]
LABELS = (
    "proved", "conditional", "refuted", "constant not given", "standard", "reproduced", "partly reproduced",
    "not confirmed", "not implemented",
)  # fmt: skip
REASONED = ("refuted", "constant not given", "partly reproduced", "not confirmed", "not implemented")
SECONDS = ("column", "early")  # bounds that take a second


def is_costly(value):
    return any(f"--bound {name}" in value[0] for name in SECONDS)


@pytest.mark.parametrize("value", full_if([(v,) for v in dict.fromkeys(VALUES)], lambda v: is_costly(v[0])), ids=str)
def test_papers_command_prints_the_stored_value(value, run):
    command, key, stored = value
    code, out, err = run(command.removeprefix("privproj ") + " --json")
    assert code == 0, err
    # the file has seven significant digits
    assert json.loads(out)[key] == pytest.approx(stored, rel=1e-6, abs=0.0)


@pytest.mark.parametrize(
    "command", dict.fromkeys(item[key] for _, item in ITEMS for key in ("command", "figure") if key in item)
)
def test_papers_command_has_known_options(command):
    arguments = shlex.split(command)
    assert arguments.pop(0) == "privproj"
    context, current = click.Context(cli), cli
    while isinstance(current, click.Group):
        name = arguments.pop(0)
        current = command_named(name) if current is cli else current.get_command(context, name)
        context = click.Context(current, info_name=name, parent=context)
    current.parse_args(context, arguments)


@pytest.mark.parametrize("paper, item", ITEMS, ids=lambda part: part.get("name", part.get("number")))
def test_papers_item_has_a_verdict_and_a_reason(paper, item):
    assert item["verdict"] in LABELS
    assert item.get("reason") or item["verdict"] not in REASONED
    assert item.get("command") or item.get("reason") or item.get("bound")
    assert ("improved" in item) == ("improved_value" in item)
    names = {"name", "subject", "bound", "command", "value", "key", "verdict", "reason", "proof", "deviation"}
    assert set(item) <= names | {"also", "figure", "improved", "improved_value", "improved_command"}
    if "bound" in item:
        assert find_bound(mechanism_named(item["bound"].partition(".")[0]), item["bound"].partition(".")[2])


def test_papers_verdict_follows_the_record_of_the_bound():
    of = {(paper["number"], item["name"]): item["verdict"] for paper, item in ITEMS}
    assert of["2601.21719", "Theorem 4"] == "refuted"
    assert of["2601.21719", "Theorem 5"] == "proved"
    assert of["2601.21719-early", "Corollary 1"] == "constant not given"


def test_papers_improved_command_drops_published_options():
    command = "privproj epsilon m1 --dim 9 --bound old --split even --allow-refuted --delta 1e-5"
    assert improved_command(command, "new") == "privproj epsilon m1 --dim 9 --bound new --delta 1e-5"


@pytest.mark.parametrize("word", ["Theorem 5", "2601.21719", "PRISM", "DP-SFT", "arXiv:2409.17538", "LoRA and Privacy",
                                  "Lemma 17", "2409.17538 Equation 17"])  # fmt: skip
def test_explain_finds_papers_and_items(word):
    assert "paper" in [entry["kind"] for entry in entries(word_groups(), word)]


def test_papers_lists_every_item_of_one_paper(run):
    code, out, _ = run("papers PRISM")
    (paper,) = (paper for paper in papers() if paper["number"] == "2606.00944")
    assert code == 0 and all(f"{item['name']}: " in out for item in paper["item"])
    assert len(re.findall("^arXiv 2601", run("papers 2601.21719")[1], re.MULTILINE)) == 2  # with its early version
    code, out, _ = run("papers")
    assert code == 0 and all(paper["number"] in out for paper in papers())
    assert run("papers unknown")[0] == 2


def test_papers_csv_has_published_and_improved_values(run):
    rows = [*csv.DictReader(run("papers 2601.21719 --csv")[1].splitlines())]
    (theorem,) = (row for row in rows if row["name"] == "Theorem 5")
    assert float(theorem["improved_value"]) < float(theorem["value"]) and theorem["improved"] == "rank-free"
    (item,) = (item for paper, item in ITEMS if (paper["number"], item["name"]) == ("2601.21719", "Theorem 5"))
    assert theorem["improved_command"] == item["improved_command"] and theorem["command"] == item["command"]


def test_papers_numbers_are_those_of_the_documentation():
    page = (ROOT / "docs" / "papers.md").read_text()
    assert all(f"## {paper['title']}" in page for paper in papers())
