"""Implement ``privproj select``: the release of the best of a random number of runs."""

import math
from typing import Any

from privproj_cli import render
from privproj_cli.options import json_option, options_from, requirements_option
from privproj_cli.query import QueryGroup, bound_option, refuted_option, show

from privproj.contrib.selection.selection import select
from privproj.mechanisms import Mechanism
from privproj.result import Result, round_outward
from privproj.run import RunOptions

# fields of the numerics that are printed with an epsilon for comparison, and their text
COMPARISONS = {
    "epsilon_of_one_run": "for one run",
    "epsilon_of_all_trials": "for {count} runs, if their number is fixed in advance and all are released",
}


def show_selection(mechanism: Mechanism, run: RunOptions, json: bool, verbose: bool, **options: Any) -> int:
    """Compute the privacy of releasing the best of a random number of runs.

    Pass --delta for epsilon and --epsilon for delta. Pass both, without --noise-multiplier, for the smallest noise
    multiplier. Draw the number of runs with privproj.contrib.selection.draw_trials, and release only the best run.
    """
    result = select(mechanism, **{key: value for key, value in options.items() if value is not None}, **run)
    return show(result, json, lambda: selection_text(result, verbose))


def selection_text(result: Result, verbose: bool = False) -> str:
    """Return a result of ``privproj select`` as text."""
    trials: Any = result.run["selection"]
    numerics: Any = result.numerics
    shape = f"shape {trials['shape']:g}, " if trials["distribution"] == "negative-binomial" else ""
    shape = f" ({shape}success probability {trials['gamma']:.6g})" if "gamma" in trials else ""
    mean = f"{trials['distribution']} distribution with mean {trials['expected_trials']:g}"
    text = f"a random number of runs, {mean}{shape}"
    count = math.ceil(trials["expected_trials"] * (1.0 - 1e-9))
    epsilons = [
        f"epsilon {round_outward(numerics[key])} {of.format(count=count)}"
        for key, of in COMPARISONS.items()
        if key in numerics
    ]
    return render.answer_text(result, {"trials": text, "comparison": epsilons}, verbose=verbose)


select_command = QueryGroup(
    "select",
    show_selection,
    [json_option(), requirements_option(), bound_option(), refuted_option()],
    options_from(select, "trials", "distribution", "shape"),
    example="--trials 10 --delta 1e-5",
    finds_noise=True,
)
