"""Write the pages of the bounds.

A page combines the record of a bound, the notes in ``notes.toml`` and the output of the example.
"""

import contextlib
import io
import shlex
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from privproj_cli.main import exit_code

from privproj.accounting.phase import phase_for
from privproj.assumptions import Assumption, short_name
from privproj.contrib.certify.ball_profiles import ball_entry
from privproj.errors import PrivprojError, UnsupportedError
from privproj.mechanisms import Mechanism
from privproj.mechanisms.bound import GUARANTEES, Bound
from privproj.mechanisms.registry import registry
from privproj.profiles.privacy_profile import PrivacyProfile
from privproj.result import Status
from privproj.run import Run

DOCS = Path(__file__).parent
PAGES = DOCS / "bounds"
HEADER = "<!-- Written by docs/build.py from the registry and docs/notes.toml: edit those. -->\n"

MEANING = {
    Status.PROVED: "There is a complete proof, which needs no assumption on the data.",
    Status.CONDITIONAL: "There is a complete proof under the assumptions on the data that this page lists.",
    Status.ASYMPTOTIC: "The source does not state a constant, so privproj prints no number (exit code 3).",
    Status.REFUTED: "There is a counterexample, so privproj prints no number (exit code 3).",
}
COMPOSES = {
    "closed": "Delta of several releases has a closed form.",
    "PrivacyProfile": "privproj composes privacy loss distributions. The result includes bounds on all numerical "
    "errors ([C18](../proofs.md#c18), [C19](../proofs.md#c19)).",
    "TailLevelsCurve": "privproj composes the two independent privacy losses of a release like two releases, by "
    "privacy loss distributions ([C13](../proofs.md#c13)).",
    "RenyiCurve": "Renyi divergences of the same order add. The sum is converted to epsilon at the best order.",
    "BestCurve": "privproj composes each of the two Renyi curves, and reports the smaller epsilon.",
    "ConcentratedCurve": "The values of rho add. The conversion to epsilon has a closed form.",
    "ComposedRule": "For several releases, privproj uses basic and advanced composition, and reports the smaller "
    "epsilon.",
    "GoodEventCurve": "The formula above covers a run. privproj composes its Gaussian part in closed form or by "
    "privacy loss distributions.",
    "single": "The bound covers one release only.",
}
CERTIFIED = "`privproj certify` [supports](../certificates.md#what-can-be-certified) this bound."


ABOUT_ASSUMPTIONS = "privproj prints the assumptions with your numbers."
EITHER_GAMMA = (
    "The assumption on the eigenvalue ratio applies if you pass `--gamma`. The other assumptions on eigenvalues and "
    "norms apply if you do not."
)
ABOUT_REQUIREMENTS = "`privproj epsilon -v` also prints the requirements of sampling and of several steps."
COVERED = "The counterexample does not cover the parameters of the example."
REFUTED_FORMULA = "With `--allow-refuted`, privproj prints the number and marks it `NOT A GUARANTEE`."


@cache
def notes() -> dict[str, Any]:
    """Return the hand-written notes of the core and of the optional features."""
    own = tomllib.loads((DOCS / "notes.toml").read_text())
    for path in sorted(DOCS.parent.glob("privproj/contrib/*/notes.toml")):
        added = tomllib.loads(path.read_text())
        for table in ("bounds", "mechanisms"):
            own[table] |= added[table]
    return own


def note(bound: Bound) -> dict[str, Any]:
    """Return the hand-written notes on one bound, which may be empty."""
    return notes()["bounds"].get(bound.mechanism.name, {}).get(bound.name, {})


def name_of(bound: Bound) -> str:
    """Return the name of the page of a bound."""
    return f"{bound.mechanism.name}-{bound.name}"


def variants(bound: Bound) -> list[Mechanism]:
    """Return mechanisms that show every assumption of the bound."""
    kind = bound.mechanism
    example = {name: float(value) for name, value in (pair.split("=") for pair in kind.example.split())}
    return [kind(**given) for given in notes()["variants"].get(kind.name, [example])]


def attempt(bound: Bound, mechanism: Mechanism, **run: Any) -> Any:
    """Return the representation and the run for one mechanism.

    The result is None if the bound does not apply.
    """
    try:
        return phase_for(mechanism, bound, {**run, "allow_refuted": True}).release()
    except PrivprojError:
        return None


def fitting(bound: Bound) -> Iterable[Mechanism]:
    """Return the variants that the bound covers."""
    return (mechanism for mechanism in variants(bound) if attempt(bound, mechanism))


