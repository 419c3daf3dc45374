"""Fourier inversion: spectra, tilts and plain convolution agree within their errors, without threads."""

import math
import os
import subprocess
import sys
from dataclasses import replace
from functools import partial

import mpmath
import numpy as np
import pytest
from helpers import gaussian

from privproj.composition import dominating_pairs, fourier
from privproj.composition.dominating_pairs import UNIT_ROUNDING
from privproj.errors import GridSizeError
from privproj.run import Run


def test_sparse_and_full_spectra_agree_within_their_errors(monkeypatch):
    run = Run(steps=400, sampling_rate=0.02)
    profile = gaussian(1.0)
    shape = dominating_pairs.describe_coarsely(profile, run)
    pair = shape.pairs(shape.deviation / 64).above
    sparse = fourier.FourierComposition([(pair, run.steps)])
    theta = sparse.tilt_for_delta(math.log(1e-6))
    assert len(sparse.tilted_sum(theta).frequencies) < 2000
    monkeypatch.setattr(fourier.TiltedSum, "wanted_frequencies", lambda self: None)
    full = fourier.FourierComposition([(pair, run.steps)])
    assert len(full.tilted_sum(theta).frequencies) > 2000 or full.tilted_sum(theta).length > 2**14
    for eps in (0.5, 1.0, 1.5, 2.0):
        one, two = sparse.tilted_sum(theta).delta(eps), full.tilted_sum(theta).delta(eps)
        assert abs(one.value - two.value) <= one.error + two.error
        assert one.error < 1e-6 * one.value


def test_any_tilt_gives_sound_answer():
    profile, run = gaussian(10.0), Run(steps=100)
    shape = dominating_pairs.describe_coarsely(profile, run)
    pair = shape.pairs(shape.deviation / 64).above
    whole = fourier.FourierComposition([(pair, 100)])
    best = whole.delta(2.0)
    for theta in (0.01, 0.5, 2.0, 6.0, 20.0):
        found = whole.tilted_sum(theta).delta(2.0)
        assert abs(found.value - best.value) <= found.error + best.error


def test_tilt_that_loses_masses_raises():
    """If ``theta loss`` has no fractional digits, the tilted masses are meaningless (C19)."""
    profile, run = gaussian(10.0), Run(steps=100)
    shape = dominating_pairs.describe_coarsely(profile, run)
    pair = shape.pairs(shape.deviation / 64).above
    whole = fourier.FourierComposition([(pair, 100)], small_delta=True)
    for theta in (1e17, 1e80):
        with pytest.raises(GridSizeError, match="exceed double precision"):
            whole.tilted_sum(theta)


def pair_of(cells, masses, step, rounding=0.0):
    """Return a pair of these masses, without infinite losses."""
    return dominating_pairs.DominatingPair(np.array(cells), np.array(masses), step, 0.0, 0.0, rounding)


@pytest.mark.parametrize("kind", ["gaussian", "cell 0 is empty"])
def test_window_bound_covers_errors_of_masses(kind):
    """The masses of the proved pair may exceed the computed ones by their rounding, in each release (C19, i)."""
    run = Run(steps=1000)
    shape = dominating_pairs.describe_coarsely(gaussian(10.0), run)
    pair = replace(shape.pairs(shape.deviation / 4).above, rounding=0.02)
    if kind != "gaussian":
        pair = pair_of([0, 9, 10, 11], [0.0, 0.3, 0.4, 0.3], 0.01, rounding=0.02)
    whole = fourier.FourierComposition([(pair, run.steps)])
    tilted = fourier.TiltedSum(whole, theta := whole.tilt_for_delta(math.log(1e-6)))
    # The error of cell 0 is absolute.
    largest = np.where(pair.cells == 0, pair.masses + pair.rounding, pair.masses * (1.0 + pair.rounding))
    masses = largest * np.exp(theta * pair.losses - tilted.logs[0])
    distribution, low = np.array([1.0]), 0
    for bit in f"{run.steps:b}":
        distribution, low = np.convolve(distribution, distribution), 2 * low
        if bit == "1":
            distribution, low = (
                np.convolve(distribution, np.bincount(pair.cells - pair.cells[0], masses)),
                low + int(pair.cells[0]),
            )
    cells = low + np.arange(len(distribution))
    assert (
        distribution[cells < tilted.start].sum() + distribution[cells >= tilted.start + tilted.length].sum()
        <= tilted.tail
    )


