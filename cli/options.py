"""Options shared by the commands, each defined once: those of parameters come from where these are declared.

Below are groups that suggest a command for a mistyped one, and commands whose options stand under headings.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import getdoc, signature
from typing import Any, get_args

import click

from privproj.errors import InvalidParameter, PrivprojError, unknown_name
from privproj.parameters import LAYERS, SHARE, TEXT, TRUTH, Parameter, whole_number


def parse_number(option: str, text: str) -> float:
    """The finite decimal number that a text says; overflow (1e400) and underflow (1e-400) are seen."""
    try:
        number = float(text.replace("_", "?") if text.isascii() else "?")
    except ValueError:
        remedy = "write 10 % as 0.1, 10^-5 as 1e-5, and 100,000 or 100k as 100000 or 1e5"
        raise InvalidParameter(option, repr(text), "a number", remedy) from None
    has_digits = any(c in "123456789" for c in text.lower().split("e")[0])
    if not math.isfinite(number) or (number == 0.0 and has_digits):
        reason = f"it is too {'large' if number else 'small, and underflows'} in double precision" if has_digits else ""
        raise InvalidParameter(option, text, "a finite number", reason)
    return number


class Number(click.ParamType):
    """A finite decimal number; overflow (1e400) and underflow (1e-400) are seen, nan and inf refused.

    ``check`` returns the number of a parameter of this name as it is used, or refuses it. One of ``words`` may stand
    for it.
    """

    name = "number"

    def __init__(self, check: Callable[[str, Any], Any] = lambda name, value: value, words: Any = ()) -> None:
        self.check, self.words = check, words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in self.words:
            return value
        number = parse_number(param.opts[0] if param else "value", value) if isinstance(value, str) else value
        return self.check(str(param.name) if param else "value", number)


class OneOf(click.Choice):
    """One of a few words; a mistyped one gets a suggestion."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in self.choices:
            return value
        name = param.opts[0] if param is not None else "value"
        name = name if name.startswith("-") else name.upper()
        if value.startswith("shuffl") and "shuffle" in self.choices:
            remedy = "write shuffle, which costs one release per epoch; balls-in-bins, with its own loader, costs less"
            raise InvalidParameter(name, value, "a sampling", remedy)
        raise unknown_name(name, value, f"a {name.lstrip('-').lower().replace('-', ' ')}", map(str, self.choices))


WORKERS = Number(whole_number("a whole number from 1 to 256", 1, 256).check)
"""How many processes do the work."""

PATH = click.Path(readable=False)
"""The name of a file or a folder, which the shell completes and whoever opens it checks."""


class Once(click.Option):
    """An option whose value counts: given twice with different values it is refused, not silently overruled.

    One that ``is_rare`` is shown by ``--help-all`` only.
    """

    def __init__(self, *args: Any, is_rare: bool = False, **settings: Any) -> None:
        if settings.get("metavar") in ("FILE", "DIR"):
            settings["type"] = PATH
        super().__init__(*args, **settings)
        self.is_rare = is_rare

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        if self.is_flag or self.multiple or self.count:
            super().add_to_parser(parser, ctx)
        else:
            parser.add_option(obj=self, opts=self.opts, dest=self.name, action="append", nargs=self.nargs)

    def consume_value(self, ctx: click.Context, opts: Any) -> Any:
        values = opts.get(self.name)
        if isinstance(values, list) and not self.multiple:
            if len(set(values)) > 1:
                raise InvalidParameter(self.opts[0], " and ".join(map(str, values)), f"one value of {self.opts[0]}")
            opts = {**opts, self.name: values[0]}
        return super().consume_value(ctx, opts)


def file_argument(**settings: Any) -> click.Argument:
    """The argument that names a file, or several with ``nargs=-1``."""
    settings = {"metavar": "FILE..." if "nargs" in settings else "FILE", **settings}
    return click.Argument(["file"], type=PATH, required=True, **settings)


