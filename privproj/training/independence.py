"""The check that a record's loss is its own: what is clipped of a record must not depend on the records beside it.

Clipping bounds what a record adds to the sum. It bounds the sensitivity only if no record changes what another one
adds. So some records of a batch, chosen in secret, are computed apart before the release, in plain autograd and without
any hook, and have to have the gradients that the taps saw beside the others. In every batch that is one record. In the
first steps, and whenever something is new, it is also every record of a part in one of two random halves.

The guard sees to the rest: from the drawing of a batch to its release trained tensors keep their type and device,
nothing else asks for gradients, and no forward pass leaves anything of a batch in the module.
"""

import math
import random
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from copy import copy
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from privproj.errors import InvalidParameterError, PrivprojError
from privproj.training import per_example
from privproj.training.batches import PrivateLoader
from privproj.training.containers import leaves, move, parts_of, place_of, shapes_of, take
from privproj.training.fixed_randomness import DROPPING, fix_randomness, refuse_public_seed
from privproj.training.generators import number_states
from privproj.training.hooks import Taps, UnpickledHook
from privproj.training.release import NoisySum

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

LEAST_RATE = 1e-6
"""Learning rates up to which a step may be less than rounding, as in a long warm-up. Contract."""

RECORDS_ALONE = 2
"""Records of a checked part that are computed by themselves. Contract."""

LEVELS = (0.02, 0.98, 0.5)
"""Levels at which random functions are quiet in the first checks, so that rare branches of code are taken. Contract."""

TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 0.15}
"""The largest relative difference of gradients of one record that passes for rounding, by the shortest type on the way.
Contract: the sum of all records changes by about this much of the clip where a difference of this size is missed."""

SHORT = 1e-2
"""The same on a GPU, which may shorten factors of float32 to 10 bits (TF32). Contract."""

FLOOR = 1e-4
"""The share of the clip, or of a longer gradient, by which it may differ: half an eps of a shorter type. Contract."""


Piece = tuple[list[int], Tensor | None, Any, tuple[str, str]]
"""Rows of a part, their weights or None for a sum, their batch if it is not cut from the part, and what a difference is
called and what helps."""


