"""Draw private batches as planned: Poisson, fixed-size or balls-in-bins sampling.

Batches are drawn from a secret random stream. Every record is read and collated alone, with its own random numbers.
Only the private optimizer reads the records of a batch, before it releases the batch. With several processes, each has
a share of every batch.
"""

import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from hashlib import sha256
from typing import Any, NoReturn

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)  # fmt: skip
from torch.utils.data.dataloader import default_collate

from privproj.errors import InvalidParameterError, PrivprojError, UnsupportedError
from privproj.training.dataset import check_distinct
from privproj.training.generators import (
    CPU,
    POOL_SIZE,
    EpochSecrets,
    Streams,
    pick_batches,
    seed_record,
    unchanged_numbers,
)  # fmt: skip
from privproj.training.per_record import Group, group
from privproj.training.plan import KINDS, FixedBatches, Plan, drawn_from
from privproj.training.processes import Processes


class Batch:
    """A batch of the private loader, to be passed to ``optimizer.step_on``.

    Only the loss function can read the records of the batch.

    Args:
        groups: Groups of records that can be computed together. Each record is collated alone.

    >>> import torch
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> from privproj.training import make_private
    >>> module = torch.nn.Linear(8, 2)
    >>> _, _, loader = make_private(
    ...     module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
    ...     data_loader=DataLoader(TensorDataset(torch.ones(100, 8)), batch_size=10), max_grad_norm=1.0,
    ...     noise_multiplier=2.0, epochs=1, batches="fixed",
    ... )
    >>> next(iter(loader))
    Batch(use it in optimizer.step_on)
    """

    def __init__(self, groups: list[Group]) -> None:
        self._groups = groups

    def __iter__(self) -> NoReturn:
        raise TypeError(
            "a private batch cannot be unpacked. Pass it to optimizer.step_on, and unpack the argument of loss_fn."
        )

    def __getitem__(self, key: object) -> NoReturn:
        self.__iter__()

    def __repr__(self) -> str:
        return "Batch(use it in optimizer.step_on)"


class BatchState:
    """The state of a loader's current batch: drawn, clipped, or released.

    It ensures that every drawn batch is released once. A method that is called in the wrong order raises
    :class:`InvalidParameterError`.
    """

    def __init__(self) -> None:
        self.batch: Batch | None = None
        self.taken = self.closed = False
        self.on_open: Callable[[], None] = lambda: None
        self.on_empty: Callable[[], None] = lambda: None

    def open(self, batch: Batch) -> None:
        """Make a newly drawn batch the current one.

        Raises :class:`InvalidParameterError` if the previous batch was not released.
        """
        if self.batch is not None:
            expected = "called once for every batch, because empty batches are released too"
            remedy = "call step_on for each batch, and set its micro_batch_size to save memory"
            raise InvalidParameterError("optimizer.step", "a batch without a step", expected, remedy)
        self.batch, self.taken = batch, not batch._groups
        self.on_open()

    def groups_of(self, batch: Any) -> list[Group]:
        """Return the records of the current batch, in groups that are computed together.

        Raises :class:`InvalidParameterError` if ``batch`` is not the last batch that was drawn, or was used before.
        """
        if self.closed:
            remedy = "call make_private again with the same ledger"
            raise InvalidParameterError("optimizer", "one whose run is closed", "open", remedy)
        if self.batch is None or batch is not self.batch or (self.taken and batch._groups):
            expected = "the batch that the private loader returned most recently, used once"
            remedy = "pass the batch to step_on as it is, and unpack it inside the loss function"
            what = type(batch).__name__
            if isinstance(batch, Batch):
                what = "a batch that was used before" if batch is self.batch else "an earlier batch"
            raise InvalidParameterError("batch", what, expected, remedy)
        return batch._groups

    def close(self) -> None:
        """Mark the current batch as released.

        Raises :class:`InvalidParameterError` if the gradients of the batch were not computed.
        """
        if self.batch is None or not self.taken:
            after = "drawing a batch from the private loader" if self.batch is None else "backward_on of the batch"
            remedy = "call optimizer.step_on once for each batch"
            raise InvalidParameterError("optimizer.step", "a call before it", f"called after {after}", remedy)
        self.batch = None


# settings of the user's loader that the private loader keeps
WORKER_SETTINGS = (
    "num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "prefetch_factor",
)  # fmt: skip


