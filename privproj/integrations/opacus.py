"""Provide an accountant for Opacus that supports projected optimizers.

Steps of an optimizer made by :func:`privproj.training.make_private` are accounted with the mechanism of the optimizer,
such as M2. Every other step is accounted as the subsampled Gaussian mechanism. Pass the accountant to Opacus as
``PrivacyEngine.accountant``, or call :func:`register`.

All results assume Poisson sampling under add-remove. In Opacus' ``make_private``, the accountant rejects other loaders
and unsupported optimizers. If you attach an optimizer without ``make_private``, you are responsible for Poisson
sampling at the given rate.
"""

import inspect
import math
import struct
from collections.abc import Callable
from typing import Any, ClassVar

from privproj.accounting.calibration import sigma
from privproj.accounting.schedule import Composition, Phase, phase_of
from privproj.assumptions import Requirement
from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.io.run_file import phase_from
from privproj.mechanisms import Gaussian, Mechanism, NoisyMechanism
from privproj.parameters import integer, probability, real
from privproj.training.plan import GRID, Plan

__all__ = ["ProjectionAccountant", "get_noise_multiplier", "loader_rate", "register"]

# why distributed training with Opacus is not supported, and the remedy
DISTRIBUTED = (
    "its workers may skip empty batches or sample the same records. Train in one process, or use "
    "privproj.training.make_private"
)

# soundness: parts of the names of Opacus optimizers whose steps are not the subsampled Gaussian mechanism, with reasons
UNACCOUNTED = {
    "AdaClip": (
        "adaptive clipping divides a noisy count by the private size of the batch, and before Opacus 1.6 the noise "
        "does not account for the count. Use clipping='flat' or 'per_layer'"
    ),
    "Distributed": DISTRIBUTED,
    "FSDP": DISTRIBUTED,
}

# why batches of a shuffled or ordered loader are not supported, and the remedy
NON_POISSON = (
    "poisson_sampling=False is not supported, because shuffled or ordered batches are not Poisson samples. Use "
    "poisson_sampling=True, account for one release per epoch (`privproj epsilon ... --sampling partition`), or train "
    'with privproj.training.make_private(..., batches="balls-in-bins")'
)


