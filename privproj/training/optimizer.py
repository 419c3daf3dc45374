"""The private optimizer: the losses of single records go in, a released step comes out.

It holds the training loop to what is accounted: every batch is released once, as many losses come back as records were
drawn, and no gradient that was not released reaches the wrapped optimizer.
"""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor

from privproj.accounting.batch_notes import warnings_of_delta
from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.io.ledger import Account, Ledger
from privproj.parameters import integer
from privproj.result import Result
from privproj.training.batches import PrivateLoader
from privproj.training.containers import has_rows, move, take
from privproj.training.dataset import Stamps
from privproj.training.generators import secret_numbers
from privproj.training.hooks import Taps
from privproj.training.independence import IndependenceCheck, LossFunction, ModuleState
from privproj.training.per_example import full_precision
from privproj.training.plan import Plan
from privproj.training.release import NoisySum
from privproj.training.view import View


class ReleaseCounter:
    """Counts the releases of a run, in a ledger if there is one, and refuses more than the plan has.

    A release is counted before its noised sum exists. So a run that is killed has made at most what was counted. The
    ``account`` has all phases that are known from before, and then that of the run; ``stamps`` see to it that the
    releases of earlier runs are counted too.
    """

    def __init__(self, plan: Plan, ledger: Ledger | None, account: Account, stamps: Stamps) -> None:
        self.plan, self.ledger, self.account, self.stamps = plan, ledger, account, stamps

    @property
    def steps(self) -> int:
        """The number of releases of this plan, those before a resume included."""
        return self.account.phases[-1][1]

    def record(self) -> None:
        """Count one more release; with a ledger it is on the disk before the release exists."""
        if self.steps >= self.plan.steps:
            raise UnsupportedError(
                f"all {self.plan.steps} planned steps are released. Plan more steps, which need more noise."
            )
        self.stamps.check()
        if self.ledger is not None:
            self.ledger.record()
        self.account = self.account.with_release()
        self.stamps.count()


