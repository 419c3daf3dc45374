"""Certificates of runs: composed in balls, close to the floats, checked by another command, and proof on any grid."""

import json
import math
import random
from dataclasses import replace
from decimal import Decimal

import pytest
from helpers import needs
from hypothesis import given, settings
from hypothesis import strategies as st
from privproj_cli.main import exit_code

import privproj
from privproj import M2, Gaussian, Laplace, Layer, Sketch
from privproj.contrib.certify import certificate as limits
from privproj.contrib.certify import certify, load_certificate, prove, verify
from privproj.contrib.certify.certificate import prove_run
from privproj.errors import PrecisionError, UnsupportedError
from privproj.io.run_file import from_data
from privproj.sampling import Sampling
from privproj.schedule import phase_of

needs("flint")
from flint import ctx  # noqa: E402  (needs flint)

from privproj.contrib.certify import grids  # noqa: E402
from privproj.contrib.certify.composition import BallPhase, Grid, RunInBalls, Window  # noqa: E402
from privproj.contrib.certify.grids import propose_grid  # noqa: E402
from privproj.contrib.certify.profiles import BallGaussianProfile  # noqa: E402

DP_SGD = {"steps": 1000, "sampling_rate": 0.01}
RUNS = {
    "dp-sgd": (Gaussian(noise_multiplier=1.0), 1e-5, DP_SGD),
    "far below": (Gaussian(noise_multiplier=1.0), 1e-30, DP_SGD),
    "one sampled release": (Gaussian(noise_multiplier=0.7), 1e-6, {"sampling_rate": 0.05}),
    "fixed size": (Gaussian(noise_multiplier=3.0), 1e-6, {"steps": 50, "sampling_rate": 0.1, "sampling": "fixed"}),
    "laplace": (Laplace(noise_multiplier=5.0), 1e-6, {"steps": 40}),
    "secret sketch": (Sketch(rank=64, gamma=300.0), 1e-6, {"steps": 5, "bound": "exact-rank1"}),
}
"""Runs by name: mechanism, delta, and the options of the run."""

SLOWER = ("far below", "laplace")


def answered(name):
    mechanism, delta, options = RUNS[name]
    return privproj.epsilon(mechanism, delta=delta, **options)


@pytest.fixture(scope="module")
def proved():
    """The proof of DP-SGD, its answer in floats, and its certificate."""
    plain = answered("dp-sgd")
    return plain, *prove(plain)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.full if n in SLOWER else ()) for n in RUNS])
def test_certified_epsilon_is_above_float_lower_bound(name):
    plain = answered(name)
    answer, certificate = prove(plain)
    assert plain.lower <= answer.value <= plain.value * (1.0 + 1e-3)
    assert answer.value == answer.epsilon == certificate.epsilon
    assert 0.5 * plain.delta < float(certificate.lower) <= float(certificate.upper) <= plain.delta


