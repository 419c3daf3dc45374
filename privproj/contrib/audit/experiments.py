"""Audit the real release code and the real loader with a canary record.

The canary contributes a gradient of norm 1 in one direction, and all other records contribute nothing. So a release is
a known shift plus noise. The score of a run is the log-likelihood ratio of its releases with and without the canary,
under the claimed mechanism and conditional on the random projections. Typical bugs can be injected into the code, and
an audit of each bug must refute the claim.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from privproj.accounting.query import composition_of, epsilon
from privproj.contrib.audit.epsilon_lower import Array, AuditVerdict, assess_claim, auc, one_run_epsilon
from privproj.contrib.audit.faults import FAULTS, LOADER_FAULTS
from privproj.errors import InvalidParameterError, unknown_name
from privproj.mechanisms import M2, Gaussian
from privproj.parameters import check_parameters, integer, parameter, whole_number
from privproj.run import RunOptions
from privproj.training import BallsInBins, Method, PoissonBatches, make_private
from privproj.training.algorithms.projected import Projected
from privproj.training.batches import BinSampler, PrivateLoader
from privproj.training.generators import Streams, normal, pick_batches
from privproj.training.optimizer import PrivateOptimizer
from privproj.training.release import NoisySum

COLUMNS = 16  # outputs of the audited layer; any number >= 1 works

RECORDS = 8  # records in the dataset, all without gradient except the canary; any number >= 1 works


class _IsotropicNoise(Projected):
    """Injected bug: the projection of M2 is not orthonormal, but the noise stays isotropic."""

    def refresh(self, streams: Streams) -> None:
        super().refresh(streams)
        draw = normal(tuple(self.q.shape), self.q, streams.projection)
        self.q = draw / self.rank**0.5


class _ReusedProjection(Projected):
    """Injected bug: all releases use one projection."""

    def refresh(self, streams: Streams) -> None:
        if not hasattr(self, "q"):
            super().refresh(streams)
        self.fresh = True


class _ClipAfterMean(NoisySum):
    """Injected bug: the mean of the batch is clipped instead of each record."""

    def factors(self, squared: Tensor, finite: Tensor) -> Tensor:
        # The canary alone shifts the mean by C, as if the mean of a batch that the canary dominates were clipped to C.
        # The noise is that for clipped records, which is too small for a clipped mean.
        return torch.full_like(squared, float(RECORDS)) * super().factors(squared, finite)


# the view or the release code with a bug; other bugs are in the noise, the claim or the neighboring dataset
PLANTED = {"isotropic": _IsotropicNoise, "reused-projection": _ReusedProjection, "clip-after-mean": _ClipAfterMean}


def _real_run(
    module: nn.Module, data: TensorDataset, noise_multiplier: Any, insecure_seed: int | None, **options: Any
) -> tuple[PrivateOptimizer, PrivateLoader]:
    """Return the private optimizer and loader of a run of the real training code."""
    return make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.0), data_loader=DataLoader(data),
        max_grad_norm=1.0, noise_multiplier=noise_multiplier, insecure_seed=insecure_seed, **options,
    )[1:]  # fmt: skip


def _own_epsilon(mechanism: M2 | Gaussian, delta: float, **run: Any) -> float:
    """Return the epsilon that privproj computes for a run at ``delta``, rounded up."""
    return float(epsilon(mechanism, delta=delta, **run).value)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, kw_only=True)
class _Audited:
    """The claimed mechanism of an audit, and optionally a bug to inject into its code.

    Attributes:
        mechanism: The claimed mechanism.
        fault: The name of the injected bug; None for unchanged code.
        seed: The seed of the audit; None for fresh randomness.
        faults: The names of all bugs that can be injected.
    """

    mechanism: M2 | Gaussian
    fault: str | None = None
    seed: int | None = None
    faults: ClassVar[tuple[str, ...]]

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.fault is not None and self.fault not in self.faults:
            raise unknown_name("fault", self.fault, "fault", self.faults)

    @property
    def claimed(self) -> M2 | Gaussian:
        return self.mechanism


@dataclass(frozen=True, kw_only=True)
class AuditExperiment(_Audited):
    """An audit experiment for the real release code of a mechanism.

    A typical bug can be injected into the code.

    Args:
        mechanism: The claimed mechanism of each release: a :class:`privproj.Gaussian`, or a :class:`privproj.M2` with
            ``dim`` and ``rank``, with its noise multiplier.
        steps: Number of releases of one run, from 1 to 1e6.
        fault: The injected bug, one of :data:`privproj.contrib.audit.faults.FAULTS`. None: the code is unchanged.
        seed: A whole number of at least 0 that makes the scores repeatable. None: every call uses fresh randomness.

    Raises:
        InvalidParameterError: ``steps`` is outside its range, or ``fault`` is unknown or does not apply to the
            mechanism.

    >>> from privproj import Gaussian
    >>> from privproj.contrib.audit import AuditExperiment
    >>> experiment = AuditExperiment(mechanism=Gaussian(noise_multiplier=2.0), steps=3, seed=0)
    >>> inside, outside = experiment.scores(5, 4)
    >>> len(inside), len(outside)
    (5, 4)
    """

    steps: int = parameter(whole_number("an integer from 1 to 1e6", 1, 10**6), is_needed=True)
    faults = FAULTS

    def __post_init__(self) -> None:
        super().__post_init__()
        projected = ("isotropic", "reused-projection", "wrong-dimension")
        if self.fault in projected and not isinstance(self.mechanism, M2):
            raise InvalidParameterError(
                "fault", self.fault, "a bug of noise or clipping, because this mechanism does not project"
            )

    @property
    def claimed(self) -> M2 | Gaussian:
        """The mechanism whose epsilon is claimed.

        The bug "wrong-dimension" is a wrong claim: its dimension is multiplied by the number of outputs of the layer.
        """
        if self.fault == "wrong-dimension" and isinstance(self.mechanism, M2):
            return replace(self.mechanism, dim=(self.mechanism.dim or 1) * COLUMNS)
        return self.mechanism

    @property
    def run(self) -> RunOptions:
        """The run options with which privproj computes the claimed epsilon."""
        return {"steps": self.steps}

    def release_code(self, worker: int) -> NoisySum:
        """Return the real release code for one linear layer, with the injected bug.

        Args:
            worker: Number of the process, from 0 to 999, so that processes with one seed have different randomness.

        Returns:
            The object that clips, sums and adds noise, without a ledger.
        """
        dim = self.mechanism.dim or 1 if isinstance(self.mechanism, M2) else 16
        module = nn.Linear(dim, COLUMNS, bias=False, dtype=torch.float64)
        data = TensorDataset(torch.zeros(RECORDS, dim), torch.zeros(RECORDS))
        noise: Any = self.mechanism.noise_multiplier
        optimizer, _ = _real_run(
            module, data, 0.5 * noise if self.fault == "half-noise" else noise,
            None if self.seed is None else 1000 * self.seed + worker, steps=1, batches=PoissonBatches(rate=1.0),
            algorithm=Method("m2", self.mechanism.rank) if isinstance(self.mechanism, M2) else "dp-sgd",
        )  # fmt: skip
        noisy_sum = optimizer._noisy_sum
        # With this bug the projections of the first release are used for all releases.
        noisy_sum.record, noisy_sum.fresh = lambda: None, False
        if self.fault in PLANTED:
            kind = PLANTED[self.fault]
            planted: Any = noisy_sum if issubclass(kind, NoisySum) else noisy_sum.views[0]
            planted.__class__ = kind
        return noisy_sum

    def scores(self, inside: int, outside: int, worker: int = 0) -> tuple[Array, Array]:
        """Return the scores of runs with and without the canary.

        Args:
            inside: Number of runs with the canary.
            outside: Number of runs without it.
            worker: Number of the process, from 0 to 999, so that processes with one seed have different randomness.

        Returns:
            The log-likelihood ratios in nats: an array for the runs with the canary, and one for the other runs.
        """
        noisy_sum = self.release_code(worker)
        arms = [(1.0, inside), (-1.0 if self.fault == "replace-as-add-remove" else 0.0, outside)]
        scores = [np.array([self.score_of_run(noisy_sum, sign) for _ in range(count)]) for sign, count in arms]
        return scores[0], scores[1]

    def score_of_run(self, noisy_sum: NoisySum, sign: float) -> float:
        """Return the log-likelihood ratio of one run, summed over the releases.

        Args:
            noisy_sum: The release code.
            sign: 1 for a run with the canary, 0 for a run without it, and -1 for a run with a record of the opposite
                gradient.

        Returns:
            The log-likelihood ratio in nats.
        """
        (view,) = noisy_sum.views
        score, sigma = 0.0, 1.0 / self.mechanism.mu
        for _ in range(self.steps):
            noisy_sum.begin()
            x, g = self.canary(view)
            if sign:
                view.trained.keep(sign * g[None], x[None])
                noisy_sum.add(1)
            (mean,) = noisy_sum.release()
            shift = g[0][:, None] * (view.sketched(x) if isinstance(view, Projected) else x)
            # S is the released sum, m the shift by the canary, and sigma the standard deviation of the claimed noise.
            # (<S, m> - |m|^2/2)/sigma^2 with sigma = z C and C = 1.
            released = mean.view(shift.shape) * noisy_sum.plan.expected_batch
            score += float((released * shift).sum() - 0.5 * shift.square().sum()) / sigma**2
        return score

    def canary(self, view: Any) -> tuple[Tensor, Tensor]:
        """Return the input and the output gradient of the canary.

        Args:
            view: The audited layer, as the release code represents it.

        Returns:
            The input (1 x inputs) and the gradient of the output (1 x outputs), both of norm 1.
        """
        inputs = view.trained.shape[1]
        x, g = (torch.eye(1, width, dtype=torch.float64) for width in (inputs, COLUMNS))
        # The input has the first direction of a reused projection.
        return view.q[:, :1].T.clone() if self.fault == "reused-projection" else x, g


def assess_experiment(
    experiment: "AuditExperiment | LoaderExperiment",
    scores: tuple[Array, Array],
    delta: float,
    confidence: float,
    claim: float | None,
) -> AuditVerdict:
    """Return the verdict on a claimed epsilon from the scores of an experiment.

    Without a claimed epsilon, the verdict is on the epsilon and the privacy profile that privproj computes.

    Args:
        experiment: The audit experiment, for a mechanism or a loader.
        scores: The scores of runs with the canary and of runs without it, in the form of
            :meth:`AuditExperiment.scores`; at least four each. If each run has several scores, an array with one row
            for each score.
        delta: The delta of the claim, above 0 and below 1.
        confidence: The probability that a true claim is not refuted, above 0 and below 1.
        claim: The claimed epsilon at ``delta``, at least 0. None: the claim is privproj's epsilon and profile.

    Returns:
        The verdict. If each run has several scores, a verdict that refutes the claim is preferred, and then the verdict
        with the largest lower bound on epsilon.

    Raises:
        InvalidParameterError: A number is outside its range, or there are fewer than four scores with or without the
            canary.

    >>> from privproj import Gaussian
    >>> from privproj.contrib.audit import AuditExperiment, assess_experiment
    >>> experiment = AuditExperiment(mechanism=Gaussian(noise_multiplier=0.5), steps=1, seed=0)
    >>> scores = experiment.scores(200, 200)
    >>> assess_experiment(experiment, scores, delta=1e-3, confidence=0.99, claim=None).verdict
    'not refuted'
    >>> assess_experiment(experiment, scores, delta=1e-3, confidence=0.99, claim=0.01).verdict
    'refuted'
    """
    curve = None
    if claim is None:
        curve = composition_of(experiment.claimed, None, experiment.run).curve()
        claim = _own_epsilon(experiment.claimed, delta, **experiment.run)
    rows = [np.atleast_2d(arm) for arm in scores]
    if not 0 < len(rows[0]) == len(rows[1]):
        raise InvalidParameterError("scores", [arm.shape for arm in rows], "two arrays with the same number of rows")
    pairs = list(zip(*rows, strict=True))
    # The n scores of a run share the error probability: 1 - c = n (1 - c)/n.
    level_of_score = 1.0 - (1.0 - confidence) / len(pairs)
    verdicts = [assess_claim(*pair, delta=delta, confidence=level_of_score, claim=claim, curve=curve) for pair in pairs]
    best = max(verdicts, key=lambda verdict: (verdict.refuted, verdict.epsilon_lower))
    return replace(best, confidence=confidence)


# --- the loader -------------------------------------------------------------------------------------------
# Balls-in-bins epochs are private only if in each of them every record is assigned to a batch uniformly and
# independently. So epochs of the real loader are recorded. The release of each batch is a Gaussian sum to which only
# the canary contributes.


class _SameAssignment(BinSampler):
    """Injected bug: every epoch has the batches of the first epoch."""

    def members(self, epoch: int) -> list[np.ndarray]:
        return super().members(0)


class _TwoBins(BinSampler):
    """Injected bug: the canary is in its assigned batch and also in the next one."""

    def members(self, epoch: int) -> list[np.ndarray]:
        members = super().members(epoch)
        picked = next(i for i, numbers in enumerate(members) if 0 in numbers)
        behind = (picked + 1) % self.batches
        return [np.append(numbers, 0) if i == behind else numbers for i, numbers in enumerate(members)]


class _Uneven(BinSampler):
    """Injected bug: about half of the records of each epoch are moved to the first batch."""

    def picks(self, epoch: int) -> np.ndarray:
        return super().picks(epoch) * pick_batches(f"{self.secret(epoch)} coins", epoch, self.records, 2)


# the sampler with each bug
PLANTED_IN_LOADER = {"same-assignment": _SameAssignment, "two-bins": _TwoBins, "uneven": _Uneven}


@dataclass(frozen=True, kw_only=True)
class LoaderExperiment(_Audited):
    """An audit experiment for the real balls-in-bins loader.

    A typical bug can be injected into the loader.

    Args:
        mechanism: The mechanism of each batch: a :class:`privproj.Gaussian` with its noise multiplier.
        batches: ``t``, the number of batches of an epoch, from 1 to 1e6.
        epochs: The number of epochs of one run, from 1 to 1e6.
        fault: The injected bug, one of :data:`privproj.contrib.audit.faults.LOADER_FAULTS`. None: the loader is
            unchanged.
        seed: A whole number of at least 0 that makes the audit repeatable. None: every call uses fresh randomness.

    Raises:
        InvalidParameterError: A number is outside its range, or ``fault`` is unknown.

    >>> from privproj import Gaussian
    >>> from privproj.contrib.audit import LoaderExperiment
    >>> experiment = LoaderExperiment(mechanism=Gaussian(noise_multiplier=1.0), batches=4, epochs=3, seed=0)
    >>> [int(epoch.sum()) for run in experiment.record(2) for epoch in run]
    [1, 1, 1, 1, 1, 1]
    """

    batches: int = parameter(whole_number("an integer from 1 to 1e6", 1, 10**6), is_needed=True)
    epochs: int = parameter(whole_number("an integer from 1 to 1e6", 1, 10**6), is_needed=True)
    faults = LOADER_FAULTS

    @property
    def run(self) -> RunOptions:
        """The run options with which privproj computes the claimed epsilon."""
        return {"steps": self.epochs, "sampling": "balls-in-bins", "batches": self.batches}

    def record(self, runs: int) -> Array:
        """Return the number of copies of the canary in each batch of the real loader.

        Args:
            runs: The number of runs.

        Returns:
            The number of copies of the canary in each batch, of shape (runs, epochs, batches).
        """
        optimizer, loader = _real_run(
            nn.Linear(1, 1), TensorDataset(torch.arange(RECORDS)), self.mechanism.noise_multiplier, self.seed,
            epochs=runs * self.epochs, batches=BallsInBins(count=self.batches),
        )  # fmt: skip
        # Batches are recorded and not trained on.
        loader.keeps_empty, loader.on_open = True, lambda: None
        if self.fault is not None:
            loader.bins = PLANTED_IN_LOADER[self.fault]
        counts = []
        while len(loader):
            for batch in loader:
                counts.append(sum(int((group.columns[0] == 0).sum()) for group in batch._groups))
                loader.taken = True
                loader.close()
                optimizer._spending.record()
        optimizer.close()
        return np.array(counts, float).reshape(runs, self.epochs, self.batches)

    def scores(self, inside: int, outside: int) -> tuple[Array, Array]:
        """Return two scores for each run with and without the canary.

        The first score is the log-likelihood ratio for the claimed sampling. The second score is the ratio for a loader
        whose batch probabilities are estimated from the first half of the runs with the canary. A verdict counts errors
        on the second half only.

        Args:
            inside: The number of runs with the canary, at least 1.
            outside: The number of runs without it.

        Returns:
            The scores in nats of the runs with the canary, and of the other runs, each of shape (scores, runs).
        """
        present, rng = self.record(inside), np.random.default_rng(self.seed)
        counts = present[: inside // 2].sum((0, 1)) + 1.0
        distributions = (np.full(self.batches, 1.0 / self.batches), counts / counts.sum())
        absent = np.zeros((self.epochs, self.batches))
        arm = np.array([self.score_run(run, distributions, rng) for run in present])
        return arm.T, np.array([self.score_run(absent, distributions, rng) for _ in range(outside)]).T

    def score_run(self, present: Array, distributions: tuple[Array, ...], rng: np.random.Generator) -> list[float]:
        """Return the scores of one run with simulated releases.

        Args:
            present: How often the canary is in each batch, of shape (epochs, batches).
            distributions: One array for each score: the assumed probability that the canary is in each batch.
            rng: The generator of the noise.

        Returns:
            The log-likelihood ratios in nats, one for each score, summed over the epochs of the run.
        """
        z = 1.0 / self.mechanism.mu
        released = present + z * rng.standard_normal(present.shape)
        # sum over epochs of ln sum_i p_i exp((y_i - 1/2)/z^2).
        exponents = (released - 0.5) / z**2
        top = exponents.max(1)
        weights = np.exp(exponents - top[:, None])
        return [float((top + np.log(weights @ distribution)).sum()) for distribution in distributions]


# --- many canaries in one release -----------------------------------------------------------------------


def one_run(
    mechanism: Gaussian,
    canaries: int,
    guesses: int,
    delta: float,
    confidence: float,
    claim: float | None = None,
    seed: int | None = None,
) -> tuple[AuditVerdict, int]:
    """Return the verdict of an audit by one release with many canaries.

    Each canary is included with probability 1/2. The canaries have orthogonal gradients of norm 1, the clipping norm.
    Half of the guesses state that a canary is included, and half that it is excluded. A lower bound on epsilon follows
    from the number of right guesses.

    Args:
        mechanism: The claimed mechanism, a :class:`privproj.Gaussian` with its noise multiplier.
        canaries: Number of canaries, from 10 to 1e5.
        guesses: Number of guesses, from 2 to ``canaries``; an odd number is lowered by one.
        delta: The delta of the lower bound, above 0 and below 1; the caller checks it.
        confidence: The probability that the lower bound holds, above 0 and below 1; the caller checks it.
        claim: The claimed epsilon at ``delta``. None: the claim is privproj's epsilon.
        seed: A whole number of at least 0 that makes the audit repeatable. None: the randomness is fresh.

    Returns:
        The verdict, in which ``trials`` is the number of guesses, and the number of right guesses.

    Raises:
        InvalidParameterError: ``canaries`` or ``guesses`` is outside its range.

    >>> from privproj import Gaussian
    >>> from privproj.contrib.audit.experiments import one_run
    >>> verdict, right = one_run(Gaussian(noise_multiplier=0.1), 100, 40, delta=1e-5, confidence=0.95, seed=0)
    >>> verdict.epsilon_lower > 1.0, right
    (True, 40)
    """
    count = integer("canaries", canaries, "an integer from 10 to 1e5", 10, 10**5)
    guessed = integer("guesses", guesses, f"an integer from 2 to {count}, the number of canaries", 2, count) // 2 * 2
    rng = np.random.default_rng(seed)
    module = nn.Linear(1, count, bias=False, dtype=torch.float64)
    data = TensorDataset(torch.zeros(count, 1), torch.zeros(count))
    batches = PoissonBatches(rate=1.0)
    optimizer, _ = _real_run(module, data, mechanism.noise_multiplier, seed, steps=1, batches=batches)
    inside = rng.random(count) < 0.5
    noisy_sum = optimizer._noisy_sum
    (view,) = noisy_sum.views
    # Number of canaries that go through the release code together; it bounds the memory.
    for rows in torch.as_tensor(np.flatnonzero(inside)).split(256):
        g = nn.functional.one_hot(rows, count).double()
        view.trained.keep(g[:, None], torch.ones(len(rows), 1, 1, dtype=torch.float64))
        noisy_sum.add(len(rows))
    scores = noisy_sum.release()[0][:, 0].numpy()
    # The canaries with the highest scores are guessed to be included, those with the lowest scores to be excluded.
    order = inside[np.argsort(scores)]
    right = int((~order[: guessed // 2]).sum() + order[-guessed // 2 :].sum())
    # The p-value of Steinke, Nasr, Jagielski 2023 at this number of right guesses, and if all guesses are right.
    lower, most = (one_run_epsilon(count, guessed, hits, delta, confidence) for hits in (right, guessed))
    return AuditVerdict(
        auc=auc(scores[inside], scores[~inside]),
        epsilon_lower=lower,
        confidence=confidence,
        ceiling=most,
        trials=guessed,
        claimed_epsilon=_own_epsilon(mechanism, delta) if claim is None else claim,
        delta=delta,
    ), right
