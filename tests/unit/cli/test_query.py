"""Queries: JSON, batches and epochs, layers, warnings, what a plain question loads."""

import csv
import json
import re
import subprocess
import sys
from importlib.resources import files

import jsonschema
import numpy as np
import pytest
from helpers import slow_if
from privproj_cli.main import exit_code
from privproj_cli.query import example_arguments

from privproj.mechanisms.registry import mechanism_names

SCHEMA = json.loads((files("privproj") / "schema.json").read_text())

GAUSSIAN = "gaussian --noise-multiplier 1"

M2 = "m2 --dim 2048 --rank 16 --noise-multiplier 0.5"


@pytest.mark.parametrize(
    "line",
    [
        f"epsilon {GAUSSIAN} --delta 1e-5",
        f"delta {M2} --epsilon 1",
        f"delta {GAUSSIAN} --epsilon 0",
        "sigma m2 --dim 64 --rank 4 --epsilon 1 --delta 1e-5 --clip 2 --relation replace",
        "rank m2 --dim 64 --noise-multiplier 1 --epsilon 1 --delta 1e-5",
        "epsilon m2 --dim 64 --rank 4 --change-rank 2 --bound beta-tail --noise-multiplier 1 --delta 1e-5",
        "epsilon gaussian --noise-multiplier 1 --delta 1e-5 --bound classical",
        "delta gaussian --noise-multiplier 1e-3 --epsilon 1",
    ],
)
def test_json_is_one_valid_object(run, line):
    code, out, _ = run(line + " --json")
    shown = json.loads(out)
    jsonschema.validate(shown, SCHEMA)
    assert (shown["value"] is None) == (code in (3, 4, 5))


def joined(text):
    """Return a text without its line breaks."""
    return " ".join(text.split())


def test_sigma_with_clip_is_doubled_under_replace(run):
    base = "sigma gaussian --epsilon 1 --delta 1e-5 --clip 3 --json"
    plain, doubled = (json.loads(run(base + extra)[1]) for extra in ("", " --relation replace"))
    assert plain["noise_std"] == pytest.approx(3 * plain["noise_multiplier"], rel=1e-15, abs=0)
    assert doubled["noise_std"] == pytest.approx(6 * doubled["noise_multiplier"], rel=1e-15, abs=0)
    assert plain["value"] == doubled["value"]


def test_printed_deviation_is_that_of_noise(run):
    """Noise of this deviation, drawn and measured, has it: for Laplace the multiplier counts the scale."""
    rng = np.random.default_rng(7)
    for kind, draw in (("gaussian", rng.normal), ("laplace", rng.laplace)):
        found = json.loads(run(f"sigma {kind} --epsilon 1 --delta 1e-5 --clip 3 --json")[1])
        noise = draw(scale=3.0 * found["noise_multiplier"], size=100_000)
        assert found["noise_std"] == pytest.approx(noise.std(), rel=2e-2, abs=0)


def test_head_that_was_written_by_its_shape_is_noticed(run):
    line = "epsilon m2 --layer 512x8x4 --layer {} --noise-multiplier 1 --delta 1e-5"
    assert "not the shape of a matrix" in run(line.format("512x3"))[1]
    assert "not the shape of a matrix" not in run(line.format("512x16"))[1]


def test_unprojected_layers_give_no_joint_clip_warning(run):
    line = "epsilon m2 --layer 64x64x2 --noise-multiplier 1 --delta 1e-5"
    assert "shares the clipping norm" in joined(run(line)[1])
    apart = run(f"{line} --clipping per-layer")[1]
    assert "No layer is projected" in apart and "shares the clipping norm" not in apart


def test_batches_and_epochs(run):
    line = "epsilon gaussian --noise-multiplier 50 --batch-size 100 --dataset-size 100 --epochs 7 --delta 1e-5 --json"
    shown = json.loads(run(line)[1])
    assert (shown["run"]["steps"], shown["run"]["sampling_rate"]) == (7, 1.0)
    partition = line.replace("--batch-size 100", "--batch-size 10 --sampling partition")
    assert json.loads(run(partition)[1])["value"] == shown["value"]
    warned = json.loads(run(line.replace("1e-5", "1e-2"))[1])
    assert "1/N" in warned["warnings"][0]


