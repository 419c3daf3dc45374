"""The mechanism audit: a canary gradient through the real release code, the exact log-likelihood ratio as score.

All other records contribute nothing and the canary a gradient of norm ``C = 1`` in one direction, so what is released
is a known shift plus noise. The statistic is the log-likelihood ratio of the claimed mechanism given the projections.
The faults are the ways in which such code goes wrong. Each is planted in the real code and has to be found.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from privproj.accounting.question import ask_by_name, epsilon
from privproj.audit.epsilon_lower import Array, AuditVerdict, judge
from privproj.audit.faults import FAULTS
from privproj.errors import InvalidParameter, unknown_name
from privproj.mechanisms import M2, Gaussian
from privproj.training import Method, PoissonBatches, make_private
from privproj.training.algorithms.projected import Projected
from privproj.training.batches import PrivateLoader
from privproj.training.generators import Streams, normal
from privproj.training.optimizer import PrivateOptimizer
from privproj.training.release import PrivateRelease
from privproj.validation import whole

COLUMNS = 16
"""Outputs of the layer that is audited; any number of at least 1 does. Speed only."""

RECORDS = 8
"""Records in the data set, all but the canary without a gradient; any number of at least 1 does. Speed only."""


class _IsotropicNoise(Projected):
    """Planted: noise of one size on every coordinate of ``G A^T``, not on those of ``G Q``."""

    def refresh(self, streams: Streams) -> None:
        """Draw ``A^T`` itself in place of its orthonormal basis."""
        super().refresh(streams)
        draw = normal(tuple(self.q.shape), self.q, streams.projection)
        self.q = draw / self.rank**0.5


class _ReusedProjection(Projected):
    """Planted: one projection serves all releases."""

    def refresh(self, streams: Streams) -> None:
        """Draw a projection for the first release only."""
        if not hasattr(self, "q"):
            super().refresh(streams)
        self.fresh = True


class _ClipAfterMean(PrivateRelease):
    """Planted: the mean of the batch is clipped, and the noise is that of a mean of clipped records."""

    def factors(self, squared: Tensor, finite: Tensor) -> Tensor:
        """Clip no single record; the canary's own size stands for a mean clipped to ``C``."""
        return torch.full_like(squared, float(RECORDS)) * super().factors(squared, finite)


PLANTED = {"isotropic": _IsotropicNoise, "reused-projection": _ReusedProjection, "clip-after-mean": _ClipAfterMean}
"""The view or the release code that has a fault; the other faults are in the noise, the claim or the neighbour."""


