"""A question from the words of the command line, and its answer: what needs no click."""

import math
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import privproj
from privproj.errors import InvalidParameter, Refused, Unanswered
from privproj.mechanisms.registry import mechanism_named
from privproj.result import Outcome, Result
from privproj.runs import RUN_PARAMETERS, RunOptions, run_from
from privproj.runs.sampling import NeighbouringRelation
from privproj.validation import parameters_from, real, whole

from . import render
from .declared import MECHANISMS, QUANTITIES, answer_of, declared_by, run_of, target_of
from .output import write

if TYPE_CHECKING:
    from privproj.mechanisms import Mechanism

EXIT_CODES = {
    Outcome.OK: 0,
    Outcome.REFUSED: 0,
    Outcome.VACUOUS: 4,
    Outcome.NOT_CONVERGED: 5,
    Outcome.PRECISION_LIMIT: 5,
}


def _how_to_write(text: str) -> str:
    """What to write in place of a percentage, of separators or of a letter for thousands; nothing for other text."""
    import re

    found = re.fullmatch(r"([\d.]+)\s*%", text)
    if found:
        try:
            return f"write {float(found[1]) / 100:g}, without a percent sign"
        except ValueError:
            return ""
    if re.fullmatch(r"[\d.]+(?:[,_' ][\d]+)+|[\d.]+[kKmM]", text):
        return "write the number without separators or letters, for instance 100000 or 1e5"
    return ""


def parse_number(option: str, text: str) -> float:
    """The finite decimal number that a text says; overflow (1e400) and underflow (1e-400) are seen."""
    try:
        number = float(text.replace("_", "?") if text.isascii() else "?")
    except ValueError:
        raise InvalidParameter(option, repr(text), "a number", _how_to_write(text)) from None
    if not math.isfinite(number):
        reason = "too large for double precision" if any(c.isdigit() for c in text) else ""
        raise InvalidParameter(option, text, "a finite number", reason)
    mantissa = text.lower().split("e")[0]
    if number == 0.0 and any(c in "123456789" for c in mantissa):
        raise InvalidParameter(option, text, "a number above 1e-307 in size", "it underflows to zero")
    return number


def take_run(options: dict[str, Any], quantity: str = "") -> RunOptions:
    """Remove the run options from ``options``; return the run as the library takes it."""
    given = {name: value for name in RUN_PARAMETERS if (value := options.pop(name, None)) is not None}
    if given.get("split", "even") not in ("even", "optimal"):
        given["split"] = parse_number("--split", given["split"])
    if "dataset_size" in given and not {"batch_size", "max_batch_size"} & set(given):  # for the warning about delta
        whole("dataset_size", given.pop("dataset_size"), "a whole number dataset_size >= 1")
        given["public_size"] = True
    return run_from(given, quantity)


def with_proof(path: str | None, result: Result) -> Result:
    """Return the result with its certificate, which goes to a file where one is named."""
    from privproj.records.certificate import prove

    try:
        proved, certificate = prove(result)
    except Unanswered as error:
        error.result = replace(result, value=None, lower=None, upper=None, outcome=Outcome(error.outcome))
        raise
    if path is not None:
        certificate.save(path)
    return proved


def plain_question(words: list[str]) -> tuple[str, str, dict[str, Any]] | None:
    """The quantity, the mechanism and all options of a question of which every word is plain; None for any other.

    A plain option has its full name, stands there once, and is a flag, a number, a text, or one of its words. All else,
    every error among them, is for click, which reads the same declarations.
    """
    quantity, name = words[:2]
    if quantity not in QUANTITIES or name not in MECHANISMS or not QUANTITIES[quantity](mechanism_named(name)):
        return None
    declared = [*declared_by(name, quantity), *run_of(quantity), *target_of(quantity), *answer_of(quantity)]
    known = {option: settings for option, _, settings in declared}
    given: dict[str, Any] = {}
    rest = iter(words[2:])
    for option in rest:
        settings = known.get(option)
        value = True if settings is None or settings.get("is_flag") else _plain_value(settings, next(rest, ""))
        if settings is None or value is None or option in given:
            return None
        given[option] = value
    if any(settings.get("required") and option not in given for option, settings in known.items()):
        return None
    empty = {o: False if s.get("is_flag") else () if s.get("multiple") else None for o, s in known.items()}
    return quantity, name, {parameter_name(option): value for option, value in {**empty, **given}.items()}


def _plain_value(settings: dict[str, Any], text: str) -> float | str | None:
    """What the text of an option says; None where click has to look at it."""
    kind = settings.get("type")
    if kind is None:
        try:
            return parse_number("", text)
        except InvalidParameter:
            return None
    plain = text in kind if isinstance(kind, tuple) else kind == "text" and text[:1] not in ("", "-")
    return text if plain else None


def parameter_name(option: str) -> str:
    """Name an option as the library does: ``noise_multiplier`` for ``--noise-multiplier``."""
    return option.removeprefix("--").replace("-", "_")


def answer_question(quantity: str, name: str, options: dict[str, Any]) -> int:
    """Ask for a quantity of the mechanism of this name, and print the answer; returns the exit code.

    ``options`` has the value of every option of the command by its parameter name.
    """
    as_json, certify = options.pop("json"), options.pop("certify", False)
    certificate, clip, size = options.pop("certificate", None), options.pop("clip"), options.get("dataset_size")
    run = take_run(options, quantity)
    own = [parameter_name(option) for option, _, _ in declared_by(name, quantity)]
    mechanism = build_mechanism(mechanism_named(name), {name: options.pop(name) for name in own})
    try:
        result = getattr(privproj, quantity)(mechanism, **options, **run)
        if certify or certificate is not None:
            result = with_proof(certificate, result)
    except Unanswered as error:
        if as_json and isinstance(error.result, Result):
            write(render.as_json(error.result.as_dict()))
        raise
    result = with_clip_and_size(result, mechanism, clip, size)
    write(render.as_json(result.as_dict()) if as_json else render.as_text(result, mechanism, run))
    return EXIT_CODES[result.outcome]


def build_mechanism(kind: "type[Mechanism]", given: dict[str, Any]) -> "Mechanism":
    """Return the mechanism that the options describe."""
    peft = {name: given.pop(name) for name in ("from_peft", "base", "whole_gradients") if name in given}
    if any(peft.values()):
        take_adapter(kind, given, **peft)
    if isinstance(given.get("residual_norm"), tuple):
        given.update(zip(("residual_norm", "other_residual_norm"), given["residual_norm"], strict=False))
    return kind(**parameters_from(kind, given))


def take_adapter(
    kind: "type[Mechanism]",
    given: dict[str, Any],
    from_peft: str | None,
    base: str | None,
    whole_gradients: bool = False,
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

    try:
        layers = layers_from_peft(from_peft, base)
    except InvalidParameter as error:
        if projects:
            raise
        remedy = f"leave --from-peft out: {kind.name} counts nothing from it"
        raise InvalidParameter(error.name, error.value, error.expected, remedy) from None
    shapes = ", ".join(map(str, layers))
    if projects:
        given["layer"] = layers
        write(f"layers: {shapes}", sys.stderr)
    else:
        words = "that do not matter to this number, as long as one clip holds all that is trained"
        write(f"trained: LoRA's factors at {shapes} (inputs x rank x matrices), shapes {words}", sys.stderr)


def with_clip_and_size(result: Result, mechanism: "Mechanism", clip: float | None, size: float | None) -> Result:
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
