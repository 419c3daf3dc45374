"""Runs: batches and epochs, groups of records."""

import math
from dataclasses import fields
from fractions import Fraction

import numpy as np
import pytest

import privproj
from privproj import M2, Gaussian, InvalidParameterError
from privproj.accounting.schedule import phase_of
from privproj.assumptions import Requirement
from privproj.run import ASSUMED_POISSON, RUN_PARAMETERS, Run, RunOptions, run_from
from privproj.sampling import Sampling


def test_result_uses_batch_size_dataset_size_and_epochs():
    one = {"batch_size": 10, "dataset_size": 100, "epochs": 2}
    assert run_from(one) == {"sampling_rate": 0.1, "steps": 20, "dataset_size": 100, "public_size": True}
    found = [run_from({**one, key: 50}) for key in one]
    assert len({tuple(sorted(run.items())) for run in found}) == 3


BINS = {"sampling": "balls-in-bins"}
SIZES = {"batch_size": 10, "dataset_size": 95}


@pytest.mark.parametrize("scheme", ["balls-in-bins", "shuffle"])
@pytest.mark.parametrize("finds", ["", "steps"])
def test_epoch_has_as_many_batches_as_hold_all_records(scheme, finds):
    epochs = {} if finds else {"epochs": 1.5}
    found = run_from({"sampling": scheme, **SIZES, **epochs}, finds)
    steps = {} if finds else {"steps": 2}
    known = {"dataset_size": 95, "public_size": True}
    assert found == {"sampling": scheme, "batches": 10, "sampling_rate": 1.0, **known, **steps}
    named = run_from({"sampling": scheme, "batches": 10, **epochs}, finds)
    assert named == {"sampling": scheme, "batches": 10, **steps}


def test_largest_batch_takes_number_of_records_with_it():
    given = {"sampling_rate": 0.1, "max_batch_size": 20, "dataset_size": 95, "steps": 3}
    assert run_from(given) == {**given, "public_size": True}
    assert run_from({**SIZES, "epochs": 1, "max_batch_size": 20})["dataset_size"] == 95
    answer = privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-5, **given)
    assert Run(**given).public_size and Requirement.PUBLIC_DATASET_SIZE in answer.run["requirements"]


CONTRADICTIONS = [
    ({**BINS, **SIZES, "batches": 10}, "batches"),
    ({"batches": 10, "epochs": 2}, "batches"),
    ({"sampling": "partition", "batches": 10}, "batches"),
    ({"sampling": "shuffle", "batches": 10, "batches_per_record": 2}, "batches_per_record"),
    ({**BINS, "batches": 10, "batches_per_record": 11}, "batches_per_record"),
    ({**BINS, "epochs": 2}, "batches"),
    ({**BINS, "batches": 2.5}, "batches"),
    ({**BINS, "batches": 0}, "batches"),
    ({**BINS, "batches": 10, "sampling_rate": 0.1}, "sampling_rate"),
    ({**BINS, "batches": 10, "max_batch_size": 3, "dataset_size": 95}, "max_batch_size"),
    ({"sampling_rate": 0.1, "max_batch_size": 3}, "dataset_size"),
    ({**SIZES, "max_batch_size": 20, "public_size": False}, "public_size"),
    ({"sampling_rate": 0.1, "max_batch_size": 20, "dataset_size": 95, "public_size": False}, "public_size"),
]


@pytest.mark.parametrize(("given", "name"), CONTRADICTIONS, ids=str)
def test_contradicting_batch_options_error_names_them(given, name):
    with pytest.raises(InvalidParameterError) as error:
        Run(**run_from(given))
    assert error.value.name == name


@pytest.mark.parametrize(
    ("given", "finds", "name"),
    [
        ({"sampling_rate": 0.1}, "", "steps"),
        ({"sampling_rate": 0.1, "sampling": "fixed"}, "", "steps"),
        ({"sampling_rate": 0.1, "max_batch_size": 20, "dataset_size": 95}, "", "steps"),
        ({}, "rate", "steps"),
        (SIZES, "", "epochs"),
        ({**SIZES, "sampling": "shuffle"}, "", "epochs"),
        ({**SIZES, **BINS}, "", "epochs"),
    ],
)
def test_how_often_batch_is_drawn_is_never_taken_to_be_once(given, finds, name):
    with pytest.raises(InvalidParameterError) as error:
        run_from(given, finds)
    assert error.value.name == name and error.value.is_missing and "steps 1" in str(error.value)
    key = "steps" if finds or "sampling_rate" in given else "epochs"
    assert run_from({**given, key: 1}, finds)["steps"] >= 1


def test_poisson_is_assumed_only_without_sampling_option():
    sized = {"batch_size": 10, "dataset_size": 100, "epochs": 2}
    assert Run(**run_from(sized)).notes == (ASSUMED_POISSON,)
    for scheme in Sampling:
        assert ASSUMED_POISSON not in Run(**run_from({**sized, "sampling": str(scheme)})).notes
    assert Run(**run_from({**sized, "batch_size": 100})).notes == ()
    assert Run(sampling_rate=0.1, steps=5).notes == ()