def test_proof_is_checked_by_another_command(proved, tmp_path, capsys):
    path = tmp_path / "proof.json"
    proved[2].save(path)
    assert exit_code(["verify", str(path)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "holds: a certificate of 1000 releases, Poisson sampling at rate 0.01" in output
    assert load_certificate(path) == proved[2]


@pytest.mark.full
def test_certified_delta_and_sigma_agree(proved):
    plain, answer, _ = proved
    delta, _ = prove(privproj.delta(Gaussian(noise_multiplier=1.0), epsilon=answer.value, **DP_SGD))
    assert delta.value == pytest.approx(plain.delta, rel=5e-3)
    sigma, certificate = prove(privproj.sigma(Gaussian(), epsilon=answer.value, delta=1e-5, **DP_SGD))
    assert 1.0 - 1e-3 < sigma.value < 1.0 + 1e-3
    assert certificate.question["phase"][0]["noise_multiplier"] == sigma.value == sigma.noise_multiplier
    assert Decimal(certificate.upper) <= Decimal("1e-5") and certificate.epsilon == answer.value


@pytest.mark.full
def test_run_at_tiny_delta_is_certified_tightly():
    plain = privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-60, **DP_SGD)
    assert plain.lower <= prove(plain)[0].value <= plain.value * (1.0 + 1e-3)


@pytest.mark.full
def test_phases_of_run_file_are_certified_together(tmp_path, capsys):
    path, proof = tmp_path / "run.json", tmp_path / "proof.json"
    shared = {"noise_multiplier": 1.5, "sampling_rate": 0.01, "steps": 100}
    phases = [
        {"mechanism": "gaussian", **shared},
        {"mechanism": "laplace", "name": "second", **shared, "planned": True},
    ]
    path.write_text(json.dumps({"phase": phases}))
    assert exit_code(["certify", "run", str(path), "--delta", "1e-6", "-o", str(proof), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    plain = from_data({"phase": phases}).epsilon(delta=1e-6)
    assert plain.lower <= found["value"] <= plain.value * (1.0 + 1e-3)
    assert "second" not in proof.read_text() and "planned" not in proof.read_text()
    assert exit_code(["verify", str(proof)]) == 0
    assert "2 phases: 100 releases" in " ".join(capsys.readouterr().out.split())


def put(content, value, *path):
    for key in path[:-1]:
        content = content[key]
    content[path[-1]] = value


RUN = ("question", "phase", 0)
EDITS = {
    "fewer steps": (lambda c: put(c, 900, *RUN, "steps"), 1),
    "more steps": (lambda c: put(c, 1010, *RUN, "steps"), 1),
    "a smaller epsilon": (lambda c: put(c, c["epsilon"] * 0.99, "epsilon"), 1),
    "an epsilon that a finer grid would prove": (lambda c: put(c, c["epsilon"] * (1.0 - 1e-6), "epsilon"), 1),
    "a smaller delta": (lambda c: (put(c, "9.9e-6", "upper"), put(c, {"delta": 9.9e-6}, "target")), 1),
    "a larger lower end": (lambda c: put(c, c["upper"], "lower"), 1),
    "a larger rate": (lambda c: put(c, 0.0101, *RUN, "sampling_rate"), 1),
    "fixed size": (lambda c: put(c, "fixed", *RUN, "sampling"), 3),
    "another bound": (lambda c: put(c, "gdp", *RUN, "bound"), 3),
    "words of its own": (lambda c: put(c, [], "requirements"), 2),
    "exact": (lambda c: put(c, "exact", "side"), 2),
    "few bits": (lambda c: put(c, 64, "bits"), 2),
    "odd bits": (lambda c: put(c, 130, "bits"), 2),
    "a grid": (lambda c: put(c, {"step": 0.01}, "grid"), 2),
}
"""Edits of the certificate of DP-SGD, and the exit code of its check."""


@pytest.mark.parametrize("edit", EDITS)
def test_edited_run_certificate_is_true_or_rejected(proved, tmp_path, capsys, edit):
    change, code = EDITS[edit]
    content = json.loads(json.dumps(proved[2].record))
    change(content["certificate"])
    path = tmp_path / "edited.json"
    path.write_text(json.dumps(content))
    assert exit_code(["verify", str(path)]) == code, capsys.readouterr()


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32))
def test_any_grid_proves_bound(proved, seed):
    rng = random.Random(seed)
    grid = propose_grid([phase_of(Gaussian(noise_multiplier=1.0), **DP_SGD).release()], math.log(1e-5))
    release = BallPhase(BallGaussianProfile(1.0), DP_SGD["steps"], DP_SGD["sampling_rate"], one_sided=True)
    cells = grid.knots[0]
    windows = [
        Window(
            window.first + rng.choice([0, rng.randint(-9000, 9000)]),
            rng.choice([window.size, 1 << rng.randint(7, 13)]),
            window.right * rng.choice([1.0, rng.uniform(0.1, 10.0)]),
            window.left,
        )
        for window in grid.windows
    ]
    step = grid.step * rng.choice([1.0, rng.uniform(0.5, 4.0)])
    knots = sorted({0, *rng.sample(cells, rng.randint(5, len(cells) - 1))})
    with ctx.workprec(128):
        found = RunInBalls([release], Grid(step, (tuple(knots),), tuple(windows)))
    _, answer, certificate = proved
    assert float(found.upper(answer.value)) >= float(certificate.lower)
    assert float(found.lower(answer.value)) <= float(certificate.upper)


@pytest.mark.parametrize("name", ["dp-sgd", "one sampled release", "fixed size"])
def test_grid_of_other_floats_proves_written_ends_too(monkeypatch, name):
    """Another machine rounds otherwise, so that its floats propose another step and other places."""
    certificate = certify(answered(name))
    proposed, seen = grids.propose_grid, []

    def propose_elsewhere(phases, log_delta, fineness, most):
        grid = proposed(phases, log_delta, fineness, most)
        seen.append(fineness)
        return replace(grid, step=grid.step * (1.0 + 1e-12))

    monkeypatch.setattr(grids, "propose_grid", propose_elsewhere)
    verdict = verify(certificate)
    assert verdict.holds and seen == [1.0]


def test_grid_that_is_too_coarse_proves_nothing(proved, monkeypatch):
    """What could not be proved is not said to be false."""
    proposed = grids.propose_grid

    def propose_coarsely(phases, log_delta, fineness, most):
        return proposed(phases, log_delta, 0.05 * fineness, most)

    monkeypatch.setattr(grids, "propose_grid", propose_coarsely)
    verdict = verify(proved[2])
    assert (verdict.word, verdict.holds) == ("not proved", False) and Decimal(verdict.lower) < Decimal(verdict.upper)
    assert Decimal(verdict.upper) > Decimal(proved[2].upper)


@pytest.mark.parametrize(
    ("mechanism", "options"),
    [
        (M2(layers=(Layer(dim=64, rank=8), Layer(dim=32, rank=8)), noise_multiplier=2.0), {"steps": 10}),
        (Gaussian(noise_multiplier=2.0), {"steps": 10, "sampling_rate": 0.1, "group_size": 33}),
        (M2(dim=64, rank=8, noise_multiplier=2.0), {"steps": 10, "sampling_rate": 0.1, "group_size": 2}),
        (Gaussian(noise_multiplier=2.0), {"steps": 10, "sampling_rate": 0.1, "bound": "rdp"}),
    ],
)
def test_run_without_enclosure_is_rejected(mechanism, options):
    with pytest.raises(UnsupportedError):
        certify(privproj.epsilon(mechanism, delta=1e-5, **options))


def test_group_epsilon_is_certified_for_its_group_size_only(tmp_path):
    plain = privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5, steps=100, sampling_rate=0.01, group_size=3)
    answer, certificate = prove(plain)
    assert plain.lower * (1.0 - 1e-9) <= answer.value <= plain.value * (1.0 + 1e-3)
    assert verify(certificate).holds and float(certificate.lower) > 0.9e-5
    path = tmp_path / "proof.json"
    certificate.save(str(path))
    path.write_text(path.read_text().replace('"group_size": 3', '"group_size": 4'))
    assert not verify(load_certificate(str(path))).holds