class BinSampler:
    """A sampler of record numbers for ``steps`` batches of balls-in-bins.

    An epoch has ``records`` records in ``batches`` batches. The batches of a run are numbered from 0, and ``first`` is
    the first one to draw. ``secret`` returns the secret that determines the batches of an epoch.
    """

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
        """Return the number of the batch that each record picks in an epoch, from 0."""
        return pick_batches(self.secret(epoch), epoch, self.records, self.batches)

    def members(self, epoch: int) -> list[np.ndarray]:
        """Return the record numbers of each batch of an epoch, in ascending order."""
        picks = self.picks(epoch)
        ends = np.cumsum(np.bincount(picks, minlength=self.batches))[:-1]
        return np.split(np.argsort(picks, kind="stable"), ends)


class PrivateLoader(BatchState):
    """A data loader that draws batches as planned; :func:`make_private` creates it.

    One pass over the loader is ``ceil(1/q)`` steps for the sampling rate ``q``. With balls-in-bins a pass is an epoch.
    The pass after an unfinished epoch has the remaining batches of this epoch. After the planned number of steps the
    loader yields no more batches.

    Each batch must be released before the next one is drawn. If a batch has no records, the loader releases it without
    yielding it. If your loop counts batches, set ``keeps_empty = True`` to get empty batches too.

    Args:
        loader: The user's loader, whose dataset, ``collate_fn`` and worker settings are used.
        plan: The plan of the run, with the sampling and its rate.
        streams: The secret random streams: ``sampler`` draws batches and their order, and ``forward`` draws random
            numbers for reading records.
        secrets: The secrets from which batches of balls-in-bins are drawn.
        done: Called without arguments; returns the number of releases made so far.
        processes: The processes of the run; each reads its share of every batch.

    Raises:
        InvalidParameterError: The loader has its own sampler, repeats records, or has no dataset that supports
            indexing.

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

    bins = BinSampler  # the sampler of balls-in-bins; audits replace it by one with a bug

    def __init__(
        self, loader: DataLoader, plan: Plan, streams: Streams, secrets: EpochSecrets, done: Callable[[], int],
        processes: Processes,
    ) -> None:  # fmt: skip
        super().__init__()
        self.original, self.plan, self.streams, self.secrets = loader, plan, streams, secrets
        self.generator = streams.sampler.on(CPU)
        self.done, self.processes = done, processes
        self._dataset, self.keeps_empty, self.used = loader.dataset, False, False
        self.batch_size = batch_size_of(loader)
        self.settings = {name: getattr(loader, name) for name in WORKER_SETTINGS}
        self.join = loader.collate_fn
        # Rows of tensors are indexed at once, which gives the same values as reading one record after another.
        plain = loader.collate_fn is default_collate and not (loader.num_workers or loader.pin_memory)
        self.columns = self.dataset.tensors if plain and type(self.dataset) is TensorDataset else None

    @property
    def dataset(self) -> Any:
        """The dataset of the run; assigning another one raises an error."""
        return self._dataset

    @dataset.setter
    def dataset(self, other: Any) -> None:
        remedy = "call make_private for another dataset"
        raise InvalidParameterError("dataset", type(other).__name__, "the dataset given to make_private", remedy)

    @property
    def batch_sampler(self) -> NoReturn:
        """Not available: raises :class:`AttributeError`.

        Opacus' ``BatchMemoryManager`` would replace a batch sampler.
        """
        raise AttributeError(
            "a private loader draws its own batches. Use step_on(..., micro_batch_size=B) to save memory."
        )

    def __len__(self) -> int:
        """Return the number of steps in the next pass over the data.

        The result is at most the number of planned steps that are left.
        """
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
            # The indices of a Subset, or the entries of a list, may have changed.
            check_distinct(self.dataset)
        shares: deque[list[int]] = deque()
        batches = self._batches(self.sampler(steps), shares)
        for position in itertools.count(self.done()):
            with unchanged_numbers() if self.columns is None else nullcontext():
                batch = next(batches, None)
            if batch is None:
                return
            logical = shares.popleft()
            self._check_next(position, logical)
            self.open(batch)
            # All processes decide alike, so that their loops make the same number of steps.
            if not logical and not self.keeps_empty:
                self.on_empty()
            else:
                yield batch

    def _check_next(self, position: int, logical: list[int]) -> None:
        """Raise an error unless a batch is the next one, and the same in all processes.

        ``position`` is the number of the batch in the run, and ``logical`` has its record numbers.
        """
        # With balls-in-bins every batch is released once.
        if self.plan.batches is not None and position != self.done():
            actual = f"batch {position + 1} after {self.done()} releases"
            raise InvalidParameterError(
                "data_loader", actual, "used in one pass at a time, with one release for every batch"
            )
        # If processes drew different batches, a record could be in the shares of two processes.
        if self.processes.size > 1:
            first, *others = self.processes.meet("a new batch", sha256(repr(logical).encode()).digest())
            if any(other != first for other in others):
                remedy = "use the same num_workers and the same steps in every process"
                raise InvalidParameterError("data_loader", "different batches", "the same in every process", remedy)

    def sampler(self, steps: int) -> Iterator[list[int]]:
        """Draw the record numbers of new batches, for all processes together.

        Args:
            steps: Number of batches.

        Returns:
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
            # Batches are shuffled, so that the position of a record does not depend on which others are in the batch.
            # With an insecure seed the order is not changed.
            yield logical if self.streams.is_insecure else drawn_from(logical, len(logical), generator)

    def _batches(self, sampler: Iterator[list[int]], shares: deque[list[int]]) -> Iterator[Batch]:
        """Yield this process's share of every batch that ``sampler`` draws.

        The record numbers of the whole batch, not only of the share, are appended to ``shares``.
        """

        def shared() -> Iterator[list[tuple[int, int]]]:
            for step, logical in enumerate(sampler):
                shares.append(logical)
                yield [(step, number) for number in self.processes.share(logical)]

        if self.columns is not None:
            for keys in shared():
                numbers = [number for _, number in keys]
                parts = tuple(column[numbers].unsqueeze(1) for column in self.columns)
                yield Batch([Group(parts, list, len(numbers))] if numbers else [])
            return
        secret = self.streams.forward.fresh_seed().generate_state(POOL_SIZE)
        records = _RecordsAlone(self.dataset, self.join, secret.tobytes().hex())
        # Workers get a seed from here and not from torch's own generator; every record has a seed of its own.
        seeds = torch.Generator().manual_seed(int(secret[0]))
        yield from map(
            Batch, DataLoader(records, batch_sampler=shared(), generator=seeds, collate_fn=group, **self.settings)
        )


