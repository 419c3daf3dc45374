"""The README is short, installs with two commands, and defines terms before use (test_docs.py runs its commands)."""

import re
import shlex

from helpers import README, ROOT
from privproj_cli.main import exit_code

MOST_LINES = 120


def test_readme_is_short():
    assert len(README.splitlines()) <= MOST_LINES


def test_readme_installs_with_two_commands():
    blocks = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    assert [block.count("\n") for block in blocks] == [1, 1]
    assert "-m pytest" in blocks[1]


def test_readme_first_command_prints_its_result(capsys):
    main_job = re.search(r"\.venv/bin/privproj (epsilon .*)", README)[1]
    assert exit_code(shlex.split(main_job)) == 0
    assert capsys.readouterr().out.splitlines()[0] in README


def test_readme_introduces_mechanisms_before_use():
    for name in ("M1", "M2"):
        assert README.index(f"**{name}**") < re.search(rf"\b{name.lower()} --|`{name.lower()}`", README).start()


def test_readme_picture_exists():
    assert (ROOT / re.search(r'<img src="([^"]+)"', README)[1]).exists()


def test_ci_runs_readme_install_command():
    assert "pip install -q -c constraints.txt -e '.[test]'" in README
    assert "readme" in (ROOT / ".ci" / "run").read_text().lower()


def test_readme_choose_table_matches_command(capsys):
    command = re.search(r"`privproj (choose .*?)`", README)[1]
    assert exit_code(shlex.split(command)) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = re.findall(
        r"^\| (dp-sgd|m2 per-layer|m2)\b[^|]*\| ([\d.]+) \| ([\d.]+) \| ([\d.]+) % \|$", README, re.MULTILINE
    )
    assert len(rows) == 3
    for name, *values in rows:
        assert any(line.startswith(f"{name}  ") and set(values) <= set(line.split()) for line in lines), name
