"""Curves and pictures of every bound."""

import json

import pytest
from helpers import needs
from privproj_cli.main import exit_code


@pytest.mark.parametrize("style", ["table", "csv", "json"])
@pytest.mark.parametrize("what", ["delta", "trade-off"])
def test_curve_prints_every_bound(capsys, style, what):
    line = (
        "curve m2 --dim 64 --rank 4 --noise-multiplier 1 --change-rank 3 --bound rank-free --bound beta-tail --points 7"
    )
    assert exit_code([*line.split(), "--style", style, "--what", what]) == 0
    out = capsys.readouterr().out
    if style == "json":
        results = json.loads(out)["results"]
        assert [r["bound"] for r in results] == ["rank-free", "beta-tail"] and len(next(iter(results[0].values()))) == 9
    else:
        lines = out.split("\n  bound: ")[0].splitlines()
        assert "rank-free" in out and "beta-tail" in out and len(lines) == (9 if style == "table" else 8)
        assert style == "csv" or "for each bound" in lines[0]


@pytest.mark.parametrize(
    ("run", "text"),
    [
        ("--sampling shuffle", "shuffled batches"),
        ("--sampling fixed --sampling-rate .1 --steps 1", "replace"),
        ("", ""),
    ],
)
def test_curve_prints_warnings_of_its_run(run, text, capsys):
    assert exit_code(f"curve gaussian --noise-multiplier 5 --points 2 {run}".split()) == 0
    warned = capsys.readouterr().err
    assert warned.count("warning: The neighboring relation is") == bool(text) and text in warned


@pytest.mark.parametrize("what", ["delta", "trade-off"])
def test_printed_points_are_rounded_to_safe_side(what, capsys):
    line = ["curve", "gaussian", "--noise-multiplier", "2", "--points", "8", "--what", what]
    assert exit_code(line) == 0
    printed = [float(row.split()[-1]) for row in capsys.readouterr().out.splitlines()[2:10]]
    assert exit_code([*line, "--style", "csv"]) == 0
    points = [float(row.split(",")[1]) for row in capsys.readouterr().out.splitlines()[1:]]
    sign = 1.0 if what == "delta" else -1.0
    assert len(points) == 8 and all(sign * shown >= sign * point for shown, point in zip(printed, points, strict=True))
    assert printed == pytest.approx(points, rel=1.1e-3, abs=0)


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_pictures(tmp_path, ending):
    needs("matplotlib")
    path = tmp_path / f"curve.{ending}"
    line = f"curve gaussian --noise-multiplier 1 --bound all --points 9 --plot {path}"
    assert exit_code(line.split()) == 0
    assert path.stat().st_size > 5000
    assert exit_code(line.replace(ending, "jpg").split()) == 2


GDP = "curve gaussian --noise-multiplier 2 --steps 16 --what gdp"


@pytest.mark.parametrize("style", ["table", "csv", "json"])
def test_curve_mu_has_slack_and_regret(capsys, style):
    assert exit_code([*GDP.split(), "--bound", "analytic", "--bound", "rdp", "--style", style]) == 0
    out = capsys.readouterr().out
    if style == "json":
        exact, loose = json.loads(out)["results"]
        assert exact["quantity"] == "gdp_mu" and exact["delta"] == 1e-9 and exact["numerics"]["regret"] == 0.0
        assert exact["value"] == pytest.approx(2.0, rel=1e-14, abs=0) and loose["value"] > 2.0
    elif style == "csv":
        rows = [line.split(",") for line in out.splitlines()]
        assert rows[0][2:] == ["mu", "slack", "exact_from", "regret"] and float(rows[1][2]) >= 2.0
    else:
        assert "regret" in out and "2.001" in out and "for every prior" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (f"{GDP} --points 3", 2, "--points must be omitted with --what gdp"),
        (f"{GDP} --delta 1", 2, "--delta must be a number from 0 to below 1"),
        ("curve gaussian --noise-multiplier 2 --delta 1e-5", 2, "--delta must be omitted with --what delta"),
        ("curve m2 --dim 9 --rank 2 --noise-multiplier 2 --what gdp --delta 0", 3, "Use a slack above 0"),
        ("curve m2 --dim 64 --rank 60 --noise-multiplier 0.01 --what gdp", 4, ""),
    ],
)
def test_slack_has_its_domain(capsys, arguments, code, sentence):
    assert exit_code(arguments.split()) == code
    assert sentence in capsys.readouterr().err


def test_all_bounds_that_have_mu_print_it(capsys):
    assert exit_code([*GDP.split(), "--bound", "all", "--style", "csv"]) == 0
    names = [line.split(",")[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert {"analytic", "two-sided", "rdp", "zcdp", "gdp"} <= set(names)


@pytest.mark.parametrize("bound", [(), ("--bound", "all")])
def test_curve_error_for_unsound_mechanism_has_reason(bound, capsys):
    assert exit_code(["curve", "wishart-matrix", "--dim", "8", "--rank", "4", "--columns", "2", *bound]) == 3
    output = capsys.readouterr()
    assert output.out == "" and "no bound of wishart-matrix is a guarantee" in output.err
