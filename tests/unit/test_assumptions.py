"""Results list their requirements and data assumptions exactly where they apply."""

import json
import math
import re

import numpy as np
import pytest
from helpers import GUARANTEES, full_if, needs

import privproj
from privproj import M2, Gaussian, InvalidParameterError, Sketch, UnsupportedError
from privproj.accounting.schedule import dp_sft
from privproj.assumptions import Requirement
from privproj.io.ledger import Ledger
from privproj.io.run_file import from_data

OF_ONE_MECHANISM = {
    "L1_SENSITIVITY", "CLIPPING_BEFORE_SKETCH", "FRESH_PROJECTION", "FRESH_MATRIX", "FRESH_SKETCH", "SECRET_SEED",
    "SECRET_MATRIX_SEED", "SECRET_SKETCH_SEED", "SECRET_MATRIX", "SECRET_SKETCH", "QUERY_INDEPENDENT_OF_SKETCH",
}  # fmt: skip
SHORT = {member.name: member.short for member in Requirement if member.name not in OF_ONE_MECHANISM}
TEXTS = {member.name: str(member) for member in Requirement if member.name not in OF_ONE_MECHANISM}

FROM_RUN = ("FIXED_POSITIONS", "PUBLIC_DATASET_SIZE", "FIXED_SCHEDULE", "FRESH_PROJECTION_PER_BATCH",
            "ASSUMPTIONS_PER_BATCH", "REPLACE_SENSITIVITY", "PUBLIC_SUBSPACE",
            "BALLS_IN_BINS_SAMPLING", "POISSON_SAMPLING", "FIXED_SIZE_SAMPLING",
            "FIXED_SCHEDULE_EXCEPT_CLIP")  # fmt: skip


def present(found):
    """Return the names of the requirements in a list of texts."""
    return {name for name, wording in TEXTS.items() if wording in found}


def stated(text):
    """Return the names of the requirements that a text has in full or by their short names."""
    flat = " ".join(text.split())
    names = {name for name, short in SHORT.items() if re.search(rf"(?<![\w-]){short}(?![\w-])", flat)}
    return names | {name for name, wording in TEXTS.items() if wording in flat}


# --- every assumption exactly where its trigger is ------------------------------------------------

M2_SHAPE = "m2 --dim 64 --rank 4 --noise-multiplier 5"

STACK = "m2 --noise-multiplier 5 --clipping per-layer --layer 64x4x2"

M1_SHAPE = "m1 --dim 50 --rank 30 --noise-multiplier 40"

COLUMN = f"{M1_SHAPE} --span-dim 0 --residual-misalignment 1e-3"

SKETCH = "sketch --rank 4 --gamma 100"

CLIPPED = "sketch --rank 4 --frobenius-bound 1 --sensitivity .1 --noise-sigma 1 --enforced --eigenvalues 3"

PROJECTS, VALUES, NOISY, KNOWN, APART = "projects", "values", "noisy", "known", "apart"

MECHANISMS = {
    "gaussian --noise-multiplier 5": {NOISY},
    "gaussian --noise-multiplier 5 --adaptive-clipping-sigma 9": {NOISY},
    "laplace --noise-multiplier 50": {NOISY},
    M2_SHAPE: {NOISY, PROJECTS},
    f"{M2_SHAPE} --adaptive-clipping-sigma 9": {NOISY, PROJECTS},
    f"{M2_SHAPE} --bound gaussian": {NOISY},
    f"{M2_SHAPE} --bound exact-rank1": {NOISY, PROJECTS, KNOWN},
    f"{M2_SHAPE} --bound beta-tail-sharp --change-rank 2": {NOISY, PROJECTS},
    STACK: {NOISY, PROJECTS, APART},
    f"{STACK} --bound beta-tail --change-rank 2": {NOISY, PROJECTS},
    f"{STACK} --bound mixture-rdp": {NOISY, PROJECTS, APART},
    "m2 --noise-multiplier 5 --layer 64x4x2": {NOISY, PROJECTS},
    "m2 --noise-multiplier 5 --layer 64x4 --layer 8x8 --clipping per-layer": {NOISY, PROJECTS},
    f"{M1_SHAPE} --bound known-projection-rank1": {NOISY, PROJECTS, KNOWN},
    f"{M1_SHAPE} --bound operator-norm": {NOISY},
    f"{M1_SHAPE} --bound secret-projection --columns 1 --misalignment 1e-3": {NOISY, PROJECTS, VALUES},
    f"{COLUMN} --bound residual": {NOISY, PROJECTS, VALUES},
    "sketch-public --rank 16 --noise-multiplier 5 --bound exact-rank1": {NOISY, PROJECTS},
    "wishart --dim 50 --rank 8 --misalignment 1e-4": {PROJECTS, VALUES},
    "wishart --dim 50 --rank 8 --misalignment 1e-4 --bound quantile": {PROJECTS, VALUES},
    f"{SKETCH} --bound exact-rank1": {PROJECTS, VALUES},
    f"{SKETCH} --bound exact-rank1 --layer-count 2": {PROJECTS, VALUES, APART},
    f"{CLIPPED} --bound rdp": {PROJECTS},
    f"{CLIPPED} --bound rdp-best --layer-count 3": {PROJECTS, APART},
}

