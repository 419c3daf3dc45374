"""The Trainer of transformers, trained privately: what it releases, what it logs, how it resumes, what it refuses."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import needs

from privproj.assumptions import Requirement
from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.io import read_ledger

torch = needs("torch", "opacus")

from privproj.training.batches import BatchState  # noqa: E402
from privproj.training.engine import ResumedLedger  # noqa: E402

pytestmark = pytest.mark.full

KINDS = (
    "causal", "gpt-2", "masked", "tokens", "classes", "regression", "several classes", "encoder and decoder",
)  # fmt: skip
PRIVACY = {"algorithm": "dp-sgd", "noise_multiplier": 1.0, "delta": 1e-5, "max_grad_norm": 1.0}
FIXED = {**PRIVACY, "algorithm": "lora-fa"}
BUDGET = {**FIXED, "epsilon": 2.0, "noise_multiplier": None}


@pytest.fixture(scope="module")
def runs():
    """Small models, texts and Trainers; importing them takes seconds."""
    needs("peft", "transformers", "accelerate")
    from unit.integrations import trainer_runs

    return trainer_runs


# --- the loss of a record -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_trainer_loss_of_record_depends_on_it_alone(runs, kind, tmp_path):
    model, data = runs.KINDS[kind]()
    model.eval()
    own = runs.trainer(tmp_path, model, data)
    losses = own.compute_record_losses(model, runs.padded(data))
    alone = torch.stack([model(**runs.padded([record])).loss for record in data])
    torch.testing.assert_close(losses, alone, rtol=1e-4, atol=1e-5)


def test_trainer_label_smoothing_is_per_record(runs, tmp_path):
    own, data = runs.trainer(tmp_path, label_smoothing_factor=0.2), runs.texts()
    losses = own.compute_record_losses(own.model, runs.padded(data))
    smooth = own.label_smoother
    for loss, record in zip(losses, data, strict=True):
        batch = runs.padded([record])
        alone = smooth(own.model(**batch), batch["labels"], shift_labels=True)
        torch.testing.assert_close(loss, alone, rtol=1e-4, atol=1e-5)


# --- what is released ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("at_a_time", "accumulation"), [(12, 1), (5, 3)])
@pytest.mark.parametrize("make", ["head_only", "adapted"])
def test_trainer_step_is_clipped_sum(runs, make, at_a_time, accumulation, tmp_path):
    model, data = getattr(runs, make)(), runs.texts(at_a_time * accumulation)
    trained = [p for p in model.parameters() if p.requires_grad]
    found = [torch.autograd.grad(model(**runs.padded([record])).loss, trained) for record in data]
    norms = torch.stack([torch.cat([g.flatten() for g in gradients]).norm() for gradients in found])
    clip = float(norms.median())
    factors = (clip / norms).clamp(max=1.0)
    before = [p.detach().clone() for p in trained]
    descent = torch.optim.SGD(trained, lr=1.0)
    schedule = torch.optim.lr_scheduler.ConstantLR(descent, factor=1.0)
    runs.trainer(
        tmp_path, model, data, {**PRIVACY, "noise_multiplier": 1e-12, "max_grad_norm": clip},
        optimizers=(descent, schedule), max_steps=1,
        per_device_train_batch_size=at_a_time, gradient_accumulation_steps=accumulation,
    ).train()  # fmt: skip
    for old, p, *gradients in zip(before, trained, *found, strict=True):
        mean = sum(factor * g for factor, g in zip(factors, gradients, strict=True)) / len(data)
        torch.testing.assert_close(old - p.detach(), mean, rtol=1e-3, atol=1e-3 * clip / len(data))


@pytest.mark.parametrize("length", [{"num_train_epochs": 2.5}, {"max_steps": 7}])
def test_trainer_releases_exactly_planned_steps(runs, length, tmp_path):
    own = runs.trainer(
        tmp_path, data=runs.texts(40), privacy={**PRIVACY, "epsilon": 2.0, "noise_multiplier": None}, **length
    )
    planned = length.get("max_steps", 18)  # 2.5 passes of ceil(40/6) steps are 17.5
    done = own.train()
    account = read_ledger(tmp_path / "ledger.jsonl")
    assert done.global_step == own.private_optimizer._steps == own.private_optimizer._plan.steps == account.spent
    assert account.spent == planned and account.left == 0
    assert own.private_optimizer._plan.expected_batch == pytest.approx(6, rel=1e-5)
    assert 1.99 < own.epsilon().value <= 2.0


def test_trainer_with_empty_batches_runs_all_steps(runs, tmp_path):
    """Eight records in eight batches: an empty batch at the end of a run was waited for forever."""
    options = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "num_train_epochs": 2}
    for name, privacy in (("bins", {"batches": "balls-in-bins"}), ("poisson", {})):
        given = {**PRIVACY, **privacy, "insecure_seed": 2}
        own = runs.trainer(tmp_path / name, data=runs.texts(8), privacy=given, **options)
        assert own.train().global_step == own.private_optimizer._steps == 16
        assert read_ledger(tmp_path / name / "ledger.jsonl").spent == 16


def test_trainer_balls_in_bins_pass_is_epoch(runs, tmp_path, monkeypatch):
    drawn, plain = [], BatchState.open
    monkeypatch.setattr(BatchState, "open", lambda turn, *given: (drawn.append(given[2]), plain(turn, *given)))
    privacy = {**PRIVACY, "batches": "balls-in-bins"}
    own = runs.trainer(tmp_path, data=runs.texts(40), privacy=privacy, num_train_epochs=2)
    assert own.train().global_step == len(drawn) == 14
    for epoch in (drawn[:7], drawn[7:]):
        assert sorted(number for numbers in epoch for number in numbers) == list(range(40))
    assert read_ledger(tmp_path / "ledger.jsonl").released_phases()[0].run.steps == 2
    with pytest.raises(InvalidParameterError, match="steps must be a multiple of 7"):
        runs.trainer(tmp_path / "part", data=runs.texts(40), privacy=privacy, num_train_epochs=1.5).train()


def test_trainer_logs_epsilon_and_no_batch_statistic(runs, tmp_path):
    own = runs.trainer(
        tmp_path, data=runs.texts(40), privacy={**PRIVACY, "epsilon": 2.0, "noise_multiplier": None}, max_steps=5,
        save_strategy="steps", save_steps=5, logging_strategy="steps", logging_steps=1,
    )  # fmt: skip
    done = own.train()
    logged = own.state.log_history
    spent = [entry["epsilon"] for entry in logged]
    assert len(spent) == 6 and spent[:5] == sorted(set(spent)) and 1.99 < spent[-1] <= 2.0
    assert all(entry["delta"] == 1e-5 for entry in logged)
    for entry in (*logged, done.metrics):
        assert not {"loss", "train_loss", "grad_norm", "num_input_tokens_seen"} & set(entry)
    assert own.state.total_flos == 0 and done.training_loss is None
    assert '"loss"' not in (tmp_path / "checkpoint-5" / "trainer_state.json").read_text()


def test_trainer_evaluates_and_saves_as_usual(runs, tmp_path):
    own = runs.trainer(
        tmp_path, runs.adapted(), runs.texts(40), FIXED, max_steps=3, eval_strategy="steps", eval_steps=1,
        eval_dataset=runs.texts(5, seed=1), learning_rate=0.5,
    )  # fmt: skip
    own.train()
    measured = [entry["eval_loss"] for entry in own.state.log_history if "eval_loss" in entry]
    assert len(set(measured)) == 3
    own.save_model(str(tmp_path / "saved"))
    loaded = runs.PeftModel.from_pretrained(runs.llama(), str(tmp_path / "saved"))
    batch = runs.padded(runs.texts(5, seed=1))
    torch.testing.assert_close(loaded(**batch).logits, own.model.eval()(**batch).logits)
    plain = own.evaluate()["eval_loss"]
    assert plain == pytest.approx(measured[-1], rel=1e-6)
    assert all(p.requires_grad == ("lora_B" in name) for name, p in own.model.named_parameters())


# --- resuming -----------------------------------------------------------------------------------------


SAVING = {"max_steps": 6, "save_strategy": "steps", "save_steps": 2}
LOGGING = {"logging_strategy": "steps", "logging_steps": 1}


KILLED = """
import json, sys
from unit.integrations import trainer_runs as runs

