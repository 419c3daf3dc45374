"""Negative controls of the golden comparison: each planted change makes it fail, and the right map lets it pass."""

import copy
import json
import tomllib
from pathlib import Path

import pytest

from tests.golden.answers import answer, compare
from tests.golden.renames import Renames

GAUSSIAN = ["epsilon", "gaussian", "--noise-multiplier", "2", "--bound", "analytic", "--delta", "1e-5", "--json"]
GRID = {"mechanism": "gaussian", "query": "epsilon", "delta": 1e-5, "grid": {"noise_multiplier": [1.0, 2.0]}}
ARRAY = {"call": "epsilons", "args": ["gaussian"], "keywords": {"noise_multiplier": [1.0, 2.0], "delta": 1e-5}}
STEPS = [
    "steps",
    "gaussian",
    "--noise-multiplier",
    "20",
    "--epsilon",
    "1",
    "--delta",
    "1e-5",
    "--bound",
    "zcdp",
    "--json",
]
ROWS = [
    {"name": "json", "calls": [GAUSSIAN], "files": {}},
    {"name": "text", "calls": [GAUSSIAN[:-1]], "files": {}},
    {"name": "array", "calls": [ARRAY], "files": {}},
    {
        "name": "csv",
        "calls": [["sweep", "grid.json", "-o", "table.csv", "--json"]],
        "files": {"grid.json": json.dumps(GRID)},
    },
    {"name": "error", "calls": [{"call": "evaluate", "args": ["gaussian.none.delta"]}], "files": {}},
    {"name": "steps", "calls": [STEPS], "files": {}},
]


@pytest.fixture(scope="module")
def recorded():
    return [{**row, "answer": answer(row)} for row in ROWS]


@pytest.fixture
def stored(recorded):
    return copy.deepcopy(recorded)


def named(stored, name):
    return next(row for row in stored if row["name"] == name)


def violations(stored, rule="text", drop=None, today=None, replay=None, **tables):
    return compare(stored, rule, Renames(tables), drop, today, replay)[0]


def answers_of(stored):
    """Replay without a call: the stored answers themselves."""
    return lambda rows: [(copy.deepcopy(row["answer"]), 0.0) for row in stored]


# --- rows -----------------------------------------------------------------------------------------


def test_recorded_rows_agree_with_themselves(stored):
    wrong, summary = compare(stored, "same", today={row["name"] for row in stored} | {"new"})
    assert wrong == []
    assert "6 rows stored, 6 compared, 0 dropped, 0 renamed; data: 6 agree" in summary
    assert "1 new rows not stored" in summary


def test_row_that_is_not_replayed_fails(stored):
    assert violations(stored, replay=answers_of(stored[:-1])) == ["1 rows not replayed"]


def test_row_is_dropped_with_reason_alone(stored):
    stored[0]["answer"]["calls"][0]["code"] = 5
    assert violations(stored[:1])
    assert violations(stored[:1], drop={"js*": "its command is gone"}) == []
    assert violations(stored[:1], drop={"js*": " "}) == ["drop: 'js*' has no reason"]
    assert "no stored row" in violations(stored[1:2], drop={"js*": "its command is gone"})[0]


def test_renamed_row_fails_without_its_map(stored):
    today = {"JSON"}
    assert "json: today's questions have no such row" in violations(stored[:1], today=today)[0]
    assert violations(stored[:1], today=today, rows={"^json$": "JSON"}) == []


# --- numbers --------------------------------------------------------------------------------------


def places(stored, name):
    """The table and the key of a number of a row."""
    found = named(stored, name)["answer"]
    return {
        "json": lambda: (found["calls"][0]["out"], "value"),
        "array": lambda: (found["calls"][0][0]["epsilon"], 1),
        "csv": lambda: (found["left"]["table.csv"][1], "value"),
    }[name]()


@pytest.mark.parametrize("name", ["json", "array", "csv"])
def test_number_off_by_1e_7_fails(stored, name):
    table, key = places(stored, name)
    table[key] *= 1.0 - 1e-7
    assert len(violations([named(stored, name)])) == 1
    assert len(violations([named(stored, name)], "outward:1e-9")) == 1
    assert violations([named(stored, name)], "outward:1e-6") == []


def test_upper_bound_that_moves_inward_fails(stored):
    stored[0]["answer"]["calls"][0]["out"]["value"] *= 1.0 + 1e-12
    assert len(violations(stored[:1], "outward:1e-9")) == 1


@pytest.mark.parametrize(("name", "key"), [("json", "lower"), ("steps", "value")])
def test_lower_bound_keeps_its_end_when_renamed(stored, name, key):
    row = named(stored, name)
    after = copy.deepcopy([row])
    renamed = after[0]["answer"]["calls"][0]["out"]
    renamed["end"] = renamed.pop(key)
    before = row["answer"]["calls"][0]["out"]
    before[key] *= 1.0 + 1e-10
    renamed["end"] = type(before[key])(renamed["end"])
    assert violations([row], "outward:1e-9", keys={key: "end"}, replay=answers_of(after)) == []
    before[key] *= 1.0 - 2e-10
    assert violations([row], "outward:1e-9", keys={key: "end"}, replay=answers_of(after))


