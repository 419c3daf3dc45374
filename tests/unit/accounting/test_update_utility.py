"""Utility of an update compared with DP-SGD: limits, order, and simulated releases (C38)."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import privproj
from privproj import M1, M2, Gaussian, Layer, PublicSketch, epsilon, sigma, update_utility

RUN = {"steps": 300, "sampling_rate": 0.02}


@settings(max_examples=25)
@given(st.integers(2, 3000), st.floats(0.0, 1.0), st.floats(0.1, 6.0), st.sampled_from([{}, RUN]))
def test_m2_never_has_less_noise_than_dp_sgd_at_equal_privacy(dim, part, z, run):
    rank = 1 + int(part * (dim - 1))
    release = M2(dim=dim, rank=rank, noise_multiplier=z)
    answer = epsilon(release, delta=1e-6, **run)
    if answer.value < 1e-3:
        return
    found = update_utility(release, epsilon=answer.value, delta=1e-6, **run)
    assert found.noise_over_dp_sgd >= 1.0 - 2e-3
    assert found.effective_noise_multiplier == pytest.approx(z * math.sqrt(dim / rank), rel=1e-12)
    assert found.projection_error == pytest.approx(dim / rank - 1.0, abs=1e-9 * dim)
    assert found.projection_error_of_run == pytest.approx(found.projection_error / run.get("steps", 1), rel=1e-12)
    if rank == dim:
        assert found.noise_over_dp_sgd == pytest.approx(1.0, rel=1e-3)


@pytest.mark.full
def test_noise_tends_to_that_of_dp_sgd_with_rank():
    ratios = [
        update_utility(sigma_of(rank), epsilon=1.0, delta=1e-5, **RUN).noise_over_dp_sgd for rank in (1, 8, 64, 512)
    ]
    assert ratios == sorted(ratios, reverse=True) and ratios[-1] < 1.01


def sigma_of(rank):
    return M2(dim=512, rank=rank, noise_multiplier=sigma(M2(dim=512, rank=rank), epsilon=1.0, delta=1e-5, **RUN).value)


@pytest.mark.parametrize(("dim", "rank"), [(20, 3), (20, 60), (64, 8)])
def test_m1_and_public_sketches_as_released(dim, rank):
    """kappa = E|S M|^2/|S|^2 and the energy of the lifted noise, against 10,000 draws."""
    draw, columns = np.random.default_rng(1), 5
    s = draw.standard_normal((columns, dim))
    squares, energies = [], []
    for _ in range(10_000):
        a = draw.standard_normal((rank, dim)) / math.sqrt(rank)
        squares.append(np.square(s @ a.T @ a).sum() / np.square(s).sum())
        energies.append(np.square(draw.standard_normal((columns, rank)) @ a).sum() / (columns * dim))
    for mechanism in (M1(dim=dim, rank=rank, noise_multiplier=1.0), PublicSketch(dim=dim, rank=rank)):
        lift = mechanism.lift()
        assert np.mean(squares) == pytest.approx(lift.factor, rel=0.03)
        assert math.sqrt(np.mean(energies)) == pytest.approx(lift.noise, rel=0.03)
    assert PublicSketch(rank=rank).lift() is None and Gaussian().lift() is None


def test_layers_add_their_energies():
    """Layers alike are one; of two shapes the noise is weighted by their sizes n d, and kappa is the larger one."""
    one, many = M2(dim=512, rank=8), M2(layers=(Layer(dim=512, rank=8, count=7),))
    assert many.lift()[:2] == pytest.approx(one.lift()[:2], rel=1e-12)
    assert many.lift().released == 7 * one.lift().released
    mixed = M2(layers=(Layer.parse("64x8x3:256"), Layer.parse("256x64:64"))).lift()
    energy = (3 * 64 * 256 * (64 / 8) + 256 * 64 * (256 / 64)) / (4 * 64 * 256)
    assert mixed.noise == pytest.approx(math.sqrt(energy), rel=1e-12)
    assert mixed.factor == 8.0 and mixed.of == 4 * 64 * 256 and mixed.released == 3 * 8 * 256 + 64 * 64


@pytest.mark.parametrize("text", ["64x8x3:256", "64x8x1:9@0.25", "64x8x2@0.5", "64x8x2"])
def test_layer_text_round_trips(text):
    assert str(Layer.parse(text)) == text


def test_other_side_of_layer_changes_no_epsilon():
    ask = lambda text: epsilon(M2(layers=(Layer.parse(text),), noise_multiplier=1.0), delta=1e-5).value  # noqa: E731
    assert ask("64x8x3:256") == ask("64x8x3")


def test_mechanism_without_update_has_no_utility():
    assert update_utility(privproj.Wishart(dim=30, rank=4, misalignment=1e-6), epsilon=1.0, delta=1e-5) is None


@pytest.mark.parametrize("layers", [("256x64", "64x1"), ("64x1x3:9", "96x48"), ("32x4", "32x16x5", "300x2")])
def test_layers_under_one_clip_never_have_less_noise_than_dp_sgd(layers):
    release = M2(layers=tuple(map(Layer.parse, layers)), noise_multiplier=1.0)
    answer = epsilon(release, delta=1e-6, **RUN)
    assert update_utility(release, epsilon=answer.value, delta=1e-6, **RUN).noise_over_dp_sgd >= 1.0 - 2e-3


def test_clips_per_layer_may_have_less():
    """A layer that is not projected shares the sensitivity with one that costs nearly nothing: no better model."""
    layers = (Layer.parse("1024x1024"), Layer.parse("16x1"))
    release = M2(layers=layers, clipping="per-layer", noise_multiplier=1.0)
    answer = epsilon(release, delta=1e-6)
    assert update_utility(release, epsilon=answer.value, delta=1e-6).noise_over_dp_sgd < 0.9


def test_fixed_projection_averages_nothing():
    fixed = update_utility(
        M1(dim=9, rank=4, noise_multiplier=5.0, fixed_projection=True), epsilon=2.0, delta=1e-5, steps=9
    )
    assert fixed.releases == 1
