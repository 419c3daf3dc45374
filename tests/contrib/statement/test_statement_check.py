"""A statement is written anew from its parameters: equal, or the line that differs is named."""

import json
import re
from dataclasses import replace

import pytest
from privproj_cli.main import exit_code

import privproj
from privproj.assumptions import Requirement
from privproj.contrib.statement.command import written
from privproj.contrib.statement.statement import AS_WRITTEN, BEGIN, END, account_data, sections, statement_from
from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.io.ledger import CUT_SHORT, Account
from privproj.schedule import phase_of

Z = "--noise-multiplier"
QUERIES = {
    "gaussian": ("gaussian", Z, "2", "--delta", "1e-5"),
    "laplace": ("laplace", Z, "2", "--delta", "1e-5"),
}
COSTLY = {
    "shuffled": ("gaussian", Z, "20", "--steps", "2", "--sampling", "shuffle", "--batches", "10", "--delta", "1e-5"),
    "sketch": ("sketch", "--rank", "20", "--gamma", "40", "--delta", "1e-5"),
    "no guarantee": ("sketch", "--rank", "2", "--gamma", "0.01", "--delta", "1e-300", "--bound", "exact-rank1"),
    "m2": (
        "m2", "--layer", "64x8x2", Z, "1", "--batch-size", "10", "--dataset-size", "500", "--epochs", "1",
        "--delta", "1e-5",
    ),
    "capped": (
        "gaussian", Z, "3", "--sampling-rate", "0.01", "--steps", "20", "--max-batch-size", "50",
        "--dataset-size", "1000", "--delta", "1e-5",
    ),
    "groups": ("gaussian", Z, "9", "--group-size", "3", "--delta", "1e-5"),
    "split": ("sketch-public", "--rank", "64", Z, "3", "--split", "0.3", "--bound", "operator-norm", "--delta", "1e-3"),
    "replace": ("gaussian", Z, "9", "--steps", "3", "--relation", "replace", "--delta", "1e-5"),
    "grid": (
        "gaussian", Z, "2", "--steps", "3", "--sampling-rate", "0.1", "--discretization", "1e-3", "--delta", "1e-5",
    ),
}  # fmt: skip
STYLES = ("text", "markdown", "html")
SOME = ("text", *(pytest.param(style, marks=pytest.mark.full) for style in STYLES[1:]))


def reported(capsys, style, *arguments):
    """A statement, as `privproj report` prints it."""
    assert exit_code(["report", *arguments, "--style", style]) in (0, 4)
    return capsys.readouterr().out


def checked(tmp_path, capsys, text):
    """The exit code of `privproj verify` on a text, and its verdict, or its error."""
    path = tmp_path / "document"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    code = exit_code(["verify", str(path), "--json"])
    output = capsys.readouterr()
    assert (code == 2) == (output.err.count("\n") == 1) == (not output.out)
    return code, json.loads(output.out) if output.out else output.err


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "arguments",
    [*QUERIES.values(), *(pytest.param(arguments, marks=pytest.mark.full) for arguments in COSTLY.values())],
)
def test_written_statements_are_verified(tmp_path, capsys, arguments, style):
    code, found = checked(tmp_path, capsys, reported(capsys, style, *arguments))
    assert code == 0 and found["verdict"] == "holds" and not found["differences"] and not found["lines_outside"]


RUN = """
discretization = 1e-2
[[phase]]
name = "so private that epsilon is at most 0.001"
mechanism = "gaussian"
noise_multiplier = 9
steps = 3
[[phase]]
mechanism = "laplace"
noise-multiplier = 20
planned = true
"""


@pytest.mark.parametrize("style", SOME)
def test_statement_run_is_rewritten_with_numbered_phases(tmp_path, capsys, style):
    (tmp_path / "run.toml").write_text(RUN)
    text = reported(capsys, style, "run", str(tmp_path / "run.toml"), "--delta", "1e-5")
    assert "so private" not in text and "phase 1" in text and "phase 2" in text
    code, found = checked(tmp_path, capsys, text)
    assert code == 0 and "a run of 2 phases" in found["claim"]
    exit_code(["run", str(tmp_path / "run.toml"), "--delta", "1e-5", "--json"])
    assert found["result"]["value"] == json.loads(capsys.readouterr().out)["value"]


