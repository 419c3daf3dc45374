"""Batches as the plan says: Poisson, fixed-size or balls-in-bins sampling from a secret stream.

Each batch has a turn, from the moment it is drawn to its release. The turn is what keeps the loop to one release for
every batch.
"""

import copy
import itertools
import math
import operator
import pickle
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from hashlib import sha256
from typing import Any, NoReturn
from zlib import crc32

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler, TensorDataset
from torch.utils.data.dataloader import default_collate
from torch.utils.data.dataset import Subset

from privproj.errors import InvalidParameterError, PrivprojError, UnsupportedError
from privproj.training.containers import (
    NUMBERS,
    Samples,
    are_close,
    are_equal,
    has_no_rows,
    leaves_and_numbers,
    parts_of,
    place_of,
    take,
)
from privproj.training.dataset import check_distinct
from privproj.training.fixed_randomness import Still
from privproj.training.generators import (
    CPU,
    GLOBAL,
    EpochSecrets,
    Streams,
    begin_worker,
    own_generators,
    pick_batches,
    secret_numbers,
    seed_generators,
    seeded_generators,
)
from privproj.training.plan import KINDS, FixedBatches, Plan, drawn_from
from privproj.training.processes import Processes


class BatchState:
    """One logical batch at a time: which records were drawn, whether they were taken in, and whether it was released.

    The accountant counts releases of batches that the sampler drew, each record at most once. Every call out of order
    raises :class:`InvalidParameterError`.
    """

    def __init__(self) -> None:
        self.drawn: int | None = None
        self.taken = self.closed = False
        self.batch: Any = None
        self.parts: list[tuple[Any, Any]] = []
        self.numbers: list[int] = []
        self.on_open: Callable[[], None] = lambda: None
        self.on_empty: Callable[[], None] = lambda: None

    def open(self, records: int, batch: Any = None, numbers: list[int] | None = None) -> None:
        """Note that the sampler drew a batch of so many records for this process, and their numbers."""
        if self.drawn is not None:
            expected = "called once for every batch, because empty batches are released too"
            remedy = "call step_on for each batch, and set its micro_batch_size to accumulate gradients"
            raise InvalidParameterError("optimizer.step", "a batch without a step", expected, remedy)
        self.drawn, self.taken, self.batch, self.numbers = records, not records, batch, numbers or []
        self.parts = _states_of(batch)
        self.on_open()

    def records_of(self, batch: Any) -> int:
        """The number of records of a batch that is to be taken in: the very one that was drawn."""
        if self.closed:
            remedy = "call make_private again with the same ledger"
            raise InvalidParameterError("optimizer", "one whose run is closed", "open", remedy)
        if self.drawn is None or (self.taken and self.drawn) or (self.batch is not None and batch is not self.batch):
            words = "the last batch of the private loader, unchanged and used once"
            remedy = "unpack the batch and move it to a device inside the loss function"
            raise InvalidParameterError("batch", type(batch).__name__, words, remedy)
        now = _states_of(self.batch)
        if len(now) != len(self.parts) or not all(map(_is_as_given, self.parts, now)):
            raise InvalidParameterError(
                "batch", "a batch that was changed in place", "unchanged outside of the loss function"
            )
        return self.drawn

    def close(self) -> None:
        """Note that the batch is released, which needs all of its records back."""
        if self.drawn is None or not self.taken:
            after = "a batch of the private loader" if self.drawn is None else f"gradients of all {self.drawn} records"
            raise InvalidParameterError("optimizer.step", "none", f"called after {after}", "call optimizer.step_on")
        self.drawn, self.batch = None, None


def _is_as_given(before: tuple[Any, Any], now: tuple[Any, Any]) -> bool:
    """True if a part of a batch is what the loader gave, or that on another device or of another type."""
    if before[0] is now[0] or not (isinstance(before[0], Tensor) and isinstance(now[0], Tensor)):
        return before[0] is now[0] and before[1] == now[1]
    old, new = before[0], now[0]
    # Cast as the new one is: the other way round would cut off what was added to labels.
    return (old._version, _sum_of(old)) == before[1] and are_equal(new, old.to(new.device, new.dtype))


