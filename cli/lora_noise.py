"""``privproj lora-noise``: moments of LoRA's noise term, a diagnostic."""

from dataclasses import asdict
from typing import Any

import click

from privproj.diagnostics.lora_moments import lora_noise

from . import render
from .options import command_with, json_option, options_from


@command_with(
    "lora-noise",
    *options_from(lora_noise),
    json_option(),
)
def command(json: bool, **options: Any) -> int:
    """Exact moments of LoRA's noise term u = q (A^T A - I), entry by entry. Not a privacy guarantee.

    \b
    Example:
      privproj lora-noise --rank 16 --entry 0.1 --row-norm 1 --initialisation uniform --variance 0.0026
    """
    moments = lora_noise(**{name: value for name, value in options.items() if value is not None})
    if json:
        click.echo(render.as_json(asdict(moments)))
        return 0
    click.echo(f"mean = {moments.mean:.6g}, standard deviation = {moments.variance**0.5:.6g}")
    click.echo("  of one entry of the noise term, in the unit of the gradient row")
    if moments.rank_rate is not None:
        click.echo(f"  Gaussian up to an open constant times {moments.rank_rate:.4g} in total variation")
    click.echo(f"  this is {moments.warning}")
    return 0
