"""Bounds side by side."""

import json
import re

import pytest
from helpers import slow_if
from privproj_cli.query import MECHANISMS, example_words

GAUSSIAN = "gaussian --noise-multiplier 1"

M2 = "m2 --dim 2048 --rank 16 --noise-multiplier 0.5"


def test_compare_lists_promise_free_bounds_first(run):
    _, out, _ = run(f"compare {M2} --columns 512 --delta 1e-5 --json")
    rows = json.loads(out)["results"]
    values = [row["value"] for row in rows if row["status"] == "proved"]
    statuses = [row["status"] for row in rows]
    assert values == sorted(values)
    assert statuses == sorted(statuses, key=["proved", "conditional"].index)
    code, out, _ = run(f"compare {GAUSSIAN} --delta 1e-5")
    assert code == 0 and "classical" in out and "0 < epsilon < 1" in out


RUNS = ("", "--steps 9", "--fixed-projection --steps 9", "--sampling-rate .1", "--sampling-rate .1 --sampling fixed",
        "--sampling-rate .1 --relation replace", "--sampling partition --steps 2", "--group-size 3",
        "--relation replace", "--relation zero-out --group-size 2", "--norm-ratio 1.1", "--gamma .5",
        "--layer 64x4x3", "--misalignment 1.5", "--columns 1 --misalignment 0", "--changed-columns 2 --span-dim 0 "
        "--residual-norm 1 --residual-misalignment .1")  # fmt: skip
"""What makes bounds not apply."""

SMALL = {"m1": "--dim 9 --rank 30 --noise-multiplier 9", "m2": "--dim 64 --rank 4 --noise-multiplier 3",
         "wishart": "--dim 30 --rank 4 --misalignment 1e-6", "sketch": "--rank 4 --gamma 100",
         "sketch-public": "--rank 4 --noise-multiplier 9", "mixing": "--rank 4 --gamma 60 --eigen-noise 9"}  # fmt: skip
"""Questions that are answered sooner than the example of their mechanism."""


def without(words, extra):
    """The options without those that the extra ones overrule or exclude."""
    names = {name for name in extra.split() if name.startswith("--")}
    names |= {"--dim", "--rank"} if "--layer" in names else set()
    pairs = zip(words.split()[::2], words.split()[1::2], strict=True)
    return " ".join(f"{name} {value}" for name, value in pairs if name not in names)


@pytest.mark.full
@pytest.mark.parametrize("mechanism", slow_if(MECHANISMS, lambda name: name == "mixing"))
def test_a_bound_that_does_not_apply_has_one_short_line(mechanism, run):
    refused, asked = 0, SMALL.get(mechanism) or " ".join(example_words(mechanism, "compare"))
    for extra in RUNS:
        if mechanism == "wishart" and "partition" in extra:
            continue  # half a minute, for words that other runs show
        line = f"compare {mechanism} {without(asked, extra)} {extra} --delta 1e-5"
        code, out, _ = run(line)
        if code == 2:
            continue  # an option of another mechanism
        shown = out.splitlines()
        rows = json.loads(run(line + " --json")[1])["results"]
        missing = [row for row in rows if row["value"] is None and row.get("outcome") != "vacuous"]
        for row in missing:
            begin = [at for at, text in enumerate(shown) if text.startswith(f"  {row['bound']} ")]
            assert len(begin) == 1, (line, row["bound"])
            words = shown[begin[0]].split(maxsplit=1)[1]
            assert len(shown[begin[0]]) <= 100 and not words.endswith("..."), (line, words)
            assert not words.startswith((row["bound"], "this bound", "expected")), (line, words)
            assert re.fullmatch(r"[a-z(`].*[^,;:]", words) and words.count("(") == words.count(")"), (line, words)
            full = row.get("reason") or " ".join(row["warnings"])
            assert len(full) > 10
        refused += len(missing)
        assert all(len(text) <= 100 for text in shown), line
    assert refused or mechanism == "laplace"


def test_what_compare_prints(run):
    _, out, _ = run(f"compare {M2} --delta 1e-5")
    lines = out.splitlines()
    assert lines[0].startswith("epsilon of m2 at delta 1e-05; add-remove; one release")
    assert "  beta-tail        needs --change-rank" in lines
    assert "promise (1): every record changes the layer's gradient by a matrix of rank at most 1" in lines


def test_a_refuted_bound_is_named_with_where_the_reason_is(run):
    code, out, err = run("compare wishart-matrix --dim 64 --rank 16 --columns 8 --delta 1e-5")
    assert code == 3 and "refuted" in out and "privproj bounds wishart-matrix.early-matrix" in out
    assert err.count("early-matrix") == 1 and err.count("\n") == 1
    assert "reason:" in run("bounds wishart-matrix.early-matrix")[1]


UNPROJECTED = "--layer 64x4x3 --layer 64x3 --noise-multiplier 1"


def test_warnings_are_said_by_every_command_that_answers(run, tmp_path):
    (tmp_path / "bounds.toml").write_text(
        '[[bound]]\nname = "a"\nquery = "epsilon"\nmechanism = "m2"\nlayer = ["64x4x3", "64x3"]\n'
        "noise_multiplier = 1\ndelta = 1e-5\nat_most = 99\n"
    )
    report = tmp_path / "report.xml"
    lines = (
        f"epsilon m2 {UNPROJECTED} --delta 1e-5", f"compare m2 {UNPROJECTED} --delta 1e-5", f"curve m2 {UNPROJECTED}",
        f"check {tmp_path / 'bounds.toml'} --junit {report}",
    )  # fmt: skip
    for line in lines:
        code, out, err = run(line)
        assert code == 0 and "warning: " in " ".join((out + err).split()), line
        assert "not the shape of a matrix" in " ".join((out + err).split()), line
    assert "not the shape of a matrix" in report.read_text()


def test_a_tensor_as_wide_as_its_rank_is_not_taken_for_a_mistake(run):
    layers = "--layer 64x4x3 --layer 3x3 --clipping per-layer"
    assert "warning" not in run(f"epsilon m2 {layers} --noise-multiplier 1 --delta 1e-5")[1]


@pytest.mark.parametrize("word", ["shuffling", "shuffled"])
def test_a_shuffling_loader_is_told_what_it_costs(run, word):
    code, _, err = run(f"epsilon gaussian --noise-multiplier 1 --sampling {word} --delta 1e-5")
    assert code == 2 and "write shuffle" in err and "balls-in-bins" in err
