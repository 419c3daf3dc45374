"""What no accounting can say less than: below the answer, below the truth computed otherwise, and close to it."""

import math
import pickle
import re

import numpy as np
import pytest
from scipy import special

import privproj
from privproj import M1, M2, Gaussian, Laplace, Layer, PublicSketch
from privproj.accounting import lower_bounds as remarks
from privproj.accounting.lower_bounds import with_details
from privproj.mechanisms.registry import mechanism_named, registry
from privproj.profiles.gaussian import gaussian_deltas
from privproj.schedule import Composition, phase_of

RUN = {"steps": 2000, "sampling_rate": 0.01}
SMALL = {"steps": 3, "sampling_rate": 0.3}
DRAWS = 100_000


def full(value):
    return pytest.param(value, marks=pytest.mark.full)


def least_delta(mechanism, epsilon, **run):
    found = privproj.delta(mechanism, epsilon=epsilon, **run)
    return 10.0 ** with_details(found).lower_bound.value


def assert_just_below(least, sample, share=0.03):
    """A lower end is below the mean of a sample, and not far below."""
    error = 5 * sample.std() / math.sqrt(len(sample))
    assert sample.mean() * (1 - share) - error <= least <= sample.mean() + error


def test_reference_run_is_known_within_hundredth():
    mechanism = M2(dim=2048, rank=16, noise_multiplier=0.155974)
    found = privproj.epsilon(mechanism, delta=1e-5, **RUN)
    least = with_details(found).lower_bound.value
    assert with_details(found).lower_bound.for_whom == "an adversary who observes the projections"
    assert least < found.lower < found.value < 1.008 * least
    assert found.value < 1.002 * found.lower
    # the lower end of exact-rank1 is that of a change that is allowed
    one = privproj.epsilon(mechanism, delta=1e-5, bound="exact-rank1", **RUN)
    assert one.lower <= least == with_details(one).lower_bound.value < one.value < 1.002 * least
    renyi = privproj.epsilon(mechanism, delta=1e-5, bound="mixture-rdp", **RUN)
    assert with_details(renyi).lower_bound.value == least and "another bound" in with_details(renyi).lower_bound.gap


@pytest.mark.parametrize(
    "mechanism",
    [
        M2(dim=300, rank=1, noise_multiplier=0.3),
        full(M2(dim=64, rank=8, noise_multiplier=0.7, columns=3)),
        full(M2(dim=9, rank=9, noise_multiplier=2.0)),
        full(M2(layers=(Layer(dim=64, rank=4, count=3), Layer(dim=32, rank=8)), noise_multiplier=0.5)),
        full(M2(layers=(Layer(dim=64, rank=4, count=3),), noise_multiplier=0.5, clipping="per-layer")),
        full(M1(dim=50, rank=4, noise_multiplier=9.0)),
        full(PublicSketch(rank=3, noise_multiplier=2.0)),
    ],
)
@pytest.mark.parametrize("run", [{"relation": "replace"}, full({"steps": 3}), {"steps": 50, "sampling_rate": 0.1}])
def test_lower_end_is_nowhere_above_answer(mechanism, run):
    for delta in (1e-6, 0.05):
        found = privproj.epsilon(mechanism, delta=delta, **run)
        back = privproj.delta(mechanism, epsilon=found.value, **run)
        below, below_delta = privproj.lower_bound(found), privproj.lower_bound(back)
        assert 0.0 < (below.value if below else 1e-300) <= max(found.value, 1e-300)
        assert (below_delta.value if below_delta else -math.inf) <= back.log10_delta
        if delta < 0.01:
            assert found.value < 1.3 * with_details(found).lower_bound.value


@pytest.mark.slow
@pytest.mark.parametrize("name", [f"{b.mechanism.name} {b.name}" for b in registry() if b.worst_differences])
def test_lower_end_is_nowhere_above_any_bound(name):
    """All bounds of a mechanism are at least its lower bound."""
    kind, bound = name.split()
    rng = np.random.default_rng(8)
    for _ in range(20):
        dim, z = int(rng.integers(2, 300)), float(rng.choice([0.2, 0.5, 1.0, 4.0]))
        rank = int(rng.integers(1, dim))
        noise = 5.0 * z if kind in ("m1", "jl-clip") else z
        values = {"dim": dim, "rank": rank, "probes": rank, "noise_multiplier": noise}
        record = mechanism_named(kind)
        mechanism = record(**{name: values[name] for name in re.findall(r"(\w+)=", record.example)})
        run = rng.choice(
            [{}, {"steps": 3}, {"steps": 50, "sampling_rate": 0.1}, {"steps": 1000, "sampling_rate": 0.01}]
        )
        try:
            found = privproj.epsilon(mechanism, delta=float(rng.choice([1e-8, 1e-4, 0.05])), bound=bound, **run)
        except privproj.PrivprojError:
            continue
        assert (with_details(found).lower_bound.value if with_details(found).lower_bound else 0.0) <= found.value