def _states_of(batch: Any) -> list[tuple[Any, Any]]:
    """Every part of a batch, with how often it was written and, where that is at hand, a sum of what it holds.

    What is no tensor, array, number or text is told by which object it is.
    """
    parts = parts_of(batch)
    tensors = [(part, (part._version, _sum_of(part))) for part in parts if isinstance(part, Tensor)]
    arrays = [(part, sha256(part.tobytes()).digest()) for part in parts if isinstance(part, np.ndarray)]
    numbers = [(None, repr(part)) for part in parts if isinstance(part, NUMBERS)]
    others = [part for part in parts if not isinstance(part, (Tensor, np.ndarray, *NUMBERS))]
    texts = [(None, part) if isinstance(part, str | bytes) else (part, None) for part in others]
    return [*tensors, *arrays, *numbers, *texts]


def _sum_of(part: Tensor) -> int | None:
    """A checksum of a plain tensor on the CPU, for writes through ``.data`` and numpy are not counted; else None.

    Of a large one evenly spaced bytes are summed, some of every record's.
    """
    if part.device.type != "cpu" or has_no_rows(part):
        return None
    content = part.detach().resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8)
    # An odd distance looks at every byte of a number in turn. About a mebibyte is read. Speed only.
    return crc32(content[:: max(1, len(content) >> 20) | 1].contiguous().numpy().data)


WORKER_SETTINGS = (
    "num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "prefetch_factor",
)  # fmt: skip
"""What the user's loader says about reading records, which holds for the private one. Contract."""

MOST_JOINED = 128
"""Records that are joined at most, to see whether one of them is joined otherwise alone. Contract."""

MOST_JOININGS = 200
"""How often a record is joined again at most, to see whether joining is random. Contract."""

_END = object()
"""Stands for a batch where there is none any more."""


class BinSampler:
    """The batches ``first``, ``first + 1``, ... of a run in which each record picks one of every ``batches``."""

    def __init__(self, secret: Callable[[int], str], records: int, batches: int, first: int, steps: int) -> None:
        self.secret, self.records, self.batches, self.first, self.steps = secret, records, batches, first, steps

    def __iter__(self) -> Iterator[list[int]]:
        epoch, members = -1, []
        for position in range(self.first, self.first + self.steps):
            if position // self.batches != epoch:
                epoch = position // self.batches
                members = self.members(epoch)
            yield members[position % self.batches].tolist()

    def picks(self, epoch: int) -> np.ndarray:
        """The batch from 0 that each record picks in an epoch."""
        return pick_batches(self.secret(epoch), epoch, self.records, self.batches)

    def members(self, epoch: int) -> list[np.ndarray]:
        """The numbers of the records in each batch of an epoch, in their order."""
        picks = self.picks(epoch)
        ends = np.cumsum(np.bincount(picks, minlength=self.batches))[:-1]
        return np.split(np.argsort(picks, kind="stable"), ends)


