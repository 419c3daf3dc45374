"""Every script of ``examples/`` runs, states what it needs, and prints values with the expected properties."""

import ast
import os
import re
import subprocess
import sys
from fnmatch import fnmatch

import pytest
from helpers import ROOT, needs, slow_if
from privproj_cli.main import exit_code

FOLDER = ROOT / "examples"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))


def numbers_after(sentence, printed):
    """Every number that is printed right after these words."""
    return [float(found) for found in re.findall(re.escape(sentence) + r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)", printed)]


def run(name, folder, *arguments):
    """A script run in an empty folder without a network."""
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.run(
        [sys.executable, str(FOLDER / f"{name}.py"), *arguments], cwd=folder, capture_output=True, text=True,
        check=False, timeout=300, env={**os.environ, **offline, "PYTHONPATH": paths},
    )  # fmt: skip


def output_of(name, folder, *arguments):
    """What a script prints that ends without an error."""
    done = run(name, folder, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    return done.stdout


# --- the laws of what is printed --------------------------------------------------------------------


def the_projection_gains(printed):
    """A projected release costs less than the same noise without the projection."""
    joint, apart, plain = numbers_after("epsilon =", printed)
    assert 0 < max(joint, apart) < plain


def calibrated_noise_meets_the_target(printed):
    """The spent epsilon is at most the target, and the model learns (guessing has an accuracy of 10 %)."""
    (target,), (spent,), (accuracy,) = (numbers_after(w, printed) for w in ("meets epsilon", "run: epsilon =", "cy ="))
    assert 0.9 * target < spent <= target and accuracy > 70


def fine_tuning_learns_within_the_target(printed):
    """The loss falls, at the epsilon that the script asks for."""
    (before,), (after,), (spent,) = (numbers_after(w, printed) for w in ("loss before:", "loss after:", "epsilon ="))
    assert after < 0.85 * before and 0 < spent <= 3.0


def only_the_injected_bug_is_refuted(printed):
    """The claim stands without a bug, the injected bug is detected, and no attack exceeds what its runs can show."""
    verdicts = dict(re.findall(r"^([\w -]+): the claim .* is (not refuted|refuted)$", printed, re.MULTILINE))
    assert verdicts == {"no bug": "not refuted", "reused-projection": "refuted"}
    shown, most = numbers_after("epsilon >=", printed), numbers_after("runs can detect:", printed)
    assert all(a <= b for a, b in zip(shown, most, strict=True)) and len(shown) == 2
    assert shown[1] > numbers_after("the claim epsilon =", printed)[1]
    assert "every release distinguishes the inputs: True" in printed


def an_altered_certificate_fails(printed):
    """What was saved holds, an altered one does not, and the proved delta meets the target."""
    assert re.findall(r"holds: (\w+)", printed) == ["True", "False"]
    (lower,), (upper,), (target,) = (
        numbers_after(sentence, printed) for sentence in ("at least", "at most", "at delta")
    )
    assert lower <= upper <= target


def epsilon_falls_with_noise_and_rises_with_rank(printed):
    """Along each row epsilon rises with the rank, down each column it falls with the noise."""
    rows = [[float(v) for v in line.split(":")[1].split(",")] for line in printed.splitlines() if line[0].isdigit()]
    assert len(rows) == 3 and all(row == sorted(row) for row in rows)
    assert all(list(column) == sorted(column, reverse=True) for column in zip(*rows, strict=True))


def the_whole_is_between_its_parts_and_their_sum(printed):
    """Joint composition is at least the largest part and less than the sum of the parts."""
    *parts, together = numbers_after("epsilon =", printed)
    assert len(parts) == 3 and max(parts) < together < sum(parts)


def the_encoder_learns_within_the_target(printed):
    """Better than a guess, which is right in half of the cases, at the epsilon that the script asks for."""
    (accuracy,), (spent,) = numbers_after("accuracy =", printed), numbers_after("epsilon =", printed)
    assert accuracy > 60 and 7.9 < spent <= 8.0


def both_ways_learn_within_the_target(printed):
    """Errors fall with epsilon, stay above those without privacy, and the better way learns at every epsilon."""
    spent = numbers_after("epsilon =", printed)
    sketch, noisy, plain = (
        numbers_after(sentence, printed) for sentence in ("sketch", "Gaussian noise", "not private")
    )
    assert all(0.999 * target < eps <= target for eps, target in zip(spent, (1.0, 4.0, 16.0), strict=True))
    assert len(sketch) == len(noisy) == len(plain) == 6
    for way in (sketch, noisy):
        assert all(way[i] > way[i + 2] for i in range(4))
        assert all(private > bare for private, bare in zip(way, plain, strict=True))
    assert max(map(min, zip(sketch, noisy, strict=True))) < 0.9


CORE = {"lora_epsilon": the_projection_gains, "with_dp_accounting": the_whole_is_between_its_parts_and_their_sum}
"""Scripts that need nothing but the core, and the law of what each prints."""

OF_EXTRAS = {
    "calibrate_and_train": (calibrated_noise_meets_the_target, "torch", "opacus", "sklearn"),
    "private_finetuning": (fine_tuning_learns_within_the_target, "torch", "opacus", "peft", "transformers"),
    "trainer_finetuning": (fine_tuning_learns_within_the_target, "torch", "opacus", "peft", "transformers"),
    "audit_a_claim": (only_the_injected_bug_is_refuted, "torch", "opacus"),
    "private_regression": (both_ways_learn_within_the_target, "sklearn"),
    "certificate": (an_altered_certificate_fails, "flint"),
    "sweep_to_plot": (epsilon_falls_with_noise_and_rises_with_rank, "matplotlib"),
}
"""Scripts that need extras: the law of what each prints, and the modules."""

OF_ARCHIVES = {
    "pretrained_encoder": (the_encoder_learns_within_the_target, "torch", "opacus", "peft", "transformers"),
}
"""Scripts that need archives too, in the folder that PRIVPROJ_ARCHIVES names."""


@pytest.mark.parametrize("name", CORE)
def test_example_of_core_prints_expected_values(name, tmp_path):
    CORE[name](output_of(name, tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.full
@pytest.mark.parametrize("name", slow_if(OF_EXTRAS, lambda name: "finetuning" in name or name == "audit_a_claim"))
def test_example_of_extra_prints_expected_values(name, tmp_path):
    distribution, *modules = OF_EXTRAS[name]
    needs(*modules)
    distribution(output_of(name, tmp_path))
    assert not list(tmp_path.iterdir())


def test_example_workflow_runs_when_copied(tmp_path, monkeypatch, capsys):
    """Every file that it names is one that its comment tells to make, or one that it makes itself."""
    text = (FOLDER / "github-actions.yml").read_text()
    stated, job = "".join(re.findall(r"^#(.*)\n", text, re.MULTILINE)), re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
    install, check = re.findall(r"- run: (.*)", job)
    folder, wheel = re.fullmatch(r"pip install (\w+)/(privproj-\*\.whl)", install).groups()
    assert f"pip wheel --no-deps --wheel-dir {folder} " in stated
    program, command, file, *options = check.split()
    assert (program, command) == ("privproj", "check") and fnmatch("privproj-0.1.0-py3-none-any.whl", wheel)
    assert f"your runs in {file} as in examples/bounds.toml" in " ".join(stated.split())
    monkeypatch.chdir(tmp_path)
    (tmp_path / file).write_text((FOLDER / "bounds.toml").read_text())
    assert exit_code([command, file, *options]) == 0
    assert (tmp_path / re.search(r"path: (.*)", job)[1]).read_text().count("<testcase") == 2
    (tmp_path / file).write_text((FOLDER / "bounds.toml").read_text().replace("at_most = 1.1", "at_most = 1.0"))
    assert exit_code([command, file, *options]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_ARCHIVES)
def test_example_of_archives_prints_expected_values(name, tmp_path):
    distribution, *modules = OF_ARCHIVES[name]
    needs(*modules)
    if "PRIVPROJ_ARCHIVES" not in os.environ:
        pytest.skip("PRIVPROJ_ARCHIVES names no folder with the archives")
    distribution(output_of(name, tmp_path, os.environ["PRIVPROJ_ARCHIVES"]))
    assert not list(tmp_path.iterdir())


@pytest.mark.full
@pytest.mark.parametrize("name", OF_ARCHIVES)
def test_example_without_archives_names_missing_files(name, tmp_path):
    needs(*OF_ARCHIVES[name][1:])
    done = run(name, tmp_path, str(tmp_path))
    assert done.returncode == 1 and not done.stdout
    assert re.fullmatch(r"\S+ must contain pyduck\S+\.whl\. Download it with the pip command .*\n", done.stderr)


@pytest.mark.full
def test_example_sweep_writes_given_file(tmp_path):
    needs("matplotlib")
    output_of("sweep_to_plot", tmp_path, "here.svg")
    assert [path.name for path in tmp_path.iterdir()] == ["here.svg"]


# --- the scripts as text ----------------------------------------------------------------------------


def test_examples_all_have_check():
    assert sorted([*CORE, *OF_EXTRAS, *OF_ARCHIVES]) == SCRIPTS


@pytest.mark.parametrize("name", SCRIPTS)
def test_example_is_short_and_states_how_to_run_it(name):
    text = (FOLDER / f"{name}.py").read_text()
    tree = ast.parse(text)
    sentence = ast.get_docstring(tree)
    for assumed in ("Needs:", f"python examples/{name}.py", "Prints "):
        assert assumed in sentence
    code = [line for line in text.splitlines()[tree.body[0].end_lineno :] if line.strip()]
    assert 15 <= len(code) <= 60
    assert 'if __name__ == "__main__":\n    main()\n' in text


def test_examples_readme_lists_every_file():
    listed = re.findall(r"\]\(([\w.-]+)\)", (FOLDER / "README.md").read_text())
    assert sorted(listed) == sorted(path.name for path in FOLDER.iterdir() if path.is_file() and path.stem != "README")
