"""The commands that ask a question of a mechanism: a group per quantity, in it a command per mechanism."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click

from privproj.accounting.question import FOUND
from privproj.mechanisms.base import ClippedSum, Mechanism
from privproj.mechanisms.registry import LINES, mechanism_named
from privproj.result import Outcome
from privproj.runs import RUN_PARAMETERS, RunOptions
from privproj.runs.targets import RISKS, TARGET_PARAMETERS
from privproj.validation import parameters_of

from . import render
from .answer import COMPUTED, answer_question, build_mechanism, take_run
from .commands import ONE_NUMBER
from .options import Group, Once, help_of, json_option, option, option_of, with_options
from .output import complain, write

MECHANISMS = tuple(dict.fromkeys(mechanism for mechanism, _ in LINES))
"""The names of all mechanisms, in the order in which they are listed."""

QUANTITIES: dict[str, Callable[[type[Mechanism]], bool]] = {
    "epsilon": lambda kind: True,
    "delta": lambda kind: True,
    "sigma": lambda kind: "noise_multiplier" in parameters_of(kind),
    "steps": lambda kind: True,
    "rate": lambda kind: kind.can_be_sampled,
    "rank": lambda kind: kind.finds_rank,
    "misalignment": lambda kind: kind.name == "wishart",
}
"""The quantities that are one number, and which mechanisms have each."""

POWERS = ("epsilon", "sigma", "rank", "steps", "rate", "misalignment")
"""Quantities that can be asked for deltas far below double precision."""

CERTIFIABLE = ("epsilon", "delta", "sigma")
"""Quantities whose answers can be certified."""


def mechanism_options(mechanism: str, quantity: str) -> list[Once]:
    """What describes a mechanism, without what the quantity finds."""
    kind = mechanism_named(mechanism)
    asked = [(name, found) for name, found in parameters_of(kind).items() if found.words]
    asked.sort(key=lambda named: named[0] in parameters_of(ClippedSum))  # what many mechanisms have is last
    # A choice of runs calibrates the noise where none is given.
    options = [option_of(name, found, required=found.is_found and quantity != "select") for name, found in asked]
    return [one for one in (*options, *adapter_options(mechanism)) if one.name not in FOUND.get(quantity, ())]


def adapter_options(mechanism: str) -> list[Once]:
    """What reads a PEFT adapter; gaussian, which accounts for PEFT's own training, counts nothing from it."""
    if mechanism not in ("gaussian", "m2"):
        return []
    words = "With --from-peft: whole gradients were clipped and projected, not its factors."
    whole = [option("--whole-gradients", words, is_flag=True, is_rare=True)] if mechanism == "m2" else []
    return [
        option("--from-peft", "A saved PEFT LoRA directory (local files): says what is trained.", type=str,
               metavar="DIR", is_rare=True),
        option("--base", "Directory of its base model.", type=str, metavar="DIR", is_rare=True),
        *whole,
    ]  # fmt: skip


def run_options(quantity: str) -> list[Once]:
    """What describes a run: steps and rate, or what people have (batch size, data set size, epochs)."""
    asked = [(name, found) for name, found in RUN_PARAMETERS.items() if name not in FOUND.get(quantity, ())]
    return [option_of(name, found) for name, found in asked if found.words]


def target_options(quantity: str) -> list[Once]:
    """``--epsilon`` and ``--delta``, as the quantity needs them."""
    names = {"epsilon": ["delta"], "report": ["delta"], "delta": ["epsilon"], "curve": []}
    asked = names.get(quantity, ["epsilon", "delta"])
    asked = asked + ["log10_delta"] * (quantity in POWERS) + [*RISKS] * (quantity == "sigma")
    is_needed = quantity in ("delta", "steps", "rate", "rank", "misalignment")
    return [option_of(name, TARGET_PARAMETERS[name], required=name == "epsilon" and is_needed) for name in asked]


def bound_option(words: str = "Bound to use; `privproj bounds` lists them.", **settings: Any) -> Once:
    """The option that names a bound."""
    return option("--bound", words, type=str, metavar="NAME", shell_complete=complete_bound, **settings)