def trained(style="markdown", **changes):
    """The statement of a training run of two phases that was stopped early, some of its data changed."""
    entries = [phase_of(privproj.Gaussian(noise_multiplier=9.0), name, steps=5).as_dict() for name in ("a", "b")]
    account = Account(((entries[0], 5), (entries[1], 2)), insecure=True, public_subspace=True, notes=(CUT_SHORT,))
    data = account_data(account)
    left = data["run" if "phase" in changes else "ledger"]
    left.update(changes)
    return written(statement_from(data, 1e-5, style))


@pytest.mark.parametrize("style", SOME)
def test_training_statement_agrees_with_its_account(tmp_path, capsys, style):
    text = trained(style)
    code, found = checked(tmp_path, capsys, text)
    assert code == 0 and found["result"]["value"] > 0
    flat = " ".join(text.split())
    assert "Nothing is protected here" in flat and "Protected is" not in flat
    for sentence in (
        "known seed",
        CUT_SHORT,
        "2 of 5 planned steps",
        "stops early",
        Requirement.PUBLIC_SUBSPACE,
    ):
        assert sentence in " ".join(text.split())
    for old, new in (('"made": [5, 2]', '"made": [5, 1]'), ('"insecure": true', '"insecure": false')):
        assert old in text and checked(tmp_path, capsys, text.replace(old, new))[0] == 1


@pytest.mark.parametrize(
    "changes",
    [{"made": [5]}, {"made": [5, 2.0]}, {"made": [5, -2]}, {"made": [0, 0]}, {"made": 5}, {"phase": []},
     {"notes": ["x"]}, {"requirements": []}, {"public_subspace": 1}, {"insecure": 1}, {"more": 1},
     {"phase": [{}, {}]}],
    ids=str,
)  # fmt: skip
def test_account_must_have_canonical_form(changes):
    with pytest.raises(InvalidParameterError):
        trained(**changes)


@pytest.mark.parametrize("style", STYLES)
def test_changed_number_or_word_is_named_with_its_line(tmp_path, capsys, style):
    text = reported(capsys, style, *QUERIES["gaussian"])
    stated = re.search(r"epsilon is at most (\S+) at", text)[1]
    value = privproj.epsilon(privproj.Gaussian(noise_multiplier=2.0), delta=1e-5).value
    assert value <= float(stated)
    for output in (f"{float(stated) - 1e-3:.3f}", f"{float(stated) + 1e-3:.3f}"):
        changed = text.replace(f"epsilon is at most {stated}", f"epsilon is at most {output}")
        code, found = checked(tmp_path, capsys, changed)
        assert code == 1 and [key for key, holds in found["claims"].items() if not holds] == [AS_WRITTEN]
        (line,) = found["differences"]
        assert output in line["said"] and stated in line["expected"]
        assert line["said"] == changed.split("\n")[line["number"] - 1]
        assert found["claimed"] == [f"epsilon is at most {output} at delta 1e-05"] and output in found["claim"]
        assert found["computed"] == f"epsilon is at most {stated} at delta 1e-05"
    assert "assumption on users: Each user has one record" in text
    for old, new in (("Each user has one record", "Each user has ten records"), ("assumption on users: ", "")):
        code, found = checked(tmp_path, capsys, text.replace(old, new))
        assert code == 1 and not found["claims"][AS_WRITTEN]


