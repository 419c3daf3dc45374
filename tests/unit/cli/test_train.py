"""``privproj train``: the fixed call, resuming, kills, hostile input."""

import json
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from helpers import needs
from privproj_cli.main import exit_code

import privproj
from privproj.assumptions import Requirement
from privproj.errors import UnsupportedError
from privproj.io.ledger import read_ledger

torch = needs("torch", "opacus", "sklearn")

from privproj.training.batches import Batch  # noqa: E402

FIXED = "train --data digits --mechanism m2 --rank 16 --epsilon 8 --delta 1e-5"


def train(line, folder):
    return exit_code([*line.split(), "-o", str(folder)])


@pytest.fixture
def small(tmp_path):
    """A small features file."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(120, 20))
    np.savez(tmp_path / "small.npz", x=x, y=(x[:, 0] > 0).astype(int))
    return tmp_path / "small.npz"


@pytest.mark.full
def test_fixed_call(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert exit_code([*FIXED.split(), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["test_accuracy"] > 0.93 and 7.5 <= found["epsilon"] <= 8.0 and found["delta"] == 1e-5
    assert (found["bound"], found["status"], found["steps"], found["device"]) == ("rank-free", "proved", 300, "cpu")
    run = found["result"]["run"]
    again = privproj.epsilon(
        privproj.M2(dim=65, rank=16, noise_multiplier=found["noise_multiplier"]), delta=1e-5, steps=300,
        sampling_rate=run["sampling_rate"],
    )  # fmt: skip
    assert found["epsilon"] == again.value
    assert json.loads((tmp_path / "privproj-train" / "report.json").read_text()) == found
    assert exit_code(["verify", str(tmp_path / "privproj-train" / "ledger.jsonl")]) == 0
    assert read_ledger(tmp_path / "privproj-train" / "ledger.jsonl").spent == 300
    capsys.readouterr()
    assert exit_code(FIXED.split()) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("test accuracy = ") and "bound:     rank-free (proved)" in shown
    assert (tmp_path / "privproj-train-2" / "checkpoint.pt").exists()


@pytest.mark.full
@pytest.mark.parametrize("options", ["dp-sgd", "lora-fa --rank 8", "m2-projected-clip --rank 8",
                                     "projected-dp-sgd --rank 30",
                                     "m2 --rank 8 --hidden 20", "m2 --rank 4 --frame wishart --clipping per-layer",
                                     "m2 --rank 8 --bound mixture-rdp",
                                     pytest.param("m2 --rank 8 --bound good-event-q", marks=pytest.mark.slow),
                                     "dp-sgd --hidden 8 --epochs 2", "m2 --rank 4 --sampling balls-in-bins --epochs 2",
                                     "dp-sgd --max-batch-size 70"])  # fmt: skip
def test_every_mechanism_trains_within_its_target(small, tmp_path, options, capsys):
    line = f"train --data {small} --mechanism {options} --epsilon 2 --delta 1e-4 --batch-size 30 --json"
    line += "" if "--epochs" in options else " --steps 5"
    assert train(line, tmp_path / "run") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["epsilon"] <= 2.0 and found["steps"] == (6 if "--epochs" in options else 5)


def weights_of(line, folder):
    """Train, and return all weights in a row and the checkpoint."""
    assert train(line, folder) == 0
    state = torch.load(folder / "checkpoint.pt", weights_only=True)
    return torch.cat([part.flatten() for part in state["module"].values()]), state


def test_prism_uses_the_optimizer_of_its_paper_by_default(small, tmp_path):
    line = f"train --data {small} --mechanism prism --rank 2 --noise-multiplier 1 --steps 4 --insecure-seed 0"
    default, _ = weights_of(line, tmp_path / "default")
    named = f"{line} --update adaptive --momentum 0.9 --beta2 0.99 --ridge 1 --learning-rate 0.2"
    assert torch.equal(weights_of(named, tmp_path / "named")[0], default)
    for option in ("--update plain", "--momentum 0.5", "--beta2 0.5", "--ridge 2"):
        again, _ = weights_of(f"{line} --learning-rate 0.2 {option}", tmp_path / option.split()[0])
        assert not torch.equal(again, default)


def test_dp_sft_trains_in_the_subspace_of_public_records(small, tmp_path, capsys):
    np.savez(tmp_path / "public.npz", x=np.random.default_rng(1).normal(size=(60, 20)), y=np.arange(60) % 2)
    line = f"train --data {small} --mechanism dp-sft --rank 3 --noise-multiplier 1 --steps 4 --subspace-steps 6 --json"
    line += f" --insecure-seed 0 --public-data {tmp_path / 'public.npz'}"
    weights, state = weights_of(line, tmp_path / "run")
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == 4 and "public-subspace" in found["result"]["requires"]
    assert [steps for _, steps in read_ledger(tmp_path / "run" / "ledger.jsonl").phases] == [4]
    # The head starts at zero, and the last snapshot is the end of the search.
    rows = torch.stack(state["rows"])
    outside = weights - torch.linalg.lstsq(rows.T, weights[:, None]).solution[:, 0] @ rows
    assert len(rows) == 3 and outside.norm() < 1e-5 * weights.norm()
    np.savez(tmp_path / "wide.npz", x=np.ones((60, 21)), y=np.arange(60) % 2)
    assert train(line.replace("public.npz", "wide.npz"), tmp_path / "wide") == 2
    assert "21 features" in capsys.readouterr().err


def test_dp_sft_resumes_adam_in_its_subspace(small, tmp_path, capsys):
    line = f"train --data {small} --mechanism dp-sft --rank 2 --epsilon 4 --steps 8 --subspace-steps 2 --json"
    _, state = weights_of(f"{line} --optimizer adam", tmp_path / "run")
    assert {float(part["step"]) for part in state["optimizer"]["state"].values()} == {6.0}
    first = json.loads(capsys.readouterr().out)
    assert first["epsilon"] <= 4.0 and first["steps"] == 8
    assert exit_code(["train", "--resume", str(tmp_path / "run"), "--json"]) == 0
    assert {**json.loads(capsys.readouterr().out), "seconds": 0} == {**first, "seconds": 0}


def test_finished_run_resumes_to_same_report(small, tmp_path, capsys):
    line = f"train --data {small} --mechanism m2 --rank 4 --epsilon 2 --steps 6 --json"
    assert train(line, tmp_path / "run") == 0
    first = json.loads(capsys.readouterr().out)
    assert exit_code(["train", "--resume", str(tmp_path / "run"), "--json"]) == 0
    second = json.loads(capsys.readouterr().out)
    assert {**first, "seconds": 0} == {**second, "seconds": 0}
    assert read_ledger(tmp_path / "run" / "ledger.jsonl").spent == 6


def test_run_with_lost_files_does_not_restart(small, tmp_path, capsys):
    line = f"train --data {small} --mechanism dp-sgd --noise-multiplier 2 --steps 3"
    assert train(line, tmp_path / "run") == 0
    for name in ("ledger.jsonl", "checkpoint.pt", "ledger.jsonl.data"):
        (tmp_path / "run" / name).unlink()
        capsys.readouterr()
        assert exit_code(["train", "--resume", str(tmp_path / "run")]) == 2
        assert capsys.readouterr().err.count("\n") == 1
        assert not (tmp_path / "run" / "checkpoint.pt").exists() or name == "ledger.jsonl"


def test_second_run_on_ledger_is_calibrated_with_first(tmp_path):
    from unit.training.helpers import data, mlp, private

    x, y = data(records=40)
    module, path = mlp(), str(tmp_path / "ledger.jsonl")
    for steps in (4, 5):
        if steps == 5:
            with pytest.raises(UnsupportedError, match="leave nothing"):
                private(module, x, y, noise_multiplier=None, epsilon=3.0, delta=1e-5, steps=5, ledger=path)
        target = {"noise_multiplier": None, "epsilon": 3.0 if steps == 4 else 4.0, "delta": 1e-5}
        _, optimizer, _ = private(module, x, y, steps=steps, ledger=path, **target)
        for _ in range(steps):
            optimizer._turn.open(Batch([]))
            optimizer.step()
        assert target["epsilon"] - 0.01 < optimizer.epsilon(1e-5).value <= target["epsilon"]
        optimizer.close()


def test_ledger_keeps_its_target_until_another_is_named(tmp_path, monkeypatch):
    from unit.training.helpers import data, mlp, private

    from privproj.training import private as start

    x, y = data(records=40)
    path = str(tmp_path / "ledger.jsonl")
    target = {"noise_multiplier": None, "epsilon": 2.0, "delta": 1e-5}

    def run(releases, **options):
        _, optimizer, _ = private(mlp(), x, y, ledger=path, **{"steps": 4, **options})
        for _ in range(releases):
            optimizer._turn.open(Batch([]))
            optimizer.step()
        optimizer.close()
        return optimizer

    first = run(2, **target)
    before = (tmp_path / "ledger.jsonl").read_bytes()
    for louder in ({"noise_multiplier": 1.0}, {"noise_multiplier": first.plan.noise_multiplier, "steps": 3}):
        with pytest.raises(UnsupportedError, match=r"above the 2 that .* keeps to"):
            run(0, **louder)
    assert (tmp_path / "ledger.jsonl").read_bytes() == before
    # Another machine may round another way. A resumed plan keeps the noise that its ledger has.
    found = start.calibrated
    monkeypatch.setattr(start, "calibrated", lambda *_, **__: pytest.fail("calibrated again"))
    assert run(0, **target).plan == run(1, noise_multiplier=first.plan.noise_multiplier).plan == first.plan
    monkeypatch.setattr(start, "calibrated", found)
    assert len(read_ledger(path).phases) == 1 and read_ledger(path).spent == 3
    more = run(4, **{**target, "epsilon": 3.0})
    assert 2.9 < more.epsilon(1e-5).value <= 3.0 and read_ledger(path).target["epsilon"] == 3.0


def test_checkpoint_without_ledger_is_rejected(small, tmp_path, capsys):
    line = f"train --data {small} --mechanism dp-sgd --epsilon 2 --steps 3"
    assert train(line, tmp_path / "run") == 0
    (tmp_path / "run" / "ledger.jsonl").unlink()
    assert exit_code(["train", "--resume", str(tmp_path / "run")]) == 2
    assert "3 releases of the checkpoint" in capsys.readouterr().err
    (tmp_path / "run" / "checkpoint.pt").write_bytes(b"PK garbage")
    assert exit_code(["train", "--resume", str(tmp_path / "run")]) == 2
    assert "a checkpoint of this run" in capsys.readouterr().err


def test_truncated_ledger_is_rejected_with_checkpoint(small, tmp_path, capsys):
    line = f"train --data {small} --mechanism dp-sgd --epsilon 2 --steps 3"
    assert train(line, tmp_path / "run") == 0
    ledger = tmp_path / "run" / "ledger.jsonl"
    for _ in range(3):
        ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-1]))
        left = ledger.read_bytes()
        assert exit_code(["train", "--resume", str(tmp_path / "run")]) == 2
        assert "3 releases of the checkpoint" in capsys.readouterr().err and ledger.read_bytes() == left


def test_ledger_without_checkpoint_is_rejected(small, tmp_path, capsys):
    """Fresh weights would be trained by the rest of the plan. A checkpoint is there before the first release."""
    from privproj.training import classifier

    settings = classifier.Settings(data=str(small), mechanism="dp-sgd", noise_multiplier=2.0, steps=5)
    classifier.begin_run(settings, tmp_path / "run")
    run = classifier.ClassifierTraining(settings, tmp_path / "run")
    assert run.optimizer.steps_done == 0 and (tmp_path / "run" / "checkpoint.pt").exists()
    run.optimizer.close()
    (tmp_path / "run" / "checkpoint.pt").unlink()
    assert exit_code(["train", "--resume", str(tmp_path / "run")]) == 0
    (tmp_path / "run" / "checkpoint.pt").unlink()
    capsys.readouterr()
    assert exit_code(["train", "--resume", str(tmp_path / "run")]) == 2
    output = capsys.readouterr().err
    assert "the checkpoint of the 5 releases" in output and "Restore both" in output and output.count("\n") == 1
    assert read_ledger(tmp_path / "run" / "ledger.jsonl").spent == 5


@pytest.mark.parametrize("rows", [400, 2000])
def test_run_is_not_resumed_on_other_data(tmp_path, capsys, rows):
    """Fewer records at the same batch size are drawn more often: epsilon would be far above the budget."""
    from privproj.training import classifier

    draw, file = np.random.default_rng(0), tmp_path / "records.npz"
    x = draw.normal(size=(2000, 5))
    np.savez(file, x=x, y=(x[:, 0] > 0).astype(int), test_x=x[:9], test_y=np.ones(9, int))
    settings = classifier.Settings(data=str(file), mechanism="dp-sgd", epsilon=2.0, steps=60, batch_size=50)
    classifier.begin_run(settings, tmp_path / "run")
    run = classifier.ClassifierTraining(settings, tmp_path / "run")
    run.step(next(iter(run.loader)))
    run.optimizer.close()
    x = draw.normal(size=(rows, 5))
    np.savez(file, x=x, y=(x[:, 0] > 0).astype(int), test_x=x[:9], test_y=np.ones(9, int))
    ledger = tmp_path / "run" / "ledger.jsonl"
    before = ledger.read_bytes()
    assert exit_code(["train", "--resume", str(tmp_path / "run")]) == 2
    output = capsys.readouterr().err
    assert ("400 records instead of 2000" if rows == 400 else "other contents") in output and output.count("\n") == 1
    (tmp_path / "run" / "ledger.jsonl.data").unlink()
    assert exit_code(["train", "--resume", str(tmp_path / "run")]) == 2
    assert "without ledger.jsonl.data." in capsys.readouterr().err
    assert ledger.read_bytes() == before and not (tmp_path / "run" / "ledger.jsonl.data").exists()


def test_settings_that_were_changed_are_not_resumed(small, tmp_path, capsys):
    """Nothing in the ledger's numbers would show another clip: the run began with the one it keeps."""
    line = f"train --data {small} --mechanism dp-sgd --noise-multiplier 2 --steps 3"
    assert train(line, tmp_path / "run") == 0
    path = tmp_path / "run" / "settings.json"
    kept = path.read_text()
    capsys.readouterr()
    for change in (('"clip": 1.0', '"clip": 2.0'), ('2.0,\n  "clip', '1.0,\n  "clip'), ('"sha256"', '"sha"')):
        path.write_text(kept.replace(*change))
        assert path.read_text() != kept and exit_code(["train", "--resume", str(tmp_path / "run")]) == 2
        assert capsys.readouterr().err.count("\n") == 1
    path.write_text(kept)
    assert exit_code(["train", "--resume", str(tmp_path / "run")]) == 0


