"""What a number takes for granted about the program that it is about, in the words that are printed with it."""

PUBLIC_RECORD_COUNT = (
    "the number of records is public: neighbours share it (zero-out, replace), or rate, steps and divisor are "
    "constants fixed without looking at it"
)
"""Printed wherever a rate, a number of steps or a divisor came from a data set's size (C17, "What is public")."""

PLAN_FIXED_IN_ADVANCE = (
    "noise, rate, rank, clip and number of steps do not depend on earlier outputs; a plan that stops early is quoted "
    "with the epsilon of the whole plan"
)
"""Printed for more than one release: composition covers queries that react to outputs, not parameters that do."""

PLAN_BUT_FOR_THE_CLIP = PLAN_FIXED_IN_ADVANCE.replace("noise,", "noise multiplier,").replace(", clip and", " and")
"""Printed in its place where the clip adapts to a private count, and the noise with it (C31)."""

PLANS = (PLAN_FIXED_IN_ADVANCE, PLAN_BUT_FOR_THE_CLIP)
"""The two sentences of a plan, of which a number has one at most. Contract."""

POISSON_BATCHES = (
    "each record joins each batch on its own, in secret and with the same probability, so that batches differ in size; "
    "shuffling the data and cutting them into batches is not that"
)
"""Printed for Poisson sampling: what the loader must do (C17)."""

FIXED_SIZE_BATCHES = (
    "each batch is a subset of fixed size, drawn afresh, uniformly and in secret; shuffling the data and cutting them "
    "into batches is not that"
)
"""Printed for batches of fixed size: what the loader must do (C17)."""

ONE_RECORD_OF_A_PERSON = (
    "one person has one record: whoever has K records is protected less, and --group-size K says how much"
)
"""Said where a number about records is read as one about persons: in statements. A group size is a promise instead."""

CLIPPED_AND_NOISED = (
    "all that is released of one record is clipped together to the norm C, and every release has fresh noise of "
    "deviation z times the sensitivity"
)
"""What the plain Gaussian mechanism takes for granted: a clip for each of two tensors, say, is a larger C. Contract."""

WHOLE_GRADIENT_CLIPPED = (
    "each record's whole gradient is clipped, before projecting; clipping the gradients of LoRA's factors is not that"
)
"""What M1 and M2 take for granted of clipping. Contract."""

CLIP_OF_ALL_LAYERS = (
    "each layer is clipped on its own, and the noise multiplier is relative to the root of the sum of the squared clips"
)
"""What a clip for each layer takes for granted. Contract."""

ADAPTED_CLIP = (
    "the clip may follow earlier releases, and the noise on the sum is the noise multiplier times the sensitivity at "
    "the clip of the step"
)
"""Printed where a clip adapts to a private count, which is released with the sum (C31)."""

COUNT_OF_SIGNS = (
    "the count that adapts the clip adds 1/2 for each record of the batch that this clip leaves as it is, and takes "
    "1/2 for each one that it cuts; a plain count, or one less a constant, changes by twice as much and needs twice "
    "the noise"
)
"""Printed beside it: what is subtracted, and for whom, decides the sensitivity of the count, 1/2 and not 1 (C31)."""

INDEPENDENT_LAYER_PROJECTIONS = "the projections of different layers are drawn independently of each other"
"""Printed for several layers (C6): with one shared projection their captured shares add up instead of averaging."""

FRESH_PROJECTION_PER_BATCH = "every batch draws its own projection afresh, also the batches of one epoch"
"""Printed for a partition: one projection that is kept for an epoch serves many releases."""

KNOWN_PROJECTION = "equal to the truth for whoever sees the projection; an upper bound where it is secret"
"""Printed where the bound is the profile of projection and release, which the release alone may not reach (C4)."""

PUBLIC_SUBSPACE = "the subspace is public: it was computed without the private data"
"""Printed for training in a public subspace: finding the subspace in private data would be a release of its own."""

PARTITION_OF_POSITIONS = (
    "each record's batch in an epoch is fixed without looking at the other records, so that a neighbouring data set "
    "has the same batches but for the records that differ"
)
"""Printed for a partition: zero-out and replace keep positions, add-remove would shift every later batch (C17)."""

BATCHES_PICKED_BY_RECORDS = (
    "in every epoch each record picks its batch afresh, uniformly, in secret and independently of all other records; "
    "a batch that nobody picked is released too, and sums are divided by a public constant"
)
"""Printed for balls-in-bins: what the loader must do (C25)."""

PROMISE_OF_EVERY_BATCH = "the promise holds for every batch that the sampling can draw, not only for the whole data set"
"""Printed for promises under sampling: amplification conditions on the batch, so they must hold for each one (C17)."""

REPLACE_SENSITIVITY = (
    "relation replace: noise multipliers are the noise standard deviation (for Laplace noise its scale) over 2C, twice "
    "the clip, since one record takes another's place"
)
"""Printed under replace, where noise multipliers are relative to twice the clip."""

NUMBER_OF_TRIALS_DRAWN = (
    "the number of runs was drawn once from this distribution, independently of the data, before the first run; it is "
    "kept secret, and the search does not stop early"
)
"""Printed for a selection: a number of runs that reacts to scores is no part of the proof (C34)."""

ONLY_THE_BEST_RELEASED = (
    "only the run of the best score is released, with its score and hyper-parameters; nobody acts on the other runs"
)
"""Printed for a selection: every further run that is looked at is a release of its own (C34)."""

SCORE_FROM_PRIVATE_OUTPUT = (
    "the score of a run is computed from its private output and public data; a score on private data is a release of "
    "its own and counted in the run"
)
"""Printed for a selection: the proof is about the best output of runs that have the stated curve (C34)."""

CANDIDATES_DRAWN_AT_RANDOM = (
    "each run has fresh randomness and draws its hyper-parameters at random from the same candidates, all of which "
    "have the accounted noise, rate and number of steps, or cost less"
)
"""Printed for a selection: runs must be independent and alike (C34)."""

ROUNDING_AS_MEASURED = (
    "dp-accounting's rounding stays within the margin that was added for it, which is measured and not proved"
)
"""Printed as a promise with numbers that dp-accounting composed: their status is conditional. Contract."""

EVENT_AS_RUN = "the program did what the event of dp-accounting says, no more and no less"
"""Printed for a phase that is an event of dp-accounting."""

NOISE_OVER_CLIP = (
    "noise multipliers in events of dp-accounting are the noise over the clip of one record, under replace half of the "
    "sensitivity"
)
"""Printed for such events under replace, where those of other phases are over twice the clip."""

FILTER_FIXED_IN_ADVANCE = (
    "the filter's order and budget were fixed before the first release; noise, rate, rank, clip and the decision to "
    "stop may depend on all that was released before, and on nothing else of the data"
)
"""Printed for a filter in place of a plan that is fixed in advance (C35)."""

THIS_RUN_ALONE = (
    "without a ledger this run alone is counted: any other training, search for settings or answer from the same "
    "records adds to it"
)
"""Printed for a training run that has no ledger."""

THIS_LEDGER_ALONE = (
    "the releases of one ledger are counted: any other training, search for settings or answer from the same records "
    "adds to them"
)
"""Printed for a training run that has one."""


def plan_fixed(*, adapts: bool) -> str:
    """What several releases take for granted of their parameters, where some clip ``adapts`` to a count or none."""
    return PLAN_BUT_FOR_THE_CLIP if adapts else PLAN_FIXED_IN_ADVANCE
