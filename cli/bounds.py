"""``privproj bounds``: the catalogue."""

import click

from privproj.errors import unknown_name
from privproj.mechanisms.methods import find_method
from privproj.mechanisms.registry import LINES, registry

from . import render


def complete_name(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    names = [*dict(LINES), *(name for _, name in LINES), *(f"{kind}.{name}" for kind, name in LINES)]
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


@click.command("bounds")
@click.argument("name", required=False, shell_complete=complete_name)
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
@click.option("--markdown", is_flag=True, help="The table of the README.")
def command(name: str | None, as_json: bool, markdown: bool) -> int:
    """The catalogue of bounds; with NAME (or MECHANISM.NAME) one of them in full, with the name of a
    mechanism or of a published method (DP-SGD, DP-GRAPE, ...) those that account for it.

    \b
    Example:
      privproj bounds rank-free
    """
    pages = [b for b in registry() if name in (b.name, f"{b.mechanism.name}.{b.name}")]
    method = None if pages or name is None else find_method(name)
    mechanisms = method.mechanisms if method else (name,)
    listed = [b for b in registry() if name is None or b.mechanism.name in mechanisms]
    chosen = [*pages, *listed]
    if not chosen:
        known = [f"{kind}.{bound}" for kind, bound in LINES] if "." in str(name) else [bound for _, bound in LINES]
        raise unknown_name("NAME", name, "a bound", known, "`privproj bounds` lists them")
    if as_json:
        click.echo(render.as_json({"results": [render.bound_record(b) for b in chosen]}))
    elif markdown:
        click.echo(render.bounds_markdown(chosen))
    else:
        about = ["\n".join(render.wrap_line(f"{method.name}: ", method.words))] if method else []
        table = [render.bounds_text(listed)] if listed else []
        click.echo("\n\n".join([*about, *map(render.bound_page, pages), *table]))
    return 0
