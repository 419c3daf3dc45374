"""Compose a release of privproj with dp-accounting's own events, in one accountant.

The run has three parts: 1000 sampled steps with fresh projections, 200 sampled steps of plain DP-SGD, and one noisy
histogram of the whole data set.

Needs: the core only (dp-accounting comes with it).
Run:   python examples/with_dp_accounting.py
Prints the epsilon of each part and of all together (about 0.72, less than their sum). dp-accounting bounds its own
discretization but not its rounding; privproj.schedule composes with a proved error bound.
"""

from dp_accounting import ComposedDpEvent, DpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

from privproj import M2
from privproj.integrations.dp_accounting import ProjectionPLDAccountant, ReleaseDpEvent

DELTA = 1e-5


def sampled(event: DpEvent, rate: float, steps: int) -> DpEvent:
    """So many steps, each on a Poisson sample of the records."""
    return SelfComposedDpEvent(PoissonSampledDpEvent(rate, event), steps)


def epsilon_of(event: DpEvent) -> float:
    """Epsilon of one event, by an accountant of its own."""
    return ProjectionPLDAccountant(value_discretization_interval=1e-3).compose(event).get_epsilon(DELTA)


def main() -> None:
    parts = {
        "projected steps": sampled(ReleaseDpEvent(M2(dim=2048, rank=16, noise_multiplier=0.2)), 0.01, 1000),
        "plain DP-SGD steps": sampled(GaussianDpEvent(2.0), 0.01, 200),
        "one histogram": GaussianDpEvent(10.0),
    }
    for name, event in parts.items():
        print(f"{name}: epsilon = {epsilon_of(event)}")
    together = ComposedDpEvent(list(parts.values()))
    print(f"all together: epsilon = {epsilon_of(together)} at delta {DELTA:g}")


if __name__ == "__main__":
    main()
