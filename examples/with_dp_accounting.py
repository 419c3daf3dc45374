"""Compose a release of privproj with events of dp-accounting in one accountant.

The run has three parts: 1000 sampled steps with fresh projections, 200 sampled steps of DP-SGD, and one noisy histogram
of the whole dataset.

Needs: no extra.
Run:   python examples/with_dp_accounting.py
Prints the epsilon of each part and of the whole run (about 0.72). The accountant of dp-accounting has no proved bound
on its rounding errors. For proved bounds, compose the run with privproj.schedule.
"""

from dp_accounting import ComposedDpEvent, DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from privproj import M2
from privproj.integrations.dp_accounting import ProjectionPLDAccountant, ReleaseDpEvent

DELTA = 1e-5


def sampled(event: DpEvent, rate: float, steps: int) -> DpEvent:
    """Return the event of several steps, each on a Poisson sample of the records."""
    return SelfComposedDpEvent(PoissonSampledDpEvent(rate, event), steps)


def epsilon_of(event: DpEvent) -> float:
    """Return the epsilon of one event, computed by a separate accountant."""
    return ProjectionPLDAccountant(value_discretization_interval=1e-3).compose(event).get_epsilon(DELTA)


def main() -> None:
    parts = {
        "projected steps": sampled(ReleaseDpEvent(M2(dim=2048, rank=16, noise_multiplier=0.2)), 0.01, 1000),
        "DP-SGD steps": sampled(GaussianDpEvent(2.0), 0.01, 200),
        "one histogram": GaussianDpEvent(10.0),
    }
    for name, event in parts.items():
        print(f"{name}: epsilon = {epsilon_of(event)}")
    together = ComposedDpEvent(list(parts.values()))
    print(f"whole run: epsilon = {epsilon_of(together)} at delta {DELTA:g}")


if __name__ == "__main__":
    main()
