"""Name and state what a number requires of the program and assumes of the data."""

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Self


class RequirementText(StrEnum):
    """Base of the requirements of the package and of its optional features.

    A member is its text, as results and files have it, and has a short name.
    """

    short: str

    def __new__(cls, short: str, text: str) -> Self:
        """Return a member that equals its text."""
        member = str.__new__(cls, text)
        member._value_ = text
        member.short = short
        return member


class Requirement(RequirementText):
    """What the program must have done for a number to hold."""

    # sampling
    POISSON_SAMPLING = (
        "poisson-sampling",  # C17
        "each record joins each batch on its own, in secret and with the same probability, so that batches differ in "
        "size; shuffling the data and cutting them into batches is not that",
    )
    FIXED_SIZE_SAMPLING = (
        "fixed-size-sampling",  # C17
        "each batch is a subset of fixed size, drawn afresh, uniformly and in secret; shuffling the data and cutting "
        "them into batches is not that",
    )
    BALLS_IN_BINS_SAMPLING = (
        "balls-in-bins-sampling",  # C25
        "in every epoch each record picks its batch afresh, uniformly, in secret and independently of all other "
        "records; a batch that nobody picked is released too, and sums are divided by a public constant",
    )
    FIXED_POSITIONS = (
        "fixed-positions",  # C17: under add-remove every later batch would shift
        "each record's batch in an epoch is fixed without looking at the other records, so that a neighboring data "
        "set has the same batches but for the records that differ",
    )
    PUBLIC_DATASET_SIZE = (
        "public-dataset-size",  # C17, "What is public"
        "the number of records is public: neighbors share it (zero-out, replace), or rate, steps and divisor are "
        "constants fixed without looking at it",
    )
    ONE_RECORD_PER_USER = (
        "one-record-per-user",  # a group size is an assumption on the data instead
        "one person has one record: whoever has K records is protected less, and --group-size K says how much",
    )
    ASSUMPTIONS_PER_BATCH = (
        "assumptions-per-batch",  # C17: amplification conditions on the batch
        "the promise holds for every batch that the sampling can draw, not only for the whole data set",
    )

    # clipping and noise
    PER_RECORD_CLIPPING = (
        "per-record-clipping",
        "all that is released of one record is clipped together to the norm C, and every release has fresh noise of "
        "deviation z times the sensitivity",
    )
    FULL_GRADIENT_CLIPPING = (
        "full-gradient-clipping",
        "each record's whole gradient is clipped, before projecting; clipping the gradients of LoRA's factors is not "
        "that",
    )
    PER_LAYER_CLIPPING = (
        "per-layer-clipping",
        "each layer is clipped on its own, and the noise multiplier is relative to the root of the sum of the squared"
        " clips",
    )
    CLIPPING_BEFORE_SKETCH = (
        "clipping-before-sketch",
        "the norm is clipped before sketching",
    )
    NOISE_AT_ADAPTED_CLIP = (
        "noise-at-adapted-clip",  # C31
        "the clip may follow earlier releases, and the noise on the sum is the noise multiplier times the sensitivity"
        " at the clip of the step",
    )
    CENTERED_COUNT = (
        "centered-count",  # C31
        "the count that adapts the clip adds 1/2 for each record of the batch that this clip leaves as it is, and "
        "takes 1/2 for each one that it cuts; a plain count, or one less a constant, changes by twice as much and "
        "needs twice the noise",
    )
    L1_SENSITIVITY = (
        "l1-sensitivity",
        "one record changes what is released by at most the sensitivity in the 1-norm, and every coordinate has fresh"
        " Laplace noise whose scale is z times that",
    )
    REPLACE_SENSITIVITY = (
        "replace-sensitivity",
        "relation replace: noise multipliers are the noise standard deviation (for Laplace noise its scale) over 2C, "
        "twice the clip, since one record takes another's place",
    )

    # projections and sketches
    FRESH_PROJECTION = (
        "fresh-projection",
        "the projection is drawn afresh for each release, independently of the data and of all that shaped the query",
    )
    FRESH_MATRIX = (
        "fresh-matrix",
        "the matrix is drawn afresh for each release, independently of the data and of all that shaped the query",
    )
    FRESH_SKETCH = (
        "fresh-sketch",
        "the sketching matrix is drawn afresh for each release, independently of the data and of all that shaped the "
        "query",
    )
    FRESH_PROJECTION_PER_BATCH = (
        "fresh-projection-per-batch",
        "every batch draws its own projection afresh, also the batches of one epoch",
    )
    INDEPENDENT_LAYER_PROJECTIONS = (
        "independent-layer-projections",  # C6: with one projection the captured shares add up
        "the projections of different layers are drawn independently of each other",
    )
    KNOWN_PROJECTION = (
        "known-projection",  # C4
        "equal to the truth for whoever sees the projection; an upper bound where it is secret",
    )
    PUBLIC_SUBSPACE = (
        "public-subspace",
        "the subspace is public: it was computed without the private data",
    )
    SECRET_SEED = (
        "secret-seed",
        "the seed of the projection cannot be guessed by anyone who can shape the data",
    )
    SECRET_MATRIX_SEED = (
        "secret-matrix-seed",
        "the seed of the matrix cannot be guessed by anyone who can shape the data",
    )
    SECRET_SKETCH_SEED = (
        "secret-sketch-seed",
        "the seed of the sketch cannot be guessed by anyone who can shape the data",
    )
    SECRET_MATRIX = (
        "secret-matrix",
        "the matrix itself is never released, nor anything else that was computed from it",
    )
    SECRET_SKETCH = (
        "secret-sketch",
        "the sketching matrix is secret, drawn afresh for each release and used once: nothing else that was computed "
        "from it is released",
    )
    QUERY_INDEPENDENT_OF_SKETCH = (
        "query-independent-of-sketch",
        "the query is not a function of the sketching matrix",
    )

    # schedules and ledgers
    FIXED_SCHEDULE = (
        "fixed-schedule",  # composition covers adaptive queries, not adaptive parameters
        "noise, rate, rank, clip and number of steps do not depend on earlier outputs; a plan that stops early is "
        "quoted with the epsilon of the whole plan",
    )
    FIXED_SCHEDULE_EXCEPT_CLIP = (
        "fixed-schedule-except-clip",  # C31
        "noise multiplier, rate, rank and number of steps do not depend on earlier outputs; a plan that stops early "
        "is quoted with the epsilon of the whole plan",
    )
    FIXED_FILTER = (
        "fixed-filter",  # C35
        "the filter's order and budget were fixed before the first release; noise, rate, rank, clip and the decision "
        "to stop may depend on all that was released before, and on nothing else of the data",
    )
    ONLY_THIS_RUN = (
        "only-this-run",
        "without a ledger this run alone is counted: any other training, search for settings or answer from the same "
        "records adds to it",
    )
    ONLY_THIS_LEDGER = (
        "only-this-ledger",
        "the releases of one ledger are counted: any other training, search for settings or answer from the same "
        "records adds to them",
    )

    # selection of the best run (C34)
    RANDOM_NUMBER_OF_TRIALS = (
        "random-number-of-trials",
        "the number of runs was drawn once from this distribution, independently of the data, before the first run; "
        "it is kept secret, and the search does not stop early",
    )
    ONLY_BEST_RELEASED = (
        "only-best-released",
        "only the run of the best score is released, with its score and hyper-parameters; nobody acts on the other "
        "runs",
    )
    PRIVATE_SCORE = (
        "private-score",
        "the score of a run is computed from its private output and public data; a score on private data is a release"
        " of its own and counted in the run",
    )
    RANDOM_CANDIDATES = (
        "random-candidates",
        "each run has fresh randomness and draws its hyper-parameters at random from the same candidates, all of "
        "which have the accounted noise, rate and number of steps, or cost less",
    )

    # accounting by dp-accounting
    MEASURED_ROUNDING = (
        "measured-rounding",  # listed with the assumptions on the data: the status is conditional
        "dp-accounting's rounding stays within the margin that was added for it, which is measured and not proved",
    )
    EVENT_MATCHES_PROGRAM = (
        "event-matches-program",
        "the program did what the event of dp-accounting says, no more and no less",
    )
    NOISE_OVER_CLIP = (
        "noise-over-clip",
        "noise multipliers in events of dp-accounting are the noise over the clip of one record, under replace half "
        "of the sensitivity",
    )