def assumptions_at(bound: Bound, mechanism: Mechanism) -> tuple[str, ...]:
    """Return the assumptions on the data at these parameters.

    The result is empty if the bound does not cover the parameters.
    """
    try:
        return tuple(map(assumption_line, bound.assumptions(mechanism))) if attempt(bound, mechanism) else ()
    except PrivprojError:
        return ()


def assumption_line(assumption: Assumption) -> str:
    """Return the short name and the text of an assumption."""
    return f"`{assumption.kind.short}`: {assumption.text.rstrip('.')}."


def assumption_lines(bound: Bound) -> list[str]:
    """Return one line for each kind of assumption on the data.

    The numbers of a line are those of the example if it has this assumption.
    """
    lines = [line for mechanism in variants(bound) for line in assumptions_at(bound, mechanism)]
    shown = " ".join(output(bound.example).split())
    kinds = dict.fromkeys(line.partition(": ")[0] for line in lines)
    lines.sort(key=lambda line: line.partition(": ")[2].rstrip(".") not in shown)
    return [next(line for line in lines if line.startswith(f"{kind}:")) for kind in kinds]


def assumptions(bound: Bound) -> str:
    """Return the assumptions on the data as Markdown."""
    lines = assumption_lines(bound)
    before = "None, except with `--change-rank`:\n\n" if bound.status is Status.PROVED else ""
    either = f" {EITHER_GAMMA}" if any(line.startswith("`eigenvalue-ratio") for line in lines) else ""
    stated = f"{before}{bullets(lines)}\n\n{ABOUT_ASSUMPTIONS}{either}" if lines else "None."
    if bound.of_group is None:
        return stated
    return f"{stated} `--group-size K` assumes that one user contributes at most K records, each clipped separately."


def requirements(bound: Bound) -> str:
    """Return the requirements on the program as Markdown."""
    lines = [f"`{short_name(text)}`: {text.rstrip('.')}." for text in bound.requirements(bound.mechanism)]
    stated = bullets(lines) if lines else "None beyond the sensitivity of the query."
    return f"{stated}\n\n{ABOUT_REQUIREMENTS}"


def has_formula(bound: Bound) -> bool:
    """Return whether the bound has a formula that can be evaluated."""
    return kind(bound) != "nothing"


def kind(bound: Bound) -> str:
    """Return how the bound composes: a key of :data:`COMPOSES`."""
    form = next((found[0] for found in (attempt(bound, m) for m in variants(bound)) if found), None)
    if isinstance(form, PrivacyProfile):
        return "closed" if form.closed_form else "PrivacyProfile"
    return "nothing" if form is None else kind_of_run(form)


def kind_of_run(form: Any) -> str:
    """Return :func:`kind` of a bound that accounts for runs itself."""
    if type(form).__name__ in COMPOSES:
        return type(form).__name__
    try:
        return type(form.over_run(Run(steps=2))).__name__
    except UnsupportedError:
        return "single"


def sampled(bound: Bound, mechanism: Mechanism, scheme: str) -> bool:
    """Return whether the bound holds for a run with this sampling."""
    relation = {"poisson": "add-remove", "fixed": "replace"}[scheme]
    found = attempt(bound, mechanism, sampling_rate=0.01, sampling=scheme, relation=relation)
    if found is None or isinstance(found[0], PrivacyProfile):
        return found is not None and found[0].can_be_subsampled
    return runs(*found)


def runs(form: Any, run: Run) -> bool:
    """Return whether the bound accounts for the run."""
    try:
        form.over_run(run)
    except UnsupportedError:
        return False
    return True


def subsampling(bound: Bound) -> str:
    """Return the sampling schemes that have a theorem."""
    schemes = {"poisson": "Poisson sampling (add-remove, zero-out)", "fixed": "batches of fixed size (replace)"}
    covered = [text for scheme, text in schemes.items() if any(sampled(bound, m, scheme) for m in fitting(bound))]
    return "Subsampling: " + (" and ".join(covered) if covered else "not supported") + "."


