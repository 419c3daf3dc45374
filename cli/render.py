"""Render results as text and JSON.

Results in text have four significant digits: upper bounds are rounded up, and lower bounds down.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from privproj.assumptions import Requirement, short_name
from privproj.result import (
    NAMES_IN_TEXT,
    Outcome,
    Result,
    Side,
    Status,
    as_plain_value,
    conditional_text,
    round_outward,
)
from privproj.run import ASSUMED_POISSON, Run, describe_run
from privproj.sampling import IN_EPOCHS

from .options import in_command

if TYPE_CHECKING:
    from privproj.accounting.comparison import Comparison
    from privproj.accounting.utility import Utility
    from privproj.mechanisms.bound import Bound


WIDEST = 100  # columns of a line
EXPLAIN_V, EXPLAIN_NAME = "(-v explains each)", "(`privproj explain NAME` explains each)"  # after requirements

UNBROKEN = re.compile(rf"{re.escape(EXPLAIN_V)}|\(\d+ of \d+ checks\)")  # texts that stay on one line

NARROWEST = 40  # columns below which lines are not wrapped

SYMBOLS = {
    "sigma": "noise multiplier",
    "rate": "sampling rate",
    "tpr": "true positive rate",
    "gdp_mu": "gdp mu",
}
FITTED = ("sigma", "rank", "steps", "rate", "misalignment")


def as_json(value: Any) -> str:
    """Return a value as JSON text, with a lower bound added to each contained result."""
    import json

    from privproj.accounting.lower_bounds import with_details

    def plain(row: Any) -> object:
        return with_details(row).as_dict() if isinstance(row, Result) else row.as_dict()

    return json.dumps(value, indent=2, allow_nan=False, default=plain)


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows with the same keys as CSV text with a header."""
    import csv
    import io

    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: "" if value is None else value for key, value in row.items()} for row in rows)
    return text.getvalue().rstrip("\n")


def delta_shown(value: float) -> str:
    """Return a delta as text; "< 1e-300" for a delta of at most 1.01e-300."""
    return "< 1e-300" if value <= 1.01e-300 else round_outward(value)


def as_text(
    result: Result,
    verbose: bool = False,
    utility: "Utility | None" = None,
    others: Mapping[str, float] | None = None,
) -> str:
    """Return a result as text.

    ``others`` are the values of other bounds by label.
    """
    parts = {
        "other bounds": other_bounds_text(result, others or {}),
        "utility": utility_text(utility) if utility is not None and utility.projection_error > 0.0 else (),
        "not used": not_used_text(result),
        "noise": noise_text(result),
        "mpmath": digits_text(result),
    }
    return answer_text(result, parts, verbose=verbose)


def answer_text(
    result: Result,
    parts: Mapping[str, str | Iterable[str]],
    first: Iterable[str] = (),
    verbose: bool | None = None,
) -> str:
    """Return a result as text, with labeled lines, requirements and warnings.

    Args:
        result: The result.
        parts: Further lines by their labels.
        first: The first lines; by default the value with the bound, the run and the neighboring relation.
        verbose: True to add lower bound, numerics, source and the full text of every requirement; None for a command
            without the option ``--verbose``.
    """
    details: dict[str, Any] = {}
    if verbose:
        details = {
            "lower bound": lower_bound_text(result),
            "numerics": numerics_text(result),
            "source": f"{result.source}; version {result.bound_version} of the bound in privproj",
        }
    requirements = {"requires": requirement_lines(result.requirements, verbose)}
    lines = [*(first or result_lines(result))]
    lines += label_lines({**parts, **details, "certified": certified_text(result), **requirements})
    return "\n".join([*lines, *warning_lines(result.warnings)])


def requirement_lines(texts: Iterable[str], verbose: bool | None) -> list[str]:
    """Return requirements as one line of short names, or if ``verbose`` as full texts.

    ``verbose`` is None for a command without the option ``--verbose``.
    """
    return requirements_of({"": texts}, verbose)


