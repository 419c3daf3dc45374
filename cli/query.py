"""Implement the commands that query a mechanism.

There is a command group for each quantity, such as epsilon, and in it a command for each mechanism.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

import privproj
from privproj.accounting.query import SOLVED_FOR
from privproj.errors import InvalidParameterError, PrivprojError, UnsupportedError
from privproj.mechanisms.base import ClippedSum, Mechanism
from privproj.mechanisms.registry import bound_names, lines_of, mechanism_named, mechanism_names
from privproj.parameters import parameters_from, parameters_of, real
from privproj.result import Outcome, Result
from privproj.run import RUN_PARAMETERS, RunOptions, run_from
from privproj.sampling import NeighboringRelation
from privproj.targets import RISKS, TARGET_PARAMETERS

from . import render
from .main import ONE_NUMBER
from .options import (
    Group,
    Once,
    SectionedCommand,
    completing,
    csv_option,
    in_command,
    json_option,
    option,
    option_of,
    parse_number,
    requirements_option,
    verbose_option,
)
from .output import complain, write

if TYPE_CHECKING:
    from privproj.accounting.utility import Utility

QUANTITIES = tuple(ONE_NUMBER)  # quantities that are one number


def has_quantity(quantity: str, kind: type[Mechanism]) -> bool:
    """Return whether a query, such as "rank", is defined for a mechanism."""
    of_some = {
        "sigma": "noise_multiplier" in parameters_of(kind),
        "rate": kind.can_be_sampled,
        "rank": kind.finds_rank,
        "misalignment": kind.name == "wishart",
    }
    return of_some.get(quantity, True)


# exit code by outcome
EXIT_CODES = dict.fromkeys(Outcome, 5) | {Outcome.OK: 0, Outcome.UNSUPPORTED: 0, Outcome.VACUOUS: 4}

COMPUTED = ("discretization", "split", "tau")  # options of the computation, not of the run


def mechanism_options(mechanism: str, quantity: str, finds_noise: bool = False) -> list[Once]:
    """Return the options for a mechanism's parameters, without the one to solve for.

    If ``finds_noise``, the noise multiplier is optional.
    """
    kind = mechanism_named(mechanism)
    requested = [(name, field) for name, field in parameters_of(kind).items() if field.description]
    requested.sort(key=lambda named: named[0] in parameters_of(ClippedSum))  # shared options come last
    options = [option_of(name, field, required=field.is_found and not finds_noise) for name, field in requested]
    return [one for one in (*options, *adapter_options(mechanism)) if one.name not in SOLVED_FOR.get(quantity, ())]


def adapter_options(mechanism: str) -> list[Once]:
    """Return the options of m2 and gaussian that read a PEFT adapter."""
    if mechanism not in ("gaussian", "m2"):
        return []
    help_text = "Read the trained layers from a saved PEFT LoRA directory."
    sentence = "Confirm that whole gradients were clipped and projected, not LoRA factors."
    return [
        option("--from-peft", help_text, metavar="DIR", is_rare=True),
        *([option("--whole-gradients", sentence, is_flag=True, is_rare=True)] if mechanism == "m2" else []),
    ]


def run_options(quantity: str) -> list[Once]:
    """Return the options for steps and sampling, without the parameter to solve for."""
    requested = [(name, field) for name, field in RUN_PARAMETERS.items() if name not in SOLVED_FOR.get(quantity, ())]
    return [option_of(name, field) for name, field in requested if field.description]


def target_options(quantity: str) -> list[Once]:
    """Return the options for the target of a query, such as ``--delta`` for epsilon."""
    names = {"epsilon": ["delta"], "report": ["delta"], "delta": ["epsilon"], "curve": []}
    requested, is_one = names.get(quantity, ["epsilon", "delta"]), quantity in QUANTITIES
    # Deltas below double precision are targets of every quantity except delta.
    requested = requested + ["log10_delta"] * (is_one and quantity != "delta") + [*RISKS] * (quantity == "sigma")
    needed = "epsilon" if is_one and quantity != "sigma" else ""
    return [option_of(name, TARGET_PARAMETERS[name], required=name == needed) for name in requested]


def bound_option(description: str = "Use this bound. `privproj bounds` lists all bounds.", **settings: Any) -> Once:
    """Return the option that names a bound."""
    of_mechanism = completing(lambda mechanism: [name for kind, name in bound_names() if kind == mechanism])
    return option("--bound", description, type=str, metavar="NAME", shell_complete=of_mechanism, **settings)


def refuted_option() -> Once:
    """Return the option that evaluates a refuted bound."""
    return option(
        "--allow-refuted", "Evaluate a refuted bound. The number is not a guarantee.", is_flag=True, is_rare=True
    )


class QueryGroup(Group):
    """The command group ``privproj QUANTITY``, with a command for each mechanism.

    ``ask`` evaluates a query of a mechanism, given the run and all other options, and returns the exit code. ``answer``
    and ``own_run`` are further options, under the headings "Output" and "Run" of the help. ``example`` has the last
    arguments of the example in the help. If ``finds_noise``, the noise multiplier is optional.
    """

    members = "a mechanism"
    path = "privproj"

    def __init__(
        self,
        quantity: str,
        ask: Callable[..., int],
        answer: Sequence[Once],
        own_run: Sequence[Once] = (),
        example: str | None = None,
        finds_noise: bool = False,
    ) -> None:
        help_text, metavar = ONE_NUMBER.get(quantity, ask.__doc__), "MECHANISM [ARGS]..."
        super().__init__(quantity, help=help_text, subcommand_metavar=metavar)
        self.quantity, self.ask, self.answer, self.own_run = quantity, ask, answer, own_run
        self.example = ENDINGS.get(quantity, "--delta 1e-5") if example is None else example
        self.finds_noise = finds_noise

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = (name for name in mechanism_names() if has_quantity(self.quantity, mechanism_named(name)))
        return [*names, *self.commands]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        listed = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        rows = [(name, one.get_short_help_str(formatter.width)) for name, one in listed.items() if one]
        with formatter.section("Mechanisms"):
            formatter.write_dl([row for row in rows if row[0] not in self.commands])
        if self.commands:
            with formatter.section("Commands"):
                formatter.write_dl([row for row in rows if row[0] in self.commands])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if lines_of(cmd_name) and has_quantity(self.quantity, mechanism_named(cmd_name)):
            return self._build_command(cmd_name)
        return super().get_command(ctx, cmd_name)

    def unknown_command(self, name: str, names: list[str], remedy: str) -> PrivprojError:
        from privproj.mechanisms.methods import unknown_mechanism

        if lines_of(name):
            remedy = f"the query {self.quantity} is not defined for {name}"
            return InvalidParameterError("MECHANISM", name, " or ".join(", ".join(names).rsplit(", ", 1)), remedy)
        return unknown_mechanism("MECHANISM", name, names, remedy)

    def _build_command(self, mechanism: str) -> click.Command:
        """Build the click command of a mechanism."""
        kind = mechanism_named(mechanism)
        own_options = mechanism_options(mechanism, self.quantity, self.finds_noise)

        def run(**options: Any) -> int:
            parameters = {str(one.name): options.pop(str(one.name)) for one in own_options}
            setting = take_run(options, self.quantity)
            return self.ask(build_mechanism(kind, parameters), setting, **options)

        requested = run_options(self.quantity)
        command_line = [self.path, self.quantity, mechanism, *example_arguments(mechanism, self.quantity)]
        command_line.append(self.example)
        return SectionedCommand(
            {
                "Mechanism": own_options,
                "Run": [*self.own_run, *(one for one in requested if one.name not in COMPUTED)],
                "Target": target_options(self.quantity),
                "Output": [*self.answer, *(one for one in requested if one.name in COMPUTED)],
            },
            callback=run,
            name=mechanism,
            help=f"{kind.summary}\n\n\b\nExample:\n  {' '.join(command_line).rstrip()}",
            short_help=kind.summary,
        )


BOTH = "--epsilon 1 --delta 1e-5"
# end of the example in the help text, by quantity; by default a delta
ENDINGS = {
    "delta": "--epsilon 1",
    "steps": "--epsilon 8 --delta 1e-5",
    "rate": f"--steps 1000 {BOTH}",
    "curve": "",
    **dict.fromkeys(("sigma", "rank", "misalignment"), BOTH),
}


def example_arguments(mechanism: str, quantity: str) -> list[str]:
    """Return valid command-line arguments of a mechanism, for the example in the help."""
    values = dict(pair.split("=") for pair in mechanism_named(mechanism).example.split())
    named = [(one.opts[0], str(one.name)) for one in mechanism_options(mechanism, quantity)]
    return [f"{spelt} {values[name]}" for spelt, name in named if name in values]


# --- results ------------------------------------------------------------------------------------------


def take_run(options: dict[str, Any], quantity: str = "") -> RunOptions:
    """Remove the options of the run from ``options``, and return them."""
    values = {name: value for name in RUN_PARAMETERS if (value := options.pop(name, None)) is not None}
    return run_from(values, quantity)


def evaluate_query(
    quantity: str, mechanism: Mechanism, run: RunOptions, clip: float | None, json: bool, verbose: bool = False,
    digits: float | None = None, **options: Any,
) -> int:  # fmt: skip
    """Evaluate a query of a mechanism, print the result, and return the exit code.

    ``quantity`` names the query, such as "epsilon". ``options`` has the target, such as ``delta``.
    """
    result = getattr(privproj, quantity)(mechanism, **options, **run)
    if digits is not None:
        from privproj.accounting.digits import with_digits

        result = with_digits(result, digits)
    return show_result(result, mechanism, run, clip, json, verbose)


def show_result(
    result: Result, mechanism: Mechanism, run: RunOptions, clip: float | None, json: bool, verbose: bool
) -> int:
    """Print the result of a query of a mechanism, and return the exit code."""
    result = with_clip(result, mechanism, clip)
    if not (json or verbose):
        return show(result, json, lambda: render.as_text(result))
    utility = utility_of(result, mechanism, run)
    if utility is not None:
        result = replace(result, alternatives={**result.alternatives, **utility.as_dict()})
    if json:
        return show(result, json, str)
    from privproj.accounting.lower_bounds import with_details

    detailed, others = with_details(result), other_bounds(result, mechanism, run, utility)
    return show(result, json, lambda: render.as_text(detailed, verbose, utility, others))


def other_bounds(result: Result, mechanism: Mechanism, run: RunOptions, utility: "Utility | None") -> dict[str, float]:
    """Return the values of the same query by other bounds of the mechanism, by label."""
    if result.outcome is not Outcome.OK:
        return {}
    from privproj.accounting.comparison import compare_with_baselines

    dp_sgd_noise = utility.dp_sgd_noise_multiplier if utility else None
    return dict(compare_with_baselines(result, mechanism, run, dp_sgd_noise))


def show(result: Result, json: bool, text: Callable[[], str]) -> int:
    """Print a result as JSON or as ``text()``, and return the exit code."""
    write(render.as_json(result) if json else text())
    return EXIT_CODES[result.outcome]


def utility_of(result: Result, mechanism: Mechanism, run: RunOptions) -> "Utility | None":
    """Return the noise and the projection error of a projected update.

    The result is None for a mechanism without a projection or a query without a value.
    """
    if result.outcome is not Outcome.OK or not mechanism.finds_rank or not (result.risk or result.epsilon):
        return None
    setting: Any = {name: value for name, value in run.items() if name not in COMPUTED}
    solved = dict.fromkeys(SOLVED_FOR.get(result.quantity, ())[:1], result.value)
    if set(solved) & set(RUN_PARAMETERS):
        setting |= solved
    else:
        mechanism = replace(mechanism, **solved)
    target = {"risk": result.risk} if result.risk else {"epsilon": result.epsilon, "log10_delta": result.log10_delta}
    with suppress(InvalidParameterError):  # a result outside the range of targets, such as an epsilon of 1e17
        return privproj.update_utility(mechanism, **target, **setting)


def build_mechanism(kind: type[Mechanism], values: dict[str, Any]) -> Mechanism:
    """Return the mechanism that command-line options describe."""
    peft = {name: values.pop(name) for name in ("from_peft", "whole_gradients") if name in values}
    if any(peft.values()):
        take_adapter(kind, values, **peft)
    if values.get("residual_norm") is not None:
        norms = [parse_number("--residual-norm", norm) for norm in values["residual_norm"].split(",", 1)]
        values.update(zip(("residual_norm", "other_residual_norm"), norms, strict=False))
    return kind(**parameters_from(kind, values))


def take_adapter(
    kind: type[Mechanism], values: dict[str, Any], from_peft: str | None, whole_gradients: bool = False
) -> None:
    """Print the layers of a PEFT adapter; for m2, also add the layers to the options.

    ``values`` are the options. ``whole_gradients`` confirms that whole gradients, not LoRA factors, were clipped and
    projected, which m2 requires.
    """
    if from_peft is None:
        raise InvalidParameterError(
            "--from-peft", "nothing", "a folder", "--whole-gradients applies to the adapter in --from-peft DIR"
        )
    if values.get("layer"):
        raise InvalidParameterError("--from-peft", from_peft, "omitted if --layer is given")
    projects = "layers" in kind.__dataclass_fields__
    if projects and not whole_gradients:
        raise UnsupportedError(
            f"{kind.name} does not account for training LoRA factors, which the "
            f"saved adapter {from_peft} indicates. Use "
            "the mechanism gaussian, or pass --whole-gradients if each record's "
            "whole gradient was clipped and projected"
        )
    from privproj.integrations.peft import layers_from_peft

    layers = layers_from_peft(from_peft)
    note = f"layers: {', '.join(map(str, layers))}"
    if projects:
        values["layer"] = layers
    else:
        note += " (inputs x rank x matrices). These shapes do not change the result, if each record's gradient of all "
        note += "trained weights is clipped to one norm"
    write(note, sys.stderr)


def with_clip(result: Result, mechanism: Mechanism, clip: float | None) -> Result:
    """Add the standard deviation of the noise at clipping norm ``clip`` to a result."""
    if clip is None:
        return result
    norm = real("clip", clip, "a number above 0", 0.0, 1e100, open_low=True)
    if "noise_multiplier" not in vars(mechanism):
        raise InvalidParameterError("clip", clip, "omitted for a mechanism without a noise multiplier")
    if result.noise_multiplier is None:
        return result
    # standard deviation = sigma * z * sensitivity; the sensitivity is C, or 2 C under replace
    factor = NeighboringRelation(str(result.run["relation"])).clip_factor
    return replace(result, noise_std=mechanism.deviation_over_scale * result.noise_multiplier * norm * factor)


def compare_bounds(mechanism: Mechanism, run: RunOptions, json: bool, csv: bool, verbose: bool, **target: Any) -> int:
    """Evaluate every bound of a mechanism and sort the results.

    Bounds without an assumption on the data come first, and tighter bounds come before looser ones.
    """
    if json and csv:
        raise InvalidParameterError("--csv", True, "omitted if --json is given")
    rows = privproj.compare(mechanism, **target, **run)
    # In JSON, a bound without a result has its name and the reason.
    records = {"results": [row.result or {**row.as_row(), "value": None} for row in rows]}
    if csv:
        write(render.as_csv([row.as_row() for row in rows]))
    else:
        write(render.as_json(records) if json else render.comparison_text(rows, verbose))
    if not any(row.result and row.result.value is not None for row in rows):
        name, reason = rows[0].bound.name, in_command(rows[0].reason)
        text = reason if name in reason else f"{name}: {reason}"
        complain(text if text.startswith("no bound") else f"no bound supports this query; {text}", 0)
    outcomes = {row.result.outcome if row.result else Outcome.UNSUPPORTED for row in rows}
    return 0 if Outcome.OK in outcomes else 3 if outcomes == {Outcome.UNSUPPORTED} else 4


def _query_group(quantity: str) -> QueryGroup:
    """Build the command group of a quantity, such as ``privproj epsilon``."""
    clip = option("--clip", "Print the noise standard deviation for this clipping norm.", metavar="C")
    options = [json_option(), verbose_option(), bound_option(), refuted_option(), clip]
    if quantity in ("epsilon", "delta"):
        help_text = "Print the value of the bound to N digits by mpmath, for one release on the whole dataset."
        options.append(option("--digits", help_text, metavar="N", is_rare=True))
    return QueryGroup(quantity, partial(evaluate_query, quantity), options)


COMMANDS = {
    **{quantity: _query_group(quantity) for quantity in QUANTITIES},
    "compare": QueryGroup("compare", compare_bounds, [json_option(), csv_option(), requirements_option()]),
}
