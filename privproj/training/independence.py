"""The check that a record's loss is its own: what is clipped of a record must not depend on the records beside it.

Clipping bounds what a record adds to the sum. It bounds the sensitivity only if no record changes what another one
adds. So one record of every batch, chosen in secret, is computed by itself before the release, in plain autograd and
without any hook, and has to have the gradient that the taps saw beside the others. In the first steps, and whenever
something is new, a part of the batch is also computed again in random halves. Random functions are quiet meanwhile.
"""

import inspect
import math
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from privproj.errors import InvalidParameter
from privproj.training import per_example
from privproj.training.capture import Taps
from privproj.training.generators import number_states, unchanged_numbers
from privproj.training.guard import Contents, Guard
from privproj.training.nested import Samples, leaves, move, parts_of, place_of, take
from privproj.training.quiet import quiet
from privproj.training.taps import AnyTap, Tap

LossFunction = Callable[[Any], Tensor]
"""From a part of a batch to one loss for each of its records."""

FIRST_STEPS = 3
"""Batches at the start of a run of which a part is always checked. Contract."""

CHANCE = 1.0 / 64.0
"""The probability that a part of any later batch is checked as in the first steps. Contract."""

BESIDE = 3
"""Records beside the one that is computed alone, where random functions have to be quiet for it. Contract."""

SMALL_SHARE = 0.1
"""A relative difference up to which one record's gradient may be another one by rounding, which moves inputs of a ReLU
across its corner: two more records are then computed alone, and none of them may differ. Contract."""

RECORDS_ALONE = 2
"""Records of a checked part that are computed by themselves. Contract."""

LEVELS = (0.02, 0.98, 0.5)
"""Levels at which random functions are quiet in the first checks, so that rare branches of code are taken. Contract."""

PROBES = 8
"""Random numbers ``u^T G_j v`` by which gradients of one record are compared. Contract."""

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 0.15}
"""The largest relative difference of gradients of one record that passes for rounding, by the shortest type on the way.
Contract: the sum of all records changes by about this much of the clip where a difference of this size is missed."""

SHORT = 1e-2
"""The same on a GPU, which may shorten factors of float32 to 10 bits (TF32). Contract."""

FLOOR = 1e-4
"""A difference of gradients, in units of the clip, that is never an error. Contract."""


