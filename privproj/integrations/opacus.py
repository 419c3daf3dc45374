"""An accountant with Opacus' interface that knows what a projecting optimizer really released.

Importable without torch or Opacus. It gives the numbers of M2 only for steps of an optimizer that is a
:class:`ReleasesProjection`, which only an optimizer that projects may be; every other step is accounted as the
subsampled Gaussian mechanism that it is. Pass it to Opacus as ``PrivacyEngine.accountant``, or call :func:`register`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from privproj.errors import InvalidParameter
from privproj.mechanisms import M2, Gaussian, NoisyMechanism, real
from privproj.schedule import Phase, Schedule, phase_from, phase_of


class ReleasesProjection:
    """What an optimizer must be to be accounted as M2: it has a ``release``, the mechanism without its noise."""

    release: M2


Step = tuple[NoisyMechanism, float]


class ProjectionAccountant:
    """Opacus' ``IAccountant``: steps of equal noise, rate and release are kept together and composed jointly."""

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
    def phase(i: int, mechanism: NoisyMechanism, rate: float, steps: int) -> Phase:
        """One entry of the history as a phase."""
        return phase_of(mechanism, f"phase {i + 1}", steps=steps, sampling_rate=rate)

    def get_epsilon(self, delta: float, **_: Any) -> float:
        """Epsilon so far, rounded up; 0 before the first step."""
        return float(self.schedule().epsilon(delta=delta).value or 0.0) if self.history else 0.0

    def __len__(self) -> int:
        return sum(steps for _, _, steps in self.history)

    @classmethod
    def mechanism(cls) -> str:
        """The name under which Opacus knows it."""
        return "privproj"

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[Any], None]:
        """A hook for Opacus' optimizers: it looks at what the optimizer is, not at what it is called."""

        def hook(optimizer: Any) -> None:
            rate = sample_rate * getattr(optimizer, "accumulated_iterations", 1)
            noise = optimizer.noise_multiplier
            if isinstance(optimizer, ReleasesProjection):
                self.record(replace(optimizer.release, noise_multiplier=noise), rate)
            else:
                self.step(noise_multiplier=noise, sample_rate=rate)

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
        self.history = []
        for i, entry in enumerate(state_dict.get("phases", [])):
            question = phase_from(entry, {}, f"state_dict: phase {i + 1}").question
            self.record(question.mechanism, question.run.sampling_rate, question.run.steps)  # pyright: ignore


def register() -> None:
    """Make ``PrivacyEngine(accountant="privproj")`` work; needs Opacus."""
    from opacus.accountants import register_accountant  # pyright: ignore[reportMissingImports]

    register_accountant(ProjectionAccountant.mechanism(), ProjectionAccountant, force=True)  # pyright: ignore
