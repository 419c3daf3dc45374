"""Statements state the protection, its assumptions and its limits."""

import math
import re
from hashlib import sha256
from statistics import NormalDist

import pytest
from helpers import needs
from privproj_cli.main import exit_code
from unit.io.ledgers import spend

import privproj
from privproj import M2
from privproj.assumptions import Requirement
from privproj.contrib.statement.command import written
from privproj.contrib.statement.statement import sections, statement_from, verify_statement
from privproj.errors import InvalidParameterError
from privproj.io.ledger import read_ledger
from privproj.result import round_outward

WISHART = "report wishart --dim 100 --delta 1e-5"


def test_statement_states_the_scope_of_protection(capsys):
    line = "report m2 --dim 256 --rank 16 --noise-multiplier 0.5 --sampling-rate 0.01 --steps 100 --delta 1e-5"
    value = privproj.epsilon(
        M2(dim=256, rank=16, noise_multiplier=0.5), delta=1e-5, steps=100, sampling_rate=0.01
    ).value
    assert exit_code(line.split()) == 0
    out = capsys.readouterr().out
    for sentence in ("differentially private", "one record added", "100 releases, Poisson", "What is not covered"):
        assert sentence in " ".join(out.split())
    stated = float(out.split("epsilon is at most ")[1].split()[0])
    assert value <= stated <= value * 1.01
    assert max(map(len, out.split("\n{")[0].splitlines())) <= 100


def test_statement_prints_layers_in_input_format(capsys):
    """They stood there as Python prints a list of texts."""
    line = "report m2 --layer 96x8x2 --layer 64x4 --noise-multiplier 1 --delta 1e-5"
    assert exit_code(line.split()) == 0
    assert "layers 96x8x2 + 64x4x1, clipping joint" in " ".join(capsys.readouterr().out.split())


def section(statement, title):
    """The lines of a statement under a heading."""
    (found,) = [part for part in sections(statement) if part.title.startswith(title)]
    return found.lines


def requested(z, **run):
    """The data of a statement about one Gaussian release."""
    return {"run": {"phase": [{"mechanism": "gaussian", "noise_multiplier": z, **run}]}}


def of_gaussian(z, delta=1e-5, **run):
    """The statement of one Gaussian release."""
    return statement_from(requested(z, **run), delta, "text")


@pytest.mark.parametrize("relation", ["add-remove", "replace", "zero-out"])
@pytest.mark.parametrize("size", [1, 3])
def test_statement_states_relation_and_adversary(relation, size):
    first, second, third = section(of_gaussian(9.0, relation=relation, group_size=size), "What is protected")
    assert [part.count(". ") for part in (first, second, third)] == [3, 1, 2]
    assert ("every record" if size == 1 else "every user with at most 3 records") in first
    assert {"add-remove": "or not", "replace": "instead", "zero-out": "counted as zero"}[relation] in first
    assert "an attacker" in second and "every release" in second and "not the secret random numbers" in second
    assert "The statement does not protect such facts." in third and '"What it depends on"' in third


@pytest.mark.parametrize("z", [0.05, 0.3, 1.0, 4.0, 300.0])
def test_statement_attack_limits_exceed_gaussian_attack(z):
    """The likelihood ratio test of two normal variables at distance 1/z, by the standard library."""
    normal, found = NormalDist(), of_gaussian(z)
    attacks = " ".join(section(found, "Limits of any attack"))
    output = re.findall(r"one false alarm in (\d+) .*? at most ([\d.]+) % of .*? are at most ([\d.]+) to 1", attacks)
    assert [float(one) for one, _, _ in output] == [1000.0, 100.0]
    for one, most, odds in output:
        rate = 1.0 / float(one)
        power = normal.cdf(normal.inv_cdf(rate) + 1.0 / z)
        assert power <= float(most) / 100.0 <= min(1.0, 2.0 * power + 1e-3)
        assert power / rate <= float(odds) <= min(1.0 / rate, float(most) / 100.0 / rate * 1.01)
    best = 2.0 * normal.cdf(0.5 / z) - 1.0
    (output,) = re.findall(r"advantage of any attack \(.*?\) is at most ([\d.]+) %", attacks)
    assert best * (1 - 1e-12) <= float(output) / 100.0 <= best * 1.011
    (right,) = re.findall(r"at most ([\d.]+) % of cases", section(found, "What is protected")[0])
    assert (0.5 + 0.5 * best) * (1 - 1e-12) <= float(right) / 100.0 <= (0.5 + 0.5 * best) * 1.011
    assert "upper bound" in attacks