@pytest.mark.parametrize("rate", [1e-12, 1e-3, 0.1, 0.5, 0.999])
@pytest.mark.parametrize("size", [2, 3, 17])
def test_rate_of_group_is_never_below_its_probability(rate, size):
    exact = 1 - (1 - Fraction(rate)) ** size
    found = Run(sampling_rate=rate, group_size=size).group_rate
    assert exact <= Fraction(found) or found == 1.0
    assert found <= float(exact) * (1 + 3e-15)


def mixture_gains(weights, shifts, eps):
    """``H`` of the mixture of unit normals against the one at 0, in both orders, by quadrature."""
    x = np.linspace(-12.0, 12.0 + max(shifts), 20001)
    normal = lambda m: np.exp(-((x - m) ** 2) / 2) / math.sqrt(2 * math.pi)  # noqa: E731
    mixed, t = sum(w * normal(m) for w, m in zip(weights, shifts, strict=True)), math.exp(eps)
    return [np.trapezoid(np.clip(gain, 0, None), x) for gain in (mixed - t * normal(0), normal(0) - t * mixed)]


@pytest.mark.parametrize(("rate", "size", "mu"), [(0.1, 2, 1.0), (0.4, 2, 0.5), (0.05, 5, 0.6), (0.3, 3, 2.0)])
@pytest.mark.parametrize("eps", [0.0, 0.2, 1.0])
def test_group_bound_covers_any_number_of_sampled_records(rate, size, mu, eps):
    """Aligned records, each drawn on its own: the shift is binomial."""
    weights = [math.comb(size, k) * rate**k * (1 - rate) ** (size - k) for k in range(size + 1)]
    true = max(mixture_gains(weights, [mu * k for k in range(size + 1)], eps))
    group = {"group_size": size, "sampling_rate": rate}
    claimed = privproj.delta(Gaussian(noise_multiplier=1 / mu), epsilon=eps, **group).value
    assert true <= claimed * (1 + 1e-6) + 1e-9
    one = privproj.delta(Gaussian(noise_multiplier=1 / mu), epsilon=eps, sampling_rate=rate).value
    assert true > one


@pytest.mark.parametrize("aligned", [True, False])
def test_sampled_group_of_m2_is_covered_in_any_rank(aligned):
    """Two records of rank one, in one direction or in two: the shift given the projection, averaged over it."""
    rng = np.random.default_rng(4)
    dim, rank, z, rate, eps, count = 12, 3, 0.7, 0.3, 0.4, 300
    claimed = privproj.delta(
        M2(dim=dim, rank=rank, noise_multiplier=z), epsilon=eps, sampling_rate=rate, group_size=2
    ).value
    draws = []
    for _ in range(count):
        frame = np.linalg.qr(rng.standard_normal((dim, rank)))[0]
        first, second = (np.linalg.norm(frame[i]) / z for i in (0, 0 if aligned else 1))
        shifts = [np.array(s) for s in ([0, 0], [first, 0], [0, second], [first, second])]
        if aligned:
            shifts = [np.array([s.sum(), 0.0]) for s in shifts]
        weights = [(1 - rate) ** 2, rate * (1 - rate), rate * (1 - rate), rate**2]
        outcome = rng.standard_normal((2000, 2))
        ratio = sum(w * np.exp(outcome @ s - s @ s / 2) for w, s in zip(weights, shifts, strict=True))
        draws.append(
            max(np.clip(ratio - math.exp(eps), 0, None).mean(), np.clip(1 - math.exp(eps) * ratio, 0, None).mean())
        )
    assert np.mean(draws) <= claimed + 5 * np.std(draws) / math.sqrt(count)


def test_groups_compose_over_phases_with_rates_of_their_own():
    phases = [(5.0, 0.2, 4), (9.0, 0.05, 9)]
    joint = privproj.accounting.schedule.Composition(tuple(
        phase_of(Gaussian(noise_multiplier=z), sampling_rate=q, steps=n, group_size=3) for z, q, n in phases
    ))  # fmt: skip
    alike = privproj.accounting.schedule.Composition(tuple(
        phase_of(Gaussian(noise_multiplier=z / 3), sampling_rate=1 - (1 - q) ** 3, steps=n) for z, q, n in phases
    ))  # fmt: skip
    found, drawn_together = (schedule.epsilon(delta=1e-5).value for schedule in (joint, alike))
    assert found < 0.7 * drawn_together


def test_run_options_are_fields_of_run():
    """The type of the keyword arguments repeats names alone: checks and help texts are those of ``Run``."""
    options = {*RUN_PARAMETERS, "allow_refuted", "public_size"}
    assert set(RunOptions.__annotations__) == options
    assert {field.name for field in fields(Run)} - {"notes"} == options - {"batch_size", "epochs", "allow_refuted"}