RUNS = ["", "--sampling-rate .1 --steps 1",
        "--sampling fixed --sampling-rate .1 --steps 1", "--sampling partition", "--sampling shuffle",
        "--sampling balls-in-bins --batches 1",
        "--batch-size 100 --dataset-size 100 --steps 1",
        "--sampling partition --batch-size 10 --dataset-size 100 --epochs 1"]  # fmt: skip

RELATIONS = ["", "--relation add-remove", "--relation replace", "--relation zero-out"]


def expected(mechanism, wording, relation):
    """Return the requirements that these options and this relation have by definition."""
    kind = MECHANISMS[mechanism]
    partition, bins = "partition" in wording or "shuffle" in wording, "bins" in wording
    epochs, sampled = partition or bins, partition or bins or "--sampling-rate" in wording
    triggers = {
        "PER_RECORD_CLIPPING": mechanism.startswith("gaussian"),
        "FULL_GRADIENT_CLIPPING": mechanism.split()[0] in ("m1", "m2"),
        "PER_LAYER_CLIPPING": "per-layer" in mechanism,
        "NOISE_AT_ADAPTED_CLIP": "adaptive" in mechanism,
        "CENTERED_COUNT": "adaptive" in mechanism,
        "POISSON_SAMPLING": "--sampling-rate" in wording and "fixed" not in wording,
        "FIXED_SIZE_SAMPLING": "fixed" in wording,
        "OBSERVED_PROJECTION": KNOWN in kind,
        "INDEPENDENT_LAYER_PROJECTIONS": APART in kind,
        "FIXED_POSITIONS": partition,
        "BALLS_IN_BINS_SAMPLING": bins,
        "FRESH_PROJECTION_PER_BATCH": epochs and PROJECTS in kind,
        "PUBLIC_DATASET_SIZE": "dataset-size" in wording and relation == "add-remove",
        "RANDOM_TRUNCATION": "max-batch-size" in wording,
        "FIXED_SCHEDULE": epochs and "adaptive" not in mechanism,
        "FIXED_SCHEDULE_EXCEPT_CLIP": epochs and "adaptive" in mechanism,
        "ASSUMPTIONS_PER_BATCH": sampled and VALUES in kind,
        "REPLACE_SENSITIVITY": relation == "replace" and NOISY in kind and VALUES not in kind,
    }
    return {name for name, there in triggers.items() if there}


@pytest.mark.parametrize("bound", GUARANTEES, ids=lambda bound: f"{bound.mechanism.name}.{bound.name}")
def test_every_guarantee_has_requirements(bound):
    assert bound.requirements(bound.mechanism)


@pytest.mark.parametrize("mechanism", ["gaussian --noise-multiplier 5", pytest.param(M2_SHAPE, marks=pytest.mark.slow)])
def test_adaptive_clipping_excludes_fixed_schedule(run, tmp_path, mechanism):
    """Also over phases of which one adapts its clip, in every command that lists requirements."""
    wording = f"{mechanism} --adaptive-clipping-sigma 9 --steps 4"
    name, *own = mechanism.split()
    given = dict(zip([word[2:].replace("-", "_") for word in own[::2]], map(float, own[1::2]), strict=True))
    phases = [{"mechanism": name, **given, "steps": 3, **more} for more in ({}, {"adaptive_clipping_sigma": 9})]
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"phase": phases}))
    lines = [f"epsilon {wording} --delta 1e-3", f"delta {wording} --epsilon 1", f"curve {wording} --points 2",
             f"compare {wording} --delta 1e-3", f"report {wording} --delta 1e-3", f"run {path} --delta 1e-3",
             f"report run {path} --delta 1e-3", f"remaining {path} --epsilon 900 --delta 1e-3"]  # fmt: skip
    for line in lines:
        code, out, err = run(line)
        assert code == 0, err
        found = stated(out)
        assert {"NOISE_AT_ADAPTED_CLIP", "CENTERED_COUNT", "FIXED_SCHEDULE_EXCEPT_CLIP"} <= found, line
        assert "FIXED_SCHEDULE" not in found, line


