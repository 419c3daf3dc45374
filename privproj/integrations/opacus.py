"""An accountant with Opacus' interface that knows what a projecting optimizer really released.

Importable without torch or Opacus. It gives the numbers of M2 only for steps of an optimizer that is a
:class:`ReleasesProjection`, which only an optimizer that projects may be; every other step is accounted as the
subsampled Gaussian mechanism that it is. Pass it to Opacus as ``PrivacyEngine.accountant``, or call :func:`register`.

All numbers are for Poisson sampling under add-remove, and what is known to be something else is refused, where
possible before the first step. Opacus tells an accountant nothing but a rate; what its ``make_private`` has made of
loader and optimizer is read off the call itself. Whoever hooks an optimizer up without ``make_private`` vouches for
Poisson sampling at the rate given.
"""

import inspect
import math
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from privproj.accounting.schedule import Phase, Schedule, phase_of
from privproj.assumptions import PLAN_FIXED_IN_ADVANCE, PUBLIC_RECORD_COUNT
from privproj.errors import InvalidParameter, Refused
from privproj.mechanisms import Gaussian, NoisyMechanism
from privproj.mechanisms.releases import ReleasesProjection as ReleasesProjection
from privproj.records.run_file import phase_from
from privproj.validation import probability, real

SAMPLER_GRID = 2.0**-24
"""Opacus' sampler compares 24-bit uniform numbers with the rate. Proof: C 2^24 rounded up is how many are below C."""

UNACCOUNTED = {
    "AdaClipDPOptimizer": (
        "adaptive clipping releases a noisy count that it divides by the batch's own size, which nothing hides, and "
        "below Opacus 1.6 the noise does not pay for the count either; use clipping='flat' or 'per_layer'"
    ),
    **dict.fromkeys(
        (
            "DistributedDPOptimizer",
            "SimpleDistributedPerLayerOptimizer",
            "DistributedDPOptimizerFastGradientClipping",
            "FSDPOptimizerFastGradientClipping",
        ),
        "Opacus' distributed sampler leaves out a worker's empty batches, and workers with one seed sample alike; "
        "train in one process, or with privproj.training.make_private",
    ),
}
"""Optimizers of Opacus whose steps are not the subsampled Gaussian mechanism, and what to do instead."""

OPACUS_OPTIONS = ("alphas", "eps_error", "delta_error")
"""What Opacus' own accountants take besides delta: how finely they compute, which is no question here."""


class ProjectionAccountant:
    """Opacus' ``IAccountant``: steps of equal noise, rate and release are kept together and composed jointly."""

    assumes: ClassVar[tuple[str, ...]] = (
        "Poisson sampling under the neighbouring relation add-remove",
        PUBLIC_RECORD_COUNT,
        PLAN_FIXED_IN_ADVANCE,
    )

    def __init__(self) -> None:
        self.history: list[tuple[NoisyMechanism, float, int]] = []

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """One step of an optimizer about which nothing else is known: a subsampled Gaussian."""
        self.record(Gaussian(noise_multiplier=noise_multiplier), sample_rate)

    def record(self, mechanism: NoisyMechanism, sample_rate: float, steps: int = 1) -> None:
        """``steps`` releases of a mechanism at this rate."""
        rate = real("sample_rate", sample_rate, "a rate above 0 and at most 1", 0.0, 1.0, open_low=True)
        if self.history and self.history[-1][:2] == (mechanism, rate):
            steps += self.history.pop()[2]
        self.history.append((mechanism, rate, steps))

    def schedule(self) -> Schedule:
        """All that was released, as phases."""
        if not self.history:
            raise InvalidParameter("history", "nothing", "at least one step")
        return Schedule(tuple(self.phase(i, *entry) for i, entry in enumerate(self.history)))

    @staticmethod
    def phase(i: int, mechanism: NoisyMechanism | float, rate: float, steps: int) -> Phase:
        """One entry of the history as a phase; a number is a noise multiplier, as Opacus' calibration writes it."""
        if not isinstance(mechanism, NoisyMechanism):
            mechanism, rate = Gaussian(noise_multiplier=mechanism), _sampler_rate(rate)
        return phase_of(mechanism, f"phase {i + 1}", steps=steps, sampling_rate=rate)

    def get_epsilon(self, delta: float, *, poisson: bool = True, **options: Any) -> float:
        """Epsilon so far, rounded up; 0 before the first step."""
        target = probability("delta", delta)
        if poisson is not True:
            raise _non_poisson_refusal()
        for name in options:
            if name not in OPACUS_OPTIONS:
                raise InvalidParameter(name, options[name], "no option but delta, poisson=True and Opacus' own")
        if not self.history:
            return 0.0
        found = self.schedule().epsilon(delta=target).value
        assert found is not None
        return found

    def __len__(self) -> int:
        return sum(steps for _, _, steps in self.history)

    @classmethod
    def mechanism(cls) -> str:
        """The name under which Opacus knows it."""
        return "privproj"

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[Any], None]:
        """A hook for Opacus' optimizers: it looks at what the optimizer is, not at what it is called.

        Called by Opacus' ``make_private``, it raises :class:`Refused` at once for a loader or an optimizer whose steps
        are not the subsampled Gaussian mechanism.
        """
        made = _variables_of_make_private()
        if made is not None:
            _check_optimizer(made["optimizer"])
            sample_rate = max(sample_rate, loader_rate(made["data_loader"]))

        def hook(optimizer: Any) -> None:
            _check_optimizer(optimizer)
            _check_accumulation(getattr(optimizer, "accumulated_iterations", 1))
            _check_plan(optimizer, sample_rate)
            noise = optimizer.noise_multiplier
            if isinstance(optimizer, ReleasesProjection):
                self.record(replace(optimizer.release, noise_multiplier=noise), sample_rate)
            else:
                self.step(noise_multiplier=noise, sample_rate=sample_rate)

        return hook

    def state_dict(self, destination: dict[str, Any] | None = None) -> dict[str, Any]:
        """The history as plain data."""
        state = {} if destination is None else destination
        phases = [phase.as_dict() for phase in self.schedule().phases] if self.history else []
        state.update(mechanism=self.mechanism(), phases=phases)
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from :meth:`state_dict`; raises :class:`InvalidParameter` for the state of another accountant."""
        if state_dict.get("mechanism") != self.mechanism():
            raise InvalidParameter("mechanism", state_dict.get("mechanism"), f"the state of {self.mechanism()}")
        phases = state_dict.get("phases")
        if not isinstance(phases, list):
            raise InvalidParameter("phases", phases, f"the list of phases in a state of {self.mechanism()}")
        found = [self.restored(i, entry) for i, entry in enumerate(phases)]
        self.history = []
        for entry in found:
            self.record(*entry)

    def restored(self, i: int, entry: Any) -> tuple[NoisyMechanism, float, int]:
        """One entry of the history from its phase; one that this accountant cannot have written is refused."""
        where = f"state_dict: phase {i + 1}"
        question = phase_from(entry, {}, where).question
        mechanism, run = question.mechanism, question.run
        if not isinstance(mechanism, NoisyMechanism):
            raise InvalidParameter(f"{where}: mechanism", mechanism.name, "a mechanism with a noise multiplier")
        written = self.phase(i, mechanism, run.sampling_rate, run.steps).as_dict()
        for key in sorted({*written, *entry} - {"name"}):
            if _as_json_data(entry.get(key)) != _as_json_data(written.get(key)):
                raise InvalidParameter(
                    f"{where}: {key}", entry.get(key), f"{written.get(key)}, as this accountant has it"
                )
        return mechanism, run.sampling_rate, run.steps


def _as_json_data(value: Any) -> Any:
    """A value as JSON would give it back."""
    return [_as_json_data(part) for part in value] if isinstance(value, list | tuple) else value


def _non_poisson_refusal() -> Refused:
    """What is said of shuffled and ordered batches."""
    return Refused(
        "poisson_sampling=False has no amplification theorem here: batches of a shuffled or ordered loader are no "
        "Poisson samples; use poisson_sampling=True"
    )


def _variables_of_make_private() -> dict[str, Any] | None:
    """The local variables of Opacus' ``make_private`` that is being called; None outside of one."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == "make_private" and frame.f_globals.get("__name__") == "opacus.privacy_engine":
            return frame.f_locals
        frame = frame.f_back
    return None