class IndependenceCheck:
    """Computes records of a batch apart from the others, one of every batch and more of some.

    More are computed where ``checks_more``: in the first steps, whenever the form of a part is new (the modes of the
    modules, the types and sizes of the tensors, the number of records to a factor of 2, autocast), and now and then. Of
    records that were computed together, row ``i`` of ``base`` is row ``places[i]`` of what the taps have kept.
    """

    def __init__(
        self, taps: Taps, state: "ModuleState", noisy_sum: NoisySum, loader: PrivateLoader, released: Callable[[], int]
    ) -> None:
        self.taps, self.state, self.noisy_sum, self.loader, self.released = taps, state, noisy_sum, loader, released
        self.forms: set[Any] = set()
        self.steps = self.chosen = self.start = self.repeat = 0
        self.spot = self.checks_more = self.drawn = False
        self.types: set[torch.dtype] = set()
        self.draw = random.SystemRandom()
        self.levels = list(LEVELS)

    def begin(self) -> None:
        """Note that a new batch was drawn, and choose the record of it that is computed alone."""
        self.steps, self.chosen = self.steps + 1, self.draw.randrange(max(1, self.loader.drawn or 0))
        self.spot = self.steps <= FIRST_STEPS or self.draw.random() < CHANCE

    def should_check_more(self, part: Any, records: int) -> bool:
        """True if more than one record of a part is to be computed apart; its form is noted as seen."""
        modes = tuple(module.training for module in self.taps.module.modules())
        shapes = tuple((leaf.dtype, leaf.shape[1:]) for leaf in leaves(part))
        form = modes, shapes, records.bit_length(), frozenset(_autocast(self.taps.device))
        checks_more, self.spot = self.spot or form not in self.forms, False
        self.forms.add(form)
        return checks_more

    def take_in(self, loss_fn: LossFunction, part: Any, rows: slice, *, alone: bool) -> Tensor:
        """Add the part that these rows of the batch are to the release, and compare some of its records.

        Where nothing was drawn from a random generator meanwhile, what the taps have kept is compared. Else the records
        are computed together once more, quietly, few of them unless more are checked. Random numbers of another
        generator are a difference. Where every record is computed ``alone``, the chosen one is computed twice: what is
        kept outside the module makes a difference. The sum of the losses comes back. Where this raises, what is added
        has to be forgotten.
        """
        records, first = rows.stop - rows.start, self.chosen - rows.start
        self.loss_fn, self.start, self.taps.alone = loss_fn, rows.start, alone
        self.checks_more = not alone and self.should_check_more(part, records)
        if self.checks_more or (alone and self.spot):
            self.loader.check_joining(rows, alone=alone)
            self.state.note()
        if self.state.is_noted and records == 1 and rows.start and rows.stop == self.loader.drawn:
            # What the first record has set for all is set anew by the last one.
            self.state.restore()
        every = order = list(range(records))
        if not self.checks_more:
            order = [first, *self.draw.sample([i for i in order if i != first], min(BESIDE, records - 1))]
        is_compared = self.checks_more or 0 <= first < records
        # A copy, for the loss function may write into its part.
        copied = take(part, torch.tensor(every), records, self.loader.samples) if is_compared else None
        self.base = take(copied, torch.tensor(order), records, self.loader.samples) if is_compared else None
        form, states = shapes_of(part) if alone else None, number_states(self.taps.device)
        seed = torch.initial_seed()
        with self.taps.armed(records):
            losses = self.losses(part, records)
            if torch.initial_seed() != seed and not alone:
                refuse_public_seed()
            self.state.check_leaves(losses)
            try:
                self.pass_back(losses)
                self.state.check_unwritten(form)
            finally:
                self.state.drop_gradients(every=True)
            self.drawn = number_states(self.taps.device) != states
            self.noisy_sum.add(records)
            if is_compared and self.drawn and not (self.checks_more or alone) and self.is_silent():
                # A loss of nothing for a whole part may be what one of its records has caused.
                self.checks_more, order, self.base = True, every, copied
                self.state.note()
            if is_compared:
                self.places = list(range(len(order))) if self.drawn else order
                self.check_apart()
        if self.state.is_noted and self.loader.drawn == 1:
            # Nothing beside it tells what the one record has set for all: the next batch sets it anew.
            self.state.restore()
        # Outputs of first layers are among them, which nothing needs any more.
        self.state.others.clear()
        return losses.detach().sum()

    def is_silent(self) -> bool:
        """True where what came back to the last layer that was used is all zero or not finite, or nothing did."""
        captured = (tap.captured() for tap in reversed(self.taps.taps))
        back = next((gradients[0] for gradients in captured if gradients is not None), None)
        return back is None or (isinstance(back, Tensor) and not bool(back.nan_to_num(0.0, 0.0, 0.0).any()))

    def check_apart(self) -> None:
        """Raise where what is computed apart is another one than beside others.

        Random functions stand still where more are checked or some drew.
        """
        self.repeat, level = self.draw.getrandbits(32), None
        if self.drawn or self.checks_more:
            level = self.levels.pop(0) if self.levels else self.draw.uniform(0.001, 0.999)
        _checks.append(True)
        try:
            with fix_randomness(self.taps.module, level, takes_seeds=self.taps.alone) as self.still:
                self.types = self.types if level is None else self.still.types
                # The way back is made in the type of autocast too, whatever type the losses are made in.
                self.types |= _autocast(self.taps.device)
                self.still.apart = self.checks_more
                self.compare()
        finally:
            _checks.pop()
            # What counts the records has counted these again.
            self.state.last = None

    def compare(self) -> None:
        """Raise where a piece of a part is another one apart from it: all are compared, or one unless more are checked.

        Where functions are random two are: the record with the largest entry does not show that all are divided by
        that, and the second one does. A small difference of one record may be rounding: two more records tell.
        """
        if self.drawn:
            self.compute_together()
        pieces = self.pieces()
        previous, needed = None, len(pieces) if self.checks_more else 1 + self.drawn
        for rows, weights, batch, cause in pieces:
            if self.checks_more:
                # What a first pass leaves for good, whatever the batch is, is none of the batch: it may stay.
                self.state.restore()
            worst = self.difference(rows, weights, batch)
            if self.checks_more:
                self.state.check_attributes(len(rows) if batch is None else shapes_of(batch))
            if worst is not None:
                if self.checks_more or previous or worst[1] > SMALL_SHARE or len(pieces) == 1:
                    self.refuse(*worst, _KEPT if self.taps.alone else cause)
                previous, needed = worst, 1 + RECORDS_ALONE
            needed -= 1
            if not needed:
                return

    def compute_together(self) -> None:
        """Compute the records once more beside one another, now that random functions stand still."""
        self.taps.clear()
        if self.still.apart:
            # What is drawn for each record is told by a pass over one, for mixing may vanish where all draws are one.
            self.taps.capture(False)
            self.losses_again(take(self.base, slice(0, 1), len(self.places), self.loader.samples), [0])
            self.taps.capture(True)
            self.state.restore()
        self.taps.records = len(self.places)
        self.pass_back(self.losses_again(self.base, self.places))
        self.state.drop_gradients()

    def pieces(self) -> list[Piece]:
        """The records of a part, one by one; or, where more are checked, halves and two records.

        Halves are compared by sums of what their records add to the release, each with a random sign. The two records
        are also compared as they are fetched anew, where that may be another batch of one record.
        """
        records = len(self.places)
        if not self.checks_more:
            return [([row], None, None, _MIXED) for row in range(records)]
        signs = torch.tensor([self.draw.choice((-1.0, 1.0)) for _ in range(records)], dtype=torch.float64)
        shares = self.noisy_sum.shares(records).cpu()
        # In units of the largest share, so that losses in half precision do not vanish.
        added = signs * shares / shares.max().clamp_min(1e-30)
        # Not from torch, whose random functions stand still here.
        halves = torch.tensor(self.draw.sample(range(records), records)).chunk(2) if records > 1 else ()
        counted = [half[added[half] != 0.0].tolist() for half in halves]
        pieces: list[Piece] = [(rows, added[rows] if len(rows) > 1 else None, None, _MIXED) for rows in counted if rows]
        for row in self.draw.sample(range(records), min(records, RECORDS_ALONE)):
            pieces += [([row], None, None, _MIXED), *self.fetched(row)]
        return pieces

    def fetched(self, row: int) -> Iterator[Piece]:
        """A record of the part and its batch as it is fetched anew, if that differs by padding or by what is said."""
        single, records, samples = self.loader.alone(self.start + row), len(self.places), self.loader.samples
        place = None if single is None else place_of(single, self.base, row, records, samples)
        if single is not None and place is None:
            # It is another one whenever it is read: it stays what it is, with what is said of it alone.
            told = take(self.base, slice(row, row + 1), records, samples, (single, single))
            single, place = told, (row, False) if shapes_of(told) == shapes_of(single) else None
        if place is not None:
            here = parts_of(take(self.base, slice(place[0], place[0] + 1), records, samples))
            pairs = [pair for pair in zip(parts_of(single), here, strict=False) if not isinstance(pair[0], Tensor)]
            is_given = not all(np.array_equal(*pair) for pair in pairs)
            if is_given or place[1]:
                yield [place[0]], None, single, _GIVEN if is_given else _PADDED

    def losses(self, part: Any, records: int) -> Tensor:
        """The losses of a part, one for each of its records; raises :class:`InvalidParameterError` otherwise.

        An error that a check, or an output with a row for each, may cause is told as such.
        """
        if not callable(self.loss_fn):
            expected = "a function from a part of the batch to its losses"
            raise InvalidParameterError("loss_fn", type(self.loss_fn).__name__, expected)
        self.taps.is_inside = True
        try:
            losses: Any = self.loss_fn(part)
        except Exception as error:
            message = f"{type(error).__name__}: {error}".rstrip(". ")
            widened = not is_checking() and self.taps.widened
            if "differentiated Tensors" in message:
                expected = "a function that takes gradients of inputs and outputs only, not of trained tensors"
                remedy = "call x.requires_grad_() on the inputs x"
                raise InvalidParameterError("loss_fn", message, expected, remedy) from error
            # What was put back may miss a key or an attribute that stands elsewhere.
            if self.state.is_restored and not is_checking() and isinstance(error, KeyError | AttributeError):
                expected = "a function that works with the attributes that the module had when the batch was drawn"
                raise InvalidParameterError("loss_fn", message, expected, _NO_STATE) from error
            may_be_new = is_checking() or (widened and isinstance(error, RuntimeError | ValueError | IndexError))
            if isinstance(error, PrivprojError) or "out of memory" in message or not may_be_new:
                raise
            expected = f"able to process {records} of the records alone, with one row for each"
            remedy = (
                f"use strict=True, which computes each record separately. {self.released()} releases were made before"
            )
            raise InvalidParameterError(widened or "loss_fn", message, expected, remedy) from error
        finally:
            self.taps.is_inside = False
        if not isinstance(losses, Tensor) or losses.dim() != 1 or len(losses) != records:
            actual = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
            remedy = 'return the losses of the part that the function is given, with reduction="none"'
            if isinstance(losses, Tensor) and losses.dim() > 1 and len(losses) == records:
                remedy = "take the mean of the losses of each record, for instance losses.flatten(1).mean(1)"
            raise InvalidParameterError(
                "losses", actual, f"a tensor with one loss for each of {records} records", remedy
            )
        if records and not losses.requires_grad:
            remedy = "compute them from the module that make_private returned, with gradients enabled"
            raise InvalidParameterError("losses", "one without gradients", "a tensor that requires gradients", remedy)
        return losses

    def losses_again(self, part: Any, rows: list[int]) -> Tensor:
        """The losses of these records in a pass that leaves ``part``, which holds them, as it is.

        Weights that autocast has shortened are not taken. Python and numpy draw the same numbers in every pass, so that
        a layer which is skipped is skipped each time.
        """
        records = len(rows)
        self.still.begin(rows)
        random.seed(self.repeat)
        np.random.seed(self.repeat)
        torch.clear_autocast_cache()
        # The loss function may write into its part.
        part = move(take(part, torch.arange(records), records, self.loader.samples), self.taps.device)
        losses = self.losses(part, records)
        self.still.passes.append(self.still.by_row)
        return losses

    def pass_back(self, losses: Tensor) -> None:
        """Let the taps keep what comes back of these losses, one row for each."""
        try:
            losses.sum().backward()
        except RuntimeError as error:
            if "through the graph a second time" not in str(error):
                raise
            expected = "the result of one forward pass without a backward pass"
            remedy = "remove backward from the loss function, and detach tensors from earlier passes"
            raise InvalidParameterError("losses", "a graph that backward has freed", expected, remedy) from error

    def difference(self, rows: list[int], weights: Tensor | None, batch: Any) -> tuple[str, float] | None:
        """The first layer where the weighted sum of gradients of these rows is another one in plain autograd.

        It comes with the relative difference; None where all are the same but for rounding. ``batch`` has these rows
        and no others; None is the part cut to them. Without ``weights`` it is their sum.
        """
        places, samples = [self.places[row] for row in rows], self.loader.samples
        batch = take(self.base, torch.tensor(rows), len(self.places), samples) if batch is None else batch
        # One record is a slice: no device has to wait for its number.
        part = torch.tensor(places) if len(places) > 1 else slice(places[0], places[0] + 1)
        weights = torch.ones(len(rows), dtype=torch.float64) if weights is None else weights
        self.taps.capture(False)
        try:
            losses = self.losses_again(batch, rows)
            # What a pass back within the loss has left, which is no gradient of it.
            self.state.drop_gradients()
            self.pass_back(losses * weights.to(losses))
            with per_example.full_precision():
                pairs = [
                    (tap.name, one, torch.zeros_like(one) if parameter.grad is None else parameter.grad.to(one))
                    for tap in self.taps.taps
                    for parameter, one in zip(tap.parameters, tap.gradient_of(part, weights), strict=True)
                ]
                return first_difference(_norms(pairs), *self.limits())
        finally:
            self.taps.capture(True)
            self.state.drop_gradients()

    def refuse(self, name: str, share: float, cause: tuple[str, str]) -> NoReturn:
        """Raise :class:`InvalidParameterError` with what helps, and with the releases that the same may have been
        in.
        """
        condition, remedy = cause
        if releases := self.released():
            remedy += f". Epsilon does not cover those of the {releases} earlier releases that also mixed records"
        expected = "independent of other records and of earlier passes"
        actual = f"a gradient at {name} that changes by {share:.2%} {condition}"
        raise InvalidParameterError("the loss of a record", actual, expected, remedy)

    def limits(self) -> tuple[float, float, float, bool]:
        """The largest relative difference that passes for rounding, :data:`FLOOR`, the clip, and if layers share it."""
        types = self.state.types | self.types
        limit = max(*(TOLERANCE.get(dtype, 0.0) for dtype in types), SHORT if self.taps.device.type == "cuda" else 0.0)
        # A probability near 1 is right to half an eps, and so is what a record misses of it.
        share = max([FLOOR, *(0.5 * torch.finfo(dtype).eps for dtype in types if dtype.is_floating_point)])
        return limit, share, self.noisy_sum.norm, len(self.noisy_sum.clips) == 1


