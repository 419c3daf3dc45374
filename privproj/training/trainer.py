"""Define :class:`PrivateTrainer`, a private ``Trainer`` of transformers.

Import the class from ``privproj.integrations.transformers``. The loop of ``Trainer`` draws a batch, calls
``training_step``, and then calls ``optimizer.step``. In a private run each step is one release, and gradient
accumulation is switched off.
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
from torch.utils.data import DataLoader, IterableDataset
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import has_length

from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.result import Result
from privproj.training.batches import WORKER_SETTINGS, Batch, PrivateLoader
from privproj.training.optimizer import PrivateOptimizer
from privproj.training.plan import batches_of
from privproj.training.private import ResumedLedger, make_private

# arguments of make_private that are set by arguments of Trainer or of train
SET_BY_TRAINER = {"module", "optimizer", "data_loader", "steps", "epochs", "again"}

LEDGER = "ledger.jsonl"  # default name of the ledger in ``output_dir``, from which a run is resumed

# soundness: entries of Trainer's logs that are statistics of a batch without noise
BATCH_STATISTICS = ("loss", "train_loss", "grad_norm")

# soundness: kinds of runs in which every process holds the whole model
WORKERS = {"NO", "MULTI_CPU", "MULTI_GPU"}

# soundness: arguments of Trainer that must keep one value, and the reason
FIXED_ARGUMENTS = {
    "auto_find_batch_size": (False, "the batch size is fixed before training"),
    "include_num_input_tokens_seen": ("no", "the number of tokens in a batch is private"),
    "train_sampling_strategy": ("random", "privproj draws the batches"),
    "group_by_length": (False, "privproj draws the batches"),
}

# soundness: words in the names of optimizers that change weights outside ``step``
OWN_UPDATES = ("layerwise", "lomo", "schedule_free")


class PrivateTrainer(Trainer):
    """Train a model of transformers privately, with a ledger and epsilon in the logs.

    The loss of a record is ``compute_loss(model, record)``, where ``record`` is a batch of one record made by the data
    collator.

    By default batches are Poisson samples. The expected number of records for each process is
    ``per_device_train_batch_size * gradient_accumulation_steps``. At most ``per_device_train_batch_size`` records are
    computed at once. ``num_train_epochs`` or ``max_steps`` sets the number of releases.
    ``train(resume_from_checkpoint=True)`` continues after the releases of the ledger.

    The logs contain ``epsilon`` and ``delta`` in place of the training loss and the gradient norm, because these are
    statistics of private records without noise. Evaluation results have no noise either.

    Args:
        *args: Arguments of ``Trainer``.
        privacy: Arguments of :func:`privproj.training.make_private` as a dictionary: ``delta``, either ``epsilon`` or
            ``noise_multiplier``, and others that no argument of ``Trainer`` sets. The default of ``max_grad_norm`` is
            that of ``TrainingArguments``, and the default of ``ledger`` is the file ``ledger.jsonl`` in ``output_dir``.
            The entry ``one_by_one=True`` is passed to :meth:`PrivateOptimizer.backward_on`.
        **kwargs: Arguments of ``Trainer``.

    Raises:
        InvalidParameterError: ``privacy`` has an unknown name or no ``delta``, or an argument of ``Trainer`` would
            invalidate the accounting.

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
        self.one_by_one = bool(self.privacy.pop("one_by_one", False))
        self.private_optimizer: PrivateOptimizer | None = None
        self.plain_optimizer = self.optimizer
        self.resumes = False
        _check_arguments(self)
        # expected records of a release = records computed at once x accumulation x processes
        self.logical_batch_size = super().get_total_train_batch_size(self.args)
        self.args = copy.copy(self.args)
        self.args.gradient_accumulation_steps = 1
        _take_clip(self.privacy, self.args)
        self.args.max_grad_norm = 0.0
        self.args.ignore_data_skip = True
        # Contributions are summed over processes when they are released. No wrapper may sum gradients before that.
        self.accelerator.prepare_model = partial(self.accelerator.prepare_model, evaluation_mode=True)
        self.add_callback(_ReleasesAreSteps(self))

    def epsilon(self) -> Result:
        """Return epsilon of all releases so far, at the ``delta`` of ``privacy``.

        If there are no releases yet, the result is the epsilon of the whole plan.

        Returns:
            A :class:`privproj.Result`, as :func:`privproj.epsilon` returns it.

        Raises:
            InvalidParameterError: ``train`` was not called.
        """
        if self.private_optimizer is None:
            raise InvalidParameterError(
                "epsilon", "a run that has not started", "evaluated after train was called", "call train"
            )
        return self.private_optimizer.epsilon(self.privacy["delta"])

    # --- what Trainer calls -------------------------------------------------------------------------

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train privately; takes the arguments of ``Trainer.train``.

        Args:
            *args: Arguments of ``Trainer.train``.
            **kwargs: Arguments of ``Trainer.train``.

        Returns:
            The result of ``Trainer.train``, with ``training_loss=None``.

        Raises:
            InvalidParameterError: The ledger does not belong to the checkpoint, or the plan is not possible.
            UnsupportedError: The ledger has releases but no checkpoint is resumed, or no bound covers the run.
        """
        self.resumes = bool(args[0] if args else kwargs.get("resume_from_checkpoint"))
        try:
            return super().train(*args, **kwargs)._replace(training_loss=None)
        finally:
            self.close()

    def close(self) -> None:
        """Close the ledger, so that another process can use it; ``train`` calls this."""
        if self.private_optimizer is not None:
            self.private_optimizer.close()

    def get_train_dataloader(self) -> Any:
        """Make the run private and return the private loader.

        Returns:
            A loader of private batches. Each pass has as many batches as ``Trainer`` expects.
        """
        self.close()
        # Trainer's own loader removes unused columns and has the data collator. It is not iterated.
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
            warnings.simplefilter("ignore", ResumedLedger)  # _ReleasesAreSteps compares the checkpoint with the ledger
            _, private, loader = make_private(**parts, steps=steps, again=False if self.resumes else None, **options)
        self.optimizer = self.private_optimizer = private
        # Trainer counts batches, so it must receive empty ones too.
        loader.keeps_empty = True
        return _Passes(loader, private, passes)

    def training_step(self, model: nn.Module, inputs: Batch, *args: Any, **kwargs: Any) -> Tensor:
        """Add the clipped gradients of a batch to the sum to release, and return zero.

        ``Trainer`` then calls ``optimizer.step``, which releases this sum with noise.

        Args:
            model: The model, possibly wrapped by Trainer.
            inputs: A batch of the private loader.
            *args: Not used.
            **kwargs: Not used.

        Returns:
            Zero, because the training loss is private.
        """
        assert self.private_optimizer is not None
        model.train()

        def loss_fn(record: Any) -> Any:
            return self.compute_loss(model, record)

        size = self.args.per_device_train_batch_size
        self.private_optimizer.backward_on(loss_fn, inputs, size, one_by_one=self.one_by_one)
        return torch.zeros((), device=self.args.device)

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: Any = None) -> Any:
        """Draw the next private batch, without counting the items in it.

        Args:
            epoch_iterator: A pass over the private loader.
            num_batches: The number of batches, which is 1.
            device: Not used.

        Returns:
            A list with the batch, and None in place of the number of items.
        """
        return list(islice(epoch_iterator, num_batches)), None

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        """Load weights from a checkpoint.

        For M2 on a PEFT model, the checkpoint is a file from :func:`export_peft`.
        """
        if not hasattr(self.model, "trained_by_m2"):
            return super()._load_from_checkpoint(resume_from_checkpoint, model)
        from privproj.training.algorithms.lora import import_peft

        import_peft(self.model, resume_from_checkpoint)  # pyright: ignore[reportArgumentType]

    def get_total_train_batch_size(self, args: Any) -> int:
        """Return the expected number of records in a release, summed over all processes.

        Args:
            args: Arguments of Trainer, not used.

        Returns:
            The number of records.
        """
        return self.logical_batch_size

    def floating_point_ops(self, inputs: Any) -> int:
        """Return zero, because the number of operations reveals the size of a batch.

        Args:
            inputs: A batch, not used.

        Returns:
            Zero.
        """
        return 0

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log epsilon and delta in place of statistics of private batches.

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
    """The private loader, with as many batches in each pass as Trainer expects."""

    def __init__(self, loader: PrivateLoader, optimizer: PrivateOptimizer, steps: int) -> None:
        self.loader, self.optimizer, self.steps, self.dataset = loader, optimizer, steps, loader.dataset

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Any]:
        # The first pass of a resumed run has the batches that were left of the interrupted pass.
        done, planned = self.optimizer.steps_done, self.optimizer.plan.steps
        return islice(chain.from_iterable(repeat(self.loader)), min(self.steps - done % self.steps, planned - done))


class _ReleasesAreSteps(TrainerCallback):
    """A callback that sets Trainer's number of steps to the number of releases.

    The numbers differ if a run was killed after its last checkpoint.
    """

    def __init__(self, trainer: PrivateTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set Trainer's step count and learning-rate schedule to the number of releases.

        Raises :class:`InvalidParameterError` if the ledger has fewer releases than the checkpoint, and
        :class:`UnsupportedError` if the ledger has releases but no checkpoint is resumed.
        """
        optimizer, scheduler = self.trainer.private_optimizer, self.trainer.lr_scheduler
        assert optimizer is not None
        done, saved = optimizer.steps_done, state.global_step
        where = self.trainer.privacy.get("ledger", Path(args.output_dir) / LEDGER)
        if done < saved:
            raise InvalidParameterError("ledger", where, f"a ledger with the {saved} releases of the checkpoint")
        if done and not saved:
            condition = "Use train(resume_from_checkpoint=True), or start with another ledger and compose both"
            raise UnsupportedError(f"{where} already has {done} releases. {condition}")
        if done > saved:
            late = f"{where} has {done - saved} releases after the checkpoint. They count, but their steps are lost."
            warnings.warn(late, ResumedLedger, stacklevel=2)
        if isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler) and "metrics" not in _names(scheduler.step):
            for _ in range(done - saved):
                scheduler.step()
        state.global_step = done


