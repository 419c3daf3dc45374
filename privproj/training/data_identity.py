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
from collections.abc import Callable, Iterator, Mapping
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
from privproj.training.generators import unchanged_numbers

SAMPLE_SIZE = 60
"""Records of the public sample of a data set that is not made of tensors, evenly spaced. Contract."""

MOST_BYTES = 2**28
"""Bytes of tensors that an identity covers in full; of larger data it takes every n-th record. Contract."""

PRIVATE = "a digest of private data, which is no private release: keep it with the data, and do not publish it"
"""The first entry of the file with the identity of a data set."""


@dataclass(frozen=True)
class Identity:
    """What tells a data set from another: the number of its records, and a digest of each part of a record.

    The digest of a part is None where it cannot be read, or where it is another one each time a record is read.
    """

    records: int
    digests: Mapping[str, str | None]


# --- every record once -----------------------------------------------------------------------------------


def check_distinct(dataset: Dataset) -> None:
    """Refuse a data set that holds one record twice.

    That is the same index of the same data set, through ``ConcatDataset`` and ``Subset``, or the same row of the same
    tensors. Copies of a record are other records here: a person who has k of them is accounted with ``group_size=k``.

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
    counts = [np.unique(np.concatenate(parts), return_counts=True)[1] for parts in found.values()]
    most = max((int(part.max(initial=0)) for part in counts), default=0)
    if most > 1:
        raise InvalidParameter(
            "data_loader", f"a record {most} times", "every record once",
            "a record that is there k times contributes k times the clip: take the copies out, and give the number of "
            "passes as epochs",
        )  # fmt: skip


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


def _bytes(tensor: Tensor) -> np.ndarray:
    """The bytes of a tensor, row after row."""
    return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


# --- the same data ---------------------------------------------------------------------------------------


def identity(dataset: Dataset) -> Identity:
    """Return the number of records of a data set and a digest of each part of them.

    A ``TensorDataset`` is covered byte for byte up to 256 MiB, beyond that by every n-th record; other data by a
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
    if type(dataset) is not TensorDataset:
        return Identity(records, _sample_digests(dataset))
    size = sum(t[:1].numel() * t.element_size() for t in dataset.tensors)
    every = max(1, math.ceil(records * size / MOST_BYTES))
    digests = {str(i): _digest([(_form(t[:1]), _bytes(t[::every]))]) for i, t in enumerate(dataset.tensors)}
    return Identity(records, digests)


def _sample_digests(dataset: Any) -> dict[str, str | None]:
    """A digest of each part of the records of the sample; None for a part that differs when it is read twice."""
    with unchanged_numbers():
        first, second = _read_sample(dataset), _read_sample(dataset)
    names = dict.fromkeys(name for record in (*first, *second) for name in record)
    found: dict[str, str | None] = {}
    for name in names:
        values = [record.get(name) for record in first]
        known = values == [record.get(name) for record in second] and not any(
            name in record and record[name] is None for record in first
        )
        found[name] = _digest((str(i), v) for i, v in enumerate(values) if v is not None) if known else None
    return found


def _read_sample(dataset: Any) -> list[dict[str, bytes | None]]:
    """The parts of each record of the sample, as bytes."""
    records = len(dataset)
    size = min(records, SAMPLE_SIZE)
    return [dict(_leaves(dataset[i * records // size])) for i in range(size)]


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
