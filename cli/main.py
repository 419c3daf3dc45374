"""The ``privproj`` command: a lazy group of commands, and the one place where errors become exit codes."""

import sys
from importlib import import_module

import click

from privproj import __version__
from privproj.errors import InvalidParameter, PrivprojError

COMMANDS = {
    "epsilon": "Epsilon of a release or a run, at a given delta.",
    "delta": "Delta of a release or a run, at a given epsilon.",
    "sigma": "Smallest noise multiplier that meets a target.",
    "rank": "Ranks of the projection that meet a target.",
    "steps": "Largest number of steps that fit a target.",
    "rate": "Largest sampling rate that fits a target.",
    "misalignment": "Largest misalignment of neighbouring vectors that meets a target.",
    "curve": "delta(eps) or the trade-off function: table, CSV, JSON, picture.",
    "report": "A privacy statement for a model card: text, Markdown or HTML.",
    "run": "Epsilon or delta of a run file: phases composed jointly.",
    "check": "CI regression of bounds: every entry of a file asked again.",
    "remaining": "How many more steps a budget allows.",
    "dp-sft": "Noise for DP-SFT: a private subspace, then training within it.",
    "alignment": "Where the promise of the wishart mechanism comes from.",
    "lora-noise": "Moments of LoRA's noise term; a diagnostic, not a guarantee.",
    "sweep": "A grid of questions to a CSV or Parquet table; resumable.",
    "train": "Train with the computed noise, and report what was spent.",
    "audit": "Attacks that can refute a claimed epsilon; none can confirm one.",
    "ledger": "What a training run has spent, and what is left.",
    "verify": "Checks a certificate written by --certificate.",
    "compare": "Every bound of a mechanism, side by side.",
    "bounds": "The catalogue of bounds: formula, source, status, promises.",
}

HELP = """Privacy accounting for random projections and LoRA.

Every number comes with the bound it is from, whether that bound is proved, and what it asks of your data.

\b
Example:
  privproj epsilon m2 --dim 2048 --rank 16 --noise-multiplier 0.3814 --delta 1e-5
"""


def option_name(parameter: str) -> str:
    """A parameter as the option that sets it."""
    return (
        parameter
        if parameter.startswith("-") or ":" in parameter or parameter == "FILE"
        else "--" + parameter.replace("_", "-")
    )


class LazyGroup(click.Group):
    """A group that imports a command only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        return import_module("." + cmd_name.replace("-", "_"), __package__).command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, help=HELP, context_settings={"max_content_width": 100})
@click.version_option(__version__, prog_name="privproj")
def cli() -> None:
    pass


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its code; every failure is one line on standard error."""
    sys.exit(exit_code(arguments))


def exit_code(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        return cli.main(arguments, prog_name="privproj", standalone_mode=False) or 0
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.ClickException as error:
        return complain(error.format_message(), 2)
    except InvalidParameter as error:
        return complain(error.sentence(option_name(error.name)), error.exit_code)
    except PrivprojError as error:
        return complain(str(error), error.exit_code)
    except click.Abort:
        return complain("interrupted", 130)
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except (ArithmeticError, ValueError, LookupError, RuntimeError, MemoryError) as error:
        if "null byte" in str(error):
            return complain("expected a file name without a null byte", 2)
        return complain(f"expected a computable question, got an undefined value ({error}); please report it", 5)
    except OSError as error:
        return complain(f"expected to read and write files, got {error.strerror}", 5)


def complain(message: str, code: int) -> int:
    """One line on standard error."""
    click.echo("error: " + " ".join(message.split()), err=True)
    return code
