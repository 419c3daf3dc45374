"""All commands, under click: a lazy group, which imports a command when it is called."""

from collections.abc import Sequence
from importlib import import_module

import click

from privproj import __version__
from privproj.errors import nearest_names

from .options import CommandGroup, Group
from .output import complain

ONE_NUMBER = {
    "epsilon": "Epsilon of a release or a run, at a given delta.",
    "delta": "Delta of a release or a run, at a given epsilon.",
    "sigma": "Smallest noise multiplier that meets a target.",
    "steps": "Largest number of steps that meets a target.",
    "rate": "Largest sampling rate that meets a target.",
    "rank": "Ranks of the projection that meet a target.",
    "misalignment": "Largest misalignment (1 - cosine) that meets a target.",
}
"""The commands whose answer is one number, which share a file."""

GROUPS = {
    "Numbers": {
        **ONE_NUMBER,
        "choose": "What to train with: every algorithm at one epsilon.",
        "compare": "Every bound of a mechanism, side by side.",
        "curve": "delta(epsilon) or the trade-off curve: table, CSV, picture.",
    },
    "Runs": {
        "run": "Epsilon or delta of a run file: phases composed jointly.",
        "remaining": "How much of a budget is spent, and how many steps still fit.",
        "dp-sft": "Noise for DP-SFT: a private subspace, then training in it.",
        "select": "The best of a random number of runs: what choosing it costs.",
        "sweep": "A grid of questions to a CSV or Parquet table; resumable.",
    },
    "Reports": {
        "explain": "What a word, an exit code or a bound of an answer means.",
        "bounds": "The catalogue of bounds: formula, source, status, promises.",
        "report": "A privacy statement for a model card: text, Markdown, HTML.",
    },
    "Training and audits": {
        "train": "Train with the computed noise, and report what was spent.",
        "ledger": "What a training run has spent, and what is left.",
        "audit": "Attacks that can refute a claimed epsilon; none confirms one.",
        "alignment": "Where the promise of the wishart mechanism comes from.",
        "lora-noise": "Moments of LoRA's noise term; a diagnostic, no guarantee.",
    },
    "Checks": {
        "check": "Regression test for CI: asks every bound of a file again.",
        "verify": "Check a certificate, a ledger or a privacy statement.",
    },
}
"""The commands with a line each, under the headings of ``privproj --help``, in the order in which a newcomer reads."""

COMMANDS = {name: words for group in GROUPS.values() for name, words in group.items()}
"""Every command with its line."""

EPILOG = """\b
Exit codes: 0 ok, 1 failed, 2 bad input, 3 refused, 4 vacuous, 5 not computed.
`privproj explain 3` says more of one, `privproj explain` lists all words."""


class LazyGroup(CommandGroup):
    """A group that imports a command only when it is called, and lists the commands under headings."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return command_named(cmd_name) if cmd_name in COMMANDS else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), words) for name, words in commands.items()])


HOMES = {
    **dict.fromkeys((*ONE_NUMBER, "compare"), "query"),
    "bounds": "explain",
    "dp-sft": "run",
    "sweep": "run",
    "lora-noise": "alignment",
    "remaining": "ledger",
    "select": "choose",
}
"""The files of commands that share one; every other command has a file of its name."""


def command_named(name: str) -> click.Command:
    """The command of this name, from its file."""
    return import_module("." + HOMES.get(name, name), __package__).COMMANDS[name]


SETTINGS = {"max_content_width": 100, "help_option_names": ["-h", "--help"]}


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings=SETTINGS)
@click.version_option(__version__, prog_name="privproj")
def cli() -> None:
    """Privacy accounting for random projections and LoRA.

    Every number comes with the bound it is from, whether that bound is proved, and what it asks of your data.

    \b
    Example:
      privproj epsilon m2 --dim 2048 --rank 16 --noise-multiplier 0.5 --delta 1e-5
    """


def run_command(words: Sequence[str]) -> int:
    """Run the command that these words name, and return its exit code."""
    try:
        return cli.main(list(words), prog_name="privproj", standalone_mode=False) or 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.ClickException as error:
        return complain(unknown_option(error) or missing_parameter(error) or error.format_message(), 2)
    except click.Abort:
        return complain("interrupted", 130)


USUAL_NAMES = {
    **dict.fromkeys(("--sigma", "--noise", "-z", "--z", "--multiplier", "--sigmas"), ("--noise-multiplier",)),
    **dict.fromkeys(("--eps", "-e", "--target-epsilon"), ("--epsilon",)),
    **dict.fromkeys(("-d", "--target-delta"), ("--delta",)),
    **dict.fromkeys(("-q", "--q", "--rate", "--sample-rate"), ("--sampling-rate",)),
    **dict.fromkeys(("--max-grad-norm", "--clip-norm", "-c"), ("--clip", "--max-grad-norm")),
    **dict.fromkeys(("-n", "--n", "--samples", "--records"), ("--dataset-size",)),
}
"""What other tools call an option of ours."""


def unknown_option(error: click.ClickException) -> str:
    """The sentence for an option that a command does not have; empty for any other error."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return ""
    context, given = error.ctx, error.option_name
    usual, known = USUAL_NAMES.get(given, ()), options_of(context)
    found = next((name for name in (given, *usual) if name in _found_by(context)), None)
    if found is not None:
        asked = "" if found == given else f", got {given}"
        return f"expected no {found}: it is what `{context.command_path}` finds{asked}"
    near = [name for name in usual if name in known]
    owners = [] if near else _mechanisms_with(given, context)
    near = near or nearest_names(given, known)
    if owners:
        remedy = f"it is an option of {', '.join(owners)}"
    else:
        remedy = f"did you mean {' or '.join(near)}?" if near else f"`{context.command_path} --help` lists them"
    return f"expected an option of `{context.command_path}`, got {given}; {remedy}"


def missing_parameter(error: click.ClickException) -> str:
    """The sentence for an option or an argument that a command needs; empty for any other error."""
    if not isinstance(error, click.MissingParameter) or error.ctx is None or error.param is None:
        return ""
    path, name = error.ctx.command_path, error.param.get_error_hint(error.ctx).strip("'")
    return f"expected {name}, which `{path}` needs, got none; `{path} --help` says what it is"


def options_of(context: click.Context) -> list[str]:
    """How the options of a command are written."""
    return [name for option in context.command.get_params(context) for name in option.opts if name.startswith("-")]


def _found_by(context: click.Context) -> list[str]:
    """How the options would be written that say what a question for one number finds."""
    from privproj.accounting.question import FOUND

    quantity = context.parent.info_name if context.parent else None
    names = (quantity, *FOUND.get(quantity, ())) if quantity in ONE_NUMBER else ()
    return ["--" + name.replace("_", "-") for name in names]


def _mechanisms_with(option: str, context: click.Context) -> list[str]:
    """The mechanisms that have an option, of which one may have been meant; none where none was asked about."""
    group = context.parent.command if context.parent else None
    if not isinstance(group, Group) or isinstance(group, CommandGroup):
        return []
    commands = {name: group.get_command(context, name) for name in group.list_commands(context)}
    return [name for name, one in commands.items() if one and option in options_of(click.Context(one))]
