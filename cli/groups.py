"""Commands that contain commands and suggest one for a mistyped name; commands whose options stand under headings."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from privproj.errors import unknown_name
from privproj.mechanisms.methods import unknown_mechanism


class Group(click.Group):
    """A group of commands whose error for an unknown one suggests those that are spelt almost like it."""

    names = "MECHANISM", "a mechanism"
    """How the argument is called in an error, and what was expected."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the first argument names; an error with a suggestion where there is none."""
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-"):
            remedy = f"`{ctx.command_path} --help` lists them"
            if self.names is Group.names:
                raise unknown_mechanism(self.names[0], args[0], known, remedy)
            raise unknown_name(self.names[0], args[0], self.names[1], known, remedy)
        return super().resolve_command(ctx, args)


class CommandGroup(Group):
    """A group of which each member does something else."""

    names = "COMMAND", "a command"


class SectionedCommand(click.Command):
    """A command whose help shows its options under headings."""

    def __init__(self, sections: Mapping[str, Sequence[click.Parameter]], **settings: Any) -> None:
        super().__init__(params=[option for options in sections.values() for option in options], **settings)
        self.sections = sections

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each section that has options; ``--help`` comes last."""
        helping = self.get_help_option(ctx)
        last = list(self.sections)[-1]
        for title, options in self.sections.items():
            shown = [*options, *([helping] if title == last and helping else [])]
            records = [record for option in shown if (record := option.get_help_record(ctx)) is not None]
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