@pytest.mark.parametrize(("mass", "eps", "theta"), [(1e-3, 0.1, 0.5), (1.0, 0.6, 6.0)])
def test_delta_error_includes_errors_of_masses(mass, eps, theta):
    """The error of cell 0 is absolute, and exceeds its mass if most of the mass is at infinity (C19, iii)."""
    h, rounding = 0.5, 1e-5
    whole = fourier.FourierComposition([(pair_of([0, 1], [0.0, mass], h, rounding), 2)])
    found = fourier.TiltedSum(whole, theta).delta(eps)
    larger = mass * (1.0 + rounding)
    largest = 2.0 * rounding * larger * max(-math.expm1(eps - h), 0.0) + larger**2 * -math.expm1(eps - 2.0 * h)
    assert found.value < largest <= found.value + found.error


def test_error_covers_exponents_of_scale(monkeypatch):
    """At this loss all four products with the tilt round in one direction, by a part in 4e12 of delta (C19, viii)."""
    # The other errors are made small.
    monkeypatch.setattr(fourier, "PROBABILITY_OUTSIDE_WINDOW", 1e-25)
    monkeypatch.setattr(fourier, "SKIPPED_SPECTRUM", 1e-25)
    cell, step, theta = 65, float.fromhex("0x1.00b097b75b2a0p+3"), float.fromhex("0x1.0014dcffee53cp+0")
    assert theta * (step * cell) - theta * step * cell == -(2.0**-42)
    mass, eps = math.exp(-theta * step * cell), step * (cell - 0.5)
    whole = fourier.FourierComposition([(pair_of([cell - 1, cell], [1e-3 * mass, mass], step), 1)], small_delta=True)
    found = fourier.TiltedSum(whole, theta).delta(eps)
    with mpmath.workdps(40):
        exact = mpmath.mpf(mass) * -mpmath.expm1(mpmath.mpf(eps) - mpmath.mpf(step) * cell)
        assert abs(found.value - exact) <= found.error <= 2e-12 * exact


def test_convolution_without_fourier_agrees():
    profile, run = gaussian(1.5), Run(steps=4, sampling_rate=0.2)
    shape = dominating_pairs.describe_coarsely(profile, run)
    pair = shape.pairs(0.02).above
    dense = np.zeros(int(pair.cells[-1] - pair.cells[0]) + 1)
    dense[pair.cells - pair.cells[0]] = pair.masses
    distribution = dense
    for _ in range(3):
        distribution = np.convolve(distribution, dense)
    losses = pair.step * (4 * pair.cells[0] + np.arange(len(distribution)))
    whole = fourier.FourierComposition([(pair, 4)])
    for eps in (0.0, 0.31, 1.0, 4.0, 8.0):
        direct = float(distribution[losses > eps] @ -np.expm1(eps - losses[losses > eps]))
        found = whole.delta(eps)
        assert abs(found.value - direct) <= found.error + 1e-12 * direct


def test_block_sums_agree_within_their_errors(monkeypatch):
    profile, run = gaussian(1.0), Run(steps=2, sampling_rate=0.01)
    shape = dominating_pairs.describe_coarsely(profile, run)
    pair = shape.pairs(shape.deviation / 64).above
    blocks = fourier.FourierComposition([(pair, 2)])
    found = [blocks.delta(eps) for eps in (0.01, 0.1, 0.3)]
    assert any(blocks.tilted_sum(blocks.tilt_for(eps)).blocks is not None for eps in (0.01, 0.1, 0.3))
    monkeypatch.setattr(fourier, "FEWEST_IN_BLOCKS", 2**40)
    singly = fourier.FourierComposition([(pair, 2)])
    for one, eps in zip(found, (0.01, 0.1, 0.3), strict=True):
        other = singly.delta(eps)
        assert abs(one.value - other.value) <= one.error + other.error
        assert one.error < 1e-5 * one.value


def test_composition_is_invariant_to_order_and_splits():
    run = Run(steps=400, sampling_rate=0.02)
    shapes = [dominating_pairs.describe_coarsely(gaussian(z), run) for z in (1.0, 1.3)]
    pairs = [shape.pairs(shapes[0].deviation / 64).above for z, shape in zip((1.0, 1.3), shapes, strict=True)]
    one, two = pairs
    ways = ([(one, 300), (two, 100)], [(two, 100), (one, 300)], [(one, 100), (two, 60), (one, 200), (two, 40)])
    found = [fourier.FourierComposition(way).delta(1.5) for way in ways]
    for other in found[1:]:
        assert abs(other.value - found[0].value) <= other.error + found[0].error < 1e-6 * found[0].value


