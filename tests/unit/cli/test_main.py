"""The command line: help under headings, suggestions for what is mistyped, bad input, exit codes, imports."""

import io
import json
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import privproj_cli
import pytest
from helpers import feature_rows, needs
from privproj_cli.main import COMMANDS, command_groups, command_named, exit_code
from privproj_cli.query import example_arguments

import privproj
from privproj.io.files import as_toml
from privproj.mechanisms.registry import mechanism_names

GAUSSIAN = "gaussian --noise-multiplier 1"

M2 = "m2 --dim 2048 --rank 16 --noise-multiplier 0.5"


@pytest.mark.full
@pytest.mark.parametrize("quantity", ["epsilon", "delta", "sigma", "rank", "steps", "rate", "misalignment", "compare"])
def test_help_shows_example_that_works(run, quantity):
    for mechanism in command_named(quantity).list_commands(None):
        code, out, _ = run(f"{quantity} {mechanism} --help")
        example = next(line for line in out.splitlines() if line.strip().startswith(f"privproj {quantity}"))
        assert code == 0
        expected = 3 if mechanism == "wishart-matrix" else 0
        assert run(example.strip().removeprefix("privproj "))[0] == expected, example


def test_every_command_has_help(run):
    for command in COMMANDS:
        assert run(f"{command} --help")[0] == 0
    assert run("--version")[1].strip() == f"privproj, version {privproj.__version__}"


