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
    Status.PROVED: "There is a complete proof. It needs no assumption on the data beyond the stated sensitivity.",
    Status.CONDITIONAL: "There is a complete proof under the assumptions on the data that are listed below.",
    Status.ASYMPTOTIC: "The source does not state a constant, so no number follows. privproj does not support this "
    "bound (exit code 3).",
    Status.REFUTED: "There is a counterexample. privproj does not support this bound (exit code 3). With "
    "`--allow-refuted`, privproj evaluates the formula if there is one and marks the number as no guarantee.",
}
COMPOSES = {
    "closed": "The privacy profile of several releases with fresh randomness has a closed form.",
    "PrivacyProfile": "privproj composes a privacy loss distribution that dominates the release. The result includes "
    "bounds on all numerical errors ([C18](../proofs.md#c18), [C19](../proofs.md#c19)).",
    "TailLevelsCurve": "The privacy loss of one release is the sum of two independent losses. privproj composes them "
    "like two releases, by privacy loss distributions ([C13](../proofs.md#c13)).",
    "RenyiCurve": "Renyi divergences of the same order add. The sum is converted to epsilon at the best order.",
    "BestCurve": "Each of the two Renyi curves is composed on its own. privproj reports the smaller epsilon.",
    "ConcentratedCurve": "The values of rho add, and the conversion to epsilon has a closed form.",
    "ComposedRule": "The bound gives one pair (epsilon, delta) at a time. privproj reports the smaller result of basic "
    "composition and of advanced composition with optimized slack.",
    "GoodEventCurve": "The failure probability in the theorem is added to delta. Without a failure, the run is a "
    "Gaussian run, which privproj composes in closed form or by privacy loss distributions.",
    "single": "The bound covers one release only.",
    "nothing": "There is no formula to compose.",
}
CERTIFIED = {
    False: "`privproj certify` does not support this bound.",
    True: "`privproj certify` [supports](../certificates.md#what-can-be-certified) this bound.",
}


ABOUT_ASSUMPTIONS = "The numbers are examples. The output states the numbers of your query."
EITHER_GAMMA = (
    "With `--gamma`, the assumptions `eigenvalue-floor`, `sensitivity` and `frobenius-norm` do not apply. Without "
    "`--gamma`, they apply instead of the eigenvalue ratio."
)
ABOUT_REQUIREMENTS = (
    "A run with sampling or several steps has further requirements. `privproj epsilon -v` prints all of them."
)


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
    return f"{stated} With `--group-size K`, one user contributes at most K records, each clipped separately."


def requirements(bound: Bound) -> str:
    """Return the requirements on the program as Markdown."""
    lines = [f"`{short_name(text)}`: {text.rstrip('.')}." for text in bound.requirements(bound.mechanism)]
    stated = bullets(lines) if lines else "None beyond the sensitivity of the query."
    return f"{stated}\n\n{ABOUT_REQUIREMENTS}"


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
    """Return the status, its meaning, and the reason if the bound is refuted."""
    meaning = f"Status: `{bound.status}`. {MEANING[bound.status]}"
    if bound.status not in GUARANTEES:
        return f"{meaning}\n\nReason: {bound.reason}."
    if bound.status is Status.PROVED and assumption_lines(bound):
        return f"{meaning} With `--change-rank`, privproj reports the bound as conditional."
    return meaning


def source(bound: Bound) -> str:
    """Return the source of a bound, or the argument of a theorem of privproj."""
    own, _, argument = bound.source.partition(": ")
    return f"Source: {own} ({argument})." if own == "privproj" else f"Source: {bound.source}."


def theorem(bound: Bound) -> str:
    """Return the formula, the source and the status of a bound."""
    formula = note(bound).get("formula", f"```\n{bound.formula}\n```").strip()
    return f"{formula}\n\n{status(bound)}\n\n{source(bound)}"


def release(bound: Bound) -> str:
    """Return the description of a release, or the summary of the mechanism."""
    return notes()["mechanisms"].get(bound.mechanism.name, {}).get("release", bound.mechanism.summary).strip()


def projection(bound: Bound) -> str:
    """Return notes on fixed projections and on the option ``--split``."""
    reuse = "One projection may be used for all releases." if "fixed-projection" in bound.supports else ""
    split = "`--split` sets how delta is divided between two events." if "split" in bound.supports else ""
    return " ".join(filter(None, (reuse, split)))


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
                f"Certificate: {CERTIFIED[ball_entry(bound) is not None]}",
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
    parts = {
        "Example": example(bound),
        "Release": release(bound),
        "Theorem" if is_guarantee else "Claim": theorem(bound),
        **({"When to use it": notes["when"].strip()} if "when" in notes else {}),
        "Requirements on the program": requirements(bound),
        "Assumptions on the data": assumptions(bound),
        "Composition and sampling": composition(bound),
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
