"""A parameter's declaration determines its check, its option and its schema."""

import json
from dataclasses import dataclass
from importlib.resources import files

import pytest
from privproj_cli.options import Number, option_of
from privproj_cli.query import mechanism_options

from privproj.accounting.config import KINDS, keys_of
from privproj.errors import InvalidParameterError
from privproj.mechanisms import Gaussian
from privproj.mechanisms.registry import mechanism_named, mechanism_names
from privproj.parameters import (
    TRUTH,
    flag,
    number,
    one_of,
    parameter,
    parameters_from,
    parameters_of,
    whole_number,
)

PHASE = json.loads((files("privproj") / "run_schema.json").read_text())["properties"]["phase"]["items"]


@dataclass(frozen=True, kw_only=True)
class Toy(Gaussian):
    """The Gaussian mechanism with a parameter of every kind."""

    name = "toy"
    turns: int | None = parameter(whole_number("an integer from 2 to 9", 2, 9), "Turns.", "T", key="turn")
    share: float = parameter(number("a share from 0 to below 1", 0.0, 1.0, open_high=True), "Share.", "S", default=0.5)
    needed: int | None = parameter(whole_number("an integer >= 1"), "Needed.", "N", is_needed=True)
    colour: str = parameter(one_of("red", "blue"), "Colour.", default="red")
    quiet: bool = flag("Say less.")


def test_new_parameter_needs_its_declaration_only():
    made = Toy(**parameters_from(Toy, {"turn": 3.0, "needed": 1, "noise_multiplier": 2, "bound": "x", "share": None}))
    assert (made.turns, made.share, made.quiet, made.noise_multiplier) == (3, 0.5, False, 2.0)
    assert {"turn", "share", "needed", "colour", "quiet", "noise_multiplier", "steps"} <= set(keys_of(Toy, ()))
    options = {name: option_of(name, found) for name, found in parameters_of(Toy).items()}
    turns, needed, colour = options["turns"], options["needed"], options["colour"]
    assert (turns.opts, turns.help, turns.metavar) == (["--turn"], "Turns.", "T") and isinstance(turns.type, Number)
    assert needed.help == "Needed.  [required]" and tuple(colour.type.choices) == ("red", "blue")
    assert options["quiet"].is_flag and options["quiet"].opts == ["--quiet"]
    assert parameters_of(Toy)["share"].kind.rule == {"type": "number", "minimum": 0.0, "exclusiveMaximum": 1.0}


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"turns": 10}, "turns must be an integer from 2 to 9, got 10"),
        ({"turns": 2.5}, "turns must be an integer from 2 to 9, got 2.5"),
        ({"share": 1.0}, "got 1."),
        ({"share": None}, "missing share"),
        ({"needed": None}, "missing needed"),
        ({"quiet": 1}, "quiet must be true or false, got 1"),
    ],
)
def test_value_outside_declared_range_is_rejected(wrong, text):
    with pytest.raises(InvalidParameterError, match=text):
        Toy(**{"needed": 1, **wrong})


@pytest.mark.parametrize("name", mechanism_names())
def test_parameters_are_options_keys_and_in_schema(name):
    kind = mechanism_named(name)
    offered = {option.opts[0] for option in mechanism_options(name, "compare")}
    for field, found in parameters_of(kind).items():
        key = found.key or field
        assert not found.description or f"--{key.replace('_', '-')}" in offered
        assert found.description or found.kind is TRUTH or field == "other_residual_norm"
        rules = [rule["then"]["properties"][key] for rule in PHASE["allOf"]
                 if name in rule.get("if", {}).get("properties", {}).get("mechanism", {}).get("enum", ())]  # fmt: skip
        assert rules == [{**found.kind.rule, **({"description": found.description} if found.description else {})}]


def test_files_accept_values_of_declared_kind_only():
    values = (True, 1, 1.5, "even", "x", {}, [], ["x"], None)
    fitting = {name: [value for value in values if kind.fits(value)] for name, kind in KINDS.items()}
    assert fitting["steps"] == [1] and fitting["delta"] == [1, 1.5] and fitting["planned"] == [True]
    assert fitting["split"] == [1, 1.5, "even"] and fitting["bound"] == ["even", "x"]