@pytest.mark.parametrize("steps", [1, 5])
def test_rank_one_releases_are_exact(steps):
    """Given all projections the run is Gaussian, with the sum of the squared shifts: a mean over projections."""
    rng, z = np.random.default_rng(5), 0.8
    for mechanism, draw in (
        (M2(dim=64, rank=8, noise_multiplier=z, columns=1), rng.beta(4, 28, (DRAWS, steps))),
        (PublicSketch(rank=8, noise_multiplier=z, dim=1), rng.chisquare(8, (DRAWS, steps)) / 8),
        (M1(dim=20, rank=8, noise_multiplier=z), energy(rng, 20, 8, (DRAWS, steps))),
    ):
        shift = draw.sum(axis=1) / z**2
        eps = 0.3 if mechanism.name == "m2" else 4.0
        assert_just_below(least_delta(mechanism, eps, steps=steps), gaussian_deltas(np.array(eps), np.sqrt(shift)))


def energy(rng, dim, rank, size):
    first = rng.chisquare(rank, size)
    return first * (first + rng.chisquare(dim - 1, size)) / rank**2


def test_clips_for_each_layer_are_changed_together():
    rng, z = np.random.default_rng(6), 0.6
    layers = (Layer(dim=64, rank=4, count=3, share=0.7), Layer(dim=16, rank=8, share=0.3))
    mechanism = M2(layers=layers, noise_multiplier=z, clipping="per-layer", columns=1)
    shift = (0.7 * rng.beta(2, 30, (DRAWS, 3)).mean(axis=1) + 0.3 * rng.beta(4, 4, DRAWS)) / z**2
    assert_just_below(least_delta(mechanism, 0.5), gaussian_deltas(np.array(0.5), np.sqrt(shift)))


@pytest.mark.parametrize("scheme", ["poisson", "balls-in-bins"])
def test_sampled_releases_are_truth_of_their_likelihood_ratio(scheme):
    """All other records contribute nothing: delta is the mean of (W - e^eps)+ for the ratio W of all outputs."""
    rng, z, eps, q, steps = np.random.default_rng(7), 0.4, 0.2, 0.3, 3
    shift = rng.beta(4, 28, (DRAWS, steps)) / z**2
    ratio = np.exp(np.sqrt(shift) * rng.normal(size=shift.shape) - shift / 2)
    if scheme == "poisson":
        whole, run = np.prod(1 - q + q * ratio, axis=1), {"steps": steps, "sampling_rate": q}
    else:
        whole, run = ratio.mean(axis=1), {"sampling": scheme, "batches": steps}
    removed, added = np.maximum(whole - math.exp(eps), 0), np.maximum(1 - math.exp(eps) * whole, 0)
    worse = max(removed, added, key=np.mean)
    found = privproj.delta(M2(dim=64, rank=8, noise_multiplier=z), epsilon=eps, **run)
    assert_just_below(10.0 ** with_details(found).lower_bound.value, worse)


def test_full_rank_difference_is_tried_if_shape_allows():
    """At a large delta it is the worst: the captured part is r/d for sure."""
    z, eps = 0.3, 0.01
    spread, slim = (M2(dim=64, rank=4, noise_multiplier=z, columns=m) for m in (64, 63))
    exact = 0.5 * special.erf(math.sqrt(4 / 64) / z / math.sqrt(8)) * 2  # Gaussian delta at epsilon 0
    assert least_delta(slim, eps) < 0.99 * least_delta(spread, eps) < 0.99 * exact
    assert privproj.delta(spread, epsilon=eps).value < 1.02 * least_delta(spread, eps)
    assumed = M2(dim=64, rank=4, noise_multiplier=z, change_rank=5)
    assert least_delta(assumed, eps) == least_delta(slim, eps)
    # at a small delta rank one stays the worst, also after the other change was tried
    found = privproj.epsilon(M2(dim=300, rank=1, noise_multiplier=0.3), delta=1e-5, steps=20)
    assert 1.01 < found.value / with_details(found).lower_bound.value < 1.08