class PrivateOptimizer(torch.optim.Optimizer):
    """Wraps a torch optimizer: ``step_on(loss_fn, batch)`` is a whole step on a batch of the private loader.

    Loops that release elsewhere call ``backward_on(loss_fn, batch)``, and then ``step()``.

    :func:`make_private` makes it. The wrapped optimizer sees released gradients only, so that its learning rates,
    momentum, weight decay and schedulers are post-processing. Of a training loop that releases otherwise than is
    accounted it refuses what it can see; ``docs/training.md`` lists that, and what it cannot see. ``close`` removes
    the hooks.

    Args:
        optimizer: The wrapped optimizer, over every trained tensor and no others.
        taps: The taps that pick up what every layer sees and gets back.
        views: How the algorithm looks at the gradient of a record, one view for each trained tensor or one for all.
        release: The release boundary, which clips, sums and adds noise.
        spending: The count of releases, with the plan and the ledger.
        loader: The private loader, which knows the batch that is being trained on.

    Raises:
        InvalidParameterError: The optimizer lacks a trained tensor, or holds one that no release is about.

    >>> import torch
    >>> from torch.nn.functional import cross_entropy
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from privproj.training import Method, make_private
    >>> records = TensorDataset(torch.ones(100, 8), torch.zeros(100, dtype=torch.long))
    >>> module = torch.nn.Linear(8, 2)
    >>> module, optimizer, loader = make_private(
    ...     module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
    ...     data_loader=DataLoader(records, batch_size=25), algorithm=Method("m2", rank=4),
    ...     max_grad_norm=1.0, noise_multiplier=2.0, steps=3,
    ... )
    >>> for batch in loader:
    ...     loss = optimizer.step_on(lambda part: cross_entropy(module(part[0]), part[1], reduction="none"), batch)
    >>> len(loader), optimizer.noise_multiplier
    (0, 2.0)
    >>> optimizer.close()
    """

    _step_supports_amp_scaling = True
    """Lets a GradScaler hand its scale over to ``grad_scale``, which refuses it. Contract with torch."""

    _is_accelerate_prepared = True
    """Accelerate's ``prepare`` hands this optimizer back as it is, with ``step_on``. Contract with accelerate."""

    step_was_skipped = False
    """Tells Accelerate's schedulers that every step is made. Contract with accelerate."""

    def __init__(
        self, optimizer: torch.optim.Optimizer, taps: Taps, views: list[View], release: NoisySum,
        spending: ReleaseCounter, loader: PrivateLoader,
    ) -> None:  # fmt: skip
        super().__init__([dict(group) for group in optimizer.param_groups], dict(optimizer.defaults))
        self._original, self._taps, self._views, self._noisy_sum = optimizer, taps, views, release
        self._spending, self._turn, self._plan = spending, loader, spending.plan
        self._guard = ModuleState(taps)
        self._independence = IndependenceCheck(taps, self._guard, release, loader, lambda: self._steps)
        self._hooks: list[Callable[[Any], None]] = []
        self._steps_itself = False
        self._handle = optimizer.register_step_pre_hook(self._check_own_step)
        loader.on_open, loader.on_empty = self._begin, self.step
        closure = inspect.signature(type(optimizer).step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            expected, remedy = "an optimizer whose step needs no closure", "use torch.optim.Adam, for instance"
            raise InvalidParameterError("optimizer", type(optimizer).__name__, expected, remedy)
        if isinstance(optimizer, torch.optim.SparseAdam) or optimizer.defaults.get("differentiable"):
            kind, expected = type(optimizer).__name__, "an optimizer of dense gradients without differentiable=True"
            raise InvalidParameterError("optimizer", kind, expected, "use torch.optim.Adam, for instance")
        self._share()
        self._check_groups()

    def _share(self) -> None:
        """Let groups, settings and state be the wrapped optimizer's, for schedulers and checkpoints."""
        for name in ("param_groups", "defaults", "state"):
            setattr(self, name, getattr(self._original, name))

    def _begin(self) -> None:
        """Note what the module is like before a batch is seen; a step that was broken off leaves nothing to it."""
        self._noisy_sum.begin()
        self._taps.clear()
        self._guard.begin()
        self._independence.begin()

    def state_dict(self) -> dict[str, Any]:
        """Return the wrapped optimizer's state, with the number of releases made when it was saved and the clip.

        Returns:
            The dictionary that the wrapped optimizer returns, with one more entry ``privproj``. The clip is in it where
            it adapts.
        """
        entry: dict[str, float] = {"releases": self._spending.account.spent}
        if self._plan.adaptive_clipping is not None:
            entry["clip"] = self.clip
        return {**self._original.state_dict(), "privproj": entry}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state into the wrapped optimizer, and the clip that adapts; the count of releases does not change.

        Args:
            state_dict: What :meth:`state_dict` returned, here or in the run that is resumed.

        Raises:
            InvalidParameterError: The state is of a run with more releases than are accounted here, its clip is
                outside the range of the plan, or it has a clip and a batch was begun.
        """
        state = dict(state_dict)
        entry = state.pop("privproj", {})
        saved, here = entry.get("releases", 0), self._spending.account.spent
        if saved > here:
            expected, remedy = f"a state after at most {here} releases, as accounted here", "use the ledger of that run"
            raise InvalidParameterError("state_dict", f"a state after {saved} releases", expected, remedy)
        if "clip" in entry:
            self._noisy_sum.resume_clip(entry["clip"])
        self._original.load_state_dict(state)
        self._share()

    def __reduce__(self) -> NoReturn:
        reason = "a private optimizer cannot be copied or pickled, because a copy would repeat its noise"
        raise UnsupportedError(f"{reason}. Save optimizer.state_dict() and keep the ledger.")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._plan.algorithm.name}, {self._original!r})"

    @property
    def optimizer(self) -> "PrivateOptimizer":
        """The optimizer itself, where Accelerate looks for the one that schedulers know."""
        return self

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier ``z``: standard deviation of the noise over the sensitivity, no unit."""
        return self._plan.noise_multiplier

    @property
    def clip(self) -> float:
        """The clip ``C`` of the next release, in the unit of the gradients; it changes with adaptive clipping only."""
        return self._noisy_sum.norm

    @property
    def _steps(self) -> int:
        """The number of releases made so far, those before a resume included."""
        return self._spending.steps

    def epsilon(self, delta: float) -> Result:
        """Epsilon of all that was released so far, rounded up.

        Earlier phases, of the ledger and of the search for the subspace, are included.

        Args:
            delta: The delta at which epsilon is asked for, above 0 and below 1.

        Returns:
            A :class:`privproj.Result`, as :func:`privproj.epsilon` gives it.

        Raises:
            InvalidParameterError: Nothing was released yet, or ``delta`` is outside its range.
            UnsupportedError: The bound does not hold for what was released.
            ConvergenceError: A quadrature or a search did not settle.
            PrecisionError: The composition cannot tell such a delta from its rounding.
        """
        result = self._spending.account.epsilon(delta)
        warnings = dict.fromkeys((*result.warnings, *warnings_of_delta(self._plan.dataset_size, delta)))
        return replace(result, warnings=tuple(warnings))

    def attach_step_hook(self, hook: Callable[[Any], None]) -> None:
        """Call a function after every release, once the wrapped optimizer has made its step.

        Args:
            hook: Called with this optimizer. Opacus' accountants offer such hooks.
        """
        self._hooks.append(hook)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Do nothing: no gradient outlives its step. It is kept for training loops that call it.

        Args:
            set_to_none: Not used.
        """

    def backward_on(
        self, loss_fn: LossFunction, batch: Any, micro_batch_size: int | None = None, *, strict: bool = False
    ) -> Tensor:
        """Take in a batch of the private loader, part by part; :meth:`step` releases it.

        Where this fails, nothing of the batch is kept, and it may be taken in again, in smaller parts for instance.
        Random numbers that the loss function draws from the generators of torch, numpy or Python come from a secret
        seed.

        Args:
            loss_fn: From a part of the batch, moved to the device of the trained tensors, to one loss for each of its
                records. It is called once for every part, and again where it is checked that a record's loss is its
                own: for one record of every batch, and for more of them in the first steps and whenever mode, shape or
                module is new. :func:`privproj.training.is_checking` is True meanwhile.
            batch: What the private loader gave, as it is: a tensor, or tuples, lists, mappings or dataclasses of them.
            micro_batch_size: The largest number of records in a part, at least 1. None: the batch is one part.
            strict: True fetches every record again and computes its loss from a batch of that record alone, so that its
                loss is its own by construction. It takes a forward and a backward pass for each record.

        Returns:
            The mean of the losses, 0 for an empty batch. It is a statistic of private records that no noise protects.

        Raises:
            InvalidParameterError: ``batch`` is not the one that was drawn, the losses are not one for each record, the
                loss of a record depends on the records beside it, or a layer keeps something of the batch.
        """
        records, samples = self._turn.records_of(batch), self._turn.samples
        size = max(1, records) if micro_batch_size is None else micro_batch_size
        size = integer("micro_batch_size", size, "a whole number of records >= 1")
        if records and not strict and not has_rows(batch, records, samples):
            remedy = (
                "let collate_fn drop no record and return tensors, lists, or tuples, mappings, dataclasses of these"
            )
            expected = f"a batch with one row for each of {records} records"
            raise InvalidParameterError("batch", type(batch).__name__, expected, remedy)
        if strict and records and not self._turn.numbers:
            expected = "False for a batch whose records the private loader cannot fetch again"
            raise InvalidParameterError("strict", True, expected)
        self._guard.check_trained()
        total = torch.zeros((), device=self._taps.device)
        # The loss of a part may write into what it gets, which is then no view of the batch, and into nothing else.
        in_parts = size < records and not strict
        try:
            with secret_numbers(self._noisy_sum.streams.forward, self._taps.device):
                for first in range(0, records, 1 if strict else size):
                    rows = slice(first, first + 1 if strict else min(first + size, records))
                    part, place, count = (self._turn.alone(first), slice(1), 1) if strict else (batch, rows, records)
                    part = move(take(part, place, count, samples), self._taps.device, copy=in_parts)
                    total += self._independence.take_in(loss_fn, part, rows, alone=strict)
            if in_parts:
                self._turn.records_of(batch)
        except BaseException:
            # A part that is taken in again would be there twice: the batch begins anew, checked as the first ones are.
            self._noisy_sum.forget()
            self._independence.spot = True
            raise
        self._turn.taken = True
        return total / max(1, records)

    def step_on(
        self, loss_fn: LossFunction, batch: Any, micro_batch_size: int | None = None, *, strict: bool = False
    ) -> Tensor:
        """Take in a batch of the private loader, release it, and let the wrapped optimizer use what was released.

        Args:
            loss_fn: From a part of the batch to one loss for each of its records, as in :meth:`backward_on`.
            batch: What the private loader gave, as it is.
            micro_batch_size: The largest number of records in a part, at least 1. None: the batch is one part.
            strict: True computes the loss of every record from a batch of that record alone.

        Returns:
            The mean of the losses, 0 for an empty batch. It is a statistic of private records that no noise protects.

        Raises:
            InvalidParameterError: As :meth:`backward_on` and :meth:`step` raise it.
            UnsupportedError: All planned steps are released.
        """
        mean = self.backward_on(loss_fn, batch, micro_batch_size, strict=strict)
        self.step()
        return mean

    @property
    def grad_scale(self) -> float:
        """The scale of the losses: 1, since gradients are clipped and need none."""
        return 1.0

    @grad_scale.setter
    def grad_scale(self, scale: object) -> None:
        remedy = (
            "remove the scaler and use float32 or bfloat16, because a scaler skips steps depending on private gradients"
        )
        raise InvalidParameterError("optimizer", "a step of a GradScaler", "used without a gradient scaler", remedy)

    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Release the batch and let the wrapped optimizer use what was released. An empty batch is released too.

        Args:
            closure: Must be None, since every release is used once.

        Raises:
            InvalidParameterError: Records of the batch did not come back, a closure is given, the optimizer holds a
                tensor that no release is about, or a trained tensor did not move.
            UnsupportedError: All planned steps are released.
        """
        if closure is not None:
            raise InvalidParameterError("closure", closure, "None, because every release is used once")
        self._turn.close()
        try:
            self._share()
            self._guard.check_released()
            self._check_groups()
            self._use(self._noisy_sum.release())
        finally:
            self._drop_gradients()
            self._noisy_sum.begin()
        for hook in self._hooks:
            hook(self)
        # An optimizer that finds its rate by itself, as Adafactor does, moves all that it holds.
        groups = [(1.0 if group.get("lr") is None else float(group["lr"]), group) for group in self.param_groups]
        self._guard.end_step({id(p): rate for rate, group in groups for p in group["params"]})

    def _use(self, means: list[Tensor]) -> None:
        """Let the wrapped optimizer make one step with released means as its gradients, and with nothing else."""
        self._drop_gradients()
        group_of = {id(p): group for group in self.param_groups for p in group["params"]}
        # Around a whole step there may be autocast.
        with full_precision():
            for view, mean in zip(self._views, means, strict=True):
                group = group_of[id(view.parameters[0])]
                sgd = type(self._original) is torch.optim.SGD and not group["momentum"] and not group["maximize"]
                view.apply(mean, group, plain=sgd)
        self._steps_itself = True
        try:
            self._original.step()
        finally:
            self._steps_itself = False

    def _check_own_step(self, *_: object) -> None:
        """Raise :class:`InvalidParameterError` where the wrapped optimizer steps otherwise than with what was
        released.
        """
        if not self._steps_itself:
            remedy = "call step_on of the optimizer that make_private returned, because other gradients have no noise"
            expected = "called through the private optimizer only"
            raise InvalidParameterError("optimizer", "a step of the wrapped optimizer", expected, remedy)

    def _drop_gradients(self) -> None:
        """Remove all gradients, so that none is ever seen that was not released."""
        self._guard.drop_gradients()
        for parameter in self._held():
            parameter.grad = None

    def _check_groups(self) -> None:
        """Raise :class:`InvalidParameterError` unless the wrapped optimizer holds just what is released."""
        held = {*self._held()}
        for view in self._views:
            if not held.issuperset(view.parameters):
                remedy = "build it after the model is wrapped and moved, or freeze these tensors"
                expected, actual = "an optimizer over every trained tensor", f"one without the tensors of {view.name}"
                raise InvalidParameterError("optimizer", actual, expected, remedy)
        for parameter in held.difference(*(view.parameters for view in self._views)):
            if parameter.requires_grad:
                actual = f"one with a tensor of shape {tuple(parameter.shape)} outside the private layers"
                remedy = "freeze that tensor, or put it into the module before make_private"
                expected = "an optimizer over the trained tensors and no others"
                raise InvalidParameterError("optimizer", actual, expected, remedy)

    def _held(self) -> Iterator[Tensor]:
        """The tensors of the wrapped optimizer."""
        return (p for group in self.param_groups for p in group["params"])

    def close(self) -> None:
        """Remove the hooks from the module and let another process write the ledger."""
        self._taps.close()
        self._handle.remove()
        self._turn.closed = True
        if self._spending.ledger is not None:
            self._spending.ledger.close()