class ProjectionAccountant:
    """An accountant for Opacus that supports the projected optimizers of privproj.

    Steps with equal noise, sampling rate and mechanism are composed as one phase.

    Attributes:
        requirements: The assumptions of every result, as sentences.
        history: The releases in order, as tuples of mechanism, sampling rate and number of steps. A noise multiplier in
            place of a mechanism, as Opacus' calibration writes it, means the Gaussian mechanism.

    >>> from privproj.integrations.opacus import ProjectionAccountant
    >>> accountant = ProjectionAccountant()
    >>> for _ in range(20):
    ...     accountant.step(noise_multiplier=1.0, sample_rate=0.01)
    >>> len(accountant), round(accountant.get_epsilon(1e-5), 2)
    (20, 0.45)
    """

    requirements: ClassVar[tuple[str, ...]] = (
        "Poisson sampling under the neighboring relation add-remove",
        Requirement.PUBLIC_DATASET_SIZE,
        Requirement.FIXED_SCHEDULE,
    )

    def __init__(self) -> None:
        self.history: list[tuple[Mechanism | float, float, int]] = []

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Record one step of the subsampled Gaussian mechanism.

        Args:
            noise_multiplier: ``z``, the standard deviation of the noise over the clipping norm, from 1e-12 to 1e12.
            sample_rate: The probability that a record is in the batch, above 0 and at most 1.

        Raises:
            InvalidParameterError: A number is out of range.
        """
        self.record(Gaussian(noise_multiplier=noise_multiplier), sample_rate)

    def record(self, mechanism: NoisyMechanism, sample_rate: float, steps: int = 1) -> None:
        """Record releases of a mechanism at one sampling rate.

        Args:
            mechanism: The released mechanism with its noise multiplier.
            sample_rate: The probability that a record is in a batch, above 0 and at most 1.
            steps: The number of releases, at least 1.

        Raises:
            InvalidParameterError: ``sample_rate`` or ``steps`` is out of range.
        """
        steps = integer("steps", steps, "an integer >= 1")
        rate = real("sample_rate", sample_rate, "a number above 0 and at most 1", 0.0, 1.0, open_low=True)
        if self.history and self.history[-1][:2] == (mechanism, rate):
            steps += self.history.pop()[2]
        self.history.append((mechanism, rate, steps))

    def schedule(self) -> Composition:
        """Return all releases as phases of one schedule.

        Returns:
            A :class:`privproj.schedule.Composition`.

        Raises:
            InvalidParameterError: There is no release, or an entry of the history is invalid.
        """
        if not self.history:
            raise InvalidParameterError("history", "nothing", "at least one step", "no step was recorded")
        return Composition(tuple(_phase_of(i, *entry) for i, entry in enumerate(self.history)))

    def get_epsilon(
        self, delta: float, *, poisson: bool = True, alphas: Any = None, eps_error: Any = None, delta_error: Any = None
    ) -> float:
        """Return the epsilon of all releases, rounded up; 0 before the first step.

        Args:
            delta: The delta of the guarantee, above 0 and below 1.
            poisson: Must be True, because only Poisson sampling is supported.
            alphas: Ignored; an argument of Opacus' accountants.
            eps_error: Ignored; an argument of Opacus' accountants.
            delta_error: Ignored; an argument of Opacus' accountants.

        Returns:
            Epsilon, or ``inf`` if the bound proves no finite epsilon.

        Raises:
            InvalidParameterError: ``delta`` is out of range.
            UnsupportedError: ``poisson`` is not True.
            ConvergenceError: A quadrature or a search did not converge.
            PrecisionError: Delta is below the rounding error of the composition.
        """
        target = probability("delta", delta)
        if poisson is not True:
            raise UnsupportedError(NON_POISSON)
        epsilon = self.schedule().epsilon(delta=target).value if self.history else 0.0
        assert epsilon is not None
        return epsilon

    def __len__(self) -> int:
        return sum(steps for _, _, steps in self.history)

    @classmethod
    def mechanism(cls) -> str:
        """Return the name of this accountant in Opacus.

        Returns:
            The text "privproj".
        """
        return "privproj"

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[Any], None]:
        """Return a hook for Opacus' optimizers that records each step.

        Steps of a privproj optimizer are recorded as the mechanism of its plan, other steps as the Gaussian mechanism.
        If Opacus' ``make_private`` calls this method, an unsupported loader or optimizer is rejected immediately.

        Args:
            sample_rate: The probability that a record is in a batch, above 0 and at most 1.

        Returns:
            A function of the optimizer that records one step; Opacus calls it after every step.

        Raises:
            UnsupportedError: The loader does not draw Poisson samples, or the steps of the optimizer are not supported.
        """
        variables = _variables_of_make_private()
        if variables is not None:
            _check_optimizer(variables["optimizer"])
            sample_rate = max(sample_rate, loader_rate(variables["data_loader"]))

        def hook(optimizer: Any) -> None:
            _check_optimizer(optimizer)
            batches = getattr(optimizer, "accumulated_iterations", 1)
            if batches != 1:
                raise UnsupportedError(
                    f"a step on {batches} accumulated batches is not a Poisson sample. Use one batch per step, and "
                    "split large batches with Opacus' BatchMemoryManager"
                )
            plan = getattr(optimizer, "plan", None)
            if isinstance(plan, Plan):
                _check_plan(plan, sample_rate)
                self.record(plan.mechanism, sample_rate)
            else:
                self.step(noise_multiplier=optimizer.noise_multiplier, sample_rate=sample_rate)

        return hook

    def state_dict(self, destination: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the history as plain data for JSON.

        Args:
            destination: A dictionary to write into; None for a new one.

        Returns:
            The dictionary, with the keys ``mechanism`` and ``phases``.
        """
        state = {} if destination is None else destination
        state.update(mechanism=self.mechanism(), phases=self.schedule().as_dict()["phase"] if self.history else [])
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Replace the history by a saved one.

        Args:
            state_dict: The dictionary that :meth:`state_dict` returned.

        Raises:
            InvalidParameterError: The state is from another accountant, or is not one that :meth:`state_dict` returns.
        """
        if state_dict.get("mechanism") != self.mechanism():
            remedy = "for a state of Opacus with Poisson batches, assign its history instead"
            raise InvalidParameterError(
                "mechanism", state_dict.get("mechanism"), f"the state of {self.mechanism()}", remedy
            )
        phases = state_dict.get("phases")
        if not isinstance(phases, list):
            raise InvalidParameterError("phases", phases, f"the list of phases in a state of {self.mechanism()}")
        saved_phases = [phase_from(entry, {}, f"state_dict: phase {i + 1}") for i, entry in enumerate(phases)]
        for i, phase in enumerate(saved_phases):
            run = {"steps": phase.run.steps, "sampling_rate": phase.run.sampling_rate}
            if phase != phase_of(phase.mechanism, phase.name, **run):
                raise InvalidParameterError(
                    f"state_dict: phase {i + 1}", phases[i], "a phase as this accountant writes it"
                )
        self.history = [(phase.mechanism, phase.run.sampling_rate, phase.run.steps) for phase in saved_phases]


def _variables_of_make_private() -> dict[str, Any] | None:
    """Return the local variables of Opacus' running ``make_private``; None outside it."""
    # Opacus only passes a sampling rate, so the loader and the optimizer are read from the caller.
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "make_private" and frame.f_globals.get("__name__") == "opacus.privacy_engine":
            return frame.f_locals
        frame = frame.f_back
    return None


