"""The command line: text, JSON, exit codes, bad input."""

import json
import re
import shlex
import subprocess
import sys
from importlib import import_module
from importlib.resources import files

import jsonschema
import pytest
from privproj_cli.main import COMMANDS, exit_code
from privproj_cli.render import rounded

import privproj
from privproj.bounds import registry

SCHEMA = json.loads((files("privproj") / "schema.json").read_text())
GAUSSIAN = "gaussian --noise-multiplier 1"
M2 = "m2 --dim 2048 --rank 16 --noise-multiplier 0.5"


@pytest.fixture
def run(capsys):
    """Run a command line; returns (exit code, standard output, standard error)."""

    def call(line):
        code = exit_code(shlex.split(line))
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return call


@pytest.mark.parametrize("line", [f"epsilon {GAUSSIAN} --delta 1e-5", f"epsilon {M2} --delta 1e-5"])
def test_text_starts_with_the_number_and_says_what_it_rests_on(run, line):
    code, out, err = run(line)
    first, second = out.splitlines()[:2]
    assert (code, err) == (0, "")
    assert re.fullmatch(r"epsilon = [\d.]+  \((upper bound|exact), at delta 1e-05\)", first)
    assert "proved, no promise on the data" in second and "add-remove" in second and "one release" in second


def test_gain_line_of_a_projection_mechanism(run):
    _, out, _ = run(f"epsilon {M2} --delta 1e-5")
    assert re.search(r"gain: +plain Gaussian [\d.]+, published \(k=2048\) [\d.]+, this bound", out)


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


def test_sigma_with_a_clip_is_doubled_under_replace(run):
    base = "sigma gaussian --epsilon 1 --delta 1e-5 --clip 3 --json"
    plain, doubled = (json.loads(run(base + extra)[1]) for extra in ("", " --relation replace"))
    assert plain["noise_std"] == pytest.approx(3 * plain["noise_multiplier"], rel=1e-15, abs=0)
    assert doubled["noise_std"] == pytest.approx(6 * doubled["noise_multiplier"], rel=1e-15, abs=0)
    assert plain["value"] == doubled["value"]


def test_batches_and_epochs(run):
    line = "epsilon gaussian --noise-multiplier 50 --batch-size 100 --dataset-size 100 --epochs 7 --delta 1e-5 --json"
    shown = json.loads(run(line)[1])
    assert (shown["run"]["steps"], shown["run"]["sampling_rate"]) == (7, 1.0)
    partition = line.replace("--batch-size 100", "--batch-size 10 --sampling partition")
    assert json.loads(run(partition)[1])["value"] == shown["value"]
    warned = json.loads(run(line.replace("1e-5", "1e-2"))[1])
    assert "1/N" in warned["warnings"][0]


@pytest.mark.parametrize("quantity", ["epsilon", "delta", "sigma", "rank", "steps", "rate", "misalignment", "compare"])
def test_help_shows_an_example_that_works(run, quantity):
    for mechanism in import_module(f"privproj_cli.{quantity}").command.commands:
        code, out, _ = run(f"{quantity} {mechanism} --help")
        example = next(line for line in out.splitlines() if line.strip().startswith(f"privproj {quantity}"))
        assert code == 0
        expected = 3 if mechanism == "wishart-matrix" else 0
        assert run(example.strip().removeprefix("privproj "))[0] == expected, example


@pytest.mark.parametrize("bound", registry(), ids=lambda b: f"{b.mechanism.name}.{b.name}")
def test_catalogue_example_works(run, bound):
    code, out, _ = run(f"bounds {bound.mechanism.name}.{bound.name}")
    out = " ".join(out.split())
    assert code == 0 and bound.source.split(",")[0] in out and bound.example.split()[-1] in out
    assert run(bound.example.removeprefix("privproj "))[0] == 0


def test_every_command_has_help(run):
    for command in COMMANDS:
        assert run(f"{command} --help")[0] == 0
    assert run("--version")[1].strip() == f"privproj, version {privproj.__version__}"


def test_compare_lists_promise_free_bounds_first(run):
    _, out, _ = run(f"compare {M2} --columns 512 --delta 1e-5 --json")
    rows = json.loads(out)["results"]
    values = [row["value"] for row in rows if row["status"] == "proved"]
    statuses = [row["status"] for row in rows]
    assert values == sorted(values)
    assert statuses == sorted(statuses, key=["proved", "conditional"].index)
    code, out, _ = run(f"compare {GAUSSIAN} --delta 1e-5")
    assert code == 0 and "classical" in out and "0 < epsilon < 1" in out


