"""The README prints what it says."""

import re
import shlex

import pytest
from helpers import README, ROOT, extras_of, needs
from privproj_cli.main import exit_code
from privproj_cli.render import bounds_markdown

from privproj.bounds import registry


def test_readme_table_comes_from_the_registry():
    assert bounds_markdown(registry()) in README, "run python docs/build.py"


COMMANDS = [
    line.removeprefix("$ ").removeprefix(".venv/bin/") for line in README.splitlines() if line.startswith("$ privproj")
]


SEARCHES = ("privproj remaining", "--epochs")
"""Commands of the README that search over whole runs."""


def marks(text):
    """What a command or a block needs: an extra, or seconds."""
    wanted = [pytest.mark.extra] if extras_of(text) else []
    return wanted + ([pytest.mark.full] if any(words in text for words in SEARCHES) else [])


@pytest.mark.parametrize("line", [pytest.param(line, marks=marks(line)) for line in COMMANDS])
def test_readme_commands_print_what_the_readme_says(line, capsys):
    needs(*extras_of(line))
    assert exit_code(shlex.split(line.removeprefix("privproj "))) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first in README


def test_readme_shows_commands():
    assert len(COMMANDS) >= 3


EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("block", [pytest.param(block, marks=marks(block)) for block in EXAMPLES])
def test_readme_python_examples_print_what_they_say(block, capsys):
    needs(*extras_of(block))
    exec(compile(block, "README.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed
    for line in printed:
        assert f"# {line}" in block


def test_ci_runs_the_command_of_the_readme():
    assert "pip install -q -c constraints.txt -e '.[test]'" in README
    assert "readme" in (ROOT / ".ci" / "run").read_text().lower()