class IndependenceCheck:
    """Computes one record of every batch alone, and decides when a part of a batch is checked further.

    A part is checked further in the first steps, whenever its form is new (the mode of a module, the modules
    themselves, the types and sizes of the tensors, the number of records to a factor of 2, autocast), and now and then.
    """

    def __init__(self, taps: Taps, guard: Guard, clip: float, released: Callable[[], int]) -> None:
        self.taps, self.guard, self.clip, self.released = taps, guard, clip, released
        self.seen: set[int] = set()
        self.steps = self.chosen = 0
        self.spot = False
        self.samples: Samples = None
        self.types: set[torch.dtype] = set()
        self.draw = random.SystemRandom()
        self.levels, self.repeat = list(LEVELS), 0
        self.differences: list[_Difference] = []

    def begin(self) -> None:
        """Note that a new batch was drawn."""
        self.steps += 1
        self.spot = self.steps <= FIRST_STEPS or self.draw.random() < CHANCE
        self.guard.thorough = self.spot

    def choose(self, records: int) -> None:
        """Choose the record that is computed alone, of a batch of so many."""
        self.chosen = self.draw.randrange(max(1, records))

    def check_first(self, loss_fn: LossFunction, part: Any, records: int, alone: Callable[[int], Any]) -> None:
        """Check a part before it is computed, if it has to be checked further; its form is noted as seen."""
        form = hash((*self.mode(), _code_of(loss_fn), _shapes(part), records.bit_length()))
        due = self.spot or form not in self.seen
        self.seen.add(form)
        self.spot = False
        if due:
            self.check(loss_fn, part, records, alone)

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """Make passes that can be compared, and note the types of numbers on their way."""
        self.repeat = self.draw.getrandbits(32)
        with _checking(), unchanged_numbers(), quiet(self.taps.module, self.level()) as self.types:
            device = self.taps.taps[0].parameters[0].device.type
            if torch.is_autocast_enabled(device):
                # The way back is made in this type too, whatever type the losses are made in.
                self.types.add(torch.get_autocast_dtype(device))
            yield

    @contextmanager
    def one_alone(self, loss_fn: LossFunction, part: Any, rows: slice) -> Iterator[None]:
        """Run a block that computes the part with these rows of the batch, and compare the chosen record if it has it.

        Where nothing was drawn from a random generator meanwhile, what the taps have kept is compared. Else a few
        records are computed beside it once more, quietly. Random numbers of another generator are a difference.
        """
        records = rows.stop - rows.start
        if not rows.start <= self.chosen < rows.stop:
            yield
            return
        first = self.chosen - rows.start
        order = [first, *self.draw.sample([i for i in range(records) if i != first], min(BESIDE, records - 1))]
        # A copy, for the loss function may write into its part.
        few = self.cut(part, torch.tensor(order), records)
        device = self.taps.taps[0].parameters[0].device
        states = number_states(device)
        yield
        drawn = number_states(device) != states
        kept = [tap.uses for tap in self.taps.taps]
        grads = [(p, p.grad) for p in self.taps.module.parameters()]
        try:
            with self.quietly():
                seen = kept
                if drawn:
                    self.pass_over(loss_fn, few, len(order))
                    seen = [tap.uses for tap in self.taps.taps]
                # The record with the largest entry does not show that all are divided by that: few are two at least.
                found, needed = None, 2 if drawn else 1
                for i, row in enumerate(range(len(order)) if drawn else order):
                    own = [[tap.cut(use, row) for use in uses] for tap, uses in zip(self.taps.taps, seen, strict=True)]
                    self.check_alone(loss_fn, self.cut(few, slice(i, i + 1), len(order)), own, _MIXED)
                    worst = self.worst_difference()
                    if worst is not None:
                        if found is not None or worst.share > SMALL_SHARE or len(order) == 1:
                            self.refuse(worst)
                        found, needed = worst, i + 1 + RECORDS_ALONE
                    if i + 1 >= needed:
                        break
        finally:
            self.taps.records = records
            for tap, uses in zip(self.taps.taps, kept, strict=True):
                tap.uses = uses
            for parameter, grad in grads:
                parameter.grad = grad

    def level(self) -> float:
        """The level at which random functions are quiet in the next check."""
        return self.levels.pop(0) if self.levels else self.draw.uniform(0.001, 0.999)

    def mode(self) -> tuple[Any, ...]:
        """All that says in which mode the module is."""
        modules = self.taps.module.modules()
        parts = tuple(
            (id(part), id(part.__dict__.get("forward")), _switches(part.__dict__), *part._forward_hooks,
             *part._forward_pre_hooks, *part._backward_hooks)
            for part in modules
        )  # fmt: skip
        device = self.taps.taps[0].parameters[0].device.type
        trained = tuple(p.requires_grad for p in self.taps.module.parameters())
        return parts, trained, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)

    def check(self, loss_fn: LossFunction, part: Any, records: int, alone: Callable[[int], Any]) -> None:
        """Raise :class:`InvalidParameter` where the gradient of a record depends on the records beside it.

        ``alone`` gives the batch of one record of the part, fetched anew and joined by itself; None where there is no
        data set.
        """
        probes = _Probes(self.taps, self.draw.getrandbits(63))
        drawn = self.draw.sample(range(records), min(records, RECORDS_ALONE))
        singles = [self.single(part, row, records, alone) for row in drawn]
        with self.quietly():
            try:
                contents = Contents(self.guard)
                together = self.gradients(loss_fn, part, records, probes)
                uses = [[_row_of(tap, row) for tap in self.taps.taps] for row, _, _ in singles]
                # What a first pass leaves for good, whatever the batch is, is none of the batch: it may stay.
                half = self.halves(records)[0]
                contents.settle(lambda: self.gradients(loss_fn, self.cut(part, half, records), len(half), probes))
                if records > 1:
                    self.check_halves(loss_fn, part, records, probes, together)
                for (row, found, cause), own in zip(singles, uses, strict=True):
                    self.check_alone(loss_fn, self.cut(part, slice(row, row + 1), records), own, _MIXED)
                    if found is not None:
                        self.check_alone(loss_fn, found, own, cause)
                contents.check()
                self.refuse_differences()
            finally:
                self.taps.records = records
                self.forget()

    def single(
        self, part: Any, row: int, records: int, alone: Callable[[int], Any]
    ) -> tuple[int, Any, tuple[str, str]]:
        """The row of a record of the part and, where it differs there, the batch of that record by itself and why."""
        found = alone(row)
        if found is None:
            return row, None, _MIXED
        device = self.taps.taps[0].parameters[0].device
        place = place_of(found, part, row, records, self.samples)
        if place is None:
            # It is another one whenever it is read.
            return row, None, _MIXED
        row, padded = place
        here = self.cut(part, slice(row, row + 1), records)
        given = not all(map(_alike, parts_of(found), parts_of(here)))
        return row, move(found, device) if padded or given else None, _GIVEN if given else _PADDED

    def cut(self, part: Any, rows: slice | Tensor, records: int) -> Any:
        """These rows of a part of so many records."""
        return take(part, rows, records, self.samples)

    def forget(self) -> None:
        """Remove what a pass left behind: captured rows, gradients, and weights that autocast has shortened.

        Python and numpy draw the same numbers in every pass, so that a layer which is skipped is skipped each time.
        """
        random.seed(self.repeat)
        np.random.seed(self.repeat)
        for tap in self.taps.taps:
            tap.uses = []
        torch.clear_autocast_cache()
        for parameter in self.taps.module.parameters():
            parameter.grad = None

    def gradients(self, loss_fn: LossFunction, part: Any, records: int, probes: "_Probes") -> list[Tensor | None]:
        """What the taps see of each record of a part: for each tap its probes, records x probes."""
        self.pass_over(loss_fn, part, records)
        return probes.of_taps()

    def pass_over(self, loss_fn: LossFunction, part: Any, records: int) -> None:
        """Compute a part, so that the taps keep what they see of it."""
        self.forget()
        self.taps.records = records
        # A copy, for what one pass writes into its part must not be there in the next one.
        part = move(self.cut(part, torch.arange(records), records), self.taps.taps[0].parameters[0].device)
        losses_of(loss_fn, part, records).sum().backward()
        self.guard.check_gradients()
        for tap in self.taps.taps:
            check_rows(tap, records)

    def check_halves(
        self, loss_fn: LossFunction, part: Any, records: int, probes: "_Probes", together: list[Tensor | None]
    ) -> None:
        """Raise where a record's gradient differs between the part and a random half of it."""
        for rows in self.halves(records):
            found = self.gradients(loss_fn, self.cut(part, rows, records), len(rows), probes)
            for tap, whole, own in zip(self.taps.taps, together, found, strict=True):
                whole = None if whole is None else whole[rows.to(whole.device)]
                self.compare(tap, whole, own, _MIXED)

    def halves(self, records: int) -> list[Tensor]:
        """The rows of a part in two random halves, each in its order."""
        order = torch.tensor(self.draw.sample(range(records), records))
        return [half.sort().values for half in order.chunk(2)]

    def check_alone(self, loss_fn: LossFunction, single: Any, own: list[list[Any]], cause: tuple[str, str]) -> None:
        """Raise where the gradients of a record, from what its taps saw, are not those of its loss by itself.

        The gradients by itself come from plain autograd. Each tensor's is compared and dropped as soon as it is there.
        """
        owners = {id(p): (tap, uses, i) for tap, uses in zip(self.taps.taps, own, strict=True)
                  for i, p in enumerate(tap.parameters)}  # fmt: skip
        trained = {id(p): p for tap in self.taps.taps for p in tap.parameters}
        asked = {key: p.requires_grad for key, p in trained.items()}

        parts: dict[int, list[Tensor]] = {}

        def compare(p: Tensor) -> None:
            tap, uses, i = owners.pop(id(p))
            if id(tap) not in parts:
                tap.uses = uses
                with per_example.full_precision():
                    parts[id(tap)] = tap.gradient_of(0)
                tap.uses = []
            true = torch.zeros_like(p) if p.grad is None else p.grad
            with per_example.full_precision():
                self.compare(tap, _in_a_row(parts[id(tap)][i]), _in_a_row(true), cause)
            parts[id(tap)][i], p.grad = true.new_empty(0), None

        handles = [p.requires_grad_(True).register_post_accumulate_grad_hook(compare) for p in trained.values()]
        self.taps.capturing = False
        try:
            self.forget()
            single = move(self.cut(single, torch.arange(1), 1), self.taps.taps[0].parameters[0].device)
            losses_of(loss_fn, single, 1).sum().backward()
            for key in list(owners):
                compare(trained[key])
        finally:
            self.taps.capturing = True
            for handle in handles:
                handle.remove()
            for key, p in trained.items():
                p.requires_grad_(asked[key])

    def compare(self, tap: AnyTap, one: Tensor | None, other: Tensor | None, cause: tuple[str, str]) -> None:
        """Note by how much two rows of numbers about the same gradients differ."""
        if one is None and other is None:
            return
        one = torch.zeros_like(other) if one is None else one  # pyright: ignore[reportArgumentType]
        other = torch.zeros_like(one) if other is None else other.to(one)
        norms = [torch.linalg.vector_norm(part, dim=1) for part in (one, other, one - other)]
        size, found = torch.maximum(*norms[:2]), norms[2]
        excess = found - (self.tolerance() * size + FLOOR * self.clip)
        # What is not finite on both sides contributes nothing.
        alike = torch.isfinite(norms[0]) == torch.isfinite(norms[1])
        wrong = torch.where(alike, (excess > 0.0).double(), 1.0)
        row = (wrong * torch.nan_to_num(found / size, nan=1.0)).argmax()
        self.differences.append(_Difference(tap.name, cause, wrong.max(), (found / size)[row]))

    def worst_difference(self) -> "_Difference | None":
        """The first difference that was noted beyond rounding, None where there is none; all are forgotten."""
        found, self.differences = self.differences, []
        if not found:
            return None
        # One question to the device for all of them.
        wrong = torch.stack(
            [one.wrong.cpu() if one.wrong.device.type == "mps" else one.wrong for one in found]
        ).tolist()
        return next((one for one, flag in zip(found, wrong, strict=True) if flag), None)

    def refuse_differences(self) -> None:
        """Raise where a difference was noted beyond rounding."""
        worst = self.worst_difference()
        if worst is not None:
            self.refuse(worst)

    def refuse(self, found: "_Difference") -> NoReturn:
        """Raise :class:`InvalidParameter` with what helps, and with the releases that the same may have been in."""
        made = self.released()
        remedy = found.cause[1]
        if made:
            remedy += f"; of the {made} releases before, those that mixed records too are not covered by epsilon"
        raise InvalidParameter(
            "the loss of a record", f"a gradient at {found.name} that changes by {found.share:.2%} {found.cause[0]}",
            "a loss of each record that does not depend on the others of its batch", remedy,
        )  # fmt: skip

    def tolerance(self) -> float:
        """The largest relative difference that passes for rounding."""
        types = {part.dtype for _, part in self.taps.tensors()} | self.types
        device = self.taps.taps[0].parameters[0].device.type
        return max(*(TOLERANCE.get(dtype, 0.0) for dtype in types), SHORT if device == "cuda" else 0.0)