def complete_bound(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The bounds of the mechanism that stands before the option, or all where none does."""
    names = [name for kind, name in LINES if kind == ctx.info_name] or [name for _, name in LINES]
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def refuted_option() -> Once:
    """The option that lets a refuted bound answer."""
    return option("--allow-refuted", "Print a number that is no guarantee, marked.", is_flag=True, is_rare=True)


def proof_options() -> list[Once]:
    """The options that ask for a proof and its file."""
    return [
        option("--certify", "Prove the answer by ball arithmetic (extra: certify).", is_flag=True),
        option("--certificate", "Write the proof's JSON file here; `privproj verify` checks it.", type=str,
               metavar="FILE", is_rare=True),
    ]  # fmt: skip


def answer_options(quantity: str) -> list[Once]:
    """What says how an answer of one number is found and shown."""
    clip = option("--clip", "Clipping norm C: prints the noise standard deviation too.", metavar="C")
    proof = proof_options() if quantity in CERTIFIABLE else []
    return [json_option(), bound_option(), refuted_option(), *proof, clip]


class QuestionGroup(Group):
    """``privproj QUANTITY MECHANISM [options]``: a command per mechanism, built when it is asked for.

    ``ask`` gets the mechanism, the run, the number of records where one is given, and all other options. ``own_run``
    and ``answer`` are options besides those of mechanism, run and target; ``ending`` ends the example of a mechanism.
    The help of the group is ``summary``, or the docstring of ``ask``.
    """

    def __init__(
        self,
        quantity: str,
        ask: Callable[..., int],
        answer: Sequence[Once],
        *,
        summary: str = "",
        own_run: Sequence[Once] = (),
        has: Callable[[type[Mechanism]], bool] = lambda kind: True,
        ending: Callable[[type[Mechanism]], str] = lambda kind: "--delta 1e-5",
    ) -> None:
        super().__init__(quantity, help=summary or help_of(ask))
        self.quantity, self.ask, self.answer, self.own_run = quantity, ask, answer, own_run
        self.has, self.ending = has, ending

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*(name for name in MECHANISMS if self.has(mechanism_named(name))), *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in MECHANISMS and self.has(mechanism_named(cmd_name)):
            return self._build_command(cmd_name)
        return super().get_command(ctx, cmd_name)

    def _build_command(self, mechanism: str) -> click.Command:
        """Build the command of a mechanism."""
        kind, own = mechanism_named(mechanism), mechanism_options(mechanism, self.quantity)

        def run(**options: Any) -> int:
            given = {str(one.name): options.pop(str(one.name)) for one in own}
            size, setting = options.get("dataset_size"), take_run(options, self.quantity)
            return self.ask(build_mechanism(kind, given), setting, size=size, **options)

        asked = run_options(self.quantity)
        words = ["privproj", self.quantity, mechanism, *example_words(mechanism, self.quantity), self.ending(kind)]
        return with_options(
            {
                "Mechanism": own,
                "Run": [*self.own_run, *(one for one in asked if one.name not in COMPUTED)],
                "Target": target_options(self.quantity),
                "Answer": [*self.answer, *(one for one in asked if one.name in COMPUTED)],
            },
            run,
            name=mechanism,
            help=f"{kind.summary}\n\n\b\nExample:\n  {' '.join(words).rstrip()}",
            short_help=kind.summary,
        )


def example_words(mechanism: str, quantity: str) -> list[str]:
    """The mechanism's options in a call that works, for examples."""
    values = dict(pair.split("=") for pair in mechanism_named(mechanism).example.split())
    named = [(one.opts[0], str(one.name)) for one in mechanism_options(mechanism, quantity)]
    return [f"{spelt} {values[name]}" for spelt, name in named if name in values]


def compare_bounds(mechanism: Mechanism, run: RunOptions, json: bool, size: float | None, **target: Any) -> int:
    """Every bound of a mechanism, promise-free ones first, tightest first."""
    from privproj.accounting.comparison import compare

    rows = compare(mechanism, **target, **run)
    # A bound that does not apply has a name and a reason.
    named = [{"bound": row.bound.name, "value": None, "status": row.bound.status, "reason": row.reason} for row in rows]
    records = {"results": [row.result or said for row, said in zip(rows, named, strict=True)]}
    write(render.as_json(records) if json else render.comparison_text(rows))
    if not any(row.result and row.result.value is not None for row in rows):
        first = rows[0].reason.removeprefix(rows[0].bound.name).lstrip(": ")
        complain(f"no bound gives a number here: {rows[0].bound.name}: {first}", 0)
    outcomes = {row.result.outcome if row.result else Outcome.REFUSED for row in rows}
    return 0 if Outcome.OK in outcomes else 3 if outcomes == {Outcome.REFUSED} else 4


def _query_group(quantity: str, summary: str) -> QuestionGroup:
    """Build the command of a quantity that is one number."""
    targets = [f"{one.opts[0]} {value}" for one in target_options(quantity)
               if (value := {"epsilon": "1", "delta": "1e-5"}.get(str(one.name)))]  # fmt: skip

    def ending(kind: type[Mechanism]) -> str:
        is_composed = QUANTITIES["sigma"](kind)
        run = {"rate": "--steps 1000" if is_composed else "--steps 1", "steps": "--sampling-rate 0.01" * is_composed}
        return " ".join(filter(None, [run.get(quantity, ""), *targets]))

    return QuestionGroup(
        quantity,
        partial(answer_question, quantity),
        answer_options(quantity),
        summary=summary,
        has=QUANTITIES[quantity],
        ending=ending,
    )


COMMANDS = {
    **{quantity: _query_group(quantity, ONE_NUMBER[quantity]) for quantity in QUANTITIES},
    "compare": QuestionGroup("compare", compare_bounds, [json_option()]),
}