def test_unused_discretization_gives_warning(run):
    lines = (
        "epsilon gaussian --noise-multiplier 4 --delta 1e-5",
        "sigma gaussian --epsilon 1 --delta 1e-5 --steps 9",
        "curve gaussian --noise-multiplier 4 --points 2",
        "delta laplace --noise-multiplier 4 --epsilon .1",
    )
    for line in lines:
        code, out, err = run(f"{line} --discretization .01")
        assert code == 0 and "had no effect" in out + err, line
        assert "had no effect" not in "".join(run(line)[1:])
    used = run("epsilon gaussian --noise-multiplier 4 --delta 1e-5 --sampling-rate .1 --steps 3 --discretization .01")
    assert "had no effect" not in used[1]


COSTLY = ("mixture-rdp", "beta-tail", "known-projection-rank1", "wishart", "per-layer", "secret-projection", "residual")


@pytest.mark.parametrize("mechanism", full_if(MECHANISMS, lambda wording: any(word in wording for word in COSTLY)))
def test_requirements_appear_only_for_runs_that_need_them(run, mechanism):
    answered = 0
    for wording in RUNS:
        for relation in RELATIONS:
            code, out, _ = run(f"delta {mechanism} {wording} {relation} --epsilon .5 --json")
            if code == 3:
                continue
            answered += 1
            shown = json.loads(out)
            output = [*shown["mechanism"]["requirements"], *shown["run"]["requirements"]]
            assert len(output) == len(set(output))
            assert present(output) == expected(mechanism, wording, shown["run"]["relation"]), (wording, relation)
            assert present(shown["run"]["requirements"]) == present(output) & set(FROM_RUN)
    assert answered >= 6


@pytest.mark.full
@pytest.mark.parametrize("mechanism", ["gaussian --noise-multiplier 5", "wishart --dim 50 --rank 8 --misalignment 1e-4",
                                       f"{M2_SHAPE} --bound exact-rank1", STACK])  # fmt: skip
@pytest.mark.parametrize(
    "wording", ["--sampling partition --steps 1", "--batch-size 50 --dataset-size 50 --epochs 1", "--relation replace"]
)
def test_text_curve_and_report_match_json(run, mechanism, wording):
    code, out, _ = run(f"epsilon {mechanism} {wording} --delta 1e-3 --json")
    if code == 3:
        assert "exact-rank1" in mechanism and "replace" in wording
        return
    result = json.loads(out)
    output = [*result["mechanism"]["requirements"], *result["run"]["requirements"]]
    text = " ".join(run(f"epsilon {mechanism} {wording} --delta 1e-3 -v")[1].split())
    assert all(sentence in text for sentence in output)
    assert stated(run(f"epsilon {mechanism} {wording} --delta 1e-3")[1]) >= present(output)
    bound = "" if "--bound" in mechanism else f"--bound {result['bound']}"
    curve = json.loads(run(f"curve {mechanism} {bound} {wording} --points 2 --style json")[1])
    assert curve["results"][0]["requirements"] == output
    assert stated(run(f"curve {mechanism} {bound} {wording} --points 2")[1]) >= present(output)
    statement = " ".join(run(f"report {mechanism} {wording} --delta 1e-3")[1].split())
    assert all(f"requirement on the program: {sentence}" in statement for sentence in output)
    assert stated(run(f"compare {mechanism.split(' --bound')[0]} {wording} --delta 1e-3")[1]) >= present(output)


def test_several_releases_require_fixed_schedule(run):
    shown = json.loads(run("epsilon gaussian --noise-multiplier 5 --steps 3 --delta 1e-3 --json")[1])
    assert present(shown["run"]["requirements"]) == {"FIXED_SCHEDULE"}
    steps = privproj.steps(Gaussian(noise_multiplier=5.0), epsilon=1.0, delta=1e-3)
    assert present(steps.run["requirements"]) == {"FIXED_SCHEDULE"}
    one = {"mechanism": "gaussian", "noise_multiplier": 5}
    assert from_data({"phase": [one]}).epsilon(delta=1e-3).run["requirements"] == ()
    both = from_data({"phase": [one, one]}).epsilon(delta=1e-3)
    assert present(both.run["requirements"]) == {"FIXED_SCHEDULE"}


