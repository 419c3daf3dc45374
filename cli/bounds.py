"""``privproj bounds``: the catalogue."""

import click

from privproj.bounds import LINES, registry
from privproj.errors import unknown_name
from privproj.mechanisms.methods import find_method

from . import render

HELP = """The catalogue of bounds; with NAME (or MECHANISM.NAME) one of them in full, with the name of a
published method (DP-SGD, DP-GRAPE, ...) those that account for it.

\b
Example:
  privproj bounds rank-free
"""


@click.command("bounds", help=HELP, short_help="The catalogue of bounds.")
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="JSON instead of text.")
@click.option("--markdown", is_flag=True, help="The table of the README.")
def command(name: str | None, as_json: bool, markdown: bool) -> int:
    """Print the catalogue of bounds, or one bound in full."""
    chosen = [b for b in registry() if name in (None, b.name, f"{b.mechanism.name}.{b.name}")]
    method = None if chosen or name is None else find_method(name)
    if method:
        chosen = [b for b in registry() if b.mechanism.name in method.mechanisms]
    if not chosen:
        known = [f"{kind}.{bound}" for kind, bound in LINES] if "." in str(name) else [bound for _, bound in LINES]
        raise unknown_name("NAME", name, "a bound", known, "`privproj bounds` lists them")
    if as_json:
        click.echo(render.as_json({"results": [render.bound_record(b) for b in chosen]}))
    elif markdown:
        click.echo(render.bounds_markdown(chosen))
    elif method:
        about = render.wrap_line(f"{method.name}: ", method.words)
        click.echo("\n".join([*about, "", render.bounds_text(chosen)]))
    else:
        click.echo(render.bounds_text(chosen) if name is None else "\n\n".join(map(render.bound_page, chosen)))
    return 0
