"""Results of ``epsilons``, ``sigmas``, ``compare`` and ``choose`` as data frames: one row for each."""

import pytest
from helpers import needs

import privproj
from privproj import M2

pytestmark = pytest.mark.extra

COLUMNS = {
    "epsilons": lambda: privproj.epsilons(M2, dim=2048, rank=[4, 16], noise_multiplier=[[0.5], [1.0]], delta=1e-5),
    "sigmas": lambda: privproj.sigmas(M2, dim=2048, rank=[4, 16], epsilon=1.0, delta=1e-5),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_data_frame_of_columns_has_values_and_parameters(name):
    pandas, column = needs("pandas"), COLUMNS[name]()
    frame = pandas.DataFrame(column.to_dict())
    wanted = column.value.ravel().tolist()
    assert frame[column.quantity].tolist() == wanted and frame["rank"].tolist() == [4, 16] * (len(wanted) // 2)
    assert set(frame["outcome"]) == {"ok"} and set(frame["bound"]) == {"rank-free"}


def test_data_frame_of_comparison_has_a_row_for_each_bound():
    pandas, rows = needs("pandas"), privproj.compare(M2(dim=2048, rank=16, noise_multiplier=0.5), delta=1e-5)
    frame = pandas.DataFrame(rows.to_dict())
    assert frame["bound"].tolist() == [row.bound.name for row in rows]
    assert frame["epsilon"].dropna().tolist() == [row.result.value for row in rows if row.result and row.result.value]
    assert (frame["epsilon"].isna() == (frame["reason"] != "")).all()


def test_data_frame_of_choices_has_a_row_for_each_algorithm():
    pandas, rows = needs("pandas"), privproj.choose(layers="64x4", epsilon=1.0, delta=1e-5)
    frame = pandas.DataFrame(rows.to_dict())
    assert len(frame) == len(rows) > 1
    assert frame["noise_multiplier"].tolist() == [row.result.value for row in rows]
