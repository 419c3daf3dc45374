"""Implement the ``privproj`` command and the exit codes of errors."""

import os
import re
import sys
from collections.abc import Collection
from contextlib import suppress
from importlib import import_module
from itertools import filterfalse

import click

from privproj.errors import EXIT_CODES, InvalidParameterError, PrivprojError, QueryError
from privproj.parameters import is_printable, quoted
from privproj.plugins import load, plugin_table
from privproj.version import __version__

from .options import Group, option_name, options_of, with_options
from .output import complain

# commands whose result is one number; they share a file
ONE_NUMBER = {
    "epsilon": "Compute epsilon at a given delta.",
    "delta": "Compute delta at a given epsilon.",
    "sigma": "Find the smallest noise multiplier that meets a target.",
    "steps": "Find the largest number of steps that meets a target.",
    "rate": "Find the largest sampling rate that meets a target.",
    "rank": "Find the ranks of the projection that meet a target.",
    "misalignment": "Find the largest misalignment that meets a target.",
}

# commands with their help in one line, under the headings of ``privproj --help``
GROUPS = {
    "Numbers": {
        **ONE_NUMBER,
        "choose": "Compare training algorithms at the same privacy.",
        "compare": "Compare all bounds of a mechanism.",
        "curve": "Print or plot delta(epsilon) or the trade-off curve.",
    },
    "Runs": {
        "run": "Compute epsilon or delta of a run with several phases.",
        "remaining": "Print the spent budget and the number of steps that still fit.",
        "dp-sft": "Calibrate the noise of both stages of DP-SFT.",
    },
    "Reports": {
        "explain": "Explain a term, requirement, warning, bound or exit code.",
        "bounds": "List the bounds with formula, source, status and requirements.",
        "papers": "List theorems and figures of the source papers with commands.",
    },
    "Training and audits": {
        "train": "Train a small model privately, and report epsilon.",
        "ledger": "Print the epsilon of a training run from its ledger.",
        "alignment": "Bound the misalignment that the wishart mechanism assumes.",
        "lora-noise": "Compute moments of LoRA's noise term (not a guarantee).",
    },
    "Checks": {
        "check": "Compare results with expected values in CI.",
        "verify": "Check a ledger, a certificate or a privacy statement.",
    },
}

# commands of the core with their help in one line
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}


def command_groups() -> dict[str, dict[str, str]]:
    """Return the one-line help of every command, by heading and command name."""
    groups = {heading: {**commands} for heading, commands in GROUPS.items()}
    for name, (heading, text, _) in plugin_table("COMMANDS").items():
        groups.setdefault(heading, {})[name] = text
    return groups


EPILOG = f"""\b
Exit codes:
{", ".join(f"{code} {EXIT_CODES[code].partition(':')[0]}" for code in range(6))}.
`privproj explain 3` explains exit code 3. `privproj explain` lists all terms."""


class LazyGroup(Group):
    """A click group whose commands are listed under headings and imported when called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for commands in command_groups().values() for name in commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return command_named(cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.list_commands(ctx)))
        for heading, commands in command_groups().items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), text) for name, text in commands.items()])


# files of commands that share one; every other command has a file of its name
HOMES = {
    **dict.fromkeys((*ONE_NUMBER, "compare"), "query"),
    "bounds": "explain",
    "dp-sft": "run",
    "lora-noise": "alignment",
    "remaining": "ledger",
}


def command_named(name: str) -> click.Command | None:
    """Return the command of this name, or None; optional features are searched last."""
    if name in COMMANDS:
        return import_module("." + HOMES.get(name, name), __package__).COMMANDS[name]
    feature_commands = plugin_table("COMMANDS")
    return load(feature_commands[name][2]) if name in feature_commands else None


SETTINGS = {"max_content_width": 100, "help_option_names": ["-h", "--help"]}


@click.group(cls=LazyGroup, epilog=EPILOG, context_settings=SETTINGS)
@click.version_option(__version__, prog_name="privproj")
def cli() -> None:
    """Compute the privacy of random projections, LoRA and DP-SGD.

    Each result states its bound, its requirements and its assumptions on the data.

    \b
    Example:
      privproj epsilon m2 --dim 2048 --rank 16 --noise-multiplier 0.5 --delta 1e-5
    """


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its exit code."""
    # Characters that the output cannot encode are escaped.
    if sys.stdout is not None:
        sys.stdout.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]
    if sys.argv[1:2] != ["train"]:
        # Matrix products here are too small for several threads of OpenBLAS.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(exit_code(arguments))