BAD = [
    ("epsilon gaussian --noise-multiplier -1 --delta 1e-5", 2, "--noise-multiplier must be"),
    ("epsilon gaussian --noise-multiplier 0 --delta 1e-5", 2, "--noise-multiplier must be"),
    ("epsilon gaussian --noise-multiplier nan --delta 1e-5", 2, "--noise-multiplier must be"),
    ("epsilon gaussian --noise-multiplier inf --delta 1e-5", 2, "finite"),
    ("epsilon gaussian --noise-multiplier '' --delta 1e-5", 2, "number"),
    ("epsilon gaussian --noise-multiplier 1e400 --delta 1e-5", 2, "in the range of double precision"),
    ("epsilon gaussian --noise-multiplier 1e-400 --delta 1e-5", 2, "in the range of double precision"),
    ("epsilon gaussian --noise-multiplier 1e-200 --delta 1e-5", 2, "1e-12"),
    ("epsilon gaussian --noise-multiplier 1 --delta 0", 2, "--delta must be"),
    ("epsilon gaussian --noise-multiplier 1 --delta 1", 2, "--delta must be"),
    ("epsilon gaussian --noise-multiplier 1 --delta 2", 2, "--delta must be"),
    ("epsilon gaussian --noise-multiplier 1 --delta nan", 2, "--delta must be"),
    ("delta gaussian --noise-multiplier 1 --epsilon -1", 2, "--epsilon must be"),
    ("curve gaussian --noise-multiplier 1 --epsilon-max -1", 2, "--epsilon-max must be"),
    ("bounds m2 m1", 2, "Try 'privproj bounds --help' for help"),
    ("sigma gaussian --epsilon 0 --delta 1e-5", 2, "--epsilon must be"),
    ("epsilon gaussian --noise-multiplier 1 --delta 1e-5 --sampling-rate 0", 2, "--sampling-rate must be"),
    ("epsilon gaussian --noise-multiplier 1 --delta 1e-5 --sampling-rate 1.5", 2, "--sampling-rate must be"),
    ("epsilon gaussian --noise-multiplier 1 --delta 1e-5 --steps 0", 2, "--steps must be"),
    ("epsilon gaussian --noise-multiplier 1 --delta 1e-5 --steps 2.5", 2, "--steps must be"),
    ("epsilon gaussian --noise-multiplier 1 --delta 1e-5 --steps -5", 2, "--steps must be"),
    ("epsilon gaussian --noise-multiplier 1 --delta 1e-5 --dim 8", 2, "--dim"),
    ("epsilon gaussian --noise-multiplier 1 --delta 1e-5 --bound nonsense", 2, "analytic"),
    ("epsilon gaussian --noise-multiplier 1 --delta 1e-5 --epochs 3", 2, "--batch-size"),
    ("epsilon gaussian --noise-multiplier 1 --delta 1e-5 --batch-size 3", 2, "--dataset-size"),
    ("epsilon gaussian --noise-multiplier 1 --delta 1e-5 --batch-size 30 --dataset-size 20", 2, "at most"),
    ("epsilon gaussian --noise-multiplier 1", 2, "--delta"),
    ("epsilon --noise-multiplier 1 --delta 1e-5", 2, "Name a mechanism before the options"),
    ("epsilon martian", 2, "martian"),
    ("epsilonn gaussian", 2, "epsilonn"),
    ("epsilon m2 --dim 64 --rank 0 --noise-multiplier 1 --delta 1e-5", 2, "--rank must be"),
    ("epsilon m2 --dim 64 --rank 65 --noise-multiplier 1 --delta 1e-5", 2, "dim = 64"),
    ("epsilon m2 --dim 64 --rank 4.5 --noise-multiplier 1 --delta 1e-5", 2, "--rank must be"),
    ("epsilon m2 --dim 64 --rank 4 --columns 8 --change-rank 9 --noise-multiplier 1 --delta 1e-5", 2, "min(dim"),
    ("epsilon m2 --dim 64 --rank 4 --bound beta-tail --noise-multiplier 1 --delta 1e-5", 2, "columns"),
    ("epsilon m2 --dim 1e30 --rank 4 --noise-multiplier 1 --delta 1e-5", 2, "--dim"),
    ("epsilon gaussian --noise-multiplier 1 --delta 1e-5 --bound classical", 3, "analytic"),
    (
        "epsilon gaussian --noise-multiplier 1 --delta 1e-5 --sampling-rate .1 --steps 1 --relation replace",
        3,
        "supported",
    ),
    (
        "epsilon m2 --dim 8 --rank 2 --noise-multiplier 1 --delta 1e-5 --bound exact-rank1 --relation replace",
        3,
        "zero-out",
    ),
    ("epsilon gaussian --noise-multiplier 1 --delta 1e-5 --dataset-size 0", 2, "--dataset-size must be"),
    ("epsilon gaussian --noise-multiplier 1_0 --delta 1e-5", 2, "1_0"),
    ("sigma m2 --dim 64 --rank 4 --clipping per-layer --epsilon 1 --delta 1e-5", 2, "if --layer is given"),
    ("epsilon gaussian --noise-multiplier 1 --delta 1e-5 --split even", 2, "--split must be"),
    ("epsilon m2 --noise-multiplier 1 --delta 1e-5", 2, "missing --dim; try --dim 768."),
    ("epsilon m2 --layer 768x16 --dim 8 --rank 2 --noise-multiplier 1 --delta 1e-5", 2, "if --layer is given"),
    ("epsilon m2 --layer 768 --noise-multiplier 1 --delta 1e-5", 2, "--layer must be"),
    ("epsilon m2 --layer 768x0 --noise-multiplier 1 --delta 1e-5", 2, "--layer must be"),
    ("epsilon m2 --layer 768x16@2 --clipping per-layer --noise-multiplier 1 --delta 1e-5", 2, "--layer must be"),
    ("epsilon m2 --dim 64 --rank 4 --fixed-projection --steps 2 --noise-multiplier 1 --delta 1e-5", 3, "gaussian"),
    ("epsilon m2 --layer 64x4x3 --bound exact-rank1 --noise-multiplier 1 --delta 1e-5", 3, "rank-free"),
    ("epsilon gaussian --noise-multiplier 1e-3 --steps 10 --sampling-rate .1 --delta 1e-5", 5, "noise"),
    ("delta gaussian --noise-multiplier 1e-3 --epsilon 1", 4, None),
    ("rank m2 --dim 8 --noise-multiplier 1e-3 --epsilon 1 --delta 1e-5", 4, None),
    *((line, *found) for line, found in feature_rows("USAGE_ERRORS").items()),
]


