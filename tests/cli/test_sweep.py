"""The command that sweeps."""

import json

from privproj_cli.main import exit_code
from records.grids import GRID

import privproj


def test_the_command_says_what_it_did(tmp_path, capsys):
    path = tmp_path / "grid.json"
    path.write_text(json.dumps(GRID))
    assert exit_code(["sweep", str(path), "-o", str(tmp_path / "out.csv"), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["outcomes"]["invalid"] == 4 and "questions" in said.err


def test_a_sweep_says_what_its_numbers_take_for_granted(run, tmp_path):
    """All that an answer of some row assumes or asks of the data, with the rows that it is about."""
    fixed = {
        "mechanism": "m2",
        "delta": 1e-5,
        "dim": 64,
        "rank": 4,
        "noise_multiplier": 1,
        "change_rank": 2,
        "steps": 5,
    }
    axes = {"bound": ["rank-free", "beta-tail"], "sampling_rate": [0.1, 1.0]}
    (tmp_path / "grid.json").write_text(json.dumps({**fixed, "grid": axes}))
    code, out, _ = run(f"sweep {tmp_path}/grid.json -o {tmp_path}/table.csv")
    said = " ".join(out.split())
    assert code == 0 and "promise: (bound=beta-tail sampling_rate=0.1" in said
    found = json.loads(run(f"sweep {tmp_path}/grid.json -o {tmp_path}/table.csv --json")[1])
    asked, kept = privproj.M2(dim=64, rank=4, noise_multiplier=1, change_rank=2), {"assumes": set(), "promises": set()}
    for bound, run_of in (("rank-free", {"sampling_rate": 0.1}), ("beta-tail", {})):
        answer = privproj.epsilon(asked, delta=1e-5, bound=bound, steps=5, **run_of)
        kept["assumes"] |= set(answer.assumes)
        kept["promises"] |= set(answer.promises)
    assert all(words in said for sentences in kept.values() for words in sentences)
    assert all(set(found[name]) == sentences for name, sentences in kept.items())
