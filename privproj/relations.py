"""Neighbouring relations and sampling schemes: what a sensitivity and a guarantee are measured against."""

from enum import StrEnum


class NeighbouringRelation(StrEnum):
    """Which pairs of data sets count as neighbours.

    A sum of per-example vectors clipped to norm ``C`` has sensitivity ``C`` under add-remove and
    zero-out, ``2 C`` under replace.
    """

    ADD_REMOVE = "add-remove"
    REPLACE = "replace"
    ZERO_OUT = "zero-out"

    @property
    def clip_factor(self) -> float:
        """Sensitivity divided by the clipping norm."""
        return 2.0 if self is NeighbouringRelation.REPLACE else 1.0


class Sampling(StrEnum):
    """How a step picks its batch: Poisson, a fixed size without replacement, or a partition of the data per epoch."""

    POISSON = "poisson"
    FIXED = "fixed"
    PARTITION = "partition"