@pytest.mark.parametrize(("name", "key", "other"), [("json", "code", 1), ("error", "error_type", "UnsupportedError")])
def test_exit_code_or_error_type_that_changes_fails(stored, name, key, other):
    named(stored, name)["answer"]["calls"][0][key] = other
    assert len(violations([named(stored, name)])) == 1


# --- prose ----------------------------------------------------------------------------------------


def test_prose_fails_under_same_but_not_under_text(stored):
    row = named(stored, "text")
    row["answer"]["calls"][0]["out"] = row["answer"]["calls"][0]["out"].replace("1.994", "about 2")
    assert len(violations([row], "same")) == 1
    wrong, summary = compare([row], "text")
    assert wrong == []
    assert "data: 1 agree, 0 differ; prose: 0 agree, 1 differ" in summary


def test_text_that_is_gone_fails_under_text(stored):
    row = named(stored, "text")
    assert violations([row], replay=lambda rows: [({"calls": [{"code": 0, "out": "", "err": []}], "left": {}}, 0.0)])


# --- renames --------------------------------------------------------------------------------------


def test_option_or_command_needs_its_map(stored):
    new = copy.deepcopy(stored[:1])
    call = stored[0]["calls"][0]
    call[:] = ["eps", "normal", "--sigma", "2", "--rule", "exactly", "--delta", "1e-5", "--json"]
    assert violations(stored[:1])
    tables = {"commands": {"eps": "epsilon", "* normal": "* gaussian"}, "values": {"rule=exactly": "analytic"}}
    assert violations(stored[:1], options={"--sigma": "--noise-multiplier", "--rule": "--bound"}, **tables) == []
    assert violations(stored[:1], options={"--sigma": "--noise-multiplier"}, **tables)
    assert new[0]["calls"][0] == Renames(
        {"options": {"--sigma": "--noise-multiplier", "--rule": "--bound"}, **tables}
    ).call(call)


def test_json_key_needs_its_map(stored):
    found = stored[0]["answer"]["calls"][0]["out"]
    found["kind"] = found.pop("quantity")
    found["old"] = found["run"].pop("relation")
    assert len(violations(stored[:1])[0].splitlines()) == 5
    assert violations(stored[:1], keys={"kind": "quantity"})
    assert violations(stored[:1], keys={"kind": "quantity", "old": "run.relation"}) == []


def test_added_or_removed_key_is_reported(stored):
    found = stored[0]["answer"]["calls"][0]["out"]
    found["run"]["gone"] = 1
    del found["schema"]
    assert len(violations(stored[:1])[0].splitlines()) == 3
    assert violations(stored[:1], removed={"run.gone": "is implied"}, added={"schema": "of the new format"}) == []
    with pytest.raises(ValueError, match="without a reason"):
        violations(stored[:1], removed={"run.gone": ""})


def test_input_file_and_table_are_renamed(stored):
    row = named(stored, "csv")
    row["files"]["grid.json"] = row["files"]["grid.json"].replace("noise_multiplier", "z")
    for line in row["answer"]["left"]["table.csv"]:
        line["z"] = line.pop("noise_multiplier")
    assert violations([row])
    assert violations([row], keys={"z": "noise_multiplier"}) == []


def test_python_name_needs_its_map(stored):
    row, error = named(stored, "array"), named(stored, "error")
    row["calls"][0].update(call="eps_column", keywords={"noise": [1.0, 2.0], "delta": 1e-5})
    error["answer"]["calls"][0]["error_type"] = "BadParameter"
    python = {"eps_column": "epsilons", "noise": "noise_multiplier", "BadParameter": "InvalidParameterError"}
    assert len(violations([row, error])) == 2
    assert violations([row, error], python=python) == []


@pytest.mark.parametrize("section", ["commands", "options", "values", "keys", "python", "rows", "removed", "added"])
def test_unused_rename_fails(stored, section):
    tables = {section: {"never-there": "anything"}}
    assert violations(stored[:1], **tables) == [f"rename: [{section}] never-there was not used"]


def test_renamed_ledger_has_hash_chain_of_its_own():
    ledger = (Path(__file__).parents[2] / "examples/ledger.jsonl").read_text()
    renamed = Renames({"keys": {"phase": "stage"}}).file("book", ledger)
    assert '"stage"' in renamed
    assert Renames({"keys": {"stage": "phase"}}).file("book", renamed) == ledger


def test_renamed_toml_reads_back_with_new_keys():
    text = 'delta = 1e-5\n[[phase]]\nold = [1, 2]\nevent = { type = "A" }\n[grid]\nold = ["x"]\n'
    renamed = tomllib.loads(Renames({"keys": {"old": "new"}, "values": {"type=A": "B"}}).file("run.toml", text))
    assert renamed == {"delta": 1e-5, "phase": [{"new": [1, 2], "event": {"type": "B"}}], "grid": {"new": ["x"]}}
