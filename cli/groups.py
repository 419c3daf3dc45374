"""Commands that contain commands and suggest one for a mistyped name; commands whose options stand under headings."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from privproj.errors import unknown_name


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
