"""What data a run is about: every record once, and the same records whenever a ledger is gone on with.

A record that a data set holds k times contributes k times the clip. And a plan is made for one data set: its sampling
rate for the number of its records, its budget for the people in it.

The identity of a data set is a digest of private data, which is a release without noise: whoever has a guess of the
data can check it. So it stands in a file of its own beside the ledger, which only its owner may read and which is not
for publication, and never in the ledger.
"""

import hashlib
import json
import math
import random
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, IterableDataset, Subset, TensorDataset

from privproj.errors import InvalidParameter, Refused
from privproj.records.atomic import read_bounded, write_atomically
from privproj.records.ledger import Account
from privproj.records.strict_json import parse_json

SAMPLE_SIZE = 60
"""Records of the public sample of a data set that is not made of tensors, evenly spaced.

A multiple of 2 to 6, so that the sample of a data set that stands there so many times in a row meets its copies.
Contract.
"""

FIRST_COLUMNS = 16
"""Entries of each tensor that are compared first, evenly spaced: where they tell one record apart, the rest is not
looked at. Speed only."""

PATIENCE = 0.1
"""Seconds after which records are no longer read to find copies: a slow data set is not looked through. Speed only."""

MOST_BYTES = 2**28
"""Bytes of tensors that an identity covers in full; of larger data it takes every n-th record. Contract."""

PRIVATE = "a digest of private data, which is no private release: keep it with the data, and do not publish it"
"""The first entry of the file with the identity of a data set."""


class RepeatedRecords(UserWarning):
    """Said where every record of a data set seems to be there k times: one person then contributes k times the clip."""


@dataclass(frozen=True)
class Identity:
    """What tells a data set from another: the number of its records, and a digest of each part of a record.

    The digest of a part is None where it cannot be read, or where it is another one each time a record is read.
    """

    records: int
    digests: Mapping[str, str | None]


# --- every record once -----------------------------------------------------------------------------------


def check_distinct(dataset: Dataset) -> None:
    """Refuse a data set that holds one record twice, and warn of one that seems to be a copy of itself.

    One record twice is the same index of the same data set, through ``ConcatDataset`` and ``Subset``, or the same row
    of the same tensors. The warning is about contents: the number of times that each content is there has a common
    divisor k of at least 2, most contents are there k times, and there are more of them than k. Tensors are compared
    as a whole, other data by a public sample of 60 records, if it is read in a tenth of a second.

    Args:
        dataset: A data set with a length and an index.

    Raises:
        InvalidParameter: A record is there twice.

    >>> import torch
    >>> from torch.utils.data import ConcatDataset, TensorDataset
    >>> from privproj.errors import InvalidParameter
    >>> from privproj.training.data_identity import check_distinct
    >>> records = TensorDataset(torch.randn(100, 8))
    >>> check_distinct(records)
    >>> try:
    ...     check_distinct(ConcatDataset([records, records]))
    ... except InvalidParameter as error:
    ...     print(str(error).partition(";")[0])
    expected every record once, got data_loader=a record 2 times
    """
    if isinstance(dataset, IterableDataset) or not len(dataset):  # pyright: ignore[reportArgumentType]
        return
    positions, found = np.arange(len(dataset)), {}  # pyright: ignore[reportArgumentType]
    for source, indices in _sources(dataset, positions):
        found.setdefault(source, []).append(indices)
    most = max((int(_counts(np.concatenate(parts)).max(initial=0)) for parts in found.values()), default=0)
    if most > 1:
        raise InvalidParameter(
            "data_loader", f"a record {most} times", "every record once",
            "a record that is there k times contributes k times the clip: take the copies out, and give the number of "
            "passes as epochs",
        )  # fmt: skip
    copies = _copies(dataset, positions)
    if copies > 1:
        warnings.warn(
            f"every record seems to be in the data {copies} times: if these are copies of one person's record, they "
            f"contribute {copies} times the clip; take the copies out, or account with group_size={copies}",
            RepeatedRecords,
            stacklevel=3,
        )


def _sources(dataset: Any, positions: np.ndarray) -> Iterator[tuple[object, np.ndarray]]:
    """Where the records at these positions come from: for each underlying data set what tells it, and its indices."""
    if isinstance(dataset, Subset) and (indices := _indices(dataset)) is not None:
        yield from _sources(dataset.dataset, indices[positions])
    elif isinstance(dataset, ConcatDataset):
        for part, inside in _parts(dataset, positions):
            yield from _sources(part, inside[1])
    elif type(dataset) is TensorDataset:
        # Row i of every tensor begins at p + i s. Rows of overlapping views are told by the p of one common row 0.
        places = [(t.data_ptr(), t.stride(0) * t.element_size()) for t in dataset.tensors]
        first = places[0][0] // places[0][1] if places[0][1] else 0
        same = tuple((str(t.device), p - first * s, s) for t, (p, s) in zip(dataset.tensors, places, strict=True))
        yield same, positions + first
    else:
        yield id(dataset), positions