@cache
def output(command: str) -> str:
    """Return the output of a command."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = exit_code(shlex.split(command)[1:])
    if code:
        raise SystemExit(f"exit {code} from {command}: {printed.getvalue()}")
    return printed.getvalue().rstrip()


def bullets(lines: Iterable[str]) -> str:
    """Return a list in Markdown."""
    return "\n".join(f"* {line}" for line in lines)


def links(claims: list[str]) -> str:
    """Return links to the claims."""
    return ", ".join(f"[{claim}](../proofs.md#{claim.lower()})" for claim in claims)


def status(bound: Bound) -> str:
    """Return the status, its meaning, and the reason if the bound is refuted and has no note about the proof."""
    meaning = f"Status: `{bound.status}`. {MEANING[bound.status]}"
    if bound.status not in GUARANTEES:
        more = [COVERED] if has_formula(bound) and "--allow-refuted" not in bound.example else []
        more += [REFUTED_FORMULA] if has_formula(bound) else []
        reason = [] if "proof" in note(bound) else [f"\n\nReason: {bound.reason}."]
        return " ".join([meaning, *more, *reason])
    if bound.status is Status.PROVED and assumption_lines(bound):
        return f"{meaning} With `--change-rank`, it needs one, and privproj prints `conditional`."
    return meaning


def source(bound: Bound) -> str:
    """Return the source of a bound, without the argument of a theorem of privproj unless it names a paper."""
    own, _, argument = bound.source.partition(": ")
    if own != "privproj":
        return f"Source: {bound.source}."
    return f"Source: {own} ({argument})." if "arXiv" in argument else f"Source: {own}."


def theorem(bound: Bound) -> str:
    """Return the formula, the source and the status of a bound."""
    formula = note(bound).get("formula", f"```\n{bound.formula}\n```").strip()
    return f"{formula}\n\n{status(bound)}\n\n{source(bound)}"


def release(bound: Bound) -> str:
    """Return the description of a release, or the summary of the mechanism."""
    return notes()["mechanisms"].get(bound.mechanism.name, {}).get("release", bound.mechanism.summary).strip()


def projection(bound: Bound) -> str:
    """Return a note on fixed projections."""
    return "One projection may be used for all releases." if "fixed-projection" in bound.supports else ""


def composition(bound: Bound) -> str:
    """Return relations, composition, subsampling and certificates."""
    default = bound.default_relation or "add-remove"
    return bullets(
        filter(
            None,
            (
                f"Neighboring relations: {', '.join(bound.relations)} (default: {default}).",
                f"Composition: {COMPOSES[kind(bound)]}",
                subsampling(bound),
                projection(bound),
                f"Certificate: {CERTIFIED}" if ball_entry(bound) is not None else "",
            ),
        )
    )


def example(bound: Bound) -> str:
    """Return the example and its output."""
    return f"```\n$ {bound.example}\n{output(bound.example)}\n```"


def page(bound: Bound) -> str:
    """Return the page of one bound."""
    notes = note(bound)
    claims = links(notes.get("claims", [bound.proof] if bound.proof else []))
    full = f"Full proof: {claims}." if claims else f"Full proof: {bound.source}."
    proof = "\n\n".join([*([notes["proof"].strip()] if "proof" in notes else []), full])
    is_guarantee = bound.status in GUARANTEES
    uses = {
        "Requirements on the program": requirements,
        "Assumptions on the data": assumptions,
        "Composition and sampling": composition,
    }
    parts = {
        **({"When to use it": notes["when"].strip()} if "when" in notes else {}),
        "Release": release(bound),
        **({"Example": example(bound)} if has_formula(bound) else {}),
        "Theorem" if is_guarantee else "Claim": theorem(bound),
        **({head: write(bound) for head, write in uses.items()} if has_formula(bound) else {}),
        "Proof" if is_guarantee else "Why the claim is not a guarantee": proof,
    }
    title = f"# {bound.mechanism.name}: {bound.name}\n\n{bound.summary[0].upper()}{bound.summary[1:]}."
    sections = "".join(f"\n## {head}\n\n{text}\n" for head, text in parts.items())
    return f"{HEADER}\n{title}\n{sections}\nSee [all bounds](README.md). Version of this bound: {bound.version}.\n"


def index(bounds: tuple[Bound, ...]) -> str:
    """Return the table of all bounds."""
    rows = "\n".join(
        f'| `{b.mechanism.name}` | <a id="{name_of(b)}"></a>`{b.name}` | {b.status} | {b.summary} |' for b in bounds
    )
    table = f"| mechanism | bound | status | summary |\n| --- | --- | --- | --- |\n{rows}\n"
    return f"{HEADER}\n# Bounds\n\n{notes()['index'].strip()}\n\n{table}"


def bound_pages() -> dict[Path, str]:
    """Return the page of every bound, and their index."""
    bounds = registry()
    return {PAGES / f"{name_of(b)}.md": page(b) for b in bounds} | {PAGES / "README.md": index(bounds)}