def _check_optimizer(optimizer: Any) -> None:
    """Reject Opacus optimizers whose steps are not the subsampled Gaussian mechanism."""
    for kind in type(optimizer).__mro__:
        for word, why in UNACCOUNTED.items():
            if word in kind.__name__:
                raise UnsupportedError(f"{kind.__name__} is not supported: {why}")


def loader_rate(loader: Any) -> float:
    """Return the exact probability that Opacus' loader puts a record into a batch.

    Args:
        loader: A loader that Opacus made for Poisson sampling.

    Returns:
        The probability, above 0 and at most 1. It is the sampling rate of the loader, rounded up to a multiple of
        ``2^-24``, because the loader compares the rate with 24-bit random numbers.

    Raises:
        UnsupportedError: The loader is of another kind, is distributed, or puts a random record into an empty batch.

    >>> import torch
    >>> from opacus.data_loader import DPDataLoader
    >>> from torch.utils.data import TensorDataset
    >>> from privproj.integrations.opacus import loader_rate
    >>> loader_rate(DPDataLoader(TensorDataset(torch.zeros(100, 2)), sample_rate=0.25))
    0.25
    """
    from opacus.data_loader import DPDataLoader  # pyright: ignore[reportMissingImports]

    if not isinstance(loader, DPDataLoader):
        raise UnsupportedError(NON_POISSON)
    if getattr(loader, "distributed", False):
        raise UnsupportedError(f"a distributed loader is not supported: {DISTRIBUTED}")
    if getattr(loader.collate_fn, "rand_on_empty", False):
        raise UnsupportedError(
            "rand_on_empty=True is not supported, because it doubles the sensitivity. Use rand_on_empty=False"
        )
    return _sampler_rate(loader.sample_rate)


def _phase_of(i: int, mechanism: Mechanism | float, rate: float, steps: int) -> Phase:
    """Return an entry of the accountant's history as the phase number ``i + 1``."""
    if not isinstance(mechanism, Mechanism):
        mechanism, rate = Gaussian(noise_multiplier=mechanism), _sampler_rate(rate)
    return phase_of(mechanism, f"phase {i + 1}", steps=steps, sampling_rate=rate)


def _sampler_rate(rate: float) -> float:
    """Return an upper bound of the sampling probability of Opacus' loader at a rate."""
    rate = real("sample_rate", rate, "a number above 0 and at most 1", 0.0, 1.0, open_low=True)
    single = struct.unpack("f", struct.pack("f", rate))[0]
    # ceil(rate 2^24)/2^24, the fraction of 24-bit numbers below the rate; the larger value of both precisions
    return min(1.0, math.ceil(max(rate, single) / GRID) * GRID)


