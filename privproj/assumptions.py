"""Define requirements on the program and assumptions on the data."""

from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Self


class RequirementText(StrEnum):
    """Base class of enumerations of requirements on the program.

    The value of a member is the text of the requirement, and ``short`` is its short name.
    """

    short: str

    def __new__(cls, short: str, text: str) -> Self:
        """Create a member whose value is ``text``."""
        member = str.__new__(cls, text)
        member._value_ = text
        member.short = short
        return member


class Requirement(RequirementText):
    """A requirement on the user's program, such as Poisson sampling.

    A result holds only if the program meets all its requirements.
    """

    # sampling
    POISSON_SAMPLING = (
        "poisson-sampling",  # C17
        "Each record is in each batch independently, with the same probability. Nobody learns which records are in a "
        "batch. For an empty batch, the program releases noise only. Shuffling the data and splitting it into batches "
        "is not Poisson sampling.",
    )
    FIXED_SIZE_SAMPLING = (
        "fixed-size-sampling",  # C17
        "Each batch is a uniformly random subset of fixed size, independent of all other batches. Nobody learns which "
        "records are in a batch. Shuffling the data and splitting it into batches is not fixed-size sampling.",
    )
    BALLS_IN_BINS_SAMPLING = (
        "balls-in-bins-sampling",  # C25
        "In each epoch, the loader puts each record into one batch, chosen uniformly at random. With "
        "--batches-per-record K, the loader puts each record into K different batches. The assignment is secret, and "
        "independent of other records and other epochs. For an empty batch, the program releases noise only. Sums of "
        "gradients are divided by a public constant.",
    )
    FIXED_POSITIONS = (
        "fixed-positions",  # C17: under add-remove every later batch would shift
        "Batches are formed from the positions of records in the dataset, not from their contents. For example, do "
        "not sort records by length or label.",
    )
    PUBLIC_DATASET_SIZE = (
        "public-dataset-size",  # C17, "What is public"
        "The sampling rate, the number of steps and the divisor of the mean gradient are computed from a public "
        "estimate of the number of records. Under add-remove, the exact number is private. Under zero-out and replace, "
        "the exact number is public and can be used instead.",
    )
    RANDOM_TRUNCATION = (
        "random-truncation",  # C26
        "If a sampled batch exceeds the maximum batch size, the dropped records are chosen uniformly at random.",
    )
    ONE_RECORD_PER_USER = (
        "one-record-per-user",  # a group size is an assumption on the data instead
        "Each user has one record. For users with up to K records, use --group-size K, which gives a larger epsilon.",
    )
    ASSUMPTIONS_PER_BATCH = (
        "assumptions-per-batch",  # C17: amplification conditions on the batch
        "The assumptions on the data hold for every batch that can be sampled, not only for the whole dataset.",
    )

    # clipping and noise
    PER_RECORD_CLIPPING = (
        "per-record-clipping",
        "Each record's contribution to a release is clipped, so that the norm of the whole contribution is at most "
        "the clipping norm C. Every release adds fresh noise, whose standard deviation is the noise multiplier times "
        "the sensitivity.",
    )
    FULL_GRADIENT_CLIPPING = (
        "full-gradient-clipping",
        "The whole gradient of each record is clipped to the clipping norm C before it is projected. Clipping the "
        "gradients of LoRA factors is not enough. Every release adds fresh Gaussian noise, whose standard deviation "
        "is the noise multiplier times the sensitivity.",
    )
    PER_LAYER_CLIPPING = (
        "per-layer-clipping",
        "Each layer is clipped separately. The clipping norm C is the square root of the sum of the layers' squared "
        "clipping norms.",
    )
    CLIPPING_BEFORE_SKETCH = (
        "clipping-before-sketch",
        "Each record's contribution is clipped before it is multiplied by the sketching matrix.",
    )
    NOISE_AT_ADAPTED_CLIP = (
        "noise-at-adapted-clip",  # C31
        "The clipping norm may depend on earlier releases. The standard deviation of the noise in a step is the noise "
        "multiplier times the sensitivity, computed from the clipping norm of the same step.",
    )
    CENTERED_COUNT = (
        "centered-count",  # C31
        "For adaptive clipping, the program releases the noisy sum of b_i - 1/2 over the batch. b_i is 1 if record i "
        "was not clipped, and 0 otherwise. Adding or removing a record changes this sum by 1/2. Do not "
        "release the sum of b_i, even with a constant subtracted: it changes by up to 1, and needs twice the noise.",
    )
    L1_SENSITIVITY = (
        "l1-sensitivity",
        "One record changes the released vector by at most the sensitivity, in the 1-norm. Every coordinate has fresh "
        "Laplace noise, whose scale is the noise multiplier times the sensitivity.",
    )
    REPLACE_SENSITIVITY = (
        "replace-sensitivity",
        "Under the relation replace, the sensitivity is 2C, where C is the clipping norm. The noise multiplier is the "
        "standard deviation of the noise (for Laplace noise, the scale) divided by 2C.",
    )

    # projections and sketches
    FRESH_PROJECTION = (
        "fresh-projection",
        "Each release uses a new projection that is independent of the data, earlier releases and all other "
        "random numbers.",
    )
    FRESH_MATRIX = (
        "fresh-matrix",
        "Each release uses a new random matrix that is independent of the data, earlier releases and all other "
        "random numbers.",
    )
    FRESH_SKETCH = (
        "fresh-sketch",
        "Each release uses a new sketching matrix that is independent of the data, earlier releases and all other "
        "random numbers.",
    )
    FRESH_PROJECTION_PER_BATCH = (
        "fresh-projection-per-batch",
        "Each batch uses a new projection, also within one epoch.",
    )
    INDEPENDENT_LAYER_PROJECTIONS = (
        "independent-layer-projections",  # C6: with one projection the captured shares add up
        "Different layers use independent projections.",
    )
    OBSERVED_PROJECTION = (
        "observed-projection",  # C4
        "The adversary sees the projection. For a secret projection, the result is an upper bound, not exact.",
    )
    PUBLIC_SUBSPACE = (
        "public-subspace",
        "The subspace in which the weights are trained was computed without the private data.",
    )
    SECRET_SEED = (
        "secret-seed",
        "Until a projection is used, nobody who can influence the data can guess its seed. Afterward, the adversary "
        "may see the projection.",
    )
    SECRET_MATRIX_SEED = (
        "secret-matrix-seed",
        "Until a random matrix is used, nobody who can influence the data can guess its seed.",
    )
    SECRET_SKETCH_SEED = (
        "secret-sketch-seed",
        "Until a sketching matrix is used, nobody who can influence the data can guess its seed.",
    )
    SECRET_MATRIX = (
        "secret-matrix",
        "The random matrix stays secret. Nothing that was computed from the matrix is released, except the output of "
        "the mechanism.",
    )
    SECRET_SKETCH = (
        "secret-sketch",
        "The sketching matrix is secret, freshly sampled for each release, and used once. Nothing that was computed "
        "from the matrix is released, except the sketch.",
    )
    SKETCHED_VECTOR = (
        "sketched-vector",  # C14: what is computed with the matrix again, such as A^T times the sketch, is not covered
        "Each release sketches one vector. The program releases the sketch itself, not its product with the transposed "
        "sketching matrix.",
    )
    QUERY_INDEPENDENT_OF_SKETCH = (
        "query-independent-of-sketch",
        "The matrix computed from the data does not depend on the sketching matrix that multiplies it.",
    )

    # schedules and ledgers
    FIXED_SCHEDULE = (
        "fixed-schedule",  # composition covers adaptive queries, not adaptive parameters
        "Noise, sampling rate, rank, clipping norm and number of steps are fixed in advance. They do not depend on "
        "earlier outputs. If training stops early, report the epsilon of the full schedule.",
    )
    FIXED_SCHEDULE_EXCEPT_CLIP = (
        "fixed-schedule-except-clip",  # C31
        "Noise multiplier, sampling rate, rank and number of steps are fixed in advance. Only the clipping norm may "
        "depend on earlier outputs. If training stops early, report the epsilon of the full schedule.",
    )
    FIXED_FILTER = (
        "fixed-filter",  # C35
        "The Renyi order and the budget of the privacy filter are fixed before the first release. Noise, sampling "
        "rate, rank, clipping norm and the decision to stop may depend on earlier releases, but not directly on the "
        "data.",
    )
    ONLY_THIS_RUN = (
        "only-this-run",
        "Epsilon counts this run only. Any other training, hyperparameter search or query on the same records adds to "
        "epsilon.",
    )
    ONLY_THIS_LEDGER = (
        "only-this-ledger",
        "Epsilon counts only the releases in one ledger file. Any other training, hyperparameter search or query on "
        "the same records adds to epsilon.",
    )

    # selection of the best run (C34)
    RANDOM_NUMBER_OF_TRIALS = (
        "random-number-of-trials",
        "The number of runs was drawn once from the stated distribution, before the first run and independently of "
        "the data. The number stays secret, and the search does not stop early.",
    )
    ONLY_BEST_RELEASED = (
        "only-best-released",
        "Only the run with the best score is released, with its score and hyperparameters. Apart from this "
        "selection, no decision depends on the other runs.",
    )
    PRIVATE_SCORE = (
        "private-score",
        "The score of a run is computed only from public data and the differentially private output of this run. A "
        "score on private data is another release, which must be accounted as part of the run.",
    )
    RANDOM_CANDIDATES = (
        "random-candidates",
        "Each run has fresh randomness and draws its hyperparameters at random from the same list. No entry of the "
        "list makes a run less private than the run that you described to privproj.",
    )

    # accounting by dp-accounting
    MEASURED_ROUNDING = (
        "measured-rounding",  # a clause, since it is listed with the assumptions on the data
        "the floating-point errors of dp-accounting change the result by at most the margin that privproj adds "
        "(measured, not proved)",
    )
    EVENT_MATCHES_PROGRAM = (
        "event-matches-program",
        "The program does exactly what the dp-accounting event describes.",
    )
    NOISE_OVER_CLIP = (
        "noise-over-clip",
        "The noise multiplier of a dp-accounting event is the standard deviation of the noise divided by the clipping "
        "norm, also under the relation replace.",
    )


