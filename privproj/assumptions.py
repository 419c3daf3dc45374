"""What a number takes for granted about the program that it is about, in the words that are printed with it."""

PUBLIC_RECORD_COUNT = (
    "the number of records is public: neighbours share it (zero-out, replace), or rate, steps and divisor are "
    "constants fixed without looking at it"
)
"""Docs: section "What is public". Printed wherever a rate, a number of steps or a divisor came from a data set's size.
"""

PLAN_FIXED_IN_ADVANCE = (
    "noise, rate, rank, clip and number of steps do not depend on earlier outputs; a plan that stops early is quoted "
    "with the epsilon of the whole plan"
)
"""Composition covers queries that react to outputs, not parameters that do."""

INDEPENDENT_LAYER_PROJECTIONS = "the projections of different layers are drawn independently of each other"
"""Claim C6: with one shared projection the captured shares of the layers add up instead of averaging."""

FRESH_PROJECTION_PER_BATCH = "every batch draws its own projection afresh, also the batches of one epoch"
"""One projection kept for an epoch of a partition serves many releases."""

KNOWN_PROJECTION = "equal to the truth for whoever sees the projection; an upper bound where it is secret"
"""Claim C4: the profile of the pair (projection, release), which the release alone does not reach."""

PUBLIC_SUBSPACE = "the subspace is public: it was computed without the private data"
"""Else finding it is a release of its own."""

PARTITION_OF_POSITIONS = (
    "each record's batch in an epoch is fixed without looking at the other records, so that a neighbouring data set "
    "has the same batches but for the one record"
)
"""Zero-out and replace keep positions; under add-remove a removed record would shift every later batch."""

PROMISE_OF_EVERY_BATCH = "the promise holds for every batch that the sampling can draw, not only for the whole data set"
"""Amplification conditions on the batch, so what is promised must hold given any of them."""

REPLACE_SENSITIVITY = (
    "relation replace: noise multipliers are the noise standard deviation over 2C, twice the clip, since one record "
    "takes another's place"
)
"""Where noise multipliers are relative to the sensitivity under replace."""
