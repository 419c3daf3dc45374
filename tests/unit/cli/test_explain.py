"""``privproj explain`` knows every word that an answer can print."""

import json
import re
from enum import StrEnum

import pytest
from helpers import ROOT, SECONDS, full_if, ids
from privproj_cli.explain import claims, data, entries, spelling, word_groups

from privproj import errors
from privproj.mechanisms.registry import bound_names, mechanism_names, registry
from privproj.result import Outcome, Side, Status
from privproj.sampling import NeighboringRelation, Sampling

GROUPS = word_groups()
WORDS = [entry for group in GROUPS for entry in group["word"]]
NAMES = [name for entry in WORDS for name in (entry["name"], *entry.get("also", ()))]
ENUMS: tuple[type[StrEnum], ...] = (Outcome, Status, Side, NeighboringRelation, Sampling)
CODES = {kind.exit_code for kind in vars(errors).values() if isinstance(kind, type) and hasattr(kind, "exit_code")}
LABEL = re.compile(r"^  ([a-z]+(?: [a-z]+)?): ", re.MULTILINE)


@pytest.mark.parametrize(
    "word", [*(str(m) for kind in ENUMS for m in kind), *map(str, CODES | {0, 1, 4}), *mechanism_names()]
)
def test_every_word_of_an_answer_has_an_explanation(word):
    assert entries(GROUPS, word)


@pytest.mark.parametrize("line", bound_names(), ids=".".join)
def test_every_bound_has_an_explanation(line):
    found = [entry for entry in entries(GROUPS, line[1]) if entry["name"] == ".".join(line)]
    assert len(found) == 1 and line[0] in found[0]["means"]
    assert ".".join(line) in [entry["name"] for entry in entries(GROUPS, ".".join(line))]


@pytest.mark.parametrize(
    "line",
    [
        "epsilon m2 --dim 64 --rank 4 --noise-multiplier 3 --steps 3 --sampling-rate 0.1 --delta 1e-5 --clip 1",
        "epsilon m2 --dim 64 --rank 4 --noise-multiplier 0.1 --delta 1e-5 --dataset-size 10",
        "choose --layer 64x4x2 --sampling-rate 0.1 --steps 3 --epsilon 4 --delta 1e-5",
        "remaining {run} --epsilon 4 --delta 1e-5",
        "ledger {ledger}",
        "verify {ledger}",
    ],
)
def test_every_label_that_an_answer_prints_has_an_explanation(line, run, tmp_path):
    named = {
        "ledger": ROOT / "examples" / "ledger.jsonl",
        "run": tmp_path / "run.toml",
    }
    named["run"].write_text('[[phase]]\nname = "phase"\nmechanism = "gaussian"\nnoise_multiplier = 3\n')
    labels = LABEL.findall(run(line.format(**named))[1])
    assert len(labels) > 1
    for label in labels:
        assert entries(GROUPS, label)


def test_mechanism_without_an_entry_is_explained_by_its_summary(monkeypatch):
    words = data("words")
    for group in words["group"]:
        group["word"] = [entry for entry in group["word"] if entry["name"] != "laplace"]
    monkeypatch.setattr("privproj_cli.explain.data", lambda name: words if name == "words" else data(name))
    (laplace,) = [entry for entry in entries(word_groups(), "laplace") if entry["kind"] == "mechanism"]
    assert laplace["means"] == "Plain Laplace mechanism."


def test_the_words_are_whole_sentences_and_named_once():
    assert len(set(map(spelling, NAMES))) == len(NAMES)
    for entry in WORDS:
        assert set(entry) <= {"name", "also", "means", "cases", "see"}
        texts = [entry["means"], *(case["instead"] for case in entry.get("cases", ()))]
        assert all(text[0].isupper() or text.startswith(("z =", "1 - cos")) for text in texts), entry["name"]
        assert all(text.endswith(".") for text in texts), entry["name"]


def test_related_words_exist():
    for word in (word for entry in WORDS for word in entry.get("see", ())):
        assert entries(GROUPS, word)


def test_commands_that_the_words_name_exist():
    from privproj_cli.main import command_groups

    names = {name for commands in command_groups().values() for name in commands}
    assert set(re.findall(r"`privproj ([a-z-]+)", json.dumps(GROUPS))) <= names


def test_one_word_is_printed_and_without_one_all_are_listed(run):
    code, out, err = run("explain noise multiplier")
    assert (code, err) == (0, "") and out.startswith("noise multiplier  (") and len(out.splitlines()) < 8
    assert run("explain NOISE-multiplier") == run("explain noise_multiplier") == (code, out, err)
    listed = " ".join(run("explain")[1].split())
    assert all(entry["name"] in listed for entry in WORDS)
    assert all(len(line) <= 100 for word in ("", *NAMES) for line in run(f"explain {word}")[1].splitlines())


def test_every_claim_has_an_explanation_and_its_page():
    proofs = (ROOT / "docs" / "proofs.md").read_text()
    titles = dict(re.findall(r"^## (C\d+) (.*)$", proofs, re.MULTILINE))
    assert list(claims()) == list(titles) and len(titles) > 30
    for name, title in titles.items():
        (found,) = entries(GROUPS, name.lower())
        assert found["means"].startswith(f"{title}.") and f"docs/proofs.md#{name.lower()}" in found["means"]
        assert f'<a id="{name.lower()}"></a>' in proofs and not {"$", "`", "["} & set(found["means"])
        assert found["see"] == [f"{b.mechanism.name}.{b.name}" for b in registry() if b.proof == name]


def test_json_has_the_same_words(run):
    assert [e["name"] for e in json.loads(run("explain --json")[1])["results"]] == [e["name"] for e in WORDS]
    assert {e["name"] for e in json.loads(run("explain exact --json")[1])["results"]} == {
        "exact", *(f"{kind}.exact" for kind, name in bound_names() if name == "exact"),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("word", "meant"), [("vacuus", "vacuous"), ("rankfree", "rank-free"), ("zero out x", "zero-out")]
)
def test_an_unknown_word_gets_a_suggestion(word, meant, run):
    code, out, err = run(f"explain {word}")
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert meant in err.partition("did you mean")[2]
    assert "privproj explain" in run("explain zzzzzzz")[2]


# --- the catalogue ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", full_if(registry(), lambda b: b.name in SECONDS), ids=ids)
def test_catalogue_example_works(run, bound):
    code, out, _ = run(f"bounds {bound.mechanism.name}.{bound.name}")
    out = " ".join(out.split())
    assert code == 0 and bound.source.split(",")[0] in out and bound.example.split()[-1] in out
    assert run(bound.example.removeprefix("privproj "))[0] == 0


def test_the_name_of_a_mechanism_lists_its_bounds(run):
    code, out, _ = run("bounds sketch-public")
    assert code == 0 and [line.split()[:2] for line in out.splitlines()[1:]] == [
        ["sketch-public", "rank-free"], ["sketch-public", "exact-rank1"], ["sketch-public", "operator-norm"]
    ]  # fmt: skip
    # gaussian is also the name of a bound of m2
    out = run("bounds gaussian")[1]
    assert "m2.gaussian" in out and "analytic" in out and "rank-free" not in out
