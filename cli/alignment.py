"""Implement ``privproj alignment`` and ``privproj lora-noise``.

``alignment`` bounds the misalignment that the wishart mechanism assumes, and the cost of projected gradient descent.
``lora-noise`` prints moments of the noise that LoRA's random factor adds to a gradient.
"""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import click

from privproj.mechanisms.sketch.lora_noise import lora_noise
from privproj.mechanisms.wishart import alignment
from privproj.result import round_outward

from . import render
from .options import Group, command_with, json_option, options_from

command = Group(
    "alignment", help="Bound the misalignment that the wishart mechanism assumes, and the cost of projected descent."
)


# The mean of a batch differs more between neighboring datasets than the mean of all records.
BATCHES = (
    "every release uses at least {records:g} records. With sampled batches or a partition, set --records to the size "
    "of the smallest batch. Do not use Poisson sampling: its batches can have any size."
)

MISALIGNMENT = "misalignment", "1 - cosine, from 0 to 2"
CONDITION = (
    "condition number",
    "upper bound of largest / smallest eigenvalue of the Wishart matrix",
)  # label and scale of a result


def helper(
    ask: Callable[..., float], quantity: tuple[str, str], short: str, note: str, example: str, requirement: str = ""
) -> None:
    """Add a command to ``privproj alignment`` that prints a number and a note.

    ``ask`` computes the number, and its docstring is the help text. ``quantity`` is the label and the meaning of
    the number. ``short`` is the help text in the list of commands.
    """
    label, scale = quantity

    def run(json: bool, **options: Any) -> int:
        requirements = [requirement.format(**options)] if requirement else []
        record = {label: ask(**options), "note": note, "requirements": requirements}
        lines = [f"{label} = {round_outward(record[label])}  ({scale})"]
        lines += render.label_lines({"note": note, "requires": requirements})
        click.echo(render.as_json(record) if json else "\n".join(lines))
        return 0

    full = f"{(ask.__doc__ or '').partition(chr(10))[0]}\n\n\b\nExample:\n  privproj alignment {example}"
    params = [*options_from(ask), json_option()]
    command.command(example.split()[0], params=params, help=full, short_help=short)(run)


helper(
    alignment.mean_misalignment,
    MISALIGNMENT,
    "Bound the misalignment of normalized means from a lower bound of their norms.",
    "pass this value as --misalignment. It holds if the norm of every mean is at least --norm-floor.",
    "mean --norm-bound 1 --norm-floor 0.1 --records 5000",
    BATCHES,
)
helper(
    alignment.preprocessed_misalignment,
    MISALIGNMENT,
    "Bound the misalignment after adding noise and normalizing again.",
    "pass this value as --misalignment, and add --beta to delta",
    "preprocess --misalignment 0.8 --gamma 3 --dim 10000 --beta 1e-6",
)
helper(
    alignment.descent_condition,
    CONDITION,
    "Bound the slowdown of projected gradient descent.",
    "gradient descent along the projected gradient may converge more slowly by this factor. The bound fails with "
    "probability at most 2 * --failure.",
    "descent --dim 100 --rank 10000 --failure 1e-3",
)


@command_with("lora-noise", *options_from(lora_noise), json_option())
def lora_noise_command(json: bool, **options: Any) -> int:
    """Print the exact moments of one entry of the noise of a LoRA step. This is not a privacy guarantee.

    \b
    Example:
      privproj lora-noise --rank 16 --entry 0.1 --row-norm 1 --initialization uniform --variance 0.0026
    """
    moments = lora_noise(**{name: value for name, value in options.items() if value is not None})
    lines = [f"mean = {moments.mean:.6g}, standard deviation = {moments.variance**0.5:.6g}"]
    rate = moments.rank_rate
    distance = "" if rate is None else f"O({rate:.4g}) in total variation, with an unknown constant"
    parts = {
        "meaning": "LoRA updates a weight matrix as if the noise u = q (A^T A - I) were added to each row q of its "
        "gradient, where A is the random factor. The numbers are moments of one entry of u.",
        "distance to Gaussian": distance,
    }
    lines += [*render.label_lines(parts), *render.wrap_line("warning: ", f"this is {moments.warning}")]
    click.echo(render.as_json(asdict(moments)) if json else "\n".join(lines))
    return 0


COMMANDS = {"alignment": command, "lora-noise": lora_noise_command}