def _check_optimizer(optimizer: Any) -> None:
    """Raise :class:`Refused` for an optimizer whose steps are not the subsampled Gaussian mechanism."""
    for kind in type(optimizer).__mro__:
        if kind.__name__ in UNACCOUNTED:
            raise Refused(f"{kind.__name__} is not accounted: {UNACCOUNTED[kind.__name__]}")


def _check_accumulation(batches: int) -> None:
    """Raise :class:`Refused` for a step on several batches: a record in two of them adds twice the clip."""
    if batches != 1:
        raise Refused(
            f"a step on {batches} accumulated batches is no Poisson sample: a record may be in several of them; use "
            "one batch per step, in parts by Opacus' BatchMemoryManager"
        )


def loader_rate(loader: Any) -> float:
    """The rate at which Opacus' loader includes a record; raises :class:`Refused` for any other loader."""
    from opacus.data_loader import DPDataLoader  # pyright: ignore[reportMissingImports]

    if not isinstance(loader, DPDataLoader):
        raise _non_poisson_refusal()
    if getattr(loader, "distributed", False):
        raise Refused(f"a distributed loader is not accounted: {UNACCOUNTED['DistributedDPOptimizer']}")
    if getattr(loader.collate_fn, "rand_on_empty", False):
        raise Refused(
            "rand_on_empty=True puts a random record into an empty batch, so that one record changes the sum by up to "
            "twice the clip; use rand_on_empty=False"
        )
    return _sampler_rate(loader.sample_rate)


def _sampler_rate(rate: float) -> float:
    """The probability that a uniform number with 24 bits is below ``rate``, in single or double precision."""
    rate = real("sample_rate", rate, "a rate above 0 and at most 1", 0.0, 1.0, open_low=True)
    single = struct.unpack("f", struct.pack("f", rate))[0]
    return min(1.0, max(math.ceil(rate / SAMPLER_GRID), math.ceil(single / SAMPLER_GRID)) * SAMPLER_GRID)


def _check_plan(optimizer: Any, rate: float) -> None:
    """Raise :class:`Refused` for an optimizer of this package that samples otherwise than is accounted."""
    plan = getattr(optimizer, "plan", None)
    if plan is None:
        return
    if plan.relation == "replace" or (plan.sampling != "poisson" and plan.sampling_rate < 1.0):
        raise Refused(
            f"sampling={plan.sampling} with relation={plan.relation} is not accounted here; ask the optimizer's epsilon"
        )
    if rate < plan.sampling_rate:
        raise InvalidParameter("sample_rate", rate, f"the optimizer's rate {plan.sampling_rate}")


def register() -> None:
    """Make ``PrivacyEngine(accountant="privproj")`` work; needs Opacus."""
    from opacus.accountants import register_accountant  # pyright: ignore[reportMissingImports]

    register_accountant(ProjectionAccountant.mechanism(), ProjectionAccountant, force=True)  # pyright: ignore