def requirements_of(texts_of: Mapping[str, Iterable[str]], verbose: bool | None) -> list[str]:
    """Return the requirements of several results as lines, each requirement once.

    ``texts_of`` maps the name of each result to its requirements. ``verbose`` is None for a command without the option
    ``--verbose``.
    """
    owners: dict[str, list[str]] = {}
    for name, texts in texts_of.items():
        for text in texts:
            owners.setdefault(text, []).append(name)
    lines, groups = [], dict[str, list[str]]()
    for text, names in owners.items():
        which = "" if len(names) == len(texts_of) else f"only {', '.join(names)}"
        short = short_name(text)
        lines.append(f"{short}{f' ({which})' if which else ''}: {text}" if short else f"{text}")
        groups.setdefault(which, []).append(short or text)
    if verbose or not lines:
        return lines
    brief = [(f"{which}: " if which else "") + ", ".join(groups[which]) for which in sorted(groups, key=bool)]
    return [*brief[:-1], f"{brief[-1]} {EXPLAIN_NAME if verbose is None else EXPLAIN_V}"]


def not_used_text(result: Result) -> str:
    """Return the options that have no influence on a result, each with the reason."""
    from privproj.mechanisms.registry import mechanism_named

    parameters, groups = result.mechanism, dict[tuple[str, ...], list[str]]()
    for name, bounds in mechanism_named(str(parameters["name"])).used_by:
        if name in parameters and result.bound not in bounds:
            groups.setdefault(bounds, []).append(f"--{name.replace('_', '-')}")
    texts = [f"{', '.join(names)} (used by --bound {' or '.join(bounds[:2])})" for bounds, names in groups.items()]
    if parameters.get("fixed_projection") and result.run.get("steps", 1) == 1:
        texts.append("--fixed-projection (one step has one projection)")
    return ", ".join(texts)


def noise_text(result: Result) -> str:
    """Return the standard deviation of the noise as text; empty without ``--clip``."""
    if result.noise_std is None:
        return ""
    formula = "2 z C" if result.run["relation"] == "replace" else "z C"
    formula = f"sqrt(2) {formula}" if result.mechanism["name"] == "laplace" else formula
    number = round_outward(result.noise_std)
    return f"standard deviation {number} ({formula}; z: noise multiplier, C: given clipping norm)"


def result_lines(result: Result) -> list[str]:
    """Return the lines of a result: value, assumptions, bound, run and neighbors."""
    parts = {"assumes": result.data_assumptions, "bound": bound_text(result), "run": run_line(result)}
    return [*fit_line("", headline(result)), *label_lines({**parts, "neighbors": neighbors_text(result)})]


def bound_text(result: Result) -> str:
    """Return the name of the bound of a result, with its status."""
    is_conditional = result.data_assumptions and result.status is Status.CONDITIONAL
    assumed = "this assumption" if len(result.data_assumptions) == 1 else "these assumptions"
    return f"{result.bound} ({f'proved under {assumed}' if is_conditional else result.status})"


def run_line(result: Result) -> str:
    """Return the number of steps and the sampling of a result as text."""
    run = result.run
    if result.quantity == "rate":  # rounded as in the first line; None if no rate fits
        run = {**run, "sampling_rate": result.value and float(round_outward(result.value, up=False))}
    return run_line_of(run, result.warnings)


def run_line_of(run: Mapping[str, Any], warnings: Iterable[str]) -> str:
    """Return the number of steps and the sampling of a run as text.

    ``warnings`` are those of the result, which may state that Poisson sampling was assumed.
    """
    run = {**Run().parameters(), **run}
    rate, sampling = run["sampling_rate"], run["sampling"]
    steps = "1 step" if run["steps"] == 1 else f"{run['steps']} steps"
    if sampling in IN_EPOCHS:
        return describe_run(run)
    if rate is None:
        return steps
    if sampling is None:
        return f"{steps} on the whole dataset"
    truncated = f", at most {run['max_batch_size']} of {run['dataset_size']} records" if "max_batch_size" in run else ""
    assumed = " (assumed)" if ASSUMED_POISSON in warnings else ""
    return f"{steps}, {NAMES_IN_TEXT[sampling]} sampling at rate {rate:.4g}{truncated}{assumed}"


