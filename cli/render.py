"""Results as text and JSON. Text rounds to four significant digits on the safe side."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from privproj.assumptions import REPLACE_SENSITIVITY
from privproj.mechanisms.registry import ROLES
from privproj.result import Outcome, Result, Side, Status, as_plain_value, risk_words, round_outward
from privproj.runs import RunOptions
from privproj.runs.sampling import IN_EPOCHS, scheme_of

if TYPE_CHECKING:
    from privproj.accounting.choice import Worth
    from privproj.accounting.comparison import Comparison
    from privproj.accounting.schedule import Schedule
    from privproj.mechanisms import Mechanism
    from privproj.mechanisms.bound import Bound

MOST_NAMES = 6
"""Bounds or entries that are named before one assumption. Contract."""

WIDEST = 100
"""Columns that a line of text may have. Contract."""

NARROWEST = 40
"""Columns below which lines are not broken for a narrow terminal. Contract."""

SYMBOLS = {"sigma": "noise multiplier", "rate": "sampling rate", "tpr": "true positive rate"}
MEETS = {
    "sigma": "smallest that meets",
    **dict.fromkeys(("rank", "steps", "rate", "misalignment"), "largest that meets"),
}
STATUS_WORDS = {
    Status.PROVED: "proved; conditional only if you promise a smaller change than the shape of the layer forces",
    Status.CONDITIONAL: "conditional: proved for data that keep the promise, which the mechanism does not enforce",
    Status.ASYMPTOTIC: "asymptotic: a constant is left open, so this is not a guarantee",
    Status.REFUTED: "refuted: a counterexample exists, so this is not a guarantee",
}


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
        **evidence(result),
        "noise": noise_words(result),
        **closing(result),
    }
    return "\n".join([*result_lines(result), *labelled(parts)])


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


def evidence(result: Result) -> dict[str, str]:
    """What is known from below, how a run was composed in floats, and what is proved in balls, by their labels."""
    return {
        "at least": at_least_words(result),
        "numerics": numerics_words(result),
        "certified": certified_words(result),
    }


def at_least_words(result: Result) -> str:
    """Say below what no accounting can go, and how far the answer is above that at most."""
    least, of_delta = result.lower_bound, result.quantity == "delta"
    if least is None:
        return ""
    seer = f", against {least.for_whom}" if least.for_whom else ""
    if least.quantity == "advantage":
        shown = f"advantage {round_outward(least.value, up=False)} with this noise multiplier, whatever the accounting"
        return shown + seer
    shown = f"delta {power_of_ten(least.value)}" if of_delta else f"epsilon {round_outward(least.value, up=False)}"
    answer, ratio = "this answer is", None
    if of_delta and result.log10_delta is not None:
        ratio = 10.0 ** min(result.log10_delta - least.value, 300.0)
    elif not of_delta and result.epsilon is not None:
        ratio = result.epsilon / least.value
    if result.quantity not in ("delta", "epsilon"):
        shown, answer = f"{shown} with this noise multiplier", "the epsilon asked for is"
    words = f"{shown} by any accounting{seer}"
    words += f": {answer} at most {excess_words(ratio)} the truth" if ratio else ""
    return words + (f"; {least.gap}" if least.gap else "")


def power_of_ten(log10_value: float) -> str:
    """Say a probability by its decimal logarithm, rounded down."""
    return round_outward(10.0**log10_value, up=False) if log10_value > -300.0 else f"10^{math.floor(log10_value)}"


def excess_words(ratio: float) -> str:
    """Say by how much a ratio is above 1, rounded up to two digits."""
    if ratio >= 2.0:
        return f"{math.ceil(10.0 * ratio) / 10.0:g} times"
    percent = max(100.0 * (ratio - 1.0), 0.01)
    scale = 10.0 ** (1 - math.floor(math.log10(percent)))
    return f"{math.ceil(percent * scale - 1e-9) / scale:g} % above"


def numerics_words(result: Result) -> str:
    """Say on which grid a run was composed in floats, and what is proved about its errors; of a proof nothing more."""
    found: Any = result.numerics
    proof, composer, bounded = found.get("certified"), found.get("composer"), "all its errors are bounded and included"
    if proof is not None and "grid_step" in proof:
        return ""
    if composer is None:
        return f"an epoch as a {found['epoch']}, {found['atoms']} atoms; {bounded}" if "epoch" in found else ""
    if "orders" in found:
        words = f"Renyi divergences at {found['orders']} orders, added by {composer}; its rounding is covered by "
        return f"{words}{found['added_to_divergence']:.1e} added to divergences ({found['rounding']})"
    grid = f"a grid that {found.get('grid')}"
    if "grid_step" in found:
        grid = f"grid {found['grid_step']:.3g}, {found['grid_points']} points"
    if "added_to_delta" in found:
        bounded = f"its rounding is covered by {found['added_to_delta']:.1e} added to delta ({found['rounding']})"
    return f"{grid}, composed by {composer}; {bounded}"


def certified_words(result: Result) -> str:
    """Say what ball arithmetic proves about the delta of an answer."""
    proof: Any = result.numerics.get("certified")
    if proof is None:
        return ""
    at = "".join(f" at {name} {value:.6g}" for name, value in proof["witness"].items())
    ends = shorten_numbers(proof["lower"]), shorten_numbers(proof["upper"], up=True)
    # Below nothing may be known, which is no 0.
    least = f"{ends[0]} <= " if proof["lower"] != "0" else ""
    return f"{least}the bound's delta{at} <= {ends[1]}, proved by {proof['arithmetic']}, {proof['bits']} bits"


def shorten_numbers(text: str, *, up: bool = False) -> str:
    """Round decimal text to twelve digits, outward."""
    from decimal import ROUND_CEILING, ROUND_FLOOR, Context

    rounding = ROUND_CEILING if up else ROUND_FLOOR
    return str(Context(prec=12, rounding=rounding, Emin=-(10**9), Emax=10**9).create_decimal(text))


def terminal_width() -> int | None:
    """The columns of the terminal that is written to; None for a file or a pipe."""
    import sys

    if sys.stdout is None or not sys.stdout.isatty():
        return None
    from shutil import get_terminal_size

    return max(get_terminal_size((WIDEST, 24)).columns, NARROWEST)


def fit_line(label: str, text: str) -> list[str]:
    """A line that a script may look for: broken for a terminal, and whole in a file or a pipe."""
    return [label + text] if terminal_width() is None else wrap_line(label, text)


def labelled(parts: Mapping[str, str | Iterable[str]]) -> list[str]:
    """Each sentence behind its label, as :func:`wrap_line` breaks it; what is empty is not said."""
    lines = []
    for label, said in parts.items():
        lines += wrap_line(f"  {label + ':':<9} ", *([said] if isinstance(said, str) else said))
    return lines


def wrap_line(label: str, *texts: str) -> list[str]:
    """Each text behind the label, in lines of at most :data:`WIDEST` characters, or as a narrower terminal has them.

    There are none for an empty text.
    """
    from textwrap import wrap

    width = min(WIDEST, terminal_width() or WIDEST) - 1
    kept: Any = {"break_long_words": False, "break_on_hyphens": False, "subsequent_indent": " " * len(label)}
    whole = (" ".join(text.split()) for text in texts)
    return [line for text in whole for line in wrap(text, width, initial_indent=label, **kept)]


def headline(result: Result) -> str:
    """Say the number: the first line of every answer."""
    quantity, value, at = result.quantity, result.value, target_words(result)
    name = SYMBOLS.get(quantity, quantity)
    if value is None:
        return f"{name}: nothing fits at {at}"
    if result.outcome is Outcome.VACUOUS:
        return f"{name}: no finite epsilon at {at}" if name == "epsilon" else f"{name}: nothing below 1 at {at}"
    if name == "rank" and result.lower not in (None, value):
        return f"rank = {result.lower} to {value}  (smallest and largest that meet {at})"
    shown = delta_shown(value) if name == "delta" else round_outward(value, up=result.side is not Side.LOWER)
    if name == "advantage":
        return f"advantage = {shown}  ({result.side})"
    side = MEETS.get(quantity, f"{result.side}, at")
    if name == "rank" and result.side is Side.UPPER:
        side = "smallest that meets"
    if result.side is Side.NONE:
        side = "NOT A GUARANTEE, at"
    return f"{name} {shown}" if shown.startswith("<") else f"{name} = {shown}  ({side} {at})"


def target_words(result: Result) -> str:
    """Say at which epsilon, delta or risk the number is."""
    if result.risk is not None:
        return f"false positive rate {result.risk['fpr']:g}" if result.quantity == "tpr" else risk_words(result.risk)
    parts = {name: getattr(result, name) for name in ("epsilon", "delta") if name != result.quantity}
    said = [f"{name} {value:g}" for name, value in parts.items() if value is not None]
    if result.delta is None and result.log10_delta is not None:
        said.append(f"delta 10^{result.log10_delta:g}")
    return " and ".join(said)


def foundation_line(result: Result) -> str:
    """Say what the number rests on: bound, status, promises, relation and run."""
    promises = "; promise: " + "; ".join(result.promises) if result.promises else ", no promise on the data"
    return f"{result.bound} ({result.status}{promises}); {relation_words(result)}; {run_words(result.run)}"


def relation_words(result: Result) -> str:
    """Say the relation, and what a noise multiplier is measured against where that is twice the clip."""
    run: Any = result.run
    doubled = REPLACE_SENSITIVITY in run["assumes"]
    noise = "scale" if result.mechanism.get("name") == "laplace" else "sigma"
    return f"{run['relation']}{f', noise multiplier = {noise}/(2C)' * doubled}"


def run_words(run: dict[str, Any]) -> str:
    """Say the run in words: releases and sampling."""
    if run["sampling"] in IN_EPOCHS:
        epochs = "one epoch" if run["steps"] == 1 else f"{run['steps']} epochs"
        return f"{epochs}, {scheme_of(run['sampling']).words(run)}"
    steps = "one release" if run["steps"] == 1 else f"{run['steps']} releases"
    if run["sampling_rate"] is None:
        return f"{steps}, sampled as each phase says"
    if run["sampling"] is None:
        return f"{steps} on the whole data set"
    rate = run["sampling_rate"]
    largest = f", at most {run['max_batch_size']} of {run['dataset_size']}" if "max_batch_size" in run else ""
    return f"{steps}, {run['sampling']} sampling at rate {rate:g} ({percent(rate)} of the records per step{largest})"


def percent(share: float) -> str:
    """Say a share from 0 to 1 in per cent, to three digits."""
    return f"{100.0 * share:.3g} %"


def filter_words(found: dict[str, Any]) -> str:
    """Say of a filter its order, its budget and how much of that is spent."""
    order, budget = str(found["order"]).removesuffix(".0"), round_outward(found["budget"], up=False)
    return f"order {order}, budget {budget}, {percent(found['spent'] / found['budget'])} of it spent"


def gain_words(result: Result, mechanism: "Mechanism", run: RunOptions, worth: "Worth | None" = None) -> str:
    """Say what plainer accounting gives for the same question."""
    if mechanism.name not in {kind for (kind, _), role in ROLES.items() if role != "renyi"}:
        return ""
    from privproj.accounting.comparison import compare_with_baselines

    shown = delta_shown if result.quantity == "delta" else round_outward
    plain = worth and worth.dp_sgd_noise_multiplier
    parts = [f"{label} {shown(value)}" for label, value in compare_with_baselines(result, mechanism, run, plain)]
    if not parts:
        return ""
    return f"{', '.join(parts)}, this bound as above: {mechanism.gain_words(of_noise=result.quantity == 'sigma')}"


def worth_words(worth: "Worth") -> str:
    """Say the noise and the projection error of an update beside DP-SGD's, at equal privacy."""
    over = f"averaged to {worth.projection_error_of_run:.2g} by {worth.releases} fresh projections"
    return (
        f"the update is as noisy as that of DP-SGD with multiplier {worth.effective_noise_multiplier:.4g}, "
        f"{worth.noise_over_dp_sgd:.2f} times the {worth.dp_sgd_noise_multiplier:.4g} that DP-SGD needs for this "
        f"privacy; by projecting it misses {worth.projection_error:.4g} times its own square, "
        f"{over if worth.releases > 1 else 'which no other projection averages out'}: `explain worth`"
    )