_MIXED = (
    "with the other records of the batch",
    "no statistics over the batch, no division by its number of tokens, the batch as first dimension, weights used "
    "through their layers, random numbers from torch; strict=True computes every record by itself",
)
"""What a difference between a part and its pieces is called, and what helps."""

_PADDED = (
    "where the record is padded to the length of others",
    "pad on the right with an attention mask, or pass position ids, or pad to a fixed length; strict=True computes "
    "every record by itself",
)
"""What a difference between a padded record and the record by itself is called, and what helps."""


_GIVEN = (
    "with what the collate_fn says of the whole batch",
    "let the collate_fn give no counts and no statistics of the batch; strict=True computes every record by itself",
)
"""What a difference by numbers that a batch has besides its tensors is called, and what helps."""


def losses_of(loss_fn: LossFunction, part: Any, records: int) -> Tensor:
    """The losses of a part, one for each of its records; raises :class:`InvalidParameter` otherwise."""
    losses = loss_fn(part)
    if losses.dim() != 1 or len(losses) != records:
        raise InvalidParameter(
            "losses", f"shape {tuple(losses.shape)}", f"one loss for each of {records} records", 'use reduction="none"'
        )
    if records and not losses.requires_grad:
        remedy = "compute them from the module that make_private returned, with gradients enabled"
        raise InvalidParameter("losses", "without gradients", "losses of the trained module", remedy)
    return losses


