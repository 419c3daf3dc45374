"""Make the training of a torch module private.

:func:`make_private` makes a :class:`Plan` from its arguments and calibrates the noise, so that the planned releases
meet the target together with earlier releases. Then it creates the private optimizer and the private loader.
"""

import os
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from hashlib import sha256
from inspect import signature
from secrets import token_hex
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from privproj.errors import InvalidParameterError, unknown_name
from privproj.io.ledger import Account, Ledger, read_ledger
from privproj.parameters import integer, quoted, real
from privproj.sampling import SCHEMES, NeighboringRelation, Sampling, member_named
from privproj.training.adaptive_clipping import AdaptiveClipping
from privproj.training.algorithms import load
from privproj.training.batches import PrivateLoader, batch_size_of, check_loader
from privproj.training.dataset import ANOTHER_LEDGER, Sidecar, Stamps, check_distinct, identity
from privproj.training.generators import EpochSecrets, streams
from privproj.training.optimizer import PrivateOptimizer, ReleaseCounter
from privproj.training.per_record import check_batch_norm
from privproj.training.plan import OTHER_NAMES, Clipping, Drawing, Method, Plan, batches_of, calibrated, rate_and_steps
from privproj.training.processes import Processes, current_processes
from privproj.training.release import NoisySum
from privproj.training.trained import Trained, trained_tensors
from privproj.training.view import Algorithm

# options of an algorithm that are given to Method, each with an algorithm that has the option
OWNERS = {"rank": "m2", "frame": "m2", "subspace": "dp-sft", "every": "flora", "beta": "flora", "bound": "dp-sgd"}

# required types of arguments of make_private
EXPECTED_TYPES = {"module": nn.Module, "optimizer": torch.optim.Optimizer, "data_loader": DataLoader}

LARGEST_SUM_ERROR = 1e-9  # largest difference between 1 and the sum of the shares, for rounding errors


