"""What is printed: no text of a file or of the command line can forge a line of an answer, or steer a terminal."""

import json

import pytest
from helpers import FORGED, feature_rows
from privproj_cli.main import exit_code
from unit.io.tampering import chained

from privproj import Gaussian, InvalidParameterError
from privproj.accounting.schedule import phase_of
from privproj.io.ledger import HEADER

GAUSSIAN = {"mechanism": "gaussian", "noise_multiplier": 3, "delta": 1e-5}
M2_PHASE = {"mechanism": "m2", "dim": 64, "rank": 4, "noise_multiplier": 3}
EVENT = {"type": "GaussianDpEvent", "noise_multiplier": 3.0}


def ledger(**phase):
    """A ledger whose phase says this too."""
    entry = json.loads(json.dumps(phase_of(Gaussian(noise_multiplier=9.0), "a", steps=2).as_dict())) | phase
    return chained([HEADER, {"phase": entry, "target": {"delta": 1e-5}}, {"step": 1}])


TARGET = ("--delta", "1e-5")
PEFT = ("epsilon", "m2", "--from-peft", ".", "--whole-gradients", "--noise-multiplier", "1", *TARGET)
NAMED = {"phase": [{**M2_PHASE, "name": FORGED}]}
LAYERED = {"phase": [{"mechanism": "m2", "noise_multiplier": 3, "layer": f"8x4{FORGED}"}]}
NESTED = {"phase": [{"event": {"type": "ComposedDpEvent", "events": [{**EVENT, FORGED: 1}]}}]}
ADAPTER = {"peft_type": "LORA", "r": 4, "target_modules": [FORGED], "base_model_name_or_path": FORGED}
FILES = {
    "the name of an entry": (("check", "in.json"), {"bound": [{**GAUSSIAN, "at_most": 9, "name": FORGED}]}),
    "a status": (("check", "in.json"), {"bound": [{**GAUSSIAN, "at_most": 9, "status": FORGED}]}),
    "a key of an entry": (("check", "in.json"), {"bound": [{**GAUSSIAN, "at_most": 9, FORGED: 1}]}),
    "the name of a phase": (("run", "in.json", *TARGET), NAMED),
    "a phase in a budget": (("remaining", "in.json", "--epsilon", "9", *TARGET), NAMED),
    "a layer": (("run", "in.json", *TARGET), LAYERED),
    "a text in an event": (("run", "in.json", *TARGET), {"phase": [{"event": {**EVENT, "name": FORGED}}]}),
    "an event in an event": (("run", "in.json", *TARGET), NESTED),
    "a phase of a ledger": (("ledger", "in.json"), ledger(name=FORGED)),
    "a phase of a ledger checked": (("verify", "in.json"), ledger(name=FORGED)),
    "a base model": (PEFT, ADAPTER),
    **feature_rows("FORGED_FILES"),
}  # fmt: skip
"""Where a text of a file could be printed: a command, and the file that it reads."""
TEXTS = {
    "a picture": ("curve", "gaussian", "--noise-multiplier", "1", "--plot", f"{FORGED}.svg"),
    "a report of checks": ("check", "in.json", "--junit", FORGED),
    "a file of checks": ("check", FORGED),
    "a run file": ("run", "in.json", *TARGET, "-o", f"{FORGED}.toml"),
    "a word to be explained": ("explain", FORGED),
    "a bound": ("bounds", FORGED),
    "a command": (FORGED,),
    "a name that is no text": ("curve", "gaussian", "--noise-multiplier", "1", "-o", "\udcff"),
    **feature_rows("FORGED_WORDS"),
}


@pytest.mark.parametrize("entry_point", [*FILES, *TEXTS])
def test_no_text_forges_line_or_steers_terminal(entry_point, tmp_path, monkeypatch, capsys):
    """Unsafe text is rejected when it is read, with one line on standard error and no other output."""
    monkeypatch.chdir(tmp_path)
    arguments, content = FILES[entry_point] if entry_point in FILES else (TEXTS[entry_point], {"phase": [M2_PHASE]})
    content = json.dumps(content) if isinstance(content, dict) else content
    name = "adapter_config.json" if "--from-peft" in arguments else "in.json"
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    before = sorted(tmp_path.iterdir())
    assert exit_code([*arguments]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.endswith("\n") and output.err[:-1].isprintable()
    assert sorted(tmp_path.iterdir()) == before


def test_phase_of_program_is_named_as_that_of_file():
    """A ledger with another name could not be read again."""
    with pytest.raises(InvalidParameterError, match="printable text without line breaks"):
        phase_of(Gaussian(noise_multiplier=9.0), FORGED, steps=2)


def test_name_in_any_language_is_kept(tmp_path, capsys):
    """Letters of all scripts, signs and pictures are no control characters."""
    name = "\u00e9t\u00e9 \u5e74 \u0645 \U0001f512 \u03b5 \u2264 1"
    path = tmp_path / "in.json"
    path.write_text(json.dumps({"bound": [{**GAUSSIAN, "at_most": 9, "name": name}]}))
    assert exit_code(["check", str(path)]) == 0
    assert f"ok   {name}: epsilon = " in capsys.readouterr().out
