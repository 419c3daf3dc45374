"""Options shared by the commands, each defined once: those of parameters come from where these are declared.

Below are groups that suggest a command for a mistyped one, and commands whose options stand under headings.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from inspect import cleandoc, signature
from typing import Any, get_args

import click

from privproj.errors import InvalidParameter, unknown_name
from privproj.validation import LAYERS, SHARE, TEXT, TRUTH, Parameter


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


class Number(click.ParamType):
    """A finite decimal number; overflow (1e400) and underflow (1e-400) are seen, nan and inf refused.

    ``check`` returns the number of a parameter of this name as it is used, or refuses it.
    """

    name = "number"

    def __init__(self, check: Callable[[str, Any], Any] = lambda name, value: value) -> None:
        self.check = check

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
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


class Once(click.Option):
    """An option whose value counts: given twice with different values it is refused, not silently overruled.

    One that ``is_rare`` is shown by ``--help-all`` only.
    """

    def __init__(self, *args: Any, is_rare: bool = False, **settings: Any) -> None:
        if settings.get("metavar") in ("FILE", "DIR"):
            settings.setdefault("shell_complete", complete_path)
        super().__init__(*args, **settings)
        self.is_rare = is_rare

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        if self.is_flag or self.multiple or self.count:
            super().add_to_parser(parser, ctx)
        else:
            parser.add_option(obj=self, opts=self.opts, dest=self.name, action="append", nargs=self.nargs)

    def consume_value(self, ctx: click.Context, opts: Any) -> Any:
        given = opts.get(self.name)
        if isinstance(given, list) and not self.multiple:
            if len(set(given)) > 1:
                raise InvalidParameter(self.opts[0], " and ".join(map(str, given)), f"one value of {self.opts[0]}")
            opts = {**opts, self.name: given[0]}
        return super().consume_value(ctx, opts)


def file_argument(**settings: Any) -> click.Argument:
    """The argument that names a file, or several with ``nargs=-1``."""
    settings = {"metavar": "FILE..." if "nargs" in settings else "FILE", **settings}
    return click.Argument(["file"], type=str, required=True, shell_complete=complete_path, **settings)


def complete_path(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Let the shell complete the name of a file or a folder."""
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="dir" if param.metavar == "DIR" else "file")]


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
    elif kind in (TEXT, SHARE, LAYERS) or name == "residual_norm":  # which may be two, with that of the other record
        settings |= {"type": str, "multiple": kind is LAYERS}
    return option(spelt, words, metavar=declared.letter, is_rare=declared.is_rare, **settings)


def options_from(function: Callable[..., Any], *names: str) -> list[Once]:
    """The options of a function of the library: its parameters, or some of them, in the words of its docstring."""
    import re

    words = dict(re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", help_of(function), re.MULTILINE))
    parameters, found = signature(function).parameters, []
    for name in names or parameters:
        declared = parameters[name]
        choices = [choice for choice in get_args(declared.annotation) if isinstance(choice, str)]
        kind = {"type": OneOf(choices)} if choices else {}
        said = " ".join(words[name].replace("``", "").split())
        said += "" if declared.default in (declared.empty, None) else f"  [default: {declared.default}]"
        found.append(option("--" + name.replace("_", "-"), said, required=declared.default is declared.empty, **kind))
    return found


def json_option() -> Once:
    """The option for JSON."""
    return option("--json", "JSON instead of text.", is_flag=True)


def help_of(callback: Callable[..., Any]) -> str:
    """The help of a command: the words of the function that answers it."""
    return cleandoc(callback.__doc__ or "")


def with_options(
    options: Sequence[click.Parameter] | Mapping[str, Sequence[click.Parameter]],
    callback: Callable[..., int],
    **settings: Any,
) -> click.Command:
    """Build a command with these options, which stand under headings where they are given by heading.

    Its help is the docstring of the callback unless another is given.
    """
    settings.setdefault("help", help_of(callback))
    if isinstance(options, Mapping):
        return SectionedCommand(options, callback=callback, **settings)
    return click.Command(params=list(options), callback=callback, **settings)


def command_with(name: str, *options: click.Parameter) -> Callable[[Callable[..., int]], click.Command]:
    """Make a command of the function below, with this name and these options; its docstring is the help."""
    return lambda callback: with_options(options, callback, name=name)


# --- groups and headings ------------------------------------------------------------------------------


class Group(click.Group):
    """A group of commands whose error for an unknown one suggests those that are spelt almost like it."""

    names = "MECHANISM", "a mechanism"
    """How the argument is called in an error, and what was expected."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first argument names; an error with a suggestion where there is none."""
        # While a shell completes a line, what is wrong with it is nobody's question.
        if not ctx.resilient_parsing and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            known = self.list_commands(ctx)
            remedy = f"`{ctx.command_path} --help` lists them"
            if self.names is Group.names:
                from privproj.mechanisms.methods import unknown_mechanism

                raise unknown_mechanism(self.names[0], args[0], known, remedy)
            raise unknown_name(self.names[0], args[0], self.names[1], known, remedy)
        return super().resolve_command(ctx, args)


class CommandGroup(Group):
    """A group of which each member does something else."""

    names = "COMMAND", "a command"


class SectionedCommand(click.Command):
    """A command whose help shows its options under headings, the rare ones with ``--help-all`` only."""

    def __init__(self, sections: Mapping[str, Sequence[click.Parameter]], **settings: Any) -> None:
        options = [option for options in sections.values() for option in options]
        if any(_is_rare(option) for option in options):
            words = "Show this message with all options, the rare ones too."
            helping = click.Option(
                ["--help-all"], help=words, is_flag=True, is_eager=True, expose_value=False, callback=self._show_all
            )
            sections = {**sections, (last := list(sections)[-1]): [*sections[last], helping]}
            options.append(helping)
        super().__init__(params=options, **settings)
        self.sections = sections

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
            asked = [option for option in options if ctx.meta.get(__name__) or not _is_rare(option)]
            shown = [*asked, *([helping] if title == last and helping else [])]
            records = [record for option in shown if (record := option.get_help_record(ctx)) is not None]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _is_rare(option: click.Parameter) -> bool:
    """True for an option that few need."""
    return getattr(option, "is_rare", False)