@pytest.mark.parametrize(
    ("changes", "run"),
    [
        ({}, {"sampling": "fixed", **RUN}),
        ({}, {"group_size": 3, "sampling": "balls-in-bins", "batches": 10}),
        ({}, {"max_batch_size": 700, "dataset_size": 50000, **RUN}),
        ({}, {"sampling": "balls-in-bins", "batches": 300, "batches_per_record": 2}),
        ({"fixed_projection": True}, {}),
    ],
)
def test_no_lower_bound_without_proved_pair(changes, run):
    found = privproj.epsilon(M2(dim=256, rank=8, noise_multiplier=0.5, **changes), delta=1e-5, **run)
    assert with_details(found).lower_bound is None


def test_unsampled_group_lower_bound_uses_sensitivity():
    group = privproj.epsilon(M2(dim=256, rank=8, noise_multiplier=1.5), delta=1e-5, group_size=3)
    alone = privproj.epsilon(M2(dim=256, rank=8, noise_multiplier=0.5), delta=1e-5)
    assert with_details(group).lower_bound.value == pytest.approx(
        with_details(alone).lower_bound.value, rel=1e-9, abs=0
    )


def test_answer_does_not_fail_with_its_lower_end():
    mechanism = M2(dim=10**10, rank=16, noise_multiplier=0.1)  # too large for the law in bins
    found = privproj.epsilon(mechanism, delta=1e-5, steps=10, bound="mixture-rdp")
    assert found.usable and with_details(found).lower_bound is None


@pytest.mark.full
def test_noise_multiplier_has_lower_end_of_its_own_epsilon():
    found = privproj.sigma(M2(dim=256, rank=8), epsilon=1.0, delta=1e-5, **SMALL)
    requested = privproj.epsilon(M2(dim=256, rank=8, noise_multiplier=found.value), delta=1e-5, **SMALL)
    assert with_details(found).lower_bound.value == with_details(requested).lower_bound.value < requested.value <= 1.0


@pytest.mark.full
def test_phases_have_a_common_lower_bound():
    first = phase_of(Gaussian(noise_multiplier=2.0), "first", steps=100, sampling_rate=0.05)
    second = phase_of(M2(dim=256, rank=8, noise_multiplier=0.4), "second", steps=100, sampling_rate=0.05)
    fixed = phase_of(M2(dim=256, rank=8, noise_multiplier=0.5), "capped", steps=100, sampling_rate=0.01,
                     max_batch_size=700, dataset_size=50000)  # fmt: skip
    alone, both = (Composition(phases).epsilon(delta=1e-5) for phases in ((second,), (first, second)))
    assert with_details(alone).lower_bound.value < with_details(both).lower_bound.value < both.value
    assert both.value < 1.02 * with_details(both).lower_bound.value
    more = Composition((first, second, fixed)).epsilon(delta=1e-5)
    assert with_details(more).lower_bound.value == pytest.approx(with_details(both).lower_bound.value, rel=1e-6, abs=0)
    known = Composition((first, first)).epsilon(delta=1e-5)
    assert known.lower == pytest.approx(with_details(known).lower_bound.value, rel=1e-6, abs=0)
    known = Composition((first, first)).delta(epsilon=1.0)
    assert known.lower == pytest.approx(10.0 ** with_details(known).lower_bound.value, rel=1e-6, abs=0)
    assert known.value > known.lower * (1 + 1e-5)


def test_phases_of_laplace_noise_are_known_from_below():
    """A run that is nearly all Laplace noise is not told that it may be thousands of times too large."""
    run = {"steps": 132, "sampling_rate": 0.186}
    laplace, sketch = Laplace(noise_multiplier=0.515), PublicSketch(rank=2, noise_multiplier=7.35)
    both = Composition((phase_of(sketch, "sketch", steps=10, sampling_rate=0.01), phase_of(laplace, "laplace", **run)))
    found = both.epsilon(delta=1e-3)
    assert (
        0.999 * found.value <= with_details(found).lower_bound.value <= found.value
        and not with_details(found).lower_bound.gap
    )


def test_lower_bound_is_computed_only_on_request(monkeypatch):
    calls, find = [], remarks._lower_end
    monkeypatch.setattr(remarks, "_lower_end", lambda *given: calls.append(given) or find(*given))
    mechanism = M2(dim=64, rank=4, columns=64, noise_multiplier=1.0)
    result = privproj.epsilon(mechanism, delta=1e-5, sampling_rate=0.01, steps=200)
    assert 0.0 < result.value < 10.0 and str(result) and result.lower_bound is None and not calls
    detailed = with_details(result)
    assert 0.0 < detailed.lower_bound.value <= result.value and len(calls) == 1
    assert privproj.lower_bound(result) == detailed.lower_bound
    copy = pickle.loads(pickle.dumps(result))
    assert copy == result and copy.as_dict() == result.as_dict()
