"""Find the Renyi DP curve of a mechanism and its run."""

from dataclasses import replace

from privproj.accounting.phase import Phase
from privproj.errors import UnsupportedError
from privproj.mechanisms.registry import renyi_bound
from privproj.profiles.rdp import BestCurve, RenyiCurve


def renyi_curve(phase: Phase) -> tuple[Phase, RenyiCurve | BestCurve]:
    """Return a phase and its Renyi DP curve.

    If ``phase`` has no Renyi bound, the returned phase has the Renyi bound of its mechanism.

    Raises:
        UnsupportedError: The mechanism has no Renyi bound, or none that supports the sampling.
    """
    if not isinstance(phase.release()[0], RenyiCurve | BestCurve):
        bound = renyi_bound(type(phase.mechanism))
        if bound is None:
            raise UnsupportedError(
                f"Renyi accounting is not supported for {phase.mechanism.name} ({phase.bound.name}). Use a mechanism "
                "with a Renyi bound, such as gaussian or m2"
            )
        phase = replace(phase, bound=bound, run=replace(phase.run, split=None, tau=None))
    curve = phase.curve()
    if not isinstance(curve, RenyiCurve | BestCurve):
        raise UnsupportedError("max_batch_size is not supported by Renyi accounting. Omit max_batch_size")
    return phase, curve
