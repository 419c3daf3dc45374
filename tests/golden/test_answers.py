"""The golden answers can tell: a sample agrees with itself, and three planted changes are seen (negative controls)."""

import sys

import pytest
from helpers import needs

from privproj import M2
from privproj.numerics import interval as enclosure
from tests.golden.answers import answer, differences
from tests.golden.questions import rows

SAMPLE = [row for i, row in enumerate(rows(("settings",))) if i % 97 == 0] + rows(("ledgers",))[-1:]
LOOSE = next(row for row in rows(("settings",)) if row.name.startswith("epsilon m2 --bound rank-free --dim 2048"))


def seen(row, rule, before):
    return differences(before, answer(row), rule)


@pytest.mark.parametrize("row", SAMPLE, ids=lambda row: row.name)
def test_a_row_is_answered_alike_when_it_is_asked_again(row):
    assert seen(row, "same", answer(row)) == []


def replace_everywhere(monkeypatch, name, old, new):
    """In every module that has imported it."""
    for module in [m for key, m in sys.modules.items() if key.startswith(("privproj", "tests"))]:
        if getattr(module, name, None) is old:
            monkeypatch.setattr(module, name, new)


def test_a_margin_that_is_doubled_is_seen_and_moves_outward(monkeypatch):
    before = answer(LOOSE)
    old = enclosure.FUNCTION_RELATIVE_ERROR
    replace_everywhere(monkeypatch, "FUNCTION_RELATIVE_ERROR", old, 2.0 * old)
    assert seen(LOOSE, "same", before) and seen(LOOSE, "text", before)
    assert seen(LOOSE, "outward:1e-9", before) == []


def test_a_word_of_an_assumption_that_changes_is_seen_as_text_alone(monkeypatch):
    before = answer(LOOSE)
    monkeypatch.setattr(M2, "assumes", (M2.assumes[0].replace("afresh", "anew"), *M2.assumes[1:]))
    assert seen(LOOSE, "same", before) and seen(LOOSE, "outward:1e-9", before)
    assert seen(LOOSE, "text", before) == []


def test_a_released_mean_that_is_off_by_1e_7_is_seen(monkeypatch):
    needs("torch", "sklearn")
    from privproj.training import release

    row = rows(("training",))[0]
    before = answer(row)
    assert seen(row, "same", before) == []
    plain = release.NoisySum.noisy_means
    moved = lambda *given: [mean * (1.0 + 1e-7) for mean in plain(*given)]  # noqa: E731
    monkeypatch.setattr(release.NoisySum, "noisy_means", moved)
    assert any("checkpoint" in line for line in seen(row, "same", before))
