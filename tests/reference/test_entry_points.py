"""Test that a query has one result from Python, the command line, a run file and an entry of a regression file."""

import json

import pytest
from helpers import full_if
from reference.settings import REFUTED, Setting, settings

import privproj
from privproj import PrivprojError
from privproj.accounting.config import evaluate_entry
from privproj.accounting.query import Composition
from privproj.io.run_file import from_data
from privproj.result import Result, as_plain_value

# fields that must be equal for all entry points
FACTS = (
    "value",
    "lower",
    "side",
    "outcome",
    "status",
    "data_assumptions",
    "epsilon",
    "delta",
    "log10_delta",
    "warnings",
)
# settings that take a second or more
COSTLY = ("m1.", "m2.mixture", "m2.good", "m2.beta", "wishart.e", "jl-clip", "steps=", "rate=")


def facts(result):
    """Return all fields about the number of a result, or the kind of an error."""
    if isinstance(result, PrivprojError):
        return type(result).__name__
    if isinstance(result, Result):
        result = {**result.as_dict(), "requirements": result.requirements}
    else:
        result["requirements"] = dict.fromkeys((*result["mechanism"]["requirements"], *result["run"]["requirements"]))
    return as_plain_value({**{name: result[name] for name in FACTS}, "requirements": sorted(result["requirements"])})


def result_or_error(evaluate):
    try:
        return evaluate()
    except PrivprojError as error:
        return error


def from_run_file(query, entry):
    target = "delta" if query == "epsilon" else "epsilon"
    schedule = from_data({"phase": [{name: value for name, value in entry.items() if name != target}]})
    return getattr(schedule, query)(**{target: entry[target]})


def arguments_of(query, entry):
    options = [f"--{name.replace('_', '-')} {value}" for name, value in entry.items() if name != "mechanism"]
    return " ".join([query, entry["mechanism"], *options, "--json"])


def lists_of_files(entry):
    """Return the entry with a layer under the name and in the type of files."""
    return {("layer" if name == "layers" else name): value for name, value in entry.items()}


def selected(quick):
    return [s for s in settings(quick) if s.has_every_entry_point and s.bound not in REFUTED]


def check_entry_points(setting, run):
    query, entry = setting.as_entry()
    entry = lists_of_files(entry)
    python = facts(result_or_error(lambda: privproj.evaluate(setting.quantity, **dict(setting.parameters))))
    entry_points = {
        "run file": lambda: from_run_file(query, entry),
        "entry": lambda: evaluate_entry(query, entry),
    }
    for name, evaluate in entry_points.items():
        assert facts(result_or_error(evaluate)) == python, name
    code, out, err = run(arguments_of(query, entry))
    if isinstance(python, str):
        assert code in (2, 3, 5) and err.startswith("error: ")
    else:
        assert facts(json.loads(out)) == python, "command line"


@pytest.mark.parametrize("setting", full_if(selected(quick=True), lambda s: any(w in str(s) for w in COSTLY)), ids=str)
def test_entry_points_agree_on_one_setting_per_bound(setting, run):
    check_entry_points(setting, run)


@pytest.mark.slow
@pytest.mark.parametrize("setting", selected(quick=False), ids=str)
def test_entry_points_agree_on_every_setting(setting, run):
    check_entry_points(setting, run)


RUN = {"dim": 64, "rank": 4, "noise_multiplier": 1, "sampling_rate": 0.01, "steps": 50, "delta": 1e-5}
SAMPLED = Setting("m2.mixture-rdp.epsilon", tuple(RUN.items()))


def test_entry_points_test_detects_smaller_value(run, monkeypatch):
    check_entry_points(SAMPLED, run)
    plain = Composition.epsilon
    monkeypatch.setattr(Composition, "epsilon", lambda self, *, delta: plain(self, delta=1.001 * delta))
    with pytest.raises(AssertionError, match="run file"):
        check_entry_points(SAMPLED, run)