def test_fixed_projection_omits_fresh_requirement(run):
    line = (
        "epsilon m2 --dim 64 --rank 4 --noise-multiplier 3 --steps 5 --fixed-projection --bound gaussian --delta 1e-5"
    )
    code, out, _ = run(line + " --bound gaussian")
    assert code == 0 and "afresh" not in out
    assert "afresh" not in run("bounds m2.gaussian")[1]


def test_grid_of_composition_is_printed(run):
    _, out, _ = run("epsilon gaussian --noise-multiplier 1 --steps 100 --sampling-rate 0.1 --delta 1e-5 -v")
    assert re.search(r"numerics:  grid step [\d.e-]+, \d+ points, composed by privproj", out)
    assert "all numerical errors are bounded and included" in " ".join(out.split())


def test_epoch_in_bins_is_answered_in_full(run):
    line = "epsilon gaussian --noise-multiplier 1 --sampling balls-in-bins --batches 20 --delta 1e-5"
    shown = json.loads(run(f"{line} --json")[1])
    jsonschema.validate(shown, SCHEMA)
    assert {key: shown["run"][key] for key in ("sampling", "batches", "batches_per_record", "steps", "relation")} == {
        "sampling": "balls-in-bins", "batches": 20, "batches_per_record": 1, "steps": 1, "relation": "add-remove",
    }  # fmt: skip
    sized = f"{line.replace('--batches 20', '')} --batch-size 5 --dataset-size 96 --epochs 1 --json"
    assert json.loads(run(sized)[1])["value"] == shown["value"]
    out = " ".join(run(f"{line} -v")[1].split())
    assert "numerics: an epoch as a sum of likelihood ratios" in out and "all numerical errors are bounded" in out


def test_layers_on_command_line(run):
    line = "epsilon m2 --layer 64x4x3@0.9 --layer 8x8@0.1 --clipping per-layer --noise-multiplier 1 --delta 1e-5 --json"
    shown = json.loads(run(line)[1])
    jsonschema.validate(shown, SCHEMA)
    assert shown["mechanism"]["layers"] == ["64x4x3@0.9", "8x8x1@0.1"]
    _, out, _ = run("epsilon m2 --layer 64x4x3 --layer 8x8 --noise-multiplier 1 --delta 1e-5")
    assert "unprojected tensor" in out


@pytest.mark.parametrize(
    "arguments",
    ["rank wishart --dim 10 --misalignment .5 --epsilon 1e-3", "misalignment wishart --dim 10 --rank 1 --epsilon 1e-9"],
)
def test_query_without_result_states_it(arguments, capsys):
    assert exit_code([*arguments.split(), "--delta", "1e-12"]) == 4
    assert "nothing fits" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("sentence", "output"),
    [
        ("--advantage 0.1", "smallest that meets advantage 0.1)"),
        ("--tpr 0.2 --fpr 0.01", "smallest that meets true positive rate 0.2 at false positive rate 0.01)"),
    ],
)
def test_noise_for_attack_risk_names_risk(run, sentence, output):
    line = f"sigma m2 --dim 64 --rank 4 {sentence}"
    shown = json.loads(run(f"{line} --json")[1])
    jsonschema.validate(shown, SCHEMA)
    assert shown["risk"] and shown["epsilon"] is None and shown["delta"] is None
    out = run(f"{line} --clip 2 -v")[1]
    assert output in out.splitlines()[0] and "standard deviation" in out and "by the bound of DP-SGD" in out


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        ("--advantage 0.1 --delta 1e-5", "--delta must be omitted if --advantage is given, got 1e-05"),
        ("--tpr 0.2", "missing --fpr"),
        ("--tpr 0.2 --fpr 0.3", "above fpr = 0.3, which random guessing reaches, got 0.2"),
        ("--delta 1e-5", "missing --epsilon; give --epsilon and --delta, or --advantage, or --tpr and --fpr"),
        ("--advantage 10%", "Write 10 % as 0.1"),
    ],
)
def test_risk_and_another_target_are_one_clear_error(capsys, arguments, output):
    assert exit_code(["sigma", "gaussian", *arguments.split()]) == 2
    error = capsys.readouterr().err
    assert output in error and error.count("\n") == 1