@pytest.mark.parametrize("n", [2**17, 3 * 2**20])
@pytest.mark.parametrize("step", [1, 7, 1000])
@pytest.mark.parametrize("middle", [0, 1280, 8192, -1])
def test_transform_in_bins_equals_plain_sum(n, step, middle):
    """Compare with products in 64 bits of mantissa, if available, with exact angles; the error is (iv)."""
    draw = np.random.default_rng(n + step)
    cells = np.cumsum(draw.integers(1, 2 * step + 1, 900)) - 900 * step // 3
    masses = draw.exponential(size=900) ** 3
    masses /= masses.sum()
    middle = n // 2 if middle < 0 else middle
    k = np.array([0, 1, 2, 50, 127])
    turned = fourier._turn_masses(masses, cells, middle, n)
    found, bins = fourier._transform_in_bins(turned, cells, k, n)
    turns = (np.multiply.outer(k + middle, cells) % n).astype(np.longdouble)
    angle = 2.0 * np.arctan2(np.longdouble(0.0), np.longdouble(-1.0)) / n * turns
    error = UNIT_ROUNDING * max(1064.0 + 900, 3.0 * (900 / 8 + bins + 101.0))
    assert np.abs(found.real - (masses * np.cos(angle)).sum(axis=1)).max() <= error
    assert np.abs(found.imag + (masses * np.sin(angle)).sum(axis=1)).max() <= error
    assert bins < len(cells) or step == 1000


def test_transform_by_sums_uses_windows_of_frequencies():
    pair = partial(dominating_pairs.DominatingPair, step=1e-3, infinity_mass=0.0, infinity_mass_q=0.0, rounding=1e-14)
    cells = np.arange(-300, 900, 3)
    masses = np.exp(-0.5 * ((cells - 100) / 120.0) ** 2)
    whole = fourier.FourierComposition([(pair(cells=cells, masses=masses / masses.sum()), 40)])
    tilt = whole.tilted_sum(1.0)
    tilt.masses = [whole.phases[0].pair.masses]  # it keeps none
    n, wanted = 2**18, np.array([0, 3, 128, 129, 700, 70_000, 2**17 - 1, 2**17])
    phi, error = tilt.transform_by_sums(0, wanted, n)
    whole_phi, other = tilt.transform_by_fft(0, n)
    assert np.abs(phi - whole_phi[wanted]).max() <= error + other - tilt.errors[0]


THREADS = """
import sys, time
sys.path.insert(0, sys.argv[1])
import numpy, privproj, works
time.sleep(0.5)  # the threads that come with numpy spin for a while
def unequal_norms(n):
    mechanism = privproj.Wishart(dim=1000, rank=16, misalignment=1e-5, norm_ratio=1 + 1e-3 * n)
    return privproj.epsilon(mechanism, delta=1e-5, steps=10)
works.WARM["unequal norms"] = unequal_norms
for name in ("DP-SGD epsilon, T 2", "DP-SGD epsilon, T 1000", "DP-SGD epsilon, T 1e+09", "m2 epsilon, T 2000",
             "m2 sigma, T 2000", "wishart epsilon, T 10", "m1 epsilon", "100 phases", "100 layers, clip each",
             "unequal norms"):
    call = works.WARM[name]
    call(1.0)
    start, own = time.process_time(), time.thread_time()
    call(1.0 + 1e-7)
    print(name, time.process_time() - start, time.thread_time() - own, sep=";")
"""


@pytest.mark.slow
def test_composition_starts_no_threads():
    """Without threads the CPU time is at most the wall time, on a machine however busy."""
    free = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    benchmarks = os.path.join(os.path.dirname(__file__), "..", "..", "..", "benchmarks")
    done = subprocess.run([sys.executable, "-c", THREADS, benchmarks], env=free, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        name, whole, own = line.split(";")
        assert float(whole) <= 1.2 * float(own), name
    assert len(done.stdout.splitlines()) == 10


@pytest.mark.parametrize("slope", [0.0, 1e-308, 1e-320, 3.0, 1e300])
def test_refine_root_converges_for_any_slope(slope):
    """If the error is most of a delta, its slope is meaningless, and Newton's step may be infinite."""
    pair = partial(dominating_pairs.DominatingPair, step=0.1, infinity_mass=0.0, infinity_mass_q=0.0, rounding=0.0)
    whole = fourier.FourierComposition([(pair(cells=np.array([-9, 0, 9]), masses=np.array([0.2, 0.5, 0.3])), 1)])
    for sign in (1.0, -1.0):
        found = whole.refine_root(lambda eps: (3.0 * (0.4 - eps), slope), 0.7, sign)
        assert 0.0 <= sign * (found - 0.4) <= 1e-8 * 0.4