@pytest.mark.parametrize("z", [0.25, 0.5, 1.0, 9.0])
def test_statement_factor_is_rounded_up(z):
    found = of_gaussian(z)
    sentence = section(found, "Guarantee")[2]
    (factor,) = re.findall(r"at most ([\d,.]+) times", sentence) or ["inf"]
    if z == 0.25:  # epsilon 25
        assert "limits almost nothing" in sentence and factor == "inf"
    else:
        exact = math.exp(found.result.value)
        assert exact <= float(factor.replace(",", "")) <= exact * 1.002
    assert "e^" not in written(found) and ("(1 in 100,000)" in sentence) == (z > 0.25)


def test_chance_of_delta_is_rounded_up():
    for delta in (3e-7, 1.0000049e-5, 0.07):
        (one,) = re.findall(r"\(1 in ([\d,]+)\)", section(of_gaussian(3.0, delta), "Guarantee")[2])
        assert 1.0 / float(one.replace(",", "")) >= delta


def test_other_bounds_are_in_the_appendix_only():
    found = of_gaussian(2.0)
    *body, appendix = sections(found)
    before = " ".join(line for part in body for line in part.lines)
    assert before.count("epsilon is at most") == 1 and found.others
    for other, line in zip(found.others, appendix.lines, strict=True):
        assert other.bound != found.result.bound and other.bound in line
        assert f"bound {other.bound} " not in before and "epsilon is at most" not in line


STATED = {
    "date": "2026-11-25", "author": "Müller, Data office", "model": "classifier 2.1", "data": "digits, 1437 records",
    "versions": "torch 2.6; Python 3.11.7", "ledger": "3" * 64, "checkpoint": "a1" * 32,
}  # fmt: skip
REQUESTED = requested(2.0, bound="analytic")


@pytest.mark.parametrize("style", ["text", "markdown", "html"])
@pytest.mark.parametrize("kept", [tuple(STATED), ("model", "date"), ()])
def test_author_entries_are_attributed_to_the_author(tmp_path, style, kept):
    output = {name: STATED[name] for name in kept}
    found = statement_from(REQUESTED, 1e-5, style, author_entries=output)
    lines = section(found, "Statements of the author, which nobody has checked")
    for name, sentence in STATED.items():
        assert any(line.endswith(f"{name}: {sentence}") for line in lines) == (name in kept)
        assert any(line.startswith("not given: ") and name in line for line in lines) == (name not in kept)
    text = written(found)
    verdict = verify_statement(text.encode(), "statement", written)
    assert verdict.holds and dict(verdict.statement.author_entries) == output
    for name in kept:
        assert not verify_statement(text.replace(STATED[name], STATED[name][:-1] + "0", 1).encode(), "s", written).holds


@pytest.mark.parametrize(
    "output",
    [
        {"date": "yesterday"}, {"date": "2026-13-01"}, {"date": "2026-02-31"}, {"date": "20260131"},
        {"date": "2026-W05-6"}, {"date": "\uff12026-01-01"}, {"model": ""}, {"model": " a"},
        {"model": "a  b"}, {"model": "a\nb"}, {"model": "<b>"}, {"model": "[a]"}, {"model": "`a`"}, {"model": "**a**"},
        {"model": "epsilon is at most 0.1 at delta 1e-05"}, {"author": "Epsilon"}, {"data": "x" * 201},
        {"model": "a\u202eb"}, {"model": 1}, {"model": None}, {"model": ["a"]}, {"ledger": "0" * 63},
        {"ledger": "A" * 64}, {"more": "a"}, {"model": "a\u00a0b"},
    ],
    ids=ascii,
)  # fmt: skip
def test_author_entries_cannot_imitate_the_statement(output):
    with pytest.raises(InvalidParameterError):
        statement_from(REQUESTED, 1e-5, "text", author_entries=output)


def test_ledger_statement_names_digest_and_releases(tmp_path, capsys):
    path = tmp_path / "ledger.jsonl"
    spend(path, 20)
    assert exit_code(["report", "ledger", str(path), "--model", "net 1", "-o", str(tmp_path / "s.md")]) == 0
    text = (tmp_path / "s.md").read_text()
    found = read_ledger(path).epsilon(1e-5)
    assert f"epsilon is at most {round_outward(found.value)} at delta 1e-05" in text and "model: net 1" in text
    assert sha256(path.read_bytes()).hexdigest() in text
    assert exit_code(["verify", str(tmp_path / "s.md"), str(path)]) == 0
    assert exit_code(["report", "ledger", str(path), "--checkpoint", str(tmp_path)]) == 2
    (tmp_path / "empty").write_bytes(path.read_bytes().split(b"\n")[0] + b"\n")
    assert exit_code(["report", "ledger", str(tmp_path / "empty"), "--delta", "1e-5"]) == 2