def completing(names: Callable[[str | None], Iterable[str]]) -> Callable[..., list[str]]:
    """Let the shell complete one of these names, which may depend on that of the command."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        return [name for name in dict.fromkeys(names(ctx.info_name)) if name.startswith(incomplete)]

    return complete


def option(name: str, help_text: str, **settings: Any) -> Once:
    """An option that takes a number unless ``settings`` say otherwise."""
    if not settings.get("is_flag"):
        settings.setdefault("type", Number())
    return Once([name], help=help_text, **settings)


def option_of(name: str, declared: Parameter, **settings: Any) -> Once:
    """The option of a parameter."""
    spelt, kind = "--" + (declared.key or name).replace("_", "-"), declared.kind
    # What its own record asks for, in a better sentence than that of the command line, is only said here.
    words = f"{declared.words}  [required]" if declared.is_needed and not declared.is_found else declared.words
    if kind is TRUTH:
        settings["is_flag"] = True
    elif "enum" in kind.rule:
        settings["type"] = OneOf([*map(str, kind.rule["enum"])])
    elif kind is SHARE:
        settings["type"] = Number(words=("even", "optimal"))
    elif kind in (TEXT, LAYERS) or name == "residual_norm":  # which may be two, with that of the other record
        settings |= {"type": str, "multiple": kind is LAYERS}
    return option(spelt, words, metavar=declared.letter, is_rare=declared.is_rare, **settings)


def options_from(function: Callable[..., Any], *names: str) -> list[Once]:
    """The options of a function: its parameters, or some of them, in the words of its docstring."""
    import re

    words = dict(re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", getdoc(function) or "", re.MULTILINE))
    parameters, options = signature(function).parameters, []
    # Without docstrings (python -OO) every parameter is an option, and none has words.
    for name in names or (name for name in parameters if name in words or not words):
        declared, spelt = parameters[name], "--" + name.replace("_", "-")
        is_needed = declared.default is declared.empty
        help_text = " ".join(words.get(name, "").replace("``", "").split())
        help_text += "" if is_needed or declared.default is None else f"  [default: {declared.default}]"
        options.append(option(spelt, help_text, required=is_needed, type=type_of(declared.annotation)))
    return options


def type_of(annotation: Any) -> click.ParamType:
    """What an annotation lets an option be: of the type that it holds, or one of its choices, else a number."""
    held = get_args(annotation)
    types = [one for one in held if isinstance(one, click.ParamType)]
    choices = [one for one in held if isinstance(one, str)]
    return types[0] if types else OneOf(choices) if choices else Number()


def json_option() -> Once:
    """The option for JSON."""
    return option("--json", "JSON instead of text.", is_flag=True)


def verbose_option() -> Once:
    """Return the option for details."""
    help_text = "Lower bound, other bounds, utility, numerics, source, and requirements in full."
    return Once(["--verbose", "-v"], help=help_text, is_flag=True)


def command_with(name: str, *options: click.Parameter) -> Callable[[Callable[..., int]], click.Command]:
    """Make a command of the function below, with this name and these options; its docstring is the help."""
    return click.command(name, params=[*options])


# --- groups and headings ------------------------------------------------------------------------------


class Group(click.Group):
    """A group of commands whose error for an unknown one suggests those that are spelt almost like it."""

    members = "a command"

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first argument names; an error with a suggestion where there is none."""
        # While a shell completes a line, what is wrong with it is nobody's question.
        if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise self.unknown_command(args[0], self.list_commands(ctx), f"`{ctx.command_path} --help` lists them")
        return super().resolve_command(ctx, args)

    def unknown_command(self, name: str, names: list[str], remedy: str) -> PrivprojError:
        """The error for a name that is none of those known."""
        return unknown_name("COMMAND", name, "a command", names, remedy)


class SectionedCommand(click.Command):
    """A command whose help shows its options under headings, the rare ones with ``--help-all`` only."""

    def __init__(self, sections: Mapping[str, Sequence[click.Parameter]], **settings: Any) -> None:
        words, last = "Show this message with all options, the rare ones too.", list(sections)[-1]
        helping = click.Option(
            ["--help-all"], help=words, is_flag=True, is_eager=True, expose_value=False, callback=self._show_all
        )
        self.sections = {**sections, last: [*sections[last], helping]}
        super().__init__(params=[option for options in self.sections.values() for option in options], **settings)

    def _show_all(self, ctx: click.Context, param: click.Parameter, value: bool) -> None:
        """Print the help with all options, and end."""
        if value:
            ctx.meta[__name__] = True
            click.echo(self.get_help(ctx))
            ctx.exit()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section that has options; ``--help`` comes last."""
        helping = self.get_help_option(ctx)
        last = list(self.sections)[-1]
        for title, options in self.sections.items():
            listed = [*options, *([helping] if title == last and helping else [])]
            asked = [option for option in listed if ctx.meta.get(__name__) or not getattr(option, "is_rare", False)]
            records = [record for option in asked if (record := option.get_help_record(ctx)) is not None]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
