"""``make_private``: from a module, an optimizer and a loader to private ones, under one plan."""

import json
import os
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn
from torch.utils.data import DataLoader

from privproj.assumptions import PUBLIC_SUBSPACE
from privproj.errors import InvalidParameter
from privproj.mechanisms import M2
from privproj.records.ledger import Account, Ledger, read
from privproj.training.algorithms.flora import Flora
from privproj.training.algorithms.lora import Resampling
from privproj.training.algorithms.prism import PrismTap, TangentView
from privproj.training.algorithms.projected import Projected, ProjectedFirst
from privproj.training.algorithms.subspace import Subspace, SubspaceView
from privproj.training.arguments import check_layers, check_parts, clip_of, ranks_of, relation_of, shares_of, target_of
from privproj.training.batches import PrivateLoader, Turn
from privproj.training.capture import AnyTap, Tap, Taps
from privproj.training.generators import streams
from privproj.training.optimizer import PrivateOptimizer, ProjectingOptimizer, Spending
from privproj.training.plan import (
    ALGORITHMS,
    PROJECTING,
    AlgorithmName,
    Plan,
    calibrated,
    mechanism_for,
    rate_and_steps,
)
from privproj.training.processes import world
from privproj.training.release import BoundedRelease, PrivateRelease
from privproj.training.view import Full, Sampled, View
from privproj.validation import whole


def make_private(
    *,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    data_loader: DataLoader,
    max_grad_norm: float | None = None,
    noise_multiplier: float | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    steps: int | None = None,
    epochs: float | None = None,
    algorithm: AlgorithmName = "m2",
    rank: int | None = None,
    frame: Literal["haar", "wishart"] | None = None,
    clipping: Literal["joint", "per-layer"] = "joint",
    shares: tuple[float, ...] | None = None,
    feature_bound: float | None = None,
    subspace: Subspace | None = None,
    every: int = 1,
    beta: float = 0.9,
    sampling_rate: float | None = None,
    sampling: Literal["poisson", "fixed"] = "poisson",
    relation: str | None = None,
    bound: str | None = None,
    ledger: str | None = None,
    insecure_seed: int | None = None,
) -> tuple[nn.Module, PrivateOptimizer, PrivateLoader]:
    """Make training private: returns ``(module, optimizer, loader)`` for the usual loop.

    ::

        for x, y in loader:
            optimizer.backward(cross_entropy(module(x), y, reduction="none"))
            optimizer.step()

    Give either ``noise_multiplier`` or ``epsilon`` with ``delta``, and either ``steps`` or ``epochs``. The sampling
    rate is ``batch size / records`` of ``data_loader`` unless given. ``max_grad_norm`` is the clip ``C`` of a record's
    gradient over all trained tensors; with ``clipping="per-layer"`` every tensor gets its share of ``C^2`` (equal
    parts unless ``shares`` says otherwise). With ``feature_bound=R`` instead, nothing is clipped: one linear softmax
    head on features of norm at most ``R``, whose gradients have norm at most ``sqrt(2 (R^2 + 1))``.

    Algorithms: ``dp-sgd``; ``m2`` (clip, add noise, project freshly), ``m2-projected-clip`` (project, then clip) and
    ``m1`` (project, clip, add full noise), with a ``rank`` (without one, a model from :func:`prepare_peft` is projected
    to the rank of each of its adapters); ``lora-fa`` and ``lora-resampled`` (factors drawn anew
    every ``every`` steps) on a module with :func:`add_frozen_lora`; ``flora`` (momentum ``beta`` in a sketch of some
    ``rank``, drawn anew every ``every`` steps); ``prism`` on a module with :func:`add_prism`; ``dp-sft`` within a
    ``subspace``, whose own releases are accounted too. ``bound`` names the bound that accounts it; ``ledger`` a file
    that records every release before it is used.

    Under ``torch.distributed`` every process calls this with the same arguments and its own copy of the module (not
    wrapped in DistributedDataParallel): each clips its share of every batch, and noise is added once. Raises
    :class:`InvalidParameter` or :class:`Refused`, always before anything is released.
    """
    check_parts(module=module, optimizer=optimizer, data_loader=data_loader)
    if algorithm not in ALGORITHMS:
        raise InvalidParameter("algorithm", algorithm, "one of " + ", ".join(ALGORITHMS))
    rank = None if rank is None else whole("rank", rank, "a rank from 1 to 1e7", 1, 10**7)
    target = target_of(noise_multiplier, epsilon, delta)
    records = len(data_loader.dataset)  # pyright: ignore[reportArgumentType]
    rate, steps = rate_and_steps(sampling, records, data_loader.batch_size, sampling_rate, steps, epochs)
    taps = Taps(module)
    try:
        check_layers(algorithm, taps, subspace, clipping)
        projected = algorithm in PROJECTING
        shapes = [(*tap.shape, projected) if isinstance(tap, Tap) else (1, tap.size, False) for tap in taps.taps]
        parts = shares_of(clipping, shares, len(taps.taps))
        ranks = ranks_of(taps) if projected and rank is None else None
        mechanism = mechanism_for(algorithm, shapes, rank, parts, ranks)
        plan = Plan(
            algorithm=algorithm,
            mechanism=replace(mechanism, noise_multiplier=1.0 if noise_multiplier is None else noise_multiplier),
            clip=clip_of(algorithm, max_grad_norm, feature_bound, taps),
            steps=steps,
            sampling_rate=rate,
            dataset_size=records,
            sampling=sampling,
            relation=relation_of(relation, sampling, rate),
            rank=rank,
            ranks=ranks,
            frame=frame,
            shares=parts,
            feature_bound=feature_bound,
            bound=bound,
            every=every,
            beta=beta,
        )
        if target is not None:
            plan = calibrated_after(plan, subspace, ledger, target)
        return started(plan, Parts(module, optimizer, data_loader, taps, subspace), ledger, target, insecure_seed)
    except BaseException:
        taps.close()
        raise