def _check_plan(plan: Plan, rate: float) -> None:
    """Raise an error unless the accountant supports the plan of a privproj optimizer.

    The plan must have Poisson sampling of single records, at most at ``rate``, and a fixed clipping norm.
    """
    plain = (plan.sampling == "poisson" and plan.max_batch_size is None) or plan.sampling_rate == 1.0
    if not plain or plan.relation == "replace" or plan.adaptive_clipping is not None or plan.group_size > 1:
        settings = f"sampling={plan.sampling}, relation={plan.relation}, group_size={plan.group_size}"
        settings += "" if plan.max_batch_size is None else f", max_batch_size={plan.max_batch_size}"
        settings += "" if plan.adaptive_clipping is None else ", adaptive clipping"
        raise UnsupportedError(
            "this accountant supports Poisson sampling of single records with a constant clipping norm only, got "
            f"{settings}. Read the epsilon of the optimizer instead"
        )
    if rate < plan.sampling_rate:
        raise InvalidParameterError("sample_rate", rate, f"{plan.sampling_rate}, the rate of the optimizer")


def get_noise_multiplier(
    *,
    target_epsilon: float,
    target_delta: float,
    sample_rate: float,
    epochs: float | None = None,
    steps: int | None = None,
    accountant: Any = None,
    epsilon_tolerance: Any = None,
) -> float:
    """Return the smallest noise multiplier of DP-SGD that meets a target.

    The arguments are those of ``opacus.accountants.utils.get_noise_multiplier``.

    Args:
        target_epsilon: The target epsilon, above 0 and at most 1e9.
        target_delta: The target delta, above 0 and below 1.
        sample_rate: The rate of Opacus' loader, ``1 / len(data_loader)``, above 0 and at most 1.
        epochs: The number of passes, each of ``1 / sample_rate`` steps, in total rounded up; above 0.
        steps: The number of steps in place of ``epochs``, at least 1.
        accountant: Ignored; an argument of Opacus' function.
        epsilon_tolerance: Ignored; an argument of Opacus' function.

    Returns:
        The noise multiplier, rounded up. :meth:`ProjectionAccountant.get_epsilon` of such a run is at most
        ``target_epsilon``.

    Raises:
        InvalidParameterError: A value is out of range, both or none of ``epochs`` and ``steps`` are given, or no noise
            multiplier up to 1e12 meets the target.

    >>> from privproj.integrations.opacus import get_noise_multiplier
    >>> round(get_noise_multiplier(target_epsilon=3.0, target_delta=1e-5, sample_rate=1 / 16, epochs=3), 4)
    1.0377
    """
    if (epochs is None) == (steps is None):
        count = "neither" if steps is None else "both"
        raise InvalidParameterError("steps", count, "given without epochs, or epochs without steps")
    rate = _sampler_rate(sample_rate)
    if steps is None:
        passes = real("epochs", epochs, "a number above 0 and at most 1e9", 0.0, 1e9, open_low=True)
        # 1e-12 is above the rounding error of 1/len(loader), so that whole numbers of passes are not rounded up
        steps = max(1, math.ceil(passes / sample_rate * (1.0 - 1e-12)))
    noise = sigma(Gaussian(), epsilon=target_epsilon, delta=target_delta, sampling_rate=rate, steps=steps).value
    if noise is None:
        expected = "an epsilon that a noise multiplier of at most 1e12 meets"
        raise InvalidParameterError("target_epsilon", target_epsilon, expected)
    return noise


def register() -> None:
    """Register the accountant for ``PrivacyEngine(accountant="privproj")``.

    The function needs Opacus.

    >>> from opacus.accountants import create_accountant
    >>> from privproj.integrations.opacus import register
    >>> register()
    >>> type(create_accountant("privproj")).__name__
    'ProjectionAccountant'
    """
    from opacus.accountants import register_accountant  # pyright: ignore[reportMissingImports]

    register_accountant(ProjectionAccountant.mechanism(), ProjectionAccountant, force=True)  # pyright: ignore
