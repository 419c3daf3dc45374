"""The commands that ask for one number: a group per quantity, a command per mechanism."""

from typing import Any

import click

from privproj.mechanisms.registry import mechanism_named

from .answer import answer_question
from .declared import MECHANISMS, QUANTITIES, answer_of, example_words
from .groups import Group
from .options import built, mechanism_options, run_options, sectioned, target_options, with_options


def query_group(quantity: str, summary: str) -> click.Group:
    """Build the command of a quantity: ``privproj QUANTITY MECHANISM [options]``."""
    group = Group(quantity, help=summary, short_help=summary)
    for name in MECHANISMS:
        if QUANTITIES[quantity](mechanism_named(name)):
            group.add_command(query_command(quantity, name))
    return group


def query_command(quantity: str, mechanism: str) -> click.Command:
    """Build the command ``privproj QUANTITY MECHANISM``."""
    summary = mechanism_named(mechanism).summary
    target = target_options(quantity)

    def run(**options: Any) -> int:
        return answer_question(quantity, mechanism, options)

    return with_options(
        sectioned(mechanism_options(mechanism, quantity), run_options(quantity), target, built(answer_of(quantity))),
        run,
        name=mechanism,
        help=f"{summary}\n\n\b\nExample:\n  {example(quantity, mechanism, target)}",
        short_help=summary,
    )


def example(quantity: str, mechanism: str, target: list[click.Option]) -> str:
    """Return a call that works, for the help text."""
    words = ["privproj", quantity, mechanism, *example_words(mechanism, quantity)]
    is_composed = QUANTITIES["sigma"](mechanism_named(mechanism))
    if quantity == "rate":
        words.append("--steps 1000" if is_composed else "--steps 1")
    elif quantity == "steps" and is_composed:
        words.append("--sampling-rate 0.01")
    values = {"epsilon": "--epsilon 1", "delta": "--delta 1e-5"}
    return " ".join([*words, *(values[o.name] for o in target if o.name in values)])