@dataclass(frozen=True)
class Parts:
    """What a run is made of."""

    module: nn.Module
    optimizer: torch.optim.Optimizer
    data_loader: DataLoader
    taps: Taps
    subspace: Subspace | None

    @property
    def assumes(self) -> tuple[str, ...]:
        """What is taken for granted of a subspace that costs nothing."""
        return (PUBLIC_SUBSPACE,) if self.subspace is not None and self.subspace.source == "public" else ()


def started(
    plan: Plan, parts: Parts, ledger: str | None, target: dict[str, float] | None, insecure_seed: int | None
) -> tuple[nn.Module, PrivateOptimizer, PrivateLoader]:
    """The parts of a run under its plan."""
    here = world()
    here.align(parts.module)
    insecure, phase = insecure_seed is not None, plan.phase(plan.steps)
    book = Ledger(ledger, phase, target, insecure) if ledger is not None and here.first else None
    try:
        said = Account() if book is None else book.account
        earlier = earlier_of(book, parts.subspace)
        before = here.agree(replace(earlier, insecure=insecure or said.insecure, notes=said.notes))
        spending, turn = Spending(plan, book, before, parts.assumes), Turn()
        spending.steps = here.agree(spending.steps)
        device = parts.taps.taps[0].parameters[0].device
        drawn = streams(device, insecure_seed, before.spent + spending.steps, here)
        loader = PrivateLoader(parts.data_loader, plan, drawn.sampler, lambda: spending.steps, turn, here)
        views = views_of(plan, parts)
        kind = PrivateRelease if plan.feature_bound is None else BoundedRelease
        boundary = kind(plan, views, drawn, spending.record, here)
        wrapper = ProjectingOptimizer if isinstance(plan.mechanism, M2) else PrivateOptimizer
        optimizer = wrapper(parts.optimizer, parts.taps, views, boundary, spending, turn)
        if plan.algorithm == "lora-resampled":
            optimizer.attach_step_hook(Resampling(parts.module, plan.every, drawn))
        return parts.module, optimizer, loader
    except BaseException:
        if book is not None:
            book.close()
        raise


def views_of(plan: Plan, parts: Parts) -> list[View]:
    """How the plan's algorithm sees the trained tensors."""
    if parts.subspace is not None:
        return [SubspaceView(parts.taps.taps, parts.subspace)]
    taps = parts.taps.taps
    return [
        view_of(plan, tap, rank) for tap, rank in zip(taps, plan.ranks or (plan.rank or 1,) * len(taps), strict=True)
    ]


def view_of(plan: Plan, tap: AnyTap, rank: int) -> View:
    """How the plan's algorithm sees one trained tensor."""
    if isinstance(tap, PrismTap):
        return TangentView(tap, plan.noise_std / plan.expected_batch)
    if not isinstance(tap, Tap):
        return Sampled(tap)
    if plan.algorithm == "m1":
        return ProjectedFirst(tap, rank)
    if plan.algorithm == "flora":
        return Flora(tap, rank, plan.beta, plan.every)
    if plan.algorithm in PROJECTING:
        return Projected(tap, min(rank, tap.shape[1]), plan.frame, plan.algorithm == "m2-projected-clip")
    return Full(tap)


def account_of(subspace: Subspace | None) -> Account:
    """What finding the subspace has released."""
    return Account() if subspace is None or subspace.account is None else subspace.account


def earlier_of(book: Ledger | None, subspace: Subspace | None) -> Account:
    """The phases before this one: the ledger's, which have to hold what finding the subspace has released."""
    found = account_of(subspace)
    if book is None:
        return found
    made = [(json.dumps(entry), steps) for entry, steps in book.earlier]
    if any((json.dumps(entry), steps) not in made for entry, steps in found.phases):
        raise InvalidParameter(
            "ledger", book.path, "the ledger of the run that found the subspace", "one ledger for both stages"
        )
    return Account(book.earlier)


def calibrated_after(plan: Plan, subspace: Subspace | None, ledger: str | None, target: dict[str, float]) -> Plan:
    """The plan calibrated together with what was released before; a resumed plan is not counted twice."""
    if ledger is None or not os.path.exists(ledger) or not read(ledger).spent:
        return calibrated(plan, account_of(subspace), **target)
    account = read(ledger)
    resumed = calibrated(plan, Account(account.phases[:-1]), **target)
    if json.loads(json.dumps(resumed.phase(resumed.steps).as_dict())) == account.phases[-1][0]:
        return resumed
    return calibrated(plan, account, **target)
