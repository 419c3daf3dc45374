"""Define click options that commands share, and click groups with headings."""

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from inspect import getdoc, signature
from typing import Any, get_args

import click

from privproj.errors import InvalidParameterError, PrivprojError, UnknownNameError, unknown_name
from privproj.parameters import LAYERS, SHARE, TEXT, TRUTH, Parameter, whole_number


def parse_number(option: str, text: str) -> float:
    """Return the finite number that the text of an option represents.

    Raises :class:`InvalidParameterError` for any other text, and for overflow or underflow of doubles.
    """
    try:
        number = float(text.replace("_", "?") if text.isascii() else "?")
    except ValueError:
        remedy = "write 10 % as 0.1, 10^-5 as 1e-5, and 100k as 1e5"
        raise InvalidParameterError(option, repr(text), "a number", remedy) from None
    has_digits = any(c in "123456789" for c in text.lower().split("e")[0])
    if not math.isfinite(number) or (number == 0.0 and has_digits):
        expected = "a number in the range of double precision" if has_digits else "a finite number"
        raise InvalidParameterError(option, text, expected)
    return number


class Number(click.ParamType):
    """The click type of a finite decimal number.

    ``check`` returns the valid value or raises an error, given the name and the value of the parameter. A text in
    ``choices`` is accepted in place of a number.
    """

    name = "number"

    def __init__(self, check: Callable[[str, Any], Any] = lambda name, value: value, choices: Any = ()) -> None:
        self.check, self.choices = check, choices

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in self.choices:
            return value
        number = parse_number(param.opts[0] if param else "value", value) if isinstance(value, str) else value
        return self.check(str(param.name) if param else "value", number)


class OneOf(click.Choice):
    """The click type of a choice whose error suggests a similar value."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in self.choices:
            return value
        name = param.opts[0] if param is not None else "value"
        name = name if name.startswith("-") else name.upper()
        if value.startswith("shuffl") and "shuffle" in self.choices:
            raise UnknownNameError(name, value, "sampling scheme", "did you mean 'shuffle'?")
        raise unknown_name(name, value, f"value of {name}", map(str, self.choices))


WORKERS = Number(whole_number("an integer from 1 to 256", 1, 256).check)  # number of processes

# a file or a folder, completed by the shell and checked when it is opened
PATH = click.Path(readable=False)


class Once(click.Option):
    """An option that may not be passed twice with different values.

    With ``is_rare``, only ``--help-all`` shows it.
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
                raise InvalidParameterError(self.opts[0], " and ".join(map(str, values)), "given once")
            opts = {**opts, self.name: values[0]}
        return super().consume_value(ctx, opts)


def file_argument(**settings: Any) -> click.Argument:
    """Return the argument that names a file, or several with ``nargs=-1``."""
    settings = {"metavar": "FILE..." if "nargs" in settings else "FILE", **settings}
    return click.Argument(["file"], type=PATH, required=True, **settings)


def completing(names: Callable[[str | None], Iterable[str]]) -> Callable[..., list[str]]:
    """Return a click callback that completes names in the shell.

    ``names`` returns all names, given the name of the command.
    """

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        return [name for name in dict.fromkeys(names(ctx.info_name)) if name.startswith(incomplete)]

    return complete


def option(name: str, help_text: str, **settings: Any) -> Once:
    """Return an option with this name and help text; by default it takes a number."""
    if not settings.get("is_flag"):
        settings.setdefault("type", Number())
    return Once([name], help=help_text, **settings)


def option_of(name: str, declared: Parameter, **settings: Any) -> Once:
    """Return the click option for the declared parameter ``name`` of privproj."""
    spelt, kind = "--" + (declared.key or name).replace("_", "-"), declared.kind
    # Only marked as required here: the mechanism itself reports a missing parameter.
    help_text = (
        f"{declared.description}  [required]" if declared.is_needed and not declared.is_found else declared.description
    )
    if kind is TRUTH:
        settings["is_flag"] = True
    elif "enum" in kind.rule:
        settings["type"] = OneOf([*map(str, kind.rule["enum"])])
    elif kind is SHARE:
        settings["type"] = Number(choices=("even", "optimal"))
    elif kind in (TEXT, LAYERS) or name == "residual_norm":  # one or two numbers
        settings |= {"type": str, "multiple": kind is LAYERS}
    return option(spelt, help_text, metavar=declared.letter, is_rare=declared.is_rare, **settings)


