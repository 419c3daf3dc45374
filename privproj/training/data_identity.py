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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, is_dataclass
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
from privproj.training.nested import parts_of

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
    if isinstance(dataset, Subset) and np.asarray(dataset.indices).dtype.kind in "iu":
        # Indices below 0 count from the end.
        inside = np.asarray(dataset.indices) % len(dataset.dataset)  # pyright: ignore[reportArgumentType]
        yield from _sources(dataset.dataset, inside[positions])
    elif isinstance(dataset, ConcatDataset):
        for part, begin, end in zip(
            dataset.datasets, [0, *dataset.cumulative_sizes], dataset.cumulative_sizes, strict=False
        ):
            yield from _sources(part, positions[(positions >= begin) & (positions < end)] - begin)
    elif type(dataset) is TensorDataset:
        # Row i of every tensor begins at p + i s. Rows of overlapping views are told by the p of one common row 0.
        places = [(t.data_ptr(), t.stride(0) * t.element_size()) for t in dataset.tensors]
        first = places[0][0] // places[0][1] if places[0][1] else 0
        same = tuple((str(t.device), p - first * s, s) for t, (p, s) in zip(dataset.tensors, places, strict=True))
        yield same, positions + first
    else:
        yield id(dataset), positions


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
    if type(dataset) is TensorDataset and records:
        size = sum(t[:1].numel() * t.element_size() for t in dataset.tensors)
        every = max(1, math.ceil(records * size / MOST_BYTES))
        digests = {str(i): _digest([(_form(t[:1]), _bytes(t[::every]))]) for i, t in enumerate(dataset.tensors)}
        return Identity(records, digests)
    numbers = sorted({i * records // SAMPLE_SIZE for i in range(SAMPLE_SIZE if records else 0)})
    with unchanged_numbers():
        first, second = ([dict(_parts(dataset[i])) for i in numbers] for _ in range(2))
    found: dict[str, str | None] = {}
    for name in dict.fromkeys(name for record in (*first, *second) for name in record):
        once, again = ([record.get(name) for record in reading] for reading in (first, second))
        is_known = once == again and None not in once
        found[name] = _digest((str(i), part or b"") for i, part in enumerate(once)) if is_known else None
    return Identity(records, found)


def _parts(record: Any) -> Iterator[tuple[str, bytes | None]]:
    """The parts of a record by their names or places, as bytes; None for what has none, a picture for instance."""
    record = vars(record) if is_dataclass(record) else record
    is_row = isinstance(record, tuple) or (isinstance(record, list) and any(_encoded(part) is None for part in record))
    inside = record.items() if isinstance(record, Mapping) else enumerate(record) if is_row else [("", record)]
    for name, part in inside:
        leaves = [_encoded(leaf) for leaf in parts_of(part)]
        yield str(name), None if None in leaves else repr(leaves).encode()


def _encoded(part: Any) -> bytes | None:
    """A leaf of a record as bytes with its form; None for what is neither words, numbers nor an array of them."""
    if isinstance(part, Tensor) and part.layout is torch.strided and not part.is_meta and not part.is_quantized:
        return f"{_form(part)} ".encode() + _bytes(part)
    if isinstance(part, np.ndarray | np.generic) and part.dtype.kind != "O":
        return f"{part.dtype} {part.shape} ".encode() + part.tobytes()
    return repr(part).encode() if part is None or isinstance(part, str | bytes | int | float | complex) else None


def _form(tensor: Tensor) -> str:
    """The type and the shape of a tensor, in words."""
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def _bytes(tensor: Tensor) -> bytes:
    """The bytes of a tensor, row after row."""
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes()


def _digest(parts: Iterable[tuple[str, bytes]]) -> str:
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
        found = Identity(kept.pop("records"), kept.pop("digests"))
        releases = kept.pop("releases")
        if not isinstance(found.records, int) or not isinstance(releases, int) or kept.pop("private", 0) != PRIVATE:
            raise ValueError
        if not all(isinstance(digest, str | None) for digest in found.digests.values()):
            raise ValueError
        return found, releases, kept
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise InvalidParameter(
            "ledger", path, "the identity of the data of this ledger, as privproj wrote it",
            "restore it from a backup, or name another ledger and add both up",
        ) from None  # fmt: skip


def _refuse_other_data(known: Identity, found: Identity, ledger: str | Path) -> None:
    """Raise where two identities are of different data; parts that one of them could not tell are not compared."""
    pairs = [(name, known.digests.get(name), found.digests.get(name)) for name in {**known.digests, **found.digests}]
    other = [name or "record" for name, *pair in pairs if None not in pair and pair[0] != pair[1]]
    if known.records != found.records:
        what = f"{found.records} records in place of {known.records}"
    elif known.digests.keys() != found.digests.keys():
        what = "records of other parts"
    elif other:
        what = f"records with other contents or in another order (in part {', '.join(other[:3])})"
    else:
        return
    raise InvalidParameter(
        "data_loader", what, f"the data that {ledger} has releases of",
        "go on with that data, or name another ledger for this data, and add both up for who is in both",
    )  # fmt: skip
