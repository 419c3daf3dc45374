"""The private Trainer of transformers: releases, logs, resumed runs, errors."""

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

from privproj.training.batches import PrivateLoader  # noqa: E402
from privproj.training.private import ResumedLedger  # noqa: E402

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


# --- what is released ---------------------------------------------------------------------------------


def check_step(runs, folder, model, data, loss_of, batch=(12, 1), **options):
    """Check that a step without noise is the mean of the clipped gradients of ``loss_of(model, record)``."""
    trained = [p for p in model.parameters() if p.requires_grad]
    gradients = [torch.autograd.grad(loss_of(model, runs.padded([r])), trained, allow_unused=True) for r in data]
    rows = [torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(trained, one, strict=True)])
            for one in gradients]  # fmt: skip
    norms = torch.stack(rows).norm(dim=1)
    clip = float(norms.median())
    mean = ((clip / norms).clamp(max=1.0)[:, None] * torch.stack(rows)).mean(0)
    before = torch.cat([p.detach().flatten() for p in trained])
    descent = torch.optim.SGD(trained, lr=1.0)
    schedule = torch.optim.lr_scheduler.ConstantLR(descent, factor=1.0)
    own = runs.trainer(
        folder, model, data, {**PRIVACY, "noise_multiplier": 1e-12, "max_grad_norm": clip},
        optimizers=(descent, schedule), max_steps=1, per_device_train_batch_size=batch[0],
        gradient_accumulation_steps=batch[1], **options,
    )  # fmt: skip
    own.train()
    change = before - torch.cat([p.detach().flatten() for p in trained])
    torch.testing.assert_close(change, mean, rtol=1e-3, atol=1e-4 * clip)
    return own


def model_loss(model, record):
    return model(**record).loss


@pytest.mark.parametrize("kind", KINDS)
def test_trainer_step_is_the_clipped_sum_for_model(runs, kind, tmp_path):
    model, data = runs.KINDS[kind]()
    check_step(runs, tmp_path, model, data, model_loss)


@pytest.mark.parametrize("batch", [(12, 1), (5, 3)])
@pytest.mark.parametrize("make", ["head_only", "adapted"])
def test_trainer_step_is_the_clipped_sum(runs, make, batch, tmp_path):
    check_step(runs, tmp_path, getattr(runs, make)(), runs.texts(batch[0] * batch[1]), model_loss, batch)


def test_trainer_step_one_by_one_is_the_same(runs, tmp_path):
    data, privacy = runs.texts(), {**PRIVACY, "insecure_seed": 1}
    models = [runs.head_only() for _ in range(2)]
    for model, one_by_one in zip(models, (False, True), strict=True):
        given = {**privacy, "one_by_one": one_by_one}
        runs.trainer(tmp_path / str(one_by_one), model, data, given, max_steps=2, optim="sgd").train()
    torch.testing.assert_close(*(model.lm_head.weight for model in models), rtol=1e-4, atol=1e-6)


def test_trainer_label_smoothing_is_per_record(runs, tmp_path):
    from transformers.trainer_pt_utils import LabelSmoother

    smooth = LabelSmoother(0.2)
    check_step(
        runs, tmp_path, runs.head_only(), runs.texts(),
        lambda model, record: smooth(model(**record), record["labels"], shift_labels=True), label_smoothing_factor=0.2,
    )  # fmt: skip


def test_trainer_uses_its_compute_loss_func(runs, tmp_path):
    def squares(outputs, labels, num_items_in_batch=None):
        return (outputs.logits**2 * (labels >= 0)[..., None]).sum()

    check_step(
        runs, tmp_path, runs.head_only(), runs.texts(),
        lambda model, record: squares(model(**record), record["labels"]), compute_loss_func=squares,
    )  # fmt: skip


def test_trainer_uses_an_overridden_compute_loss(runs, tmp_path):
    model, data = runs.head_only(), runs.texts()
    check_step(runs, tmp_path, model, data, lambda m, record: 2.0 * model_loss(m, record), kind=runs.Weighted)


