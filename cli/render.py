"""Results as text and JSON. Text rounds to four significant digits on the safe side."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from privproj.assumptions import REPLACE_SENSITIVITY
from privproj.mechanisms.registry import ROLES
from privproj.result import Outcome, Result, Side, Status, as_plain_value, round_outward
from privproj.run import RunOptions, run_words

if TYPE_CHECKING:
    from privproj.accounting.comparison import Comparison
    from privproj.accounting.utility import Worth
    from privproj.mechanisms import Mechanism
    from privproj.mechanisms.bound import Bound

MOST_NAMES = 6
"""Bounds or entries that are named before one assumption. Contract."""

WIDEST = 100
"""Columns that a line of text may have. Contract."""

NARROWEST = 40
"""Columns below which lines are not broken for a narrow terminal. Contract."""

SYMBOLS = {
    "sigma": "noise multiplier",
    "rate": "sampling rate",
    "tpr": "true positive rate",
    "gdp_mu": "gdp mu",
}
FITTED = ("sigma", "rank", "steps", "rate", "misalignment")


def as_json(value: Any) -> str:
    """Return one JSON object as text; answers stand in it as plain values."""
    import json

    return json.dumps(value, indent=2, allow_nan=False, default=lambda answer: answer.as_dict())


def delta_shown(value: float) -> str:
    """Say a delta, as ``< 1e-300`` where it is smaller."""
    return "< 1e-300" if value <= 1.01e-300 else round_outward(value)


def as_text(result: Result, mechanism: "Mechanism", run: RunOptions, worth: "Worth | None" = None) -> str:
    """Say an answer: the number, what it rests on, gain and worth, assumptions and warnings."""
    parts = {
        "gain": gain_words(result, mechanism, run, worth) if result.outcome is Outcome.OK else "",
        "worth": worth_words(worth) if worth is not None and worth.projection_error > 0.0 else "",
        "noise": noise_words(result),
    }
    return answer_text(result, parts)


def answer_text(result: Result, parts: Mapping[str, str | Iterable[str]], first: Iterable[str] = ()) -> str:
    """Say an answer: first the number and what it rests on, unless told otherwise, then sentences under their labels.

    The last labels are those of what is known from below, how a run was composed in floats, what is proved in balls,
    assumptions and warnings.
    """
    evidence = {
        "at least": at_least_words(result),
        "numerics": numerics_words(result),
        "certified": certified_words(result),
    }
    return "\n".join([*(first or result_lines(result)), *labelled({**parts, **evidence, **closing(result)})])


def noise_words(result: Result) -> str:
    """Say the standard deviation of the noise for a clip that was given."""
    if result.noise_std is None:
        return ""
    formula = "2 z C" if result.run["relation"] == "replace" else "z C"
    formula = f"sqrt(2) {formula}" if result.mechanism["name"] == "laplace" else formula
    return f"standard deviation {formula} = {round_outward(result.noise_std)} for the given clip C"


def closing(result: Result) -> dict[str, tuple[str, ...]]:
    """Assumptions and warnings by their labels."""
    return {"assumes": result.assumes, "warning": result.warnings}


def result_lines(result: Result) -> list[str]:
    """Say the number and what it rests on."""
    return [headline(result), *fit_line("  rests on: ", foundation_line(result))]


def at_least_words(result: Result) -> str:
    """Say below what no accounting can go, and how far the answer is above that at most."""
    least, of_delta = result.lower_bound, result.quantity == "delta"
    if least is None:
        return ""
    seer = f", against {least.for_whom}" if least.for_whom else ""
    number = power_of_ten(least.value) if of_delta else round_outward(least.value, up=False)
    if least.quantity == "advantage":
        return f"advantage {number} with this noise multiplier, whatever the accounting{seer}"
    words, answer, ratio = f"{least.quantity.removeprefix('log10_')} {number}", "this answer is", None
    if result.quantity not in ("delta", "epsilon"):
        words, answer = f"{words} with this noise multiplier", "the epsilon asked for is"
    words += f" by any accounting{seer}"
    if of_delta and result.log10_delta is not None:
        ratio = 10.0 ** min(result.log10_delta - least.value, 300.0)
    elif not of_delta and result.epsilon is not None:
        ratio = result.epsilon / least.value
    words += f": {answer} at most {excess_words(ratio)} the truth" if ratio else ""
    return words + (f"; {least.gap}" if least.gap else "")


def power_of_ten(log10_value: float) -> str:
    """Say a probability by its decimal logarithm, rounded down."""
    return round_outward(10.0**log10_value, up=False) if log10_value > -300.0 else f"10^{math.floor(log10_value)}"


def two_digits(value: float) -> str:
    """A number to two digits, or from 100 on to the nearest whole number: never with a power of ten beside 99."""
    return f"{value:.2g}" if value < 99.5 else f"{value:.0f}"


def excess_words(ratio: float) -> str:
    """Say by how much a ratio is above 1, rounded up to two digits."""
    if ratio >= 2.0:
        return f"{math.ceil(10.0 * ratio) / 10.0:g} times"
    percent = max(100.0 * (ratio - 1.0), 0.01)
    scale = 10.0 ** (1 - math.floor(math.log10(percent)))
    return f"{math.ceil(percent * scale - 1e-9) / scale:g} % above"


def numerics_words(result: Result) -> str:
    """Say on which grid a run was composed in floats, and what is proved about its errors; of a proof nothing more."""
    numerics: Any = result.numerics
    proof, composer = numerics.get("certified"), numerics.get("composer")
    bounded = "all its errors are bounded and included"
    if proof is not None and "grid_step" in proof:
        return ""
    if composer is None:
        return f"an epoch as a {numerics['epoch']}, {numerics['atoms']} atoms; {bounded}" if "epoch" in numerics else ""
    if "orders" in numerics:
        words = f"Renyi divergences at {numerics['orders']} orders, added by {composer}; its rounding is covered by "
        return f"{words}{numerics['added_to_divergence']:.1e} added to divergences ({numerics['rounding']})"
    grid = numerics.get("grid")
    if "grid_step" in numerics:
        grid = f"grid {numerics['grid_step']:.3g}, {numerics['grid_points']} points"
    if "added_to_delta" in numerics:
        bounded = f"its rounding is covered by {numerics['added_to_delta']:.1e} added to delta ({numerics['rounding']})"
    return f"{grid}, composed by {composer}; {bounded}"


def certified_words(result: Result) -> str:
    """Say what ball arithmetic proves about the delta of an answer, its ends rounded outward to twelve digits."""
    proof: Any = result.numerics.get("certified")
    if proof is None:
        return ""
    from decimal import ROUND_CEILING, ROUND_FLOOR, Context

    ways = {"lower": ROUND_FLOOR, "upper": ROUND_CEILING}
    least, most = (Context(12, way, -(10**9), 10**9).create_decimal(proof[end]) for end, way in ways.items())
    at = "".join(f" at {name} {value:.6g}" for name, value in proof["witness"].items())
    # Below nothing may be known, which is no 0.
    left_side = f"{least} <= " if least else ""
    return f"{left_side}the bound's delta{at} <= {most}, proved by {proof['arithmetic']}, {proof['bits']} bits"


def terminal_width() -> int | None:
    """The columns of the terminal that is written to; None for a file or a pipe."""
    import sys

    if sys.stdout is None or not sys.stdout.isatty():
        return None
    from shutil import get_terminal_size

    return max(get_terminal_size((WIDEST, 24)).columns, NARROWEST)


def fit_line(label: str, text: str) -> list[str]:
    """A line that a script may look for: broken where a terminal is narrower, and whole in a file or a pipe."""
    width = terminal_width()
    return [label + text] if width is None or len(label + text) < min(width, WIDEST) else wrap_line(label, text)


def labelled(parts: Mapping[str, str | Iterable[str]]) -> list[str]:
    """Each sentence behind its label, as :func:`wrap_line` breaks it; what is empty is not said."""
    lines = []
    for label, sentences in parts.items():
        lines += wrap_line(f"  {label + ':':<9} ", *([sentences] if isinstance(sentences, str) else sentences))
    return lines


def wrap_line(label: str, *texts: str, width: int | None = None) -> list[str]:
    """Each text behind the label, in lines of so many characters; there are none for an empty text.

    The width is :data:`WIDEST` unless given, or that of a narrower terminal.
    """
    from textwrap import wrap

    most = width or min(WIDEST, terminal_width() or WIDEST)
    settings: Any = {"break_long_words": False, "break_on_hyphens": False, "subsequent_indent": " " * len(label)}
    unbroken = (" ".join(text.split()) for text in texts)
    return [line for text in unbroken for line in wrap(text, most - 1, initial_indent=label, **settings)]


def table_lines(sides: str, rows: Iterable[Sequence[str]]) -> list[str]:
    """Rows in columns of their widths, of which each is put to its side: ``<`` for words, ``>`` for numbers."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [zip(row, sides * len(row), widths, strict=False) for row in rows]
    lines = ["  ".join(f"{cell:{side}{width}}" for cell, side, width in row).rstrip() for row in cells]
    return [line for unbroken in lines for line in fit_line("", unbroken)]