def neighbors_text(result: Result) -> str:
    """Return how neighboring datasets differ, such as "add or remove one record"."""
    run: Any = result.run
    verb = {"add-remove": "add or remove", "replace": "replace", "zero-out": "zero out"}[str(run["relation"])]
    records = "one record" if run["group_size"] == 1 else f"up to {run['group_size']} records of one user"
    if Requirement.REPLACE_SENSITIVITY not in run["requirements"]:
        return f"{verb} {records}"
    noise = "scale" if result.mechanism.get("name") == "laplace" else "sigma"
    return f"{verb} {records}; noise multiplier = {noise}/(2C)"


def lower_bound_text(result: Result) -> str:
    """Return a lower bound of the true epsilon, delta or advantage as text, if any."""
    below, is_delta = result.lower_bound, result.quantity == "delta"
    if below is None:
        return ""
    adversary = f", against {below.for_whom}" if below.for_whom else ""
    number = power_of_ten(below.value) if is_delta else round_outward(below.value, up=False)
    if below.quantity == "advantage":
        return f"advantage >= {number} with this noise multiplier{adversary}"
    text, ratio = f"{below.quantity.removeprefix('log10_')} >= {number}", None
    if result.quantity not in ("delta", "epsilon"):
        text += " with this noise multiplier"
    if is_delta and result.log10_delta is not None:
        ratio = 10.0 ** min(result.log10_delta - below.value, 300.0)
    elif not is_delta and result.epsilon is not None:
        ratio = result.epsilon / below.value
    gap = f" (gap <= {gap_text(ratio)})" if ratio else ""
    return text + adversary + gap + (f"; {below.gap}" if below.gap else "")


def power_of_ten(log10_value: float) -> str:
    """Return a probability as text, rounded down, from its logarithm to base 10."""
    return round_outward(10.0**log10_value, up=False) if log10_value > -300.0 else f"10^{math.floor(log10_value)}"


def two_digits(value: float) -> str:
    """Return a number as text with two significant digits; a whole number from 100 on."""
    return f"{value:.2g}" if value < 99.5 else f"{value:.0f}"


def gap_text(ratio: float) -> str:
    """Return a ratio as text, rounded up: "a factor of 2.1", or "5.3 %" for 1.053."""
    if ratio >= 2.0:
        return f"a factor of {math.ceil(10.0 * ratio) / 10.0:g}"
    percent = max(100.0 * (ratio - 1.0), 0.01)
    scale = 10.0 ** (1 - math.floor(math.log10(percent)))
    return f"{math.ceil(percent * scale - 1e-9) / scale:g} %"


def numerics_text(result: Result) -> str:
    """Return numerical parameters and errors of a result as text; may be empty."""
    numerics: Any = result.numerics
    proof, composer = numerics.get("certified"), numerics.get("composer")
    bounded = "all numerical errors are bounded and included"
    if proof is not None and "grid_step" in proof:
        return ""
    if composer is None and "tau" in numerics:
        return f"tau = {numerics['tau']:.6g}, threshold on the share of the squared norm that the projection keeps"
    if composer is None:
        return f"an epoch as a {numerics['epoch']}, {numerics['atoms']} atoms; {bounded}" if "epoch" in numerics else ""
    if "orders" in numerics:
        sentence = f"Renyi divergences at {numerics['orders']} orders, added by {composer}; its rounding is covered by "
        return f"{sentence}{numerics['added_to_divergence']:.1e} added to divergences ({numerics['rounding']})"
    grid = numerics.get("grid")
    if "grid_step" in numerics:
        grid = f"grid step {numerics['grid_step']:.3g}, {numerics['grid_points']} points"
    if "added_to_delta" in numerics:
        bounded = f"its rounding is covered by {numerics['added_to_delta']:.1e} added to delta ({numerics['rounding']})"
    return f"{grid}, composed by {composer}; {bounded}"


def digits_text(result: Result) -> str:
    """Return the value computed with mpmath as text; empty without ``--digits``."""
    record: Any = result.numerics.get("mpmath")
    return f"{record['value']} ({record['digits']} digits)" if record else ""


