"""The audit of the loader: a canary in the batches of the real loader, the exact log-likelihood ratio as score.

With balls-in-bins an epoch is private only where each record picks its batch afresh, uniformly and alone. So epochs of
the real loader are recorded. What is released of each batch is a Gaussian sum, to which only the canary contributes.
The faults are the ways in which such a loader goes wrong. Each is planted in the real one and has to be found.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from privproj.accounting.question import ask_by_name
from privproj.audit.epsilon_lower import Array, AuditVerdict, judge
from privproj.audit.faults import LOADER_FAULTS
from privproj.audit.mechanism import own_epsilon, real_run
from privproj.errors import unknown_name
from privproj.mechanisms import Gaussian
from privproj.runs import RunOptions
from privproj.training import BallsInBins
from privproj.training.batches import BinSampler, PrivateLoader
from privproj.training.generators import pick_batches
from privproj.validation import whole

RECORDS = 8
"""Records in the data set, of which the first is the canary; any number of at least 1 does. Speed only."""


class _SameAssignment(BinSampler):
    """Planted: the batches of the first epoch are those of all."""

    def members(self, epoch: int) -> list[np.ndarray]:
        """The batches of the first epoch."""
        return super().members(0)


class _TwoBins(BinSampler):
    """Planted: the canary is in the batch that it picked, and in the one behind it."""

    def members(self, epoch: int) -> list[np.ndarray]:
        """The batches, the canary in two of them."""
        found = super().members(epoch)
        picked = next(i for i, numbers in enumerate(found) if 0 in numbers)
        behind = (picked + 1) % self.batches
        return [np.append(numbers, 0) if i == behind else numbers for i, numbers in enumerate(found)]


class _Uneven(BinSampler):
    """Planted: half of the records get the first batch, whatever they picked."""

    def picks(self, epoch: int) -> np.ndarray:
        """The picks, half of them replaced by the first batch."""
        return super().picks(epoch) * pick_batches(f"{self.secret(epoch)} coins", epoch, self.records, 2)


PLANTED = {"same-assignment": _SameAssignment, "two-bins": _TwoBins, "uneven": _Uneven}
"""The sampler that has each of the faults."""


@dataclass(frozen=True, kw_only=True)
class LoaderScene:
    """A loader to audit: runs of some epochs by the real balls-in-bins loader, maybe with a planted fault.

    Args:
        mechanism: What is released of each batch: a :class:`privproj.Gaussian` with its noise multiplier.
        batches: ``t``, the number of batches of an epoch, from 1 to 1e6.
        epochs: The number of epochs of one run, from 1 to 1e6.
        fault: The fault that is planted, one of :data:`privproj.audit.faults.LOADER_FAULTS`. None: the loader as it is.
        seed: A whole number of at least 0 that makes the audit repeatable. None: every call draws anew.

    Raises:
        InvalidParameter: A number is outside its range, or ``fault`` is unknown.

    >>> from privproj import Gaussian
    >>> from privproj.audit import LoaderScene
    >>> scene = LoaderScene(mechanism=Gaussian(noise_multiplier=1.0), batches=4, epochs=3, seed=0)
    >>> [int(epoch.sum()) for run in scene.record(2) for epoch in run]
    [1, 1, 1, 1, 1, 1]
    """

    mechanism: Gaussian
    batches: int
    epochs: int
    fault: str | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        whole("batches", self.batches, "a whole number of batches from 1 to 1e6", 1, 10**6)
        whole("epochs", self.epochs, "a whole number of epochs from 1 to 1e6", 1, 10**6)
        if self.fault is not None and self.fault not in LOADER_FAULTS:
            raise unknown_name("fault", self.fault, "a fault", LOADER_FAULTS)

    @property
    def run(self) -> RunOptions:
        """One run, as the accountant is told of it."""
        return {"steps": self.epochs, "sampling": "balls-in-bins", "batches": self.batches}

    def record(self, runs: int) -> Array:
        """Let the real loader draw the batches of some runs, one after the other.

        Args:
            runs: The number of runs.

        Returns:
            How often the canary is in each batch, runs x epochs x batches.
        """
        optimizer, loader = real_run(
            nn.Linear(1, 1), TensorDataset(torch.arange(RECORDS)), self.mechanism.noise_multiplier, self.seed,
            epochs=runs * self.epochs, batches=BallsInBins(count=self.batches),
        )  # fmt: skip
        # Batches are looked at and not trained on.
        loader.keeps_empty, loader.on_open = True, lambda: None
        if self.fault is not None:
            _plant(loader, PLANTED[self.fault])
        found = []
        while len(loader):
            for (numbers,) in loader:
                found.append(int((numbers == 0).sum()))
                loader.taken = True
                loader.close()
                optimizer._spending.record()
        optimizer.close()
        return np.array(found, float).reshape(runs, self.epochs, self.batches)

    def scores(self, inside: int, outside: int) -> list[tuple[Array, Array]]:
        """Make runs with and without the canary, and score them in two ways.

        The first score is the log-likelihood ratio of what is claimed. The second one is that of a loader that prefers
        batches as much as the first half of the runs shows, on which no count of a verdict rests.

        Args:
            inside: The number of runs with the canary, at least 1.
            outside: The number of runs without it.

        Returns:
            For each way the scores of both arms, in nats: of the runs with the canary, and of the others.
        """
        present, rng = self.record(inside), np.random.default_rng(self.seed)
        seen = present[: inside // 2].sum((0, 1)) + 1.0
        laws = (np.full(self.batches, 1.0 / self.batches), seen / seen.sum())
        absent = np.zeros((self.epochs, self.batches))
        arms = [np.array([self.score_run(run, laws, rng) for run in present])]
        arms += [np.array([self.score_run(absent, laws, rng) for _ in range(outside)])]
        return [(arms[0][:, i], arms[1][:, i]) for i in range(len(laws))]

    def score_run(self, present: Array, laws: tuple[Array, ...], rng: np.random.Generator) -> list[float]:
        """Release the batches of one run, and score them for each law of the canary's batch.

        Args:
            present: How often the canary is in each batch, epochs x batches.
            laws: For each score the probability of every batch.
            rng: The generator of the noise.

        Returns:
            The log-likelihood ratios in nats, summed over the epochs of the run.
        """
        z = 1.0 / self.mechanism.mu
        released = present + z * rng.standard_normal(present.shape)
        # sum over epochs of ln sum_i p_i exp((y_i - 1/2)/z^2).
        exponents = (released - 0.5) / z**2
        top = exponents.max(1)
        weights = np.exp(exponents - top[:, None])
        return [float((top + np.log(weights @ law)).sum()) for law in laws]


def _plant(loader: PrivateLoader, kind: type[BinSampler]) -> None:
    """Let a loader draw from a faulty sampler."""
    real = loader.sampler

    def faulty(steps: int) -> Any:
        found = real(steps)
        found.batches.__class__ = kind
        return found

    loader.sampler = faulty


def judge_loader(
    scene: LoaderScene, scores: list[tuple[Array, Array]], delta: float, confidence: float, claim: float | None
) -> AuditVerdict:
    """Judge a claim, or the tool's own epsilon and its whole profile, by the scores of an audit of the loader.

    Args:
        scene: The audited loader.
        scores: The scores as :meth:`LoaderScene.scores` gives them, at least four in each arm.
        delta: The delta of the claim, above 0 and below 1.
        confidence: The probability that a true claim is not refuted, above 0 and below 1.
        claim: An epsilon of at least 0 at ``delta`` to be judged. None: the tool's own epsilon and profile are.

    Returns:
        The verdict by the score that shows most.

    Raises:
        InvalidParameter: A number is outside its range, or an arm has fewer than four scores.

    >>> from privproj import Gaussian
    >>> from privproj.audit import LoaderScene, judge_loader
    >>> scene = LoaderScene(mechanism=Gaussian(noise_multiplier=0.5), batches=2, epochs=2, seed=0)
    >>> scores = scene.scores(100, 100)
    >>> judge_loader(scene, scores, delta=1e-3, confidence=0.99, claim=0.01).verdict
    'refuted'
    """
    curve = None
    if claim is None:
        curve = ask_by_name(scene.mechanism, None, scene.run).curve()
        claim = own_epsilon(scene.mechanism, delta, **scene.run)
    # All scores share the error: 1 - c = n (1 - c)/n.
    each = 1.0 - (1.0 - confidence) / len(scores)
    found = [judge(*pair, delta=delta, confidence=each, claim=claim, curve=curve) for pair in scores]
    best = max(found, key=lambda verdict: (verdict.refuted, verdict.epsilon_lower))
    return replace(best, confidence=confidence)