def headline(result: Result) -> str:
    """Say the number: the first line of every answer."""
    quantity, value, target = result.quantity, result.value, result.target_words
    name, at = SYMBOLS.get(quantity, quantity), f"at {target}"
    if value is None:
        return f"{name}: nothing fits {at}"
    if result.outcome is Outcome.VACUOUS:
        return f"{name}: {'nothing below 1' if name == 'delta' else f'no finite {name}'} {at}"
    if name == "rank" and result.lower not in (None, value):
        return f"rank = {result.lower} to {value}  (smallest and largest that meet {target})"
    number = delta_shown(value) if name == "delta" else round_outward(value, up=result.side is not Side.LOWER)
    smallest = quantity == "sigma" or (name == "rank" and result.side is Side.UPPER)
    side = str(result.side)
    if result.side is Side.NONE:
        side = f"NOT A GUARANTEE, {at}"
    elif quantity in FITTED:
        side = f"{'smallest' if smallest else 'largest'} that meets {target}"
    elif target:
        side = f"{side}, {at}"
    return f"{name} {number}  ({side})" if number.startswith("<") else f"{name} = {number}  ({side})"


def foundation_line(result: Result) -> str:
    """Say what the number rests on: bound, status, promises, relation and run."""
    # What is refuted is no better for asking nothing of the data.
    nothing = ", no promise on the data" if result.side is not Side.NONE else ""
    promises = "; promise: " + "; ".join(result.promises) if result.promises else nothing
    return f"{result.bound} ({result.status}{promises}); {relation_words(result)}; {run_words(result.run)}"


