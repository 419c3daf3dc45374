"""Regression of bounds: verdicts, malformed files, updates that lose nothing."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from xml.etree import ElementTree

import pytest
from helpers import ROOT, needs
from privproj_cli.main import exit_code

import privproj
from privproj import InvalidParameterError
from privproj.io.files import as_toml
from privproj.io.regression import Entry, entries_from
from privproj.numerics import special

ENTRIES = [
    {"name": "gauss", "query": "epsilon", "mechanism": "gaussian", "noise_multiplier": 1, "delta": 1e-5},
    {"name": "m2", "query": "sigma", "mechanism": "m2", "dim": 2048, "rank": 16, "epsilon": 1, "delta": 1e-5},
    {"name": "tail", "query": "delta", "mechanism": "m2", "dim": 256, "rank": 8, "change_rank": 4, "bound": "beta-tail",
     "noise_multiplier": 1, "epsilon": 2},
    {"name": "steps", "query": "steps", "mechanism": "gaussian", "noise_multiplier": 9, "epsilon": 1, "delta": 1e-5},
]  # fmt: skip


WISHART = {"mechanism": "wishart", "dim": 1000, "rank": 16, "misalignment": 8e-6, "delta": 1e-5, "at_most": 1}
"""A bound with an assumption on the data."""


def expected(entry):
    found = entries_from({"bound": [{**entry, "expect": 0}]})[0].ask()
    return {**entry, "expect": found.value}


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "bounds.toml"
    path.write_text("# kept\n" + as_toml([expected(e) for e in ENTRIES], "bound"))
    return path


def test_check_passes_for_unchanged_bounds(file, tmp_path, capsys):
    junit = tmp_path / "junit.xml"
    assert exit_code(["check", str(file), "--junit", str(junit)]) == 0
    assert "4 of 4 entries pass" in capsys.readouterr().out
    suite = ElementTree.parse(junit).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("4", "0")


@pytest.mark.parametrize("constant", ["MILLS", "LOG_SQRT_2PI"])
def test_check_fails_for_changed_constant(file, capsys, monkeypatch, constant):
    def changed(value):
        return tuple(map(changed, value)) if isinstance(value, tuple) else value * (1 + 1e-4)

    monkeypatch.setattr(special, constant, changed(getattr(special, constant)))
    assert exit_code(["check", str(file)]) == 1
    assert "FAIL" in capsys.readouterr().out


def test_check_distinguishes_moved_value_and_exceeded_limit(tmp_path, capsys):
    path = tmp_path / "bounds.toml"
    limit = {**ENTRIES[0], "at_most": 1.0}
    path.write_text(as_toml([{**expected(ENTRIES[1]), "expect": 0.5}, limit], "bound"))
    assert exit_code(["check", str(path)]) == 1
    out = capsys.readouterr().out
    assert "moved by" in out and "at most 1.0" in out and "0 of 2" in out


def test_check_fails_without_result(tmp_path, capsys):
    path = tmp_path / "bounds.toml"
    entry = {**ENTRIES[0], "bound": "classical", "delta": 1e-5, "at_most": 10}
    path.write_text(as_toml([entry, {**ENTRIES[1], "name": "other", "query": "rank", "noise_multiplier": 1e-3,
                                     "at_most": 5, "rank": 3}], "bound"))  # fmt: skip
    assert exit_code(["check", str(path)]) in (1, 2)
    path.write_text(as_toml([entry], "bound"))
    assert exit_code(["check", str(path)]) == 1
    assert "no answer" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "list of entries"),
        ("[[bound]]\nname = 'a'\nquery = 'epsilo'", "unknown query 'epsilo' in "),
        ("[[bound]]\nmechanism = 'm2'\nexpect = 1\ndim = 4\nrank = 9", "entry 1: rank must be"),
        ("[[bound]]\nmechanism = 'gaussian'\nnoise_multiplier = 1\ndelta = 1e-5", "missing expect in "),
        ("[[bound]]\nmechanism = 'gaussian'\nnoise_multiplier = 1\nexpect = 1\nrtol = 'x'", "entry 1: rtol"),
        ("[[bounds]]\n", "bounds"),
        ("[[bound", "TOML"),
    ],
)
def test_malformed_check_file_error_names_entry_and_key(tmp_path, capsys, text, sentence):
    path = tmp_path / "bounds.toml"
    path.write_text(text)
    assert exit_code(["check", str(path)]) == 2
    assert sentence in capsys.readouterr().err


def test_check_entry_names_are_unique(tmp_path, capsys):
    path = tmp_path / "bounds.toml"
    path.write_text(as_toml([expected(ENTRIES[0])] * 2, "bound"))
    assert exit_code(["check", str(path)]) == 2


def test_update_rewrites_expect_only(file, capsys):
    needs("tomlkit")
    good = file.read_text()
    file.write_text(good.replace('name = "m2"', 'name = "m2"  # and this').replace("expect = 4", "expect = 3"))
    assert exit_code(["check", str(file), "--update"]) == 0
    assert file.read_text() == good.replace('name = "m2"', 'name = "m2"  # and this')
    assert exit_code(["check", str(file)]) == 0


@pytest.mark.full
@pytest.mark.parametrize("wait", [0.3, 0.8, 1.2])
def test_killed_update_leaves_complete_file(file, wait):
    needs("tomlkit")
    before = file.read_text()
    process = subprocess.Popen(
        [sys.executable, "-c", "from privproj_cli.main import main; main()", "check", str(file), "--update"],
        stdout=subprocess.DEVNULL,
    )
    time.sleep(wait)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert file.read_text() == before
    assert exit_code(["check", str(file)]) == 0


@pytest.mark.full
@pytest.mark.parametrize("count", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_check_of_many_entries_is_fast(tmp_path, count):
    """A tenth of a second of the processor for each."""
    path = tmp_path / "many.toml"
    entries = [{**ENTRIES[i % 3], "name": f"entry {i}", "at_most": 1e9} for i in range(count)]
    path.write_text(as_toml(entries, "bound"))
    start = time.process_time()
    assert exit_code(["check", str(path)]) == 0
    assert time.process_time() - start < 0.1 * count
    assert privproj.__version__


GAUSSIAN = {"mechanism": "gaussian", "noise_multiplier": 2}


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"epsilon": 1.0}, "epsilon"),
        ({"delta": None}, "delta"),
        ({"rtol": 1e-3}, "rtol"),
        ({"rtol": -1.0, "expect": 1.0}, "rtol"),
        ({"query": "sigma", "epsilon": 1.0}, "noise_multiplier"),
        ({"query": "steps", "epsilon": 1.0, "steps": 3}, "steps"),
        ({"query": "rate", "epsilon": 1.0, "sampling_rate": 0.3}, "sampling_rate"),
        ({"query": 3}, "query"),
        ({"name": 3}, "name"),
    ],
)
def test_check_entry_errors(changes, word):
    entry = {**GAUSSIAN, "delta": 1e-5, "at_most": 9, **changes}
    with pytest.raises(InvalidParameterError, match=f"b.toml, entry 1: {word} must|missing {word} in b.toml, entry 1"):
        entries_from({"bound": [entry]}, "b.toml")


def test_check_entry_discretization_is_used():
    entry = {**GAUSSIAN, "steps": 9, "sampling_rate": 0.1, "delta": 1e-5, "at_most": 9, "discretization": 1e-3}
    assert entries_from({"bound": [entry]})[0].ask().numerics["grid_step"] == 1e-3


@pytest.mark.parametrize("risk", [{"advantage": 0.1}, {"tpr": 0.2, "fpr": 0.01}], ids=str)
def test_check_entry_supports_risk_targets(risk):
    entry = {"query": "sigma", "mechanism": "gaussian", "at_most": 9}
    found = entries_from({"bound": [{**entry, **risk}]})[0].ask()
    assert found.value == privproj.sigma(privproj.Gaussian(), **risk).value
    wrongs = {"delta": {**risk, "delta": 1e-5}, "fpr": {"tpr": 0.2}, "advantage": {"advantage": "much"}}
    for word, wrong in wrongs.items():
        with pytest.raises(
            InvalidParameterError, match=f"b.toml, entry 1: {word} must|missing {word} in b.toml, entry 1"
        ):
            entries_from({"bound": [{**entry, **wrong}]}, "b.toml")
    other = {**entry, **risk, "query": "epsilon", "noise_multiplier": 1, "delta": 1e-5}
    with pytest.raises(InvalidParameterError, match=r"b.toml, entry 1"):
        entries_from({"bound": [other]}, "b.toml")


def checked(tmp_path, entries, *options, name="bounds.toml"):
    """The exit code of a check of these entries."""
    path = tmp_path / name
    path.write_text(as_toml(entries, "bound"))
    return exit_code(["check", str(path), *options])


@pytest.mark.parametrize("pinned", [None, "conditional", "proved"])
def test_check_fails_for_other_status(tmp_path, capsys, pinned):
    """Without a pin both pass, and the status stands beside the number."""
    entry = {**WISHART, **({} if pinned is None else {"status": pinned})}
    assert checked(tmp_path, [entry]) == (1 if pinned == "proved" else 0)
    out = capsys.readouterr().out
    assert "(exact, wishart.exact, conditional)" in out
    assert ("expected a proved bound" in out) == (pinned == "proved")
    assert checked(tmp_path, [{**ENTRIES[0], "at_most": 9, "status": "conditional"}]) == 1


def test_update_keeps_expected_status(tmp_path, capsys):
    needs("tomlkit")
    entry = {**WISHART, "expect": 0.1, "status": "proved"}
    assert checked(tmp_path, [entry], "--update") == 1


@pytest.mark.parametrize("status", ["exact", "refuted", "asymptotic", 1])
def test_impossible_expected_status_is_rejected(tmp_path, capsys, status):
    assert checked(tmp_path, [{**WISHART, "status": status}]) == 2
    assert "status" in capsys.readouterr().err


@pytest.mark.parametrize("limit", [{"at_most": 1}, {"at_most": 0.1}, {"at_most": 1, "status": "proved"}], ids=str)
def test_check_report_has_status_and_assumptions(tmp_path, capsys, limit):
    """In the text and in the report, whether the entry holds or fails."""
    junit = tmp_path / "junit.xml"
    answer = entries_from({"bound": [{**WISHART, **limit}]})[0].ask()
    checked(tmp_path, [{**WISHART, **limit}], "--junit", str(junit))
    printed, report = " ".join(capsys.readouterr().out.split()), ElementTree.parse(junit).findtext(".//system-out")
    assert answer.data_assumptions and answer.requirements and report is not None
    for sentence in (
        repr(answer.value),
        str(answer.status),
        str(answer.side),
        *answer.data_assumptions,
    ):
        assert sentence in printed and sentence in report
    assert all(sentence in report for sentence in answer.requirements)


def test_check_prints_one_line_per_entry(tmp_path, capsys):
    entries = [{**ENTRIES[0], "name": f"entry {i}", "at_most": 9, "delta": 10.0**-i, "steps": 2} for i in range(1, 6)]
    assert checked(tmp_path, entries) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:5] for line in lines[:5]] == ["ok   "] * 5 and lines[-1] == "5 of 5 entries pass"
    assert len(lines) == 6


@pytest.mark.parametrize("text", ["[[bound", "", "[[bound]]\nname = 'a\\u001b[2K\\n'\nat_most = 1", None])
def test_failed_check_replaces_earlier_report(tmp_path, capsys, text):
    """A green report that stays behind would be read as the verdict on this file."""
    path, junit = tmp_path / "bounds.toml", tmp_path / "junit.xml"
    assert checked(tmp_path, [{**ENTRIES[0], "at_most": 9}], "--junit", str(junit)) == 0
    path.unlink() if text is None else path.write_text(text)
    assert exit_code(["check", str(path), "--junit", str(junit)]) == 2
    root = ElementTree.parse(junit).getroot()
    assert root.get("errors") == "1" and root.find(".//error") is not None
    assert str(path) in root.find(".//error").get("message")


def test_interrupted_check_removes_earlier_report(tmp_path, monkeypatch):
    junit = tmp_path / "junit.xml"
    assert checked(tmp_path, [{**ENTRIES[0], "at_most": 9}], "--junit", str(junit)) == 0

    def interrupted(self, reference):
        raise KeyboardInterrupt

    monkeypatch.setattr(Entry, "checked", interrupted)
    assert checked(tmp_path, [{**ENTRIES[0], "at_most": 9}], "--junit", str(junit)) == 130
    root = ElementTree.parse(junit).getroot()
    assert root.get("errors") == "1" and "did not finish" in root.find(".//error").get("message")


def test_check_accepts_several_files(tmp_path, capsys):
    """As a pre-commit hook asks: one report, every entry with its file, and one exit code."""
    good, bad, junit = tmp_path / "a.toml", tmp_path / "b.toml", tmp_path / "junit.xml"
    good.write_text(as_toml([{**ENTRIES[0], "at_most": 9}], "bound"))
    bad.write_text(as_toml([{**ENTRIES[0], "at_most": 1}], "bound"))
    assert exit_code(["check", str(good), str(bad), "--junit", str(junit)]) == 1
    out = capsys.readouterr().out
    assert f"ok   {good}: gauss" in out and f"FAIL {bad}: gauss" in out and "1 of 2 entries pass" in out
    cases = ElementTree.parse(junit).findall(".//testcase")
    assert [case.get("classname") for case in cases] == [str(good), str(bad)]
    bad.write_text("[[bound")
    assert exit_code(["check", str(good), str(bad)]) == 2
    output = capsys.readouterr()
    assert f"ok   {good}: gauss" in output.out and str(bad) in output.err and output.err.count("\n") == 1


def test_check_accepts_directory(tmp_path, capsys):
    (tmp_path / "team").mkdir()
    for name in ("bounds.toml", "team/small.bounds.toml", "team/run.toml"):
        (tmp_path / name).write_text(as_toml([{**ENTRIES[0], "at_most": 9}], "bound"))
    assert exit_code(["check", str(tmp_path)]) == 0
    folder = capsys.readouterr().out
    assert exit_code(["check", str(tmp_path / "bounds.toml"), str(tmp_path / "team" / "small.bounds.toml")]) == 0
    assert capsys.readouterr().out == folder and "2 of 2 entries pass" in folder
    (tmp_path / "empty").mkdir()
    assert exit_code(["check", str(tmp_path / "empty")]) == 2


def test_failed_entry_prints_query_and_change(tmp_path, capsys):
    entry = {**expected(ENTRIES[1]), "expect": 0.5, "relation": "zero-out"}
    assert checked(tmp_path, [entry, {**ENTRIES[0], "at_most": 2}]) == 1
    out = " ".join(capsys.readouterr().out.split())
    epsilon = privproj.epsilon(privproj.Gaussian(noise_multiplier=1), delta=1e-5).value
    assert "moved by -23.7 %" in out and f"got {epsilon!r}, +119 %" in out
    assert "query: sigma of m2, dim=2048, rank=16, epsilon=1, delta=1e-05, relation=zero-out" in out
    assert "query: epsilon of gaussian, noise_multiplier=1, delta=1e-05, bound=analytic, relation=add-remove" in out


@pytest.mark.parametrize("version", [None, 1, 5, 99])
def test_failed_entry_prints_bound_version(tmp_path, capsys, version):
    entry = {**ENTRIES[1], "expect": 0.5, **({} if version is None else {"bound_version": version})}
    assert checked(tmp_path, [entry]) == 1
    now, out = (
        privproj.sigma(privproj.M2(dim=2048, rank=16), epsilon=1, delta=1e-5).bound_version,
        " ".join(capsys.readouterr().out.split()),
    )
    assert ("as before" in out) == (version == now)
    assert (f"rank-free went from version {version} to {now}" in out) == (version not in (None, now))
    assert checked(tmp_path, [{**expected(ENTRIES[1]), "bound_version": 1}]) == 0


def test_update_prints_changes(tmp_path, capsys):
    needs("tomlkit")
    entries = [{**ENTRIES[1], "expect": 0.5, "bound_version": 1}, expected(ENTRIES[0])]
    assert checked(tmp_path, entries, "--update") == 0
    out = capsys.readouterr().out
    assert (
        "rewritten: expect = 0.5, now 0.3813" in out
        and "(-23.7 %)" in out
        and "rewritten: bound_version = 1, now" in out
    )
    assert out.count("rewritten: ") == 2
    assert exit_code(["check", str(tmp_path / "bounds.toml"), "--update"]) == 0
    assert "rewritten: " not in capsys.readouterr().out


def test_check_json_equals_text_and_report(tmp_path, capsys):
    files = [tmp_path / name for name in ("a.toml", "b.toml", "junit.xml")]
    files[0].write_text(as_toml([expected(ENTRIES[0]), {**ENTRIES[1], "at_most": 0.1}], "bound"))
    files[1].write_text("[[bound")
    assert exit_code(["check", str(files[0]), str(files[1]), "--json", "--junit", str(files[2])]) == 2
    output = json.loads(capsys.readouterr().out)
    good, bad = output["results"]
    assert (good["holds"], good["problem"], bad["holds"], output["held"], output["entries"]) == (True, "", False, 1, 2)
    assert good["result"]["value"] == good["expected"]["expect"] and bad["parameters"]["relation"] == "add-remove"
    root = ElementTree.parse(files[2]).getroot()
    assert [root.get(name) for name in ("tests", "failures", "errors")] == ["3", "1", "1"]
    assert bad["problem"] == root.find(".//failure").get("message")
    assert output["errors"] == {str(files[1]): root.find(".//error").get("message")}
    assert root.findall(".//testcase")[-1].get("classname") == str(files[1])


def test_update_needs_valid_files(tmp_path, capsys):
    needs("tomlkit")
    good, bad = tmp_path / "a.toml", tmp_path / "b.toml"
    good.write_text(as_toml([{**ENTRIES[0], "expect": 1}], "bound"))
    bad.write_text("[[bound")
    before = good.read_text()
    assert exit_code(["check", str(good), str(bad), "--update"]) == 2
    assert good.read_text() == before


def test_pre_commit_hook_checks_given_files(tmp_path, monkeypatch, capsys):
    hook = (ROOT / ".pre-commit-hooks.yaml").read_text()
    entry, pattern = (re.search(rf"^  {key}: (.*)$", hook, re.MULTILINE)[1] for key in ("entry", "files"))
    names = ["bounds.toml", "team/bounds.toml", "team/run.toml"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "team").mkdir()
    for name in names:
        (tmp_path / name).write_text(as_toml([{**ENTRIES[0], "at_most": 9}], "bound"))
    program, *arguments = entry.split()
    assert program == "privproj"
    assert exit_code([*arguments, *(name for name in names if re.search(pattern, name))]) == 0
    assert "2 of 2 entries pass" in capsys.readouterr().out


@pytest.mark.parametrize("rtol", [1e300, 1.0, 0.11])
def test_too_large_tolerance_is_rejected(tmp_path, capsys, rtol):
    assert checked(tmp_path, [{**ENTRIES[0], "expect": 1e-9, "rtol": rtol}]) == 2
    assert "rtol" in capsys.readouterr().err


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["lf", "crlf"])
def test_update_keeps_line_endings_and_links(tmp_path, capsys, end):
    needs("tomlkit")
    text = "# kept\n" + as_toml([{**ENTRIES[0], "expect": 1}], "bound")
    real, link = tmp_path / "real.toml", tmp_path / "link.toml"
    real.write_bytes(text.replace("\n", end).encode())
    link.symlink_to(real)
    assert exit_code(["check", str(link), "--update"]) == 0
    assert link.is_symlink() and real.read_bytes().count(end.encode()) == text.count("\n")
    assert exit_code(["check", str(real)]) == 0


def test_failed_entry_prints_changed_value_and_exceeded_limit(tmp_path, capsys):
    assert checked(tmp_path, [{**ENTRIES[0], "expect": 0.5, "at_most": 0.6}]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "expected 0.5 (relative tolerance" in out
    assert "expected at most 0.6" in out