class _RecordsAlone(Dataset):
    """A dataset that reads each record as a batch of one, with its own secret seed."""

    def __init__(self, dataset: Any, join: Callable[[list[Any]], Any], secret: str) -> None:
        self.dataset, self.join, self.secret = dataset, join, secret

    def __getitem__(self, key: tuple[int, int]) -> Any:
        # Random numbers for a record do not depend on other records.
        seed_record(self.secret, *key)
        record = self.dataset[key[1]]
        try:
            return self.join([record])
        except PrivprojError:
            raise
        except Exception as error:
            expected, remedy = "a loader whose collate_fn accepts one record", "collate a list of one record alone"
            raise InvalidParameterError("data_loader", f"{type(error).__name__}: {error}", expected, remedy) from error


def check_loader(loader: DataLoader) -> None:
    """Raise :class:`InvalidParameterError` for a loader that cannot be made private.

    The dataset must support ``len`` and indexing. It must have records, and no nested or sparse tensors. The loader
    must not have a sampler of its own.
    """
    data = loader.dataset
    if isinstance(data, IterableDataset) or not hasattr(data, "__len__") or not len(data):  # pyright: ignore
        raise InvalidParameterError(
            "data_loader", type(data).__name__, "a loader of a nonempty dataset with a length and an index"
        )
    if isinstance(data, TensorDataset) and any(t.is_nested or t.layout is not torch.strided for t in data.tensors):
        remedy = "pad the tensors, or make them dense"
        raise InvalidParameterError("data_loader", "nested or sparse tensors", "a loader of dense tensors", remedy)
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    # SeedableRandomSampler is Accelerate's random sampler with a seed.
    is_plain = type(sampler) in (RandomSampler, SequentialSampler) or type(sampler).__name__ == "SeedableRandomSampler"
    is_plain = is_plain and not getattr(sampler, "replacement", False)
    if not is_plain or (loader.batch_sampler is not None and type(loader.batch_sampler) is not BatchSampler):
        name = type(sampler if not is_plain else loader.batch_sampler).__name__
        remedy = "remove the sampler, because the private loader draws the batches at the accounted rate"
        raise InvalidParameterError("data_loader", name, "a loader without a sampler of its own", remedy)


def batch_size_of(loader: DataLoader) -> int | None:
    """Return the batch size of a loader or of its batch sampler; None without one."""
    return loader.batch_size or getattr(loader.batch_sampler, "batch_size", None)
