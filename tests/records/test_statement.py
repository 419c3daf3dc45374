"""Statements say what is protected, by which promise, and what is not."""

import re

import pytest
from helpers import needs
from privproj_cli.main import exit_code

import privproj
from privproj import M2
from privproj.assumptions import ONE_RECORD_OF_A_PERSON

WISHART = "report wishart --dim 100 --delta 1e-5"


def test_statement_says_what_is_protected_and_what_is_not(capsys):
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
    mu = privproj.gdp_mu(M2(dim=256, rank=16, noise_multiplier=0.5), steps=100, sampling_rate=0.01).value
    named = float(" ".join(out.split()).split("at distance ")[1].split(",")[0])
    # rounded up, with room for what another machine may find
    assert mu * (1 + 2e-4) <= named <= mu * 1.011
    assert max(map(len, out.split("Every bound")[0].splitlines())) <= 100


@pytest.mark.parametrize("style", ["text", "markdown", "html"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_how_many_records_a_person_has_is_assumed_or_promised_and_never_a_fact(capsys, style, size):
    words = ("report", "gaussian", "--noise-multiplier", "9", "--steps", "2", "--delta", "1e-5", "--style", style)
    assert exit_code([*words, "--group-size", str(size)]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert (f"assumed of the data: {ONE_RECORD_OF_A_PERSON}" in said) == (size == 1)
    assert (f"promise on the data: one person contributes at most {size} records" in said) == (size > 1)
    assert (f"differ by at most {size} changes of this kind: one record added" in said) == (size > 1)
    facts = said.replace(ONE_RECORD_OF_A_PERSON, "").replace(f"one person contributes at most {size} records", "")
    assert not re.search(r"(?i)one person (has|contributes)", facts)
    assert "--group-size" in ONE_RECORD_OF_A_PERSON


def test_a_statement_as_a_page_holds_its_picture(tmp_path, capsys):
    needs("matplotlib")
    page = tmp_path / "statement.html"
    line = "report m2 --dim 256 --rank 16 --noise-multiplier 0.5 --sampling-rate 0.01 --steps 100 --delta 1e-5"
    assert exit_code([*line.split(), "-o", str(page)]) == 0
    text = page.read_text()
    assert text.startswith("<!doctype html>") and "<svg" in text and "src=" not in text
    assert "http" not in text.split("<svg")[0]
    assert exit_code([*line.split(), "--style", "markdown"]) == 0
    assert "## Privacy statement" in capsys.readouterr().out


@pytest.mark.full
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
