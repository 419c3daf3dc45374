"""``privproj dp-sft``: the noise of a two-stage run, a private subspace and training within it."""

from typing import Any

from privproj.accounting.schedule import dp_sft
from privproj.errors import InvalidParameter

from .options import Once, OneOf, command_with, json_option, option, options_from
from .run import show_run


@command_with(
    "dp-sft",
    *options_from(dp_sft, "epsilon", "delta", "sampling_rate", "share"),
    option("--subspace-steps", "Steps of the search for the subspace.", metavar="T1", required=True),
    option("--steps", "Steps of the training.", metavar="T2", required=True),
    option("--budget", "Compose jointly, or split.  [default: joint]", type=OneOf(["joint", "split"])),
    option("--public", "The subspace comes from public data and costs nothing.", is_flag=True),
    Once(["--output", "-o"], help="Write the phases to a run file (.toml or .json).", metavar="FILE"),
    json_option(),
)
def command(
    subspace_steps: float,
    steps: float,
    budget: str | None,
    public: bool,
    output: str | None,
    json: bool,
    **given: Any,
) -> int:
    """Noise multipliers for DP-SFT: a private search for a subspace, then training within it.

    \b
    Example:
      privproj dp-sft --epsilon 4 --delta 1e-5 --sampling-rate 0.01 --subspace-steps 1000 --steps 1000
    """
    for name, value in (("--share", given["share"]), ("--budget", budget)):
        if public and value is not None:
            raise InvalidParameter(name, value, f"no {name} with --public, which has one stage to pay for")
    given |= {"steps": (subspace_steps, steps), "budget": budget, "public": public}
    schedule = dp_sft(**{name: value for name, value in given.items() if value is not None})
    return show_run(schedule.epsilon(delta=given["delta"]), schedule, output, json)