def test_second_run_on_ledger_prints_assumptions(tmp_path):
    from unit.training.helpers import data, mlp, private

    x, y = data(records=40)
    for noise in (4.0, 5.0):
        _, optimizer, _ = private(mlp(), x, y, steps=1, noise_multiplier=noise, ledger=str(tmp_path / "ledger.jsonl"))
        optimizer._turn.open(Batch([]))
        optimizer.step()
        assumed = optimizer.epsilon(1e-5).mechanism["requirements"]
        assert (Requirement.FIXED_SCHEDULE in assumed) == (noise == 5.0)
        optimizer.close()


def test_run_without_number_at_its_end_does_not_begin(tmp_path, capsys):
    """Noise too small for the accountant is rejected before the first release."""
    line = "train --data digits --mechanism m2 --rank 16 --noise-multiplier 1e-9"
    assert train(line, tmp_path / "run") == 5
    assert capsys.readouterr().err.count("\n") == 1 and not (tmp_path / "run").exists()


def test_run_reports_that_one_ledger_is_counted(small, tmp_path, capsys):
    assert train(f"train --data {small} --mechanism dp-sgd --epsilon 2 --steps 2", tmp_path / "run") == 0
    assert Requirement.ONLY_THIS_LEDGER.short in capsys.readouterr().out
    assert Requirement.ONLY_THIS_LEDGER in (tmp_path / "run" / "report.json").read_text()