def test_statement_text_is_bound_to_its_parameters(tmp_path, capsys):
    """Edited at the end alone, they give another statement; edited in the words alone, too."""
    text = reported(capsys, "text", *QUERIES["gaussian"])
    for old, new in (
        ('"noise_multiplier": 2.0', '"noise_multiplier": 4.0'),
        ("noise_multiplier 2.0", "noise_multiplier 4.0"),
        ('"delta": 1e-05', '"delta": 1e-06'),
        ("delta 1e-05", "delta 1e-06"),
    ):
        assert old in text and checked(tmp_path, capsys, text.replace(old, new))[0] == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"delta": 1e-05', '"delta": 0.00001'),
        ('"noise_multiplier": 2.0', '"noise_multiplier": 2.00'),
        ('"noise_multiplier": 2.0', '"noise-multiplier": 2.0'),
        ('"bound": "analytic"', '"steps": 1, "bound": "analytic"'),
        ('"steps": 7', '"steps": 7.0'),
        ('"steps": 7', '"steps": 7, "name": "gaussian"'),
        ('{"privproj"', '{ "privproj"'),
        ("analytic", "anal\\u0079tic"),
    ],
)
def test_statement_parameters_must_have_canonical_form(tmp_path, capsys, old, new):
    """Even where they mean the same."""
    text = reported(capsys, "text", "gaussian", Z, "2", "--steps", "7", "--delta", "1e-5")
    assert old in text and checked(tmp_path, capsys, text.replace(old, new))[0] in (1, 2)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"delta": 1e-05', '"delta": 1e-05, "delta": 1e-05'),
        ('"delta": 1e-05', '"delta": "1e-05"'),
        ('"delta": 1e-05', '"delta": 1'),
        ('"delta": 1e-05', '"delta": [1e-05]'),
        ('"delta": 1e-05', '"delta": null'),
        ('"delta": 1e-05', '"delta": true'),
        ('"delta": 1e-05', '"delta": 1e-05, "more": 1'),
        ('"style": "text"', '"style": "markdown"'),
        ('"style": "text"', '"style": "plain"'),
        ('"style": "text"', '"style": ["text"]'),
        ('"0.1.0"', "1"),
        ('"0.1.0"', '"' + "1" * 99 + '"'),
        ('"0.1.0"', '"0.1.0 and certified"'),
        ('"run": {', '"run": [{'),
        ('"run": {', '"question": {'),
        ('"run": {', '"ledger": {}, "run": {'),
        ('"run": {', '"ledger": {"made": [1]}, "run": {'),
        ("analytic", "\u0430nalytic"),
        ("2.0", "2.0" + "[" * 100_000),
        (END, '{"privproj": \n' + END),
        (END, ""),
        (END, END + "\n" + END),
        (BEGIN["text"], ""),
        (BEGIN["text"], BEGIN["text"] + "\n" + BEGIN["text"]),
    ],
    ids=lambda sentence: ascii(sentence)[:40],
)  # fmt: skip
def test_invalid_parameters_and_markers_are_rejected(tmp_path, capsys, old, new):
    text = reported(capsys, "text", "gaussian", Z, "2.0", "--delta", "1e-5")
    assert old in text and checked(tmp_path, capsys, text.replace(old, new))[0] == 2


@pytest.mark.parametrize("more", ["", '"older": 1, '])
def test_statement_of_another_version_error_has_remedy(tmp_path, capsys, more):
    """Whatever its form: its words and numbers may differ from those of this version."""
    text = reported(capsys, "markdown", *QUERIES["gaussian"])
    other = text.replace("0.1.0", "0.0.9").replace('"style"', f'{more}"style"')
    code, error = checked(tmp_path, capsys, other)
    assert code == 2 and "0.1.0" in error and "0.0.9" in error and "write it again" in error


@pytest.mark.parametrize("style", ["text", "markdown"])
def test_text_around_a_statement_is_not_covered(tmp_path, capsys, style):
    text = reported(capsys, style, *QUERIES["gaussian"])
    card = f"# Model card\n\nEpsilon is 0.001.\n\n{text}\nAnd certified.\n"
    code, found = checked(tmp_path, capsys, card)
    assert (code, found["first_line"], found["lines_outside"]) == (0, 5, 6)
    assert exit_code(["verify", str(tmp_path / "document")]) == 0
    assert "without the other 6 lines of the file" in " ".join(capsys.readouterr().out.split())
    for within in (
        text.replace("\nWhat was", "\nEpsilon is 0.001.\n\nWhat was"),
        text.replace("What was", "Epsilon is 0.001. What was"),
    ):
        assert within != text or style == "markdown"
        if within != text:
            assert checked(tmp_path, capsys, f"# Model card\n\n{within}")[0] == 1
    assert checked(tmp_path, capsys, card + card)[0] == 2


def test_narrow_terminal_writes_same_statement(tmp_path, capsys, monkeypatch):
    """It is compared with what a wide one writes."""
    monkeypatch.setattr("privproj_cli.render.terminal_width", lambda: 60)
    text = reported(capsys, "text", *QUERIES["gaussian"])
    monkeypatch.undo()
    assert checked(tmp_path, capsys, text)[0] == 0


def test_nothing_may_stand_outside_of_page(tmp_path, capsys):
    """A style or a script could change what it shows."""
    text = reported(capsys, "html", *QUERIES["gaussian"])
    for outside in (f"<style>p {{ display: none }}</style>\n{text}", f"{text}<script></script>\n", f"{text}\n"):
        assert checked(tmp_path, capsys, outside)[0] == 1
    code, found = checked(tmp_path, capsys, text.removesuffix("</pre></footer></body></html>\n"))
    assert code == 1 and [line["expected"] for line in found["differences"]] == ["</pre></footer></body></html>"]