def test_trainer_trains_a_model_of_any_class(runs, tmp_path):
    check_step(runs, tmp_path, runs.Bags(), runs.texts(), lambda m, record: m(**record)["loss"])


@pytest.mark.parametrize("length", [{"num_train_epochs": 2.5}, {"max_steps": 7}])
def test_trainer_releases_exactly_the_planned_steps(runs, length, tmp_path):
    own = runs.trainer(
        tmp_path, data=runs.texts(40), privacy={**PRIVACY, "epsilon": 2.0, "noise_multiplier": None}, **length
    )
    planned = length.get("max_steps", 18)  # 2.5 passes of ceil(40/6) steps are 17.5
    done = own.train()
    account = read_ledger(tmp_path / "ledger.jsonl")
    assert done.global_step == own.private_optimizer.steps_done == own.private_optimizer.plan.steps == account.spent
    assert account.spent == planned and account.left == 0
    assert own.private_optimizer.plan.expected_batch == pytest.approx(6, rel=1e-5)
    assert 1.99 < own.epsilon().value <= 2.0


def test_trainer_with_empty_batches_runs_all_steps(runs, tmp_path):
    """Eight records in eight batches: an empty batch at the end of a run was waited for forever."""
    options = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 1, "num_train_epochs": 2}
    for name, privacy in (("bins", {"batches": "balls-in-bins"}), ("poisson", {})):
        given = {**PRIVACY, **privacy, "insecure_seed": 2}
        own = runs.trainer(tmp_path / name, data=runs.texts(8), privacy=given, **options)
        assert own.train().global_step == own.private_optimizer.steps_done == 16
        assert read_ledger(tmp_path / name / "ledger.jsonl").spent == 16


def test_trainer_balls_in_bins_pass_is_an_epoch(runs, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(PrivateLoader, "_check_next", lambda loader, position, numbers: drawn.append(numbers))
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
    assert done.global_step == own.private_optimizer.steps_done == 6
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
    assert done.global_step == own.private_optimizer.steps_done == read_ledger(folder / "ledger.jsonl").spent == 6
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
    assert own.train().global_step == own.private_optimizer.steps_done == 4
    assert any("4 of 6" in condition for condition in own.epsilon().warnings)


# --- errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"auto_find_batch_size": True}, "auto_find_batch_size"),
        ({"fp16": True}, "mixed_precision"),
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
    ("privacy", "condition"),
    [
        ({**PRIVACY, "steps": 3}, "TrainingArguments"),
        ({**PRIVACY, "clip": 3}, "max_grad_norm"),
        ({**PRIVACY, "strict": True}, "one_by_one"),
        ({"max_grad_norm": 1.0, "noise_multiplier": 1.0}, "delta"),
    ],
)
def test_trainer_takes_privacy_options_of_make_private(runs, privacy, condition, tmp_path):
    with pytest.raises(InvalidParameterError, match=condition):
        runs.trainer(tmp_path, privacy=privacy)


def test_trainer_rejects_iterable_data(runs, tmp_path):
    with pytest.raises(InvalidParameterError, match="Stream"):
        runs.trainer(tmp_path, data=runs.Stream(), max_steps=2)


@pytest.mark.parametrize("loss", ["ContrastiveLoss", "CountedLoss"])
def test_trainer_rejects_loss_that_needs_the_batch(runs, loss, tmp_path):
    condition = {"ContrastiveLoss": "gradients that are exactly zero", "CountedLoss": "kept after the call"}[loss]
    with pytest.raises(InvalidParameterError, match=condition):
        runs.trainer(tmp_path, kind=getattr(runs, loss), max_steps=3).train()


def test_trainer_supports_neftune(runs, tmp_path):
    assert runs.trainer(tmp_path, neftune_noise_alpha=5.0, max_steps=2).train().global_step == 2


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
