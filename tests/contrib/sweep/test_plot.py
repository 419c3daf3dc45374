"""Plots of sweeps: the plotted axis, a line for each combination of the other axes, and figures of the papers."""

import math

import pytest
from contrib.sweep.grids import table
from helpers import ROOT, needs

from privproj import InvalidParameterError
from privproj.contrib.sweep.plot import lines_of, plotted_axis, settings_of_axes
from privproj.contrib.sweep.sweep import grid_from, run_sweep
from privproj.io.files import read_data

FIXED = {"mechanism": "m2", "dim": 64, "noise_multiplier": 1.0, "delta": 1e-5, "change_rank": 2}
FIGURES = ("wishart-ranks", "m2-ranks", "early-ranks")


def grid(**axes):
    fixed = {name: value for name, value in FIXED.items() if name not in axes}
    return grid_from({**fixed, "grid": axes})


def test_plotted_axis_is_the_longest_axis_of_numbers():
    assert plotted_axis(grid(bound=["rank-free", "beta-tail", "gaussian"], rank=[4, 8])) == "rank"
    assert plotted_axis(grid(rank=[4, 8], noise_multiplier=[1.0, 2.0, 3.0])) == "noise_multiplier"
    with pytest.raises(InvalidParameterError, match="--plot"):
        plotted_axis(grid(bound=["rank-free", "gaussian"], rank=[4]))
    with pytest.raises(InvalidParameterError, match="9 lines"):
        plotted_axis(grid(rank=[*range(1, 10)], noise_multiplier=[1.0 + i for i in range(10)]))


def test_lines_are_the_values_of_the_table(tmp_path):
    of_ranks = grid(bound=["rank-free", "gaussian"], rank=[8, 4, 100])
    run_sweep(of_ranks, tmp_path / "out.csv")
    points, lines = lines_of(of_ranks, tmp_path / "out.csv")
    assert points == [4, 8, 100] and list(lines) == ["rank-free", "gaussian"]
    rows = {(row["bound"], int(row["rank"])): row["value"] for row in table(tmp_path / "out.csv")}
    for bound, values in lines.items():
        assert values[:2] == [float(rows[bound, rank]) for rank in (4, 8)]
        assert math.isnan(values[2])  # the rank exceeds the dimension
    assert settings_of_axes(points, lines)["yscale"] == "linear"


def test_axes_with_a_wide_range_are_logarithmic():
    settings = settings_of_axes([1, 1000], {"a": [1e-5, math.nan], "b": [1e-9, 1.0]})
    assert settings["xscale"] == settings["yscale"] == "log"
    assert settings["xlim"] == (1, 1000) and settings["ylim"][0] < 1e-9 < 1.0 < settings["ylim"][1]
    assert settings_of_axes([0, 1], {"a": [math.nan, math.nan]})["yscale"] == "linear"


@pytest.mark.parametrize("name", FIGURES)
def test_grids_of_figures_can_be_plotted(name):
    figure = grid_from(read_data(str(ROOT / "examples" / f"{name}.toml")))
    assert plotted_axis(figure) == "rank" and len(figure.axes["bound"]) == 3


def test_sweep_plot_writes_a_picture(run, tmp_path):
    needs("matplotlib")
    command = f"sweep {ROOT}/examples/m2-ranks.toml -o {tmp_path}/out.csv --plot {tmp_path}/out.svg"
    assert run(command)[0] == 0
    assert "<svg" in (tmp_path / "out.svg").read_text()
    published = {int(row["rank"]): float(row["value"]) for row in table(tmp_path / "out.csv")[:6]}
    # 1.0002e-5 is delta at epsilon 1, rank 16 (docs/papers.md, Theorem 5)
    assert published[16] == pytest.approx(1.0, rel=1e-4, abs=0) and published[1] < published[1024]
    assert run(command.replace(f"--plot {tmp_path}/out.svg", f"--plot {tmp_path}/out.csv"))[0] == 2