def relation_words(result: Result) -> str:
    """Say the relation, and what a noise multiplier is measured against where that is twice the clip."""
    run: Any = result.run
    doubled = REPLACE_SENSITIVITY in run["assumes"]
    noise = "scale" if result.mechanism.get("name") == "laplace" else "sigma"
    return f"{run['relation']}{f', noise multiplier = {noise}/(2C)' * doubled}"


def gain_words(result: Result, mechanism: "Mechanism", run: RunOptions, worth: "Worth | None" = None) -> str:
    """Say what plainer accounting gives for the same question."""
    if mechanism.name not in {kind for (kind, _), role in ROLES.items() if role != "renyi"}:
        return ""
    from privproj.accounting.comparison import compare_with_baselines

    say = delta_shown if result.quantity == "delta" else round_outward
    plain = worth and worth.dp_sgd_noise_multiplier
    parts = [f"{label} {say(value)}" for label, value in compare_with_baselines(result, mechanism, run, plain)]
    if not parts:
        return ""
    return f"{', '.join(parts)}, this bound as above: {mechanism.gain_words(of_noise=result.quantity == 'sigma')}"


def worth_words(worth: "Worth") -> str:
    """Say the noise and the projection error of an update beside DP-SGD's, at equal privacy."""
    over = f"averaged to {two_digits(worth.projection_error_of_run)} by {worth.releases} fresh projections"
    return (
        f"the update is as noisy as that of DP-SGD with multiplier {worth.effective_noise_multiplier:.4g}, "
        f"{worth.noise_over_dp_sgd:.2f} times the {worth.dp_sgd_noise_multiplier:.4g} that DP-SGD needs for this "
        f"privacy; by projecting it misses {worth.projection_error:.4g} times its own square, "
        f"{over if worth.releases > 1 else 'which no other projection averages out'}: `explain worth`"
    )