def test_statement_never_overwrites_its_inputs(tmp_path, capsys):
    ledger, run, checkpoint = tmp_path / "ledger.jsonl", tmp_path / "run.toml", tmp_path / "checkpoint.pt"
    spend(ledger, 20)
    run.write_text('[[phase]]\nmechanism = "gaussian"\nnoise_multiplier = 1.0\n')
    checkpoint.write_text("weights")
    (tmp_path / "link").symlink_to(ledger)
    plain = ["gaussian", "--noise-multiplier", "1"]
    for requested, target in (
        (["ledger", str(ledger)], ledger),
        (["ledger", str(ledger)], tmp_path / "link"),
        (["ledger", str(ledger), "--checkpoint", str(checkpoint)], checkpoint),
        (["run", str(run)], run),
        ([*plain, "--ledger", str(ledger)], ledger),
    ):
        before = target.read_bytes()
        assert exit_code(["report", *requested, "--delta", "1e-5", "-o", str(target)]) == 2
        assert target.read_bytes() == before and "which is read" in capsys.readouterr().err


@pytest.mark.parametrize("z", [0.07, 0.5, 2.0, 40.0])
@pytest.mark.parametrize("delta", [0.05, 1e-5, 1e-40])
def test_picture_marks_claim_on_its_curve_within_its_frame(z, delta):
    found = statement_from(requested(z), delta, "html")
    picture = written(found).split("<svg", 1)[1].split("</figure>")[0]
    x, y = map(float, re.findall(r"translate\( ([\d.]+) , ([\d.]+) \)", picture)[0])
    assert 60 <= x < 240 and 20 < y < 210
    assert re.findall(r">(epsilon|delta) (\S+) <", picture) == [
        ("epsilon", round_outward(found.result.value)), ("delta", repr(delta))
    ]  # fmt: skip
    points = [tuple(map(float, pair.split(","))) for pair in re.findall(r'points="(.*?) "', picture)[0].split()]
    left, right = max(p for p in points if p[0] <= x), min(p for p in points if p[0] > x)
    assert y <= right[1] + 1.0 and (left[1] - 1.0 <= y or found.result.value == 0.0)
    across = [float(word) for word in re.findall(r'y="228"> (.*?) <', picture)]
    assert across[0] == 0.0 and all(f"{word:g}" == f"{word:.3g}" for word in across) and len(across) == 5
    assert across[-1] >= 1.6 * found.result.value
    assert 3 <= len(re.findall(r">10[⁻⁰-⁹¹²³]+<", picture)) <= 8


@pytest.mark.parametrize("style", ["text", "markdown", "html"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_records_per_user_are_stated_as_an_assumption(capsys, style, size):
    arguments = ("report", "gaussian", "--noise-multiplier", "9", "--steps", "2", "--delta", "1e-5", "--style", style)
    assert exit_code([*arguments, "--group-size", str(size)]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert (f"assumption on users: {Requirement.ONE_RECORD_PER_USER}" in output) == (size == 1)
    assert (f"assumption on the data: one user contributes at most {size} records" in output) == (size > 1)
    assert (f"differ by at most {size} changes of this kind: one record added" in output) == (size > 1)
    facts = output.replace(Requirement.ONE_RECORD_PER_USER, "").replace(
        f"one user contributes at most {size} records", ""
    )
    assert not re.search(r"(?i)(one|each) (person|user) (has|contributes)", facts)
    assert "--group-size" in Requirement.ONE_RECORD_PER_USER


def test_statement_as_page_holds_its_picture(tmp_path, capsys):
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
def test_statement_names_data_assumption(capsys):
    assert (
        exit_code(["report", "wishart", "--dim", "100", "--rank", "9", "--misalignment", "1e-6", "--delta", "1e-5"])
        == 0
    )
    out = " ".join(capsys.readouterr().out.split())
    assert "assumption on the data" in out and "which the mechanism does not enforce" in out


def test_no_statement_without_guarantee(capsys):
    assert exit_code(f"{WISHART} --rank 1 --misalignment 0.1".split()) == 4
    assert "No guarantee" in capsys.readouterr().out
