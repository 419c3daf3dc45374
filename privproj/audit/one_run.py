"""The audit of one run: many canaries in one release, each in it or not by the toss of a coin.

The released sum scores every canary. The auditor guesses which were in it, and a lower bound on epsilon follows from
how many guesses are right. One run of the real release code is enough, where the mechanism audit makes thousands, but
the bound is the weaker for it.
"""

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from privproj.audit.epsilon_lower import auc, one_run_epsilon
from privproj.audit.mechanism import real_run
from privproj.mechanisms import Gaussian
from privproj.training import PoissonBatches
from privproj.validation import whole


def one_run(
    mechanism: Gaussian, canaries: int, guesses: int, delta: float, confidence: float, seed: int | None = None
) -> tuple[float, int, float]:
    """Audit by one release: orthogonal canary gradients, each in it with probability 1/2, by the real code.

    The highest and the lowest ``guesses / 2`` scores are guessed to be in and out. Every canary has norm 1, which is
    the clip.

    Args:
        mechanism: The claimed mechanism, a :class:`privproj.Gaussian` with its noise multiplier.
        canaries: Number of canaries, from 10 to 1e5.
        guesses: Number of guesses, from 2 to ``canaries``; an odd number is lowered by one.
        delta: The delta of the lower bound, above 0 and below 1; the caller checks it.
        confidence: The probability that the lower bound holds, above 0 and below 1; the caller checks it.
        seed: A whole number of at least 0 that makes the audit repeatable. None: it is drawn anew.

    Returns:
        The lower bound on epsilon at ``delta``, the number of right guesses, and the area under the curve over all
        canaries.

    Raises:
        InvalidParameter: ``canaries`` or ``guesses`` is outside its range.

    >>> from privproj import Gaussian
    >>> from privproj.audit.one_run import one_run
    >>> lower, right, area = one_run(Gaussian(noise_multiplier=0.1), 100, 40, delta=1e-5, confidence=0.95, seed=0)
    >>> lower > 1.0, right
    (True, 40)
    """
    count = whole("canaries", canaries, "a whole number of canaries from 10 to 1e5", 10, 10**5)
    guessed = whole("guesses", guesses, "an even number of guesses, at most the canaries", 2, count) // 2 * 2
    rng = np.random.default_rng(seed)
    module = nn.Linear(1, count, bias=False, dtype=torch.float64)
    data = TensorDataset(torch.zeros(count, 1), torch.zeros(count))
    batches = PoissonBatches(rate=1.0)
    optimizer, _ = real_run(module, data, mechanism.noise_multiplier, seed, steps=1, batches=batches)
    included = np.flatnonzero(rng.random(count) < 0.5)
    boundary = optimizer._boundary
    (view,) = boundary.views
    # Canaries that go through the release code together; bounds memory. Speed only.
    for rows in torch.as_tensor(included).split(256):
        g = torch.zeros(len(rows), count, dtype=torch.float64)
        g[torch.arange(len(rows)), rows] = 1.0
        view.tap.keep(view.tap.modules[0], torch.ones(len(rows), 1, dtype=torch.float64), g)
        boundary.add(len(rows))
        view.tap.clear()
    scores = boundary.release()[0][:, 0].numpy()
    inside = np.isin(np.arange(count), included)
    order = inside[np.argsort(scores)]
    right = int((~order[: guessed // 2]).sum() + order[-guessed // 2 :].sum())
    # The p-value of Steinke, Nasr, Jagielski 2023 at this number of right guesses.
    lower = one_run_epsilon(count, guessed, right, delta, confidence)
    return lower, right, auc(scores[inside], scores[~inside])
