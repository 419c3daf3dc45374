"""Check that a run accounts for its dataset and for earlier releases on its tensors.

A record that occurs k times in a dataset contributes up to k times the clipping norm, so duplicates raise an error.

A ledger belongs to one dataset. A digest identifies the dataset in a separate file next to the ledger. The file must
not be published, because the digest can confirm a correct guess of the data.

A run must account for all earlier releases on its tensors. So its first release sets an attribute, the stamp, on every
trained tensor and on every module that contains one. The stamp lists the releases that are accounted so far. A later
run needs the same ledger or, without a ledger, a :class:`Subspace` whose ``account`` lists these releases. Copies and
pickles of a module have its stamp. Weights that are loaded into another module have no stamp.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, is_dataclass
from enum import Enum
from pathlib import Path
from secrets import token_hex
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, StackDataset, Subset, TensorDataset

from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.io.files import parse_json, read_bounded, write_atomically
from privproj.io.ledger import Account
from privproj.training.generators import unchanged_numbers
from privproj.training.trained import Trained

SAMPLE_SIZE = 60  # number of evenly spaced records in the digest of a dataset that is not a TensorDataset

# types of records that Python may store as one object although they are records of different people
_PLAIN = (str, bytes, int, float, complex, type(None), type, Enum)

# text of the entry "private" of the file with the identity of a dataset
PRIVATE = "a digest of private data, which is no private release: keep it with the data, and do not publish it"

# remedy in error messages if a ledger cannot be continued; it follows another remedy and "or"
ANOTHER_LEDGER = "use another ledger and compose both"


@dataclass(frozen=True)
class Identity:
    """The number of records of a dataset and a digest of their contents.

    The digest is None if a record cannot be converted to bytes, or if its contents differ between two reads.
    """

    records: int
    digest: str | None


def check_distinct(dataset: Dataset) -> None:
    """Raise an error if a dataset contains the same record twice.

    Two records are the same if they are:

    * the same index of one dataset, also within a ``ConcatDataset``, ``Subset`` or the first part of a ``StackDataset``
    * the same row of the same tensors
    * the same object in a list

    Different objects with equal contents are different records. If a user has k of them, account for this user with
    ``group_size=k``.

    Args:
        dataset: A dataset with a length and an index.

    Raises:
        InvalidParameterError: A record occurs twice.

    >>> import torch
    >>> from torch.utils.data import ConcatDataset, TensorDataset
    >>> from privproj.errors import InvalidParameterError
    >>> from privproj.training.dataset import check_distinct
    >>> records = TensorDataset(torch.randn(100, 8))
    >>> check_distinct(records)
    >>> try:
    ...     check_distinct(ConcatDataset([records, records]))
    ... except InvalidParameterError as error:
    ...     print(str(error).partition(". ")[0])
    data_loader must be a loader that yields every record once, got the same record 2 times
    """
    by_source: dict[object, list[np.ndarray]] = {}
    for source, indices in _sources(dataset, np.arange(len(dataset))):  # pyright: ignore[reportArgumentType]
        by_source.setdefault(source, []).append(indices)
    most = max(np.unique(np.concatenate(parts), return_counts=True)[1].max(initial=0) for parts in by_source.values())
    if most > 1:
        expected, remedy = (
            "a loader that yields every record once",
            "remove the duplicates, and set epochs for repeated passes. Distinct objects may have equal contents",
        )
        raise InvalidParameterError("data_loader", f"the same record {most} times", expected, remedy)


def _sources(dataset: Any, positions: np.ndarray) -> Iterator[tuple[object, np.ndarray]]:
    """Yield an identifier of each underlying dataset, with the positions of records in it.

    ``positions`` are the positions of the records in ``dataset``, which may combine several datasets.
    """
    if isinstance(dataset, Subset) and np.asarray(dataset.indices).dtype.kind in "iu":
        # Indices below 0 count from the end.
        inside = np.asarray(dataset.indices) % len(dataset.dataset)  # pyright: ignore[reportArgumentType]
        yield from _sources(dataset.dataset, inside[positions])
    elif isinstance(dataset, ConcatDataset):
        ends = dataset.cumulative_sizes
        for part, begin, end in zip(dataset.datasets, [0, *ends], ends, strict=False):
            yield from _sources(part, positions[(positions >= begin) & (positions < end)] - begin)
    elif type(dataset) is TensorDataset:
        # Views of the same tensors have the same storage. The offset of the first view, in rows, is added to the index.
        first = dataset.tensors[0]
        same = tuple((t.untyped_storage().data_ptr(), t.stride(0)) for t in dataset.tensors)
        yield same, positions + first.storage_offset() // max(1, first.stride(0))
    elif isinstance(dataset, StackDataset):
        # Two records are the same if their first parts are the same.
        parts: Any = dataset.datasets
        yield from _sources(next(iter(parts.values() if isinstance(parts, dict) else parts)), positions)
    elif type(dataset) in (list, tuple) and not any(isinstance(record, _PLAIN) for record in dataset):
        yield "objects", np.array([id(dataset[position]) for position in positions.tolist()])
    else:
        yield id(dataset), positions


def identity(dataset: Dataset) -> Identity:
    """Return the number of records of a dataset and a digest of their contents.

    The digest covers all of a ``TensorDataset``, and a public sample of 60 evenly spaced records of any other dataset.
    If the contents differ when they are read twice, as with random crops, the digest is None.

    Args:
        dataset: A dataset with a length and an index.

    Returns:
        The identity, which must not be published.

    >>> import torch
    >>> from torch.utils.data import TensorDataset
    >>> from privproj.training.dataset import identity
    >>> x = torch.arange(12.0).view(6, 2)
    >>> identity(TensorDataset(x)) == identity(TensorDataset(x.clone())), identity(TensorDataset(x[1:])).records
    (True, 5)
    """
    with unchanged_numbers():
        once, again = _digest(dataset), _digest(dataset)
    return Identity(len(dataset), once if once == again else None)  # pyright: ignore[reportArgumentType]


def _digest(dataset: Any) -> str | None:
    """Return a digest of a ``TensorDataset``, or of sampled records of any other dataset.

    The result is None if a record cannot be converted to bytes.
    """
    digest, records = hashlib.sha256(), len(dataset)
    numbers: list[Any] = sorted({i * records // SAMPLE_SIZE for i in range(SAMPLE_SIZE if records else 0)})
    for number in [slice(None)] if type(dataset) is TensorDataset else numbers:
        for leaf in _parts(dataset[number]):
            try:
                plain = (
                    leaf.detach().cpu().contiguous().flatten().view(torch.uint8) if isinstance(leaf, Tensor) else leaf
                )
                content = np.asarray("nothing" if plain is None else plain)
            except (RuntimeError, TypeError, ValueError):
                return None
            if content.dtype.kind == "O":
                return None
            # Type, shape and length precede the contents, so that bytes cannot move between neighboring parts.
            form = f"{number} {getattr(leaf, 'dtype', type(leaf))} {np.shape(leaf)} {content.nbytes} "
            digest.update(form.encode())
            digest.update(content.tobytes())
    return digest.hexdigest()


def _parts(value: Any) -> list[Any]:
    """List the values in the nested containers and dataclasses of a record, in order."""
    if isinstance(value, Mapping):
        return [part for key in value for part in (key, *_parts(value[key]))]
    if isinstance(value, tuple | list):
        return [part for one in value for part in _parts(one)]
    return _parts(vars(value)) if is_dataclass(value) and not isinstance(value, type) else [value]


class Sidecar:
    """The file ``<ledger>.data``, which identifies a dataset and counts its releases.

    Attributes:
        data: The identity of the dataset of this run.
        entries: Other fields of the file, such as ``entries["ledger"]``, a random name of the ledger.
    """

    def __init__(self, ledger: str, data: Identity) -> None:
        self.ledger, self.data, self.identity = ledger, data, data
        self.path = Path(f"{Path(ledger).resolve()}.data")
        self.entries: dict[str, Any] = {"ledger": token_hex()}

    def check(self, account: Account) -> None:
        """Raise an error unless the file matches the dataset and the ledger's releases.

        ``account`` has the releases of the ledger. The error is :class:`InvalidParameterError`. It is also raised if
        the file is damaged, or missing although there are releases.
        """
        remedy = f"restore it from a backup, or {ANOTHER_LEDGER}"
        if self.path.exists():
            previous, releases = self._read(remedy)
            if account.spent < releases:
                expected = f"a ledger with the {releases} releases that {self.path.name} records"
                raise InvalidParameterError("ledger", f"{self.ledger} with {account.spent}", expected, remedy)
            if account.spent:
                # Without both digests only the numbers of records are compared.
                are_known = None not in (previous.digest, self.data.digest)
                what = "records with other contents or in another order" if are_known and previous != self.data else ""
                if previous.records != self.data.records:
                    what = f"{self.data.records} records instead of {previous.records}"
                if what:
                    expected = f"a loader of the data that {self.ledger} has releases of"
                    remedy = f"continue with that data, or {ANOTHER_LEDGER} for records in both data sets"
                    raise InvalidParameterError("data_loader", what, expected, remedy)
                self.identity = self.data if previous.digest is None else previous
        elif account.spent:
            actual = f"{self.ledger} without {self.path.name}"
            remedy = f"put the file back, or {ANOTHER_LEDGER}"
            raise InvalidParameterError("ledger", actual, "a ledger with the file that identifies its data", remedy)

    def keep(self, releases: int) -> None:
        """Write the identity of the dataset and the number of releases to the file.

        Raises :class:`UnsupportedError` if the file cannot be written.
        """
        text = json.dumps({"private": PRIVATE, "releases": releases, **asdict(self.identity), **self.entries}, indent=2)
        try:
            write_atomically(self.path, lambda file: file.write(text.encode() + b"\n"), mode=0o600)
        except OSError as error:
            reason = f"{self.path} could not be written ({error.strerror}), so nothing was released"
            raise UnsupportedError(f"{reason}. Free space or change its permissions, and continue.") from error

    def _read(self, remedy: str) -> tuple[Identity, int]:
        """Return the identity of the dataset and the number of releases in the file.

        Other fields are added to ``entries``. Raises :class:`InvalidParameterError` with ``remedy`` if the file is
        damaged.
        """
        try:
            entries = parse_json(read_bounded(self.path).decode())
            records, digest, releases, notice = (entries.pop(n) for n in ("records", "digest", "releases", "private"))
            if notice == PRIVATE and isinstance(records, int) and isinstance(releases, int):
                self.entries |= entries
                return Identity(records, digest), releases
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            pass
        expected = "a ledger whose data file is as privproj wrote it"
        raise InvalidParameterError("ledger", self.path, expected, remedy)


# name of the attribute that is the stamp; its value is plain data, so it is pickled with the tensor or module
STAMP = "_privproj_releases"


class Stamps:
    """The list of releases that a run attaches to its module and tensors as an attribute.

    ``account`` has the releases of earlier runs and of this run. ``name`` is the random name of the ledger, and
    ``path`` is its path. Both are None without a ledger.
    """

    def __init__(
        self, module: nn.Module, trained: list[Trained], optimizer: torch.optim.Optimizer, account: Account,
        name: str | None, path: str | None,
    ) -> None:  # fmt: skip
        self.module, self.trained, self.path, self.left = module, trained, path, False
        held = (("optimizer", p) for group in optimizer.param_groups for p in group["params"])
        self.parts = (*module.named_modules(), *module.named_parameters(), *held)
        self.stamp = {"ledger": name, "phases": [[entry, steps] for entry, steps in account.phases]}

    def earlier(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the stamps of earlier runs, each with the name of its module or tensor.

        A stamp lists the releases that the earlier run accounted for.
        """
        for name, part in self.parts:
            stamp = vars(part).get(STAMP)
            if stamp is not None and stamp is not self.stamp:
                yield name or "module", stamp

    def check(self) -> None:
        """Raise an error unless the run accounts for earlier releases on its tensors."""
        phases = self.stamp["phases"]
        for name, stamp in self.earlier():
            pairs = list(zip(stamp["phases"], phases, strict=False))
            held = len(pairs) == len(stamp["phases"]) and all(a[0] == b[0] and a[1] <= b[1] for a, b in pairs)
            if not held or stamp["ledger"] != self.stamp["ledger"]:
                remedy = "pass the same ledger=PATH to each call, or build the module again"
                expected = f"the ledger with the releases that {name} has from an earlier call of make_private"
                raise InvalidParameterError("ledger", self.path or "no ledger", expected, remedy)

    def count(self) -> None:
        """Add one release to the list of releases on the tensors of the run."""
        self.stamp["phases"][-1][1] += 1
        trained = {p for one in self.trained for p in one.parameters}
        around = (m for m in self.module.modules() if not trained.isdisjoint(m.parameters()))
        # The first call attaches the stamp to every trained tensor and to every module that contains one.
        # So it is known under another optimizer, head or wrapper, and after adapters are merged.
        for part in () if self.left else (*around, *trained):
            vars(part)[STAMP] = self.stamp
        self.left = True