FIXED_SCHEDULES = (Requirement.FIXED_SCHEDULE, Requirement.FIXED_SCHEDULE_EXCEPT_CLIP)  # a number has at most one


def fixed_schedule(*, adapts: bool) -> Requirement:
    """Return the requirement that the parameters of all steps are fixed in advance.

    If ``adapts`` is True, the clipping norm may be adapted.
    """
    return Requirement.FIXED_SCHEDULE_EXCEPT_CLIP if adapts else Requirement.FIXED_SCHEDULE


def short_name(text: str) -> str | None:
    """Return the short name of a requirement, or None for any other text."""
    member = text if isinstance(text, RequirementText) else Requirement._value2member_map_.get(text)
    return getattr(member, "short", None)


class DataAssumption(Enum):
    """An assumption on the data, such as the rank of a gradient difference.

    The value of a member is its text with placeholders.
    """

    DIFFERENCE_RANK = "every record changes the layer's gradient by a matrix of rank at most {k}"
    ALIGNMENT = "neighboring datasets give vectors of {norms} with 1 - cosine {most} (for every pair, not on average)"
    UNIT_VECTOR = (
        "m1 projects one vector of norm 1 for every batch, and 1 - cosine of the angle between the vectors of "
        "neighboring datasets is at most m = {most}; the sensitivity is sqrt(2 m)"
    )
    SECRET_PROJECTION = "the projection stays secret"
    CHANGED_COLUMNS = (
        "one record changes {changed} of the matrix that m1 projects, and the other columns span {k} dimensions{links}"
    )
    RESIDUAL = (
        "the part of the changed column that is orthogonal to the other columns has norm {first} in one dataset and "
        "{second} in its neighbor, and 1 - cosine of the angle between these two parts is at most {m}; the part in the "
        "span of the other columns changes by at most {alpha}; the sensitivity is {size}"
    )
    EIGENVALUE_RATIO = (  # (lambda_min(Q Q^T) + sigma_g^2/sigma_A^2) / |Q Q^T - Q' Q'^T|_F >= Gamma
        "lambda + a >= {least} |Q Q^T - Q' Q'^T|_F for all neighboring datasets; Q and Q' are their query matrices, "
        "lambda is the least eigenvalue of Q Q^T, and a is the variance of the noise divided by the variance of the "
        "entries of the sketching matrix"
    )
    EIGENVALUE_FLOOR = "for every dataset, the eigenvalues of Q Q^T are at least {limit}, where Q is the query matrix"
    SENSITIVITY = "the Frobenius norm of Q - Q' is at most {limit} for all neighboring query matrices Q and Q'"
    FROBENIUS_NORM = "the Frobenius norm of the query matrix is at most {limit} for every dataset"
    RECORD_IS_COLUMN = "one record is one column of the query matrix Q, so Q Q^T - Q' Q'^T has rank one"
    EIGENVALUE_RATIO_OF_COLUMN = (  # (lambda_min(Q Q^T) + sigma_g^2/sigma_A^2) / B_S^2 >= Gamma
        "lambda + a >= {least} B^2 for the query matrix Q of every dataset; lambda is the least eigenvalue of Q Q^T, a "
        "is the variance of the noise divided by the variance of the entries of the sketching matrix, and B is a bound "
        "on the norm of the column that is added or removed"
    )
    RECORDS_PER_USER = "one user contributes at most {count} records, each {handled} independently"

    @property
    def short(self) -> str:
        """The short name of the assumption, such as "difference-rank"."""
        return self.name.lower().replace("_", "-")

    def at(self, **values: object) -> "Assumption":
        """Return the assumption with values for the placeholders in its text."""
        return Assumption(self, tuple(values.items()))


@dataclass(frozen=True)
class Assumption:
    """An assumption on the data, with values for the placeholders in its text."""

    kind: DataAssumption
    values: tuple[tuple[str, object], ...] = ()

    @property
    def text(self) -> str:
        """The text of the assumption."""
        return self.kind.value.format(**dict(self.values))
