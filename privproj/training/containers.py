"""Nested batches: containers of tensors whose first dimension counts records, cut and moved as they are.

What counts records in a batch is told by joining one record in the same way, and two: it has one row there, or two.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from privproj.errors import InvalidParameterError

Samples = tuple[Any, Any] | None
"""The batches of one record and of two that are joined as a batch is; None where nobody knows them."""

NUMBERS = (int, float, np.integer, np.floating, np.bool_)
"""What counts as a number of a batch that is no tensor. Contract."""


def take(batch: Any, rows: slice | Tensor, records: int, samples: Samples = None, told: Samples = None) -> Any:
    """The part of a batch of so many records that these rows are; ``rows`` is a slice or whole numbers on the CPU.

    Tensors, arrays, lists and tuples with one entry for each record are cut. What has another size is shared by all
    records and stays as it is, or is what the first batch of ``told`` has there, unless it is a tensor. Without
    ``samples`` a list or a tuple with an entry that has a row for each record holds columns.
    """
    if not _counts_records(batch, records, samples):
        parts = _rebuilt(batch, lambda part, key: take(part, rows, records, _inside(samples, key), _inside(told, key)))
        return parts if parts is not batch or told is None or isinstance(batch, Tensor) else told[0]
    if isinstance(batch, Tensor) and has_no_rows(batch):
        remedy = "pad it and use a mask, or pass its dense parts and build it in the loss function"
        expected = "made of dense tensors with a row for each record"
        raise InvalidParameterError("batch", "a nested or sparse tensor", expected, remedy)
    if isinstance(batch, list | tuple):
        return type(batch)(batch[rows] if isinstance(rows, slice) else [batch[row] for row in rows.tolist()])
    if isinstance(rows, slice):
        return batch[rows]
    return batch[rows.to(batch.device) if isinstance(batch, Tensor) else rows.numpy()]


def has_rows(batch: Any, records: int, samples: Samples = None) -> bool:
    """True if anything in a batch has one row for each of so many records, so that parts of it can be taken."""
    none = take(batch, slice(0, 0), records, samples)
    return list(map(id, parts_of(none))) != list(map(id, parts_of(batch)))


def move(batch: Any, device: torch.device, *, copy: bool = False) -> Any:
    """The batch with all its tensors on a device, as copies or, where they are there, as they are."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True, copy=copy)
    return _rebuilt(batch, lambda part, _: move(part, device, copy=copy))


def leaves(batch: Any) -> list[Tensor]:
    """All tensors of a batch, in its order."""
    return [part for part in parts_of(batch) if isinstance(part, Tensor)]


def leaves_and_numbers(batch: Any) -> list[Tensor]:
    """All tensors of a batch, in its order, with its arrays and the numbers in its lists as tensors."""
    if isinstance(batch, np.ndarray) and batch.dtype.isnative and batch.dtype.kind in "fiub" and batch.itemsize <= 8:
        # A copy, for torch takes none that is read-only or goes backwards.
        return [torch.from_numpy(np.array(batch, order="C"))]
    if isinstance(batch, list | tuple):
        numbers = [float(part) for part in batch if isinstance(part, NUMBERS)]
        tensors = [torch.tensor(numbers, dtype=torch.float64)] if numbers else []
        return [*tensors, *(leaf for part in batch for leaf in leaves_and_numbers(part))]
    return [batch] if isinstance(batch, Tensor) else _joined(batch, leaves_and_numbers) or []


def shapes_of(batch: Any) -> tuple[torch.Size, ...]:
    """The shapes of all tensors of a batch, in its order."""
    return tuple(leaf.shape for leaf in leaves(batch))


def parts_of(batch: Any) -> list[Any]:
    """All parts of a batch that are no containers themselves, in its order."""
    parts = _joined(batch, parts_of)
    return [batch] if parts is None else parts