@pytest.mark.parametrize(("line", "code", "word"), BAD, ids=[line for line, _, _ in BAD])
def test_bad_input_gets_one_clear_line(run, line, code, word):
    found, out, err = run(line)
    assert found == code
    if code in (2, 3, 5):
        assert out == ""
        assert err.startswith("error: ") and err.count("\n") == 1
        assert word in err
    else:
        assert err == "" and out


@pytest.mark.parametrize(
    "line",
    ["--help", f"epsilon {GAUSSIAN} --delta 1e-5", f"epsilon {M2} --change-rank 2 --bound beta-tail --delta 1e-5"],
)
def test_hot_commands_import_nothing_slow(line):
    code = (
        "import sys; from privproj_cli.main import exit_code; exit_code(sys.argv[1:]);"
        "slow = {'numpy', 'scipy', 'numba', 'mpmath', 'dp_accounting', 'importlib.metadata'} & set(sys.modules);"
        "sys.exit(f'imported {slow}' if slow else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code, *shlex.split(line)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no full device")
def test_unwritable_json_output_gives_one_error():
    line = "epsilon gaussian --noise-multiplier 1e-3 --delta 1e-5 --steps 9 --sampling-rate 0.1 --json"
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "privproj", *line.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr.startswith("error: cannot read or write") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "code", "sentence"),
    [
        (
            "epsilon gaussian --noise-multiplier 1 --delta 1e-5 --bound gdp --sampling-rate 0.1 --steps 3 --json",
            3,
            "amplification",
        ),
        ("", 2, "the standard output"),
    ],
)
def test_closed_output_keeps_exit_code_of_error(line, code, sentence):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "privproj", *line.split()]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.returncode == code and sentence in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_error_that_cannot_be_written_keeps_its_exit_code():
    line = ["epsilon", "gaussian", "--noise-multiplier", "-1", "--delta", "1e-5"]
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-m", "privproj", *line], stderr=full, check=False)
    assert done.returncode == 2


def test_without_docstrings_every_command_has_its_options():
    """As under ``python -OO``, which drops the docstrings that some options have their words from."""
    code = (
        "import click; from privproj_cli.main import COMMANDS, command_named\n"
        "for name in COMMANDS:\n"
        "    of = command_named(name)\n"
        "    below = getattr(of, 'commands', {None: of})\n"
        "    print(name, *sorted(p for one in below.values() for p in (x.opts[0] for x in one.params)))"
    )
    output = [
        subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True, check=False)
        for flags in ([], ["-OO"])
    ]
    assert output[1].returncode == 0, output[1].stderr
    assert output[0].stdout.count("--norm-floor") == 1 and output[0].stdout == output[1].stdout


