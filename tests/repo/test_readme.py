"""The README is short, sets up with two commands, and says words before it uses them (its commands: test_docs.py)."""

import re
import shlex

from helpers import README, ROOT
from privproj_cli.main import exit_code

from privproj.mechanisms.registry import registry

MOST_LINES = 150
"""A newcomer reads this page whole. Contract."""


def test_it_is_short():
    assert len(README.splitlines()) <= MOST_LINES


def test_two_commands_set_up():
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    assert [block.count("\n") for block in blocks] == [1, 1]
    assert "-m pytest" in blocks[1]


def test_the_first_command_answers(capsys):
    main_job = re.search(r"\.venv/bin/privproj (epsilon .*)", README)[1]
    assert exit_code(shlex.split(main_job)) == 0
    assert capsys.readouterr().out.splitlines()[0] in README


def test_mechanisms_are_introduced_before_they_are_used():
    for name in ("M1", "M2"):
        assert README.index(f"**{name}**") < re.search(rf"\b{name.lower()} --|`{name.lower()}`", README).start()
    for kind in {bound.mechanism.name for bound in registry()} - {"laplace", "wishart-matrix"}:
        assert f"`{kind}`" in README


def test_the_picture_is_there():
    assert (ROOT / re.search(r'<img src="([^"]+)"', README)[1]).exists()


def test_ci_runs_the_command_of_the_readme():
    assert "pip install -q -c constraints.txt -e '.[test]'" in README
    assert "readme" in (ROOT / ".ci" / "run").read_text().lower()
