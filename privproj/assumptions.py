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

WHOLE_GRADIENT_CLIPPED = (
    "each record's whole gradient is clipped, before projecting; clipping the gradients of LoRA's factors is not that"
)
"""What M1 and M2 take for granted of clipping. Contract."""

CLIP_OF_ALL_LAYERS = (
    "each layer is clipped on its own, and the noise multiplier is relative to the root of the sum of the squared clips"
)
"""What a clip for each layer takes for granted. Contract."""

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
    "has the same batches but for the one record"
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

FILTER_FIXED_IN_ADVANCE = (
    "the filter's order and budget were fixed before the first release; noise, rate, rank, clip and the decision to "
    "stop may depend on all that was released before, and on nothing else of the data"
)
"""Printed for a filter in place of a plan that is fixed in advance (C35)."""
