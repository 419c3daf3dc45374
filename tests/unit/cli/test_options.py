"""No option is overruled or ignored."""

from inspect import signature

import click
import pytest
from privproj_cli.main import COMMANDS, command_named
from privproj_cli.options import Once, options_from

from privproj.mechanisms.sketch.lora_noise import lora_noise
from tests.differential.command_line_rules import call
from tests.differential.command_lines import Case


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ("epsilon gaussian --noise-multiplier 1 --delta 1e-5 --delta 1e-6", "--delta"),
        ("epsilon gaussian --noise-multiplier 1 --noise-multiplier 2 --delta 1e-5", "--noise-multiplier"),
        ("epsilon m2 --dim 9 --rank 2 --noise-multiplier 1 --delta 1e-5 --bound gaussian --bound rank-free", "--bound"),
        ("compare gaussian --noise-multiplier 1 --delta 1e-5 --steps 3 --steps 4", "--steps"),
        ("run in.toml --delta 1e-5 --delta 1e-6", "--delta"),
        ("curve gaussian --noise-multiplier 1 --what delta --what trade-off", "--what"),
        ("epsilon wishart --dim 9 --rank 3 --misalignment 1e-6 --delta 1e-5 --clip 1", "--clip"),
        ("curve gaussian --noise-multiplier 1 --what trade-off --epsilon-max 3", "--epsilon-max"),
        (
            "dp-sft --public --share .5 --epsilon 4 --delta 1e-5 --sampling-rate .1 --subspace-steps 2 --steps 2",
            "--share",
        ),
        ("rate gaussian --noise-multiplier 1 --epsilon 1 --delta 1e-5 --dataset-size 100", "--dataset-size"),
    ],
)
def test_no_option_is_overruled_or_ignored(arguments, name):
    seen = call(Case(tuple(arguments.split())))
    assert seen.code == 2 and name in seen.err and not seen.out


def commands():
    """Every command with its options."""
    for name in COMMANDS:
        found = command_named(name)
        context = click.Context(found)
        names = found.list_commands(context) if isinstance(found, click.Group) else ()
        yield from [found.get_command(context, name) for name in names] or [found]


def test_every_option_with_one_value_is_guarded():
    options = [p for command in commands() for p in command.params if isinstance(p, click.Option)]
    valued = [o for o in options if not (o.is_flag or o.multiple)]
    assert len(valued) > 100 and all(isinstance(o, Once) for o in valued)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("1%", "10 % as 0.1"), ("100,000", "100k as 1e5"), ("100k", "1e5"), ("10^-5", "1e-5"), ("x%", "a number")],
)
def test_number_as_people_write_it_gets_remedy(run, text, sentence):
    code, out, err = run(f"epsilon gaussian --noise-multiplier 1 --delta '{text}'")
    assert (code, out) == (2, "") and sentence in err


def test_function_options_have_docstring_texts():
    found = {option.name: option for option in options_from(lora_noise)}
    assert list(found) == list(signature(lora_noise).parameters)
    assert found["rank"].required and not found["variance"].required
    assert found["rank"].help == "r, the number of rows of A, at least 1."
    assert list(found["initialization"].type.choices) == ["gaussian", "uniform"]
    assert found["initialization"].help.endswith("[default: gaussian]")
    assert [option.name for option in options_from(lora_noise, "row_sum", "rank")] == ["row_sum", "rank"]