def make_private(
    *,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    data_loader: DataLoader,
    max_grad_norm: float,
    noise_multiplier: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    algorithm: str | Method = "dp-sgd",
    clipping: Clipping = "joint",
    batches: Drawing = "poisson",
    relation: str | None = None,
    group_size: int = 1,
    ledger: str | None = None,
    again: bool | None = None,
    adaptive_order: float | None = None,
    insecure_seed: int | None = None,
    **unknown: Any,
) -> tuple[nn.Module, PrivateOptimizer, PrivateLoader]:
    """Return a module, a private optimizer and a private loader for a training loop.

    ::

        for batch in loader:
            optimizer.step_on(lambda record: cross_entropy(module(record[0]), record[1]), batch)

    The loss function gets a batch of one record, as ``collate_fn([record])`` returns it, and returns the loss. Under
    ``torch.distributed`` every process calls this function with the same arguments and its own copy of the module. Each
    process clips its share of every batch, and noise is added once. A ``DistributedDataParallel`` is unwrapped.

    Args:
        module: The module to train: its tensors with ``requires_grad``, in float32 or float64. The forward pass must
            not write to buffers. A layer of BatchNorm in training mode raises an error.
        optimizer: A torch optimizer over exactly these tensors. It receives released gradients only.
        data_loader: The loader whose dataset, batch size and ``collate_fn`` are used, but not its batches. A loader
            with its own sampler raises an error.
        max_grad_norm: The clipping norm ``C``: the largest Frobenius norm of one record's gradient over all trained
            tensors, from 1e-20 to 1e12, in the unit of the gradients.
        noise_multiplier: ``z``, the standard deviation of the noise divided by the sensitivity, from 1e-12 to 1e12. The
            sensitivity is ``C``, or ``2C`` under replace. Give either this, or ``epsilon`` and ``delta``.
        epsilon: The target epsilon, above 0 and at most 1e9. The noise is calibrated so that all planned steps,
            together with earlier releases of the ledger and of the subspace, meet this target. None:
            ``noise_multiplier`` is given.
        delta: The delta of ``epsilon``, above 0 and below 1. It is required with ``epsilon``, and not used otherwise.
        steps: ``T``, the number of releases, at least 1. Give either this or ``epochs``.
        epochs: Passes over the data, above 0 and at most 1e9. For the sampling rate ``q``, one pass is ``1/q``
            steps, rounded up.
        algorithm: The name of the training algorithm, one of :data:`privproj.training.algorithms.ALGORITHMS`, or a
            :class:`Method` with options, such as ``Method("m2", rank=16)``. ``lora-fa`` and ``lora-resampled`` need a
            module from :func:`add_frozen_lora`, and ``prism`` one from :func:`add_prism`.
        clipping: "joint" clips the norm over all trained tensors to ``C``. "per-layer" clips each tensor to an equal
            share of ``C^2``, and a tuple clips each tensor to its own share; the shares are above 0 and sum to 1. With
            :class:`AdaptiveClipping` the joint clipping norm starts at ``max_grad_norm`` and follows the gradient
            norms. Then every release includes a noisy count of the records that were not clipped, which is accounted
            too.
        batches: How batches are drawn: "poisson", "fixed" or "balls-in-bins", with the batch size of ``data_loader``;
            or :class:`PoissonBatches`, :class:`FixedBatches` or :class:`BallsInBins`.
        relation: The neighboring relation: "add-remove", "zero-out" or "replace". None: "replace" for batches of fixed
            size at a rate below 1, else "zero-out".
        group_size: The largest number of records of one user, from 1 to 1e6; epsilon is then about a user.
        ledger: Path of a file that records every release before the release is used. The run can be resumed from this
            file. A second run on the same tensors needs the ledger of the first one. None: the releases of this run are
            counted in memory only.
        again: If all steps of this plan are in the ledger already, True runs the plan once more and accounts for both
            runs; with False no steps are left. None: True if an earlier run has made releases on this module or its
            trained tensors, else False.
        adaptive_order: The order, from 1.001 to 1e6, of a Renyi filter with the budget ``epsilon`` at ``delta``. The
            order and the budget are fixed before the first release of the ledger. Later calls with the same order and
            budget may have another noise, rate and number of steps, which may depend on earlier releases. Without a
            ledger every call has its own budget. None: the plan is fixed in advance.
        insecure_seed: A whole number of at least 0 that makes the run repeatable and removes all privacy protection.
            None: random numbers come from generators seeded by the operating system.
        **unknown: Any other argument raises an error, which states what to use instead of a name from Opacus.

    Returns:
        The module, a :class:`PrivateOptimizer` and a :class:`privproj.training.batches.PrivateLoader`.

    Raises:
        InvalidParameterError: An argument is wrong. This error is raised before anything is released.
        UnsupportedError: No bound covers the run, the sampling has no private loader, or earlier releases have used up
            the budget.
        ConvergenceError: The search for the noise did not converge.
        PrecisionError: ``delta`` is too small compared with the rounding error of the composition.

    >>> import torch
    >>> from torch.nn.functional import cross_entropy
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from privproj.training import make_private
    >>> records = TensorDataset(torch.ones(100, 8), torch.zeros(100, dtype=torch.long))
    >>> module = torch.nn.Linear(8, 2)
    >>> module, optimizer, loader = make_private(
    ...     module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
    ...     data_loader=DataLoader(records, batch_size=25), max_grad_norm=1.0, epsilon=4.0, delta=1e-5, epochs=1,
    ... )
    >>> for batch in loader:
    ...     loss = optimizer.step_on(lambda record: cross_entropy(module(record[0]), record[1]), batch)
    >>> len(loader), 3.99 < optimizer.epsilon(1e-5).value <= 4.0
    (0, True)
    """
    if unknown:
        name, value = next(iter(unknown.items()))
        if name in OTHER_NAMES:
            raise InvalidParameterError(name, quoted(value), "omitted", OTHER_NAMES[name].format(quoted(value)))
        if name in OWNERS:
            owner = algorithm if isinstance(algorithm, str) and algorithm != "dp-sgd" else OWNERS[name]
            remedy = f'pass algorithm=Method("{owner}", {name}={quoted(value)})'
            raise InvalidParameterError(name, quoted(value), "given with the algorithm", remedy)
        allowed = [key for key in signature(make_private).parameters if key != "unknown"]
        raise unknown_name("argument", value, "argument of make_private", allowed, word=name)
    if isinstance(data_loader, PrivateLoader):
        data_loader = data_loader.original
    optimizer = _unwrapped_optimizer(optimizer)
    # A DistributedDataParallel sums gradients before they are clipped: the module in it is trained.
    original = module
    module = original.module if isinstance(original, DistributedDataParallel) else original
    _check_parts(module=module, optimizer=optimizer, data_loader=data_loader)
    if (earlier := _RUNS.get(module)) is not None and (run := earlier()) is not None and not run.has_released:
        run.close()
    check_batch_norm(module.modules())
    check_loader(data_loader)
    check_distinct(data_loader.dataset)
    drawing, method = batches_of(batches), algorithm if isinstance(algorithm, Method) else Method(algorithm)
    if again is not None and type(again) is not bool:
        raise InvalidParameterError("again", again, "True, False or None")
    chosen: Algorithm = load(method.name)
    target = _calibration_target(noise_multiplier, epsilon, delta, adaptive_order)
    records = len(data_loader.dataset)  # pyright: ignore[reportArgumentType]
    rate, steps, per_epoch = rate_and_steps(drawing, records, batch_size_of(data_loader), steps, epochs)
    with ExitStack() as opened:
        trained = trained_tensors(module)
        _check_layers(method, trained, clipping)
        ranks, shares = _ranks_of(method, trained), _shares_of(clipping, len(trained))
        mechanism = chosen.accounted_as([chosen.shape(one) for one in trained], ranks, shares)
        adaptive = clipping if isinstance(clipping, AdaptiveClipping) else None
        if adaptive is not None:
            adaptive = adaptive.for_batches(records / per_epoch if per_epoch else rate * records)
            mechanism = replace(mechanism, adaptive_clipping_sigma=adaptive.sigma)
        plan = Plan(
            algorithm=method, clip=max_grad_norm, steps=steps,
            mechanism=replace(mechanism, noise_multiplier=1.0 if noise_multiplier is None else noise_multiplier),
            sampling_rate=rate, dataset_size=records, sampling=drawing.sampling, batches=per_epoch,
            max_batch_size=drawing.max_batch_size,
            relation=_relation_of(relation, drawing.sampling, rate),
            group_size=integer("group_size", group_size, "a whole number of records >= 1", 1, 10**6),
            ranks=ranks, shares=shares, adaptive_clipping=adaptive,
        )  # fmt: skip
        start = _Start(module, optimizer, data_loader, trained, plan, again, ledger, target, insecure_seed)
        start.check_others()
        run = start.run(opened)
        if isinstance(original, DistributedDataParallel):
            # The DistributedDataParallel must not sum gradients, and a call of it raises an error.
            original._remove_autograd_hooks()
            original.register_forward_pre_hook(_refuse_call)
        opened.pop_all()
        _RUNS[module] = ref(run[1])
        return run