folder, after, privacy, options = map(json.loads, sys.argv[1:])
own = runs.trainer(folder, runs.adapted(), runs.texts(40), privacy, **options)
own.add_callback(runs.Killed(after))
own.train()
"""


def killed_run(folder, after, **options):
    """The folder of a run whose process was killed after so many steps."""
    arguments = map(json.dumps, (str(folder), after, BUDGET, {**SAVING, **options}))
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *arguments], env=paths, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]


def test_trainer_killed_run_resumes_with_same_epsilon(runs, tmp_path):
    whole = runs.trainer(tmp_path / "whole", runs.adapted(), runs.texts(40), BUDGET, **SAVING, **LOGGING)
    whole.train()
    killed_run(tmp_path / "killed", after=3, **LOGGING)
    assert read_ledger(tmp_path / "killed" / "ledger.jsonl").spent == 3
    own = runs.trainer(tmp_path / "killed", runs.adapted(), runs.texts(40), BUDGET, **SAVING, **LOGGING)
    with pytest.warns(ResumedLedger, match="1 releases after the checkpoint"):
        done = own.train(resume_from_checkpoint=True)
    assert done.global_step == own.private_optimizer._steps == 6
    assert read_ledger(tmp_path / "killed" / "ledger.jsonl").spent == 6
    assert own.epsilon().value == whole.epsilon().value <= 2.0
    rates = [[e["learning_rate"] for e in t.state.log_history if "learning_rate" in e] for t in (whole, own)]
    assert rates[1] == [*rates[0][:2], *rates[0][3:]]
    assert sorted(p.name[-1] for p in (tmp_path / "killed").glob("checkpoint-*")) == ["2", "4", "6"]


@pytest.fixture(scope="module")
def finished(runs, tmp_path_factory):
    """A run that made all its steps."""
    own = runs.trainer(tmp_path_factory.mktemp("finished"), runs.adapted(), runs.texts(40), FIXED, **SAVING)
    own.train()
    return own


@pytest.fixture
def folder(finished, tmp_path):
    """A copy of its folder."""
    return Path(shutil.copytree(finished.args.output_dir, tmp_path / "run"))


def test_trainer_resumes_weights_and_momentum(runs, finished, folder):
    own = runs.trainer(folder, runs.adapted(), runs.texts(40), FIXED, **SAVING)
    done = own.train(resume_from_checkpoint=str(folder / "checkpoint-6"))
    assert done.global_step == own.private_optimizer._steps == read_ledger(folder / "ledger.jsonl").spent == 6
    for (name, p), (_, q) in zip(finished.model.named_parameters(), own.model.named_parameters(), strict=True):
        assert torch.equal(p, q), name
    for p, q in zip(finished.optimizer.state.values(), own.optimizer.state.values(), strict=True):
        assert torch.equal(p["exp_avg"], q["exp_avg"])


def test_trainer_checkpoint_has_tensors_trained_by_m2(runs, tmp_path):
    from privproj.training import import_peft

    privacy = {**PRIVACY, "algorithm": "m2"}
    first = runs.trainer(tmp_path, runs.adapted("m2"), runs.texts(40), privacy, **SAVING)
    first.train()
    own = runs.trainer(tmp_path, runs.adapted("m2"), runs.texts(40), privacy, **SAVING)
    assert own.train(resume_from_checkpoint=True).global_step == 6
    batch = runs.padded(runs.texts(5, seed=1))
    trained = first.model.eval()(**batch).logits
    assert not torch.allclose(trained, runs.llama().eval()(**batch).logits)
    torch.testing.assert_close(own.model.eval()(**batch).logits, trained)
    first.save_model(str(tmp_path / "saved"))
    torch.testing.assert_close(import_peft(runs.llama(), tmp_path / "saved").eval()(**batch).logits, trained)
    with pytest.raises(InvalidParameterError, match="load_best_model_at_end"):
        runs.trainer(
            tmp_path, runs.adapted("m2"), runs.texts(40), privacy, load_best_model_at_end=True,
            eval_strategy="steps", eval_steps=2, eval_dataset=runs.texts(5), **SAVING,
        )  # fmt: skip


def without_two_lines(ledger):
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-2]))


@pytest.mark.parametrize("damage", [Path.unlink, without_two_lines])
def test_trainer_rejects_ledger_behind_checkpoint(runs, damage, folder):
    damage(folder / "ledger.jsonl")
    with pytest.raises(InvalidParameterError, match="releases"):
        runs.trainer(folder, runs.adapted(), runs.texts(40), FIXED, **SAVING).train(resume_from_checkpoint=True)


@pytest.mark.parametrize("changed", [{"ledger": None}, {"noise_multiplier": 2.0}])
def test_trainer_resume_needs_ledger_and_same_plan(runs, changed, folder):
    own = runs.trainer(folder, runs.adapted(), runs.texts(40), {**FIXED, **changed}, **SAVING)
    with pytest.raises(InvalidParameterError, match="releases"):
        own.train(resume_from_checkpoint=True)


def test_trainer_rejects_second_run_in_same_folder(runs, folder):
    with pytest.raises(UnsupportedError, match="resume_from_checkpoint"):
        runs.trainer(folder, runs.adapted(), runs.texts(40), FIXED, **SAVING).train()
    assert read_ledger(folder / "ledger.jsonl").spent == 6


def test_trainer_continues_only_with_its_ledger(runs, tmp_path):
    """In this process a second run is counted with the first; a resumed one has nothing left to do."""
    model, book = runs.adapted(), tmp_path / "one" / "ledger.jsonl"
    first = runs.trainer(tmp_path / "one", model, runs.texts(40), FIXED, **SAVING)
    first.train()
    assert first.train(resume_from_checkpoint=True).global_step == 6
    assert [steps for _, steps in read_ledger(book).phases] == [6]
    for privacy in (FIXED, {**FIXED, "ledger": None}):
        with pytest.raises(InvalidParameterError, match="from an earlier call of make_private"):
            runs.trainer(tmp_path / "two", model, runs.texts(40), privacy, **SAVING).train()
    second = runs.trainer(tmp_path / "two", model, runs.texts(40), {**FIXED, "ledger": str(book)}, **SAVING)
    second.train()
    assert second.epsilon().value == read_ledger(book).epsilon(1e-5).value > first.epsilon().value
    assert Requirement.ONLY_THIS_LEDGER in second.epsilon().requirements


def test_trainer_stopped_run_reports_less_epsilon(runs, tmp_path):
    own = runs.trainer(tmp_path, runs.adapted(), runs.texts(40), FIXED, **SAVING)
    own.add_callback(runs.Stop())
    assert own.train().global_step == own.private_optimizer._steps == 4
    assert any("4 of 6" in sentence for sentence in own.epsilon().warnings)


# --- unsupported uses ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"auto_find_batch_size": True}, "auto_find_batch_size"),
        ({"fp16": True}, "mixed_precision"),
        ({"neftune_noise_alpha": 5.0}, "neftune_noise_alpha"),
        ({"use_liger_kernel": True}, "use_liger_kernel"),
        ({"include_num_input_tokens_seen": "all"}, "include_num_input_tokens_seen"),
        ({"train_sampling_strategy": "group_by_length"}, "train_sampling_strategy"),
        ({"optim": "galore_adamw_layerwise", "optim_target_modules": "all"}, "optim"),
        ({"optim": "lomo"}, "optim"),
        ({"optim": "schedule_free_adamw"}, "optim"),
    ],
)
def test_trainer_rejects_unsound_arguments_by_name(runs, options, name, tmp_path):
    with pytest.raises(InvalidParameterError, match=name):
        runs.trainer(tmp_path, **options)


@pytest.mark.parametrize(
    ("privacy", "sentence"),
    [
        ({**PRIVACY, "steps": 3}, "TrainingArguments"),
        ({**PRIVACY, "clip": 3}, "max_grad_norm"),
        ({"max_grad_norm": 1.0, "noise_multiplier": 1.0}, "delta"),
    ],
)
def test_trainer_takes_privacy_options_of_make_private(runs, privacy, sentence, tmp_path):
    with pytest.raises(InvalidParameterError, match=sentence):
        runs.trainer(tmp_path, privacy=privacy)


def test_trainer_rejects_loss_of_whole_batch(runs, tmp_path):
    with pytest.raises(InvalidParameterError, match="compute_record_losses"):
        runs.trainer(tmp_path, kind=runs.Weighted)
    assert runs.trainer(tmp_path, kind=runs.WeightedRecords, max_steps=1).train().global_step == 1


def test_trainer_rejects_unknown_head_and_iterable_data(runs, tmp_path):
    with pytest.raises(InvalidParameterError, match="compute_record_losses"):
        runs.trainer(tmp_path, torch.nn.Linear(3, 2))
    with pytest.raises(InvalidParameterError, match="Stream"):
        runs.trainer(tmp_path, data=runs.Stream(), max_steps=2)


def test_trainer_arguments_stay_unchanged(runs, tmp_path):
    own = runs.TrainingArguments(str(tmp_path), gradient_accumulation_steps=4, max_grad_norm=3.0, use_cpu=True)
    clipped = {**PRIVACY, "max_grad_norm": 3.0}
    runs.PrivateTrainer(runs.llama(), own, train_dataset=runs.texts(), privacy=clipped)
    del clipped["max_grad_norm"]
    assert (
        runs.PrivateTrainer(runs.llama(), own, train_dataset=runs.texts(), privacy=clipped).privacy["max_grad_norm"]
        == 3.0
    )
    with pytest.raises(InvalidParameterError, match="the same in TrainingArguments and privacy"):
        runs.PrivateTrainer(runs.llama(), own, train_dataset=runs.texts(), privacy=PRIVACY)
    assert (own.gradient_accumulation_steps, own.max_grad_norm, own.ignore_data_skip) == (4, 3.0, False)


def test_trainer_mixin_works_for_every_subclass(runs, tmp_path):
    assert runs.trainer(tmp_path, kind=runs.Both, max_steps=1).train().global_step == 1