@pytest.mark.full
def test_dp_sft_requires_public_subspace(run, tmp_path):
    line = "dp-sft --epsilon 4 --delta 1e-5 --sampling-rate .1 --subspace-steps 2 --steps 2"
    for extra, there in (("", False), (" --public", True)):
        assert (TEXTS["PUBLIC_SUBSPACE"] in json.loads(run(f"{line}{extra} --json")[1])["run"]["requirements"]) == there
        assert ("public-subspace" in run(line + extra)[1]) == there
    path = tmp_path / "plan.toml"
    assert run(f"{line} --public -o {path}")[0] == 0 and "public subspace" in path.read_text()
    budget = {"epsilon": 4, "delta": 1e-5, "sampling_rate": 0.1, "steps": (2, 2)}
    assert TEXTS["PUBLIC_SUBSPACE"] not in dp_sft(**budget).epsilon(delta=1e-5).run["requirements"]


def test_run_file_keeps_requirements():
    entry = {"mechanism": "gaussian", "noise_multiplier": 5, "batch_size": 10, "dataset_size": 100, "epochs": 1}
    first = from_data({"phase": [entry]})
    again = from_data({"phase": [phase.as_dict() for phase in first.phases]})
    assert first.delta(epsilon=1.0).run == again.delta(epsilon=1.0).run
    assert TEXTS["PUBLIC_DATASET_SIZE"] in again.delta(epsilon=1.0).run["requirements"]
    parted = from_data({"phase": [{"mechanism": "gaussian", "noise_multiplier": 5, "sampling": "partition"}]})
    again = from_data({"phase": [phase.as_dict() for phase in parted.phases]})
    assert again.delta(epsilon=1.0).run["sampling"] == "partition"
    with pytest.raises(InvalidParameterError, match="public_size"):
        from_data({"phase": [{"mechanism": "gaussian", "noise_multiplier": 5, "public_size": "false"}]})


def test_alignment_mean_states_number_of_records(run):
    line = "alignment mean --norm-bound 1 --norm-floor .1 --records 5000"
    shown = json.loads(run(line + " --json")[1])
    assert any("5000 records" in wording and "smallest batch" in wording for wording in shown["requirements"])
    assert "5000 records" in run(line)[1] and "Poisson" in run(line)[1]
    batch = json.loads(run(line.replace("5000", "50") + " --json")[1])
    few, many = (
        privproj.delta(
            privproj.Wishart(dim=100, rank=16, misalignment=found["misalignment"]),
            epsilon=0.1, sampling="fixed", sampling_rate=0.01,
        ).value
        for found in (batch, shown)
    )  # fmt: skip
    assert few > 100 * many
    poisson = "--sampling-rate .1 --steps 1 --sampling poisson"
    assert run(f"epsilon wishart --dim 9 --rank 2 --misalignment 1e-5 {poisson} --delta .1")[0] == 3


def test_laplace_noise_multiplier_is_scale(run):
    """With a standard deviation entered as the scale, epsilon would be sqrt(2) times too small."""
    out = " ".join(run("epsilon laplace --noise-multiplier 2 --relation replace --clip 3 --delta 1e-5 -v")[1].split())
    assert "noise multiplier = scale/(2C)" in out and "sigma/(2C)" not in out
    assert "(for Laplace noise, the scale) divided by 2C" in out and "standard deviation 16.98 (sqrt(2) 2 z C" in out


def test_replace_states_meaning_of_noise_multiplier(run):
    line = "epsilon gaussian --noise-multiplier 2 --sampling fixed --sampling-rate .1 --steps 1 --clip 3 --delta 1e-3"
    out = run(line)[1]
    assert "neighbors: replace one record; noise multiplier = sigma/(2C)" in out
    assert "standard deviation 12.00 (2 z C" in out and "sigma/(2C)" in out.split("warning:")[1]
    plain = run(line.replace("fixed", "poisson"))[1]
    assert "standard deviation 6.000 (z C" in plain and "2C" not in plain
    phases = run("dp-sft --epsilon 4 --delta 1e-5 --sampling-rate .1 --subspace-steps 2 --steps 2")[1]
    assert "2C" not in phases