# the last run of each module; another call of make_private replaces a run that has made no release
_RUNS: "WeakKeyDictionary[nn.Module, ref[PrivateOptimizer]]" = WeakKeyDictionary()


class ResumedLedger(UserWarning):
    """Warning that a run continues after releases that its ledger already has.

    These releases are part of the planned steps.
    """


@dataclass(frozen=True)
class _Start:
    """The checked arguments of :func:`make_private`, from which it creates a run.

    ``target`` has the epsilon and the delta to calibrate to; None if the noise multiplier is given. ``seed`` is the
    insecure seed.
    """

    module: nn.Module
    optimizer: torch.optim.Optimizer
    data_loader: DataLoader
    trained: list[Trained]
    plan: Plan
    again: bool | None
    ledger: str | None
    target: dict[str, float] | None
    seed: int | None
    processes: Processes = field(default_factory=current_processes)

    def stamps(self, account: Account, name: str | None = None) -> Stamps:
        return Stamps(self.module, self.trained, self.optimizer, account, name, self.ledger)

    def tensors(self) -> list[tuple[str, Tensor]]:
        return [*self.module.named_parameters(), *self.module.named_buffers()]

    @property
    def begins_anew(self) -> bool:
        """True if the plan runs once more when all its steps are already in the ledger."""
        # By default it runs once more on a module or tensors with releases of an earlier run.
        return any(self.stamps(Account()).earlier()) if self.again is None else self.again

    @property
    def search(self) -> Account:
        """The releases that computed the DP-SFT subspace; empty if none did."""
        subspace = self.plan.algorithm.subspace
        return Account() if subspace is None or subspace.account is None else subspace.account

    def check_others(self) -> None:
        """Raise an error unless all processes have the same plan, module, device and data."""
        trained, kinds = {id(p) for one in self.trained for p in one.parameters}, ("frozen", "trained")
        groups = [{k: str(v) for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        device, plan, subspace = self.trained[0].weight.device, self.plan, self.plan.algorithm.subspace
        # Each process draws the projections itself, and they differ on other hardware or with another torch version.
        model = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
        self.processes.check_same({
            **{f"module's {n}": f"{(*t.shape,)} {t.dtype} {kinds[id(t) in trained]}" for n, t in self.tensors()},
            "max_grad_norm": plan.clip, "noise_multiplier": plan.noise_multiplier, **(self.target or {}),
            "insecure_seed": self.seed, **vars(plan), **vars(plan.algorithm), "algorithm": plan.algorithm.name,
            "optimizer": type(self.optimizer).__name__, "optimizer's groups": groups,
            "subspace": subspace and (tuple(subspace.basis.shape), subspace.source),
            "device": f"{device.type} {model}".strip(), "torch": torch.__version__,
        })  # fmt: skip
        if self.processes.size > 1:
            # A digest of private data must not appear in a message. Hashed with a secret random number it may.
            text = f"{self.processes.agree(token_hex())} {identity(self.data_loader.dataset)}"
            self.processes.check_same({"data_loader": f"other data ({sha256(text.encode()).hexdigest()[:8]})"})

    def calibrated(self) -> Plan:
        """Return the plan with noise calibrated to the target, unchanged without a target.

        Earlier releases count towards the target. A resumed plan keeps the noise with which it began.
        """
        plan, ledger, target = self.plan, self.ledger, self.target
        if target is None:
            return plan
        if ledger is None or not os.path.exists(ledger) or not (account := read_ledger(ledger)).spent:
            return calibrated(plan, self.search, **target)
        last = account.phases[-1][0]
        over = self.begins_anew and not account.left
        if account.target == target and "noise_multiplier" in last and not over:
            resumed = replace(plan, mechanism=replace(plan.mechanism, noise_multiplier=last["noise_multiplier"]))
            if resumed.phase(resumed.steps).as_dict() == last:
                return resumed
        return calibrated(plan, account, **target)

    def open_ledger(self, plan: Plan, marks: dict[str, bool]) -> tuple[Ledger | None, Sidecar | None]:
        """Return the ledger of the run and the :class:`Sidecar` file that identifies its data.

        Both are None without a ledger. ``marks`` states whether the run has an insecure seed and whether its subspace
        is public. Raises :class:`InvalidParameterError` if the ledger is about other data, or lacks releases that the
        run must account for.
        """
        if self.ledger is None or not os.path.exists(self.ledger):
            # This check comes first, so that a call that fails here creates no file.
            self.stamps(self.search).check()
        if self.ledger is None:
            return None, None
        path, sidecar = self.ledger, Sidecar(self.ledger, identity(self.data_loader.dataset))

        def check(account: Account) -> Callable[[int], object]:
            sidecar.check(account)
            self.stamps(account, sidecar.entries["ledger"]).check()
            if any(phase not in account.phases for phase in self.search.phases):
                expected = "the ledger of the run that found the subspace"
                raise InvalidParameterError("ledger", path, expected, "use one ledger for both stages")
            return sidecar.keep

        true = tuple(mark for mark, holds in marks.items() if holds)
        return Ledger(path, plan.phase(plan.steps), self.target, true, check, self.begins_anew), sidecar

    def epoch_secrets(self, plan: Plan, book: Ledger | None, sidecar: Sidecar | None) -> EpochSecrets:
        """Return the secrets from which the run draws balls-in-bins batches.

        ``book`` is the ledger, and ``sidecar`` stores the secret of an unfinished epoch. If this secret is lost, the
        rest of the epoch is skipped and counts as releases.
        """
        before = self.search.spent if book is None else book.account.spent - book.steps
        seed = None if self.seed is None else f"{self.seed} {before}"
        if book is None or sidecar is None or plan.batches is None:
            return EpochSecrets(seed)

        def keep(epoch: int, secret: str) -> None:
            # The number of earlier releases identifies the phase. A phase without releases has begun no epoch.
            sidecar.entries["epochs"] = {"before": before, "epoch": epoch, "secret": secret}
            book.keep_count()

        epoch, released = divmod(book.steps, plan.batches)
        entry: Any = sidecar.entries.get("epochs")
        is_known = isinstance(entry, dict) and (entry.get("before"), entry.get("epoch")) == (before, epoch)
        if released and is_known and isinstance(entry.get("secret"), str) and sidecar.data.digest is not None:
            return EpochSecrets(seed, keep, (epoch, entry["secret"]))
        if released:
            left, lost = plan.batches - released, f"{sidecar.path.name} does not contain the secret of this epoch"
            why = "records differ when they are read twice and may be in another order" if is_known else lost
            warnings.warn(
                f"the run continues with the next epoch, because {why}. The {left} batches left in this epoch are "
                "skipped and count as releases.",
                LostEpoch,
                stacklevel=4,
            )
            for _ in range(left):
                book.record()
        return EpochSecrets(seed, keep)

    def run(self, opened: ExitStack) -> tuple[nn.Module, PrivateOptimizer, PrivateLoader]:
        """Return the module, the private optimizer and the private loader of a run.

        If this method fails, ``opened`` closes the ledger.
        """
        processes, ledger, plan, subspace = self.processes, self.ledger, self.plan, self.plan.algorithm.subspace
        # First, all processes get the same weights, because their gradients are summed.
        processes.align(tensor for _, tensor in self.tensors())
        processes.align(() if subspace is None else (subspace.basis,))
        public = subspace is not None and subspace.source == "public"
        marks = {"insecure": self.seed is not None or self.search.insecure, "public_subspace": public}
        # The ledger comes before the streams, because nothing may be drawn before the number of earlier releases is
        # known. Only process 0 has the ledger. The other processes get the noise and the count from it.
        book, sidecar, account, secrets = None, None, Account(), EpochSecrets()
        with processes.together():
            if any(processes.meet("the ledger", ledger is not None)) and ledger is None and processes.first:
                expected = "given in process 0, which writes the file"
                raise InvalidParameterError("ledger", "no ledger there", expected)
            if processes.first:
                plan = self.calibrated()
                book, sidecar = self.open_ledger(plan, marks)
                opened.callback(lambda: None if book is None else book.close())
                secrets = self.epoch_secrets(plan, book, sidecar)
                phases = (*self.search.phases, (plan.phase(plan.steps).as_dict(), 0))
                account = Account(phases, self.target, alone=True, **marks) if book is None else book.account
        mechanism, account = processes.agree((plan.mechanism, account))
        plan, steps = replace(plan, mechanism=mechanism), account.phases[-1][1]
        stamps = self.stamps(account, sidecar and sidecar.entries["ledger"])
        spending = ReleaseCounter(plan, book, account, stamps)
        if book is not None and steps:
            rest = "the run continues after them" if steps < plan.steps else "nothing is left to release"
            text = f"{ledger} already holds {steps} of {plan.steps} planned releases, and {rest}"
            remedy = f"Load the weights of that run, or {ANOTHER_LEDGER}."
            warnings.warn(f"{text}. {remedy}", ResumedLedger, stacklevel=4)
        # The streams come after the count, because with an insecure seed a resumed run must not repeat its noise.
        drawn = streams(self.seed, account.spent, processes)
        # The loader comes after the streams, because it draws its batches from one of them.
        loader = PrivateLoader(self.data_loader, plan, drawn, secrets, lambda: spending.steps, processes)
        algorithm: Algorithm = load(plan.algorithm.name)
        views = algorithm.views(self.trained, plan)
        # NoisySum comes after the views and the streams, because its constructor draws the projections of the first
        # release, before any data is seen.
        noisy_sum = NoisySum(plan, views, drawn, spending.record, processes)
        # The loader opens every batch, and the optimizer closes it.
        optimizer = PrivateOptimizer(self.optimizer, self.module, self.trained, views, noisy_sum, spending, loader)
        if algorithm.step_hook is not None:
            optimizer.attach_step_hook(algorithm.step_hook(self.module, plan, drawn))
        return self.module, optimizer, loader


class LostEpoch(UserWarning):
    """Warning that a resumed run skips the batches left in an epoch of balls-in-bins.

    These batches cannot be drawn again. They count as releases.
    """


def _ranks_of(method: Method, trained: list[Trained]) -> tuple[int, ...]:
    """Return the rank of the projection of each trained tensor.

    It is the rank of ``method`` or, if that is None, of the tensor's LoRA adapter. Raises
    :class:`InvalidParameterError` for a matrix that has neither.
    """
    if method.rank is not None or not load(method.name).projects:
        # All tensors have rank 1 if the algorithm has no projections.
        return (method.rank or 1,) * len(trained)
    # prepare_peft stores the rank of an adapter. A vector without an adapter has rank 1.
    ranks: Any = tuple(getattr(one.module, "projection_rank", None if one.is_matrix else 1) for one in trained)
    if None in ranks:
        remedy = f'pass algorithm=Method("{method.name}", rank=16)'
        raise InvalidParameterError("rank", "nothing", "a rank of the projection", remedy)
    return ranks


def _check_parts(**parts: Any) -> None:
    """Raise an error for arguments of a wrong type and for modules on several devices."""
    for name, value in parts.items():
        if not isinstance(value, EXPECTED_TYPES[name]):
            expected = f"an instance of torch's {EXPECTED_TYPES[name].__name__}"
            raise InvalidParameterError(name, type(value).__name__, expected)
    for part in parts["module"].modules():
        if isinstance(part, DistributedDataParallel | nn.DataParallel):
            expected = "a module without parts that are wrapped for several devices"
            remedy = "use one process for each GPU, because privproj sums contributions over processes"
            raise InvalidParameterError("module", f"a part in {type(part).__name__}", expected, remedy)


def _refuse_call(module: nn.Module, args: Any) -> None:
    """Raise an error when a ``DistributedDataParallel`` is called instead of its module."""
    remedy = "call that module in the loop"
    raise InvalidParameterError("module", type(module).__name__, "the module that make_private returned", remedy)


def _unwrapped_optimizer(optimizer: Any) -> Any:
    """Return the torch optimizer inside a wrapper of Accelerate or of ``make_private``.

    Any other optimizer is returned unchanged. Raises :class:`InvalidParameterError` if Accelerate scales losses.
    """
    if isinstance(optimizer, PrivateOptimizer):
        return optimizer._original
    if type(optimizer).__name__ != "AcceleratedOptimizer":
        return optimizer
    if optimizer.scaler is not None:
        remedy = 'use mixed_precision="bf16" or "no", because a scaler skips steps depending on private gradients'
        expected = "an optimizer without a gradient scaler"
        raise InvalidParameterError("optimizer", "one for which Accelerate scales losses (fp16)", expected, remedy)
    return optimizer.optimizer


def _calibration_target(
    z: float | None, epsilon: float | None, delta: float | None, order: float | None
) -> dict[str, float] | None:
    """Return the epsilon, delta and Renyi order to calibrate to; None if ``z`` is given.

    ``z`` is the noise multiplier. Raises :class:`InvalidParameterError` if arguments are missing or contradict each
    other.
    """
    if order is not None and epsilon is None:
        expected = "given together with epsilon and delta, which are the budget"
        raise InvalidParameterError("adaptive_order", order, expected)
    if (z is None) == (epsilon is None):
        remedy = "give either noise_multiplier, or epsilon with delta"
        raise InvalidParameterError("noise_multiplier", z, "omitted if epsilon is given", remedy)
    if epsilon is None:
        return None
    if delta is None:
        raise InvalidParameterError("delta", delta, "given with epsilon")
    return {"epsilon": epsilon, "delta": delta} | ({} if order is None else {"order": order})


def _relation_of(relation: str | None, sampling: str, rate: float) -> NeighboringRelation:
    """Return the neighboring relation of this name, or the default if it is None."""
    # The default is replace for batches of a fixed size at a rate below 1, else zero-out. Training uses the number of
    # records, which is public under both relations, and private under add-remove.
    only = SCHEMES[Sampling(sampling)].relations if rate < 1.0 else ()
    fallback = NeighboringRelation.REPLACE if only == (NeighboringRelation.REPLACE,) else NeighboringRelation.ZERO_OUT
    return member_named(NeighboringRelation, "relation", relation or fallback)


def _shares_of(clipping: Clipping, tensors: int) -> tuple[float, ...] | None:
    """Return each trained tensor's share of the squared clipping norm; they sum to 1.

    The result is None for joint clipping.
    """
    if clipping == "joint" or isinstance(clipping, AdaptiveClipping):
        return None
    if clipping == "per-layer":
        return (1.0 / tensors,) * tensors
    if not isinstance(clipping, tuple | list):
        expected = "joint (one clip for all tensors), per-layer, a share for each trained tensor, or AdaptiveClipping"
        raise InvalidParameterError("clipping", clipping, expected)
    expected = "a tuple of shares above 0 and at most 1"
    shares = tuple(real("clipping", share, expected, 0.0, 1.0, open_low=True) for share in clipping)
    if len(shares) != tensors or abs(sum(shares) - 1.0) > LARGEST_SUM_ERROR:
        raise InvalidParameterError(
            "clipping", clipping, f"one share for each of the {tensors} trained tensors, which sum to 1"
        )
    return shares


def _check_layers(method: Method, trained: list[Trained], clipping: Clipping) -> None:
    """Raise an error unless an algorithm can train every tensor with these options."""
    algorithm: Algorithm = load(method.name)
    if algorithm.needs_subspace != (method.subspace is not None):
        expected = "omitted unless the algorithm is dp-sft"
        raise InvalidParameterError("subspace", method.subspace, expected, "give a subspace for dp-sft only")
    if algorithm.needs_subspace and (clipping == "per-layer" or isinstance(clipping, tuple | list)):
        raise InvalidParameterError("clipping", clipping, "joint, because all layers share the subspace")
    for one in trained:
        # For a tensor of one algorithm only, the check of that algorithm comes first.
        if one.only_for is not None:
            load(one.only_for).check_layer(algorithm.name, one)
        algorithm.check_layer(algorithm.name, one)