def run_text(result: Result) -> str:
    """Say the number of a run file, then every phase."""
    from privproj.io.run_file import what_was_run

    lines = [headline(result), *fit_line("  rests on: ", f"{result.bound} ({result.status}); {relation_words(result)}")]
    phases: Any = result.mechanism["phases"]
    for phase, words in zip(phases, what_was_run(result), strict=True):
        lines += fit_line(f"  {phase['name']}: ", words)
    parts: dict[str, Any] = {"promise": result.promises}
    if result.quantity == "gdp_mu" and result.outcome is Outcome.OK:
        regret, rate = (round_outward(result.numerics[name]) for name in ("regret", "exact_from"))  # pyright: ignore
        parts["regret"] = f"at most {regret}; no slack where both error rates are at least {rate}"
        parts["meaning"] = GDP_NOTES
    return answer_text(result, parts, lines)


GDP_NOTES = (
    "the true delta(epsilon) <= max(G_mu(epsilon), slack) at every epsilon, and f(a) >= G_mu(a) - slack at every false "
    "positive rate a, with f the least false negative rate of an attack and G that of two Gaussians at distance mu",
    "f(a) >= G_mu(a), without a slack, where a and G_mu(a) are at least the rate from which there is none",
    "regret: how much likelier the best attack by G_mu guesses right than the best one by the bound, at any prior",
)


def comparison_text(rows: "Sequence[Comparison]") -> str:
    """Say what was asked, a table of values, the promises in full, and why other bounds do not answer."""
    answered = [row.result for row in rows if row.result is not None and row.result.value is not None]
    lines, table = [], []
    for result in answered:
        value: Any = result.value
        rounded = delta_shown(value) if result.quantity == "delta" else round_outward(value)
        table.append((rounded, result.bound, str(result.status)))
    if answered:
        first, relations = answered[0], ", ".join(dict.fromkeys(map(relation_words, answered)))
        asked = f"{first.quantity} of {first.mechanism['name']} at {first.target_words}"
        lines += wrap_line("", f"{asked}; {relations}; {run_words(first.run)}")
        lines += table_lines("><<", [(first.quantity, "bound", "status"), *table])
    lines += assumption_lines({result.bound: result.promises for result in answered}, "promise")
    free = [result for result in answered if result.usable and result.status is Status.PROVED]
    if free:
        lines += fit_line("", f"smallest without a promise on the data: {free[0].bound}")
    others = [row for row in rows if row.result is None or row.result.value is None]
    lines += fit_line("", "bounds that do not answer here, and why:") if others else []
    lines += table_lines("<", [(f"  {row.bound.name}", row.short or "no number") for row in others])
    lines += assumption_lines({result.bound: result.assumes for result in answered})
    warnings = dict.fromkeys(words for result in answered for words in result.warnings)
    return "\n".join([*lines, *wrap_line("warning: ", *warnings)])


def assumption_lines(assumed: Mapping[str, Iterable[str]], label: str = "assumes") -> list[str]:
    """Say what several bounds take for granted, as :func:`each_with_owners` has it."""
    return wrap_line(f"{label}: ", *each_with_owners(assumed))


def each_with_owners(sentences_of: Mapping[str, Iterable[str]]) -> list[str]:
    """Each sentence once, with the names of those who say it where not all of them do."""
    owners: dict[str, list[str]] = {}
    for name, sentences in sentences_of.items():
        for words in sentences:
            owners.setdefault(words, []).append(name)
    lines = []
    for words, of in owners.items():
        more = f" and {len(of) - MOST_NAMES} more" if len(of) > MOST_NAMES else ""
        lines.append(words if len(of) == len(sentences_of) else f"({', '.join(of[:MOST_NAMES])}{more}) {words}")
    return lines


def bound_record(bound: "Bound") -> dict[str, Any]:
    """Return the record of a bound as plain values."""
    names = ("name", "summary", "formula", "source", "proof", "example", "status", "relations", "version")
    return {"mechanism": bound.mechanism.name, **{name: as_plain_value(getattr(bound, name)) for name in names}}


def bound_page(bound: "Bound") -> list[str]:
    """Say all about one bound, in lines."""
    first = f"{bound.mechanism.name}.{bound.name}, version {bound.version}"
    promised = "; an answer that rests on a promise of yours is conditional" * (bound.status is Status.PROVED)
    rows = {
        "summary": bound.summary,
        "formula": bound.formula,
        "source": bound.citation,
        "status": f"{bound.status}: `privproj explain {bound.status}` says what that is{promised}",
        "reason": bound.reason,
        "relation": ", ".join(bound.relations),
        "assumes": "; ".join(bound.assumes(bound.mechanism)) or "nothing beyond the sensitivity of the query",
    }
    return [first, *labelled(rows), *fit_line("  example:  ", bound.example)]