def test_insecure_seed_is_in_report(small, tmp_path, capsys):
    assert (
        train(f"train --data {small} --mechanism dp-sgd --epsilon 2 --steps 3 --insecure-seed 1", tmp_path / "run") == 0
    )
    assert "came from a known seed" in capsys.readouterr().out
    assert exit_code(["ledger", str(tmp_path / "run" / "ledger.jsonl")]) == 0
    assert "came from a known seed" in capsys.readouterr().out


def test_folder_with_run_is_not_overwritten(small, tmp_path, capsys):
    line = f"train --data {small} --mechanism dp-sgd --epsilon 2 --steps 3"
    assert train(line, tmp_path / "run") == 0
    before = {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()}
    assert train(line, tmp_path / "run") == 2
    assert "--resume" in capsys.readouterr().err
    assert {p.name: p.read_bytes() for p in (tmp_path / "run").iterdir()} == before


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("--data digits --mechanism m2 --epsilon 8", "--rank"),
        ("--data digits --mechanism m2 --rank 66 --epsilon 8", "rank"),
        ("--data digits --mechanism m2 --rank 0 --epsilon 8", "--rank must be"),
        ("--data digits --mechanism m2 --rank 16", "--epsilon"),
        ("--data digits --mechanism dp-sgd --epsilon nan", "finite"),
        ("--data digits --mechanism dp-sgd --epsilon 8 --delta 0", "delta"),
        ("--data digits --mechanism dp-sgd --epsilon 8 --steps 2.5", "steps"),
        ("--data digits --mechanism dp-sgd --epsilon 8 --steps 3 --epochs 3", "omitted if --epochs is given"),
        ("--data digits --mechanism dp-sgd --epsilon 8 --clip 0", "--clip must be"),
        ("--data digits --mechanism dp-sgd --epsilon 8 --learning-rate 0", "learning-rate"),
        ("--data digits --mechanism dp-sgd --epsilon 8 --device moon", "device"),
        ("--data digits --mechanism dp-sgd --epsilon 8 --batch-size 1e9", "batch-size"),
        ("--data nowhere.npz --mechanism dp-sgd --epsilon 8", "nowhere.npz"),
        ("--data digits --mechanism dp-sgd --epsilon 8 --noise-multiplier 1", "either"),
        ("--resume nowhere", "nowhere"),
        ("--data digits --mechanism dp-sgd --noise-multiplier 1 --delta 2", "delta"),
        ("--data digits --mechanism dp-sgd --noise-multiplier 1 --epochs 0", "epochs"),
        ("--data digits --mechanism lora-fa --rank 1e9 --epsilon 8", "rank"),
        ("--data digits --mechanism dp-sgd --epsilon 8 --clip 1e-300", "--clip must be"),
        ("--data digits --mechanism dp-sgd --epsilon 8 --device meta", "device"),
        ("--data digits --mechanism dp-sgd --epsilon 8 --frame wishart", "frame"),
        ("--data digits --mechanism prism --epsilon 8", "rank"),
        ("--data digits --mechanism dp-sft --epsilon 8", "rank"),
        ("--data digits --mechanism dp-sft --rank 1 --epsilon 8 --steps 1", "at least 2, one for the search"),
        ("--data digits --mechanism dp-sft --rank 9 --epsilon 8 --steps 10", "at most 5, the number of steps"),
        ("--resume nowhere --epsilon 3", "must be the only option"),
        ("--mechanism dp-sgd --epsilon 3", "--data"),
        ("--data digits --mechanism dp-sgd --epsilon 8 --batches 4", "poisson sampling"),
        (
            "--data digits --mechanism dp-sgd --epsilon 8 --sampling balls-in-bins --epochs 1.5",
            "epochs must be an integer",
        ),
        (
            "--data digits --mechanism dp-sgd --epsilon 8 --sampling balls-in-bins --batches 3 --batch-size 9",
            "omitted if --batch-size is given",
        ),
        (
            "--data digits --mechanism dp-sft --rank 2 --epsilon 8 --sampling balls-in-bins",
            "must be poisson with dp-sft",
        ),
        ("--data digits --mechanism dp-sft --rank 2 --epsilon 8 --subspace-steps 5", "a multiple of the rank 2"),
        ("--data digits --mechanism dp-sft --rank 2 --epsilon 8 --steps 4 --subspace-steps 4", "at least 5"),
        ("--data digits --mechanism dp-sft --rank 2 --epsilon 8 --public-data digits", "which is private"),
        ("--data digits --mechanism dp-sgd --epsilon 8 --momentum 0.5", "--momentum must be omitted with dp-sgd"),
        ("--data digits --mechanism prism --rank 2 --epsilon 8 --beta2 1", "from 0 to below 1"),
        (
            "--data digits --mechanism prism --rank 2 --epsilon 8 --update plain --ridge 1",
            "omitted with --update plain",
        ),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_no_file(tmp_path, monkeypatch, capsys, line, sentence):
    monkeypatch.chdir(tmp_path)
    assert exit_code(["train", *line.split()]) == 2
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.strip().count("\n") == 0 and sentence in shown.err
    assert list(tmp_path.iterdir()) == []