# --- bounds side by side ------------------------------------------------------------------------------


def test_compare_lists_bounds_without_assumptions_first(run):
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


def without(arguments, extra):
    """The options without those that the extra ones overrule or exclude."""
    names = {name for name in extra.split() if name.startswith("--")}
    names |= {"--dim", "--rank"} if "--layer" in names else set()
    pairs = zip(arguments.split()[::2], arguments.split()[1::2], strict=True)
    return " ".join(f"{name} {value}" for name, value in pairs if name not in names)


def reasons_without_value(out):
    """Return the reason after ``no value:`` for each bound: its entries are ``NAME, NAME (REASON)``, after a dash."""
    block = out.partition("  no value:")[2].partition("\nwarning:")[0]
    reasons, depth, entry = {}, 0, ""
    for sign in " ".join(block.split()):
        depth += {"(": 1, ")": -1}.get(sign, 0)
        entry += sign
        if sign == ")" and depth == 0:
            names, reason = entry[:-1].split(" (", 1)
            for name in names.strip().removeprefix("- ").split(", "):
                assert name not in reasons
                reasons[name] = reason
            entry = ""
    assert not entry, out
    return reasons


@pytest.mark.full
@pytest.mark.parametrize("mechanism", slow_if(mechanism_names(), lambda name: name in ("mixing", "wishart")))
def test_bound_that_does_not_apply_has_one_short_line(mechanism, run):
    rejected, requested = 0, SMALL.get(mechanism) or " ".join(example_arguments(mechanism, "compare"))
    for extra in RUNS:
        if mechanism == "wishart" and "partition" in extra:
            continue  # half a minute, for words that other runs show
        line = f"compare {mechanism} {without(requested, extra)} {extra} --delta 1e-5"
        code, out, _ = run(line)
        if code == 2:
            continue  # an option of another mechanism
        shown = out.splitlines()
        rows = json.loads(run(line + " --json")[1])["results"]
        missing = [row for row in rows if row["value"] is None and row.get("outcome") != "vacuous"]
        reasons = reasons_without_value(out)
        for row in missing:
            sentence = reasons[row["bound"]]
            assert len(sentence) <= 120 and not sentence.endswith("..."), (line, sentence)
            assert not sentence.startswith((row["bound"], "this bound", "expected")), (line, sentence)
            assert re.fullmatch(r"(--)?[a-z(`].*[^,;:.]", sentence) and sentence.count("(") == sentence.count(")"), (
                line,
                sentence,
            )
            full = row.get("reason") or " ".join(row["warnings"])
            assert len(full) > 10
        rejected += len(missing)
        assert all(len(text) <= 100 for text in shown[1:]), line  # the headline is not wrapped in a pipe
    assert rejected or mechanism == "laplace"


def test_compare_csv_has_all_digits(run):
    code, out, _ = run(f"compare {M2} --delta 1e-5 --csv")
    names, *rows = csv.reader(out.splitlines())
    records = [dict(zip(names, row, strict=True)) for row in rows]
    results = json.loads(run(f"compare {M2} --delta 1e-5 --json")[1])["results"]
    assert code == 0 and [row["bound"] for row in records] == [result["bound"] for result in results]
    values = [result["value"] for result in results]
    assert [row["epsilon"] for row in records] == ["" if value is None else repr(value) for value in values]
    assert run(f"compare {M2} --delta 1e-5 --csv --json")[0] == 2


def test_compare_does_not_refer_to_itself(run):
    code, out, _ = run("compare gaussian --noise-multiplier 1 --sampling-rate 0.01 --steps 9 --delta 1e-5")
    assert code == 0 and "infinite  classical" in out and "privproj compare" not in out