def first_difference(
    norms: Sequence[tuple[str, Sequence[float]]], limit: float, share: float, clip: float, is_joint: bool
) -> tuple[str, float] | None:
    """Return the first layer at which gradients of the same records differ by more than rounding, and by what share.

    A difference below ``share`` of the clip is none, nor one below that share of all that is clipped with it: what is
    longer than the clip is scaled to it. A layer with a clip of its own is scaled by its own length alone.

    Args:
        norms: For each tensor its layer, and the norms of both gradients and of their difference.
        limit: The share of a layer's gradient that may be rounding.
        share: The share of the clip, or of a longer gradient, that may be.
        clip: The clip, in the unit of the gradients.
        is_joint: True if all layers share the clip, False if each has a part of it.

    Returns:
        The layer and its share of difference, or None.
    """
    lengths: dict[str, float] = {}
    for name, (one, other, _) in norms:
        if math.isfinite(one + other):
            group = "" if is_joint else name
            lengths[group] = math.hypot(lengths.get(group, 0.0), max(one, other))
    for name, (one, other, apart) in norms:
        size, length = max(one, other), lengths.get("" if is_joint else name, 0.0)
        # What is not finite on both sides contributes nothing.
        if math.isfinite(one) != math.isfinite(other) or apart > limit * size + share * max(clip, length):
            return name, apart / size if math.isfinite(apart) else math.inf
    return None


