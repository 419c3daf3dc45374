"""The ``Trainer`` of transformers, trained privately; users import it from ``privproj.integrations.transformers``.

Trainer keeps its loop: it draws a batch, calls ``training_step``, then ``optimizer.step``. Here a batch is a whole
logical batch, so that Trainer's own accumulation is set aside and each of its steps is one release.
"""

import copy
import inspect
import math
import warnings
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss
from torch.utils.data import DataLoader, IterableDataset
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.trainer_utils import has_length

from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.result import Result
from privproj.training.batches import WORKER_SETTINGS, PrivateLoader
from privproj.training.optimizer import PrivateOptimizer
from privproj.training.plan import batches_of
from privproj.training.private import ResumedLedger, make_private

GIVEN_BY_TRAINER = {"module", "optimizer", "data_loader", "steps", "epochs", "again"}
"""Arguments of :func:`make_private` that Trainer's own arguments, or those of ``train``, say. Contract."""

LEDGER = "ledger.jsonl"
"""The file of the ledger within ``output_dir``, where no other is named. Contract: a run is resumed from it."""

IGNORED = -100
"""The label of a token without a loss, as transformers has it. Contract."""

BATCH_STATISTICS = ("loss", "train_loss", "grad_norm")
"""Entries of Trainer's logs that come from a batch without noise, or from gradients that do not exist here.
Soundness."""

WORKERS = {"NO", "MULTI_CPU", "MULTI_GPU"}
"""Kinds of runs in which every process holds the whole model. Contract."""

CLASSES = tuple(f"For{kind}Classification" for kind in ("Sequence", "Image", "Video", "Audio"))
"""Endings of the names of models with one score for each class. Contract."""

UNSOUND = {
    "auto_find_batch_size": (False, "the batch size is fixed before training"),
    "neftune_noise_alpha": (None, "its noise depends on the length of the longest record of a batch"),
    "use_liger_kernel": (False, "its fused kernels bypass the per-example gradients"),
    "include_num_input_tokens_seen": ("no", "the number of tokens in a batch is private"),
    "train_sampling_strategy": ("random", "privproj draws the batches"),
    "group_by_length": (False, "privproj draws the batches"),
}
"""Arguments of Trainer that must keep one value, and why. Soundness."""

OWN_UPDATES = ("layerwise", "lomo", "schedule_free")
"""Words in the names of optimizers that change weights elsewhere than in ``step``. Soundness."""