def test_shuffle_is_rejected_and_leaves_no_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    line = "train --data digits --mechanism dp-sgd --epsilon 8 --sampling shuffle"
    assert exit_code(line.split()) == 3
    output = capsys.readouterr().err
    assert "--sampling shuffle" in output and "balls-in-bins" in output and list(tmp_path.iterdir()) == []


def test_removing_record_keeps_train_test_split(tmp_path):
    from privproj.training.classifier import load

    x, file = np.random.default_rng(0).normal(size=(200, 3)).astype(np.float32), tmp_path / "records.npz"
    sizes = set()
    for left_out in (None, 0, 100, 199):
        rest = x if left_out is None else np.delete(x, left_out, axis=0)
        np.savez(file, x=rest, y=np.zeros(len(rest), int))
        train, test = ({tuple(row) for row in part.tolist()} for part in (load(str(file)).x, load(str(file)).test_x))
        if left_out is None:
            all_train, all_test = train, test
            assert 0.15 < len(test) / 200 < 0.35 and not train & test
        lost = {tuple(x[left_out].tolist())} if left_out is not None else set()
        assert train == all_train - lost and test == all_test - lost
        sizes.add(len(train))
    assert len(sizes) == 2  # a record of each part was left out


@pytest.mark.parametrize("arrays", [{"x": np.ones((4, 2))}, {"x": np.ones(4), "y": np.ones(4, int)},
                                    {"x": np.full((4, 2), np.nan), "y": np.ones(4, int)},
                                    {"x": np.ones((4, 2)), "y": np.ones(4)},
                                    {"x": np.ones((4, 2)), "y": -np.ones(4, int)},
                                    {"x": np.ones((1, 2)), "y": np.ones(1, int)},
                                    {"x": np.full((4, 2), 1e300), "y": np.ones(4, int)},
                                    {"x": np.ones((4, 2)), "y": np.ones(4, int), "test_x": np.ones((4, 3)),
                                     "test_y": np.ones(4, int)}])  # fmt: skip