def run_text(result: Result, schedule: "Schedule") -> str:
    """Say the number of a run file, then every phase with its noise."""
    from privproj.extensions.events import event_words

    first = _gdp_headline(result) if result.quantity == "gdp_mu" else headline(result)
    lines = [first, *fit_line("  rests on: ", f"{result.bound} ({result.status}); {relation_words(result)}")]
    for phase in schedule.by_one_accountant().phases:
        if phase.mechanism.name == "dp-accounting":
            words, times = event_words(phase.as_dict()["event"]), phase.run.steps  # pyright: ignore[reportArgumentType]
            lines += fit_line(f"  {phase.name}: ", f"{words}, {'once' if times == 1 else f'{times} times'}")
            continue
        noise = phase.mechanism.noise_multiplier
        words = "" if noise is None else f", noise multiplier {round_outward(noise)}"
        count = getattr(phase.mechanism, "adaptive_clipping_sigma", None)
        words += "" if count is None else f", clip adapted by a count with noise {count:g}"
        words += f" ({phase.bound.name})"
        lines += fit_line(f"  {phase.name}: ", f"{phase.mechanism.name}{words}; {run_words(phase.run.parameters())}")
    parts = {"promise": result.promises, **gdp_words(result), **evidence(result), **closing(result)}
    return "\n".join(lines + labelled(parts))


