"""Schedules: joint composition and the odometer."""

import dataclasses
import math

import pytest
from helpers import GAUSSIAN_PHASE, M2_PHASE

import privproj
from privproj import M1, M2, Gaussian, InvalidParameterError, UnsupportedError
from privproj.io.run_file import from_data
from privproj.schedule import Composition, calibrate_noise, more_steps, phase_of


def eps_of(*phases):
    return from_data({"phase": list(phases)}).epsilon(delta=1e-5).value


def test_one_phase_is_run_it_describes():
    alone = privproj.epsilon(M2(dim=2048, rank=16, noise_multiplier=0.2), delta=1e-5, steps=300, sampling_rate=0.01)
    assert eps_of(M2_PHASE) == alone.value
    assert (
        eps_of({"mechanism": "gaussian", "noise_multiplier": 1})
        == privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5).value
    )


def test_phases_compose_jointly():
    first, second, both = eps_of(M2_PHASE), eps_of(GAUSSIAN_PHASE), eps_of(M2_PHASE, GAUSSIAN_PHASE)
    assert max(first, second) < both < first + second
    split = eps_of(M2_PHASE, {**M2_PHASE, "steps": 100}, GAUSSIAN_PHASE)
    assert split == eps_of({**M2_PHASE, "steps": 400}, GAUSSIAN_PHASE)
    exact = math.sqrt(3 / 4 + 5 / 9)
    parts = [{"mechanism": "gaussian", "noise_multiplier": z, "steps": n} for z, n in ((2, 3), (3, 5))]
    found = from_data({"phase": parts}).epsilon(delta=1e-5)
    known = privproj.epsilon(Gaussian(noise_multiplier=1 / exact), delta=1e-5).value
    assert found.lower <= known * (1 + 1e-12) and known <= found.value <= known * (1 + 1e-3)


def test_balls_in_bins_phases_compose():
    bins = {"mechanism": "gaussian", "noise_multiplier": 2, "sampling": "balls-in-bins", "batches": 20}
    poisson = {"mechanism": "gaussian", "noise_multiplier": 2, "sampling_rate": 0.05, "steps": 100}
    parts = from_data({"phase": [{**bins, "steps": 2}, {**bins, "steps": 3}]}).epsilon(delta=1e-5)
    whole = from_data({"phase": [{**bins, "steps": 5}]}).epsilon(delta=1e-5)
    assert parts.value == pytest.approx(whole.value, rel=2e-3, abs=0)
    assert max(parts.lower, whole.lower) <= min(parts.value, whole.value)
    assert whole.run["batches"] == 20 and "batches" not in parts.run
    mixed = eps_of({**bins, "steps": 5}, poisson)
    assert max(whole.value, eps_of(poisson)) < mixed < whole.value + eps_of(poisson)
    with pytest.raises(UnsupportedError, match=r"^phase 1: the bound gdp has no amplification"):
        eps_of({**bins, "bound": "gdp"}, poisson)


@pytest.mark.full
def test_joint_result_names_every_phase_and_weakest_status():
    aligned = {"mechanism": "wishart", "dim": 100, "rank": 9, "misalignment": 1e-6}
    phases = [{"mechanism": "gaussian", "noise_multiplier": 2}, aligned]
    found = from_data({"relation": "replace", "phase": phases}).epsilon(delta=1e-5)
    assert found.status == "conditional" and len(found.mechanism["phases"]) == 2 and found.data_assumptions
    assert found.bound == "gaussian.analytic + wishart.exact"


@pytest.mark.full
def test_odometer():
    done = from_data({"phase": [M2_PHASE, {**GAUSSIAN_PHASE, "planned": True}]})
    more = more_steps(done, done.phases[1], epsilon=1.0, delta=1e-5)
    assert (
        eps_of(M2_PHASE, {**GAUSSIAN_PHASE, "steps": more})
        <= 1.0
        < eps_of(M2_PHASE, {**GAUSSIAN_PHASE, "steps": more + 1})
    )
    assert more_steps(done, done.phases[1], epsilon=0.01, delta=1e-5) == 0


