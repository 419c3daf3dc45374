"""Plans: what is spent, what is left, what would exceed."""

import json

import pytest

from privproj.assumptions import Requirement
from privproj.io.run_file import from_data
from tests.differential.command_line_rules import call
from tests.differential.command_lines import Case

GAUSSIAN = {"mechanism": "gaussian", "noise_multiplier": 2}


def plan(*noise, done=()):
    """Planned Gaussian releases after those done."""
    later = [{**GAUSSIAN, "noise_multiplier": z, "planned": True, "name": f"p{i}"} for i, z in enumerate(noise)]
    return {"phase": [*({**GAUSSIAN, "noise_multiplier": z} for z in done), *later]}


def remaining(data, epsilon):
    case = Case(
        ("remaining", "a.json", "--epsilon", str(epsilon), "--delta", "1e-5"), {"a.json": json.dumps(data).encode()}
    )
    shown, spoken = call(Case((*case.arguments, "--json"), case.files)), call(case)
    assert shown.code == spoken.code
    return shown.code, json.loads(shown.out), " ".join(spoken.out.split())


@pytest.mark.parametrize(("done", "noise"), [((), (1.6, 1.6)), ((3.0,), (1.9, 1.9)), ((), (1.6, 4.0))])
def test_remaining_counts_planned_phases_in_full(done, noise):
    together = from_data(plan(*noise, done=done)).epsilon(delta=1e-5).value
    alone = [from_data(plan(z, done=done)).epsilon(delta=1e-5).value for z in noise]
    code, shown, text = remaining(plan(*noise, done=done), max(alone) * 1.01)
    assert max(alone) * 1.01 < together and code == 4 and not shown["fits"]
    assert [entry["would_exceed"] for entry in shown["phases"]] == [False, True]
    assert shown["phases"][1]["after"][-1] == "p0" and "the planned steps exceed the budget" in text
    assert shown["epsilon_planned"] == pytest.approx(together, rel=1e-9, abs=0)
    code, shown, text = remaining(plan(*noise, done=done), together * 1.01)
    assert code == 0 and shown["fits"] and [entry["would_exceed"] for entry in shown["phases"]] == [False, False]


def test_remaining_lists_bound_and_assumptions():
    for data in (plan(3.0), plan(done=(3.0,)), plan(3.0, done=(3.0,))):
        _, shown, text = remaining(data, 3)
        assert Requirement.FIXED_SCHEDULE in shown["requirements"] and Requirement.FIXED_SCHEDULE.short in text
        assert {"bound", "status", "relation", "data_assumptions", "warnings"} <= set(shown)


BINS = pytest.param({"sampling": "balls-in-bins", "batches": 20}, marks=pytest.mark.full)


@pytest.mark.parametrize("run", [BINS, {"sampling": "partition"}], ids=str)
def test_remaining_counts_epochs_in_epochs(run):
    data = {"phase": [{**GAUSSIAN, "noise_multiplier": 6, **run}]}
    code, shown, text = remaining(data, 1.0)
    more = shown["phases"][0]["more_steps"]
    assert code == 0 and shown["phases"][0]["unit"] == "epochs" and f"{more} more epoch" in text
    data["phase"].append({**data["phase"][0], "steps": more})
    assert from_data(data).epsilon(delta=1e-5).value <= 1.0


def test_remaining_does_not_spend_planned_phases():
    spent = remaining(plan(2.0, done=(3.0,)), 9)[1]
    assert spent["epsilon_spent"] == from_data(plan(done=(3.0,))).epsilon(delta=1e-5).value < spent["epsilon_planned"]
    assert remaining(plan(2.0), 9)[1]["epsilon_spent"] == 0.0


@pytest.mark.parametrize(
    ("done", "planned", "epsilon", "warning"),
    [
        ((3.0,), (), 0.1, "The completed phases exceed the budget."),
        ((3.0,), (2.0,), 0.1, "The completed phases exceed the budget."),
        ((30.0,), (2.0,), 0.3, "The planned phases exceed the budget."),
        ((3.0,), (2.0,), 99, ""),
    ],
)
def test_remaining_warns_of_exceeded_budget(done, planned, epsilon, warning):
    code, shown, text = remaining(plan(*planned, done=done), epsilon)
    assert (code == 4) == bool(warning)
    warnings = [text for text in shown["warnings"] if "budget" in text]
    assert len(warnings) == bool(warning) and all(one.startswith(warning) and one in text for one in warnings)