class PrivateTrainer(Trainer):
    """A ``Trainer`` that trains privately, holds its epsilon in a ledger and says it in its logs.

    Batches are Poisson samples of ``per_device_train_batch_size * gradient_accumulation_steps`` records for each
    process, in expectation; they are worked through ``per_device_train_batch_size`` records at a time and released
    together. ``num_train_epochs`` or ``max_steps`` give the number of releases. Trainer's own clipping, accumulation
    and skipping of batches are set aside in a copy of its arguments. The rest stays: the optimizer and its schedule,
    evaluation, callbacks, checkpoints. ``train(resume_from_checkpoint=True)`` goes on after the releases of the ledger.

    The logs hold ``epsilon`` and ``delta`` where Trainer has the training loss, which is a statistic of private records
    that no noise protects, like the gradient norm, the number of tokens and operations. None of them is kept. What is
    evaluated is not protected either: evaluate on other records.

    The loss of a record is its own. For language models and token classification it is the mean over the record's own
    labeled tokens; sequence classification and regression are known too. For others override
    :meth:`compute_record_losses`.

    Args:
        *args: Arguments of ``Trainer``, as they are.
        privacy: Arguments of :func:`privproj.training.make_private` by their names: ``delta``, ``max_grad_norm`` (the
            clip of each record; that of ``TrainingArguments`` where it is left out) and ``epsilon`` or
            ``noise_multiplier``, and any other but those that Trainer's own arguments say. ``delta`` is also that of
            the logs. ``ledger`` is ``output_dir/ledger.jsonl`` unless named.
            ``strict=True`` computes every record by itself, as in :meth:`PrivateOptimizer.backward_on`.
        **kwargs: Arguments of ``Trainer``, as they are.

    Raises:
        InvalidParameterError: ``privacy`` has an unknown name or no ``delta``, an argument of Trainer would break a
            promise of the accounting, or the loss of a record is not known.

    >>> import tempfile
    >>> import torch
    >>> from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments
    >>> from privproj.integrations.transformers import PrivateTrainer
    >>> texts = [{"input_ids": torch.arange(6), "labels": torch.arange(6)} for _ in range(40)]
    >>> sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    >>> model = LlamaForCausalLM(LlamaConfig(vocab_size=8, **sizes)).requires_grad_(False)
    >>> _ = model.lm_head.requires_grad_(True)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     trainer = PrivateTrainer(
    ...         model,
    ...         TrainingArguments(
    ...             folder, per_device_train_batch_size=4, gradient_accumulation_steps=2, num_train_epochs=2,
    ...             report_to="none", disable_tqdm=True, logging_strategy="no", use_cpu=True,
    ...         ),
    ...         train_dataset=texts,
    ...         privacy={"algorithm": "dp-sgd", "max_grad_norm": 1.0, "epsilon": 4.0, "delta": 1e-3},
    ...     )
    ...     done = trainer.train()  # doctest: +ELLIPSIS
    {'train_runtime': ...}
    >>> done.global_step, 3.99 < trainer.epsilon().value <= 4.0
    (10, True)
    """

    def __init__(self, *args: Any, privacy: Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.privacy = _checked(privacy)
        self.strict = bool(self.privacy.pop("strict", False))
        self.private_optimizer: PrivateOptimizer | None = None
        self.plain_optimizer = self.optimizer
        self.resumes = False
        _refuse_unsound(self)
        # B = records at a time x accumulation x processes: the expected number of records in a release.
        self.logical_batch_size = super().get_total_train_batch_size(self.args)
        self.args = copy.copy(self.args)
        self.args.gradient_accumulation_steps = 1
        _take_clip(self.privacy, self.args)
        self.args.max_grad_norm = 0.0
        self.args.ignore_data_skip = True
        # Contributions are summed over processes when they are released; no wrapper may sum raw gradients before.
        self.accelerator.prepare_model = partial(self.accelerator.prepare_model, evaluation_mode=True)
        self.add_callback(_ReleasesAreSteps(self))

    def compute_record_losses(self, model: nn.Module, inputs: Any) -> Tensor:
        """Compute the loss of each record of a part of a batch, from that record alone.

        Never divide by what other records have a part in, such as the number of tokens of a batch.

        Args:
            model: The model that is trained.
            inputs: A part of a batch as the data collator made it, on the model's device.

        Returns:
            One loss for each record, a one-dimensional tensor.

        Raises:
            InvalidParameterError: The batch has no labels.
        """
        if "labels" not in inputs:
            raise InvalidParameterError(
                "train_dataset", sorted(inputs), "records with labels", "check the data collator"
            )
        labels, kind = inputs["labels"], _kind_of(model)
        # Encoders with decoders make the decoder's inputs from the labels; for others a loss of the batch is saved.
        hidden = () if kind == "decoder" else ("labels",)
        outputs = model(**{name: value for name, value in inputs.items() if name not in hidden})
        logits, smoothing = outputs.logits.float(), self.args.label_smoothing_factor
        if kind == "classes":
            return _class_losses(logits, labels, _unwrapped(model).config, smoothing)
        if kind == "next token":
            logits, labels = logits[:, :-1], labels[:, 1:]
        losses = cross_entropy(
            logits.transpose(1, 2), labels, reduction="none", ignore_index=IGNORED, label_smoothing=smoothing
        )
        # l_j = sum_t l_jt / (number of labeled tokens of record j).
        return losses.sum(1) / (labels != IGNORED).sum(1).clamp(min=1)

    def epsilon(self) -> Result:
        """Epsilon of all that was released so far, at the ``delta`` of ``privacy``.

        Returns:
            A :class:`privproj.Result`, as :func:`privproj.epsilon` gives it.

        Raises:
            InvalidParameterError: Nothing was released yet.
        """
        if self.private_optimizer is None:
            raise InvalidParameterError(
                "epsilon", "a run without releases", "evaluated after the first step", "call train"
            )
        return self.private_optimizer.epsilon(self.privacy["delta"])

    # --- what Trainer calls -------------------------------------------------------------------------

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train privately, with the arguments of ``Trainer.train``; its ``training_loss`` is None, since none is kept.

        Args:
            *args: Arguments of ``Trainer.train``.
            **kwargs: Arguments of ``Trainer.train``.

        Returns:
            What ``Trainer.train`` returns.

        Raises:
            InvalidParameterError: The ledger is not that of the checkpoint, or the plan is not possible.
            UnsupportedError: The ledger has releases, no checkpoint is resumed, and the model is not the one that they
                trained; or no bound covers the run.
        """
        self.resumes = bool(args[0] if args else kwargs.get("resume_from_checkpoint"))
        try:
            return super().train(*args, **kwargs)._replace(training_loss=None)
        finally:
            self.close()

    def close(self) -> None:
        """Take the hooks off the model and let another process write the ledger; ``train`` ends with it."""
        if self.private_optimizer is not None:
            self.private_optimizer.close()

    def get_train_dataloader(self) -> Any:
        """Make the run private: the model, the optimizer, and the loader that comes back.

        Returns:
            Batches as the plan says; a pass over them is as long as Trainer expects.
        """
        self.close()
        # Trainer's own loader knows which columns the model takes and how records are joined; it is not iterated.
        plain_loader = super().get_train_dataloader()
        settings = {name: getattr(plain_loader, name) for name in ("collate_fn", *WORKER_SETTINGS)}
        data = DataLoader(plain_loader.dataset, self.logical_batch_size, **settings)
        passes = math.ceil(len(plain_loader.dataset) / self.logical_batch_size)  # pyright: ignore[reportArgumentType]
        steps = self.args.max_steps if self.args.max_steps > 0 else math.ceil(self.args.num_train_epochs * passes)
        self.optimizer = self.plain_optimizer
        self.create_optimizer()
        options = {"ledger": str(Path(self.args.output_dir or ".") / LEDGER), **self.privacy}
        if options["ledger"] is not None:
            Path(options["ledger"]).parent.mkdir(parents=True, exist_ok=True)
        parts: dict[str, Any] = {"module": self.model, "optimizer": self.optimizer, "data_loader": data}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResumedLedger)  # the callback compares the checkpoint with the ledger
            _, private, loader = make_private(**parts, steps=steps, again=False if self.resumes else None, **options)
        self.optimizer = self.private_optimizer = private
        # Trainer counts batches: one that the loader released by itself would be missing, and waited for at the end.
        loader.keeps_empty = True
        return _Passes(loader, private, passes)

    def training_step(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Take in a logical batch, part by part; the optimizer's step, which Trainer calls next, releases it.

        Args:
            model: The model, as Trainer wrapped it.
            inputs: A batch of the private loader.
            *args: Not used: the number of items in a batch has no part in the loss of a record.
            **kwargs: Not used.

        Returns:
            Zero in place of the training loss, which is not kept.
        """
        model.train()
        assert self.private_optimizer is not None
        losses, size = partial(self.compute_record_losses, model), self.args.per_device_train_batch_size
        self.private_optimizer.backward_on(losses, inputs, size, strict=self.strict)
        return torch.zeros((), device=self.args.device)

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: Any = None) -> Any:
        """Draw the next logical batch, without counting what is in it.

        Args:
            epoch_iterator: A pass over the private loader.
            num_batches: Number of batches, 1.
            device: Not used.

        Returns:
            The batch in a list, and None for the number of its items.
        """
        return list(islice(epoch_iterator, num_batches)), None

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Load weights from a checkpoint, as they were saved."""
        if not hasattr(self.model, "trained_by_m2"):
            return super()._load_from_checkpoint(resume_from_checkpoint, model)
        from privproj.training.algorithms.lora import import_peft

        import_peft(self.model, resume_from_checkpoint)  # pyright: ignore[reportArgumentType]

    def get_total_train_batch_size(self, args: Any) -> int:
        """Give the expected number of records in a release, over all processes.

        Args:
            args: Arguments of Trainer, not used.

        Returns:
            The number of records.
        """
        return self.logical_batch_size

    def floating_point_ops(self, inputs: Any) -> int:
        """Count no operations: their number says how many records were drawn.

        Args:
            inputs: A batch, not used.

        Returns:
            Zero.
        """
        return 0

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log without statistics of batches; epsilon and delta stand in their place.

        Args:
            logs: The values to log.
            *args: Arguments of ``Trainer.log``.
            **kwargs: Arguments of ``Trainer.log``.
        """
        of_training = [logs.pop(name) for name in BATCH_STATISTICS if name in logs]
        if of_training and self.private_optimizer is not None and self.private_optimizer.steps_done:
            epsilon = self.epsilon().value
            assert epsilon is not None
            logs.update(epsilon=epsilon, delta=self.privacy["delta"])
        super().log(logs, *args, **kwargs)