def certified_text(result: Result) -> str:
    """Return the enclosure of delta that ball arithmetic proved, if any, as text."""
    proof: Any = result.numerics.get("certified")
    if proof is None:
        return ""
    from decimal import ROUND_CEILING, ROUND_FLOOR, Context

    ways = {"lower": ROUND_FLOOR, "upper": ROUND_CEILING}
    least, most = (Context(12, way, -(10**9), 10**9).create_decimal(proof[end]) for end, way in ways.items())
    epsilon = "" if result.epsilon is None else f" at epsilon {result.epsilon:.13g}"
    # A lower bound of 0 means unknown.
    enclosure = f"from {least:e} to {most:e}" if least else f"at most {most:e}"
    return f"delta{epsilon} by this bound is {enclosure}, proved in {proof['arithmetic']}, {proof['bits']} bits"


def terminal_width() -> int | None:
    """Return the number of columns of the terminal; None for a file or a pipe."""
    import sys

    if sys.stdout is None or not sys.stdout.isatty():
        return None
    from shutil import get_terminal_size

    return max(get_terminal_size((WIDEST, 24)).columns, NARROWEST)


def fit_line(label: str, text: str) -> list[str]:
    """Return a labeled text as one line, wrapped only in a narrow terminal."""
    width = terminal_width()
    return [label + text] if width is None or len(label + text) < min(width, WIDEST) else wrap_line(label, text)


# labels of lists of sentences: each of several sentences begins with a dash
LISTS = ("assumes", "requires", "other bounds", "utility", "comparison", "meaning", "no value", "failed", "passed")
LISTS += ("differs", "unproved")


def label_lines(parts: Mapping[str, str | Iterable[str]]) -> list[str]:
    """Return labeled texts as wrapped lines; empty texts are omitted."""
    lines = []
    for label, texts in parts.items():
        first, *rest = [texts] if isinstance(texts, str) else [*texts] or [""]
        if rest and label in LISTS:
            lines += wrap_line(f"  {label + ':':<10} - ", first)
            lines += wrap_line(" " * (3 + max(10, len(label) + 1)) + "- ", *rest)
            continue
        lines += wrap_line(f"  {label + ':':<10} ", first)
        lines += wrap_line(" " * (3 + max(10, len(label) + 1)), *rest)
    return lines


def wrap_line(label: str, *texts: str, width: int | None = None) -> list[str]:
    """Return texts as wrapped lines, with the label at the beginning of each text.

    ``width`` is by default that of the terminal, at most :data:`WIDEST`.
    """
    from textwrap import wrap

    most = width or min(WIDEST, terminal_width() or WIDEST)
    settings: Any = {"break_long_words": False, "break_on_hyphens": False, "subsequent_indent": " " * len(label)}
    lines = []
    for text in (" ".join(text.split()) for text in texts):
        unbroken = UNBROKEN.sub(lambda match: match[0].replace(" ", "\u00a0"), text)
        lines += wrap(unbroken, most - 1, initial_indent=label, **settings)
    return [line.replace("\u00a0", " ") for line in lines]


def warning_lines(warnings: Iterable[str]) -> list[str]:
    """Return each warning as wrapped lines that begin with "warning:"."""
    return wrap_line("warning: ", *map(in_command, warnings))


def table_lines(sides: str, rows: Iterable[Sequence[str]]) -> list[str]:
    """Return table rows as text lines with aligned columns.

    ``sides`` has one character for each column: ``<`` aligns to the left, ``>`` to the right. If a row has more
    columns, ``sides`` is repeated.
    """
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [zip(row, sides * len(row), widths, strict=False) for row in rows]
    lines = ["  ".join(f"{cell:{side}{width}}" for cell, side, width in row).rstrip() for row in cells]
    return [line for unbroken in lines for line in fit_line("", unbroken)]


