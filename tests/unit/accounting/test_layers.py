"""Many layers under a joint clip or clipped apart."""

import math

import numpy as np
import pytest
from helpers import RUN, eps_of
from scipy.special import ndtr

import privproj
from privproj import M2, Gaussian, InvalidParameterError, Layer, UnsupportedError
from privproj.accounting.lower_bounds import with_details
from privproj.assumptions import Requirement

STACK = (Layer(dim=768, rank=16, count=24),)


def stack(z=0.155974, clipping="joint", layers=STACK, **more):
    return M2(layers=layers, clipping=clipping, noise_multiplier=z, **more)


def test_equal_layers_under_joint_clip_equal_one_layer():
    assert eps_of(stack()) == eps_of(M2(dim=768, rank=16, noise_multiplier=0.155974))


@pytest.mark.parametrize("bound", ["rank-free", "mixture-rdp"])
def test_per_layer_clipping_is_below_joint_clipping(bound):
    joint, apart = eps_of(stack(), bound), eps_of(stack(clipping="per-layer"), bound)
    limit = eps_of(
        Gaussian(noise_multiplier=0.155974 * math.sqrt(768 / 16)), "analytic" if bound == "rank-free" else "rdp"
    )
    assert limit < apart < joint
    assert apart - limit < 0.1 * (joint - limit)


def test_unprojected_tensor_under_joint_clip_removes_all_gain():
    with_head = (*STACK, Layer(dim=10, rank=10))
    result = privproj.epsilon(stack(1.0, layers=with_head), delta=1e-5, **RUN)
    assert result.value == eps_of(Gaussian(noise_multiplier=1.0))
    assert "unprojected tensor" in result.warnings[0]
    shares = (Layer(dim=768, rank=16, count=24, share=0.99), Layer(dim=10, rank=10, share=0.01))
    assert eps_of(stack(1.0, "per-layer", shares)) < result.value


def test_layers_of_different_shape_are_no_better_than_worst():
    mixed = (*STACK, Layer(dim=3072, rank=16, count=12))
    worst = eps_of(M2(dim=768, rank=16, noise_multiplier=0.155974))
    assert eps_of(stack(layers=mixed)) == pytest.approx(worst, rel=1e-6, abs=0)
    assert eps_of(stack(layers=mixed)) >= worst * (1 - 1e-6)


def test_invalid_layers_are_rejected():
    with pytest.raises(UnsupportedError, match="one projected layer only"):
        eps_of(stack(), "exact-rank1")
    for bad in (
        {"layers": STACK, "dim": 5},
        {"layers": (Layer(dim=8, rank=2, share=0.5),), "clipping": "per-layer"},
        {"layers": (Layer(dim=8, rank=2, share=1.0),)},
        {},
    ):
        with pytest.raises(InvalidParameterError):
            M2(**bad)
    with pytest.raises(InvalidParameterError):
        privproj.rank(M2(layers=STACK, noise_multiplier=1.0), epsilon=1.0, delta=1e-5)


def test_one_layer_is_plain_mechanism_for_published_bounds():
    one = (Layer(dim=768, rank=16),)
    for bound in ("beta-tail", "beta-tail-sharp"):
        layered = privproj.epsilon(stack(0.5, layers=one, change_rank=3), delta=1e-5, bound=bound).value
        plain = privproj.epsilon(
            M2(dim=768, rank=16, change_rank=3, noise_multiplier=0.5), delta=1e-5, bound=bound
        ).value
        assert layered == pytest.approx(plain, rel=1e-7, abs=0)


