"""The commands that ask for one number: a group per quantity, a command per mechanism."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import click

from privproj.errors import InvalidParameter, Unanswered
from privproj.mechanisms import Mechanism
from privproj.result import Outcome, Result
from privproj.runs import NeighbouringRelation
from privproj.validation import real

from . import render
from .groups import Group
from .mechanisms import MECHANISMS, NOISY, example_words, mechanism_options
from .options import option, run_options, sectioned, take_run, target_options, with_options

RUNS = {"steps": "--sampling-rate 0.01", "rate": "--steps 1000"}
"""What the example of a quantity says about the run, where the mechanism has a bound under subsampling."""
CERTIFIABLE = ("epsilon", "delta", "sigma")
"""Quantities whose answers can be certified."""
EXIT_CODES = {
    Outcome.OK: 0,
    Outcome.REFUSED: 0,
    Outcome.VACUOUS: 4,
    Outcome.NOT_CONVERGED: 5,
    Outcome.PRECISION_LIMIT: 5,
}


def query_group(quantity: str, ask: Callable[..., Result], summary: str, mechanisms: tuple[str, ...]) -> click.Group:
    """Build the command of a quantity: ``privproj QUANTITY MECHANISM [options]``."""
    group = Group(quantity, help=summary, short_help=summary)
    for name in mechanisms:
        group.add_command(query_command(quantity, ask, name))
    return group


def query_command(quantity: str, ask: Callable[..., Result], mechanism: str) -> click.Command:
    """Build the command ``privproj QUANTITY MECHANISM``."""
    kind, summary = MECHANISMS[mechanism].kind, MECHANISMS[mechanism].summary
    own, target = mechanism_options(mechanism, quantity), target_options(quantity)
    bound = option("--bound", "Bound to use; `privproj bounds` lists them.", type=str, metavar="NAME")
    refuted = option("--allow-refuted", "Print a number that is no guarantee, marked.", is_flag=True)
    as_json = option("--json", "One JSON object instead of text.", is_flag=True)
    proof = certificate_options() if quantity in CERTIFIABLE else []

    def run(json: bool, certify: bool = False, certificate: str | None = None, **options: Any) -> int:
        proved = partial(with_proof, certificate) if certify or certificate is not None else without_proof
        return answer_query(ask, kind, json, {o.name for o in own}, options, proved, quantity)

    return with_options(
        sectioned(own, run_options(quantity), target, [as_json, bound, refuted, *proof]),
        run,
        name=mechanism,
        help=f"{summary}\n\n\b\nExample:\n  {example(quantity, mechanism, target)}",
        short_help=summary,
    )


def example(quantity: str, mechanism: str, target: list[click.Option]) -> str:
    """Return a call that works, for the help text."""
    words = example_words(mechanism, quantity)
    if mechanism in NOISY and quantity in RUNS:
        words.append(RUNS[quantity])
    values = {"epsilon": "--epsilon 1", "delta": "--delta 1e-5"}
    return " ".join(["privproj", quantity, mechanism, *words, *(values[o.name] for o in target if o.name in values)])


def certificate_options() -> list[click.Option]:
    """Return the options ``--certify`` and ``--certificate``."""
    return [
        option("--certify", "Prove the answer by ball arithmetic (extra: certify).", is_flag=True),
        option(
            "--certificate", "Write the proof's JSON file here; `privproj verify` checks it.", type=str, metavar="FILE"
        ),
    ]


def without_proof(result: Result) -> Result:
    """Return the result as it is, since no proof was asked for."""
    return result


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


def answer_query(
    ask: Callable[..., Result],
    kind: type[Mechanism],
    json: bool,
    own: set,
    options: dict[str, Any],
    proved: Callable[[Result], Result],
    quantity: str,
) -> int:
    """Parse the options, ask, prove and print; returns the exit code."""
    clip, size = options.pop("clip"), options.get("dataset_size")
    run = take_run(options, quantity)
    mechanism = build_mechanism(kind, {name: options.pop(name) for name in list(options) if name in own})
    try:
        result = proved(ask(mechanism, **options, **run))
    except Unanswered as error:
        if json and isinstance(error.result, Result):
            click.echo(render.as_json(error.result.as_dict()))
        raise
    result = with_clip_and_size(result, clip, size)
    click.echo(render.as_json(result.as_dict()) if json else render.as_text(result, mechanism, run))
    return EXIT_CODES[result.outcome]


def build_mechanism(kind: type[Mechanism], given: dict[str, Any]) -> Mechanism:
    """Return the mechanism that the options describe."""
    if "layer" in given:
        given["layers"] = given.pop("layer")
    directory, base = given.pop("from_peft", None), given.pop("base", None)
    if base is not None and directory is None:
        raise InvalidParameter("--base", base, "--from-peft with --base")
    if directory is not None:
        if given["layers"]:
            raise InvalidParameter("--from-peft", directory, "either --from-peft or --layer, not both")
        from privproj.integrations.peft import layers_from_peft

        given["layers"] = layers_from_peft(directory, base)
        click.echo("layers: " + ", ".join(str(layer) for layer in given["layers"]), err=True)
    if isinstance(given.get("residual_norm"), tuple):
        given.update(zip(("residual_norm", "other_residual_norm"), given["residual_norm"], strict=False))
    return kind(**{name: value for name, value in given.items() if value is not None})


def with_clip_and_size(result: Result, clip: float | None, size: float | None) -> Result:
    """Add to the result what the command line knows besides: the clipping norm and the number of records."""
    warnings = list(result.warnings)
    if size is not None and result.delta is not None and result.delta >= 1.0 / size:
        warnings.append(f"delta is not below 1/N = {1.0 / size:.3g}: it allows the release of a whole record")
    deviation = None
    if clip is not None:
        norm = real("clip", clip, "a positive clipping norm", 0.0, 1e100, open_low=True)
        if "noise_multiplier" not in MECHANISMS[str(result.mechanism["name"])].kind.__dataclass_fields__:
            raise InvalidParameter("clip", clip, "no clip, since this mechanism has no noise multiplier")
        if result.noise_multiplier is not None:
            # Standard deviation over scale, times z, times the sensitivity: C, or 2 C under replace.
            over_scale = MECHANISMS[str(result.mechanism["name"])].kind.deviation_over_scale
            factor = NeighbouringRelation(str(result.run["relation"])).clip_factor
            deviation = over_scale * result.noise_multiplier * norm * factor
    return replace(result, warnings=tuple(warnings), noise_std=deviation)
