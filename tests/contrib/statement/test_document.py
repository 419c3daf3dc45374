"""Privacy statements as documents of ``privproj verify``."""

import json

import pytest
from privproj_cli.main import exit_code

import privproj
from privproj.result import round_outward


def test_verify_prints_json_for_unsupported_parameters(tmp_path, capsys):
    """A question that no bound answers is none that a statement could have been written from."""
    phase = '{"mechanism": "sketch", "rank": 16, "gamma": 9.0, "steps": 3, "sampling_rate": 0.1}'
    requested = f'"run": {{"phase": [{phase}]}}'
    line = f'{{"privproj": "0.1.0", "style": "text", "delta": 1e-05, {requested}}}'
    (tmp_path / "file").write_text(f"PRIVACY STATEMENT\n{line}\nEnd of the privacy statement.\n")
    assert exit_code(["verify", str(tmp_path / "file"), "--json"]) == 3
    output = capsys.readouterr()
    assert json.loads(output.out)["verdict"] == "unsupported" and output.err.count("\n") == 1


@pytest.mark.parametrize("style", ["text", "markdown", "html"])
def test_verify_shows_claimed_and_recomputed_epsilon(tmp_path, capsys, style):
    path = tmp_path / "statement"
    line = ["report", "gaussian", "--noise-multiplier", "2", "--delta", "1e-5", "--style", style, "-o", str(path)]
    assert exit_code(line) == 0
    stated = privproj.epsilon(privproj.Gaussian(noise_multiplier=2.0), delta=1e-5).value
    true = f"epsilon is at most {round_outward(stated)}"
    claimed, computed = "claimed:   {} at delta {} (text of the file)", f"computed:  {true} at delta 1e-05"
    text = path.read_text()
    assert true in text
    for output, shown in (
        (text, (true, "1e-05")),
        (text.replace(true, "epsilon is at most 0.1"), ("epsilon is at most 0.1", "1e-05")),
        (text.replace(f"{true} at delta 1e-05", f"{true} at delta 1e-09"), (true, "1e-09")),
    ):
        path.write_text(output)
        capsys.readouterr()
        assert exit_code(["verify", str(path)]) == (0 if output == text else 1)
        answer = capsys.readouterr().out
        assert claimed.format(*shown) in answer and computed in answer
    path.write_text(text.replace(true, "\x1b[2Jepsilon is at most none"))
    assert exit_code(["verify", str(path)]) == 1
    answer = capsys.readouterr().out
    assert "claimed:   no readable epsilon" in answer and computed in answer and "\x1b" not in answer