def test_invalid_features_are_reported(tmp_path, capsys, arrays):
    np.savez(tmp_path / "bad.npz", **arrays)
    line = f"train --data {tmp_path / 'bad.npz'} --mechanism dp-sgd --epsilon 8"
    assert train(line, tmp_path / "run") == 2
    assert "must be" in capsys.readouterr().err and not (tmp_path / "run").exists()


@pytest.mark.parametrize("kinds", [(np.longdouble, np.int64), (">f8", ">i4"), (np.float16, np.uint8)])
def test_numbers_of_any_width_and_order_of_bytes_are_read(tmp_path, kinds):
    from privproj.training.classifier import load

    x, y = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float16), np.arange(60) % 2
    plain, other = tmp_path / "plain.npz", tmp_path / "other.npz"
    np.savez(plain, x=x.astype(np.float32), y=y)
    np.savez(other, x=x.astype(kinds[0]), y=y.astype(kinds[1]))
    one, two = load(str(plain)), load(str(other))
    assert all(np.array_equal(*pair) for pair in zip(vars(one).values(), vars(two).values(), strict=True))


def test_invalid_archive_error_never_advises_unsafe_load(tmp_path, capsys):
    (tmp_path / "bad.npz").write_text("junk")
    assert train(f"train --data {tmp_path / 'bad.npz'} --mechanism dp-sgd --epsilon 8", tmp_path / "run") == 2
    output = capsys.readouterr().err
    assert "numpy.savez" in output and "unsafe" not in output