def check_rows(tap: AnyTap, records: int) -> None:
    """Raise :class:`InvalidParameter` unless a layer saw one row for each record."""
    for _, x, g in tap.uses:
        if x.shape[0] != records or g.shape[0] != records:
            raise InvalidParameter(
                tap.name, f"{x.shape[0]} rows for {records} losses", "one row for each record, batch first",
                "weigh rows in place of gathering them; strict=True computes every record by itself",
            )  # fmt: skip


@dataclass(frozen=True)
class _Difference:
    """A difference of gradients of one record at a layer: whether it is beyond rounding, and its share of them."""

    name: str
    cause: tuple[str, str]
    wrong: Tensor
    relative: Tensor

    @property
    def share(self) -> float:
        """The difference over the larger of both gradients; infinite where only one of them is finite."""
        found = float(self.relative)
        return found if math.isfinite(found) else math.inf


_checks: list[bool] = []


@contextmanager
def _checking() -> Iterator[None]:
    """While this runs, a loss function is called for a check and not for its batch."""
    _checks.append(True)
    try:
        yield
    finally:
        _checks.pop()


def is_checking() -> bool:
    """Return whether a loss function is called to check that records are independent, and not for the batch itself.

    Returns:
        True during a check. A loss function that keeps averages or prints asks for it, and does neither then.

    >>> from privproj.training import is_checking
    >>> is_checking()
    False
    """
    return bool(_checks)


