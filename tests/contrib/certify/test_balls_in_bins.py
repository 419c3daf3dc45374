"""Epochs in balls: whatever the grid, they enclose what an epoch is, and good grids enclose it closely."""

import json
import math
from dataclasses import asdict
from functools import cache
from itertools import product

import pytest
from epoch_values import TRUTH
from helpers import full_if, needs, slow_if
from hypothesis import given, settings
from hypothesis import strategies as st

needs("flint")

from flint import arb, ctx  # noqa: E402

import privproj  # noqa: E402
from privproj import Gaussian  # noqa: E402
from privproj.composition.compose import releases_of  # noqa: E402
from privproj.contrib.certify import balls_in_bins  # noqa: E402
from privproj.contrib.certify.balls_in_bins import (  # noqa: E402
    BallEpochs,
    EpochGrid,
    epochs_in_balls,
    propose_epochs,
)
from privproj.contrib.certify.composition import RunInBalls, Window  # noqa: E402
from privproj.contrib.certify.grids import propose_grid  # noqa: E402
from privproj.contrib.certify.profiles import BallGaussianProfile, BallProfile  # noqa: E402
from privproj.profiles.gaussian import gaussian_profile  # noqa: E402
from privproj.run import Run, Sampling  # noqa: E402

BITS = 128


def run_of(batches, epochs=1, per_record=1):
    return Run(steps=epochs, sampling=Sampling.BALLS_IN_BINS, batches=batches, batches_per_record=per_record)


def grids_of(z, run, log_delta):
    profile = gaussian_profile(1.0 / z)
    return propose_epochs(profile, run, log_delta, sum(part.steps for _, part in releases_of(profile, run)))


def ends(epochs, eps):
    low, high = epochs.excess(1 if eps >= 0.0 else -1, arb(abs(eps)))
    return float(low), float(high)


# --- any grid, for a release of which all outcomes of an epoch can be added up -------------------------

LOSS = 1.0

PLACES = (0.0, 0.1, 0.4, 0.9, 1.1, -0.1, -0.4, -0.9, -1.1)
"""Losses of an epoch, in units of that of a release."""


class Coin(BallProfile):
    """A release that shows the record with a probability, and else a coin."""

    def __init__(self, infinite, loss=LOSS):
        self.infinite, self.loss = infinite, loss

    def delta(self, eps, witness):
        rest = (arb(self.loss).exp() - eps.exp()).max(arb(0)) / (1 + arb(self.loss).exp())
        return self.infinite + (1 - arb(self.infinite)) * rest


@cache
def exact_excess(infinite, loss, batches, eps):
    q = (1.0 - infinite) / (1.0 + math.exp(loss))
    atoms = [(0.0, infinite), (math.exp(loss), q), (math.exp(-loss), q * math.exp(loss))]
    found = 0.0
    for way in product(atoms, repeat=batches):
        ratio, mass = math.fsum(w for w, _ in way) / batches, math.prod(p for _, p in way)
        found += mass * max((ratio - math.exp(eps)) * (1.0 if eps >= 0.0 else -1.0), 0.0)
    return found + (infinite if eps >= 0.0 else 0.0)


def assert_sound(epochs, infinite, loss, batches):
    for eps in (share * loss for share in PLACES):
        low, high = ends(epochs, eps)
        exact = exact_excess(infinite, loss, batches, eps)
        assert low <= exact * (1.0 + 1e-12) + 1e-15
        assert high >= exact * (1.0 - 1e-12)


GRIDS = st.builds(
    lambda level, knots, first, size, right, left: EpochGrid(
        level, tuple(sorted({1 << max(-level, 0), *knots})), Window(first, size, right, left)
    ),
    st.integers(-4, 2),
    st.lists(st.integers(1, 100), min_size=8, max_size=60),
    st.integers(-10, 60),
    st.integers(1, 256),
    st.floats(0.01, 3.0),
    st.floats(0.01, 3.0),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(GRIDS, min_size=1, max_size=2),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([1, 3]),
    st.sampled_from([BITS, 16]),
)
def test_any_grid_is_sound_at_any_precision(grids, infinite, batches, bits):
    with ctx.workprec(bits):
        assert_sound(BallEpochs(Coin(infinite), batches, 1, grids), infinite, LOSS, batches)


