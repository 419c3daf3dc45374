"""Define the private optimizer, which clips, releases and uses gradients.

It ensures that every batch is released once, and the wrapped torch optimizer receives released gradients only.
"""

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from privproj.accounting.batch_notes import warnings_of_delta
from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.io.ledger import Account, Ledger
from privproj.parameters import integer
from privproj.result import Result
from privproj.training import per_example
from privproj.training.batches import Batch, PrivateLoader
from privproj.training.capture import Split
from privproj.training.dataset import Stamps
from privproj.training.generators import unchanged_numbers
from privproj.training.per_example import LookedUp, full_precision
from privproj.training.per_record import Group, LossFunction, Recorder
from privproj.training.plan import Plan
from privproj.training.release import NoisySum
from privproj.training.trained import Gradients, Trained
from privproj.training.view import View

MANY_GROUPS = 8  # number of different shapes in a batch above which a warning recommends padding

SILENT_BATCHES = 2  # if all gradients in this many first batches are zero, an error is raised

# largest difference between the gradients of a record with and without vmap, relative to the norm
AGREEMENT = 0.05


class ReleaseCounter:
    """The number of releases of a run, also stored in the ledger file if there is one.

    ``account`` has the releases of earlier runs and of this run. ``stamps`` attaches their list to the trained tensors.
    """

    def __init__(self, plan: Plan, ledger: Ledger | None, account: Account, stamps: Stamps) -> None:
        self.plan, self.ledger, self.account, self.stamps = plan, ledger, account, stamps

    @property
    def steps(self) -> int:
        """The number of releases of this run, including those before a resume."""
        return self.account.phases[-1][1]

    def record(self) -> None:
        """Count one more release, also in the ledger, before it is made.

        Raises :class:`UnsupportedError` if all planned steps are released, and :class:`InvalidParameterError` if the
        account lacks earlier releases on the trained tensors.
        """
        if self.steps >= self.plan.steps:
            raise UnsupportedError(
                f"all {self.plan.steps} planned steps are released. Plan more steps, which need more noise."
            )
        self.stamps.check()
        if self.ledger is not None:
            # This comes before the noisy sum exists, so the ledger of a killed run counts every release.
            self.ledger.record()
        self.account = self.account.with_release()
        self.stamps.count()