def test_rate_has_the_same_digits_in_every_line(run):
    _, out, _ = run("rate gaussian --noise-multiplier 1 --steps 1000 --epsilon 3 --delta 1e-5")
    assert "sampling rate = 0.01575" in out and "1000 steps, Poisson sampling at rate 0.01575\n" in out
    _, out, _ = run("rate gaussian --noise-multiplier 0.1 --steps 1000 --epsilon 1e-4 --delta 1e-15")
    assert "run:       1000 steps\n" in out


def test_compare_prints_table(run):
    _, out, _ = run(f"compare {M2} --delta 1e-5")
    lines = out.splitlines()
    by = "by rank-free, the smallest without an assumption on the data"
    assert re.fullmatch(rf"epsilon = [\d.]+  \(upper bound, delta = 1e-05; {by}\)", lines[0])
    assert "  neighbors: add or remove one record" in lines
    assert "beta-tail (each needs --columns)" in out and "  assumes:   (exact-rank1) " in out


def test_refuted_bound_error_names_its_reason(run):
    code, out, err = run("compare wishart-matrix --dim 64 --rank 16 --columns 8 --delta 1e-5")
    assert code == 3 and "refuted" in out and "privproj bounds wishart-matrix.early-matrix" in joined(out)
    assert err.count("early-matrix") == 1 and err.count("\n") == 1
    assert "reason:" in run("bounds wishart-matrix.early-matrix")[1]


UNPROJECTED = "--layer 64x4x3 --layer 64x3 --noise-multiplier 1"


def test_every_query_prints_warnings(run, tmp_path):
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


def test_tensor_as_wide_as_its_rank_is_not_taken_for_mistake(run):
    layers = "--layer 64x4x3 --layer 3x3 --clipping per-layer"
    assert "warning" not in run(f"epsilon m2 {layers} --noise-multiplier 1 --delta 1e-5")[1]


@pytest.mark.parametrize("word", ["shuffling", "shuffled"])
def test_shuffle_warning_states_its_cost(run, word):
    code, _, err = run(f"epsilon gaussian --noise-multiplier 1 --sampling {word} --delta 1e-5")
    assert code == 2 and "did you mean 'shuffle'?" in err


# --- a plain question loads what it needs and no more -------------------------------------------------


def loaded(line):
    """What the command line imports for a question, in a process of its own."""
    code = "import sys; from privproj_cli.main import main\ntry: main(sys.argv[1:])\nfinally: print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, *line.split()], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


NEEDED = {
    "", ".accounting", ".accounting.phase", ".accounting.query", ".assumptions", ".composition",
    ".composition.compose", ".errors", ".lazy", ".mechanisms", ".mechanisms.base", ".mechanisms.bound",
    ".mechanisms.gaussian", ".mechanisms.registry", ".numerics", ".numerics.interval", ".numerics.inverse_kernels",
    ".numerics.kernels", ".numerics.root_finding", ".numerics.special", ".numerics.tables", ".parameters", ".plugins",
    ".profiles", ".profiles.approximate_dp", ".profiles.columns", ".profiles.conversion", ".profiles.gaussian",
    ".profiles.privacy_profile", ".profiles.rdp", ".result", ".run", ".sampling", ".targets", ".version",
}  # fmt: skip
"""The modules of the package that an epsilon of plain Gaussian noise needs: each costs every such answer its time."""

DEAR = {"numpy", "scipy", "numba", "mpmath", "json", "importlib.metadata"}
"""Modules of others that it does without."""


def test_gaussian_epsilon_loads_only_its_modules():
    modules = loaded(f"epsilon {GAUSSIAN} --delta 1e-5")
    own = {name.removeprefix("privproj") for name in modules if name.split(".")[0] == "privproj"}
    assert own <= NEEDED, own - NEEDED
    assert not modules & DEAR


def test_query_loads_one_mechanism_and_named_bounds():
    modules = loaded("delta laplace --noise-multiplier 1 --epsilon 1")
    kinds = {name for name in modules if name.startswith("privproj.mechanisms.")}
    own = {"laplace"}
    assert kinds == {f"privproj.mechanisms.{name}" for name in ("base", "bound", "registry", *own)}
