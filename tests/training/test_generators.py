"""Streams of random numbers."""

import secrets

import numpy as np
from helpers import needs
from scipy import stats

torch = needs("torch", "opacus")

from training.helpers import data, mlp, one_step  # noqa: E402

from privproj.training.generators import generator, streams  # noqa: E402


def test_the_global_seed_determines_nothing():
    x, y = data()
    runs = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        runs.append(one_step(mlp(), x, y, noise_multiplier=1.0))
    assert not torch.allclose(*runs)
    assert torch.equal(*(one_step(mlp(), x, y, noise_multiplier=1.0, insecure_seed=3) for _ in range(2)))


def test_streams_are_independent_of_each_other_and_of_the_steps_before():
    first = streams(insecure_seed=1)
    draws = [torch.rand(4, generator=g) for g in (first.sampler, first.projection, first.noise)]
    draws.append(torch.rand(4, generator=streams(insecure_seed=1, spent=5).noise))
    assert all(not torch.equal(a, b) for i, a in enumerate(draws) for b in draws[:i])


def test_a_generator_has_more_state_than_torch_would_seed():
    """torch's own seed has 32 bits: seeds 2^32 apart give the same numbers. Ours come from the whole sequence."""
    seeds = [np.random.SeedSequence([1, high]) for high in (0, 1)]
    words = [generator("cpu", s).get_state().numpy()[24 : 24 + 8 * 624].view(np.uint64) for s in seeds]
    assert (words[0] == seeds[0].generate_state(624, np.uint32)).all() and (words[0] != words[1]).mean() > 0.99
    draw = torch.randn(100_000, generator=generator("cpu", np.random.SeedSequence(secrets.randbits(128))))
    assert stats.kstest(draw.numpy(), "norm").pvalue > 1e-4