def test_line_ends_are_ignored_and_spaces_are_not(tmp_path, capsys):
    text = reported(capsys, "markdown", *QUERIES["gaussian"])
    assert checked(tmp_path, capsys, text.replace("\n", "\r\n"))[0] == 0
    for old, new in (
        ("\n\n", "\n \n"),
        (" at delta", "  at delta"),
        (" at delta", "\u00a0at delta"),
        ("is\n", "is \n"),
    ):
        assert old not in text or checked(tmp_path, capsys, text.replace(old, new, 1))[0] == 1


@pytest.mark.parametrize("side", [1.0 - 3e-9, 1.0 + 3e-9])
def test_platform_rounding_does_not_fail_verification(tmp_path, capsys, side):
    """At a noise where epsilon is nearly a number of four digits, so that the last one differs by a unit."""
    z = privproj.sigma(privproj.Gaussian(), epsilon=2.0, delta=1e-5).value
    data = {"run": {"phase": [{"mechanism": "gaussian", "noise_multiplier": z, "bound": "analytic"}]}}
    own = statement_from(data, 1e-5, "text")
    z *= own.result.epsilon / 2.0 / side  # so that epsilon here is 2 (1 +- 3e-9) up to a relative 1e-9
    text = reported(capsys, "text", "gaussian", Z, repr(z), "--delta", "1e-5")
    stated = re.search(r"epsilon is at most (\S+) at", text)[1]
    for other in ("2.000", "2.001"):
        code, found = checked(tmp_path, capsys, text.replace(stated, other))
        assert code == 0, (stated, other, found)
    for other in ("1.999", "2.002", "2.0000", "2.00"):
        assert checked(tmp_path, capsys, text.replace(f"most {stated}", f"most {other}"))[0] == 1


def test_shares_are_rounded_up(tmp_path, capsys):
    found = statement_from({"run": {"phase": [{"mechanism": "gaussian", "noise_multiplier": 2.0}]}}, 1e-5, "text")
    sentence = " ".join(line for section in sections(found) for line in section.lines)
    rates = re.findall(r"at most ([\d.]+) %", sentence)
    for rate, value in zip(rates, (0.5 + 0.5 * found.advantage, *found.rates, found.advantage), strict=True):
        assert 100.0 * value <= float(rate) <= 101.0 * value
    assert "false positive rate 0.1 %" in sentence


def test_statement_prints_delta_and_rate_with_all_digits(tmp_path, capsys):
    arguments = ("gaussian", Z, "2", "--sampling-rate", "0.0100000049", "--steps", "1", "--delta", "1.0000049e-5")
    flat = " ".join(reported(capsys, "text", *arguments).split())
    assert "at delta 1.0000049e-05." in flat and "at rate 0.0100000049 " in flat


def test_statement_of_run_under_filter_is_about_its_budget(tmp_path, capsys):
    entries = [phase_of(privproj.Gaussian(noise_multiplier=z), "a", steps=5).as_dict() for z in (9.0, 12.0)]
    account = Account(((entries[0], 3), (entries[1], 5)), {"epsilon": 4.0, "delta": 1e-5, "order": 6})
    text = written(statement_from(account_data(account), 1e-5, "markdown"))
    code, found = checked(tmp_path, capsys, text)
    assert code == 0 and 3.999 < found["result"]["value"] == account.epsilon(1e-5).value <= 4.0
    output = " ".join(text.split())
    assert Requirement.FIXED_FILTER in output and Requirement.FIXED_SCHEDULE not in output and "order 6" in output
    for old, new in (
        ('"order": 6', '"order": 7'),
        ('"made": [3, 5]', '"made": [3, 4]'),
        ('"epsilon": 4.0', '"epsilon": 3.0'),
    ):
        assert old in text and checked(tmp_path, capsys, text.replace(old, new))[0] == 1
    with pytest.raises(UnsupportedError, match="would exceed the budget"):
        statement_from(account_data(replace(account, phases=((entries[0], 5000),))), 1e-5, "markdown")
    with pytest.raises(InvalidParameterError):
        trained(filter={"order": 6})