def _norms(pairs: list[tuple[str, Tensor, Tensor]]) -> list[tuple[str, tuple[float, ...]]]:
    """For each pair of gradients its name and the norms of both and of their difference; one wait for all of them."""
    # Block by block, so that what is turned to double precision stays small.
    rows: list[int] = []
    ones: list[Tensor] = []
    others: list[Tensor] = []
    for row, (_, one, other) in enumerate(pairs):
        size = per_example.block_of(one)
        ones += one.flatten().split(size)
        others += other.flatten().split(size)
        rows += [row] * (len(ones) - len(rows))
    # In double precision, where the device has it: the norm of a long gradient overflows before the gradient does.
    many, wide = _torch, None if ones[0].device.type == "mps" else torch.float64
    parts = ones, others, many._foreach_sub(ones, others)
    by_block = torch.stack([norm for part in parts for norm in many._foreach_norm(part, 2, wide)]).view(3, -1).T
    norms: list[tuple[float, ...]] = [(0.0, 0.0, 0.0)] * len(pairs)
    for row, of_block in zip(rows, by_block.tolist(), strict=True):
        norms[row] = tuple(map(math.hypot, norms[row], of_block))
    return [(name, norm) for (name, *_), norm in zip(pairs, norms, strict=True)]


_MIXED = (
    "with the other records of the batch",
    "avoid batch statistics, division by the number of tokens in the batch, weights used outside their layers, and "
    "random numbers from outside torch. Keep the batch as the first dimension. "
    "Or use strict=True, which computes each record separately",
)
"""What a difference between a part and its pieces is called, and what helps."""

