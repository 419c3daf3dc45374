"""The command ``privproj filter`` agrees with the filter in Python."""

import json
import re

import pytest
from privproj_cli.explain import entries, word_groups

from privproj import Gaussian
from privproj.assumptions import Requirement
from privproj.contrib.filters import Filter
from privproj.io.run_file import from_data
from tests.differential.command_line_rules import call
from tests.differential.command_lines import Case

GAUSSIAN = {"mechanism": "gaussian", "noise_multiplier": 2}


def plan(*noise, done=()):
    """Return a run file with planned Gaussian releases after those that are done."""
    later = [{**GAUSSIAN, "noise_multiplier": z, "planned": True, "name": f"p{i}"} for i, z in enumerate(noise)]
    return {"phase": [*({**GAUSSIAN, "noise_multiplier": z} for z in done), *later]}


def filtered(data, epsilon, *order):
    case = Case(
        ("filter", "a.json", "--epsilon", str(epsilon), "--delta", "1e-5", *order),
        {"a.json": json.dumps(data).encode()},
    )
    shown, spoken = call(Case((*case.arguments, "--json"), case.files)), call(case)
    assert shown.code == spoken.code
    return shown.code, json.loads(shown.out) if shown.out else None, " ".join((spoken.out + shown.err).split())


@pytest.mark.parametrize(("done", "noise"), [((), (2.0, 2.0)), ((4.0,), (2.0, 2.0)), ((), (2.0, 5.0))])
def test_filter_command_equals_filter(done, noise):
    epsilon = 3.6
    code, shown, text = filtered(plan(*noise, done=done), epsilon)
    first = from_data(plan(*noise, done=done)).phases[0]
    budget = Filter.for_releases(first, epsilon=epsilon, delta=1e-5)
    for z in done:
        budget.spend(Gaussian(noise_multiplier=z))
    assert (
        shown["filter"] == budget.parameters() and shown["epsilon_to_report"] == budget.epsilon(1e-5).value <= epsilon
    )
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
    assert Requirement.FIXED_FILTER in shown["requirements"] and Requirement.FIXED_SCHEDULE not in shown["requirements"]
    assert text.startswith("budget spent = ") and "report: epsilon 3.600, whenever the run stops" in text


def test_filter_command_order_ignores_later_phases():
    orders = {filtered(plan(*later, done=(3.0,)), 4)[1]["filter"]["order"] for later in ((), (2.5,), (40.0, 9.0))}
    assert len(orders) == 1
    assert filtered(plan(done=(3.0,)), 4, "--order", "5.5")[1]["filter"]["order"] == 5.5


def test_filter_command_rejects_overspent_phases():
    code, _, output = filtered(plan(done=(3.0, 0.2)), 1)
    assert code == 3 and "is done but exceeds the budget" in output and "the filter has no guarantee" in output
    code, _, output = filtered(plan(2.0), 1, "--order", "1.5")
    assert code == 3 and "leaves no budget" in output


def test_filter_labels_have_explanations(run, tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(plan(3.0)))
    groups = word_groups()
    text = run(f"filter {path} --epsilon 4 --delta 1e-5 -v")[1]
    labels = re.findall(r"^  ([a-z]+(?: [a-z]+)?): ", text, re.MULTILINE)
    assert {"report", "order", "filter", "fixed plan"} <= set(labels)
    assert all(entries(groups, label) for label in ("report", "filter", "fixed plan"))
