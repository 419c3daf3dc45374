"""``make_private``: from a module, an optimizer and a loader to private ones, under one plan.

The arguments are checked and made into a plan, the plan is calibrated together with what was released before, and then
the parts of the run are put together in an order that matters.
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
from privproj.training.plan import Clipping, Drawing, Method, Plan, batches_of, calibrated, rate_and_steps
from privproj.training.processes import Processes, current_processes
from privproj.training.release import NoisySum
from privproj.training.trained import Trained, trained_tensors
from privproj.training.view import Algorithm

OPACUS_NAMES = {
    "target_epsilon": "epsilon", "target_delta": "delta",
    "poisson_sampling": 'batches="poisson" (True) or batches="balls-in-bins" (False)',
    "noise_generator": "insecure_seed", "criterion": "loss_fn of step_on", "grad_sample_mode": "not needed",
    "max_physical_batch_size": "micro_batch_size of step_on", "loss_reduction": "not needed",
    "batch_first": "not needed", "total_steps": "steps",
}  # fmt: skip
"""Arguments of Opacus' ``PrivacyEngine``, with what says the same here."""

# options of an algorithm that are given to Method, each with an algorithm that has the option
OWNERS = {"rank": "m2", "frame": "m2", "subspace": "dp-sft", "every": "flora", "beta": "flora", "bound": "dp-sgd"}

EXPECTED_TYPES = {"module": nn.Module, "optimizer": torch.optim.Optimizer, "data_loader": DataLoader}
"""What the three objects of torch have to be."""