def test_training_requires_public_dataset_size():
    """Only under add-remove, which is not the default."""
    torch = needs("torch")
    from unit.training.helpers import data, mlp, own, private

    from privproj.training.algorithms.subspace import Subspace

    x, y = data()
    for subspace in (None, Subspace(torch.eye(53, 2, dtype=torch.float64), "public")):
        more = {} if subspace is None else {"algorithm": "dp-sft", "subspace": subspace}
        for relation in ("add-remove", None):
            options = {"noise_multiplier": 9.0, "steps": 1, "relation": relation, **more}
            module, optimizer, loader = private(mlp(), x, y, **options)
            for batch in loader:
                optimizer.backward_on(own(module), batch)
                optimizer.step()
            output = present(optimizer.epsilon(1e-3).requirements)
            assert ("PUBLIC_DATASET_SIZE" in output) == (relation == "add-remove")
            assert ("PUBLIC_SUBSPACE" in output) == (subspace is not None)
            optimizer.close()


RUNS_OF_TRAINING = {
    "one phase": [("gaussian", {"noise_multiplier": 5.0}, {"steps": 4, "sampling_rate": 0.1, "public_size": True})],
    "one release": [("laplace", {"noise_multiplier": 50.0}, {"steps": 1, "relation": "replace"})],
    "an adapted clip": [
        ("m2", {"dim": 64, "rank": 4, "noise_multiplier": 5.0, "adaptive_clipping_sigma": 9.0}, {"steps": 3}),
    ],
    "epochs": [("gaussian", {"noise_multiplier": 30.0}, {"steps": 2, "sampling": "balls-in-bins", "batches": 3})],
    "phases": [
        ("m2", {"layer": "64x4x2", "clipping": "per-layer", "noise_multiplier": 9.0}, {"steps": 1}),
        ("gaussian", {"noise_multiplier": 9.0, "adaptive_clipping_sigma": 9.0}, {"steps": 2, "public_size": True}),
    ],
    "an assumption on the data": [
        ("m2", {"dim": 64, "rank": 4, "noise_multiplier": 9.0, "bound": "exact-rank1"}, {"steps": 2}),
    ],
}  # fmt: skip
"""Runs as lists of phases: mechanism, parameters, run."""


def stated_of(run, path, line):
    """Return the requirements that a command prints, as text and, if it has JSON, in JSON too."""
    code, out, err = run(line)
    assert code == 0, err
    flat = " ".join(out.split())
    found = stated(flat) - {"ONE_RECORD_PER_USER"}
    if line.split()[0] in ("ledger", "verify"):
        assert present(json.loads(run(f"{line} --json")[1])["requirements"]) - {"ONE_RECORD_PER_USER"} == found
    return found


def write_run(folder, name, cut=False):
    """Write a run as a ledger, of one release for each phase if cut, and as a run file; return both places."""
    phases = [{"mechanism": mechanism, **own, **spent} for mechanism, own, spent in RUNS_OF_TRAINING[name]]
    for phase in from_data({"phase": phases}).phases:
        book = Ledger(folder / "ledger", phase, {"epsilon": 500.0, "delta": 1e-5})
        for _ in range(1 if cut else phase.run.steps * (phase.run.batches or 1)):
            book.record()
        book.close()
    (folder / "run.json").write_text(json.dumps({"phase": phases}))
    return folder / "ledger", folder / "run.json"


@pytest.mark.parametrize("name", full_if(RUNS_OF_TRAINING, lambda name: not name.startswith("one ")))
def test_ledger_verify_and_run_list_same_requirements(run, tmp_path, name):
    """Only commands that read a ledger can state that nothing outside it is counted."""
    path, run_file = write_run(tmp_path, name)
    sets = [stated_of(run, path, f"{command} {path} --delta 1e-5") for command in ("ledger", "verify")]
    of_plan = stated_of(run, path, f"run {run_file} --delta 1e-5 -v")
    assert sets == 2 * [{*of_plan, "ONLY_THIS_LEDGER"}]