def options_from(function: Callable[..., Any], *names: str) -> list[Once]:
    """Return click options for parameters of a function, with help from its docstring.

    Without ``names``, all documented parameters become options.
    """
    documented = dict(re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", getdoc(function) or "", re.MULTILINE))
    parameters, options = signature(function).parameters, []
    # Without docstrings (python -OO) every parameter is an option without help.
    for name in names or (name for name in parameters if name in documented or not documented):
        declared, spelt = parameters[name], "--" + name.replace("_", "-")
        is_needed = declared.default is declared.empty
        help_text = " ".join(documented.get(name, "").replace("``", "").split())
        help_text = COMPOUND_NAME.sub(
            lambda word: option_name(word[0]) if word[0] in parameters else word[0], help_text
        )
        help_text += "" if is_needed or declared.default is None else f"  [default: {declared.default}]"
        options.append(option(spelt, help_text, required=is_needed, type=type_of(declared.annotation)))
    return options


def type_of(annotation: Any) -> click.ParamType:
    """Return the click type for the annotation of a parameter."""
    held = get_args(annotation)
    types = [one for one in held if isinstance(one, click.ParamType)]
    choices = [one for one in held if isinstance(one, str)]
    return types[0] if types else OneOf(choices) if choices else Number()


def json_option() -> Once:
    return option("--json", "Print JSON instead of text.", is_flag=True)


def csv_option() -> Once:
    return option("--csv", "Print CSV with all digits instead of text.", is_flag=True)


def verbose_option() -> Once:
    help_text = "Also print the lower bound, other bounds, utility, numerics and source, and explain each requirement."
    return Once(["--verbose", "-v"], help=help_text, is_flag=True)


def requirements_option() -> Once:
    """Return the option ``--verbose`` for commands that print requirements."""
    return Once(["--verbose", "-v"], help="Print all details, and explain each requirement.", is_flag=True)


def command_with(name: str, *options: click.Parameter) -> Callable[[Callable[..., int]], click.Command]:
    """Return a decorator that turns a function into a command.

    The docstring of the function is the help of the command.
    """
    return click.command(name, params=[*options])


# --- parameters in messages ---------------------------------------------------------------------------


def option_name(parameter: str) -> str:
    """Return the name of a parameter as an option, such as ``--dim`` for ``dim``."""
    if parameter.startswith("-") or ":" in parameter or parameter.isupper():
        return parameter
    return "--" + {"layers": "layer", "ranks": "rank"}.get(parameter, parameter).replace("_", "-")


def options_of(context: click.Context) -> list[str]:
    """Return the names of the options of a click command, such as ``--dim``."""
    return [name for option in context.command.get_params(context) for name in option.opts if name.startswith("-")]


# a parameter with its value, such as "relation=replace"
ASSIGNED = re.compile(r"(?<![\w.-])([a-z]+(?:_[a-z0-9]+)*)=([\w.+-]*\w)")

# a name of several words, such as "batch_size"
COMPOUND_NAME = re.compile(r"(?<![\w./-])[a-z][a-z0-9]*(?:_[a-z0-9]+)+(?![\w/=-])")

# Where a text has one of these phrases, a name of one word, such as "dim", is that of a parameter too.
ABOUT_PARAMETERS = re.compile(
    r"^(missing \w+; )?give |^omitted (if|with) |^given together|^\w+ needs sampling |\bif \w+ (is|are) given"
)
SIMPLE_NAME = re.compile(r"--[\w-]+ [\w-]+|(?<!the )(?<![\w.-])[a-z]+(?![\w=-])")  # or an option and the next word
ENGLISH = ("--bound", "--data", "--date", "--model")  # options that such a text names as English words


def with_options(text: str, options: Collection[str]) -> str:
    """Return a message with parameters rewritten as options of the command.

    For example, ``relation=replace`` becomes ``--relation replace``. Names that are not in ``options`` stay.
    """

    def assigned(match: re.Match[str]) -> str:
        option, value = option_name(match[1]), match[2]
        return match[0] if option not in options else option if value == "True" else f"{option} {value}"

    def named(match: re.Match[str]) -> str:
        option = option_name(match[0])
        return option if option in options and option not in ENGLISH else match[0]

    is_about_parameters = ABOUT_PARAMETERS.search(text)
    text = COMPOUND_NAME.sub(named, ASSIGNED.sub(assigned, text))
    return SIMPLE_NAME.sub(named, text) if is_about_parameters else text


def in_command(text: str) -> str:
    """Return a message with parameters rewritten as options of the running command."""
    context = click.get_current_context(silent=True)
    return text if context is None else with_options(text, options_of(context))


# --- groups and headings ------------------------------------------------------------------------------


class Group(click.Group):
    """A click group whose error for an unknown command suggests a similar one."""

    members = "a command"

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first argument names, or raise an error."""
        # no errors during shell completion
        if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise self.unknown_command(args[0], self.list_commands(ctx), f"`{ctx.command_path} --help` lists them")
        return super().resolve_command(ctx, args)

    def unknown_command(self, name: str, names: list[str], remedy: str) -> PrivprojError:
        """Return the error for an unknown command of the group."""
        return unknown_name("COMMAND", name, "command", names, remedy)


class SectionedCommand(click.Command):
    """A click command with headings between options; ``--help-all`` adds rare options."""

    def __init__(self, sections: Mapping[str, Sequence[click.Parameter]], **settings: Any) -> None:
        show_all, last = "Show this message with all options.", list(sections)[-1]
        helping = click.Option(
            ["--help-all"], help=show_all, is_flag=True, is_eager=True, expose_value=False, callback=self._show_all
        )
        self.sections = {**sections, last: [*sections[last], helping]}
        super().__init__(params=[option for options in self.sections.values() for option in options], **settings)

    def _show_all(self, ctx: click.Context, param: click.Parameter, value: bool) -> None:
        """Print the help with all options, also rare ones, and exit."""
        if value:
            ctx.meta[__name__] = True
            click.echo(self.get_help(ctx))
            ctx.exit()

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings; ``--help`` comes last."""
        helping = self.get_help_option(ctx)
        last = list(self.sections)[-1]
        for title, options in self.sections.items():
            listed = [*options, *([helping] if title == last and helping else [])]
            requested = [option for option in listed if ctx.meta.get(__name__) or not getattr(option, "is_rare", False)]
            records = [record for option in requested if (record := option.get_help_record(ctx)) is not None]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
