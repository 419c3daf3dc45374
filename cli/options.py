"""Options shared by the commands, each defined once, and the checks that need more than one of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import click

from privproj.errors import InvalidParameter, unknown_name
from privproj.mechanisms import Layer

from .answer import parse_number
from .declared import Declared, declared_by, run_of, target_of
from .groups import SectionedCommand


class Number(click.ParamType):
    """A finite decimal number; overflow (1e400) and underflow (1e-400) are seen, nan and inf refused."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return parse_number(param.opts[0] if param else "value", value) if isinstance(value, str) else value


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


class LayerShape(click.ParamType):
    """``DxR``, ``DxRxN`` or ``DxRxN@SHARE``."""

    name = "layer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Layer:
        return value if isinstance(value, Layer) else Layer.parse(value)


class NormPair(click.ParamType):
    """``K`` or ``K,K'``: one norm, or one before and one after."""

    name = "norms"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        if isinstance(value, tuple):
            return value
        parts = value.split(",")
        if len(parts) > 2:
            raise InvalidParameter("--residual-norm", value, "one norm, or two separated by a comma")
        return tuple(parse_number("--residual-norm", part) for part in parts)


NUMBER, LAYER, NORMS = Number(), LayerShape(), NormPair()
TYPES = {"layer": LAYER, "norms": NORMS, "text": str}
"""The types that declared options name."""


class Once(click.Option):
    """An option whose value counts: given twice with different values it is refused, not silently overruled."""

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


def option(name: str, help_text: str, **settings: Any) -> click.Option:
    """An option that takes a number unless ``settings`` say otherwise."""
    if not settings.get("is_flag"):
        kind = settings.get("type", NUMBER)
        settings["type"] = OneOf(kind) if isinstance(kind, tuple) else TYPES[kind] if isinstance(kind, str) else kind
    return Once([name], help=help_text, **settings)


def built(options: Iterable[Declared]) -> list[click.Option]:
    """Build the options that are declared."""
    return [option(name, words, **settings) for name, words, settings in options]


def mechanism_options(mechanism: str, quantity: str) -> list[click.Option]:
    """Return the options that describe a mechanism, without the one that the quantity finds."""
    return built(declared_by(mechanism, quantity))


def target_options(quantity: str) -> list[click.Option]:
    """Return ``--epsilon`` and ``--delta``, as the quantity needs them."""
    return built(target_of(quantity))


def run_options(quantity: str) -> list[click.Option]:
    """Return what describes a run: steps and rate, or what people have (batch size, data set size, epochs)."""
    return built(run_of(quantity))


COMPUTED = ("discretization", "composer", "split", "clip")
"""Options of a run that say how its answer is computed and shown, not what was run."""


def sectioned(
    own: Sequence[click.Option],
    run: Sequence[click.Option],
    target: Sequence[click.Option],
    answer: Sequence[click.Parameter],
) -> dict[str, Sequence[click.Parameter]]:
    """Return the options of a question under the headings of its help text."""
    return {
        "Mechanism": own,
        "Run": [o for o in run if o.name not in COMPUTED],
        "Target": target,
        "Answer": [*answer, *(o for o in run if o.name in COMPUTED)],
    }


def with_options(
    options: Sequence[click.Parameter] | Mapping[str, Sequence[click.Parameter]],
    callback: Callable[..., int],
    **settings: Any,
) -> click.Command:
    """Build a command with these options, which stand under headings where they are given by heading."""
    if isinstance(options, Mapping):
        return SectionedCommand(options, callback=callback, **settings)
    return click.Command(params=list(options), callback=callback, **settings)