def real_run(
    module: nn.Module, data: TensorDataset, noise_multiplier: Any, insecure_seed: int | None, **options: Any
) -> tuple[PrivateOptimizer, PrivateLoader]:
    """The private optimizer and the loader of a run by the real code with the clip 1, whose steps move nothing."""
    return make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.0), data_loader=DataLoader(data),
        max_grad_norm=1.0, noise_multiplier=noise_multiplier, insecure_seed=insecure_seed, **options,
    )[1:]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A mechanism to audit: a number of releases by the real release code, maybe with a planted fault.

    Args:
        mechanism: What is claimed of each release: a :class:`privproj.Gaussian`, or a :class:`privproj.M2` with ``dim``
            and ``rank``, with its noise multiplier.
        steps: Number of releases of one run, from 1 to 1e6.
        fault: The fault that is planted, one of :data:`privproj.audit.faults.FAULTS`. None: the code as it is.
        seed: A whole number of at least 0 that makes the scores repeatable. None: every call draws anew.

    Raises:
        InvalidParameter: ``steps`` is outside its range, or ``fault`` is unknown or does not apply to the mechanism.

    >>> from privproj import Gaussian
    >>> from privproj.audit import Scene
    >>> scene = Scene(mechanism=Gaussian(noise_multiplier=2.0), steps=3, seed=0)
    >>> inside, outside = scene.scores(5, 4)
    >>> len(inside), len(outside)
    (5, 4)
    """

    mechanism: M2 | Gaussian
    steps: int
    fault: str | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        whole("steps", self.steps, "a whole number of steps >= 1", 1, 10**6)
        if self.fault is not None and self.fault not in FAULTS:
            raise unknown_name("fault", self.fault, "a fault", FAULTS)
        projected = ("isotropic", "reused-projection", "wrong-dimension")
        if self.fault in projected and not isinstance(self.mechanism, M2):
            raise InvalidParameter("fault", self.fault, "a fault of noise or clipping, since nothing is projected")

    @property
    def claimed(self) -> M2 | Gaussian:
        """The mechanism that the accountant was told about; a wrong dimension makes it another one."""
        if self.fault == "wrong-dimension" and isinstance(self.mechanism, M2):
            return replace(self.mechanism, dim=(self.mechanism.dim or 1) * COLUMNS)
        return self.mechanism

    def claim(self, delta: float) -> float:
        """The tool's own epsilon for one run of what was claimed.

        Args:
            delta: The delta at which epsilon is asked for, above 0 and below 1.

        Returns:
            Epsilon, rounded up.
        """
        return float(epsilon(self.claimed, delta=delta, steps=self.steps).value)  # pyright: ignore[reportArgumentType]

    def release_code(self, worker: int) -> PrivateRelease:
        """Make the real release code for one linear layer, with the fault in it.

        Args:
            worker: Number of the process, from 0 to 999, so that processes with one seed draw differently.

        Returns:
            The release boundary of a run without a ledger.
        """
        dim = self.mechanism.dim or 1 if isinstance(self.mechanism, M2) else 16
        module = nn.Linear(dim, COLUMNS, bias=False, dtype=torch.float64)
        data = TensorDataset(torch.zeros(RECORDS, dim), torch.zeros(RECORDS))
        noise: Any = self.mechanism.noise_multiplier
        optimizer, _ = real_run(
            module, data, 0.5 * noise if self.fault == "half-noise" else noise,
            None if self.seed is None else 1000 * self.seed + worker, steps=1, batches=PoissonBatches(rate=1.0),
            algorithm=Method("m2", self.mechanism.rank) if isinstance(self.mechanism, M2) else "dp-sgd",
        )  # fmt: skip
        boundary = optimizer._boundary
        boundary.record = lambda: None
        if self.fault in PLANTED:
            kind = PLANTED[self.fault]
            planted: Any = boundary if issubclass(kind, PrivateRelease) else boundary.views[0]
            planted.__class__ = kind
        return boundary

    def scores(self, inside: int, outside: int, worker: int = 0) -> tuple[Array, Array]:
        """Make runs with and without the canary and score them.

        Args:
            inside: Number of runs with the canary.
            outside: Number of runs without it.
            worker: Number of the process, from 0 to 999, so that processes with one seed draw differently.

        Returns:
            The log-likelihood ratios of both arms, in nats: one array for the runs with the canary, one for the others.
        """
        boundary = self.release_code(worker)
        arms = [(1.0, inside), (-1.0 if self.fault == "replace-as-add-remove" else 0.0, outside)]
        found = [np.array([self.score_of_run(boundary, sign) for _ in range(count)]) for sign, count in arms]
        return found[0], found[1]

    def score_of_run(self, boundary: PrivateRelease, sign: float) -> float:
        """Make one run and score it.

        Args:
            boundary: The release code.
            sign: 1 with the canary, 0 without it, -1 with the canary's opposite.

        Returns:
            The log-likelihood ratio in nats, summed over the releases of the run.
        """
        return sum(self.score_of_release(boundary, sign) for _ in range(self.steps))

    def score_of_release(self, boundary: PrivateRelease, sign: float) -> float:
        """Make one release and score it by ``(<S, m> - |m|^2/2)/sigma^2``.

        ``S`` is the released sum, ``m`` the shift that the canary makes, ``sigma`` the deviation of the claimed noise.

        Args:
            boundary: The release code.
            sign: 1 with the canary, 0 without it, -1 with the canary's opposite.

        Returns:
            The log-likelihood ratio in nats.
        """
        boundary.begin()
        (view,) = boundary.views
        x, g = self.canary(view)
        if sign:
            view.tap.keep(view.tap.modules[0], x, sign * g)
            boundary.add(1)
            view.tap.clear()
        (mean,) = boundary.release()
        shift = g[0][:, None] * (view.sketched(x) if isinstance(view, Projected) else x)
        # (<S, m> - |m|^2/2)/sigma^2 with sigma = z C and C = 1.
        sigma = 1.0 / self.mechanism.mu
        released = mean.view(shift.shape) * boundary.plan.expected_batch
        return float((released * shift).sum() - 0.5 * shift.square().sum()) / sigma**2

    def canary(self, view: Any) -> tuple[Tensor, Tensor]:
        """One record's input and output gradient: a fixed direction, or one that a reused projection gave away.

        Args:
            view: The view of the audited layer.

        Returns:
            The input (1 x inputs) and the gradient of the output (1 x outputs), both of norm 1.
        """
        inputs = view.tap.shape[1]
        x = torch.zeros(1, inputs, dtype=torch.float64)
        x[0, 0] = 1.0
        if self.fault == "reused-projection":
            x = view.q[:, :1].T.clone()
        g = torch.zeros(1, COLUMNS, dtype=torch.float64)
        g[0, 0] = 1.0
        return x, g


def judge_scene(
    scene: Scene, scores: tuple[Array, Array], delta: float, confidence: float, claim: float | None
) -> AuditVerdict:
    """Judge a claim, or the tool's own epsilon and its whole profile, by the scores of an audit.

    Args:
        scene: The audited mechanism.
        scores: The scores of runs with the canary and of runs without it, as :meth:`Scene.scores` gives them; at least
            four each.
        delta: The delta of the claim, above 0 and below 1.
        confidence: The probability that a true claim is not refuted, above 0 and below 1.
        claim: An epsilon of at least 0 at ``delta`` to be judged. None: the tool's own epsilon and profile are.

    Returns:
        An :class:`AuditVerdict`.

    Raises:
        InvalidParameter: A number is outside its range, or an arm has fewer than four scores.

    >>> from privproj import Gaussian
    >>> from privproj.audit import Scene, judge_scene
    >>> scene = Scene(mechanism=Gaussian(noise_multiplier=0.5), steps=1, seed=0)
    >>> scores = scene.scores(200, 200)
    >>> judge_scene(scene, scores, delta=1e-3, confidence=0.99, claim=None).verdict
    'not refuted'
    >>> judge_scene(scene, scores, delta=1e-3, confidence=0.99, claim=0.01).verdict
    'refuted'
    """
    if claim is not None:
        return judge(*scores, delta=delta, confidence=confidence, claim=claim)
    curve = ask_by_name(scene.claimed, None, {"steps": scene.steps}).curve()
    return judge(*scores, delta=delta, confidence=confidence, claim=scene.claim(delta), curve=curve)
