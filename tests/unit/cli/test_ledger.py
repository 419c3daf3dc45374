"""Plans: what is spent, what is left, what would exceed."""

import json

import pytest

from privproj import Filter, Gaussian
from privproj.assumptions import FILTER_FIXED_IN_ADVANCE, PLAN_FIXED_IN_ADVANCE
from privproj.io.run_file import from_data
from tests.differential.command_line_laws import call
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
    shown, spoken = call(Case((*case.words, "--json"), case.files)), call(case)
    assert shown.code == spoken.code
    return shown.code, json.loads(shown.out), " ".join(spoken.out.split())


@pytest.mark.parametrize(("done", "noise"), [((), (1.6, 1.6)), ((3.0,), (1.9, 1.9)), ((), (1.6, 4.0))])
def test_planned_phases_fit_together_or_not_at_all(done, noise):
    together = from_data(plan(*noise, done=done)).epsilon(delta=1e-5).value
    alone = [from_data(plan(z, done=done)).epsilon(delta=1e-5).value for z in noise]
    code, shown, text = remaining(plan(*noise, done=done), max(alone) * 1.01)
    assert max(alone) * 1.01 < together and code == 4 and not shown["fits"]
    assert [entry["would_exceed"] for entry in shown["phases"]] == [False, True]
    assert shown["phases"][1]["after"][-1] == "p0" and "would exceed" in text
    assert shown["epsilon_planned"] == pytest.approx(together, rel=1e-9, abs=0)
    code, shown, text = remaining(plan(*noise, done=done), together * 1.01)
    assert code == 0 and shown["fits"] and [entry["would_exceed"] for entry in shown["phases"]] == [False, False]


def test_remaining_says_what_it_rests_on():
    for data in (plan(3.0), plan(done=(3.0,)), plan(3.0, done=(3.0,))):
        _, shown, text = remaining(data, 3)
        assert PLAN_FIXED_IN_ADVANCE in shown["assumes"] and PLAN_FIXED_IN_ADVANCE in text
        assert {"bound", "status", "relation", "promises", "warnings"} <= set(shown)


BINS = pytest.param({"sampling": "balls-in-bins", "batches": 20}, marks=pytest.mark.full)


@pytest.mark.parametrize("run", [BINS, {"sampling": "partition"}], ids=str)
def test_what_is_left_of_epochs_is_said_in_epochs(run):
    data = {"phase": [{**GAUSSIAN, "noise_multiplier": 6, **run}]}
    code, shown, text = remaining(data, 1.0)
    more = shown["phases"][0]["more_steps"]
    assert code == 0 and shown["phases"][0]["unit"] == "epochs" and f"{more} more epochs fit" in text
    data["phase"].append({**data["phase"][0], "steps": more})
    assert from_data(data).epsilon(delta=1e-5).value <= 1.0


def test_a_planned_phase_is_not_spent():
    spent = remaining(plan(2.0, done=(3.0,)), 9)[1]
    assert spent["epsilon_spent"] == from_data(plan(done=(3.0,))).epsilon(delta=1e-5).value < spent["epsilon_planned"]
    assert remaining(plan(2.0), 9)[1]["epsilon_spent"] == 0.0


# --- filters ----------------------------------------------------------------------------------------


def adaptively(data, epsilon, *order):
    case = Case(
        ("remaining", "a.json", "--epsilon", str(epsilon), "--delta", "1e-5", "--adaptive", *order),
        {"a.json": json.dumps(data).encode()},
    )
    shown, spoken = call(Case((*case.words, "--json"), case.files)), call(case)
    assert shown.code == spoken.code
    return shown.code, json.loads(shown.out) if shown.out else None, " ".join((spoken.out + shown.err).split())


@pytest.mark.parametrize(("done", "noise"), [((), (2.0, 2.0)), ((4.0,), (2.0, 2.0)), ((), (2.0, 5.0))])
def test_what_a_filter_leaves_is_what_the_filter_says(done, noise):
    epsilon = 3.6
    code, shown, text = adaptively(plan(*noise, done=done), epsilon)
    first = from_data(plan(*noise, done=done)).phases[0]
    budget = Filter.for_releases(first, epsilon=epsilon, delta=1e-5)
    for z in done:
        budget.spend(Gaussian(noise_multiplier=z))
    assert shown["filter"] == budget.parameters() and shown["epsilon_to_quote"] == budget.epsilon(1e-5).value <= epsilon
    assert shown["epsilon_spent"] == budget.epsilon_of_spent(1e-5)
    for entry, z in zip(shown["phases"], noise, strict=True):
        release = Gaussian(noise_multiplier=z)
        assert entry["more_steps"] == budget.most_steps(release)
        assert entry["would_exceed"] == (not budget.fits(release))
        if not entry["would_exceed"]:
            budget.spend(release)
    assert (code == 0) == shown["fits"] == (not any(entry["would_exceed"] for entry in shown["phases"]))
    assert shown["epsilon_planned"] > shown["epsilon_of_fixed_plan"]
    assert shown["epsilon_of_fixed_plan"] == from_data(plan(*noise, done=done)).epsilon(delta=1e-5).value
    assert FILTER_FIXED_IN_ADVANCE in shown["assumes"] and PLAN_FIXED_IN_ADVANCE not in shown["assumes"]
    assert f"name --order {shown['filter']['order']:g}" in text and "quote: epsilon 3.600" in text


def test_no_later_phase_changes_the_order_of_a_filter():
    orders = {adaptively(plan(*later, done=(3.0,)), 4)[1]["filter"]["order"] for later in ((), (2.5,), (40.0, 9.0))}
    assert len(orders) == 1
    assert adaptively(plan(done=(3.0,)), 4, "--order", "5.5")[1]["filter"]["order"] == 5.5


def test_what_was_done_above_a_filter_is_refused():
    code, _, said = adaptively(plan(done=(3.0, 0.2)), 1)
    assert code == 3 and "though it was done" in said and "guarantees nothing" in said
    code, _, said = adaptively(plan(2.0), 1, "--order", "1.5")
    assert code == 3 and "leaves no budget" in said