_KEPT = (
    "when the record is computed again",
    "keep no data of a record outside the module, use weights only through their layers (weight_decay, not their norm "
    "in the loss), and draw from torch's generator",
)
"""What a difference between two passes of one record is called, and what helps."""

_PADDED = "when the record is padded to the length of others", "pad on the right with a mask, or use strict=True"
"""What a difference between a padded record and the record by itself is called, and what helps."""

_GIVEN = (
    "with values that collate_fn computes from the whole batch",
    "pass no counts or statistics of the batch, or use strict=True",
)
"""What a difference by numbers that a batch has besides its tensors is called, and what helps."""


def _autocast(device: torch.device) -> set[torch.dtype]:
    """The type that autocast shortens to on a device; empty where it is off."""
    return {torch.get_autocast_dtype(device.type)} if torch.is_autocast_enabled(device.type) else set()


_torch: Any = torch

_checks: list[bool] = []


def is_checking() -> bool:
    """Return whether a loss function is called to check that records are independent, and not for the batch itself.

    Returns:
        True during a check. A loss function that prints, or keeps averages to be printed, asks for it, and does neither
        then. It computes the same as ever: no check sees a loss that looks at this.

    >>> from privproj.training import is_checking
    >>> is_checking()
    False
    """
    return bool(_checks)