class _Probes:
    """Random directions ``u`` and ``v`` for each tap, by which per-example gradients are compared: ``u^T G_j v``."""

    def __init__(self, taps: Taps, seed: int) -> None:
        self.taps = taps
        stream = torch.Generator().manual_seed(seed)
        self.directions = [_directions(tap, stream) for tap in taps.taps]

    @torch.no_grad()
    def of_taps(self) -> list[Tensor | None]:
        """The probes of what every tap has captured, records x probes in double precision; None where nothing came."""
        found: list[Tensor | None] = []
        for tap, (u, v) in zip(self.taps.taps, self.directions, strict=True):
            seen = tap.captured()
            if seen is None:
                found.append(None)
            elif isinstance(seen, Tensor):
                found.append(per_example.to_double(seen @ v))
            else:
                # u^T G_j v = sum_t (u^T g_jt) (x_jt^T v).
                found.append((per_example.to_double(seen[0] @ u) * per_example.to_double(seen[1] @ v)).sum(1))
        return found


def _directions(tap: AnyTap, stream: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random directions of the sides of a tap's gradients, one column for each probe."""
    like = tap.parameters[0].detach()
    sides = tap.shape if isinstance(tap, Tap) else (1, tap.size)
    # Columns of squared length 1/PROBES in the mean, so that the probes of G_j have about the size |G_j|.
    u, v = (torch.randn(side, PROBES, generator=stream, dtype=like.dtype).to(like.device) for side in sides)
    return u, v / PROBES**0.5


def _row_of(tap: AnyTap, row: int) -> list[Any]:
    """What a tap has captured of one row, as if that were all."""
    return [tap.cut(use, row) for use in tap.uses]


def _in_a_row(tensor: Tensor) -> Tensor:
    """The numbers of a tensor in one row."""
    return tensor.detach().flatten()[None]


def _code_of(loss_fn: Any) -> Any:
    """What tells loss functions apart that are made anew for every batch, with the switches that they see."""
    if isinstance(loss_fn, partial):
        return _code_of(loss_fn.func), _switches(loss_fn.keywords)
    known = _switches(inspect.getclosurevars(loss_fn).nonlocals) if inspect.isfunction(loss_fn) else ()
    return id(getattr(loss_fn, "__code__", type(loss_fn))), known


def _switches(values: Mapping[str, Any]) -> tuple[bool | str, ...]:
    """The values that say what is done: those that are true or false, and words."""
    return tuple(value for value in values.values() if value is True or value is False or type(value) is str)


def _alike(one: Any, other: Any) -> bool:
    """True unless two values, which are no tensors, are known to differ."""
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return True
    try:
        return bool(np.all(one == other)) or (one != one and other != other)
    except (TypeError, ValueError, RuntimeError):
        return True


def _shapes(part: Any) -> tuple[Any, ...]:
    """The types of the tensors of a part, and their sizes but for the number of records."""
    return tuple((leaf.dtype, tuple(leaf.shape[1:])) for leaf in leaves(part))
