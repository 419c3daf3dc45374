"""The command that sweeps."""

import json

from privproj_cli.main import exit_code
from records.grids import GRID

import privproj
from privproj.records.sweep import MOST_CORNERS, grid_from


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
    found = json.loads(run(f"sweep {tmp_path}/grid.json -o {tmp_path}/again.csv --json")[1])
    asked, kept = privproj.M2(dim=64, rank=4, noise_multiplier=1, change_rank=2), {"assumes": set(), "promises": set()}
    for bound, run_of in (("rank-free", {"sampling_rate": 0.1}), ("beta-tail", {})):
        answer = privproj.epsilon(asked, delta=1e-5, bound=bound, steps=5, **run_of)
        kept["assumes"] |= set(answer.assumes)
        kept["promises"] |= set(answer.promises)
    assert all(words in said for sentences in kept.values() for words in sentences)
    assert all(set(found[name]) == sentences for name, sentences in kept.items())


def asked_of(query="epsilon", **given):
    """What a sweep of these axes looks at for assumptions: the questions at its corners, by where they are."""
    axes = {name: given.pop(name) for name in [n for n, value in given.items() if isinstance(value, list)]}
    data = {"mechanism": "gaussian", "noise_multiplier": 1, "query": query, **given, "grid": axes}
    return dict(grid_from({name: value for name, value in data.items() if name not in axes}).corners())


def test_every_end_of_every_axis_is_asked_for_what_it_takes_for_granted_in_large_grids_too():
    axes = {"noise_multiplier": [1, 2, 3], "delta": [1e-3, 1e-4, 1e-5], "steps": [2, 5, 9], "group_size": [1, 2, 3]}
    axes |= {"sampling_rate": [0.1, 0.2, 0.3], "relation": ["add-remove", "zero-out"], "bound": ["analytic", "rdp"]}
    axes |= {"composer": ["privproj", "dp-accounting"], "adaptive_clipping_sigma": [3, 4, 5]}
    axes |= {"discretization": [1e-3, 1e-4, 1e-5], "max_batch_size": [50, 60, 70], "dataset_size": [500, 600, 700]}
    said = " ".join(asked_of(**axes))
    for name, values in axes.items():
        ends = values if isinstance(values[0], str) else (min(values), max(values))
        assert all(f"{name}={value}" in said for value in ends), name
    assert len(asked_of(**axes)) == MOST_CORNERS


def test_a_valid_point_stands_in_where_no_end_is_valid():
    found = asked_of(steps=10, delta=1e-5, sampling_rate=[-1.0, 0.5, 2.0], group_size=[2, 1])
    assert list(found) == ["sampling_rate=0.5 group_size=2"]


def test_what_a_query_finds_is_asked_as_a_run():
    one_by_one = "each record joins each batch on its own"
    for query, given in (("rate", {"steps": 10}), ("steps", {"sampling_rate": 0.1})):
        (question, *_) = asked_of(query, delta=1e-5, epsilon=[1, 2], **given).values()
        words = " ".join(question.result(query, 1.0, None).assumes)
        assert one_by_one in words and "do not depend on earlier outputs" in words
