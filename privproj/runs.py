"""A run: how many releases, how each picked its batch, and what neighbours are."""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, NotRequired, TypedDict, TypeVar

from privproj.errors import InvalidParameter, Refused
from privproj.mechanisms import real, whole
from privproj.relations import NeighbouringRelation, Sampling

RelationName = Literal["add-remove", "replace", "zero-out"]
SamplingName = Literal["poisson", "fixed", "partition"]


class RunOptions(TypedDict):
    """What every accounting call accepts besides the mechanism and the target."""

    steps: NotRequired[int]
    sampling_rate: NotRequired[float]
    sampling: NotRequired[SamplingName | None]
    relation: NotRequired[RelationName | None]


@dataclass(frozen=True, kw_only=True)
class Run:
    """``steps`` adaptive releases, each on a batch sampled at rate ``q = sampling_rate``.

    At ``q = 1`` the sampling scheme has no effect and is None. Below, it is Poisson unless said otherwise:
    Poisson goes with add-remove and zero-out, a fixed batch size with replace; other pairs are refused.
    """

    steps: int = 1
    sampling_rate: float = 1.0
    sampling: Sampling | None = None
    relation: NeighbouringRelation | None = None

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        set_field(self, "steps", whole("steps", self.steps, "a whole number of steps >= 1"))
        rate = real("sampling_rate", self.sampling_rate, "a rate above 0 and at most 1", 0.0, 1.0, open_low=True)
        set_field(self, "sampling_rate", rate)
        if rate == 1.0:
            set_field(self, "sampling", None)
        else:
            set_field(self, "sampling", named(Sampling, "sampling", self.sampling or "poisson"))
        fallback = "replace" if self.sampling is Sampling.FIXED else "add-remove"
        set_field(self, "relation", named(NeighbouringRelation, "relation", self.relation or fallback))
        if self.sampling is Sampling.PARTITION:
            raise InvalidParameter(
                "sampling_rate", self.sampling_rate, "rate 1 with partition sampling", "count one step per epoch"
            )

    def check_pair(self) -> None:
        """Raise :class:`Refused` for a sampling scheme and relation that no amplification theorem here covers."""
        pairs = {
            None: tuple(NeighbouringRelation),
            Sampling.POISSON: (NeighbouringRelation.ADD_REMOVE, NeighbouringRelation.ZERO_OUT),
            Sampling.FIXED: (NeighbouringRelation.REPLACE,),
        }
        if self.relation not in pairs[self.sampling]:
            raise Refused(
                f"no amplification theorem here for sampling={self.sampling} with relation={self.relation}; "
                "supported below rate 1: poisson with add-remove or zero-out, fixed with replace"
            )

    @property
    def single(self) -> bool:
        """One release on the whole data set."""
        return self.steps == 1 and self.sampling_rate == 1.0

    def parameters(self) -> dict[str, object]:
        """The run as plain values."""
        return {
            "steps": self.steps,
            "sampling_rate": self.sampling_rate,
            "sampling": None if self.sampling is None else str(self.sampling),
            "relation": str(self.relation),
        }


Member = TypeVar("Member", bound=StrEnum)


def named(kind: type[Member], name: str, value: object) -> Member:
    """The member of an enum with this value."""
    try:
        return kind(value)
    except ValueError:
        raise InvalidParameter(name, value, "one of " + ", ".join(kind)) from None


def from_batches(batch_size: int, dataset_size: int, epochs: float = 1) -> tuple[float, int]:
    """``(q, T) = (B/N, ceil(E ceil(N/B)))``: ``E`` epochs over ``N`` records in batches of ``B``."""
    size = whole("dataset_size", dataset_size, "a whole number dataset_size >= 1")
    batch = whole("batch_size", batch_size, "a whole number batch_size >= 1")
    if batch > size:
        raise InvalidParameter("batch_size", batch, f"a batch size of at most dataset_size={size}")
    count = real("epochs", epochs, "a positive number of epochs", 0.0, 1e9, open_low=True)
    return batch / size, max(1, math.ceil(count * math.ceil(size / batch)))
