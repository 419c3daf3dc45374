"""``privproj dp-sft``: the noise of a two-stage run, a private subspace and training within it."""

import click

from privproj.accounting.two_stage import dp_sft
from privproj.errors import InvalidParameter
from privproj.records.data_file import write_data

from . import render
from .answer import EXIT_CODES
from .options import Once, OneOf, json_option, option, with_options


def plan_two_stages(
    epsilon: float,
    delta: float,
    sampling_rate: float,
    subspace_steps: float,
    steps: float,
    share: float | None,
    budget: str | None,
    public: bool,
    output: str | None,
    json: bool,
) -> int:
    """Noise multipliers for DP-SFT: a private search for a subspace, then training within it.

    \b
    Example:
      privproj dp-sft --epsilon 4 --delta 1e-5 --sampling-rate 0.01 --subspace-steps 1000 --steps 1000
    """
    for name, value in (("--share", share), ("--budget", budget)):
        if public and value is not None:
            raise InvalidParameter(name, value, f"no {name} with --public, which has one stage to pay for")
    schedule = dp_sft(
        epsilon=epsilon,
        delta=delta,
        sampling_rate=sampling_rate,
        steps=(subspace_steps, steps),  # pyright: ignore[reportArgumentType]
        share=0.75 if share is None else share,
        budget=budget or "joint",
        public=public,
    )
    result = schedule.epsilon(delta=delta)
    if output is not None:
        write_data(output, schedule.as_dict())
    click.echo(render.as_json(result.as_dict()) if json else render.run_text(result, schedule))
    return EXIT_CODES[result.outcome]


command = with_options(
    [
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
    ],
    plan_two_stages,
    name="dp-sft",
)