FIXED_SCHEDULES = (Requirement.FIXED_SCHEDULE, Requirement.FIXED_SCHEDULE_EXCEPT_CLIP)  # a number has at most one


def fixed_schedule(*, adapts: bool) -> Requirement:
    """Return the requirement of fixed parameters of several releases; with ``adapts`` some adapt the clipping norm."""
    return Requirement.FIXED_SCHEDULE_EXCEPT_CLIP if adapts else Requirement.FIXED_SCHEDULE


def short_name(text: str) -> str | None:
    """Return the short name of a requirement that is given as its text, or None if it has none."""
    member = text if isinstance(text, RequirementText) else Requirement._value2member_map_.get(text)
    return getattr(member, "short", None)


class DataAssumption(Enum):
    """What the data must satisfy: a text with placeholders; the name of the member is its short name."""

    DIFFERENCE_RANK = "every record changes the layer's gradient by a matrix of rank at most {k}"
    ALIGNMENT = (
        "neighboring data sets give vectors of {norms} with 1 - cos(v, v') {most}: an average alignment does not do"
    )
    UNIT_VECTOR = (
        "the query is a unit vector (for every batch that is sampled), and neighboring ones have 1 - cos(v, v') <= "
        "{most}: the sensitivity is sqrt(2 misalignment)"
    )
    SECRET_PROJECTION = "the projection stays secret"
    CHANGED_COLUMNS = "a record changes {changed} of the query, and the other columns span {k} dimensions{links}"
    RESIDUAL = (
        "orthogonal to that span it has norm {first} before and {second} after, with 1 - cos at most {m}; within it "
        "the change is at most {alpha}: the sensitivity is {size}"
    )
    EIGENVALUE_RATIO = "(lambda_min(Q Q^T) + sigma_g^2/sigma_A^2) / |Q Q^T - Q' Q'^T|_F >= {least} for all neighbors"
    EIGENVALUE_FLOOR = "lambda_min(Q Q^T) >= {limit} for every data set"
    SENSITIVITY = "|Q - Q'|_F <= {limit} for all neighbors"
    FROBENIUS_NORM = "|Q|_F <= {limit} for every data set"
    RECORD_IS_COLUMN = "a record is one column of Q, so that Q Q^T - Q' Q'^T has rank one"
    EIGENVALUE_RATIO_OF_COLUMN = "(lambda_min(Q Q^T) + sigma_g^2/sigma_A^2) / B_S^2 >= {least}, B_S the column's norm"
    RECORDS_PER_USER = "one person contributes at most {count} records, each {handled} on its own"

    @property
    def short(self) -> str:
        """The short name."""
        return self.name.lower().replace("_", "-")

    def at(self, **values: object) -> "Assumption":
        """Return the assumption with these values for the placeholders."""
        return Assumption(self, tuple(values.items()))


@dataclass(frozen=True)
class Assumption:
    """An assumption on the data with the values of its placeholders."""

    kind: DataAssumption
    values: tuple[tuple[str, object], ...] = ()

    @property
    def text(self) -> str:
        """The text of the assumption."""
        return self.kind.value.format(**dict(self.values))
