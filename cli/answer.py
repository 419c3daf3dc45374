"""A question from the options of the command line, and its answer."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import privproj
from privproj.accounting.question import FOUND
from privproj.errors import InvalidParameter, Refused, Unanswered
from privproj.mechanisms import Mechanism
from privproj.result import Outcome, Result
from privproj.runs import RUN_PARAMETERS, RunOptions, draws_groups_of_fixed_size, run_from
from privproj.runs.sampling import NeighbouringRelation
from privproj.validation import parameters_from, real, whole

from . import render
from .options import parse_number
from .output import write

if TYPE_CHECKING:
    from privproj.accounting.choice import Worth

EXIT_CODES = {
    Outcome.OK: 0,
    Outcome.REFUSED: 0,
    Outcome.VACUOUS: 4,
    Outcome.NOT_CONVERGED: 5,
    Outcome.PRECISION_LIMIT: 5,
}

COMPUTED = ("discretization", "composer", "split")
"""Options of a run that say how its answer is computed, not what was run."""


def take_run(options: dict[str, Any], quantity: str = "") -> RunOptions:
    """Remove the run options from ``options``; return the run as the library takes it."""
    given = {name: value for name in RUN_PARAMETERS if (value := options.pop(name, None)) is not None}
    if given.get("split", "even") not in ("even", "optimal"):
        given["split"] = parse_number("--split", given["split"])
    is_known = {"batch_size", "max_batch_size"} & set(given) or draws_groups_of_fixed_size(given)
    if "dataset_size" in given and not is_known:  # for the warning about delta
        whole("dataset_size", given.pop("dataset_size"), "a whole number dataset_size >= 1")
        given["public_size"] = True
    return run_from(given, quantity)


def with_proof(result: Result, certify: bool, path: str | None) -> Result:
    """Return the result, where it is asked for with its certificate, which goes to a file where one is named."""
    if not certify and path is None:
        return result
    from privproj.records.certificate import prove

    try:
        proved, certificate = prove(result)
    except Unanswered as error:
        error.result = replace(result, value=None, lower=None, upper=None, outcome=Outcome(error.outcome))
        raise
    if path is not None:
        certificate.save(path)
    return proved


@contextmanager
def saying_unanswered(json: bool) -> Iterator[None]:
    """Print what is known of a question that stays unanswered, where JSON is asked for, before its error."""
    try:
        yield
    except Unanswered as error:
        if json and isinstance(error.result, Result):
            write(render.as_json(error.result))
        raise


def answer_question(
    quantity: str, mechanism: Mechanism, run: RunOptions, size: float | None, clip: float | None, json: bool,
    certify: bool = False, certificate: str | None = None, **options: Any,
) -> int:  # fmt: skip
    """Ask for a quantity of the mechanism at the target that the options say, and print the answer.

    Returns the exit code.
    """
    with saying_unanswered(json):
        result = getattr(privproj, quantity)(mechanism, **options, **run)
        result = with_proof(result, certify, certificate)
    result = with_clip_and_size(result, mechanism, clip, size)
    found = worth_of(result, mechanism, run)
    if found is not None:
        result = replace(result, alternatives={**result.alternatives, **found.as_dict()})
    return show(result, json, lambda: render.as_text(result, mechanism, run, found))


def show(result: Result, json: bool, text: Callable[[], str]) -> int:
    """Print an answer, as JSON or as this text; returns the exit code."""
    write(render.as_json(result) if json else text())
    return EXIT_CODES[result.outcome]


def worth_of(result: Result, mechanism: Mechanism, run: RunOptions) -> "Worth | None":
    """What the update of a projected release is worth beside DP-SGD's, with the parameter that the query found."""
    if result.outcome is not Outcome.OK or not mechanism.finds_rank or not (result.risk or result.epsilon):
        return None
    setting: Any = {name: value for name, value in run.items() if name not in COMPUTED}
    found = dict.fromkeys(FOUND.get(result.quantity, ())[:1], result.value)
    if set(found) & set(RUN_PARAMETERS):
        setting |= found
    else:
        mechanism = replace(mechanism, **found)
    target = {"risk": result.risk} if result.risk else {"epsilon": result.epsilon, "log10_delta": result.log10_delta}
    try:
        return privproj.worth(mechanism, **target, **setting)
    except InvalidParameter:  # an answer beyond what may be asked for, as an epsilon of 1e17
        return None


def build_mechanism(kind: type[Mechanism], given: dict[str, Any]) -> Mechanism:
    """Return the mechanism that the options describe."""
    peft = {name: given.pop(name) for name in ("from_peft", "base", "whole_gradients") if name in given}
    if any(peft.values()):
        take_adapter(kind, given, **peft)
    if given.get("residual_norm") is not None:
        norms = given["residual_norm"].split(",")
        if len(norms) > 2:
            raise InvalidParameter("--residual-norm", ",".join(norms), "one norm, or two separated by a comma")
        numbers = (parse_number("--residual-norm", norm) for norm in norms)
        given.update(zip(("residual_norm", "other_residual_norm"), numbers, strict=False))
    return kind(**parameters_from(kind, given))


def take_adapter(
    kind: type[Mechanism], given: dict[str, Any], from_peft: str | None, base: str | None, whole_gradients: bool = False
) -> None:
    """Take the layers of a PEFT directory as those of m2, or say what it trains where the mechanism counts nothing.

    A saved adapter is evidence that its factors were trained, which m2 does not account for, so m2 needs the word that
    whole gradients were clipped and projected.
    """
    if from_peft is None:
        name, value = ("--base", base) if base is not None else ("--whole-gradients", whole_gradients)
        raise InvalidParameter(name, value, f"--from-peft with {name}")
    if given.get("layer"):
        raise InvalidParameter("--from-peft", from_peft, "either --from-peft or --layer, not both")
    projects = "layers" in kind.__dataclass_fields__
    if projects and not whole_gradients:
        raise Refused(
            f"a saved PEFT directory is evidence that LoRA's factors were trained, which {kind.name} does not account "
            f"for, got --from-peft={from_peft}; use gaussian, or say --whole-gradients if each record's whole gradient "
            "was clipped and projected to these ranks"
        )
    from privproj.integrations.peft import layers_from_peft

    layers = layers_from_peft(from_peft, base)
    shapes = ", ".join(map(str, layers))
    if projects:
        given["layer"] = layers
        write(f"layers: {shapes}", sys.stderr)
    else:
        words = "that do not matter to this number, as long as one clip holds all that is trained"
        write(f"trained: LoRA's factors at {shapes} (inputs x rank x matrices), shapes {words}", sys.stderr)


def with_clip_and_size(result: Result, mechanism: Mechanism, clip: float | None, size: float | None) -> Result:
    """Add to the result what the command line knows besides: the clipping norm and the number of records."""
    warnings = list(result.warnings)
    if size is not None and result.delta is not None and result.delta >= 1.0 / size:
        warnings.append(f"delta is not below 1/N = {1.0 / size:.3g}: it allows the release of a whole record")
    deviation = None
    if clip is not None:
        norm = real("clip", clip, "a positive clipping norm", 0.0, 1e100, open_low=True)
        if "noise_multiplier" not in vars(mechanism):
            raise InvalidParameter("clip", clip, "no clip, since this mechanism has no noise multiplier")
        if result.noise_multiplier is not None:
            # Standard deviation over scale, times z, times the sensitivity: C, or 2 C under replace.
            factor = NeighbouringRelation(str(result.run["relation"])).clip_factor
            deviation = mechanism.deviation_over_scale * result.noise_multiplier * norm * factor
    return replace(result, warnings=tuple(warnings), noise_std=deviation)