class PrivateLoader(BatchState):
    """A data loader whose batches are drawn as the plan says; one pass over it is ``ceil(1/q)`` steps.

    With balls-in-bins a pass is an epoch of ``t`` batches, or what is left of the one that was begun, in a run before
    too.

    :func:`make_private` makes it. It ends for good when the planned number of steps is released. Batches differ in
    size, and each has to be released before the next is drawn. A batch without a record is released by the loader
    itself, so that no model sees one; ``keeps_empty = True`` hands it out all the same, for loops that count batches. A
    process may still get an empty share of a batch.

    Args:
        loader: The user's loader, for its data set, its way of joining records and its workers.
        plan: The plan of the run, for the sampling and its rate.
        streams: The secret random streams. Batches and their order are drawn from that of the sampler, and what reading
            a record draws from that of forward passes.
        secrets: What the batches of balls-in-bins are drawn from.
        done: Called without arguments; returns the number of releases made so far.
        processes: The processes of the run; each gets its share of every batch.

    Raises:
        InvalidParameterError: The loader has a sampler of its own, repeats records, or has no data set with an index.

    >>> import torch
    >>> from torch.nn.functional import cross_entropy
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from privproj.training import make_private
    >>> records = TensorDataset(torch.ones(100, 8), torch.zeros(100, dtype=torch.long))
    >>> module = torch.nn.Linear(8, 2)
    >>> module, optimizer, loader = make_private(
    ...     module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
    ...     data_loader=DataLoader(records, batch_size=10), algorithm="dp-sgd", max_grad_norm=1.0,
    ...     noise_multiplier=2.0, epochs=2,
    ... )
    >>> len(loader)
    10
    """

    bins = BinSampler
    """What draws the batches of balls-in-bins; audits plant faults in it."""

    def __init__(
        self, loader: DataLoader, plan: Plan, streams: Streams, secrets: EpochSecrets, done: Callable[[], int],
        processes: Processes,
    ) -> None:  # fmt: skip
        super().__init__()
        self.plan, self.streams, self.secrets = plan, streams, secrets
        self.generator = streams.sampler.on(CPU)
        self.done, self.processes = done, processes
        self._dataset, self.keeps_empty, self.used = loader.dataset, False, False
        self.batch_size = batch_size_of(loader)
        self.settings = {name: getattr(loader, name) for name in WORKER_SETTINGS}
        self.join = loader.collate_fn
        # Columns of tensors are cut where they lie: one record after the other would be joined to the same numbers.
        plain = loader.collate_fn is default_collate and not (loader.num_workers or loader.pin_memory)
        self.columns = self.dataset.tensors if plain and type(self.dataset) is TensorDataset else None
        # The batches of one record and of two tell what counts records.
        with secret_numbers(streams.forward):
            pair = [self.dataset[0], self.dataset[1 % len(self.dataset)]]
            self.joined = self.join_few(self.copied(pair[:1])), self.join_few(pair)
        self.collate = partial(_join, self.join, self.joined)

    @property
    def dataset(self) -> Any:
        """The data set that the plan was made for."""
        return self._dataset

    @dataset.setter
    def dataset(self, other: Any) -> None:
        remedy = "call make_private for another dataset"
        raise InvalidParameterError("dataset", type(other).__name__, "the dataset given to make_private", remedy)

    @property
    def batch_sampler(self) -> NoReturn:
        """None that could be replaced, as Opacus' ``BatchMemoryManager`` does; raises :class:`AttributeError`."""
        raise AttributeError(
            "a private loader draws its own batches. Use step_on(..., micro_batch_size=B) to save memory."
        )

    def __len__(self) -> int:
        """The number of steps of the next pass, ``ceil(1/q)``, or what is left of the epoch or of the plan."""
        batches, done = self.plan.batches, self.done()
        # ceil(1/q) steps are one pass, and the t batches of an epoch.
        steps = math.ceil(1.0 / self.plan.sampling_rate) if batches is None else batches - done % batches
        return max(0, min(steps, self.plan.steps - done))

    def __iter__(self) -> Iterator[Any]:
        steps = len(self)
        if not steps and not self.used:
            remedy = "Load the weights of that run, or start a run with another ledger and compose both"
            raise UnsupportedError(f"all {self.plan.steps} planned steps were released. {remedy}")
        self.used = True
        if len(self.dataset) != self.plan.dataset_size:
            expected = f"the loader of the {self.plan.dataset_size} records given to make_private"
            remedy = "call make_private again for other records"
            raise InvalidParameterError("data_loader", f"{len(self.dataset)} records", expected, remedy)
        if self.columns is None:
            # Indices of a Subset, or a list, may be others by now.
            check_distinct(self.dataset)
        shares: deque[tuple[list[int], list[int]]] = deque()
        batches = self._batches(self.sampler(steps), shares)
        for position in itertools.count(self.done()):
            with secret_numbers(self.streams.forward) if self.columns is None else nullcontext():
                batch = next(batches, _END)
            if batch is _END:
                return
            numbers, logical = shares.popleft()
            self._check_next(position, logical)
            self.open(len(numbers), batch, numbers)
            # All processes go the same way, so that a loop makes as many turns in each.
            if not logical and not self.keeps_empty:
                self.on_empty()
            else:
                yield batch

    def _check_next(self, position: int, logical: list[int]) -> None:
        """Raise unless a batch is the next one of the run, and the same in all processes.

        Every batch of balls-in-bins is released once: the number of releases says which one is next. And where one
        process has drawn ahead of the others, a record could be in the shares of two.
        """
        if self.plan.batches is not None and position != self.done():
            actual = f"batch {position + 1} after {self.done()} releases"
            raise InvalidParameterError(
                "data_loader", actual, "used in one pass at a time, with one release for every batch"
            )
        if self.processes.size > 1:
            first, *others = self.processes.meet("a new batch", sha256(repr(logical).encode()).digest())
            if any(other != first for other in others):
                remedy = "use the same num_workers and the same steps in every process"
                raise InvalidParameterError("data_loader", "different batches", "the same in every process", remedy)

    def sampler(self, steps: int) -> Iterator[list[int]]:
        """Draw fresh batches as the plan says, whole ones for all processes together.

        Args:
            steps: Number of batches.

        Yields:
            The numbers of the records in each batch.
        """
        plan, generator = self.plan, self.generator
        if plan.batches is not None:
            secret = partial(self.secrets.of, processes=self.processes)
            drawn: Any = self.bins(secret, plan.dataset_size, plan.batches, self.done(), steps)
        else:
            kind: Any = FixedBatches if plan.sampling_rate == 1.0 else KINDS[plan.sampling]
            drawn = kind.draw(plan, steps, generator)
        for logical in drawn:
            if plan.max_batch_size is not None and len(logical) > plan.max_batch_size:
                logical = drawn_from(logical, plan.max_batch_size, generator)
            # Where a record stands in its batch says nothing of which others are in it. A run that is made to be
            # repeated keeps the order.
            yield logical if self.streams.is_insecure else drawn_from(logical, len(logical), generator)

    def _batches(self, sampler: Iterator[list[int]], shares: deque[tuple[list[int], list[int]]]) -> Iterator[Any]:
        """The joined records of this process's share of every batch; ``shares`` get it with the whole batch."""

        def shared() -> Iterator[list[int]]:
            for logical in sampler:
                shares.append((self.processes.share(logical), logical))
                yield shares[-1][0]

        if self.columns is not None:
            return ([column[numbers] for column in self.columns] for numbers in shared())
        # Anew for every pass: some are made where a record is first read or joined.
        if generators := own_generators(self.dataset, self.join):
            seed_generators(generators, self.streams.forward.fresh_seed())
        # Workers are seeded by a number that is drawn from here, and not by torch's own seed.
        seeds = torch.Generator().manual_seed(int(self.streams.forward.fresh_seed().generate_state(1, np.uint64)[0]))
        begin = partial(begin_worker, self.settings["worker_init_fn"], self.join)
        settings = {**self.settings, "worker_init_fn": begin, "collate_fn": self.collate}
        return iter(DataLoader(self.dataset, batch_sampler=shared(), generator=seeds, **settings))

    def alone(self, row: int) -> Any:
        """Return one record of the batch, fetched anew and joined by itself.

        Args:
            row: The place of the record in the batch, from 0.

        Returns:
            What the loader's way of joining makes of this record; None where nothing is known of the batch.
        """
        return self.join_few([self.dataset[self.numbers[row]]]) if self.numbers else None

    def join_few(self, records: list[Any]) -> Any:
        """Join records otherwise than a batch has them; raises :class:`InvalidParameterError` where that fails."""
        try:
            return self.join(records)
        except PrivprojError:
            raise
        except Exception as error:
            expected = f"a loader whose collate_fn accepts {len(records)} of the records alone"
            remedy = "remove the records that it rejects from the dataset before make_private"
            raise InvalidParameterError("data_loader", f"{type(error).__name__}: {error}", expected, remedy) from error

    def copied(self, records: list[Any]) -> list[Any]:
        """Copies of records, which joining may change; raises :class:`InvalidParameterError` where they cannot be
        copied.
        """
        try:
            return copy.deepcopy(records)
        except Exception as error:
            words = "a loader of records that can be copied, because collate_fn may change them"
            remedy = "detach tensors, and keep locks, files and generators out of the records"
            actual = f"{type(error).__name__}: {str(error).splitlines()[0][:80] if str(error) else 'no copy'}"
            raise InvalidParameterError("data_loader", actual, words, remedy) from error

    @property
    def samples(self) -> Samples:
        """One record and two, joined as the batch is; None for a batch that was not drawn here."""
        return None if self.batch is None else self.joined

    def check_joining(self, rows: slice, *, alone: bool = False) -> None:
        """Raise unless a record is joined alone as it is beside the others of its part, or at random.

        Records are read once, and torch's random functions stand still meanwhile. What is joined otherwise is random if
        other seeds of numpy and Python make it another one, and the same seed does not.

        Args:
            rows: The part of the batch.
            alone: True where every record is joined alone, so that it only has to be the same each time.

        Raises:
            InvalidParameterError: It is joined otherwise beside others, or another time.
        """
        numbers = self.numbers[rows][:MOST_JOINED]
        if self.columns is not None or not numbers:
            return
        dataset: Any = self.dataset
        numbers += [(numbers[0] + 1) % len(dataset)] * (len(numbers) == 1)
        draw = random.SystemRandom()
        first, level = draw.randrange(len(numbers)), draw.uniform(0.001, 0.999)
        # The one that is joined alone comes first here too: a number that counts the places is that of both.
        numbers = numbers[first:] + numbers[:first]
        with secret_numbers(self.streams.forward), Still(level) as still:
            still.seed = None  # those of joining are the seeds of this check
            records = [dataset[number] for number in numbers]
            self._check_ways(lambda some: self.copied(records[:some]), len(numbers), alone=alone)
            # So do torch's loaders read, where they can.
            read = None if type(dataset) is Subset else getattr(dataset, "__getitems__", None)
            if read is not None and not alone:
                self._check_ways(lambda some: read(numbers[:some]), len(numbers), anew=True)

    def _check_ways(
        self, read: Callable[[int], list[Any]], records: int, *, alone: bool = False, anew: bool = False
    ) -> None:
        """:meth:`check_joining` of one way to read the first records of a part, ``anew`` each time or not."""
        generators = own_generators(self.dataset, self.join)

        def joined(some: int, seed: int = 0) -> Any:
            with seeded_generators(generators, None):
                seed_generators([*GLOBAL, *generators], np.random.SeedSequence(seed))
                return self.join_few(read(some))

        def is_as_before(seed: int) -> bool:
            return all(map(are_close, leaves_and_numbers(joined(1, seed)), leaves_and_numbers(one)))

        def states_after(seed: int) -> tuple[Any, ...]:
            joined(1, seed)
            return torch.initial_seed(), random.getstate(), pickle.dumps(np.random.get_state())

        if not (alone or anew) and any(map(operator.eq, states_after(0), states_after(1))):
            words = "a loader that draws random numbers from the secret seed"
            remedy = "do not call torch.manual_seed or another seed function in collate_fn, or use strict=True"
            raise InvalidParameterError("data_loader", "a seed in collate_fn", words, remedy)
        one = joined(1)
        place = None if alone else place_of(one, joined(records), 0, records, self.joined, leaves_and_numbers)
        if is_as_before(0) if alone else place is not None:
            return
        if (anew or is_as_before(0)) and not all(map(is_as_before, range(1, MOST_JOININGS))):
            return
        words = "a loader whose collate_fn treats every record independently"
        remedy = "do not mix or count records, or keep state, in collate_fn" + ("" if alone else ", or use strict=True")
        raise InvalidParameterError("data_loader", "a record that depends on the others", words, remedy)


