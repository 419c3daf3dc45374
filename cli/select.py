"""``privproj select``: what it costs to release the best of a random number of runs."""

from typing import Any

from privproj.extensions.selection import select
from privproj.mechanisms import Mechanism
from privproj.result import Outcome, Result, round_outward
from privproj.runs import RunOptions

from . import render
from .answer import saying_unanswered, show, with_clip_and_size
from .options import options_from
from .query import QuestionGroup, bound_option, json_option, refuted_option

BESIDE = {
    "epsilon_of_one_run": "one run, without the choice, has epsilon",
    "epsilon_of_all_trials": "a fixed number of as many runs, all of them released, has epsilon",
}
"""What stands beside an epsilon: the field of its numerics, and what it is."""


def select_best(mechanism: Mechanism, run: RunOptions, json: bool, size: float | None, **options: Any) -> int:
    """The best of a random number of runs, chosen by score: what choosing it costs.

    Give --delta for epsilon, --epsilon for delta, or both, without --noise-multiplier, for the smallest noise.
    Then draw the number of runs with privproj.draw_trials, and release only the best.
    """
    given = {key: found for key, found in options.items() if found is not None}
    with saying_unanswered(json):
        result = select(mechanism, **given, **run)
    result = with_clip_and_size(result, mechanism, None, size)
    return show(result, json, lambda: text(result))


def text(result: Result) -> str:
    """Say the number, what it rests on, the law of the number of runs, and what is often quoted in its place."""
    law: Any = result.run["selection"]
    shown = f", shape {law['shape']:g}, gamma {law['gamma']:.6g}" if "gamma" in law else ""
    words = f"the best of a random number of runs, {law['distribution']} of mean {law['expected_trials']:g}{shown}"
    numerics: Any = result.numerics
    beside = [f"{label} {round_outward(numerics[key])}" for key, label in BESIDE.items() if key in numerics]
    parts = {
        "trials": words,
        "beside": "; ".join(beside),
        "numerics": render.numerics_words(result) if result.outcome is Outcome.OK else "",
        **render.closing(result),
    }
    return "\n".join([*render.result_lines(result), *render.labelled(parts)])


command = QuestionGroup(
    "select",
    select_best,
    [json_option(), bound_option(), refuted_option()],
    own_run=options_from(select, "trials", "distribution", "shape"),
    ending=lambda kind: "--trials 10 --delta 1e-5",
)


COMMANDS = {"select": command}