# --- what a run rests on stays as it was --------------------------------------------------------------

_KEPT_BY_TORCH = frozenset(nn.Module().__dict__)
"""What torch itself keeps in every module. Contract with torch."""

_ROWS = (list, tuple, deque)
"""Attributes of which the numbers are looked at one by one."""

_TABLES = (dict, OrderedDict, defaultdict, list, deque, set)
"""Attributes, and what stands within them, that are put back with what they held."""

_CONSTANT = "constant within a batch"
"""The condition on tensors and attributes during a forward pass."""

_CHANGED = "a value changed by the forward pass"
"""What a tensor or an attribute has that is not."""

_NO_STATE = "keep no data of a batch in attributes, and set attributes that the first batch sets before make_private"
"""What helps against state in attributes."""

_FROZEN = "frozen"
"""What a tensor is called that asks for no gradient."""

_FREEZE = (
    "convert and freeze layers before make_private. To change them later, call make_private again with the same ledger"
)
"""What helps where one is another one than it was."""

_WHOLE_KINDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Whole numbers of so many bytes. Contract with torch."""

_States = dict[int, tuple[str, int, int, bool, int | None]]
"""By the identity of a tensor its name, where it lies, how often it was written, whether it has a gradient that nobody
asked for, and a number that changes with what it holds; None where that was not read."""


_Numbers = dict[str, str | int | None]
"""By the name of an attribute, or of what stands in it, a number that changes with it; None for what is no number."""


class ModuleState:
    """Compares a module with what it was at named moments: after a release, when a batch was drawn, before a pass.

    What trained tensors and buffers hold is read at each of these but a pass, for fused optimizers count no writes.
    """

    def __init__(self, taps: Taps) -> None:
        self.taps = taps
        self.trained = [(tap.name, p) for tap in taps.taps for p in tap.parameters]
        self.kinds = {id(p): _kind_of(p) for _, p in self.trained}
        self.moved = self.is_noted = self.is_restored = False
        self.others: list[Tensor] = []
        self.released: _States = {}
        self.integer_changes: dict[Any, set[tuple[str, int]]] = {}
        self.last: _Numbers | None = None
        # Weights that are loaded are those of no release.
        forget = UnpickledHook(lambda *_: self.released.clear())
        taps.handles.append(taps.module.register_load_state_dict_post_hook(forget))

    def begin(self) -> None:
        """Note what the module is like when a batch was drawn; trained tensors are as the last release left them."""
        self.drop_gradients(every=True)
        tensors = self.check_trained()
        self.is_noted, self.is_restored, self.types = False, False, {tensor.dtype for _, tensor in tensors}
        now = self.states(tensors, self.read(tensors) - self.released.keys())
        self.drawn = {key: self.released.get(key, state) for key, state in now.items()}
        remedy = (
            "remove other optimizers, load weights with module.load_state_dict, and clamp or average weights in "
            "optimizer.attach_step_hook"
        )
        _check_same(self.drawn, now, "a change since the last release", "changed by releases only", remedy)

    def check_released(self, *, every: bool = False) -> None:
        """Raise where what is read was written since the batch was drawn; ``every`` tensor is read from now on."""
        tensors = self.taps.tensors() if every else self.check_trained()
        expected = "constant from the drawing of a batch to its release"
        remedy = "use no other optimizer, and change tensors, also those of a teacher, in optimizer.attach_step_hook"
        now = self.states(tensors, {id(tensor) for _, tensor in tensors} if every else self.read(tensors))
        _check_same(self.drawn, now, "a change outside the release", expected, remedy)
        self.drawn, self.is_noted = now, every

    def end_step(self, rates: dict[int, float]) -> None:
        """Note what the trained tensors are like after a release.

        The first one above :data:`LEAST_RATE` has moved all that have a rate; else this raises. ``rates`` are the
        learning rates by the id of a tensor; one that is trained through others has the largest of them.
        """
        self.released, most = self.states(self.trained, self.kinds), max(rates.values(), default=0.0)
        if self.moved or most <= LEAST_RATE:
            return
        self.moved = True
        for key, state in self.released.items():
            # Folded factors are zero again after a step, which has written them.
            if rates.get(key, most) > 0.0 and key in self.drawn and state[1:] == self.drawn[key][1:]:
                remedy = "build the optimizer from the parameters of the trained module after moving it"
                raise InvalidParameterError(state[0], "the same values as before", "changed by the first step", remedy)

    def states(self, tensors: Sequence[tuple[str, Tensor]], read: Container[int]) -> _States:
        """The states of tensors, of those whose identities are in ``read`` with what they hold."""
        sums = {id(tensor): _bits(tensor) for _, tensor in tensors if id(tensor) in read}
        if len({(part.dtype, part.device) for part in sums.values()}) > 1:
            first = next(iter(sums.values()))
            sums = {key: part.to(first.device, torch.int64) for key, part in sums.items()}
        # One question to the device for all of them.
        numbers = dict(zip(sums, torch.stack([*sums.values()]).tolist() if sums else (), strict=True))
        return {
            id(t): (name, t.data_ptr(), t._version, t.grad is not None and id(t) not in self.kinds, numbers.get(id(t)))
            for name, t in tensors
        }

    def read(self, tensors: Sequence[tuple[str, Tensor]]) -> set[int]:
        """The identities of trained tensors and buffers, of which it is read what they hold."""
        return {*self.kinds, *(id(tensor) for _, tensor in tensors if not isinstance(tensor, nn.Parameter))}

    def check_trained(self) -> list[tuple[str, Tensor]]:
        """The tensors of the module; raises unless those that make_private saw as trained are so, and no others."""
        tensors = self.taps.tensors()
        for name, tensor in tensors:
            kind, expected = _kind_of(tensor), self.kinds.get(id(tensor), _FROZEN)
            if kind != expected:
                raise InvalidParameterError(name, kind, f"{expected}, as when make_private was called", _FREEZE)
        return tensors

    def check_unwritten(self, form: Any = None) -> None:
        """Raise where a pass has written something of the batch into the module, or left a gradient there.

        Parts of a given ``form`` leave the same whole numbers in attributes.
        """
        now = self.states(self.taps.tensors(), self.drawn if self.is_noted else ())
        remedy = (
            "use no running statistics and no max_norm, set weights before the batch is drawn, and do not write "
            "through .data"
        )
        _check_same(self.drawn, now, _CHANGED, _CONSTANT, remedy)
        if self.is_noted:
            self.check_attributes(form, every=True)

    def check_leaves(self, losses: Tensor) -> None:
        """Raise where losses ask for the gradient of a parameter that is not trained, where it would be left unclipped.

        Other tensors that ask for one, such as inputs of checkpoints, lose it after the pass.
        """
        visited: set[Any] = {None}
        ahead: list[Any] = [losses.grad_fn]
        while ahead:
            if (node := ahead.pop()) not in visited:
                visited.add(node)
                ahead += [before for before, _ in node.next_functions]
        allowed, variables = {*self.kinds, id(self.taps.switch)}, [getattr(node, "variable", None) for node in visited]
        self.others = [leaf for leaf in variables if leaf is not None and id(leaf) not in allowed]
        names = {id(tensor): name for name, tensor in self.taps.tensors()} if self.others else {}
        for leaf in self.others:
            if id(leaf) in names:
                expected = f"{_FROZEN}, as when make_private was called"
                raise InvalidParameterError(names[id(leaf)], "trained", expected, _FREEZE)
            if isinstance(leaf, nn.Parameter):
                actual = f"a gradient of another parameter, of shape {tuple(leaf.shape)}"
                remedy = "put the parameter into the module before make_private, or use it under torch.no_grad()"
                raise InvalidParameterError("losses", actual, "differentiable in the trained tensors only", remedy)

    def note(self) -> None:
        """Note the numbers that the module holds, for the rest of the batch: a device has to be waited for.

        What one record leaves there would reach the next one, even where every record is computed by itself.
        """
        if not self.is_noted:
            self.check_released(every=True)
            self.start, self.changed, self.integer_changes = _attributes(self.taps.module), None, {}
            self.first = self.last = self.start
            self.plain = [(part, _plain(part)) for part in self.taps.module.modules()]
            values = [value for _, plain in self.plain for key in plain for _, value in _walk(key, plain[key])]
            # One that several share is one.
            self.tables = {id(value): (value, copy(value)) for value in values if type(value) in _TABLES}

    def check_attributes(self, form: Any, *, every: bool = False) -> None:
        """Raise where a pass has left other numbers in attributes than the first one of the batch has.

        Tables of constants are the same whatever records are computed, and what a layer sets by the first batch that it
        sees is not. ``every`` number is compared after a later part of the batch, for its gradients are released; else
        those that the first pass has changed. Whole numbers are those of the records there, such as their sizes or what
        counts them: all passes of one ``form``, if it is known, leave the same there, or all add the same.
        """
        now, last = _attributes(self.taps.module), self.last
        self.last = now
        if self.changed is None:
            self.changed, self.first = {name for name in now if self.start.get(name) != now[name]}, now
            return
        for name in now if every else self.changed:
            value, differs = now.get(name), self.first.get(name) != now.get(name)
            if isinstance(value, int):
                if form is None or last is None:
                    continue
                before = last.get(name)
                left = {("is", value), ("adds", value - (before if isinstance(before, int) else 0))}
                left &= self.integer_changes.get((name, form), left)
                self.integer_changes[name, form], differs = left, not left
            if differs:
                raise InvalidParameterError(name, _CHANGED, _CONSTANT, _NO_STATE)

    def restore(self) -> None:
        """Give all plain attributes the values that they had before the first part, and their tables what they held."""
        for table, values in self.tables.values():
            table.clear()
            table.update(values) if isinstance(table, dict | set) else table.extend(values)
        for part, plain in self.plain:
            for key in _plain(part).keys() - plain.keys():
                del part.__dict__[key]
            # That of these layers is switched off while others are compared.
            switched = {"dropout": part.dropout} if isinstance(part, DROPPING) else {}
            part.__dict__.update(plain | switched)
        self.last, self.is_restored = self.start, True

    def drop_gradients(self, *, every: bool = False) -> None:
        """Remove the gradients of the trained tensors, of others that losses asked for one, and of ``every`` other."""
        inside = self.taps.tensors() if every else ()
        for tensor in (*(tensor for _, tensor in (*self.trained, *inside)), *self.others):
            tensor.grad = None


def _kind_of(tensor: Tensor) -> str:
    """What has to stay so of a tensor: whether it is trained, and then its type and its device."""
    return f"trained in {tensor.dtype} on {tensor.device}" if tensor.requires_grad else _FROZEN


def _check_same(before: _States, now: _States, actual: str, expected: str, remedy: str) -> None:
    """Raise where a tensor has another state than before, is new or gone; what was not read passes."""
    for key in {**before, **now}:
        old, new = before.get(key), now.get(key)
        if old is None or new is None or old[1:4] != new[1:4] or (old[4] != new[4] and None not in (old[4], new[4])):
            raise InvalidParameterError((new or old or ("module",))[0], actual, expected, remedy)


def _attributes(module: nn.Module) -> _Numbers:
    """Every number that the modules keep as plain attributes, or in lists and tables of these: in words, or whole."""
    return {
        name: _number(value)
        for place, part in module.named_modules()
        for key, attribute in _plain(part).items()
        for name, value in _walk(f"{place}.{key}" if place else key, attribute)
    }


def _plain(part: nn.Module) -> dict[str, Any]:
    """The attributes of a module that torch itself knows nothing of."""
    return {key: value for key, value in part.__dict__.items() if key not in _KEPT_BY_TORCH}


def _walk(name: str, value: Any, depth: int = 3) -> Iterator[tuple[str, Any]]:
    """A value and what lists, tuples and tables hold in it, to this depth, by name."""
    yield name, value
    pairs = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, _ROWS) else ()
    for key, part in pairs if depth else ():
        yield from _walk(f"{name}[{key!r}]", part, depth - 1)


def _number(value: Any) -> str | int | None:
    """A number that changes with a value: whole ones as they are, others in words; None where it is no number."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
        value = torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, set | frozenset):
        return hash(frozenset(map(repr, value)))
    if isinstance(value, Tensor):
        return str(int(_bits(value))) if value.is_floating_point() else int(_bits(value))
    return value if isinstance(value, int) else repr(value) if isinstance(value, float) else None


def _bits(tensor: Tensor) -> Tensor:
    """The sum of a tensor's numbers, read as whole ones: whatever is written there changes it, but an order."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    kind = _WHOLE_KINDS[tensor.element_size()]
    bits = tensor.view(kind)
    if bits.numel() <= 2**14:
        # Steps of one size up and down cancel in a sum of few, and not in one of squares.
        bits = bits.to(torch.int32) if tensor.element_size() < 4 else bits
        bits = bits * bits + bits
    # Sums of 32 bits wrap around; those of longer ones would be slow.
    return bits.sum(dtype=kind if tensor.element_size() > 2 else torch.int32)