class PrivateOptimizer(torch.optim.Optimizer):
    """A private optimizer around a torch optimizer; :func:`make_private` creates it.

    ``step_on(loss_fn, batch)`` makes a whole step on a batch of the private loader. Loops that call ``step()``
    themselves call ``backward_on(loss_fn, batch)`` before. The wrapped optimizer receives released gradients only, so
    its learning rates, momentum, weight decay and schedulers are post-processing.

    Args:
        optimizer: The wrapped optimizer, over every trained tensor and no others.
        module: The module that is trained.
        trained: The trained tensors of the module.
        views: The linear maps (:class:`View`) that the algorithm applies to gradients: one for each trained tensor, or
            one for all.
        release: The :class:`NoisySum` that clips the gradients of a batch, sums them and adds noise.
        spending: The :class:`ReleaseCounter` of the run, which has the plan and the ledger.
        loader: The private loader, which has drawn the current batch.

    Raises:
        InvalidParameterError: The optimizer lacks a trained tensor, or holds another tensor that requires a gradient.

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
    ...     loss = optimizer.step_on(lambda record: cross_entropy(module(record[0]), record[1]), batch)
    >>> optimizer.steps_done, optimizer.steps_left, optimizer.noise_multiplier
    (3, 0, 2.0)
    >>> optimizer.close()
    """

    # torch reads this name: a GradScaler then sets ``grad_scale``, which raises an error
    _step_supports_amp_scaling = True

    # Accelerate reads this name: ``prepare`` then returns this optimizer unchanged
    _is_accelerate_prepared = True

    step_was_skipped = False  # Accelerate's schedulers read this name: no step is skipped

    def __init__(
        self, optimizer: torch.optim.Optimizer, module: nn.Module, trained: list[Trained], views: list[View],
        release: NoisySum, spending: ReleaseCounter, loader: PrivateLoader,
    ) -> None:  # fmt: skip
        super().__init__([dict(group) for group in optimizer.param_groups], dict(optimizer.defaults))
        self._original, self._module, self._trained, self._views = optimizer, module, trained, views
        self._noisy_sum, self._spending, self._turn, self._plan = release, spending, loader, spending.plan
        self._recorder = Recorder(module, trained)
        self._planned = {id(p): p.dtype for one in trained for p in one.parameters}
        self._hooks: list[Callable[[Any], None]] = []
        self._steps_itself = False
        self._batches_seen = 0
        self._has_advised = False
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
        """Share parameter groups, defaults and state with the wrapped optimizer."""
        # Schedulers and checkpoints of the private optimizer then act on the wrapped optimizer.
        for name in ("param_groups", "defaults", "state"):
            setattr(self, name, getattr(self._original, name))

    def _begin(self) -> None:
        """Draw the projections of the next release before its batch is drawn."""
        self._noisy_sum.begin()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the wrapped optimizer and the number of releases so far.

        Returns:
            The state of the wrapped optimizer with one more entry ``privproj``. This entry has the number of releases
            and, with adaptive clipping, the clipping norm.
        """
        entry: dict[str, float] = {"releases": self._spending.account.spent}
        if self._plan.adaptive_clipping is not None:
            entry["clip"] = self.clip
        return {**self._original.state_dict(), "privproj": entry}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state into the wrapped optimizer; the count of releases does not change.

        The clipping norm of adaptive clipping is loaded too.

        Args:
            state_dict: The result of :meth:`state_dict`, from this run or from the run that is resumed.

        Raises:
            InvalidParameterError: The state has more releases than this run. With adaptive clipping also: the clipping
                norm is outside the range of the plan, or records of a batch were added but not released.
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
        """The optimizer itself; Accelerate reads this attribute."""
        return self

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier ``z``: noise standard deviation divided by sensitivity."""
        return self._plan.noise_multiplier

    @property
    def clip(self) -> float:
        """The clipping norm ``C`` of the next release, in the unit of the gradients.

        Only adaptive clipping changes it.
        """
        return self._noisy_sum.norm

    @property
    def plan(self) -> Plan:
        """The plan of the run: sampling, clipping, noise, steps and mechanism."""
        return self._plan

    @property
    def steps_done(self) -> int:
        """The number of releases made so far, including those before a resume."""
        return self._spending.steps

    @property
    def has_released(self) -> bool:
        """True if this object has made a release; releases before a resume do not count."""
        return self._spending.stamps.left

    @property
    def steps_left(self) -> int:
        """The number of planned releases that are left."""
        return self._plan.steps - self.steps_done

    def epsilon(self, delta: float) -> Result:
        """Return epsilon of all releases so far, rounded up.

        Releases of earlier runs in the ledger, and of the search for a subspace, are included. Before the first
        release, the result is the epsilon of the whole plan.

        Args:
            delta: The delta of the result, above 0 and below 1.

        Returns:
            A :class:`privproj.Result`, as :func:`privproj.epsilon` returns it.

        Raises:
            InvalidParameterError: ``delta`` is outside its range.
            UnsupportedError: The bound does not hold for these releases.
            ConvergenceError: A quadrature or a search did not converge.
            PrecisionError: ``delta`` is too small compared with the rounding error of the composition.
        """
        account = self._spending.account
        result = (account if account.spent else account.planned).epsilon(delta)
        warnings = dict.fromkeys((*result.warnings, *warnings_of_delta(self._plan.dataset_size, delta)))
        return replace(result, warnings=tuple(warnings))

    def attach_step_hook(self, hook: Callable[[Any], None]) -> None:
        """Call a function after every step of the wrapped optimizer.

        Args:
            hook: Called with this optimizer. Opacus' accountants provide such functions.
        """
        self._hooks.append(hook)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Remove the gradients of all trained tensors.

        Only gradients from other code need this, because released gradients are removed after each step.

        Args:
            set_to_none: Not used.
        """
        self._drop_gradients()

    def backward_on(
        self, loss_fn: LossFunction, batch: Batch, micro_batch_size: int | None = None, *, one_by_one: bool = False
    ) -> Tensor:
        """Compute and clip the gradients of a batch; :meth:`step` releases their sum.

        If this method raises an error, no gradient of the batch is added. You may then pass the same batch again.
        Random numbers that the loss function draws from the generators of torch, NumPy or Python come from a secret
        seed.

        Args:
            loss_fn: Called with a batch of one record, as ``collate_fn([record])`` returns it; returns the loss, with
                any reduction. The tensors of the batch are on the device of the trained tensors. The function may be
                called several times for a record.
            batch: A batch of the private loader.
            micro_batch_size: The largest number of records that are computed at once, at least 1. None: no limit.
            one_by_one: True computes one record after another, for operations that ``torch.vmap`` does not support.

        Returns:
            The mean of the losses, 0 for an empty batch. The mean depends on private records and has no noise.

        Raises:
            InvalidParameterError: ``batch`` is not the last batch that the loader has drawn, or the loss function does
                something that could make it depend on more than one record.
            UnsupportedError: ``torch.vmap`` cannot run the loss function.
        """
        try:
            with suppress(ValueError):  # a callable without a signature
                inspect.signature(loss_fn, follow_wrapped=False).bind(None)
        except TypeError:
            remedy = "write lambda record: cross_entropy(module(record[0]), record[1])"
            name = getattr(loss_fn, "__name__", type(loss_fn).__name__)
            raise InvalidParameterError("loss_fn", name, "a function of one record", remedy) from None
        groups, recorder = self._turn.groups_of(batch), self._recorder
        records = sum(group.records for group in groups)
        size = max(1, records) if micro_batch_size is None else micro_batch_size
        size = 1 if one_by_one else integer("micro_batch_size", size, "a whole number of records >= 1")
        self._check_trained()
        self._advise(groups, records, one_by_one)
        total, stream = torch.zeros((), device=self._trained[0].weight.device), self._noisy_sum.streams.forward
        try:
            with unchanged_numbers({p.device for p in self._module.parameters()}):
                recorder.begin(stream.fresh_seed())
                for group in groups:
                    if not self._batches_seen and group is groups[0] and not one_by_one:
                        self._compare_one(loss_fn, group)
                    for first in range(0, group.records, size):
                        total += self._add(loss_fn, group.rows(slice(first, first + size)), one_by_one)
        except BaseException:
            self._noisy_sum.forget()
            raise
        if records:
            self._batches_seen += 1
            self._check_gradients()
        self._turn.taken = True
        return total / max(1, records)

    def _add(self, loss_fn: LossFunction, group: Group, one_by_one: bool) -> Tensor:
        """Add the clipped gradients of some records to the sum, and return their total loss."""
        try:
            losses = self._recorder.losses(loss_fn, group, one_by_one=one_by_one)
        except Split as split:
            # The loss function takes different branches for these records, so each part is computed alone.
            return torch.stack([self._add(loss_fn, group.rows(part), one_by_one) for part in split.parts()]).sum()
        self._noisy_sum.add(group.records)
        return losses.sum()

    def _compare_one(self, loss_fn: LossFunction, group: Group) -> None:
        """Raise an error unless a record has the same gradient with and without ``vmap``.

        The record is the first one of ``group``. The error is :class:`UnsupportedError`.
        """
        recorder, one, gradients = self._recorder, group.rows([0]), []
        # These tensors support vmap only.
        if any(trained.only_for for trained in self._trained):
            return
        for one_by_one in (False, True):
            recorder.losses(loss_fn, one, one_by_one=one_by_one)
            gradients.append([trained.take() for trained in self._trained])
            # The gradients may differ because of random numbers.
            if recorder.has_drawn():
                return
        norms, distances = [], []
        with full_precision():
            for together, alone in zip(*gradients, strict=True):
                parts = [_only_gradient(captured) for captured in (together, alone) if captured is not None]
                norms += [part.norm() for part in parts[-1:]]
                distances += [(parts[0] - parts[1]).norm() if len(parts) == 2 else part.norm() for part in parts[:1]]
        norm, distance = (
            float(torch.stack([torch.zeros(()), *map(torch.Tensor.cpu, n)]).norm()) for n in (norms, distances)
        )
        if distance > AGREEMENT * norm:
            raise UnsupportedError(
                "the gradient of a record under torch.vmap must be its gradient alone, got a relative difference of "
                f"{distance / norm:.2g}. Remove random generators and counters from the loss function. If it has none, "
                "pass one_by_one=True to step_on."
            )

    def _check_gradients(self) -> None:
        """Raise an error if all gradients of the first batches are zero."""
        # Releases without gradients would be noise only.
        if self._batches_seen == SILENT_BATCHES and not self._noisy_sum.has_gradients:
            self._noisy_sum.forget()
            remedy = (
                "compute the loss from one record, and do not detach it. A loss that compares the records of a batch, "
                "such as a contrastive one, is constant for a single record"
            )
            actual = (
                f"gradients that are exactly zero, or not finite, for all records of the first {SILENT_BATCHES} batches"
            )
            raise InvalidParameterError("loss_fn", actual, "a function whose gradients are not all zero", remedy)

    def _advise(self, groups: list[Group], records: int, one_by_one: bool) -> None:
        """Warn once if a batch has records of many shapes."""
        if self._has_advised or one_by_one or len(groups) <= MANY_GROUPS or 2 * len(groups) <= records:
            return
        self._has_advised = True
        warnings.warn(
            f"the {records} records of a batch have {len(groups)} different shapes, and each shape is computed apart. "
            "Pad sequences to multiples, such as pad_to_multiple_of=64, for faster steps.",
            UserWarning,
            stacklevel=4,
        )

    def _check_trained(self) -> None:
        """Raise an error if trained tensors have gradients, or are not the planned ones."""
        if {id(p): p.dtype for p in self._module.parameters() if p.requires_grad} != self._planned:
            remedy = "freeze or convert tensors before make_private only"
            raise InvalidParameterError("module", "other trained tensors", "trained as it was planned", remedy)
        # Such gradients come from other code, such as a call of backward in the loop.
        if any(p.grad is not None for trained in self._trained for p in trained.parameters):
            remedy = "remove calls of backward from the loop, or call optimizer.zero_grad() before step_on"
            expected = "a module without gradients before step_on"
            raise InvalidParameterError("module", "gradients from elsewhere", expected, remedy)

    def step_on(
        self, loss_fn: LossFunction, batch: Batch, micro_batch_size: int | None = None, *, one_by_one: bool = False
    ) -> Tensor:
        """Make one private step on a batch.

        The step computes and clips the gradients, releases their noisy sum, and calls the wrapped optimizer.

        Args:
            loss_fn: Called with a batch of one record; returns its loss, as in :meth:`backward_on`.
            batch: A batch of the private loader.
            micro_batch_size: The largest number of records that are computed at once, at least 1. None: no limit.
            one_by_one: True computes one record after another, for operations that ``torch.vmap`` does not support.

        Returns:
            The mean of the losses, 0 for an empty batch. The mean depends on private records and has no noise.

        Raises:
            InvalidParameterError: :meth:`backward_on` or :meth:`step` raises this error.
            UnsupportedError: All planned steps are released, or ``torch.vmap`` cannot run the loss function.
        """
        mean = self.backward_on(loss_fn, batch, micro_batch_size, one_by_one=one_by_one)
        self.step()
        return mean

    @property
    def grad_scale(self) -> float:
        """The factor by which losses are scaled, always 1; setting it raises an error.

        torch's ``GradScaler`` would set it, but clipped gradients need no scaling.
        """
        return 1.0

    @grad_scale.setter
    def grad_scale(self, scale: object) -> None:
        remedy = (
            "remove the scaler and use float32 or bfloat16, because a scaler skips steps depending on private gradients"
        )
        raise InvalidParameterError("optimizer", "a step of a GradScaler", "used without a gradient scaler", remedy)

    def step(self, closure: None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Release the noisy mean gradient of the current batch, and step with it.

        An empty batch is released too.

        Args:
            closure: Must be None, because every release is used once.

        Raises:
            InvalidParameterError: The gradients of the batch were not computed, a closure is given, or the optimizer
                does not hold exactly the trained tensors.
            UnsupportedError: All planned steps are released.
        """
        if closure is not None:
            raise InvalidParameterError("closure", closure, "None, because every release is used once")
        if self._turn.taken:
            self._check_trained()
        self._turn.close()
        try:
            self._share()
            self._check_groups()
            self._use(self._noisy_sum.release())
        finally:
            self._drop_gradients()
            self._noisy_sum.begin()
        for hook in self._hooks:
            hook(self)

    def _use(self, means: list[Tensor]) -> None:
        """Step the wrapped optimizer, with released mean gradients as its only gradients."""
        self._drop_gradients()
        group_of = {id(p): group for group in self.param_groups for p in group["params"]}
        # The caller may have autocast switched on.
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
        """Raise an error if other code calls ``step`` of the wrapped optimizer."""
        if not self._steps_itself:
            remedy = "call step_on of the optimizer that make_private returned, because other gradients have no noise"
            expected = "called through the private optimizer only"
            raise InvalidParameterError("optimizer", "a step of the wrapped optimizer", expected, remedy)

    def _drop_gradients(self) -> None:
        for trained in self._trained:
            for parameter in trained.parameters:
                parameter.grad = None
        for parameter in self._held():
            parameter.grad = None

    def _check_groups(self) -> None:
        """Raise an error unless the wrapped optimizer has exactly the trained tensors.

        Frozen tensors in the optimizer are ignored.
        """
        held = {*self._held()}
        for view in self._views:
            if not held.issuperset(view.parameters):
                remedy = "build it from module.parameters() after all changes to the module, or freeze that tensor"
                expected, actual = "an optimizer over every trained tensor", f"one without the tensor {view.name}"
                raise InvalidParameterError("optimizer", actual, expected, remedy)
        for parameter in held.difference(*(view.parameters for view in self._views)):
            if parameter.requires_grad:
                actual = f"one with a tensor of shape {tuple(parameter.shape)} outside the private layers"
                remedy = "freeze that tensor, or put it into the module before make_private"
                expected = "an optimizer over the trained tensors and no others"
                raise InvalidParameterError("optimizer", actual, expected, remedy)

    def _held(self) -> Iterator[Tensor]:
        return (p for group in self.param_groups for p in group["params"])

    def close(self) -> None:
        """Detach from the wrapped optimizer, and let other processes write to the ledger."""
        self._handle.remove()
        self._turn.closed = True
        if self._spending.ledger is not None:
            self._spending.ledger.close()


def _only_gradient(captured: Gradients) -> Tensor:
    """Return the gradient of a single record, outputs x inputs, from captured factors."""
    if len(captured) == 1:
        return captured[0][0]
    g, x = captured
    return per_example.formed(g.to_dense() if isinstance(g, LookedUp) else g, x)[0]
