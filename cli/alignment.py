"""Implement ``privproj alignment`` and ``privproj lora-noise``: assumptions of wishart, and moments of LoRA."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import click

from privproj.mechanisms.sketch.lora_noise import lora_noise
from privproj.mechanisms.wishart import alignment
from privproj.result import round_outward

from . import render
from .options import Group, command_with, json_option, options_from

command = Group("alignment", help="Misalignment of means, the gain of pre-processing, the price of projected descent.")


# The mean of a batch differs more between neighboring datasets than the mean of all records.
BATCHES = (
    "for a release on {records:g} records, no fewer: where batches are sampled or the data partitioned, take as "
    "--records the size of the smallest batch, and no Poisson sampling, whose batches may be of any size"
)

MISALIGNMENT = "misalignment", "1 - cosine: 0 is the same direction, 1 a right angle, 2 the opposite"
CONDITION = "condition number", "largest over smallest eigenvalue: 1 is best"  # label and scale of a result


def helper(
    ask: Callable[..., float], quantity: tuple[str, str], short: str, note: str, example: str, assumes: str = ""
) -> None:
    """Add one command for a helper: it prints a number, its interpretation, and its assumptions on the parameters.

    ``short`` describes the helper in the list of commands.
    """
    label, scale = quantity

    def run(json: bool, **options: Any) -> int:
        record = {label: ask(**options), "note": note, "requirements": [assumes.format(**options)] if assumes else []}
        lines = [f"{label} = {round_outward(record[label])}  ({scale})", f"  {note}"]
        lines += render.labeled({"requirements": record["requirements"]})
        click.echo(render.as_json(record) if json else "\n".join(lines))
        return 0

    full = f"{(ask.__doc__ or '').partition(chr(10))[0]}\n\n\b\nExample:\n  privproj alignment {example}"
    params = [*options_from(ask), json_option()]
    command.command(example.split()[0], params=params, help=full, short_help=short)(run)


helper(
    alignment.mean_misalignment,
    MISALIGNMENT,
    "Misalignment of normalized means, from the least norm of a mean.",
    "promise that no mean is shorter than the norm floor; pass this as --misalignment",
    "mean --norm-bound 1 --norm-floor 0.1 --records 5000",
    BATCHES,
)
helper(
    alignment.preprocessed_misalignment,
    MISALIGNMENT,
    "What is left of a misalignment after noise and normalizing again.",
    "after adding the noise and normalizing again; pass this as --misalignment and add beta to delta",
    "preprocess --misalignment 0.8 --gamma 3 --dim 10000 --beta 1e-6",
)
helper(
    alignment.descent_condition,
    CONDITION,
    "How much more slowly projected gradient descent may converge.",
    "gradient descent along M grad may converge this much more slowly, but for twice the failure probability",
    "descent --dim 100 --rank 10000 --failure 1e-3",
)


@command_with("lora-noise", *options_from(lora_noise), json_option())
def lora_noise_command(json: bool, **options: Any) -> int:
    """Print the exact moments of the entries of LoRA's noise term u = q (A^T A - I). This is not a privacy guarantee.

    \b
    Example:
      privproj lora-noise --rank 16 --entry 0.1 --row-norm 1 --initialization uniform --variance 0.0026
    """
    moments = lora_noise(**{name: value for name, value in options.items() if value is not None})
    lines = [f"mean = {moments.mean:.6g}, standard deviation = {moments.variance**0.5:.6g}"]
    lines.append("  of one entry of the noise term, in the unit of the gradient row")
    if moments.rank_rate is not None:
        lines.append(f"  Gaussian up to an open constant times {moments.rank_rate:.4g} in total variation")
    lines.append(f"  this is {moments.warning}")
    click.echo(render.as_json(asdict(moments)) if json else "\n".join(lines))
    return 0


COMMANDS = {"alignment": command, "lora-noise": lora_noise_command}
