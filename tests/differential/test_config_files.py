"""Defects of files keep the law of :mod:`tests.differential.config_files`, and this law can fail."""

import pytest
from hypothesis import HealthCheck, given, settings

from privproj.run import RUN_PARAMETERS
from tests.differential.config_files import File, check_defects, defective_files, outcome_of_defect
from tests.differential.report import Report

OUTCOMES = ("removed: changed", "removed: error", "doubled: error", "mistyped: error", "unknown: error")


@pytest.mark.parametrize(
    ("examples", "most"),
    [pytest.param(14, 4, marks=pytest.mark.full), pytest.param(170, 6, marks=pytest.mark.slow)],
)
def test_config_file_defects_change_result_or_fail(examples, most):
    report = Report()

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck), print_blob=False)
    @given(defective_files(most))
    def test(example):
        check = check_defects(example)
        report.add(check)
        check.raise_first()

    test()
    assert all(report.totals[outcome] >= 3 for outcome in OUTCOMES), report.totals


def test_config_file_rule_detects_dropped_and_coerced_keys(monkeypatch):
    gaussian = {"mechanism": "gaussian", "noise_multiplier": 2}
    entry = [*gaussian.items(), ("batch_size", 2), ("dataset_size", 9), ("epochs", 3), ("group_size", 2)]
    file = File("run", "json", [], [entry])
    before = file.result[1]
    without = file.changed(0, entry[:-1])
    spelled = file.changed(0, [*entry, ("noise-multiplier", 2)])
    planned = file.changed(0, [*entry, ("planned", "false")])
    assert outcome_of_defect(file, before, "removed", "group_size", without) == "changed"
    assert outcome_of_defect(file, before, "doubled", "noise_multiplier", spelled) == "error"
    assert outcome_of_defect(file, before, "mistyped", "planned", planned) == "error"

    without_group = {name: value for name, value in RUN_PARAMETERS.items() if name != "group_size"}
    monkeypatch.setattr("privproj.run.RUN_PARAMETERS", without_group)
    monkeypatch.setattr(
        "privproj.accounting.config.with_unique_keys",
        lambda entry, where: {k.replace("-", "_"): entry[k] for k in entry},
    )
    monkeypatch.setattr("privproj.accounting.config.check_type", lambda name, value, text: value)
    assert outcome_of_defect(file, file.result[1], "removed", "group_size", without).startswith("the same result")
    assert outcome_of_defect(file, before, "doubled", "noise_multiplier", spelled).startswith("accepted")
    assert outcome_of_defect(file, before, "mistyped", "planned", planned).startswith("accepted")
