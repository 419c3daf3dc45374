"""The command that sweeps."""

import json

from privproj_cli.main import exit_code
from records.grids import GRID


def test_the_command_says_what_it_did(tmp_path, capsys):
    path = tmp_path / "grid.json"
    path.write_text(json.dumps(GRID))
    assert exit_code(["sweep", str(path), "-o", str(tmp_path / "out.csv"), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["outcomes"]["invalid"] == 4 and "questions" in said.err