def exit_code(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    argv = sys.argv[1:] if arguments is None else list(arguments)
    try:
        # File names, for example, must be printable.
        for word in filterfalse(is_printable, argv):
            raise InvalidParameterError("argument", quoted(word), "printable text without line breaks")
        return run_command(argv)
    except click.ClickException as error:
        return complain(usage_text(error), 2)
    except PrivprojError as error:
        options = options_in(argv)
        is_named = isinstance(error, InvalidParameterError)
        text = sentence_of(error, options) if is_named else with_options(str(error), options)
        return complain(text, error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        return complain("interrupted.", 130)
    except RecursionError:
        return complain("the tables of the file are nested too deeply.", 2)
    except (ArithmeticError, ValueError, LookupError, RuntimeError, MemoryError) as error:
        return complain(f"the computation failed ({error}). Please report this command as a bug.", 5)
    except OSError as error:
        place = error.filename or "the standard output"
        return complain(f"cannot read or write {place}: {error.strerror}.", 2)


def run_command(argv: list[str]) -> int:
    """Run the command line without handling errors, and return its exit code."""
    try:
        return cli.main(argv, prog_name="privproj", standalone_mode=False) or 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except QueryError as error:
        if error.result is not None and "--json" in argv:
            from .render import as_json

            with suppress(BrokenPipeError):  # the exit code is still returned
                click.echo(as_json(error.result))
        raise


# --- error messages --------------------------------------------------------------------------------


def sentence_of(error: InvalidParameterError, options: Collection[str]) -> str:
    """Return an error message with the parameter written as one of the ``options``."""
    place, _, leaf = error.name.rpartition(": ")
    # the place is a file with an entry, or the name of a bound; a bound takes its parameters from options
    is_of_bound = re.fullmatch(r"[a-z0-9-]+", place) and option_name(leaf) in options
    name = f"{place}: {option_name(leaf)}" if is_of_bound else option_name(error.name)
    if name == "--mechanism" and name not in options:
        name = "MECHANISM"  # an argument
    value = name if error.value is True and name in options else error.value  # a flag has no value
    expected, remedy = (with_options(text, options) for text in (error.expected, error.remedy))
    return type(error)(error.name, value, expected, remedy).sentence(name)


def options_in(argv: list[str]) -> list[str]:
    """Return the options of the command in these arguments; empty without a command."""
    command: click.Command | None = cli
    for word in argv:
        if not isinstance(command, click.Group):
            break
        command = command.get_command(click.Context(command), word)
    return options_of(click.Context(command)) if command and command is not cli else []


# options of other tools, and the options here
USUAL_NAMES = {
    **dict.fromkeys(("--sigma", "--noise", "-z", "--z", "--multiplier", "--sigmas"), ("--noise-multiplier",)),
    **dict.fromkeys(("--eps", "-e", "--target-epsilon"), ("--epsilon",)),
    **dict.fromkeys(("-d", "--target-delta"), ("--delta",)),
    **dict.fromkeys(("-q", "--q", "--rate", "--sample-rate"), ("--sampling-rate",)),
    **dict.fromkeys(("--max-grad-norm", "--clip-norm", "-c"), ("--clip", "--max-grad-norm")),
    **dict.fromkeys(("-n", "--n", "--samples", "--records"), ("--dataset-size",)),
    **dict.fromkeys(("-b", "--batch"), ("--batch-size",)),
    **dict.fromkeys(("--shuffle", "--poisson", "--balls-in-bins", "--partition"), ("--sampling",)),
    **dict.fromkeys(("--gdp", "--trade-off"), ("--what",)),
}


def usage_text(error: click.ClickException) -> str:
    """Return click's message for a usage error, with own hints for unknown options."""
    context = getattr(error, "ctx", None)
    hint = ""
    if isinstance(error, click.NoSuchOption):
        from difflib import get_close_matches

        hint = _hint(error, context) if context else ""
        close = get_close_matches(error.option_name, error.possibilities or (), cutoff=0.7)
        error = click.NoSuchOption(error.option_name, possibilities=close, ctx=context)
    message = f"No such option '{error.option_name}'. {hint}" if hint else error.format_message()  # pyright: ignore
    message += "" if message[-1] in ".?!)" else "."
    return f"{message} Try '{context.command_path} --help' for help." if context else message


def _hint(error: click.NoSuchOption, context: click.Context) -> str:
    """Return a hint for an unknown option; empty if click's own hint is better."""
    from privproj.accounting.query import SOLVED_FOR

    option, names, path = error.option_name, options_of(context), context.command_path
    if isinstance(context.command, Group) and context.parent:
        return f"Name {context.command.members} before the options."
    ours = USUAL_NAMES.get(option)
    quantity = (context.parent and context.parent.info_name) or ""
    if {option, *(ours or ())} & {option_name(one) for one in (quantity, *SOLVED_FOR.get(quantity, ()))}:
        return f"`{path}` computes this value."
    for name in ours or ():
        if name in names:
            return f"Did you mean '{name}{option.replace('--', ' ') if name in ('--sampling', '--what') else ''}'?"
    owners = _neighbors_with(option, context)
    return f"It is an option of {', '.join(owners)}." if owners else ""


def _neighbors_with(option: str, context: click.Context) -> list[str]:
    """Return the other commands of the same click group that have this option."""
    group = context.parent.command if context.parent and context.parent.parent else None
    names = group.list_commands(context) if isinstance(group, Group) else ()
    return [name for name in names if option in options_of(click.Context(group.get_command(context, name)))]  # pyright: ignore