def _gdp_headline(result: Result) -> str:
    """Say one mu and its slack."""
    at = f"slack {result.delta or 0.0:g}"
    if result.value is None or result.outcome is not Outcome.OK:
        return f"gdp mu: no finite mu at {at}"
    return f"gdp mu = {round_outward(result.value)}  ({result.side}, at {at})"


def gdp_words(result: Result) -> dict[str, Any]:
    """What one mu gives away, and what it means, by their labels."""
    if result.quantity != "gdp_mu" or result.outcome is not Outcome.OK:
        return {}
    found: Any = result.numerics
    rate, regret = round_outward(found["exact_from"]), round_outward(found["regret"])
    regret = f"at most {regret}; no slack where both error rates are at least {rate}"
    return {"regret": regret, "meaning": GDP_NOTES}


GDP_NOTES = (
    "the true delta(epsilon) <= max(G_mu(epsilon), slack) at every epsilon, and f(a) >= G_mu(a) - slack at every false "
    "positive rate a, with f the least false negative rate of an attack and G that of two Gaussians at distance mu",
    "f(a) >= G_mu(a), without a slack, where a and G_mu(a) are at least the rate from which there is none",
    "regret: how much likelier the best attack by G_mu guesses right than the best one by the bound, at any prior",
)


def foundation_of_several(results: list[Result]) -> list[str]:
    """Say what the answers of several bounds assume, and their warnings, each sentence once."""
    assumed = assumption_lines({result.bound: result.assumes for result in results})
    return assumed + wrap_line("warning: ", *dict.fromkeys(words for result in results for words in result.warnings))


