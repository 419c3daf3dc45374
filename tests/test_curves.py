"""Curves, attack rates, pictures and statements."""

import json
import math

import pytest
from privproj_cli.main import exit_code
from scipy import stats

import privproj
from privproj import M2, Gaussian
from privproj.accounting.question import ask
from privproj.curves.tradeoff import advantage, profile_points, tradeoff, true_positive_rates

WISHART = "report wishart --dim 100 --delta 1e-5"


def curve_of(mechanism, **run):
    return ask(mechanism, None, run).curve()


def test_trade_off_of_the_gaussian_is_the_known_one_from_below():
    curve = curve_of(Gaussian(noise_multiplier=0.8))
    rates = [1e-4, 1e-3, 0.01, 0.1, 0.5, 0.9]
    for rate, found in zip(rates, tradeoff(curve, rates), strict=True):
        exact = stats.norm.cdf(stats.norm.ppf(1 - rate) - 1 / 0.8)
        assert exact * (1 - 2e-3) - 1e-4 <= found <= exact * (1 + 1e-12)
    assert advantage(curve) == pytest.approx(2 * stats.norm.cdf(0.5 / 0.8) - 1, rel=1e-9, abs=0)


def test_rates_are_consistent_with_the_profile():
    curve = curve_of(M2(dim=256, rank=16, noise_multiplier=0.5))
    found = true_positive_rates(curve, [0.001, 0.01, 0.1])
    assert found == sorted(found)
    for rate, hit in zip([0.001, 0.01, 0.1], found, strict=True):
        assert rate <= hit <= rate + advantage(curve)
        for eps, delta in zip([0.5, 1.0], profile_points(curve, [0.5, 1.0]), strict=True):
            assert hit <= math.exp(eps) * rate + delta + 1e-3


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
        assert "rank-free" in out and "beta-tail" in out and len(out.split("\nassumes: ")[0].splitlines()) == 8


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_pictures(tmp_path, ending):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"curve.{ending}"
    line = f"curve gaussian --noise-multiplier 1 --bound all --points 9 --plot {path}"
    assert exit_code(line.split()) == 0
    assert path.stat().st_size > 5000
    assert exit_code(line.replace(ending, "jpg").split()) == 2


def test_statement_says_what_is_protected_and_what_is_not(capsys, tmp_path):
    line = "report m2 --dim 256 --rank 16 --noise-multiplier 0.5 --sampling-rate 0.01 --steps 100 --delta 1e-5"
    value = privproj.epsilon(
        M2(dim=256, rank=16, noise_multiplier=0.5), delta=1e-5, steps=100, sampling_rate=0.01
    ).value
    assert exit_code(line.split()) == 0
    out = capsys.readouterr().out
    for words in ("differentially private", "one record added", "100, each on a poisson sample", "What is not covered"):
        assert words in " ".join(out.split())
    stated = float(out.split("epsilon is at most ")[1].split()[0])
    assert value <= stated <= value * 1.01
    assert max(map(len, out.split("Every bound")[0].splitlines())) <= 100
    page = tmp_path / "statement.html"
    assert exit_code([*line.split(), "-o", str(page)]) == 0
    text = page.read_text()
    assert text.startswith("<!doctype html>") and "<svg" in text and "src=" not in text
    assert "http" not in text.split("<svg")[0]
    assert exit_code([*line.split(), "--style", "markdown"]) == 0
    assert "## Privacy statement" in capsys.readouterr().out


def test_statement_of_a_promise_names_it(capsys):
    assert (
        exit_code(["report", "wishart", "--dim", "100", "--rank", "9", "--misalignment", "1e-6", "--delta", "1e-5"])
        == 0
    )
    out = " ".join(capsys.readouterr().out.split())
    assert "promise on the data" in out and "which the mechanism does not enforce" in out


def test_no_statement_without_a_guarantee(capsys):
    assert exit_code(f"{WISHART} --rank 1 --misalignment 0.1".split()) == 4
    assert "No guarantee" in capsys.readouterr().out