# --- kills ------------------------------------------------------------------------------------------

WORKER = """
import sys
from pathlib import Path
from privproj.training import classifier
from privproj.training.optimizer import PrivateOptimizer
folder = Path(sys.argv[1])
used = open(folder / "used", "ab", buffering=0)
plain = PrivateOptimizer._use
def use(self, means):
    used.write(b".")
    plain(self, means)
PrivateOptimizer._use, PrivateLoader._check_next = use, check_next
run = classifier.ClassifierTraining(classifier.saved_settings(folder), folder)
print("ready", flush=True)
run.train()
"""


def killed_runs(small, folder, kills, seed):
    """Kill a run at random moments until it is done; after each kill the ledger holds at least what was used."""
    from privproj.training import classifier

    draw = random.Random(seed)
    settings = classifier.Settings(
        data=str(small), mechanism="m2", rank=4, epsilon=3.0, steps=900, batch_size=30, checkpoint_every=7
    )
    classifier.begin_run(settings, folder)
    for _ in range(kills):
        worker = subprocess.Popen([sys.executable, "-c", WORKER, str(folder)], stdout=subprocess.PIPE, text=True)
        assert worker.stdout.readline() == "ready\n"
        while not (folder / "used").stat().st_size and worker.poll() is None:
            time.sleep(0.01)
        time.sleep(draw.uniform(0.0, 2.0 / kills))
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        used = (folder / "used").stat().st_size
        assert used <= read_ledger(folder / "ledger.jsonl").spent <= used + kills
    return settings