def _names(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters)


def _checked(privacy: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a trainer's ``privacy`` arguments, after a check of their names.

    Raises :class:`InvalidParameterError` for names that are not arguments of ``make_private``, for arguments that
    Trainer sets, and without ``delta``.
    """
    names = _names(make_private) - SET_BY_TRAINER - {"unknown"} | {"one_by_one"}
    for name in privacy.keys() - names:
        if name in SET_BY_TRAINER:
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
    """Use Trainer's ``max_grad_norm`` as the clipping norm if ``privacy`` has none.

    Raises :class:`InvalidParameterError` if both are set and differ.
    """
    clip, default = privacy.setdefault("max_grad_norm", args.max_grad_norm), TrainingArguments.max_grad_norm
    if args.max_grad_norm not in (clip, default):
        remedy = "omit it from TrainingArguments, because privproj clips the gradient of each record"
        raise InvalidParameterError(
            "max_grad_norm", f"{args.max_grad_norm} and {clip}", "the same in TrainingArguments and privacy", remedy
        )


def _check_arguments(trainer: PrivateTrainer) -> None:
    """Raise an error for arguments of Trainer that would invalidate the accounting."""
    args, accelerator = trainer.args, trainer.accelerator
    for name, (sound, why) in FIXED_ARGUMENTS.items():
        if getattr(args, name, sound) not in (sound, False):
            raise InvalidParameterError(name, getattr(args, name), f"{sound}", why)
    if accelerator.mixed_precision not in ("no", "bf16"):
        raise InvalidParameterError(
            "mixed_precision", accelerator.mixed_precision, "bf16 or no, because fp16 scales the loss"
        )
    kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
    if kind not in WORKERS or args.n_gpu > 1:
        actual = kind if args.n_gpu <= 1 else f"{args.n_gpu} GPUs in one process"
        condition = "for processes that hold the whole model on one GPU each, without FSDP and DeepSpeed"
        raise InvalidParameterError("args", actual, condition)
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