BAD = [
    ("epsilon gaussian --noise-multiplier -1 --delta 1e-5", 2, "--noise-multiplier=-1"),
    ("epsilon gaussian --noise-multiplier 0 --delta 1e-5", 2, "--noise-multiplier=0"),
    ("epsilon gaussian --noise-multiplier nan --delta 1e-5", 2, "--noise-multiplier=nan"),
    ("epsilon gaussian --noise-multiplier inf --delta 1e-5", 2, "finite"),
    ("epsilon gaussian --noise-multiplier '' --delta 1e-5", 2, "number"),
    ("epsilon gaussian --noise-multiplier 1e400 --delta 1e-5", 2, "too large"),
    ("epsilon gaussian --noise-multiplier 1e-400 --delta 1e-5", 2, "underflow"),
    ("epsilon gaussian --noise-multiplier 1e-200 --delta 1e-5", 2, "1e-12"),
    ("epsilon gaussian --noise-multiplier 1 --delta 0", 2, "--delta=0"),
    ("epsilon gaussian --noise-multiplier 1 --delta 1", 2, "--delta=1"),
    ("epsilon gaussian --noise-multiplier 1 --delta 2", 2, "--delta=2"),
    ("epsilon gaussian --noise-multiplier 1 --delta nan", 2, "--delta=nan"),
    ("delta gaussian --noise-multiplier 1 --epsilon -1", 2, "--epsilon=-1"),
    ("sigma gaussian --epsilon 0 --delta 1e-5", 2, "--epsilon=0"),
    ("epsilon gaussian --noise-multiplier 1 --delta 1e-5 --sampling-rate 0", 2, "--sampling-rate=0"),
    ("epsilon gaussian --noise-multiplier 1 --delta 1e-5 --sampling-rate 1.5", 2, "--sampling-rate=1.5"),
    ("epsilon gaussian --noise-multiplier 1 --delta 1e-5 --steps 0", 2, "--steps=0"),
    ("epsilon gaussian --noise-multiplier 1 --delta 1e-5 --steps 2.5", 2, "--steps=2.5"),
    ("epsilon gaussian --noise-multiplier 1 --delta 1e-5 --steps -5", 2, "--steps=-5"),
    ("epsilon gaussian --noise-multiplier 1 --delta 1e-5 --dim 8", 2, "--dim"),
    ("epsilon gaussian --noise-multiplier 1 --delta 1e-5 --bound nonsense", 2, "analytic"),
    ("epsilon gaussian --noise-multiplier 1 --delta 1e-5 --epochs 3", 2, "--batch-size"),
    ("epsilon gaussian --noise-multiplier 1 --delta 1e-5 --batch-size 3", 2, "--dataset-size"),
    ("epsilon gaussian --noise-multiplier 1 --delta 1e-5 --batch-size 30 --dataset-size 20", 2, "at most"),
    ("epsilon gaussian --noise-multiplier 1", 2, "--delta"),
    ("epsilon martian", 2, "martian"),
    ("epsilonn gaussian", 2, "epsilonn"),
    ("epsilon m2 --dim 64 --rank 0 --noise-multiplier 1 --delta 1e-5", 2, "--rank=0"),
    ("epsilon m2 --dim 64 --rank 65 --noise-multiplier 1 --delta 1e-5", 2, "dim=64"),
    ("epsilon m2 --dim 64 --rank 4.5 --noise-multiplier 1 --delta 1e-5", 2, "--rank=4.5"),
    ("epsilon m2 --dim 64 --rank 4 --columns 8 --change-rank 9 --noise-multiplier 1 --delta 1e-5", 2, "min(dim"),
    ("epsilon m2 --dim 64 --rank 4 --bound beta-tail --noise-multiplier 1 --delta 1e-5", 2, "columns"),
    ("epsilon m2 --dim 1e30 --rank 4 --noise-multiplier 1 --delta 1e-5", 2, "--dim"),
    ("epsilon gaussian --noise-multiplier 1 --delta 1e-5 --bound classical", 3, "analytic"),
    ("epsilon gaussian --noise-multiplier 1 --delta 1e-5 --sampling-rate .1 --relation replace", 3, "supported"),
    (
        "epsilon m2 --dim 8 --rank 2 --noise-multiplier 1 --delta 1e-5 --bound exact-rank1 --relation replace",
        3,
        "zero-out",
    ),
    ("epsilon gaussian --noise-multiplier 1 --delta 1e-5 --dataset-size 0", 2, "--dataset-size=0"),
    ("epsilon gaussian --noise-multiplier 1_0 --delta 1e-5", 2, "1_0"),
    ("sigma m2 --dim 64 --rank 4 --clipping per-layer --epsilon 1 --delta 1e-5", 2, "layers"),
    ("epsilon gaussian --noise-multiplier 1 --delta 1e-5 --split even", 2, "--split=0.5"),
    ("epsilon m2 --noise-multiplier 1 --delta 1e-5", 2, "layers"),
    ("epsilon m2 --layer 768x16 --dim 8 --rank 2 --noise-multiplier 1 --delta 1e-5", 2, "layers"),
    ("epsilon m2 --layer 768 --noise-multiplier 1 --delta 1e-5", 2, "--layer=768"),
    ("epsilon m2 --layer 768x0 --noise-multiplier 1 --delta 1e-5", 2, "--layer=0"),
    ("epsilon m2 --layer 768x16@2 --clipping per-layer --noise-multiplier 1 --delta 1e-5", 2, "--layer=2"),
    ("epsilon m2 --dim 64 --rank 4 --fixed-projection --steps 2 --noise-multiplier 1 --delta 1e-5", 3, "gaussian"),
    ("epsilon m2 --layer 64x4x3 --bound exact-rank1 --noise-multiplier 1 --delta 1e-5", 3, "rank-free"),
    (
        "epsilon gaussian --noise-multiplier 1 --steps 100 --sampling-rate .1 --delta 1e-14 --composer dp-accounting",
        5,
        "larger delta",
    ),
    ("epsilon gaussian --noise-multiplier 1e-3 --steps 10 --sampling-rate .1 --delta 1e-5", 5, "noise"),
    ("delta gaussian --noise-multiplier 1e-3 --epsilon 1", 4, None),
    ("rank m2 --dim 8 --noise-multiplier 1e-3 --epsilon 1 --delta 1e-5", 4, None),
]