def _indices(subset: Subset) -> np.ndarray | None:
    """The indices of a subset, counted from 0; None where they are no whole numbers."""
    found = np.asarray(subset.indices)
    if found.dtype.kind not in "iu":
        return None
    return np.where(found < 0, found + len(subset.dataset), found)  # pyright: ignore[reportArgumentType]


def _parts(dataset: ConcatDataset, positions: np.ndarray) -> Iterator[tuple[Any, tuple[np.ndarray, np.ndarray]]]:
    """Each part of a joined data set, with which of the positions are in it, and where they are in the part."""
    begin = 0
    for part, end in zip(dataset.datasets, dataset.cumulative_sizes, strict=True):
        which = np.flatnonzero((positions >= begin) & (positions < end))
        yield part, (which, positions[which] - begin)
        begin = end


def _counts(values: np.ndarray) -> np.ndarray:
    """How often each value is there."""
    return np.unique(values, return_counts=True)[1]


def _copies(dataset: Any, positions: np.ndarray) -> int:
    """How many times the whole data set seems to be in itself; 1 where nothing says so."""
    first = _rows(dataset, positions, FIRST_COLUMNS)
    if first is not None:
        # What divides all counts of whole records divides all counts of their parts.
        if math.gcd(*_counts(_keys(first)).tolist()) == 1:
            return 1
        return _common_copies(_keys(_rows(dataset, positions) or []))
    with _unchanged_random_numbers():
        sample = _read_sample(dataset, PATIENCE)
    if sample is None or any(None in record.values() for record in sample):
        return 1
    return _common_copies(np.array([_digest(record.items()) for record in sample]))


def _common_copies(keys: np.ndarray) -> int:
    """The common divisor k of how often each key is there, if most are there k times and there are more than k of them.

    Else 1: few contents that are there often are plain data, such as a table of categories.
    """
    counts = _counts(keys)
    common, different = math.gcd(*counts.tolist()), len(counts)
    return common if different > common and 2 * common * different > len(keys) else 1


def _keys(rows: list[Tensor]) -> np.ndarray:
    """A number of 64 bits for each record, equal for records with equal bytes and hardly for any others."""
    draw, found = np.random.default_rng(0), 0
    for tensor in rows:
        width = tensor[0].numel() * tensor.element_size()
        values = _bytes(tensor).reshape(len(tensor), width)
        words = values.view(np.uint32) if width % 4 == 0 else values
        weights = draw.integers(2**64, size=words.shape[1], dtype=np.uint64)
        # sum_j w_j x_j mod 2^64.
        found = found + words.astype(np.uint64) @ weights
    return np.asarray(found)


def _rows(dataset: Any, positions: np.ndarray, columns: int | None = None) -> list[Tensor] | None:
    """The tensors of these records, one row each, or a few columns of them; None for data not made of tensors."""
    if type(dataset) is TensorDataset:
        tensors = dataset.tensors
        if any(t.layout is not torch.strided or t.is_meta or t.is_quantized for t in tensors):
            return None
        return [_picked(_thinned(t.detach(), columns), positions) for t in tensors]
    if type(dataset) is Subset and (indices := _indices(dataset)) is not None:
        return _rows(dataset.dataset, indices[positions], columns)
    if type(dataset) is ConcatDataset:
        parts = list(_parts(dataset, positions))
        found = [_rows(part, inside, columns) for part, (_, inside) in parts]
        forms = {None if rows is None else tuple((t.dtype, t.shape[1:]) for t in rows) for rows in found}
        if len(forms) == 1 and None not in forms:
            order = np.argsort(np.concatenate([which for _, (which, _) in parts]))
            joined = (torch.cat([t.cpu() for t in same]) for same in zip(*found, strict=True))  # pyright: ignore
            return [_picked(tensor, order) for tensor in joined]
    return None


def _picked(tensor: Tensor, rows: np.ndarray) -> Tensor:
    """These rows of a tensor; a view where they follow one another."""
    if len(rows) and (np.diff(rows) == 1).all():
        return tensor[int(rows[0]) : int(rows[-1]) + 1]
    return tensor[torch.from_numpy(np.ascontiguousarray(rows)).to(tensor.device)]


