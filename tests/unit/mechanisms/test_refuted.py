"""R1SMG, noise along one random direction, is refuted, and its name leads to the counterexample."""

import math

import numpy as np
import pytest

import privproj
from privproj import UnsupportedError

FORMS = (
    "epsilon r1smg --dim 100 --noise-multiplier 1.632 --delta 1e-5",
    "compare R1SMG --dim 100 --noise-multiplier 1.632 --delta 1e-5",
    "sigma r1smg --dim 100 --epsilon 1 --delta 1e-5",
    "epsilon r1smg --dim 100 --noise-multiplier 1.632 --delta 1e-5 --allow-refuted",
)


def claimed_noise(dim, delta):
    """Return the noise over the sensitivity for which arXiv 2306.02256 claims epsilon 1 at this delta."""
    # z^2 = 2/(eps psi), psi = (delta Gamma((M-1)/2) / (sqrt(pi) Gamma(M/2)))^(2/(M-2))
    front = math.lgamma(0.5 * (dim - 1)) - math.lgamma(0.5 * dim) - 0.5 * math.log(math.pi)
    return math.sqrt(2.0 * math.exp(-(math.log(delta) + front) * 2.0 / (dim - 2)))


@pytest.mark.parametrize(("dim", "measured"), [(10, 0.18), (100, 0.97), (1000, 0.9999)])
def test_r1smg_exact_delta_exceeds_published_delta(dim, measured):
    z, count = claimed_noise(dim, 1e-5), 40_000
    rng = np.random.default_rng(dim)
    direction = rng.standard_normal((count, dim)) if dim <= 100 else None
    if direction is None:  # the first coordinate of a uniform direction is all that counts
        first = rng.standard_normal(count)
        cosine = first / np.sqrt(first**2 + rng.chisquare(dim - 1, count))
    else:
        cosine = direction[:, 0] / np.linalg.norm(direction, axis=1)
    # y = f + z g u has the density 2 phi(|y - f|/z)/z over the area |y - f|^(M-1) of its sphere; f' = f - e_1.
    near = (z * rng.standard_normal(count)) ** 2
    far = near + 2.0 * np.sqrt(near) * cosine + 1.0
    loss = (far - near) / (2.0 * z * z) + 0.5 * (dim - 1) * np.log(far / near)
    draws = np.maximum(-np.expm1(1.0 - loss), 0.0)
    assert draws.mean() == pytest.approx(measured, rel=0.05)
    assert draws.mean() - 5.0 * draws.std() / math.sqrt(count) > 1e4 * 1e-5


@pytest.mark.parametrize(("dim", "radius", "least"), [(10, 0.5, 0.05), (100, 0.9, 0.4)])
def test_r1smg_ball_separates_neighboring_vectors(dim, radius, least):
    z = claimed_noise(dim, 1e-5)
    # 2 Phi(t/z) - 1 - e^eps t^(M-1)/2 (C22)
    assert math.erf(radius / z / math.sqrt(2.0)) - 0.5 * math.e * radius ** (dim - 1) > least


@pytest.mark.parametrize("line", FORMS)
def test_r1smg_query_states_refutation_and_exits_3(line, run):
    code, out, err = run(line)
    assert (code, out) == (3, "") and err.count("\n") == 1
    assert "the privacy claim of R1SMG is refuted" in err and "Use gaussian" in err and "docs/not-a-guarantee.md" in err


@pytest.mark.parametrize("line", ["explain r1smg", "bounds R1SMG"])
def test_r1smg_catalogue_states_refutation(line, run):
    code, out, _ = run(line)
    text = " ".join(out.split())
    assert code == 0 and "The published claim is refuted" in text and "docs/not-a-guarantee.md" in text


def test_r1smg_evaluate_raises_unsupported():
    with pytest.raises(UnsupportedError, match="Use gaussian"):
        privproj.evaluate("r1smg.published.epsilon", dim=100, noise_multiplier=2.0, delta=1e-5)