def headline(result: Result) -> str:
    """Return the first line of a result, such as "epsilon = 1.2  (upper bound, ...)"."""
    quantity, value, target = result.quantity, result.value, result.target_text
    name, at = SYMBOLS.get(quantity, quantity), f"at {target}"
    if value is None:
        return f"{name}: nothing fits {at}"
    if result.outcome is Outcome.VACUOUS:
        return f"{name}: {'nothing below 1' if name == 'delta' else f'no finite {name}'} {at}"
    only = conditional_text(result.data_assumptions)
    if name == "rank" and result.lower not in (None, value):
        return f"rank = {result.lower} to {value}  (smallest and largest that meet {target}){only}"
    number = delta_shown(value) if name == "delta" else round_outward(value, up=result.side is not Side.LOWER)
    smallest = quantity == "sigma" or (name == "rank" and result.side is Side.UPPER)
    side = str(result.side)
    if target and result.risk is None:
        at = target.replace(" and ", ", ").replace("epsilon ", "epsilon = ").replace("delta ", "delta = ")
    if result.side is Side.NONE:
        side = f"NOT A GUARANTEE, {at}"
    elif quantity in FITTED:
        side = f"{'smallest' if smallest else 'largest'} that meets {target}"
    elif target:
        side = f"{side}, {at}"
    return f"{name} {number}  ({side}){only}" if number.startswith("<") else f"{name} = {number}  ({side}){only}"


def other_bounds_text(result: Result, others: Mapping[str, float]) -> list[str]:
    """Return the values of the same query by other bounds as text."""
    name = SYMBOLS.get(result.quantity, result.quantity)
    number = delta_shown if result.quantity == "delta" else round_outward
    return [f"{name} {number(value)} by {label}" for label, value in others.items()]


def utility_text(utility: "Utility") -> list[str]:
    """Return texts about the noise and the projection error of an update."""
    averaged = ""
    if utility.releases > 1:
        over = two_digits(utility.projection_error_of_run)
        averaged = f"; {over} times for the mean over {utility.releases} fresh projections"
    return [
        f"effective noise multiplier {utility.effective_noise_multiplier:.4g}: the update is as noisy as in DP-SGD "
        f"with this multiplier. At the same privacy, DP-SGD needs {utility.dp_sgd_noise_multiplier:.4g}, so the update "
        f"has {utility.noise_over_dp_sgd:.2f} times the noise.",
        f"mean squared projection error {utility.projection_error:.4g} times the squared norm of the update, in one "
        f"step{averaged}",
    ]


def run_text(
    result: Result, verbose: bool = False, calibrated: bool = False, notes: Mapping[str, str] | None = None
) -> str:
    """Return the result of a run file as text, with a line for every phase.

    If ``calibrated``, lines have the noise multipliers. ``notes`` are further lines by label.
    """
    from privproj.io.run_file import listed, phase_kind, releases_text

    lines = fit_line("", headline(result))
    lines += label_lines({"assumes": result.data_assumptions, "bound": bound_text(result)})
    phases: Any = result.mechanism["phases"]
    for phase, text in zip(phases, releases_text(result), strict=True):
        if not phase_kind(phase):
            text = f"{phase['mechanism']}, {run_line_of(phase, result.warnings)}"
            parameters = listed(phase, *Run().parameters(), "name", "mechanism", "requirements", "planned")
            noise = phase.get("noise_multiplier") if calibrated else None
            text += f" ({parameters})" if verbose else f", noise multiplier {round_outward(noise)}" if noise else ""
        lines += label_lines({phase["name"]: text}) if verbose else fit_line(f"  {phase['name'] + ':':<10} ", text)
    lines += label_lines({"neighbors": neighbors_text(result)})
    parts: dict[str, Any] = {**(notes or {})}
    if result.quantity == "gdp_mu" and result.outcome is Outcome.OK:
        regret, rate = (round_outward(result.numerics[name]) for name in ("regret", "exact_from"))  # pyright: ignore
        parts["regret"] = (
            f"mu overstates the success probability of an attack by at most {regret}; the slack matters only for "
            f"error rates below {rate}"
        )
        parts["meaning"] = GDP_NOTES if verbose else ()
    return answer_text(result, parts, lines, verbose)


GDP_NOTES = (
    "delta(epsilon) <= max(G_mu(epsilon), slack) at every epsilon. G_mu is the privacy profile of mu-GDP.",
    "f(a) >= g(a) - slack at every false positive rate a. f is the smallest false negative rate of an attack, and g is "
    "the trade-off function of mu-GDP. The slack can be dropped if a and g(a) are at least the rate in the column "
    "exact_from.",
    "regret: for every prior, mu-GDP overstates the success probability of an attack by at most this much, compared "
    "with the bound.",
    "mu is rounded up to four digits, and regret is for mu before rounding.",
)