def test_a_reused_projection_is_not_said_to_be_fresh(run):
    line = (
        "epsilon m2 --dim 64 --rank 4 --noise-multiplier 3 --steps 5 --fixed-projection --bound gaussian --delta 1e-5"
    )
    code, out, _ = run(line + " --bound gaussian")
    assert code == 0 and "afresh" not in out
    assert "afresh" not in run("bounds m2.gaussian")[1]


def test_the_grid_of_a_composition_is_printed(run):
    _, out, _ = run("epsilon gaussian --noise-multiplier 1 --steps 100 --sampling-rate 0.1 --delta 1e-5")
    assert re.search(r"numerics: grid [\d.e-]+, \d+ points, composed by privproj", out)
    assert "all its errors are bounded and included" in " ".join(out.split())
    _, out, _ = run(
        "epsilon gaussian --noise-multiplier 1 --steps 100 --sampling-rate 0.1 --delta 1e-5 --composer dp-accounting"
    )
    assert "measured, not proved" in " ".join(out.split())


def test_layers_on_the_command_line(run):
    line = "epsilon m2 --layer 64x4x3@0.9 --layer 8x8@0.1 --clipping per-layer --noise-multiplier 1 --delta 1e-5 --json"
    shown = json.loads(run(line)[1])
    jsonschema.validate(shown, SCHEMA)
    assert shown["mechanism"]["layers"] == ["64x4x3@0.9", "8x8x1@0.1"]
    _, out, _ = run("epsilon m2 --layer 64x4x3 --layer 8x8 --noise-multiplier 1 --delta 1e-5")
    assert "unprojected tensor" in out


@pytest.mark.parametrize(("line", "code", "word"), BAD, ids=[line for line, _, _ in BAD])
def test_bad_input_gets_one_clear_line(run, line, code, word):
    found, out, err = run(line)
    assert found == code
    if code in (2, 3, 5):
        assert out == ""
        assert err.startswith("error: ") and err.count("\n") == 1
        assert word in err
    else:
        assert err == "" and out


@pytest.mark.parametrize("value", [0.98765, 1.00004, 123456.0, 3.2e-7, 9.99951e-12, 1.0])
def test_text_rounds_outward(value):
    assert value <= float(rounded(value)) <= value * 1.0011
    assert value * 0.9989 <= float(rounded(value, up=False)) <= value


def test_tiny_delta_is_not_shown_as_zero(run):
    code, out, _ = run("delta gaussian --noise-multiplier 1 --epsilon 60")
    assert code == 0 and out.startswith("delta < 1e-300")


@pytest.mark.parametrize(
    "line",
    ["--help", f"epsilon {GAUSSIAN} --delta 1e-5", f"epsilon {M2} --change-rank 2 --bound beta-tail --delta 1e-5"],
)
def test_hot_commands_import_nothing_slow(line):
    code = (
        "import sys; from privproj_cli.main import exit_code; exit_code(sys.argv[1:]);"
        "slow = {'numpy', 'scipy', 'numba', 'mpmath', 'dp_accounting', 'importlib.metadata'} & set(sys.modules);"
        "sys.exit(f'imported {slow}' if slow else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, *shlex.split(line)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "words",
    ["rank wishart --dim 10 --misalignment .5 --epsilon 1e-3", "misalignment wishart --dim 10 --rank 1 --epsilon 1e-9"],
)
def test_a_query_that_finds_nothing_says_so(words, capsys):
    assert exit_code([*words.split(), "--delta", "1e-12"]) == 4
    assert "nothing fits" in capsys.readouterr().out