def test_package_is_command():
    done = subprocess.run([sys.executable, "-m", "privproj", "--version"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "privproj" in done.stdout


@pytest.mark.parametrize(
    ("given", "ours"),
    [("--sigma", "--noise-multiplier"), ("-z", "--noise-multiplier"), ("--eps", "--epsilon"), ("-q", "--sampling-rate"),
     ("--samples", "--dataset-size")],
)  # fmt: skip
def test_names_of_other_tools_are_answered_with_ours(run, given, ours):
    quantity = "delta" if ours == "--epsilon" else "epsilon"
    code, _, err = run(f"{quantity} gaussian {given} 1")
    assert code == 2 and f"Did you mean '{ours}'?" in err


def test_unknown_option_has_no_unrelated_suggestion(run):
    """Click suggests an option of low similarity, such as --tau for --attack."""
    assert run("epsilon m1 --dim 4 --attack")[2].count("--") == 2
    assert "Did you mean '--noise-multiplier'?" in run("epsilon m1 --noise-multiplyer 1")[2]


@pytest.mark.parametrize(
    ("line", "offered", "others"),
    [
        ("privproj ", ["epsilon", "check"], ["m2"]),
        ("privproj epsilon ", ["m2", "gaussian"], ["rank-free"]),
        ("privproj epsilon m2 --bound ", ["rank-free", "beta-tail"], ["analytic"]),
        ("privproj epsilon m2 --sampling ", ["poisson", "balls-in-bins"], []),
        ("privproj explain vac", ["vacuous"], ["exact"]),
        ("privproj explain C3", ["C30", "C38"], ["C4"]),
        ("privproj bounds m2.", ["m2.rank-free"], ["m1.residual"]),
        ("privproj epsilon martian --de", [], ["--delta"]),
    ],
)
def test_shell_completes_commands_bounds_and_terms(line, offered, others, monkeypatch, capsys):
    monkeypatch.setenv("_PRIVPROJ_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    with pytest.raises(SystemExit):
        exit_code([])
    output = capsys.readouterr()
    found = [found.partition(",")[2] for found in output.out.split()]
    assert set(offered) <= set(found) and not set(others) & set(found) and output.err == ""


@pytest.mark.parametrize("command", ["run", "remaining", "check", "verify", "ledger", *feature_rows("FILE_COMMANDS")])
def test_shell_completes_names_of_files(command, monkeypatch, capsys):
    arguments = f"privproj {command} "
    monkeypatch.setenv("_PRIVPROJ_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", arguments)
    monkeypatch.setenv("COMP_CWORD", str(len(arguments.split(" ")) - 1))
    with pytest.raises(SystemExit):
        exit_code([])
    assert capsys.readouterr().out == "file,\n"


@pytest.mark.parametrize("command", ["run - --delta 1e-5", "remaining - --epsilon 9 --delta 1e-5", "check -"])
@pytest.mark.parametrize("form", ["toml", "json"])
def test_file_comes_from_standard_input(run, monkeypatch, tmp_path, command, form):
    phase = {"mechanism": "gaussian", "noise_multiplier": 2}
    table, entry = ("bound", {**phase, "delta": 1e-5, "at_most": 9}) if "check" in command else ("phase", phase)
    text = as_toml([entry], table) if form == "toml" else json.dumps({table: [entry]})
    (tmp_path / f"in.{form}").write_text(text)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    found = run(command)
    assert found[0] == 0 and found == run(command.replace("-", str(tmp_path / f"in.{form}"), 1))
    for wrong in (b"", b"{", b"[[phase", b"\xff"):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(wrong)))
        assert run(command)[0] == 2


PHASE = '[[phase]]\nmechanism = "gaussian"\nnoise_multiplier = 2\n'
GRID = 'query = "epsilon"\nmechanism = "gaussian"\ndelta = 1e-5\n[grid]\nnoise_multiplier = [1, 2]\n'


@pytest.mark.parametrize("command", ["curve gaussian --noise-multiplier 1", *feature_rows("OUTPUT_COMMANDS")])
@pytest.mark.parametrize("name", ["-", "''"])
def test_no_file_is_called_as_standard_output_is_or_by_nothing(run, monkeypatch, tmp_path, command, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grid.toml").write_text(GRID)
    code, out, err = run(f"{command} -o {name}")
    assert (code, out) == (2, "") and "a file name" in err
    assert ("use ./-" in err) == (name == "-") and [*map(str, tmp_path.iterdir())] == [str(tmp_path / "grid.toml")]


@pytest.mark.parametrize(
    "command",
    [
        "run run.toml --epsilon 1 --delta 1e-5 --calibrate -o ./run.toml",
        "curve gaussian --noise-multiplier 1 -o out.svg --plot ./out.svg",
        *feature_rows("SAME_FILES"),
    ],
)
def test_no_output_is_written_over_input_or_another_output(run, monkeypatch, tmp_path, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(PHASE)
    code, out, err = run(command)
    assert (code, out) == (2, "") and "must be another file than" in err
    assert [path.read_text() for path in tmp_path.iterdir()] == [PHASE]


def test_no_name_is_no_folder_to_check(run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bounds.toml").write_text(
        PHASE.replace("phase", "bound") + 'query = "epsilon"\ndelta = 1e-5\nat_most = 9\n'
    )
    assert run("check .")[0] == 0
    assert run("check ''") == (2, "", "error: missing FILE; give a file or a folder.\n")


def test_mark_of_order_of_bytes_is_no_text_and_stays(run, tmp_path):
    needs("tomlkit")
    entry = PHASE.replace("phase", "bound") + 'query = "epsilon"\ndelta = 1e-5\nexpect = 2.0\n'
    for name, text in (("run.toml", PHASE), ("bounds.toml", entry)):
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
    assert run(f"run {tmp_path / 'run.toml'} --delta 1e-5")[0] == 0
    assert run(f"check {tmp_path / 'bounds.toml'} --update")[0] == 0
    written = (tmp_path / "bounds.toml").read_bytes()
    assert written.startswith(b"\xef\xbb\xbf[[bound]]") and b"expect = 1.9" in written


@pytest.mark.parametrize("option, most", [("--steps 1e18", "<= 1e+15"), ("--group-size 2e6", "from 1 to 1e6")])
def test_too_large_number_error_states_limit(run, option, most):
    code, _, err = run(f"epsilon gaussian --noise-multiplier 1 --delta 1e-5 {option}")
    assert code == 2 and most in err


def test_short_help_is_help(run):
    assert run("epsilon m2 -h") == run("epsilon m2 --help")


# --- help under headings, and suggestions -------------------------------------------------------------

QUERIES = (
    "epsilon",
    "delta",
    "sigma",
    "steps",
    "rate",
    "rank",
    "misalignment",
    "compare",
    "curve",
    *feature_rows("QUERIES"),
)


def members(group):
    """The commands of a group by name."""
    context = click.Context(group)
    return {name: group.get_command(context, name) for name in group.list_commands(context)}


def test_every_command_is_in_exactly_one_group():
    named = [name for commands in command_groups().values() for name in commands]
    assert len(named) == len(set(named)) and set(COMMANDS) <= set(named)
    files = [p.stem for p in Path(privproj_cli.__file__).parent.glob("*.py") if p.stem != "main"]
    found = [vars(import_module(f"privproj_cli.{file}")).get("COMMANDS", {}) for file in files]
    assert sorted(name for commands in found for name in commands) == sorted(COMMANDS)
    for name in named:
        found = command_named(name)
        assert isinstance(found, click.Command) and found.name == name


def test_commands_of_features_are_listed_completed_and_suggested(run, monkeypatch):
    commands = {"tune": ("Runs", "A command of a feature.", "privproj_cli.explain:bounds_command")}
    monkeypatch.setattr("privproj_cli.main.plugin_table", lambda name: {"COMMANDS": commands}[name])
    help_lines = [line.split() for line in run("--help")[1].splitlines()]
    assert ["tune", "A", "command", "of", "a", "feature."] in help_lines
    assert "did you mean 'tune'" in run("tun")[2]
    assert run("tune rank-free") == run("bounds rank-free")


def test_help_lists_every_command_in_one_line_of_80_columns(run):
    _, out, _ = run("--help")
    lines = out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    for title, commands in command_groups().items():
        assert f"{title}:" in lines
        for name, arguments in commands.items():
            assert [line.split() for line in lines].count([name, *arguments.split()]) == 1, name
    assert "Exit codes:" in lines[-3] and "privproj explain" in lines[-1]


@pytest.mark.parametrize("quantity", QUERIES)
def test_every_query_option_is_under_one_heading(quantity, run):
    for name, command in members(command_named(quantity)).items():
        if name not in mechanism_names():
            continue
        shown = run(f"{quantity} {name} --help-all")[1].splitlines()
        wanted = [f"{title}:" for title, options in command.sections.items() if options]
        assert [line for line in shown if line in (*wanted, "Options:")] == wanted
        assert {"Run:", "Output:"} <= set(wanted) and ("Target:" in wanted) == (quantity != "curve")
        for option in [o for o in command.params if isinstance(o, click.Option)]:
            pattern = re.compile(rf"  (-\w, )?{option.opts[0]}(, -\w)?( .*)?")
            assert len([line for line in shown if pattern.fullmatch(line)]) == 1, option.opts


@pytest.mark.parametrize("name", COMMANDS)
def test_example_in_help_text_has_lines_of_its_own(name, run):
    assert "\\b" not in run(f"{name} --help")[1]


@pytest.mark.parametrize("quantity", QUERIES)
def test_short_help_fits_a_screen_and_lists_needed_options(quantity, run):
    for name in set(members(command_named(quantity))) & set(mechanism_names()):
        shown = re.findall(r"^  (?:-\w, )?(--[\w-]+)", run(f"{quantity} {name} --help")[1], re.M)
        everything = re.findall(r"^  (?:-\w, )?(--[\w-]+)", run(f"{quantity} {name} --help-all")[1], re.M)
        assert len(shown) <= 24 and set(shown) <= set(everything), (name, len(shown))
        assert set(re.findall(r"--[\w-]+", " ".join(example_arguments(name, quantity)))) <= set(shown), name


def one_letter_less(name):
    """The name without each of its letters."""
    return [name[:i] + name[i + 1 :] for i in range(len(name))]


@pytest.mark.parametrize("name", COMMANDS)
def test_mistyped_command_gets_suggestion(name, run):
    for word in [*one_letter_less(name), name.upper()]:
        code, out, err = run(word)
        assert (code, out) == (2, "") and err.count("\n") == 1
        assert name in err.lower().partition("did you mean")[2], word


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("epsilon m3", "m2"),
        ("compare gausian", "gaussian"),
        ("alignment meen", "mean"),
        ("bounds rankfree", "rank-free"),
        ("bounds m2.rankfree", "m2.rank-free"),
        (f"epsilon {GAUSSIAN} --delta 1e-5 --bound analitic", "analytic"),
        (f"epsilon {GAUSSIAN} --delt 1e-5", "--delta"),
        (f"epsilon {GAUSSIAN} --delta 1e-5 --sampling poison", "poisson"),
        ("train --data digits --mechanism loraf", "lora-fa"),
        *feature_rows("MISTYPED").items(),
    ],
)
def test_mistyped_word_gets_suggestion(line, name, run):
    code, out, err = run(line)
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert name in err.lower().partition("did you mean")[2]


def test_unknown_name_error_lists_names(run):
    assert "m1, m2, wishart, sketch" in run("rank zzzzz")[2]
    assert "privproj --help" in run("zzzzz")[2]
    assert "poisson, fixed, partition" in run(f"epsilon {GAUSSIAN} --delta 1e-5 --sampling zzzzzzzz")[2]
    assert "privproj epsilon gaussian --help" in run(f"epsilon {GAUSSIAN} --zzzzzz 1")[2]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("choose --layer 8x2 --epsilon 2", "--delta"),
        ("epsilon m2", "--noise-multiplier"),
        ("verify", "FILE [LEDGER"),
        *feature_rows("INCOMPLETE").items(),
    ],
)
def test_missing_option_error_names_option_and_help(line, name, run):
    code, out, err = run(line)
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert err.startswith("error: Missing ") and name in err and "--help' for help." in err


