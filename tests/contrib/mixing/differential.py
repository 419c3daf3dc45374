"""Fixed queries of the mechanism mixing and an independent lower bound; its random queries would take seconds each."""

import numpy as np
from scipy import special


def lower(query, eps):
    """Enclose delta for one record on empty data in one dimension, by sums below and above over cells of ``u``.

    The summand increases with ``u``, because the ratio of the normal densities and ``nu = 1/(G - Z u)`` do.
    """
    given = query.parameters
    if query.run.get("steps", 1) > 1:
        return None
    half, noise, end = 0.5 * given["rank"], given["eigen_noise"], given["gamma"] / given["eigen_noise"]
    u = np.linspace(-9.0, min(end * (1 - 1e-9), 9.0 + 1 / noise), 20_001)
    left = eps - (u - 0.5 / noise) / noise
    nu = 1.0 / (given["gamma"] - noise * u)
    edge = np.maximum(half * np.log1p(nu) + left, 0.0) / nu
    kept = special.gammaincc(half, edge) - np.exp(left) * special.gammaincc(half, (1 + nu) * edge)
    mass = np.diff(special.ndtr(u - 1 / noise))
    beyond = special.ndtr(1 / noise - u[-1])
    low, high = np.sum(mass * kept[:-1]), np.sum(mass * kept[1:]) + beyond + 1e-18
    return max(float(low) * (1 - 1e-9) - 1e-12, 0.0), float(high) * (1 + 1e-9) + 1e-12


LOWER = {"mixing": lower}
QUERIES = {
    "mixing, noisy eigenvalue": (
        "epsilon", "mixing", {"rank": 100, "gamma": 65.0, "eigen_noise": 7.0}, "two-stage", {}, None, 1e-6,
    ),
    "mixing, eigenvalue that often fails": (
        "delta", "mixing", {"rank": 4, "gamma": 7.0, "eigen_noise": 2.0}, "two-stage", {}, 1.5, None,
    ),
}  # fmt: skip
ENTRIES = ({"mechanism": "mixing", "rank": 4, "gamma": 60.0, "eigen_noise": 9.0},)