def test_ledger_keeps_requirements_of_training(run, tmp_path):
    """A public dataset size and a public subspace are in the file, not in memory alone."""
    needs("torch", "opacus")
    import torch
    from unit.training.helpers import data, mlp, own, private

    from privproj.training import Subspace

    x, y = data()
    for subspace in (None, Subspace(torch.eye(53, 2, dtype=torch.float64), "public")):
        path = str(tmp_path / f"ledger{subspace is None}")
        more = {} if subspace is None else {"algorithm": "dp-sft", "subspace": subspace}
        module, optimizer, loader = private(
            mlp(), x, y, noise_multiplier=9.0, steps=2, ledger=path, relation="add-remove", **more
        )
        for batch in loader:
            optimizer.backward_on(own(module), batch)
            optimizer.step()
        known = present(optimizer.epsilon(1e-3).requirements)
        optimizer.close()
        assert "PUBLIC_DATASET_SIZE" in known and ("PUBLIC_SUBSPACE" in known) == (subspace is not None)
        for command in ("ledger", "verify"):
            assert stated_of(run, path, f"{command} {path} --delta 1e-3") == known


# --- sides ----------------------------------------------------------------------------------------


def test_side_is_exact_only_for_true_value():
    shown = {
        "gaussian": privproj.delta(Gaussian(noise_multiplier=1.0), epsilon=0.5),
        "public sketch": privproj.delta(
            privproj.PublicSketch(rank=4, noise_multiplier=1.0), epsilon=0.5, bound="exact-rank1"
        ),
        "m2": privproj.delta(M2(dim=2, rank=1, columns=1, noise_multiplier=1.0), epsilon=0.5, bound="exact-rank1"),
        "m1": privproj.delta(
            privproj.M1(dim=2, rank=1, columns=1, noise_multiplier=9.0), epsilon=0.5, bound="known-projection-rank1"
        ),
    }
    for name, found in shown.items():
        seen = name in ("m1", "m2")
        assert found.side == ("upper bound" if seen else "exact")
        assert found.as_dict()["interval_contains"] == ("the value of the named bound" if seen else "the true value")
        assert (TEXTS["OBSERVED_PROJECTION"] in found.mechanism["requirements"]) == seen


@pytest.mark.parametrize(
    ("bound", "floor", "side"),
    [(None, 0.25, "exact"), (0.5, 0.0, "exact"), (0.5, 0.25, "upper bound"), (0.8, 0.25, "upper bound")],
)
def test_sketch_is_exact_only_if_worst_column_is_allowed(bound, floor, side):
    """With a floor, a query matrix with n rows has at least the squared norm n * floor, and n is not known."""
    column = Sketch(rank=4, eigen_floor=floor, sensitivity=0.5, frobenius_bound=bound, noise_sigma=1.0)
    assert privproj.delta(column, epsilon=0.1, bound="exact-rank1").side == side


def test_m2_without_its_projection_leaks_less():
    """M2 with d = 2, r = 1, one column, all zero against norm 1: by quadrature over |z|^2 ~ chi2_2 and the angle."""
    logs = np.linspace(-14.0, 5.0, 1501)
    g = np.exp(logs)
    mass = 0.5 * np.exp(-g / 2) * g * (logs[1] - logs[0]) / g
    half = np.exp(np.linspace(-14.0, 6.0, 600))
    y = np.concatenate([-half[::-1], half])
    density = lambda shift: np.exp(-((y[:, None] / g - shift) ** 2) / 2) @ mass / math.sqrt(2 * math.pi)  # noqa: E731
    absent, t, found = density(0.0), math.exp(0.5), np.zeros(2)
    angles = (np.arange(24) + 0.5) / 24 * math.pi / 2
    for angle in angles:
        with_it = density(math.cos(angle))
        gains = [np.clip(a - t * b, 0, None) for a, b in ((with_it, absent), (absent, with_it))]
        found += [np.trapezoid(gain, y) for gain in gains]
    alone = found / len(angles)
    pair = privproj.delta(M2(dim=2, rank=1, columns=1, noise_multiplier=1.0), epsilon=0.5, bound="exact-rank1")
    assert alone == pytest.approx([0.0624, 0.1106], rel=5e-3, abs=0)
    assert max(alone) < 0.95 * pair.lower


# --- partitions -----------------------------------------------------------------------------------