@pytest.mark.parametrize("layer", ["64x8x1", "64x8x3", "768x16x100000", "4096x2048x224"])
def test_per_layer_deltas_are_between_their_limits(layer):
    dim, rank, count = map(int, layer.split("x"))
    distribution = stack(1.0, "per-layer", (Layer(dim=dim, rank=rank, count=count),))
    value = privproj.delta(distribution, epsilon=0.5).value
    energy = math.sqrt(rank / dim)
    concentrated = privproj.delta(Gaussian(noise_multiplier=1 / energy), epsilon=0.5).value
    assert (
        concentrated * (1 - 1e-9)
        <= value
        <= privproj.delta(M2(dim=dim, rank=rank, noise_multiplier=1.0), epsilon=0.5).value * 1.001
    )


def test_shared_projection_costs_more_than_independent():
    """With one ``Z`` for all layers and one direction in each, the captured share is that of one layer."""
    stack = M2(layers=(Layer(dim=64, rank=4, count=8),), clipping="per-layer", noise_multiplier=0.5)
    claimed = privproj.delta(stack, epsilon=2.0)
    shared = privproj.delta(M2(dim=64, rank=4, noise_multiplier=0.5), epsilon=2.0, bound="exact-rank1")
    assert shared.lower > 1.5 * claimed.value
    rng, energy = np.random.default_rng(1), []
    for _ in range(4000):
        frame = np.linalg.qr(rng.standard_normal((64, 4)))[0]
        energy.append(sum(np.sum(frame[0] ** 2) / 8 for _ in range(8)))
    root = np.sqrt(energy) / 0.5
    gains = ndtr(root / 2 - 2 / root) - math.exp(2) * ndtr(-root / 2 - 2 / root)
    assert abs(gains.mean() - shared.value) <= 5 * gains.std() / math.sqrt(len(gains))
    assert Requirement.INDEPENDENT_LAYER_PROJECTIONS in claimed.mechanism["requirements"]
    joint = M2(layers=(Layer(dim=64, rank=4, count=8),), noise_multiplier=0.5)
    assert privproj.delta(joint, epsilon=2.0).value >= shared.lower


@pytest.mark.parametrize("bound", ["rank-free", "mixture-rdp"])
@pytest.mark.parametrize("shapes", [("8x8", "8x8"), ("8x4", "8x8")])
def test_shares_of_few_digits_are_parts_of_their_sum(bound, shapes):
    """Noise is relative to the root of the sum of the squared clips: shares of .9999999992 in all are halves of it."""
    few, whole = (
        stack(0.1, "per-layer", tuple(f"{shape}@{share}" for shape in shapes)) for share in (0.4999999996, 0.5)
    )
    for eps in (50.0, 300.0):
        found, known = (privproj.delta(mechanism, epsilon=eps, bound=bound) for mechanism in (few, whole))
        assert found.log10_delta >= known.log10_delta * (1 + 1e-12)
    if shapes == ("8x8", "8x8") and bound == "rank-free":
        plain = privproj.delta(Gaussian(noise_multiplier=0.1), epsilon=50.0)
        assert privproj.delta(few, epsilon=50.0).value >= plain.lower


def test_columns_below_other_side_of_layer_are_rejected():
    """A difference of the layer may have any rank up to that side, so rank 1 cannot be assumed."""
    for layers in ("64x4:32", ("64x4:8", "64x4:32")):
        with pytest.raises(InvalidParameterError, match="columns must be at least 32"):
            M2(layers=layers, columns=8, noise_multiplier=1.0)
    assert M2(layers=("64x4:8", "64x4"), columns=8, noise_multiplier=1.0).columns == 8


def test_few_columns_have_no_full_rank_lower_bound():
    """With one column every change has rank one, so the truth is below that of a change that is spread evenly."""
    for share in ("", "@1"):
        clipping = "per-layer" if share else "joint"
        slim, wide = (stack(0.2, clipping, f"768x16:{m}{share}") for m in (1, 768))
        least, other = (with_details(privproj.delta(mechanism, epsilon=0.25)).lower_bound for mechanism in (slim, wide))
        truth = privproj.delta(M2(dim=768, rank=16, columns=1, noise_multiplier=0.2), epsilon=0.25, bound="exact-rank1")
        assert least.value <= truth.log10_delta < other.value
