"""Many layers under a joint clip or clipped apart."""

import math

import numpy as np
import pytest
from helpers import RUN, eps_of
from scipy.special import ndtr

import privproj
from privproj import M2, Gaussian, InvalidParameter, Layer, Refused, assumptions

STACK = (Layer(dim=768, rank=16, count=24),)


def stack(z=0.155974, clipping="joint", layers=STACK, **more):
    return M2(layers=layers, clipping=clipping, noise_multiplier=z, **more)


def test_equal_layers_under_a_joint_clip_cost_what_one_costs():
    assert eps_of(stack()) == eps_of(M2(dim=768, rank=16, noise_multiplier=0.155974))


@pytest.mark.parametrize("bound", ["rank-free", "mixture-rdp"])
def test_per_layer_clipping_beats_joint_and_approaches_the_gaussian_at_the_mean_energy(bound):
    joint, apart = eps_of(stack(), bound), eps_of(stack(clipping="per-layer"), bound)
    limit = eps_of(
        Gaussian(noise_multiplier=0.155974 * math.sqrt(768 / 16)), "analytic" if bound == "rank-free" else "rdp"
    )
    assert limit < apart < joint
    assert apart - limit < 0.1 * (joint - limit)


def test_an_unprojected_tensor_under_the_joint_clip_removes_all_gain():
    with_head = (*STACK, Layer(dim=10, rank=10))
    result = privproj.epsilon(stack(1.0, layers=with_head), delta=1e-5, **RUN)
    assert result.value == eps_of(Gaussian(noise_multiplier=1.0))
    assert "unprojected tensor" in result.warnings[0]
    shares = (Layer(dim=768, rank=16, count=24, share=0.99), Layer(dim=10, rank=10, share=0.01))
    assert eps_of(stack(1.0, "per-layer", shares)) < result.value


def test_layers_of_different_shape_are_no_better_than_the_worst():
    mixed = (*STACK, Layer(dim=3072, rank=16, count=12))
    worst = eps_of(M2(dim=768, rank=16, noise_multiplier=0.155974))
    assert eps_of(stack(layers=mixed)) == pytest.approx(worst, rel=1e-6, abs=0)
    assert eps_of(stack(layers=mixed)) >= worst * (1 - 1e-6)


def test_layers_refuse_what_does_not_hold():
    with pytest.raises(Refused, match="several"):
        eps_of(stack(), "exact-rank1")
    for bad in (
        {"layers": STACK, "dim": 5},
        {"layers": (Layer(dim=8, rank=2, share=0.5),), "clipping": "per-layer"},
        {"layers": (Layer(dim=8, rank=2, share=1.0),)},
        {},
    ):
        with pytest.raises(InvalidParameter):
            M2(**bad)
    with pytest.raises(InvalidParameter):
        privproj.rank(M2(layers=STACK, noise_multiplier=1.0), epsilon=1.0, delta=1e-5)


def test_one_layer_is_the_plain_mechanism_for_the_published_bounds():
    one = (Layer(dim=768, rank=16),)
    for bound in ("beta-tail", "beta-tail-sharp"):
        layered = privproj.epsilon(stack(0.5, layers=one, change_rank=3), delta=1e-5, bound=bound).value
        plain = privproj.epsilon(
            M2(dim=768, rank=16, change_rank=3, noise_multiplier=0.5), delta=1e-5, bound=bound
        ).value
        assert layered == pytest.approx(plain, rel=1e-7, abs=0)


@pytest.mark.parametrize("layer", ["64x8x1", "64x8x3", "768x16x100000", "4096x2048x224"])
def test_per_layer_laws_of_every_size_are_finite_and_between_their_limits(layer):
    dim, rank, count = map(int, layer.split("x"))
    law = stack(1.0, "per-layer", (Layer(dim=dim, rank=rank, count=count),))
    value = privproj.delta(law, epsilon=0.5).value
    energy = math.sqrt(rank / dim)
    concentrated = privproj.delta(Gaussian(noise_multiplier=1 / energy), epsilon=0.5).value
    assert (
        concentrated * (1 - 1e-9)
        <= value
        <= privproj.delta(M2(dim=dim, rank=rank, noise_multiplier=1.0), epsilon=0.5).value * 1.001
    )


WORDS = {name: words for name, words in vars(assumptions).items() if name.isupper()}


def test_layers_that_share_a_projection_cost_more_than_independent_ones():
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
    assert WORDS["INDEPENDENT_LAYER_PROJECTIONS"] in claimed.mechanism["assumes"]
    joint = M2(layers=(Layer(dim=64, rank=4, count=8),), noise_multiplier=0.5)
    assert privproj.delta(joint, epsilon=2.0).value >= shared.lower