def shift_of_epoch(records, neighbor, size):
    """Return the distance of the batch sums of one epoch in chunks of ``size``; absent batches are zero."""
    count = max(math.ceil(len(x) / size) for x in (records, neighbor))
    sums = [[sum(x[i * size : (i + 1) * size]) for i in range(count)] for x in (records, neighbor)]
    return math.dist(*sums)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_partition_costs_one_release_under_zero_out_only(size):
    records = [1.0 if i % (2 * size) < size else -1.0 for i in range(200)]
    epochs = {"steps": 3, "sampling": "partition"}
    printed = privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5, **epochs).value

    def true(shift):
        return privproj.epsilon(Gaussian(noise_multiplier=1.0 / (shift * math.sqrt(3))), delta=1e-5).value

    for position in (0, 7, 199):
        zeroed = [*records[:position], 0.0, *records[position + 1 :]]
        assert true(shift_of_epoch(records, zeroed, size)) == pytest.approx(printed, rel=1e-12, abs=0)
    assert true(shift_of_epoch(records, records[1:], size)) > 10 * printed
    with pytest.raises(UnsupportedError, match="shift every later batch"):
        privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5, relation="add-remove", **epochs)
    flipped = privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5, relation="replace", **epochs)
    assert flipped.value == printed and TEXTS["REPLACE_SENSITIVITY"] in flipped.run["requirements"]


def test_partition_output_states_relation(run):
    for line in ("epsilon gaussian --noise-multiplier 1", "sigma m2 --dim 64 --rank 4 --epsilon 1"):
        shown = json.loads(run(f"{line} --sampling partition --delta 1e-5 --json")[1])
        assert (shown["run"]["sampling"], shown["run"]["relation"]) == ("partition", "zero-out")
        assert any("The neighboring relation is zero-out" in wording for wording in shown["warnings"])
    text = run("epsilon gaussian --noise-multiplier 1 --sampling partition --delta 1e-5")[1]
    assert "run:       one epoch, each record in one batch of a partition" in text
    for line in ("--relation add-remove", "--relation add-remove --group-size 2"):
        assert run(f"epsilon gaussian --noise-multiplier 1 --sampling partition --delta 1e-5 {line}")[0] == 3
    assert run("epsilon gaussian --noise-multiplier 1 --sampling partition --sampling-rate .1 --delta 1e-5")[0] == 2


@pytest.mark.parametrize("kind", [
    {"kind": M2, "dim": 8, "rank": 2, "noise_multiplier": 1.0}, {"kind": privproj.M1, "dim": 8, "rank": 20,
    "noise_multiplier": 9.0}, {"kind": privproj.Wishart, "dim": 8, "rank": 2, "misalignment": 1e-4},
    {"kind": privproj.PublicSketch, "rank": 8, "noise_multiplier": 1.0}, {"kind": Sketch, "rank": 8, "gamma": 50.0},
])  # fmt: skip
@pytest.mark.parametrize("steps", [1, 2])
def test_fixed_projection_with_partition_is_unsupported(kind, steps):
    given = dict(kind)
    fixed = given.pop("kind")(**given, fixed_projection=True)
    with pytest.raises(UnsupportedError, match="every batch of an epoch") as caught:
        privproj.epsilon(fixed, delta=1e-5, sampling="partition", steps=steps)
    named = {"m2": "bound=gaussian", "m1": "bound=operator-norm"}.get(fixed.name, "No bound supports")
    assert named in str(caught.value)
    if fixed.name in ("m2", "m1"):
        again = privproj.epsilon(fixed, delta=1e-5, sampling="partition", steps=steps, bound=named.partition("=")[2])
        assert TEXTS["FRESH_PROJECTION_PER_BATCH"] not in again.requirements


def test_shared_projection_loses_amplification_in_epoch():
    """The query of the second batch lies in the span that the first batch revealed."""
    rng = np.random.default_rng(3)
    dim, rank, z = 64, 4, 1.0
    frame = np.linalg.qr(rng.standard_normal((dim, rank)))[0]
    shown = frame @ frame.T @ rng.standard_normal(dim)
    change = shown / np.linalg.norm(shown)
    captured = float(np.linalg.norm(frame.T @ change))
    true = privproj.epsilon(Gaussian(noise_multiplier=z / captured), delta=1e-5).value
    fresh = privproj.epsilon(M2(dim=dim, rank=rank, noise_multiplier=z), delta=1e-5, sampling="partition").value
    assert true > 2 * fresh
    fixed = M2(dim=dim, rank=rank, noise_multiplier=z, fixed_projection=True)
    assert privproj.epsilon(fixed, delta=1e-5, sampling="partition", bound="gaussian").value >= true * (1 - 1e-9)
