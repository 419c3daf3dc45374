"""Compare every bound with its mpmath reference: the quick settings always, all of them under ``slow``."""

import json
import sys

import mpmath as mp
import pytest
from helpers import ROOT, full_if, slow_if

from privproj import reference
from privproj.mechanisms.registry import bound_names

sys.path.append(str(ROOT / "benchmarks"))

from reference.settings import WITHOUT, settings
from reference_suite import RESULTS, Row, compared, margins, table, truth

# references of ten seconds and more; the normal run reads them from the stored results
STORED = ("m1.secret-projection", "wishart.early-exact-tail")

CLOSE = 1e-9
ROUNDED = {"rule.basic-composition": 1e-15, "rule.advanced-composition": 1e-15}


def allowed(setting):
    return next((error for start, error in reference.LOOSE.items() if str(setting).startswith(start)), CLOSE)


def lawful(row, setting):
    """Return whether ``lower <= reference <= value``, and whether they are close enough."""
    if row.error is None:
        return row.outcome != "ok" or row.value == float("inf")
    safe = row.margin >= -ROUNDED.get(row.bound, 0.0) and (row.below is None or row.below >= 0.0)
    return safe and row.error <= allowed(setting)


# settings whose reference takes longest, in the full run
SECONDS = ("m1.", "m2.mixture", "m2.rank-free", "m2.good", "wishart.exact", "wishart.early", "sketch-public.rank")


@pytest.mark.parametrize("setting", full_if(settings(quick=True), lambda s: str(s).startswith(SECONDS)), ids=str)
def test_reference_quick_settings(setting):
    rows = json.loads(RESULTS.read_text())["rows"] if setting.bound in STORED else []
    row = compared(setting, next((row["reference"] for row in rows if row["setting"] == str(setting)), None))
    assert row.reference is not None
    assert lawful(row, setting), row


@pytest.mark.slow
@pytest.mark.parametrize("setting", settings(), ids=str)
def test_reference_every_setting(setting):
    row = compared(setting)
    if row.reference is None:
        pytest.skip("the reference takes too long here")
    assert lawful(row, setting), row


def test_reference_covers_every_bound():
    bounds = {f"{mechanism}.{name}" for mechanism, name in bound_names()}
    assert bounds - {setting.bound for setting in settings()} == set(WITHOUT)
    assert bounds - {setting.bound for setting in settings(quick=True)} == set(WITHOUT)
    assert bounds - {*reference.DELTAS, *reference.EPSILONS} == set(WITHOUT)


def test_reference_has_at_least_300_settings():
    assert len(settings()) >= 300
    assert len({str(setting) for setting in settings()}) == len(settings())


def test_reference_detects_unsafe_and_loose_values():
    setting = settings(quick=True)[0]
    with mp.workdps(30):
        for value in (1 - 1e-12, 1 + 1e-6):
            margin, below = margins(mp.mpf(1), value, 0.5, None)
            row = Row("", setting.bound, "ok", "1", value, 0.5, None, abs(margin), margin, below)
            assert not lawful(row, setting)


def test_reference_table_names_worst_setting():
    rows = [
        Row("g.a.delta x=1", "g.a", "ok", "1", 1.1, 0.9, None, 0.1, 0.1, 0.1),
        Row("g.a.delta x=2", "g.a", "ok", "1", 1.2, 0.9, None, 0.2, 0.2, 0.1),
        Row("g.a.delta x=3", "g.a", "unsupported"),
    ]
    assert table(rows).splitlines()[-1] == "| g.a | 3 | 2 | 50 | 1 | 2.0e-01 | 1.0e-01 | 1.0e-01 | .delta x=2 |"


QUICK = [
    row
    for row in json.loads(RESULTS.read_text())["rows"]
    if row["reference"] not in (None, "+inf") and row["seconds"] < 0.15
]


@pytest.mark.full
@pytest.mark.parametrize("bound", slow_if(sorted({row["bound"] for row in QUICK}), lambda b: b == "m2.mixture-rdp"))
def test_reference_stored_values_are_current(bound):
    by_name = {str(setting): setting for setting in settings()}
    for row in (row for row in QUICK if row["bound"] == bound):
        setting = by_name[row["setting"]]
        digits = reference.reference_digits(setting.quantity, dict(setting.parameters))
        with mp.workdps(60):
            now, then = mp.mpf(truth(setting)), mp.mpf(row["reference"])
            assert abs(now - then) <= abs(then) * mp.mpf(10) ** (2 - digits)