LARGEST_SUM_ERROR = 1e-9
"""How far from 1 the sum of the shares may be, as rounding leaves it; no unit."""


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
    """Make training private: the module, optimizer and loader that come back are used in the usual loop.

    ::

        for batch in loader:
            optimizer.step_on(lambda record: cross_entropy(module(record[0]), record[1]), batch)

    The loss function gets a batch of one record, as ``collate_fn([record])`` makes it, and returns the loss. The noise
    is fixed before the first step, either as given or as the smallest that meets ``epsilon`` at ``delta``.
    Under ``torch.distributed`` every process calls this with the same arguments and its own copy of the module. Each
    process clips its share of every batch, and noise is added once. A ``DistributedDataParallel`` is unwrapped: the
    module inside is trained and returned.

    Args:
        module: What is trained: its tensors with ``requires_grad``, in float32 or float64. Its forward pass must not
            write to buffers. A layer of BatchNorm in training mode raises an error.
        optimizer: A torch optimizer over exactly these tensors. It sees released gradients only.
        data_loader: Gives the data set, the batch size and the way of joining records. New batches are drawn as
            accounted. A loader with a sampler raises an error.
        max_grad_norm: The clip ``C``: the largest Frobenius norm of one record's gradient over all trained tensors,
            from 1e-20 to 1e12, in the unit of the gradients.
        noise_multiplier: ``z``, the standard deviation of the noise over the sensitivity, from 1e-12 to 1e12; the
            sensitivity is ``C``, or ``2C`` under replace. Give it, or ``epsilon`` and ``delta``.
        epsilon: Calibrate the noise so that all planned steps, with all that the ledger and the subspace have from
            before, meet this epsilon, above 0 and at most 1e9. None: ``noise_multiplier`` is given.
        delta: The delta at which ``epsilon`` is meant, above 0 and below 1. Needed with ``epsilon``, not used without.
        steps: ``T``, the number of releases, at least 1. Give it, or ``epochs``.
        epochs: Passes over the data, above 0 and at most 1e9. One pass is ``1/q`` steps, rounded up.
        algorithm: ``dp-sgd``, unless another one is named: ``m2`` (clip, add noise, project freshly),
            ``m2-projected-clip`` (project, then clip) and ``projected-dp-sgd`` (project, clip, add noise, project);
            ``lora-fa`` and ``lora-resampled`` on a module with :func:`add_frozen_lora`; ``flora`` (momentum in a
            sketch); ``prism`` on a module with :func:`add_prism`; ``dp-sft`` within a subspace. The list is
            :data:`privproj.training.algorithms.ALGORITHMS`. Its options come with it: ``Method("m2", rank=16)``.
        clipping: "joint" clips the norm over all trained tensors to ``C``; "per-layer" clips each tensor to an equal
            share of ``C^2``, and a tuple of shares, above 0 and summing to 1, each to its own. Under
            :class:`AdaptiveClipping` the one clip follows the norms of the gradients, ``max_grad_norm`` being the
            first, and every release comes with a noisy count of the records that were not clipped, which the noise is
            calibrated with.
        batches: How batches are drawn: "poisson", "fixed" or "balls-in-bins", with the batch size of ``data_loader``,
            or :class:`PoissonBatches`, :class:`FixedBatches` or :class:`BallsInBins`.
        relation: Which data sets are neighbors: "add-remove", "zero-out" or "replace". None: add-remove, but replace
            for batches of a fixed size at a rate below 1, and zero-out where batches are cut at a largest size.
        group_size: The number of records that no person exceeds, from 1 to 1e6; epsilon is then that of a person.
        ledger: Path of a file that records every release before it is used, and from which the run can be resumed. A
            second start on what has released needs the ledger of the first one. None: releases are counted in memory
            only, and those of this run alone.
        again: Whether this very plan begins anew where the ledger ends with all its steps made. True: it does, and both
            are counted. False: nothing is left to release. None: it does where the module is known to have released.
        adaptive_order: The order, from 1.001 to 1e6, of a Renyi filter with the budget of ``epsilon`` and ``delta``,
            which are then fixed before the first release of the ledger. Later calls with the same three may have other
            noise, rates and numbers of steps, chosen by looking at what was released. Without a ledger every call
            begins a budget of its own. None: the plan is fixed in advance.
        insecure_seed: A whole number of at least 0 that makes the run repeatable, and worthless as protection. None:
            random numbers come from generators seeded by the operating system.
        **unknown: No other arguments. Names of Opacus get an error that says ours.

    Returns:
        The module, a :class:`PrivateOptimizer` and a :class:`privproj.training.batches.PrivateLoader`.

    Raises:
        InvalidParameterError: An argument is wrong; always before anything is released.
        UnsupportedError: No bound covers the run, there is no loader for the sampling, or the releases before it leave
            nothing of ``epsilon``.
        ConvergenceError: The search for the noise did not settle.
        PrecisionError: The composition cannot tell such a delta from its rounding.

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
    for name in OPACUS_NAMES:
        if name in unknown:
            remedy = f"{name} of Opacus is {OPACUS_NAMES[name]} here"
            raise InvalidParameterError(name, unknown[name], "omitted", remedy)
    if unknown:
        name, value = next(iter(unknown.items()))
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
            relation=_relation_of(relation, drawing.sampling, rate, drawing.max_batch_size),
            group_size=integer("group_size", group_size, "a whole number of records >= 1", 1, 10**6),
            ranks=ranks, shares=shares, adaptive_clipping=adaptive,
        )  # fmt: skip
        start = _Start(module, optimizer, data_loader, trained, plan, again, ledger, target, insecure_seed)
        start.check_others()
        run = start.run(opened)
        if isinstance(original, DistributedDataParallel):
            # The wrapper of what was made private is neither called nor lets gradients be summed.
            original._remove_autograd_hooks()
            original.register_forward_pre_hook(_refuse_call)
        opened.pop_all()
        _RUNS[module] = ref(run[1])
        return run


_RUNS: "WeakKeyDictionary[nn.Module, ref[PrivateOptimizer]]" = WeakKeyDictionary()
"""The last run of each module. Another call replaces it while it has released nothing."""


class ResumedLedger(UserWarning):
    """Said where a ledger already holds releases of this very plan: they count, and the run goes on after them."""


@dataclass(frozen=True)
class _Start:
    """One start: the user's objects of which a run is made, and where its releases are counted."""

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
        """Return the :class:`Stamps` of a run with this account; ``name`` is the random name of its ledger, or None."""
        return Stamps(self.module, self.trained, self.optimizer, account, name, self.ledger)

    def tensors(self) -> list[tuple[str, Tensor]]:
        """Return the parameters and buffers of the module with their names."""
        return [*self.module.named_parameters(), *self.module.named_buffers()]

    @property
    def begins_anew(self) -> bool:
        """Whether a plan whose steps are all made starts again.

        ``again`` decides. If it is None, the plan starts again where an earlier run has released from this module.
        """
        return any(self.stamps(Account()).earlier()) if self.again is None else self.again

    @property
    def search(self) -> Account:
        """The account of the releases that found the subspace; empty where none were made."""
        subspace = self.plan.algorithm.subspace
        return Account() if subspace is None or subspace.account is None else subspace.account

    def check_others(self) -> None:
        """Raise unless all processes of the run have the same plan, module, optimizer, hardware and data."""
        trained, kinds = {id(p) for one in self.trained for p in one.parameters}, ("frozen", "trained")
        groups = [{k: str(v) for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        device, plan, subspace = self.trained[0].weight.device, self.plan, self.plan.algorithm.subspace
        # Each process draws the projections by itself, and other hardware or another torch draws other ones.
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
            # A digest of private data is shown to nobody: with a random number in front it says nothing about them.
            text = f"{self.processes.agree(token_hex())} {identity(self.data_loader.dataset)}"
            self.processes.check_same({"data_loader": f"other data ({sha256(text.encode()).hexdigest()[:8]})"})

    def calibrated(self) -> Plan:
        """Return the plan calibrated together with all earlier releases; as it is where its noise is given.

        A resumed plan keeps its noise, which was calibrated when it began: neither is it counted twice, nor does it
        depend on the rounding of the machine that goes on with it.
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
        """Return the ledger of the run with the file beside it; None for a run without one.

        It refuses a run that its file does not belong to: by the identity of the data, by stamps, and by the releases
        that found the subspace, which it must hold.
        """
        if self.ledger is None or not os.path.exists(self.ledger):
            # A start that fails makes no file.
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
        """Return what the batches of balls-in-bins are drawn from, for a new or a resumed run.

        The secret of the epoch that was begun is in the ``sidecar`` of the ledger. Where it is lost, or where the order
        of the records cannot be told to be the same, a record could be in a second batch of that epoch. So the epoch
        ends here: its ledger gets the lines of all its batches, and new batches count as a further epoch.
        """
        before = self.search.spent if book is None else book.account.spent - book.steps
        seed = None if self.seed is None else f"{self.seed} {before}"
        if book is None or sidecar is None or plan.batches is None:
            return EpochSecrets(seed)

        def keep(epoch: int, secret: str) -> None:
            # A phase is told by the releases before it: one that released nothing leaves no epoch that was begun.
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
        """Return the module, the private optimizer and the private loader of a run, fresh or resumed from its ledger.

        What was ``opened`` is closed where this fails.
        """
        processes, ledger, plan, subspace = self.processes, self.ledger, self.plan, self.plan.algorithm.subspace
        # Weights come before all else. Gradients of all processes are summed, so they must belong to the same weights.
        processes.align(tensor for _, tensor in self.tensors())
        processes.align(() if subspace is None else (subspace.basis,))
        public = subspace is not None and subspace.source == "public"
        marks = {"insecure": self.seed is not None or self.search.insecure, "public_subspace": public}
        # The ledger comes before the streams. It knows how many releases were made before; nothing may be drawn until
        # that is settled. Only the first process has it, and the others learn the noise and the count from it.
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
        # The boundary comes after the views and the streams, because it draws the projections of the first release as
        # soon as it is made, before any data is seen.
        noisy_sum = NoisySum(plan, views, drawn, spending.record, processes)
        # The loader opens the turn of every batch, and the optimizer closes it.
        optimizer = PrivateOptimizer(self.optimizer, self.module, self.trained, views, noisy_sum, spending, loader)
        if algorithm.step_hook is not None:
            optimizer.attach_step_hook(algorithm.step_hook(self.module, plan, drawn))
        return self.module, optimizer, loader


class LostEpoch(UserWarning):
    """Said where the batches of an epoch that was begun cannot be drawn again: the rest of it is given up."""


def _ranks_of(method: Method, trained: list[Trained]) -> tuple[int, ...]:
    """Return the rank of the projection of each trained tensor: that of the algorithm, or that of the adapter on it.

    :func:`prepare_peft` has noted the latter. Raises :class:`InvalidParameterError` where a rank is missing.
    """
    if method.rank is not None or not load(method.name).projects:
        return (method.rank or 1,) * len(trained)
    ranks: Any = tuple(getattr(one.module, "projection_rank", None if one.is_matrix else 1) for one in trained)
    if None in ranks:
        remedy = f'pass algorithm=Method("{method.name}", rank=16)'
        raise InvalidParameterError("rank", "nothing", "a rank of the projection", remedy)
    return ranks


def _check_parts(**parts: Any) -> None:
    """Raise unless these are torch's kinds of objects, and no module is wrapped for several devices or processes."""
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
    """Refuse a call of the wrapper."""
    remedy = "call that module in the loop"
    raise InvalidParameterError("module", type(module).__name__, "the module that make_private returned", remedy)


def _unwrapped_optimizer(optimizer: Any) -> Any:
    """Return the optimizer that Accelerate or an earlier call has wrapped.

    Raises :class:`InvalidParameterError` if losses are scaled.
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
    """Return the epsilon and delta of the calibration, with the order of a filter; None if the noise is given."""
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


def _relation_of(relation: str | None, sampling: str, rate: float, max_batch_size: int | None) -> NeighboringRelation:
    """Return the relation that is named; else that of the sampling at a rate below 1, and add-remove.

    Batches that are cut at a largest size go with zero-out, under which the number of records is public.
    """
    fallback = SCHEMES[Sampling(sampling)].default_relation if rate < 1.0 else "add-remove"
    fallback = fallback if max_batch_size is None else "zero-out"
    return member_named(NeighboringRelation, "relation", relation or fallback)


def _shares_of(clipping: Clipping, tensors: int) -> tuple[float, ...] | None:
    """Return the share of the squared clip of each trained tensor, which sum to 1; None under one clip for all."""
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
    """Raise unless the algorithm can train every trained layer, under this clipping and with or without a subspace."""
    algorithm: Algorithm = load(method.name)
    if algorithm.needs_subspace != (method.subspace is not None):
        expected = "omitted unless the algorithm is dp-sft"
        raise InvalidParameterError("subspace", method.subspace, expected, "give a subspace for dp-sft only")
    if algorithm.needs_subspace and (clipping == "per-layer" or isinstance(clipping, tuple | list)):
        raise InvalidParameterError("clipping", clipping, "joint, because all layers share the subspace")
    for one in trained:
        # A layer that only one algorithm can train asks that algorithm first whether this one is it.
        if one.only_for is not None:
            load(one.only_for).check_layer(algorithm.name, one)
        algorithm.check_layer(algorithm.name, one)