@pytest.mark.parametrize("share", [balls_in_bins.SLACK_SHARE, 0.0])
def test_mass_outside_window_counts_on_safe_side(share, monkeypatch):
    """Short windows moved over the law of the sum, which ends at 3 e = 8.2, with orders that are good or poor."""
    monkeypatch.setattr(balls_in_bins, "SLACK_SHARE", share)
    for first, (size, order) in product(range(-48, 300, 24), ((1, 1.0), (8, 3.0), (64, 10.0), (256, 10.0))):
        grid = EpochGrid(-5, tuple(range(1, 120)), Window(first, size, order, order))
        with ctx.workprec(BITS):
            assert_sound(BallEpochs(Coin(0.0), 3, 1, [grid]), 0.0, LOSS, 3)


@pytest.mark.parametrize("infinite", [0.0, 1e-3, 0.3])
@pytest.mark.parametrize("loss", [0.1, 1.0])
def test_infinite_losses_count_in_both_orders(infinite, loss):
    grid = EpochGrid(-7, tuple(range(1, 800)), Window(0, 2048, 3.0, 3.0))
    for batches in (2, 3):
        with ctx.workprec(BITS):
            epochs = BallEpochs(Coin(infinite, loss), batches, 1, [grid])
            assert_sound(epochs, infinite, loss, batches)
            for eps in (0.4 * loss, -0.4 * loss):
                assert ends(epochs, eps)[1] <= exact_excess(infinite, loss, batches, eps) + 2e-3


# --- good grids ----------------------------------------------------------------------------------------


def is_left_out(row):
    """Tails that no grid follows, and what takes more than five seconds."""
    return row[1] > 1000 or row[3] < 1e-9 or row[:3] == (0.3, 1000, 10)


EPOCHS = slow_if([row for row in TRUTH if not is_left_out(row)], lambda row: row[:3] != (1, 10, 1))


@pytest.mark.parametrize(("z", "batches", "eps", "remove", "add"), EPOCHS)
def test_epoch_is_enclosed_in_both_orders_and_closely_in_larger(z, batches, eps, remove, add):
    with ctx.workprec(BITS):
        grids = grids_of(z, run_of(batches), math.log(remove))
        written = [json.loads(json.dumps(asdict(grid))) for grid in grids]
        read = [EpochGrid(grid["level"], tuple(grid["knots"]), Window(**grid["window"])) for grid in written]
        assert read == list(grids)
        epochs = epochs_in_balls(BallGaussianProfile(z), run_of(batches), read)
        low, high = ends(epochs, eps)
        assert low <= remove * (1.0 + 1e-12) <= high * (1.0 + 2e-12)
        assert high <= remove * 1.01
        assert low == 0.0 or low >= 0.7 * remove
        low, high = (end * math.exp(eps) for end in ends(epochs, -eps))
        assert low <= add * (1.0 + 1e-12) and add * (1.0 - 1e-12) <= high


def test_one_batch_is_one_release():
    """Either the release itself, or the sum of one likelihood ratio."""
    release = BallGaussianProfile(1.0)
    grid = EpochGrid(-7, tuple(range(1, 2000)), Window(0, 4096, 3.0, 3.0))
    with ctx.workprec(BITS):
        plain = epochs_in_balls(release, run_of(4, 3, per_record=4), ())
        assert plain.steps == 12
        epochs = BallEpochs(release, 1, 1, [grid])
        for eps in (0.3, 1.0, -0.3, -1.0):
            exact, (low, high) = ends(plain, eps)[0], ends(epochs, eps)
            assert 0.95 * exact <= low <= exact <= high <= 1.01 * exact


@pytest.mark.parametrize(
    ("z", "batches", "epochs", "delta"),
    [
        *full_if([(2.0, 7, 1, 1e-6), (1.0, 20, 4, 1e-5), (1.0, 1000, 1, 1e-6)], lambda row: row[1] > 10),
        pytest.param(0.4, 50, 2, 1e-6, marks=pytest.mark.slow),
    ],
)
def test_epochs_composed_are_those_of_floats(z, batches, epochs, delta):
    profile, run = gaussian_profile(1.0 / z), run_of(batches, epochs)
    found = privproj.epsilon(
        Gaussian(noise_multiplier=z), delta=delta, steps=epochs, sampling="balls-in-bins", batches=batches
    )
    with ctx.workprec(BITS):
        releases = epochs_in_balls(BallGaussianProfile(z), run, grids_of(z, run, math.log(delta)))
        composed = RunInBalls([releases], propose_grid(releases_of(profile, run), math.log(delta)))
        assert float(composed.upper(found.value * 1.001)) <= delta
        assert float(composed.upper(found.lower)) >= delta
        assert float(composed.lower(found.value)) <= delta
