"""Moments of LoRA's noise against simulation."""

import math

import numpy as np
import pytest

from privproj.mechanisms.sketch import lora_noise


@pytest.mark.parametrize("initialization", ["gaussian", "uniform"])
def test_lora_noise_matches_simulation(initialization):
    rng = np.random.default_rng(11)
    rank, columns, count, variance = 3, 4, 300_000, 0.2
    q = np.array([0.5, -0.3, 0.1, 0.8])
    shape = (count, rank, columns)
    side = math.sqrt(3 * variance)
    a = rng.normal(0, math.sqrt(variance), shape) if initialization == "gaussian" else rng.uniform(-side, side, shape)
    u = np.einsum("crm,crk,k->cm", a, a, q) - q
    for i in range(columns):
        found = lora_noise.lora_noise(
            q[i], float(np.linalg.norm(q)), rank, initialization=initialization, variance=variance, row_sum=abs(q).sum()
        )
        assert abs(u[:, i].mean() - found.mean) <= 5 * u[:, i].std() / math.sqrt(count)
        fourth = ((u[:, i] - u[:, i].mean()) ** 4).mean()
        assert abs(u[:, i].var() - found.variance) <= 5 * math.sqrt(fourth / count)
        assert found.rank_rate > 0 and "not a privacy guarantee" in found.warning
    assert lora_noise.lora_noise(0.1, 1.0, 16).mean == 0.0