def _join(join: Callable[[list[Any]], Any], samples: tuple[Any, Any], records: list[Any]) -> Any:
    """The loader's way of joining records, extended to empty batches: the first record's batch without its row."""
    return join(records) if records else take(samples[0], slice(0, 0), 1, samples)


def check_loader(loader: DataLoader) -> None:
    """Raise for data without an index, and for a loader that draws batches otherwise, which ours would replace."""
    data = loader.dataset
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__") or not len(data):  # pyright: ignore
        raise InvalidParameterError(
            "data_loader", type(data).__name__, "a loader of a nonempty dataset with a length and an index"
        )
    if isinstance(data, TensorDataset) and any(map(has_no_rows, data.tensors)):
        remedy = "pad the tensors, or make them dense"
        raise InvalidParameterError("data_loader", "nested or sparse tensors", "a loader of dense tensors", remedy)
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    # Accelerate's is a random one with a seed.
    is_plain = type(sampler) in (RandomSampler, SequentialSampler) or type(sampler).__name__ == "SeedableRandomSampler"
    is_plain = is_plain and not getattr(sampler, "replacement", False)
    if not is_plain or (loader.batch_sampler is not None and type(loader.batch_sampler) is not BatchSampler):
        name = type(sampler if not is_plain else loader.batch_sampler).__name__
        remedy = "remove the sampler, because the private loader draws the batches at the accounted rate"
        raise InvalidParameterError("data_loader", name, "a loader without a sampler of its own", remedy)


def batch_size_of(loader: DataLoader) -> int | None:
    """The number of records in a batch of a loader, also where a batch sampler says it; None where nothing does."""
    return loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
