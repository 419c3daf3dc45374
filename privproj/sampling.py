"""Define neighboring relations and sampling schemes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, TypeVar

from privproj.assumptions import Requirement
from privproj.errors import unknown_name

RelationName = Literal["add-remove", "replace", "zero-out"]
SamplingName = Literal["poisson", "fixed", "partition", "balls-in-bins", "shuffle"]


class NeighboringRelation(StrEnum):
    """The relation between two neighboring datasets.

    A sum of per-record vectors clipped to norm ``C`` has sensitivity ``C`` under add-remove and zero-out, and ``2 C``
    under replace.

    Attributes:
        ADD_REMOVE: One record is added or removed.
        REPLACE: One record is replaced by any other.
        ZERO_OUT: The contribution of one record is replaced by zero; the number of records does not change.

    >>> from privproj.run import NeighboringRelation
    >>> NeighboringRelation("replace").clip_factor
    2.0
    """

    ADD_REMOVE = "add-remove"
    REPLACE = "replace"
    ZERO_OUT = "zero-out"

    @property
    def clip_factor(self) -> float:
        """The ratio of the sensitivity of a clipped sum to its clipping norm: 2 under replace, else 1."""
        return 2.0 if self is NeighboringRelation.REPLACE else 1.0

    @property
    def difference(self) -> str:
        """The difference between two neighboring datasets, as a noun phrase."""
        return {
            "add-remove": "one record added to or removed from the data",
            "replace": "one record replaced by any other",
            "zero-out": "one record whose contribution is replaced by zero",
        }[self]


class Sampling(StrEnum):
    """The scheme by which a step of a run samples its batch.

    Attributes:
        POISSON: Each record is in the batch with the sampling rate as probability, independently of the others.
        FIXED: The batch is a uniformly random subset of fixed size, drawn without replacement.
        PARTITION: The data are divided into disjoint batches, so that each record is used once per epoch.
        BALLS_IN_BINS: In each epoch every record picks one batch at random, independently of the others.
        SHUFFLE: In each epoch the data are shuffled and split into batches of equal size.

    >>> from privproj import Gaussian, epsilon
    >>> from privproj.run import Sampling
    >>> epochs = epsilon(Gaussian(noise_multiplier=10.0), delta=1e-5, steps=3, sampling=Sampling.PARTITION)
    >>> round(epochs.value, 4), epochs.run["relation"]
    (0.62, 'zero-out')
    """

    POISSON = "poisson"
    FIXED = "fixed"
    PARTITION = "partition"
    BALLS_IN_BINS = "balls-in-bins"
    SHUFFLE = "shuffle"


@dataclass(frozen=True, kw_only=True)
class Scheme:
    """The properties of a sampling scheme, and its requirements on the user's program."""

    relations: tuple[NeighboringRelation, ...]  # Relations that the scheme supports

    default_relation: NeighboringRelation = NeighboringRelation.ADD_REMOVE  # The default relation

    why_default: str = ""  # Why the default relation is not add-remove

    # Why a relation is not supported, if there is a specific reason
    why_unsupported: Mapping[NeighboringRelation, str] = field(default_factory=dict)

    # Schemes, as text, that support the relations in ``why_unsupported``. Error messages name them for mechanisms with
    # amplification by subsampling.
    instead: str = ""

    requirements: str = ""  # Requirement of the scheme on the program

    options: tuple[str, ...] = ()  # Run options that this scheme supports, of those that only some schemes support

    # The ``options`` that the scheme requires, with their descriptions
    needs: Mapping[str, str] = field(default_factory=dict)

    counts_epochs: bool = False  # True if a step of the run is an epoch

    # True if the position of a record determines its batch, so that only one release of an epoch uses it (C17)
    in_positions: bool = False

    picks_batches: bool = False  # True if each record is assigned to one or more random batches in each epoch (C25)

    is_shuffled: bool = False  # True if the data are shuffled, which is not counted as amplification (C27)

    varies_in_size: bool  # True if batches vary in size, which some mechanisms do not support

    is_one_sided: bool  # True if the add and remove directions differ, so that both are composed (C18)

    draws_records_apart: bool = False  # True if each record is sampled independently of the others (C37)

    # True if two datasets that differ in one record attain the dominating pair of the composition (C28)
    attains_pair: bool = False

    # Returns how records are assigned to the batches of an epoch, as text, from the parameters of a run
    describe: Callable[[Mapping[str, Any]], str] = lambda run: ""


