"""Help under headings, and suggestions for mistyped commands, options and choices."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import privproj_cli
import pytest
from privproj_cli.commands import COMMANDS, GROUPS, command_named
from privproj_cli.query import MECHANISMS, example_words

GAUSSIAN = "gaussian --noise-multiplier 1"

QUERIES = ("epsilon", "delta", "sigma", "steps", "rate", "rank", "misalignment", "compare", "curve", "report")


def members(group):
    """The commands of a group by name."""
    context = click.Context(group)
    return {name: group.get_command(context, name) for name in group.list_commands(context)}


def test_every_command_stands_in_exactly_one_group():
    named = [name for commands in GROUPS.values() for name in commands]
    assert len(named) == len(set(named)) and list(COMMANDS) == named
    files = [p.stem for p in Path(privproj_cli.__file__).parent.glob("*.py") if p.stem != "commands"]
    found = [vars(import_module(f"privproj_cli.{file}")).get("COMMANDS", {}) for file in files]
    assert sorted(name for commands in found for name in commands) == sorted(named)
    for name in named:
        found = command_named(name)
        assert isinstance(found, click.Command) and found.name == name


def test_the_help_lists_every_command_in_one_line_of_80_columns(run):
    _, out, _ = run("--help")
    lines = out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    for title, commands in GROUPS.items():
        assert f"{title}:" in lines
        for name, words in commands.items():
            assert [line.split() for line in lines].count([name, *words.split()]) == 1, name
    assert "Exit codes" in lines[-2] and "privproj explain" in lines[-1]


@pytest.mark.parametrize("quantity", QUERIES)
def test_every_option_of_a_query_stands_under_one_heading(quantity, run):
    for name, command in members(command_named(quantity)).items():
        if name not in MECHANISMS:
            continue
        shown = run(f"{quantity} {name} --help-all")[1].splitlines()
        wanted = [f"{title}:" for title, options in command.sections.items() if options]
        assert [line for line in shown if line in (*wanted, "Options:")] == wanted
        assert {"Run:", "Answer:"} <= set(wanted) and ("Target:" in wanted) == (quantity != "curve")
        for option in [o for o in command.params if isinstance(o, click.Option)]:
            pattern = re.compile(rf"  (-\w, )?{option.opts[0]}(, -\w)?( .*)?")
            assert len([line for line in shown if pattern.fullmatch(line)]) == 1, option.opts


@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_in_a_help_text_has_lines_of_its_own(name, run):
    assert "\\b" not in run(f"{name} --help")[1]


@pytest.mark.parametrize("quantity", QUERIES)
def test_the_short_help_shows_a_screen_of_options_and_what_every_question_needs(quantity, run):
    for name in set(members(command_named(quantity))) & set(MECHANISMS):
        shown = re.findall(r"^  (?:-\w, )?(--[\w-]+)", run(f"{quantity} {name} --help")[1], re.M)
        everything = re.findall(r"^  (?:-\w, )?(--[\w-]+)", run(f"{quantity} {name} --help-all")[1], re.M)
        assert len(shown) <= 24 and set(shown) <= set(everything), (name, len(shown))
        assert set(re.findall(r"--[\w-]+", " ".join(example_words(name, quantity)))) <= set(shown), name


def one_letter_less(name):
    """The name without each of its letters."""
    return [name[:i] + name[i + 1 :] for i in range(len(name))]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_mistyped_command_gets_a_suggestion(name, run):
    for word in [*one_letter_less(name), name.upper()]:
        code, out, err = run(word)
        assert (code, out) == (2, "") and err.count("\n") == 1
        assert name in err.partition("did you mean")[2], word


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("epsilon m3", "m2"),
        ("compare gausian", "gaussian"),
        ("audit mechanim", "mechanism"),
        ("alignment meen", "mean"),
        ("report m22", "m2"),
        ("bounds rankfree", "rank-free"),
        ("bounds m2.rankfree", "m2.rank-free"),
        (f"epsilon {GAUSSIAN} --delta 1e-5 --bound analitic", "analytic"),
        (f"epsilon {GAUSSIAN} --delt 1e-5", "--delta"),
        (f"epsilon {GAUSSIAN} --delta 1e-5 --sampling poison", "poisson"),
        ("audit mechanism m3 --noise-multiplier 1", "m2"),
        ("train --data digits --mechanism loraf", "lora-fa"),
    ],
)
def test_a_mistyped_word_gets_a_suggestion(line, name, run):
    code, out, err = run(line)
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert name in err.partition("did you mean")[2]


def test_what_is_near_nothing_gets_a_list_or_where_it_is(run):
    assert "m1, m2, wishart, sketch" in run("rank zzzzz")[2]
    assert "privproj --help" in run("zzzzz")[2]
    assert "poisson, fixed, partition" in run(f"epsilon {GAUSSIAN} --delta 1e-5 --sampling zzzzzzzz")[2]
    assert "privproj epsilon gaussian --help" in run(f"epsilon {GAUSSIAN} --zzzzzz 1")[2]


@pytest.mark.parametrize(
    ("line", "name"),
    [("choose --layer 8x2 --epsilon 2", "--delta"), ("epsilon m2", "--noise-multiplier"), ("verify", "FILE [LEDGER")],
)
def test_what_a_command_needs_is_named_with_where_it_is_described(line, name, run):
    code, out, err = run(line)
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert err.startswith(f"error: expected {name}") and "--help` says what it is" in err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"epsilon {GAUSSIAN} --layer 768x16", "it is an option of m2"),
        (f"compare {GAUSSIAN} --probes 3", "it is an option of jl-clip"),
        ("epsilon m2 --eps 1", "no --epsilon: it is what `privproj epsilon m2` finds"),
        ("sigma m2 --noise-multiplier 1", "no --noise-multiplier: it is what `privproj sigma m2` finds"),
        ("sigma m2 -z 1", "no --noise-multiplier: it is what `privproj sigma m2` finds"),
        ("steps m2 --epochs 1", "no --epochs: it is what `privproj steps m2` finds"),
    ],
)
def test_an_option_of_another_question_gets_no_suggestion_but_the_reason(line, said, run):
    code, out, err = run(line)
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert said in err and "did you mean" not in err


@pytest.mark.parametrize("line", ["--help", f"epsilon {GAUSSIAN} --delta 1e-5"])
def test_what_only_an_error_or_an_explanation_needs_is_not_imported(line):
    code = (
        "import sys; from privproj_cli.main import exit_code; exit_code(sys.argv[1:]);"
        "sys.exit(str({'difflib', 'tomllib', 'privproj_cli.explain'} & set(sys.modules) or 0))"
    )
    done = subprocess.run([sys.executable, "-c", code, *line.split()], capture_output=True, text=True, check=False)
    assert done.stderr.strip() in ("", "0"), done.stderr
