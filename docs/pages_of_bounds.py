"""Write the pages of the bounds from the registry, the notes and the output of every example."""

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
    Status.PROVED: "There is a complete proof, and nothing is asked of the data beyond the stated sensitivity. "
    "For parameters that need one of the promises below it is reported as conditional.",
    Status.CONDITIONAL: "There is a complete proof, for data sets that keep the promises below. The mechanism does not "
    "enforce them, so every answer prints them.",
    Status.ASYMPTOTIC: "The source leaves a constant open, so no number follows. The tool refuses (exit 3).",
    Status.REFUTED: "There is a counterexample. The tool refuses (exit 3); with `--allow-refuted` a formula that "
    "can be evaluated is, and the number is marked as no guarantee.",
}
COMPOSES = {
    "closed": "A privacy profile. Several fresh releases have a closed form: the same profile at other parameters.",
    "PrivacyProfile": "A privacy profile. It becomes a pair of privacy loss distributions on a lattice, one that "
    "dominates and, where lower values are known, one that is dominated; these are composed with every error bounded "
    "([C18](../proofs.md#c18), [C19](../proofs.md#c19)).",
    "TailLevelsCurve": "Two privacy profiles of independent losses. They are composed like two releases, and over a "
    "run like twice as many, through privacy loss distributions ([C13](../proofs.md#c13)).",
    "RenyiCurve": "A Renyi curve. Divergences add order by order; the sum is converted at the best order.",
    "BestCurve": "Two Renyi curves. Each adds order by order; the smaller converted value is reported.",
    "ConcentratedCurve": "A concentrated curve: rho adds over releases, and the conversion has a closed form.",
    "ComposedRule": "An (epsilon, delta) rule, known at one point at a time: the smaller of basic and advanced "
    "composition, the slack of the latter optimized.",
    "GoodEventCurve": "A good event for the whole run, and a Gaussian run outside it: the failure is counted once for "
    "each release, the Gaussian run composes in closed form or through privacy loss distributions.",
    "single": "One release only: a second one is refused.",
    "nothing": "Nothing to compose: there is no formula to evaluate.",
}
CERTIFIED = {
    None: "No: `privproj certify` refuses this bound.",
    False: "Yes, one release on the whole data set: `privproj certify` encloses the value by balls "
    "([C21](../proofs.md#c21)).",
    True: "Yes, any number of releases on the whole data set: `privproj certify` encloses the value by balls "
    "([C21](../proofs.md#c21)).",
}


@cache
def notes() -> dict[str, Any]:
    """Return the hand-written notes of the core and of the optional features."""
    own = tomllib.loads((DOCS / "notes.toml").read_text())
    for path in sorted(DOCS.parent.glob("privproj/contrib/*/notes.toml")):
        own["bounds"] |= tomllib.loads(path.read_text())["bounds"]
    return own


def note(bound: Bound) -> dict[str, Any]:
    """Return the hand-written notes on one bound: "when", "proof" and "claims", or nothing."""
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
    """Return the representation and the run for one mechanism, or None if the bound does not apply."""
    try:
        return phase_for(mechanism, bound, {**run, "allow_refuted": True}).release()
    except PrivprojError:
        return None


def fitting(bound: Bound) -> Iterable[Mechanism]:
    """Return the variants that the bound covers."""
    return (mechanism for mechanism in variants(bound) if attempt(bound, mechanism))


def asked(bound: Bound, mechanism: Mechanism) -> tuple[str, ...]:
    """Return the assumptions at these parameters, if the bound covers them."""
    try:
        return tuple(one.text for one in bound.assumptions(mechanism)) if attempt(bound, mechanism) else ()
    except PrivprojError:
        return ()


def promises(bound: Bound) -> list[str]:
    """Return every assumption of any variant once."""
    found = [text for mechanism in variants(bound) for text in asked(bound, mechanism)]
    if bound.of_group == "same":
        found.append("with `--group-size K`: one person contributes at most K records, each clipped on its own")
    return list(dict.fromkeys(found))


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
    words = {"poisson": "Poisson (add-remove, zero-out)", "fixed": "fixed batch size (replace)"}
    held = [words[s] for s in words if any(sampled(bound, m, s) for m in fitting(bound))]
    return "Subsampling: " + (" and ".join(held) if held else "none, a sampling rate below 1 is refused") + "."


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
    reason = "" if bound.status in GUARANTEES else f"\n\nReason: {bound.reason}."
    return f"`{bound.status}`. {MEANING[bound.status]}{reason}"


def foundations(bound: Bound) -> str:
    """Return the assumptions on the data and the requirements on the program."""
    promised = bullets(promises(bound)) or "* none"
    assumed = bullets(bound.requirements(bound.mechanism)) or "* nothing beyond the sensitivity of the query"
    head = "Promises (each is printed where it applies; the numbers are those of examples):"
    return f"{head}\n\n{promised}\n\nAssumed of the program:\n\n{assumed}"


def composition(bound: Bound) -> str:
    """Return relations, composition, subsampling and certificates."""
    default = bound.default_relation or "add-remove"
    entry = ball_entry(bound)
    return bullets(
        (
            f"Relations: {', '.join(bound.relations)}; {default} where none is given.",
            f"Composition: {COMPOSES[kind(bound)]}",
            subsampling(bound),
            "Projection: " + ("may be reused." if "fixed-projection" in bound.supports else "as assumed above.")
            + (" Delta is split between two events (`--split`)." if "split" in bound.supports else ""),
            "Certificate: " + CERTIFIED[None if entry is None else entry.runs],
        )
    )  # fmt: skip


def example(bound: Bound) -> str:
    """Return the example and its output."""
    return f"```\n$ {bound.example}\n{output(bound.example)}\n```"


def page(bound: Bound) -> str:
    """Return the page of one bound."""
    words = note(bound)
    claims = links(words.get("claims", [bound.proof] if bound.proof else []))
    full = f"In full: {claims}." if claims else f"In full: {bound.source}."
    proof = "\n\n".join([*([words["proof"].strip()] if "proof" in words else []), full])
    parts = {
        "Formula": f"```\n{bound.formula}\n```\n\nSource: {bound.source}.",
        "Status": status(bound),
        **({"When to use it": words["when"].strip()} if "when" in words else {}),
        "What it rests on": foundations(bound),
        "Runs": composition(bound),
        "Why it holds" if bound.status in GUARANTEES else "Why it does not hold": proof,
        "Example": example(bound),
    }
    title = f"# {bound.mechanism.name}: {bound.name}\n\n{bound.summary[0].upper()}{bound.summary[1:]}."
    sections = "".join(f"\n## {head}\n\n{text}\n" for head, text in parts.items())
    return f"{HEADER}\n{title}\n{sections}\nAll bounds: [index](README.md). Version of this bound: {bound.version}.\n"


def index(bounds: tuple[Bound, ...]) -> str:
    """Return the table of all bounds."""
    rows = "\n".join(
        f'| `{b.mechanism.name}` | <a id="{name_of(b)}"></a>`{b.name}` | {b.status} | {b.summary} |' for b in bounds
    )
    table = f"| mechanism | bound | status | what it is |\n| --- | --- | --- | --- |\n{rows}\n"
    return f"{HEADER}\n# The bounds\n\n{notes()['index'].strip()}\n\n{table}"


def bound_pages() -> dict[Path, str]:
    """Return the page of every bound, and their index."""
    bounds = registry()
    return {PAGES / f"{name_of(b)}.md": page(b) for b in bounds} | {PAGES / "README.md": index(bounds)}