def _thinned(tensor: Tensor, columns: int | None) -> Tensor:
    """A tensor with so many of the entries of each row, evenly spaced; the tensor itself if it has no more."""
    if columns is None or tensor[:1].numel() <= columns:
        return tensor
    entries = tensor.flatten(1)
    return entries[:, torch.arange(columns, device=tensor.device) * entries.shape[1] // columns]


def _bytes(tensor: Tensor) -> np.ndarray:
    """The bytes of a tensor, row after row."""
    return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


# --- the same data ---------------------------------------------------------------------------------------


def identity(dataset: Dataset) -> Identity:
    """Return the number of records of a data set and a digest of each part of them.

    Data made of tensors is covered byte for byte up to 256 MiB, beyond that by every n-th record; other data by a
    public sample of 60 records, evenly spaced. These are read twice: a part of the records that is another one the
    second time, such as an image that is cut at random, has no digest. The random numbers of torch, numpy and Python
    go on as if nothing had been read.

    Args:
        dataset: A data set with a length and an index.

    Returns:
        The identity, which must not be published.

    >>> import torch
    >>> from torch.utils.data import TensorDataset
    >>> from privproj.training.data_identity import identity
    >>> x = torch.arange(12.0).view(6, 2)
    >>> identity(TensorDataset(x)) == identity(TensorDataset(x.clone())), identity(TensorDataset(x[1:])).records
    (True, 5)
    """
    records = len(dataset)  # pyright: ignore[reportArgumentType]
    if not records:
        return Identity(0, {})
    one = _rows(dataset, np.arange(1))
    if one is None:
        return Identity(records, _sample_digests(dataset))
    size = sum(t.numel() * t.element_size() for t in one)
    rows = _rows(dataset, np.arange(0, records, max(1, math.ceil(records * size / MOST_BYTES))))
    digests = {str(i): _digest([(_form(t), _bytes(t))]) for i, t in enumerate(rows or [])}
    return Identity(records, digests)


def _sample_digests(dataset: Any) -> dict[str, str | None]:
    """A digest of each part of the records of the sample; None for a part that differs when it is read twice."""
    with _unchanged_random_numbers():
        first, second = _read_sample(dataset), _read_sample(dataset)
    assert first is not None and second is not None
    names = dict.fromkeys(name for record in (*first, *second) for name in record)
    found: dict[str, str | None] = {}
    for name in names:
        values = [record.get(name) for record in first]
        known = values == [record.get(name) for record in second] and not any(
            name in record and record[name] is None for record in first
        )
        found[name] = _digest((str(i), v) for i, v in enumerate(values) if v is not None) if known else None
    return found


def _read_sample(dataset: Any, patience: float = math.inf) -> list[dict[str, bytes | None]] | None:
    """The parts of each record of the sample, as bytes; None where reading takes more than so many seconds."""
    records, end = len(dataset), time.monotonic() + patience
    size, found = min(records, SAMPLE_SIZE), []
    for position in (i * records // size for i in range(size)):
        found.append(dict(_leaves(dataset[position])))
        if time.monotonic() > end:
            return None
    return found


@contextmanager
def _unchanged_random_numbers() -> Iterator[None]:
    """Leave the random numbers of torch's CPU generator, of numpy and of Python as they were."""
    python, arrays = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)


def _leaves(part: Any, name: str = "") -> Iterator[tuple[str, bytes | None]]:
    """The parts of a record by their place in it, as bytes; None for what has none, a picture for instance."""
    if isinstance(part, Mapping):
        inside: Any = part.items()
    elif is_dataclass(part) and not isinstance(part, type):
        inside = ((field.name, getattr(part, field.name)) for field in fields(part))
    elif isinstance(part, tuple) or (isinstance(part, list) and not all(map(_is_plain, part))):
        inside = enumerate(part)
    else:
        yield name, _encoded(part)
        return
    for key, value in inside:
        yield from _leaves(value, f"{name}.{key}".lstrip("."))


def _is_plain(value: Any) -> bool:
    """True for words and numbers of Python, which their representation tells apart."""
    return value is None or isinstance(value, str | bytes | bool | int | float | complex)


def _encoded(part: Any) -> bytes | None:
    """A leaf of a record as bytes with its form; None for what is neither words, numbers nor an array of them."""
    if isinstance(part, np.ndarray | np.generic) and part.dtype.kind != "O":
        return f"{part.dtype} {part.shape} ".encode() + part.tobytes()
    if isinstance(part, Tensor) and part.layout is torch.strided and not part.is_meta and not part.is_quantized:
        return f"{_form(part)} ".encode() + _bytes(part).tobytes()
    if _is_plain(part) or isinstance(part, list):
        return repr(part).encode()
    return None


def _form(tensor: Tensor) -> str:
    """The type and the shape of a tensor, in words."""
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def _digest(parts: Any) -> str:
    """A SHA-256 of names with their bytes, each with its length, so that nothing moves from one part to the next."""
    found = hashlib.sha256()
    for name, content in parts:
        found.update(f"{len(name)} {len(content)} {name}".encode())
        found.update(content)
    return found.hexdigest()


# --- the file beside the ledger --------------------------------------------------------------------------


def check_identity(
    ledger: str | Path, found: Identity, account: Account, kept: dict[str, Any] | None = None
) -> Callable[[int], object]:
    """Refuse other data than a ledger has releases of, and a ledger with fewer releases than it once had.

    ``<ledger>.data`` keeps the identity of the data, a second count of the releases, and the random name by which
    stamps know the ledger. It lies beside the file that a link names.

    Args:
        ledger: The path of the ledger.
        found: The identity of the data that is about to be trained on.
        account: What the ledger says.
        kept: Whatever else is kept in that file, in secret. It is filled with what the file has, and written as it is
            whenever the file is. ``kept["ledger"]`` is the name.

    Returns:
        What keeps both in that file, called with the number of releases; once before the first release.

    Raises:
        InvalidParameter: The ledger is of other data, or some of its releases are gone, or the file is damaged or lost.
    """
    path = Path(f"{Path(ledger).resolve()}.data")
    kept = {} if kept is None else kept
    kept["ledger"] = token_hex()
    if path.exists():
        known, releases, others = _read_identity(path)
        kept.update(others)
        if account.spent < releases:
            raise InvalidParameter(
                "ledger", ledger, f"a ledger with the {releases} releases that it once had",
                "restore it from a backup, or name another ledger and add both up",
            )  # fmt: skip
        if account.spent:
            _refuse_other_data(known, found, ledger)
            digests = {name: known.digests[name] or digest for name, digest in found.digests.items()}
            found = Identity(found.records, digests)
    elif account.spent:
        raise InvalidParameter(
            "ledger", f"{ledger} without {path.name}", "the file beside it that tells of which data its releases were",
            "put it back, or name another ledger and add both up",
        )  # fmt: skip

    def keep(releases: int) -> None:
        written = {"private": PRIVATE, "releases": releases, **asdict(found), **kept}
        text = json.dumps(written, indent=2).encode() + b"\n"
        try:
            write_atomically(path, lambda file: file.write(text), mode=0o600)
        except OSError as error:
            raise Refused(
                f"{path} could not be written ({error.strerror}), so nothing was released: make room or allow it, and "
                "go on"
            ) from error

    return keep


def _read_identity(path: Path) -> tuple[Identity, int, dict[str, Any]]:
    """The identity that was kept in a file, the releases that its ledger had then, and whatever else is there."""
    try:
        kept = parse_json(read_bounded(path).decode())
        digests, releases = kept["digests"], kept["releases"]
        whole = isinstance(kept["records"], int) and isinstance(releases, int)
        if not whole or not all(isinstance(digest, str | None) for digest in digests.values()):
            raise ValueError
        others = {key: kept[key] for key in kept.keys() - {"private", "releases", "records", "digests"}}
        return Identity(kept["records"], digests), releases, others
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InvalidParameter(
            "ledger", path, "the identity of the data of this ledger, as privproj wrote it",
            "restore it from a backup, or name another ledger and add both up",
        ) from None  # fmt: skip


def _refuse_other_data(known: Identity, found: Identity, ledger: str | Path) -> None:
    """Raise where two identities are of different data; parts that one of them could not tell are not compared."""
    if known.records != found.records:
        what = f"{found.records} records in place of {known.records}"
    elif known.digests.keys() != found.digests.keys():
        what = "records of other parts"
    else:
        pairs = {name: (digest, found.digests[name]) for name, digest in known.digests.items()}
        other = [name or "record" for name, pair in pairs.items() if None not in pair and pair[0] != pair[1]]
        if not other:
            return
        what = f"records with other contents or in another order (in part {', '.join(other[:3])})"
    raise InvalidParameter(
        "data_loader", what, f"the data that {ledger} has releases of",
        "go on with that data, or name another ledger for this data, and add both up for who is in both",
    )  # fmt: skip