@pytest.mark.parametrize(
    ("line", "output"),
    [
        (f"epsilon {GAUSSIAN} --layer 768x16", "It is an option of m2"),
        (f"compare {GAUSSIAN} --change-rank 3", "It is an option of m2"),
        ("epsilon m2 --eps 1", "`privproj epsilon m2` computes this value"),
        ("sigma m2 --noise-multiplier 1", "`privproj sigma m2` computes this value"),
        ("sigma m2 -z 1", "`privproj sigma m2` computes this value"),
        ("--foo", "No such option '--foo'. Try 'privproj --help' for help."),
        ("epsilon --foo", "Try 'privproj epsilon --help' for help."),
        ("steps m2 --epochs 1", "`privproj steps m2` computes this value"),
    ],
)
def test_option_of_another_query_error_has_reason(line, output, run):
    code, out, err = run(line)
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert output in err and "did you mean" not in err.lower()


@pytest.mark.parametrize("line", ["--help", f"epsilon {GAUSSIAN} --delta 1e-5"])
def test_query_imports_no_modules_for_errors(line):
    code = (
        "import sys; from privproj_cli.main import exit_code; exit_code(sys.argv[1:]);"
        "sys.exit(str({'difflib', 'tomllib', 'privproj_cli.explain'} & set(sys.modules) or 0))"
    )
    done = subprocess.run([sys.executable, "-c", code, *line.split()], capture_output=True, text=True, check=False)
    assert done.stderr.strip() in ("", "0"), done.stderr