def place_of(
    single: Any, part: Any, row: int, records: int, samples: Samples, of: Callable[[Any], list[Tensor]] = leaves
) -> tuple[int, bool] | None:
    """The row of a part that a batch of one record is, and whether it is padded there; None where no row is.

    It is looked for at ``row`` first. A row is padded where the single record is its beginning or its end. ``of`` says
    what is compared; what is said of the whole part, but in tensors, is not.
    """
    for place in (row, *(other for other in range(records) if other != row)):
        cut = take(part, slice(place, place + 1), records, samples, (single, single))
        pairs = list(zip(of(cut), of(single), strict=False))
        if any(all(_reaches(one, other, at_end=side) for one, other in pairs) for side in (False, True)):
            return place, any(one.shape != other.shape for one, other in pairs)
    return None


def are_equal(one: Tensor, other: Tensor) -> bool:
    """True if two tensors have one shape and hold the same numbers, nan being equal to nan."""
    if one.shape != other.shape:
        return False
    if has_no_rows(one):
        one, other = one.to_dense(), other.to_dense()
    same = one == other
    return bool((same | (one.isnan() & other.isnan()) if one.is_floating_point() else same).all())


def are_close(one: Tensor, other: Tensor) -> bool:
    """True if two tensors hold the same numbers but for rounding, as a record that is mixed with itself does."""
    if one.shape == other.shape and one.is_floating_point() and not has_no_rows(one):
        return torch.allclose(one, other.to(one), rtol=1e-5, atol=0.0, equal_nan=True)
    return are_equal(one, other)


def _reaches(one: Tensor, other: Tensor, *, at_end: bool) -> bool:
    """True if a tensor begins, or ends, with another one along the dimensions in which they differ."""
    if one.dim() != other.dim() or any(long < short for long, short in zip(one.shape, other.shape, strict=True)):
        return False
    if one.shape == other.shape:
        return are_equal(one, other.to(one.device))
    sizes = zip(one.shape, other.shape, strict=True)
    place = tuple(slice(long - short, None) if at_end else slice(0, short) for long, short in sizes)
    return are_equal(one[place], other.to(one.device))


def _size(part: Any) -> int | None:
    """The number of rows of a tensor or an array, or of entries of a list or tuple without names; else None."""
    if isinstance(part, Tensor | np.ndarray):
        return (part.size(0) if isinstance(part, Tensor) else len(part)) if part.ndim else None
    return len(part) if isinstance(part, list | tuple) and not hasattr(part, "_fields") else None


def has_no_rows(part: Tensor) -> bool:
    """True for nested and sparse tensors, whose rows cannot be cut or read."""
    return part.is_nested or part.layout is not torch.strided


def _counts_records(part: Any, records: int, samples: Samples) -> bool:
    """True if a part of a batch has one row or entry for each of so many records."""
    if _size(part) != records:
        return False
    if samples is not None:
        return tuple(map(_size, samples)) == (1, 2)
    return not isinstance(part, list | tuple) or all(
        _size(entry) != records for entry in part if isinstance(entry, Tensor | np.ndarray)
    )


def _inside(samples: Samples, key: Any) -> Samples:
    """What both samples have at a place; None where one has nothing there."""
    if samples is None:
        return None
    try:
        one, two = (vars(part)[key] if is_dataclass(part) else part[key] for part in samples)
    except (KeyError, IndexError, TypeError):
        return None
    return one, two


def _joined(batch: Any, of: Callable[[Any], list[Any]]) -> list[Any] | None:
    """What is ``of`` the parts of a container, one after the other; None for anything that is none."""
    joined: list[Any] = []

    def visit(part: Any, _: Any) -> Any:
        joined.extend(of(part))
        return part

    return None if _rebuilt(batch, visit) is batch else joined


def _rebuilt(batch: Any, change: Callable[[Any, Any], Any]) -> Any:
    """The same container with changed parts, each called with its place; anything that is no container as it is."""
    if isinstance(batch, defaultdict):
        return defaultdict(batch.default_factory, {key: change(part, key) for key, part in batch.items()})
    if isinstance(batch, Mapping):
        return type(batch)({key: change(part, key) for key, part in batch.items()})  # pyright: ignore[reportCallIssue]
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(change(part, i) for i, part in enumerate(batch)))
    if isinstance(batch, list | tuple):
        return type(batch)(change(part, i) for i, part in enumerate(batch))
    if is_dataclass(batch) and not isinstance(batch, type):
        return replace(batch, **{f.name: change(getattr(batch, f.name), f.name) for f in fields(batch) if f.init})
    return batch
