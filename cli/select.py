"""``privproj select``: what it costs to release the best of a random number of runs."""

from typing import Any

import click

from privproj.errors import Unanswered
from privproj.extensions.selection import select
from privproj.extensions.trial_laws import SHAPES
from privproj.mechanisms.registry import mechanism_named
from privproj.result import Outcome, Result, round_outward

from . import render
from .answer import EXIT_CODES, build_mechanism, take_run, with_clip_and_size
from .declared import MECHANISMS, answer_of, declared_by, example_words, run_of, target_of, value
from .groups import Group
from .options import built, sectioned, with_options
from .output import write

SUMMARY = "The best of a random number of runs, chosen by score: what choosing it costs."

HELP = f"""{SUMMARY}

Give --delta for epsilon, --epsilon for delta, or both, without --noise-multiplier, for the smallest noise.
Then draw the number of runs with privproj.draw_trials, and release only the best.
"""

TRIALS = (
    value("--trials", "Expected number of runs.", "M", required=True),
    value("--distribution", "Law of the number of runs.  [default: geometric]", type=tuple(SHAPES)),
    value("--shape", "Shape of the law, for negative-binomial.", "ETA"),
)
"""The options that say how many runs there are."""

BESIDE = {
    "epsilon_of_one_run": "one run, without the choice, has epsilon",
    "epsilon_of_all_trials": "a fixed number of as many runs, all of them released, has epsilon",
}
"""What stands beside an epsilon: the field of its numerics, and what it is."""

command = Group("select", help=HELP, short_help=SUMMARY)


def select_command(name: str) -> click.Command:
    """Build the command ``privproj select MECHANISM``."""
    kind = mechanism_named(name)
    own = built(
        (option, words, {**settings, "required": False}) for option, words, settings in declared_by(name, "select")
    )

    def run(json: bool, **options: Any) -> int:
        parameters = {str(option.name): options.pop(str(option.name)) for option in own}
        size, setting = options.get("dataset_size"), take_run(options)
        mechanism = build_mechanism(kind, parameters)
        given = {key: found for key, found in options.items() if found is not None}
        try:
            result = select(mechanism, **given, **setting)
        except Unanswered as error:
            if json and isinstance(error.result, Result):
                write(render.as_json(error.result.as_dict()))
            raise
        result = with_clip_and_size(result, mechanism, None, size)
        write(render.as_json(result.as_dict()) if json else text(result))
        return EXIT_CODES[result.outcome]

    words = " ".join(["privproj select", name, *example_words(name, "epsilon"), "--trials 10 --delta 1e-5"])
    return with_options(
        sectioned(own, built([*TRIALS, *run_of("compare")]), built(target_of("compare")), built(answer_of("select"))),
        run,
        name=name,
        help=f"{kind.summary}\n\n\b\nExample:\n  {words}",
        short_help=kind.summary,
    )


def text(result: Result) -> str:
    """Say the number, what it rests on, the law of the number of runs, and what is often quoted in its place."""
    law: Any = result.run["selection"]
    shown = f", shape {law['shape']:g}, gamma {law['gamma']:.6g}" if "gamma" in law else ""
    words = f"the best of a random number of runs, {law['distribution']} of mean {law['expected_trials']:g}{shown}"
    lines = [*render.result_lines(result), *render.wrap_line("  trials:   ", words)]
    numerics: Any = result.numerics
    parts = [f"{label} {round_outward(numerics[key])}" for key, label in BESIDE.items() if key in numerics]
    lines += render.wrap_line("  beside:   ", "; ".join(parts))
    if result.outcome is Outcome.OK:
        lines += render.numerics_line(result.numerics)
    return "\n".join(lines + render.closing_lines(result))


for name in MECHANISMS:
    command.add_command(select_command(name))