def comparison_text(rows: "Sequence[Comparison]") -> str:
    """Say what was asked, a table of values, the promises in full, and why other bounds do not answer."""
    answered = [row.result for row in rows if row.result is not None and row.result.value is not None]
    lines, promises = [], {}
    if answered:
        lines += wrap_line("", question_words(answered))
        lines.append(f"{answered[0].quantity:>12}  {'bound':<22} {'status':<12} promise on the data")
    for result in answered:
        value: Any = result.value
        shown = delta_shown(value) if result.quantity == "delta" else round_outward(value)
        marks = [f"({promises.setdefault(words, len(promises) + 1)})" for words in result.promises]
        lines.append(f"{shown:>12}  {result.bound:<22} {result.status:<12} {', '.join(marks) or 'none'}")
    for words, number in promises.items():
        lines += wrap_line(f"promise ({number}): ", words)
    free = [result for result in answered if result.usable and result.status is Status.PROVED]
    if free:
        lines.append(f"smallest without a promise on the data: {free[0].bound}")
    lines += unanswered_lines([row for row in rows if row.result is None or row.result.value is None])
    return "\n".join(lines + foundation_of_several(answered))


def question_words(answered: list[Result]) -> str:
    """Say which number every bound was asked for, at which target and of which run."""
    first = answered[0]
    at = f"epsilon {first.epsilon:g}" if first.quantity == "delta" else f"delta {first.delta:g}"
    relations = ", ".join(dict.fromkeys(relation_words(result) for result in answered))
    return f"{first.quantity} of {first.mechanism['name']} at {at}; {relations}; {run_words(first.run)}"


