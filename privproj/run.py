"""Define a training run: its number of steps, and how each step samples its batch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, NotRequired, TypedDict

from privproj.errors import InvalidParameterError
from privproj.parameters import (
    SHARE,
    Parameter,
    check_parameters,
    flag,
    integer,
    number,
    one_of,
    parameter,
    parameters_of,
    whole_number,
)
from privproj.result import NAMES_IN_TEXT
from privproj.sampling import (
    IN_EPOCHS,
    SCHEMES,
    WHOLE_DATA,
    NeighboringRelation,
    RelationName,
    Sampling,
    SamplingName,
    Scheme,
    member_named,
    scheme_of,
)

__all__ = ["NeighboringRelation", "RunOptions", "Sampling"]


ASSUMED_POISSON = (
    "Poisson sampling assumed because --sampling was not given. If your loader shuffles, use --sampling shuffle, "
    "which needs a much larger epsilon or much more noise."
)  # note on a rate that follows from a batch size and a dataset size, without a sampling


class RunOptions(TypedDict):
    """The keyword arguments that describe the run in every query; all are optional.

    Attributes:
        steps: The number of releases (of epochs, for partition, balls-in-bins and shuffle), at least 1; 1 by default.
        sampling_rate: The probability that a record is in a batch, above 0 and at most 1; 1 by default.
        sampling: "poisson", "fixed", "partition", "balls-in-bins" or "shuffle" (:class:`Sampling`); Poisson by default
            if the rate is below 1.
        batches: The number of batches of an epoch, at least 1, for balls-in-bins and shuffle.
        batches_per_record: The number of different batches of an epoch that a record is in, at least 1, for
            balls-in-bins; 1 by default.
        max_batch_size: The number of records to which a Poisson batch is truncated at random; needs ``dataset_size``.
        dataset_size: The number of records, which is public. A warning is issued unless ``delta < 1/dataset_size``.
        batch_size: The batch size, instead of the rate ``sampling_rate = batch_size/dataset_size``.
        epochs: The number of passes over the data, instead of ``steps``. A pass has ``ceil(dataset_size/batch_size)``
            steps.
        relation: "add-remove", "replace" or "zero-out" (:class:`NeighboringRelation`); by default the relation of the
            bound, of the mechanism or of the sampling scheme, in this order.
        group_size: The largest number of records of one user, from 1 to 1e6; 1 by default.
        discretization: The grid step of privacy losses in a composition, in nats, from 1e-12 to 1; by default privproj
            chooses it.
        split: For a bound that divides delta between two events, the share of the first one: a number above 0 and below
            1, "even" or "optimal".
        tau: For the Beta-tail bounds, the threshold, above 0 and at most 1, for the fraction of the squared norm of a
            vector that the projection keeps. By default the best threshold is used.
        allow_refuted: True to evaluate refuted bounds too; their values are marked as not being guarantees.
        public_size: True if rate or steps were computed from a number of records that is public.

    >>> from privproj import M2, epsilon
    >>> from privproj.run import RunOptions
    >>> run: RunOptions = {"steps": 2000, "sampling_rate": 0.01}
    >>> round(epsilon(M2(dim=2048, rank=16, noise_multiplier=0.5), delta=1e-5, **run).value, 4)
    0.2705
    """

    steps: NotRequired[int]
    sampling_rate: NotRequired[float]
    sampling: NotRequired[SamplingName | None]
    batches: NotRequired[int | None]
    batches_per_record: NotRequired[int]
    max_batch_size: NotRequired[int | None]
    dataset_size: NotRequired[int | None]
    batch_size: NotRequired[int]
    epochs: NotRequired[float]
    relation: NotRequired[RelationName | None]
    group_size: NotRequired[int]
    discretization: NotRequired[float | None]
    split: NotRequired[float | Literal["even", "optimal"] | None]
    tau: NotRequired[float | None]
    allow_refuted: NotRequired[bool]
    public_size: NotRequired[bool]


@dataclass(frozen=True, kw_only=True)
class Run:
    """A training run of adaptive releases, each on a batch sampled at ``sampling_rate``.

    The fields are those of :class:`privproj.run.RunOptions`. ``sampling`` is None if every release is on the whole
    dataset. ``notes`` are warnings about a default relation or sampling scheme. The sampling scheme determines the
    supported neighboring relations:

    * Poisson: add-remove and zero-out.
    * Fixed batch size: replace.
    * ``partition``: zero-out and replace. A step is an epoch. Each record is in one batch of the epoch, so only one
      release of the epoch depends on the record (C17).
    * ``balls-in-bins``: add-remove and zero-out. A step is an epoch. Each record is assigned at random to one of
      ``batches`` batches, or to ``batches_per_record`` of them (C25).
    * ``shuffle`` is accounted as a partition.
    """

    steps: int = parameter(
        whole_number("an integer >= 1"),
        "Number of releases (epochs for partition, balls-in-bins, shuffle); required if the sampling rate is below 1.  "
        "[default: 1]",
        "T",
        default=1,
    )
    sampling_rate: float = parameter(
        number("a number above 0 and at most 1", 0.0, 1.0, open_low=True),
        "Probability that a record is in a batch.  [default: 1]",
        "Q",
        default=1.0,
    )
    sampling: Sampling | None = parameter(one_of(*Sampling), "Sampling scheme.  [default: poisson]")
    batches: int | None = parameter(
        whole_number("an integer from 1 to 1e7", 1, 10**7),
        "Number of batches in an epoch, for balls-in-bins and shuffle.",
        "T",
        is_rare=True,
    )
    batches_per_record: int = parameter(
        whole_number("an integer from 1 to the number of batches", 1, 10**7),
        "Number of batches of an epoch that contain a record.  [default: 1]",
        "K",
        default=1,
        is_rare=True,
    )
    max_batch_size: int | None = parameter(
        whole_number("an integer >= 1", 1, 10**12),
        "Maximum size of a Poisson batch. Further records are dropped.",
        "B",
        is_rare=True,
    )
    dataset_size: int | None = parameter(whole_number("an integer >= 1", 1, 10**12), "Number of records.", "N")
    relation: NeighboringRelation | None = parameter(
        one_of(*NeighboringRelation), "Neighboring relation.  [default: by mechanism and sampling scheme]"
    )
    group_size: int = parameter(
        whole_number("an integer from 1 to 1e6", 1, 10**6),
        "Protect up to K records of one user.  [default: 1]",
        "K",
        default=1,
    )
    discretization: float | None = parameter(
        number("a number from 1e-12 to 1", 1e-12, 1.0),
        "Grid step of the composition.  [default: from the run]",
        "H",
        is_rare=True,
    )
    split: float | str | None = parameter(
        SHARE,
        "For bounds that divide delta between two events: even, optimal, or the share of the first event.",
        "S",
        is_rare=True,
    )
    tau: float | None = parameter(
        number("a number above 0 and at most 1", 0.0, 1.0, open_low=True),
        "Threshold of the beta-tail bounds on the share of the squared norm that the projection keeps.  "
        "[default: the best]",
        "TAU",
        is_rare=True,
    )
    public_size: bool = flag()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        check_parameters(self)
        rate = self.sampling_rate
        scheme = Sampling.POISSON if self.sampling is None else member_named(Sampling, "sampling", self.sampling)
        record = SCHEMES[scheme]
        if record.counts_epochs and rate < 1.0:
            remedy = (
                "use batches=T instead of sampling_rate, and steps=E for E epochs of T batches"
                if "batches" in record.options
                else "omit it, and use steps=E for E epochs"
            )
            raise InvalidParameterError(
                "sampling_rate",
                rate,
                f"1 with {scheme} sampling, where a step is an epoch",
                remedy,
            )
        self._parse_batches(scheme)
        if self.max_batch_size is not None and rate == 1.0:
            raise InvalidParameterError("max_batch_size", self.max_batch_size, "omitted if sampling_rate is 1")
        chosen = WHOLE_DATA if self.sampling is None else record
        notes = [chosen.why_default] if chosen.why_default and self.relation is None else []
        if self.sampling is None and rate < 1.0 and self.public_size:
            notes.append(ASSUMED_POISSON)
        set_field(self, "notes", (*self.notes, *notes))
        set_field(self, "sampling", None if rate == 1.0 and not record.counts_epochs else scheme)
        relation = chosen.default_relation if self.relation is None else self.relation
        is_member = isinstance(relation, NeighboringRelation)
        set_field(self, "relation", relation if is_member else member_named(NeighboringRelation, "relation", relation))

    def _parse_batches(self, scheme: Sampling) -> None:
        for name in BATCH_OPTIONS:
            value, default = getattr(self, name), self.__dataclass_fields__[name].default
            if value != default and name not in SCHEMES[scheme].options:
                owners = [other for other, record in SCHEMES.items() if name in record.options]
                remedy = f"{name} needs sampling {' or '.join(owners)}"
                raise InvalidParameterError(name, value, f"omitted for {scheme} sampling", remedy)
        for name, expected in SCHEMES[scheme].needs.items():
            if getattr(self, name) is None:
                raise InvalidParameterError(name, "nothing", expected, f"{scheme} sampling needs {expected}")
        if self.batches_per_record > (self.batches or 1):
            expected = "an integer from 1 to the number of batches"
            raise InvalidParameterError("batches_per_record", self.batches_per_record, expected)
        if self.max_batch_size is not None and self.dataset_size is None:
            raise InvalidParameterError("max_batch_size", self.max_batch_size, "given together with dataset_size")
        if self.dataset_size is not None:
            object.__setattr__(self, "public_size", True)
            if self.group_size > 1 and self.sampling == Sampling.FIXED and self.in_batches and not self.fixed_batch:
                expected = f"a size whose product with the sampling rate, {self.sampling_rate:g}, is an integer"
                raise InvalidParameterError("dataset_size", self.dataset_size, expected)

    @property
    def group_rate(self) -> float:
        """The probability that a step samples any record of a user, rounded up (C17)."""
        if self.group_size == 1 or self.sampling_rate == 1.0:
            return self.sampling_rate
        # Q = 1 - (1-q)^K; the margin of 1e-15 is more than its rounding (C17).
        return min(1.0, -math.expm1(self.group_size * math.log1p(-self.sampling_rate)) * (1.0 + 1e-15))

    @property
    def fixed_batch(self) -> int | None:
        """The number of records in a batch of fixed size; None for other schemes or if it is unknown."""
        if self.sampling != Sampling.FIXED or self.dataset_size is None or self.max_batch_size is not None:
            return None
        batch = self.sampling_rate * self.dataset_size
        return round(batch) if abs(batch - round(batch)) < 1e-6 else None

    @property
    def scheme(self) -> Scheme:
        """The properties of the sampling scheme, such as the supported relations."""
        return WHOLE_DATA if self.sampling is None else SCHEMES[self.sampling]

    @property
    def is_planned(self) -> bool:
        """True if the run has several releases, whose number and parameters must be fixed in advance."""
        return self.scheme.counts_epochs or self.steps > 1

    @property
    def in_batches(self) -> bool:
        """True if a release depends on a batch and not on the whole dataset."""
        return self.sampling_rate < 1.0 or self.scheme.counts_epochs

    @property
    def allocates(self) -> bool:
        """True for balls-in-bins, where each record picks random batches in each epoch."""
        return self.scheme.picks_batches

    @property
    def is_bounded_by_blocks(self) -> bool:
        """True if a record is in several but not all batches of an epoch.

        Such an epoch is bounded by dividing its batches into blocks. No dataset attains this bound (C25).
        """
        return self.allocates and 1 < self.batches_per_record < (self.batches or 1)

    @property
    def single(self) -> bool:
        """True if the run is a single release, or one epoch that counts as a release."""
        return self.steps == 1 and self.sampling_rate == 1.0 and not (self.scheme.picks_batches and self.batches != 1)

    def parameters(self) -> dict[str, object]:
        """Return the run as plain values by name, for results and certificates."""
        always = ("steps", "sampling_rate", "sampling", "relation", "group_size", "public_size")
        per_record = ("batches_per_record",) if self.scheme.picks_batches else ()
        of_some = ("batches", *per_record, "max_batch_size", "dataset_size")
        values = {name: getattr(self, name) for name in (*always, *of_some)}
        values = {name: str(value) if isinstance(value, StrEnum) else value for name, value in values.items()}
        return {name: value for name, value in values.items() if name in always or value is not None}


_BATCH_SIZE = whole_number("an integer >= 1")  # range of a batch size

# range of a number of epochs
EPOCHS = number("a number above 0 and at most 1e+09", 0.0, 1e9, open_low=True)

# The parameters of a run in files and on the command line, by name
RUN_PARAMETERS = {
    **{name: declared for name, declared in parameters_of(Run).items() if name != "dataset_size"},
    "batch_size": Parameter(_BATCH_SIZE, "Batch size, instead of the sampling rate.", "B"),
    "dataset_size": parameters_of(Run)["dataset_size"],
    "epochs": Parameter(EPOCHS, "Number of passes over the data, instead of the steps.", "E"),
}

BATCH_OPTIONS = ("batches", "batches_per_record", "max_batch_size")  # options of single schemes


def run_from(keys: Mapping[str, Any], query: str = "") -> RunOptions:
    """Return the run options that the keys of a file or of the command line describe.

    A batch size, a dataset size and a number of epochs are replaced by a sampling rate and steps.

    Args:
        keys: The keys with their values; other keys are ignored.
        query: The name of the query, whose calibrated parameter may be missing; empty if nothing is calibrated.

    Raises:
        InvalidParameterError: A key would have no effect, contradicts another one, or is missing.
    """
    rate, steps, sizes = 1.0, 1, [keys[name] for name in ("batch_size", "dataset_size") if name in keys]
    if len(sizes) == 2:  # check the sizes before other keys
        rate, steps = rate_and_steps_from_batches(sizes[0], sizes[1], keys.get("epochs", 1))
    _check_batches(keys, query)
    run: Any = {name: keys[name] for name in RUN_PARAMETERS if name in keys and name not in ("batch_size", "epochs")}
    # If the sampling counts epochs, the rate is 1, the steps are epochs, and an epoch has ceil(N/B) batches.
    if len(sizes) < 2 or keys.get("sampling") in IN_EPOCHS:
        rate, steps = 1.0, math.ceil(EPOCHS.check("epochs", keys.get("epochs", 1)))
    if "epochs" in keys:
        run["steps"] = steps
    if sizes:
        run["public_size"] = True
    if "batch_size" in keys:
        run["sampling_rate"] = rate
        if keys.get("sampling") in IN_EPOCHS and keys["sampling"] != "partition":
            run["batches"] = rate_and_steps_from_batches(sizes[0], sizes[1])[1]
    return run


def without_batch_sizes(run: RunOptions, query: str = "") -> RunOptions:
    """Replace a batch size and epochs in run options by a sampling rate and steps."""
    if not {"batch_size", "epochs"} & set(run):
        return run
    keys: Any = {name: value for name, value in run.items() if value is not None}
    others: Any = {name: value for name, value in keys.items() if name not in RUN_PARAMETERS}
    return run_from(keys, query) | others


def _check_batches(keys: Mapping[str, Any], query: str) -> None:
    """Raise an error if a key about batches in run options is redundant or missing."""
    sized, capped, has_size = "batch_size" in keys, "max_batch_size" in keys, "dataset_size" in keys
    in_epochs = keys.get("sampling") in IN_EPOCHS  # whose rate is 1
    uncounted = "epochs" in keys and not (sized or in_epochs or "batches" in keys)
    unsampled = "sampling" in keys and not (in_epochs or sized or "sampling_rate" in keys or query == "rate")
    once = query != "steps" and "steps" not in keys and "epochs" not in keys
    rate: Any = keys.get("sampling_rate", 1.0)
    sampled = isinstance(rate, int | float) and 0.0 < rate < 1.0 and not in_epochs
    private = has_size and keys.get("public_size") is False
    twice = {"sampling_rate": "batch_size", "steps": "epochs", "public_size": "batch_size", "batches": "batch_size"}
    rate_twice = sized and "sampling_rate" in keys
    counts = "steps" if query == "rate" else "steps or epochs"
    of_batch = f"give dataset_size{', and epochs or steps,' if once else ''} with batch_size"
    rules = (
        (rate_twice and not has_size, "sampling_rate", "omitted if batch_size is given"),
        (sized and not has_size, "dataset_size", of_batch),
        (capped and not has_size, "dataset_size", "give dataset_size with max_batch_size"),
        (uncounted, "batch_size", "give batch_size and dataset_size with epochs"),
        *((a in keys and b in keys, a, f"omitted if {b} is given") for a, b in twice.items()),
        (private, "public_size", "true if dataset_size is given"),
        (unsampled, "sampling", "omitted without a sampling rate"),
        (sized and once, "epochs", "give epochs or steps (one sampled release is steps 1)"),
        ((sampled or query == "rate") and once, "steps", f"give {counts} (one sampled release is steps 1)"),
    )
    rate_or_sizes = "give sampling_rate, or batch_size and dataset_size"
    remedies = {"sampling": rate_or_sizes, "sampling_rate": rate_or_sizes}
    for broken, name, expected in rules:
        if broken:
            remedy = remedies.get(name, "") if name in keys else expected
            raise InvalidParameterError(name, keys.get(name, "nothing"), expected, remedy)


def rate_and_steps_from_batches(batch_size: int, dataset_size: int, epochs: float = 1) -> tuple[float, int]:
    """Return the sampling rate and the number of steps for a batch size and epochs.

    Raises:
        InvalidParameterError: A value is outside its range, or the batch is larger than the dataset.
    """
    size = integer("dataset_size", dataset_size, "an integer >= 1")
    batch = _BATCH_SIZE.check("batch_size", batch_size)
    if batch > size:
        raise InvalidParameterError("batch_size", batch, f"at most the dataset size, {size}")
    count = EPOCHS.check("epochs", epochs)
    # q = B/N, T = ceil(E ceil(N/B)).
    return batch / size, max(1, math.ceil(count * math.ceil(size / batch)))


# --- text --------------------------------------------------------------------------------------------


def describe_run(run: Mapping[str, Any], digits: str = "g") -> str:
    """Return the number of releases and the sampling of a run as text.

    ``run`` has the keys of :meth:`Run.parameters`, and ``digits`` is the format of the sampling rate.
    """
    if run["sampling"] in IN_EPOCHS:
        epochs = "one epoch" if run["steps"] == 1 else f"{run['steps']} epochs"
        return f"{epochs}, {scheme_of(run['sampling']).describe(run)}"
    steps = "one release" if run["steps"] == 1 else f"{run['steps']} releases"
    if run["sampling_rate"] is None:
        return f"{steps}, sampled as each phase says"
    if run["sampling"] is None:
        return f"{steps} on the whole dataset"
    rate = run["sampling_rate"]
    largest = f", at most {run['max_batch_size']} of {run['dataset_size']}" if "max_batch_size" in run else ""
    rate_text = f"{rate:{digits}} ({percent(rate)} of the records per step{largest})"
    return f"{steps}, {NAMES_IN_TEXT[run['sampling']]} sampling at rate {rate_text}"


def percent(share: float) -> str:
    """Return a fraction from 0 to 1 as text in percent, with three digits."""
    return f"{100.0 * share:.3g} %"