class _Passes:
    """The private loader as Trainer expects one: every pass has the same number of steps, however many are left."""

    def __init__(self, loader: PrivateLoader, optimizer: PrivateOptimizer, steps: int) -> None:
        self.loader, self.optimizer, self.steps, self.dataset = loader, optimizer, steps, loader.dataset

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Any]:
        # A pass that a resumed run is in the middle of ends where it would have ended.
        done, planned = self.optimizer.steps_done, self.optimizer.plan.steps
        return islice(chain.from_iterable(repeat(self.loader)), min(self.steps - done % self.steps, planned - done))


class _ReleasesAreSteps(TrainerCallback):
    """Makes Trainer's count of steps the count of releases, also where a run was killed after its last checkpoint."""

    def __init__(self, trainer: PrivateTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Compare the checkpoint with the ledger, and count releases that only the ledger knows."""
        optimizer, scheduler = self.trainer.private_optimizer, self.trainer.lr_scheduler
        assert optimizer is not None
        done, saved = optimizer.steps_done, state.global_step
        where = self.trainer.privacy.get("ledger", Path(args.output_dir) / LEDGER)
        if done < saved:
            raise InvalidParameterError("ledger", where, f"a ledger with the {saved} releases of the checkpoint")
        if done and not saved:
            words = "Use train(resume_from_checkpoint=True), or start with another ledger and compose both"
            raise UnsupportedError(f"{where} already has {done} releases. {words}")
        if done > saved:
            late = f"{where} has {done - saved} releases after the checkpoint. They count, but their steps are lost."
            warnings.warn(late, ResumedLedger, stacklevel=2)
        if isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler) and "metrics" not in _names(scheduler.step):
            for _ in range(done - saved):
                scheduler.step()
        state.global_step = done


def _names(function: Any) -> set[str]:
    """The names of the arguments of a function."""
    return set(inspect.signature(function).parameters)


def _checked(privacy: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``make_private`` that a user gave; raises :class:`InvalidParameterError` for others."""
    names = _names(make_private) - GIVEN_BY_TRAINER | {"strict"}
    for name in privacy.keys() - names:
        if name in GIVEN_BY_TRAINER:
            raise InvalidParameterError("privacy", name, f"without {name}", "set it in TrainingArguments or train")
        raise InvalidParameterError("privacy", name, f"a mapping with the keys {', '.join(sorted(names))} only")
    drawing = batches_of(privacy.get("batches", "poisson"))
    if (drawing.rate, drawing.count) != (None, None):
        raise InvalidParameterError(
            "batches", drawing, "without a rate or a number of batches", "set the batch size in TrainingArguments"
        )
    if privacy.get("delta") is None:
        raise InvalidParameterError("privacy", sorted(privacy), "a mapping with delta")
    return dict(privacy)


def _take_clip(privacy: dict[str, Any], args: TrainingArguments) -> None:
    """Let the clip of each record be that of Trainer where ``privacy`` has none, and refuse two that differ."""
    clip, unsaid = privacy.setdefault("max_grad_norm", args.max_grad_norm), TrainingArguments.max_grad_norm
    if args.max_grad_norm not in (clip, unsaid):
        remedy = "omit it from TrainingArguments, because privproj clips the gradient of each record"
        raise InvalidParameterError(
            "max_grad_norm", f"{args.max_grad_norm} and {clip}", "the same in TrainingArguments and privacy", remedy
        )


def _refuse_unsound(trainer: PrivateTrainer) -> None:
    """Raise :class:`InvalidParameterError` for what would break a promise of the accounting, or could not work."""
    args, accelerator = trainer.args, trainer.accelerator
    for name, (sound, why) in UNSOUND.items():
        if getattr(args, name, sound) not in (sound, False):
            raise InvalidParameterError(name, getattr(args, name), f"{sound}", why)
    if accelerator.mixed_precision not in ("no", "bf16"):
        raise InvalidParameterError(
            "mixed_precision", accelerator.mixed_precision, "bf16 or no, because fp16 scales the loss"
        )
    kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
    if kind not in WORKERS or args.n_gpu > 1:
        actual = kind if args.n_gpu <= 1 else f"{args.n_gpu} GPUs in one process"
        words = "for processes that hold the whole model on one GPU each, without FSDP and DeepSpeed"
        raise InvalidParameterError("args", actual, words)
    if args.load_best_model_at_end and hasattr(trainer.model, "trained_by_m2"):
        raise InvalidParameterError(
            "load_best_model_at_end", True, "False with m2 on a PEFT model", "load the best model with import_peft"
        )
    optim = str(getattr(args.optim, "value", args.optim))
    if any(word in optim for word in OWN_UPDATES):
        raise InvalidParameterError("optim", optim, "an optimizer that changes weights in its step only")
    data = trainer.train_dataset
    if data is not None and (isinstance(data, IterableDataset) or not has_length(data)):
        raise InvalidParameterError("train_dataset", type(data).__name__, "a dataset with a length and an index")
    own_losses = type(trainer).compute_record_losses is not PrivateTrainer.compute_record_losses
    of_batches = trainer.compute_loss_func is not None or type(trainer).compute_loss is not Trainer.compute_loss
    if of_batches and not own_losses:
        raise InvalidParameterError(
            "compute_loss", "a loss of a whole batch", "omitted", "override compute_record_losses"
        )
    if not own_losses and _kind_of(trainer.model) is None:
        words, remedy = "a model for language modeling or classification", "else override compute_record_losses"
        raise InvalidParameterError("model", type(_unwrapped(trainer.model)).__name__, words, remedy)


def _unwrapped(model: Any) -> Any:
    """The model under the wrappers of compilation and of PEFT."""
    model = getattr(model, "_orig_mod", model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def _kind_of(model: Any) -> str | None:
    """What the labels of a model are: "next token", "token", "decoder" (tokens that it also reads), "classes"; or None.

    It is told from the names of the model's class and of those that it comes from.
    """
    base = _unwrapped(model)
    names = [kind.__name__ for kind in type(base).__mro__]
    if getattr(getattr(base, "config", None), "is_encoder_decoder", False):
        return "decoder" if any("ForConditionalGeneration" in name for name in names) else None
    if any(name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values() or "ForCausalLM" in name for name in names):
        return "next token"
    if any("ForMaskedLM" in name or "ForTokenClassification" in name for name in names):
        return "token"
    return "classes" if any(ending in name for name in names for ending in CLASSES) else None


def _class_losses(logits: Tensor, labels: Tensor, config: Any, smoothing: float) -> Tensor:
    """One loss for each record from the scores of its classes, by the model's ``problem_type``."""
    problem = config.problem_type
    if problem is None:
        classification = "multi_label_classification" if labels.is_floating_point() else "single_label_classification"
        problem = "regression" if config.num_labels == 1 else classification
    if problem == "single_label_classification":
        return cross_entropy(logits, labels.view(-1), reduction="none", label_smoothing=smoothing)
    loss = mse_loss if problem == "regression" else binary_cross_entropy_with_logits
    return loss(logits.flatten(1), labels.to(logits.dtype).view_as(logits).flatten(1), reduction="none").mean(1)
