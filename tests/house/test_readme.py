"""The README prints what it says."""

import re
import shlex

import pytest
from helpers import README, ROOT, needs
from privproj_cli.main import exit_code
from privproj_cli.render import bounds_markdown

from privproj.bounds import registry


def test_readme_table_comes_from_the_registry():
    assert bounds_markdown(registry()) in README


COMMANDS = [
    line.removeprefix("$ ").removeprefix(".venv/bin/") for line in README.splitlines() if line.startswith("$ privproj")
]


@pytest.mark.parametrize("line", COMMANDS)
def test_readme_commands_print_what_the_readme_says(line, capsys):
    assert exit_code(shlex.split(line.removeprefix("privproj "))) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first in README


def test_readme_shows_commands():
    assert len(COMMANDS) >= 3


EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("block", EXAMPLES)
def test_readme_python_examples_print_what_they_say(block, capsys):
    if "torch" in block:
        needs("torch")
    exec(compile(block, "README.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed
    for line in printed:
        assert f"# {line}" in block


def test_ci_runs_the_command_of_the_readme():
    assert "pip install -q -c constraints.txt -e '.[test]'" in README
    assert "readme" in (ROOT / ".ci" / "run").read_text().lower()