@pytest.mark.parametrize("sampling", [Sampling.POISSON, Sampling.FIXED])
def test_delta_that_covers_epsilon_0_is_certified_there(sampling):
    plain = privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=0.01, steps=2, sampling_rate=0.01, sampling=sampling)
    answer, certificate = prove(plain)
    assert answer.value == certificate.epsilon == 0.0 <= answer.lower
    assert float(certificate.upper) <= 0.01 and verify(certificate).holds


@pytest.mark.parametrize("limit", ["MOST_CELLS", "MOST_WORK", "MOST_PLACES"])
def test_certify_rejects_too_costly_run(proved, monkeypatch, limit):
    monkeypatch.setattr(limits, limit, 64)
    with pytest.raises(PrecisionError):
        certify(proved[0])


def test_certify_rejects_delta_below_float_range():
    with pytest.raises(PrecisionError, match="1e-250"):
        prove_run([phase_of(Gaussian(noise_multiplier=1.0), **DP_SGD)], -700.0, 20.0)


LONG = {"steps": 100_000, "sampling_rate": 0.001}
"""A long training run: each of a million records in a hundred batches."""


@pytest.mark.parametrize(("mechanism", "options"), [(Gaussian(noise_multiplier=0.6), LONG), RUNS["far below"][::2]])
def test_certify_limits_allow_long_runs_and_small_deltas(mechanism, options):
    """Such a run at delta 1e-30 is within them, on its default grid."""
    phase = phase_of(mechanism, **options)
    found = propose_grid([phase.release()], math.log(1e-30))
    assert max(window.size for window in found.windows) * 2 <= limits.MOST_CELLS
    assert sum(window.size for window in found.windows) * 256 // 64 <= limits.MOST_WORK
    assert sum(map(len, found.knots)) * 256 // 64 <= limits.MOST_PLACES