def unanswered_lines(rows: "Sequence[Comparison]") -> list[str]:
    """Say in one line for each bound that does not apply what it needs, or why not."""
    width = max((len(row.bound.name) for row in rows), default=0)
    lines = [f"  {row.bound.name:<{width}}  {row.short or 'no number'}" for row in rows]
    cut = [line if len(line) <= WIDEST else line[: WIDEST - 3].rsplit(" ", 1)[0] + "..." for line in lines]
    return ["bounds that do not answer here, and why:", *cut] if rows else []


def assumption_lines(assumed: Mapping[str, Iterable[str]], label: str = "assumes") -> list[str]:
    """Say what several bounds take for granted, as :func:`each_with_owners` has it."""
    return wrap_line(f"{label}: ", *each_with_owners(assumed))


def each_with_owners(said: Mapping[str, Iterable[str]]) -> list[str]:
    """Each sentence once, with the names of those who say it where not all of them do."""
    owners: dict[str, list[str]] = {}
    for name, sentences in said.items():
        for words in sentences:
            owners.setdefault(words, []).append(name)
    found = []
    for words, of in owners.items():
        more = f" and {len(of) - MOST_NAMES} more" if len(of) > MOST_NAMES else ""
        found.append(words if len(of) == len(said) else f"({', '.join(of[:MOST_NAMES])}{more}) {words}")
    return found


def bound_record(bound: "Bound") -> dict[str, Any]:
    """Return the record of a bound as plain values."""
    names = ("name", "summary", "formula", "source", "proof", "example", "status", "relations", "version")
    return {"mechanism": bound.mechanism.name, **{name: as_plain_value(getattr(bound, name)) for name in names}}


def bounds_text(bounds: "Iterable[Bound]") -> str:
    """Return the catalogue of bounds as text, a line for each."""
    lines = [f"{'mechanism':<14} {'bound':<22} {'status':<12} summary"]
    lines += [f"{b.mechanism.name:<14} {b.name:<22} {b.status:<12} {b.summary}" for b in bounds]
    return "\n".join(lines)


def bound_page(bound: "Bound") -> str:
    """Say all about one bound."""
    rows = {
        "bound": f"{bound.mechanism.name}.{bound.name}, version {bound.version}",
        "summary": bound.summary,
        "formula": bound.formula,
        "source": bound.citation,
        "status": STATUS_WORDS[bound.status],
        "reason": bound.reason,
        "relations": ", ".join(bound.relations),
        "assumes": "; ".join(bound.assumes(bound.mechanism)) or "nothing beyond the sensitivity of the query",
    }
    lines = [line for name, text in rows.items() for line in wrap_line(f"{name + ':':<11}", text)]
    return "\n".join([*lines, f"{'example:':<11}{bound.example}"])