def several_results(results: Mapping[str, Result], verbose: bool | None = None) -> dict[str, Any]:
    """Return lines by label that summarize the results of one query by several bounds.

    ``results`` maps the name of each bound to its result.
    """
    first = next(iter(results.values()))
    return {
        "assumes": each_with_owners({name: result.data_assumptions for name, result in results.items()}),
        "run": run_line(first),
        "neighbors": each_with_owners({name: [neighbors_text(result)] for name, result in results.items()}),
        "requires": requirements_of({name: result.requirements for name, result in results.items()}, verbose),
    }


def comparison_text(rows: "Sequence[Comparison]", verbose: bool = False) -> str:
    """Return the output of ``privproj compare`` as text."""
    results = {row.bound.name: row.result for row in rows if row.result is not None and row.result.value is not None}
    lines: list[str] = []
    parts: dict[str, Any] = {}
    if results:
        first = next(iter(results.values()))
        free = [result for result in results.values() if result.usable and result.status is Status.PROVED]
        if free:
            by = f"; by {free[0].bound}, the smallest without an assumption on the data)"
            lines += fit_line("", by.join(headline(free[0]).rsplit(")", 1)))
        else:
            lines += fit_line("", f"{first.quantity} of {first.mechanism['name']} at {first.target_text}")
        number = delta_shown if first.quantity == "delta" else round_outward
        table = [(number(result.value), name, str(result.status)) for name, result in results.items()]  # pyright: ignore
        lines += table_lines("><<", [(first.quantity, "bound", "status"), *table])
        parts = several_results(results, verbose)
    reasons: dict[str, list[str]] = {}
    for row in rows:
        if row.bound.name not in results:
            reason = in_command((row.reason if verbose else row.short) or "no number")
            reasons.setdefault(reason, []).append(row.bound.name)
    parts["no value"] = [
        f"{', '.join(names)} ({'each ' if len(names) > 1 and not verbose else ''}{reason.rstrip('.')})"
        for reason, names in reasons.items()
    ]
    # the table shows which values are infinite
    finite = [result for result in results.values() if result.outcome is not Outcome.VACUOUS] or results.values()
    warnings = dict.fromkeys(text for result in finite for text in result.warnings)
    return "\n".join([*lines, *label_lines(parts), *warning_lines(warnings)])


def each_with_owners(sentences_of: Mapping[str, Iterable[str]]) -> list[str]:
    """Return the texts of several results, each text once.

    ``sentences_of`` maps the name of each result to its texts. If only some results have a text, their names precede
    it.
    """
    owners: dict[str, list[str]] = {}
    for name, sentences in sentences_of.items():
        for sentence in sentences:
            owners.setdefault(sentence, []).append(name)
    every = len(sentences_of)
    return [text if len(of) == every else f"({', '.join(of)}) {text}" for text, of in owners.items()]


def as_sentence(text: str) -> str:
    """Return a text as a sentence with a period and a capital first letter."""
    word = text.partition(" ")[0]
    is_name = word == "privproj" or not word.isalpha()
    return f"{text[:1] if is_name else text[:1].upper()}{text[1:].rstrip('.')}." if text else ""


def bound_record(bound: "Bound") -> dict[str, Any]:
    """Return the description of a bound as data for JSON."""
    names = ("name", "summary", "formula", "source", "proof", "example", "status", "relations", "version")
    return {"mechanism": bound.mechanism.name, **{name: as_plain_value(getattr(bound, name)) for name in names}}


def bound_page(bound: "Bound") -> list[str]:
    """Return the description of a bound as lines of text."""
    first = f"{bound.mechanism.name}.{bound.name}  (version {bound.version})"
    conditional = "; conditional if the result has a line 'assumes'" * (bound.status is Status.PROVED)
    rows = {
        "summary": bound.summary,
        "formula": f"{bound.formula} (symbols: docs/notation.md)" if bound.formula else "",
        "source": bound.citation,
        "status": f"{bound.status}{conditional}",
        "reason": as_sentence(bound.reason),
        "neighbors": ", ".join(bound.relations),
        "requires": requirement_lines(bound.requirements(bound.mechanism), None),
    }
    return [first, *label_lines(rows), *fit_line("  example:   ", bound.example)]