def test_bounds_without_profile_are_rejected():
    with pytest.raises(UnsupportedError, match="no privacy profile"):
        eps_of(GAUSSIAN_PHASE, {**GAUSSIAN_PHASE, "bound": "rdp"})
    tiny = from_data({"phase": [{"mechanism": "gaussian", "noise_multiplier": 1e-3}]})
    with pytest.raises(UnsupportedError, match="no scaling of the noise"):
        calibrate_noise(tiny, epsilon=1e-9, delta=1e-300)


def test_fixed_projection_serves_one_phase_only():
    phase = {"mechanism": "m2", "dim": 64, "rank": 4, "noise_multiplier": 1, "fixed_projection": True}
    assert eps_of(phase) > 0
    with pytest.raises(UnsupportedError, match="fresh projection"):
        eps_of(phase, phase)
    assert eps_of({**phase, "bound": "gaussian"}, {**phase, "bound": "gaussian"}) > 0


def test_run_error_has_remedy_for_each_phase():
    wishart = phase_of(privproj.Wishart(dim=50, rank=4, misalignment=0.5), steps=2)
    gaussian = phase_of(privproj.Gaussian(noise_multiplier=1.0), relation="replace")
    assert Composition((wishart,)).remedy == privproj.Wishart.remedy != privproj.Gaussian.remedy
    assert Composition((wishart, gaussian)).remedy == f"{privproj.Wishart.remedy} or {privproj.Gaussian.remedy}"


@pytest.mark.full
def test_loop_that_adds_its_steps_is_run_file():
    """Sum and product of schedules are the schedule of all phases, to the bit, and few phases however long the loop."""
    first = phase_of(Gaussian(noise_multiplier=1.0), "first", sampling_rate=0.01)
    then = phase_of(M2(dim=64, rank=4, noise_multiplier=0.5), "then", sampling_rate=0.01)
    total = Composition((first,))
    for _ in range(19):
        total = total + first
    for _ in range(30):
        total += then
    whole = Composition((first.with_run(steps=20), then.with_run(steps=30)))
    assert total == whole and len(total.phases) == 2
    assert total.epsilon(delta=1e-5) == from_data(total.as_dict()).epsilon(delta=1e-5)
    once = Composition((first.with_run(steps=2), then.with_run(steps=3)))
    assert once * 10 == whole
    assert once + once == once * 2
    alternating = Composition((first,)) + then
    for _ in range(19):
        alternating = alternating + first + then
    assert alternating == Composition((first.with_run(steps=20), then.with_run(steps=20)))
    planned = dataclasses.replace(first, planned=True)
    assert [phase.run.steps for phase in (total + planned + then + planned + planned).phases] == [20, 31, 3]


@pytest.mark.parametrize(
    "change", [{"sampling_rate": 0.02}, {"noise_multiplier": 2.0}, {"planned": True}, {"name": "other"}]
)
def test_phases_that_differ_stay_apart(change):
    phase = phase_of(Gaussian(noise_multiplier=1.0), "first", sampling_rate=0.01, steps=5)
    mechanism = Gaussian(noise_multiplier=change.get("noise_multiplier", 1.0))
    other = phase_of(mechanism, change.get("name", "first"), sampling_rate=change.get("sampling_rate", 0.01), steps=5)
    other = dataclasses.replace(other, planned=change.get("planned", False))
    assert (Composition((phase,)) + other).phases == (phase, other)


def test_two_fixed_projections_are_not_one():
    phase = phase_of(M1(dim=9, rank=4, noise_multiplier=9.0, fixed_projection=True))
    with pytest.raises(UnsupportedError):
        Composition((phase,)) * 2
    if phase.reuses_projection:
        with pytest.raises(UnsupportedError):
            Composition((phase,)) + phase
    else:
        assert len((Composition((phase,)) + phase).phases) == 2
    with pytest.raises(InvalidParameterError, match="times"):
        Composition((phase_of(Gaussian(noise_multiplier=1.0)),)) * 0


def test_requires_lists_every_requirement():
    run = Composition(
        (phase_of(Gaussian(noise_multiplier=2.0), "a", steps=3),), requirements=("the loader is audited",)
    )
    row = run.epsilon(delta=1e-5).as_dict()
    output = [*row["mechanism"]["requirements"], *row["run"]["requirements"]]
    assert len(row["requires"]) == len(output) and "the loader is audited" in row["requires"]