def _in_positions(name: str, batches: str, **more: Any) -> Scheme:
    """Return a sampling scheme that divides the records into batches by their positions in the data."""
    # ``name`` and ``batches`` name the scheme and its batches in messages.
    shifts = "a removed record can shift every later batch"
    rejected = (
        f"{name} sampling is not supported under relation=add-remove, because {shifts}. Use relation=zero-out or "
        "replace"
    )
    return Scheme(
        relations=(NeighboringRelation.ZERO_OUT, NeighboringRelation.REPLACE),
        default_relation=NeighboringRelation.ZERO_OUT,
        why_default=f"The neighboring relation is zero-out, because the theorem for {batches} covers zero-out and "
        f"replace only. Under add-remove, {shifts}.",
        why_unsupported={NeighboringRelation.ADD_REMOVE: rejected},
        instead="poisson or balls-in-bins",
        requirements=Requirement.FIXED_POSITIONS,
        counts_epochs=True,
        in_positions=True,
        varies_in_size=False,
        is_one_sided=False,
        **more,
    )


def _describe_bins(run: Mapping[str, Any]) -> str:
    count = "one" if run["batches_per_record"] == 1 else run["batches_per_record"]
    return f"each record in {count} of {run['batches']} batches, chosen at random in each epoch"


def _describe_shuffle(run: Mapping[str, Any]) -> str:
    batches = "shuffled batches" if run.get("batches") is None else f"{run['batches']} shuffled batches per epoch"
    return f"{batches}; each epoch counts as one release"


# a release on the whole dataset
WHOLE_DATA = Scheme(relations=tuple(NeighboringRelation), varies_in_size=False, is_one_sided=False, attains_pair=True)

# The record of every scheme
SCHEMES = {
    Sampling.POISSON: Scheme(
        relations=(NeighboringRelation.ADD_REMOVE, NeighboringRelation.ZERO_OUT),
        requirements=Requirement.POISSON_SAMPLING,
        options=("max_batch_size",),
        draws_records_apart=True,
        varies_in_size=True,
        is_one_sided=True,
        attains_pair=True,
    ),
    Sampling.FIXED: Scheme(
        relations=(NeighboringRelation.REPLACE,),
        default_relation=NeighboringRelation.REPLACE,
        why_default="The neighboring relation is replace, because the theorem for fixed-size sampling covers no other "
        "one. For noise of standard deviation (Laplace: scale) sigma and clipping norm C, the noise multiplier is "
        "sigma/(2C), half of the value sigma/C that DP-SGD programs use.",
        requirements=Requirement.FIXED_SIZE_SAMPLING,
        varies_in_size=False,
        is_one_sided=False,
    ),
    Sampling.PARTITION: _in_positions(
        "partition",
        "a partition",
        attains_pair=True,
        describe=lambda run: "each record in one batch of a partition",
    ),
    Sampling.BALLS_IN_BINS: Scheme(
        relations=(NeighboringRelation.ADD_REMOVE, NeighboringRelation.ZERO_OUT),
        why_unsupported={
            NeighboringRelation.REPLACE: "balls-in-bins sampling is not supported under relation=replace. Use "
            "relation=zero-out"
        },
        requirements=Requirement.BALLS_IN_BINS_SAMPLING,
        options=("batches", "batches_per_record"),
        needs={"batches": "the number of batches in an epoch"},
        counts_epochs=True,
        picks_batches=True,
        varies_in_size=True,
        is_one_sided=False,  # an epoch is composed as one release with both its orders (C25)
        attains_pair=True,
        describe=_describe_bins,
    ),
    Sampling.SHUFFLE: _in_positions(
        "shuffle", "shuffled batches", options=("batches",), is_shuffled=True, describe=_describe_shuffle
    ),
}

# the schemes in which a step of a run is an epoch
IN_EPOCHS = tuple(name for name, scheme in SCHEMES.items() if scheme.counts_epochs)


def scheme_of(name: object) -> Scheme:
    """Return the properties of a sampling scheme; None is the whole dataset."""
    return WHOLE_DATA if name is None else SCHEMES[Sampling(name)]


Member = TypeVar("Member", bound=StrEnum)


def member_named(kind: type[Member], name: str, value: object) -> Member:
    """Return the member of the enumeration ``kind`` that has the given value.

    Raises:
        InvalidParameterError: There is no such member. ``name`` is the name of the parameter in the error message.
    """
    try:
        return kind(value)
    except ValueError:
        raise unknown_name(name, value, name, kind) from None