@pytest.mark.slow
@pytest.mark.parametrize("kills", [2, 20])
def test_killed_run_resumes_to_equal_result(small, tmp_path, capsys, kills):
    settings = killed_runs(small, tmp_path / "run", kills, seed=kills)
    assert 0 < read_ledger(tmp_path / "run" / "ledger.jsonl").spent < settings.steps
    assert exit_code(["train", "--resume", str(tmp_path / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    line = f"train --data {small} --mechanism m2 --rank 4 --epsilon 3 --steps 900 --batch-size 30 --json"
    assert train(line, tmp_path / "whole") == 0
    whole = json.loads(capsys.readouterr().out)
    assert (found["epsilon"], found["steps"]) == (whole["epsilon"], whole["steps"])


PICKED = """
import json, sys, time
from pathlib import Path
from privproj.training import classifier
from privproj.training.batches import PrivateLoader
from privproj.training.optimizer import PrivateOptimizer
folder = Path(sys.argv[1])
used = open(folder / "used", "ab", buffering=0)
plain, check = PrivateOptimizer._use, PrivateLoader._check_next
def check_next(self, position, numbers):
    self.numbers = numbers
    check(self, position, numbers)
def use(self, means):
    used.write(json.dumps([self.steps_done - 1, self._turn.numbers]).encode() + b"\\n")
    plain(self, means)
    time.sleep(0.002)
PrivateOptimizer._use, PrivateLoader._check_next = use, check_next
classifier.ClassifierTraining(classifier.saved_settings(folder), folder).train()
"""


@pytest.mark.slow
def test_killed_balls_in_bins_run_uses_records_once(small, tmp_path):
    from privproj.training import classifier

    draw, folder, batches = random.Random(1), tmp_path / "run", 40
    settings = classifier.Settings(
        data=str(small), mechanism="dp-sgd", noise_multiplier=3.0, sampling="balls-in-bins", batches=batches, epochs=20
    )
    classifier.begin_run(settings, folder)
    for _ in range(8):
        worker = subprocess.Popen([sys.executable, "-c", PICKED, str(folder)])
        before = (folder / "used").stat().st_size if (folder / "used").exists() else 0
        while worker.poll() is None and not ((folder / "used").exists() and (folder / "used").stat().st_size > before):
            time.sleep(0.01)
        time.sleep(draw.uniform(0.0, 0.3))
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    assert subprocess.run([sys.executable, "-c", PICKED, str(folder)], check=True).returncode == 0
    used = [json.loads(line) for line in (folder / "used").read_text().splitlines()]
    positions = [position for position, _ in used]
    assert len(set(positions)) == len(positions) > batches * 20 - 9 and max(positions) < batches * 20
    assert sum(len(numbers) for _, numbers in used) > 19 * 90
    for epoch in range(20):
        records = [r for position, numbers in used if position // batches == epoch for r in numbers]
        assert len(records) == len(set(records)) <= 90
    account = read_ledger(folder / "ledger.jsonl")
    assert account.spent == batches * 20 and account.released_phases()[0].run.steps == 20


def test_clip_that_adapts_is_kept_and_reported(small, tmp_path, capsys):
    """The report has the clip at both ends, the ledger the deviation, and a resumed run goes on with the last clip."""
    line = f"train --data {small} --mechanism m2 --rank 4 --epsilon 3 --delta 1e-4 --batch-size 40 --steps 4"
    assert train(f"{line} --adaptive-clipping-sigma 5 --clip 0.1 --json", tmp_path / "run") == 0
    found = json.loads(capsys.readouterr().out)
    clips = found["adaptive_clipping"]
    assert (clips["first_clip"], clips["sigma"]) == (0.1, 5.0)
    assert clips["last_clip"] > 0.1 and found["epsilon"] <= 3.0
    assert read_ledger(tmp_path / "run" / "ledger.jsonl").phases[0][0]["adaptive_clipping_sigma"] == 5.0
    assert exit_code(["train", "--resume", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert f"0.1 at the first step, {clips['last_clip']:.4g} at the last" in shown
    assert train(f"{line.replace('m2', 'dp-sft')} --adaptive-clipping-sigma 5", tmp_path / "other") == 2
    assert "dp-sft" in capsys.readouterr().err
    assert train(f"{line} --adaptive-clipping-sigma 5 --clipping per-layer", tmp_path / "other") == 2
    capsys.readouterr()
    assert train(f"{line} --adaptive-clipping-sigma 0", tmp_path / "other") == 2
    assert "--adaptive-clipping-sigma must be" in capsys.readouterr().err


def test_interrupted_run_prints_how_to_resume(small, tmp_path, monkeypatch, capsys):
    from privproj.training import classifier

    step = classifier.ClassifierTraining.step

    def interrupted(run, batch):
        step(run, batch)
        raise KeyboardInterrupt

    monkeypatch.setattr(classifier.ClassifierTraining, "step", interrupted)
    line = ["train", "--data", small, "--mechanism", "dp-sgd", "--epsilon", "4", "--delta", "1e-4", "--steps", "5"]
    assert exit_code([*line, "--output", str(tmp_path / "run")]) == 130
    assert f"Run `privproj train --resume {tmp_path / 'run'}` to continue" in capsys.readouterr().err
    monkeypatch.undo()
    assert exit_code(["train", "--resume", str(tmp_path / "run")]) == 0
    assert read_ledger(tmp_path / "run" / "ledger.jsonl").spent == 5
