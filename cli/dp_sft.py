"""``privproj dp-sft``: the noise of a two-stage run, a private subspace and training within it."""

from typing import Any

from privproj.accounting.two_stage import dp_sft
from privproj.errors import InvalidParameter

from .options import Once, OneOf, command_with, json_option, option
from .run import show_run


@command_with(
    "dp-sft",
    option("--epsilon", "Privacy loss epsilon of both stages.", metavar="E", required=True),
    option("--delta", "Failure probability delta.", metavar="D", required=True),
    option("--sampling-rate", "Rate at which a step samples records.", metavar="Q", required=True),
    option("--subspace-steps", "Steps of the search for the subspace.", metavar="T1", required=True),
    option("--steps", "Steps of the training.", metavar="T2", required=True),
    option("--share", "Share of the first stage in the split.  [default: 0.75]", metavar="P"),
    option("--budget", "Compose jointly, or split.  [default: joint]", type=OneOf(["joint", "split"])),
    option("--public", "The subspace comes from public data and costs nothing.", is_flag=True),
    Once(["--output", "-o"], help="Write the phases to a run file (.toml or .json).", metavar="FILE"),
    json_option(),
)
def command(
    subspace_steps: float,
    steps: float,
    share: float | None,
    budget: str | None,
    public: bool,
    output: str | None,
    json: bool,
    **given: float,
) -> int:
    """Noise multipliers for DP-SFT: a private search for a subspace, then training within it.

    \b
    Example:
      privproj dp-sft --epsilon 4 --delta 1e-5 --sampling-rate 0.01 --subspace-steps 1000 --steps 1000
    """
    for name, value in (("--share", share), ("--budget", budget)):
        if public and value is not None:
            raise InvalidParameter(name, value, f"no {name} with --public, which has one stage to pay for")
    both: Any = (subspace_steps, steps)
    parts: Any = {"share": 0.75 if share is None else share, "budget": budget or "joint", "public": public}
    schedule = dp_sft(**given, steps=both, **parts)
    return show_run(schedule.epsilon(delta=given["delta"]), schedule, output, json)
