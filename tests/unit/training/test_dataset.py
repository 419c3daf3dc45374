"""Every record once, and the same data whenever a ledger is gone on with."""

import json
import os
import random
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from helpers import needs

from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.io.ledger import Account, read_ledger

torch = needs("torch", "opacus")

from torch.utils.data import ConcatDataset, DataLoader, Dataset, StackDataset, Subset, TensorDataset, random_split  # noqa: E402
from unit.training.helpers import data, make_private, mlp, own, private  # noqa: E402

from privproj.training.dataset import Identity, Sidecar, check_distinct, identity  # noqa: E402


def tensors(records=40, seed=0):
    return TensorDataset(*data(records=records, seed=seed))


class Listed(Dataset):
    """Records from a list, with what a program does to each when it is read."""

    def __init__(self, records, change=lambda record: record):
        self.records, self.change = records, change

    def __len__(self):
        return len(self.records)

    def __getitem__(self, number):
        return self.change(self.records[number])


class Person:
    """A record of a class of one's own."""


ANN = Person()


class Made(list):
    """A list that makes a record of what it holds whenever it is read, so that what it gives has no address."""

    def __getitem__(self, number):
        return super().__getitem__(number)[0].clone(), 0


# --- every record once --------------------------------------------------------------------------------

D = tensors()
X, Y = D.tensors
TEXTS = Listed([{"text": f"record {i}", "label": i % 2} for i in range(150)])


@pytest.mark.parametrize(
    "repeated",
    [
        ConcatDataset([D, D]),
        ConcatDataset([ConcatDataset([tensors(5), D]), D]),
        ConcatDataset([D, TensorDataset(X, Y)]),
        ConcatDataset([TensorDataset(X[:25], Y[:25]), TensorDataset(X[20:], Y[20:])]),
        ConcatDataset([Subset(D, range(20)), Subset(D, [19, 30])]),
        Subset(D, [1, 2, -39]),
        Subset(Subset(D, [5, 5, 6]), [0, 1]),
        Subset(ConcatDataset([D, D]), [3, 43]),
        ConcatDataset([Subset(TEXTS, torch.arange(9)), TEXTS]),
        [(X[i], 0) for i in range(9)][:5] * 2,
        Subset([X[i] for i in range(4)] * 2, [1, 2, 5]),
        [ANN, Person(), ANN],
        [X.numpy()] * 2,
        StackDataset(Subset(D, [4, 4]), TensorDataset(X[:2])),
        StackDataset(x=Subset(D, [4, 4]), y=Subset(D, [4, 4])),
    ],
)
def test_one_record_twice_is_rejected(repeated):
    with pytest.raises(InvalidParameterError, match=r"got the same record 2 times.*Remove the duplicates"):
        check_distinct(repeated)


def test_make_private_rejects_one_record_twice():
    module = mlp()
    with pytest.raises(InvalidParameterError, match="every record once"):
        make_private(
            module=module, optimizer=torch.optim.SGD(module.parameters(), lr=1.0), algorithm="dp-sgd", steps=1,
            data_loader=DataLoader(ConcatDataset([D, D]), batch_size=4), max_grad_norm=1.0, noise_multiplier=1.0,
        )  # fmt: skip


def test_records_that_repeat_no_one_are_taken():
    for dataset in ([X[0].numpy(), X[1].numpy()], ["yes", "yes", None, None], [int, int], StackDataset(D, D)):
        check_distinct(dataset)


def test_indices_that_change_are_looked_at_with_every_pass():
    """Hard examples more often from the second pass on: one record was in the sum 31 times."""
    module, subset = mlp(), Subset(D, list(range(40)))
    _, optimizer, loader = make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=1.0), steps=3, sampling_rate=1.0,
        data_loader=DataLoader(subset, batch_size=4), max_grad_norm=1.0, noise_multiplier=1.0,
    )  # fmt: skip
    for batch in loader:
        optimizer.step_on(own(module), batch)
    subset.indices = [39 - index for index in subset.indices]
    for batch in loader:
        optimizer.step_on(own(module), batch)
    subset.indices.append(39)
    with pytest.raises(InvalidParameterError, match=r"must be the loader of the 40 records .*, got 41 records"):
        next(iter(loader))
    subset.indices.pop()
    subset.indices[:30] = [7] * 30
    with pytest.raises(InvalidParameterError, match="the same record 31 times"):
        next(iter(loader))


@pytest.mark.parametrize(
    "plain",
    [
        D,
        TEXTS,
        ConcatDataset(random_split(D, [30, 10])),
        ConcatDataset([D, tensors(7, seed=1)]),
        TensorDataset(torch.cat([X, X[:39]])),
        TensorDataset(torch.ones(100, 8), torch.zeros(100)),
        TensorDataset(torch.ones(100, 8), torch.arange(100) % 10),
        TensorDataset(torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]]).repeat(25, 1)),
        TensorDataset(torch.ones(1, 4).expand(100, 4), torch.arange(100)),
        TensorDataset(torch.arange(4).repeat_interleave(torch.tensor([2, 4, 30, 64]))),
        Listed([object() for _ in range(8)]),
        Listed(["same"] * 100),
        Made([(X[i], 0) for i in range(40)]),
        TensorDataset(torch.zeros(0, 3)),
        TensorDataset(torch.zeros(6, 0), torch.arange(6)),
    ],
)
def test_plain_data_is_taken_in_silence(plain):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_distinct(plain)


# --- the same data --------------------------------------------------------------------------------------


@dataclass
class Sentence:
    ids: list
    label: int


@pytest.mark.parametrize(
    "record",
    [
        lambda i: torch.full((3,), float(i)),
        lambda i: (torch.tensor([i, 2]), i % 3),
        lambda i: {"ids": [i, i + 1, 7], "mask": np.ones(3, dtype=bool)},
        lambda i: f"record {i}",
        lambda i: Sentence([i] * 4, 1),
        lambda i: [torch.zeros(2, dtype=torch.bfloat16) + i, None],
        lambda i: np.float32(i),
    ],
)
def test_dataset_identity_distinguishes_data(record):
    build = lambda numbers: Listed([record(i) for i in numbers])  # noqa: E731
    known = identity(build(range(50)))
    assert known == identity(build(range(50))) and known.digest
    for others in ([*range(49), 63], range(49, -1, -1)):
        assert identity(build(others)).records == 50 and identity(build(others)) != known
    assert identity(build(range(51))).records == 51


def test_one_bit_of_a_tensor_is_another_identity():
    known = identity(D)
    assert known == identity(TensorDataset(X.clone(), Y.clone()))
    other = X.clone()
    other[17, 3] = torch.nextafter(other[17, 3], torch.tensor(1e9, dtype=other.dtype))
    assert identity(TensorDataset(other, Y)) != known


def test_random_records_have_no_digest():
    """A flip of a coin for each record: the same twice for half of them, so there is no digest at all."""

    def flip(record):
        return {"picture": torch.rand(1) < 0.5, "noise": random.random() + np.random.rand(), "label": record}

    for seed in range(5):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        expected = Listed([0], flip)[0]
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        found = identity(Listed(list(range(100)), flip))
        check_distinct(Listed(list(range(100)), flip))
        assert Listed([0], flip)[0] == expected
        assert (found.records, found.digest) == (100, None)


def test_what_cannot_be_read_as_bytes_is_counted_only():
    found = identity(Listed([(object(), i) for i in range(9)]))
    assert (found.records, found.digest) == (9, None)


# --- the file beside the ledger -------------------------------------------------------------------------


@pytest.fixture
def book(tmp_path):
    return str(tmp_path / "ledger.jsonl")


def run(book, x, y, releases, **options):
    """So many releases of a private run with this ledger."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module, optimizer, loader = private(mlp(), x, y, ledger=book, **{"steps": 6, **options})
    for _ in range(releases):
        for batch in loader:
            optimizer.backward_on(own(module), batch)
            optimizer.step()
    optimizer.close()
    return read_ledger(book)


def test_ledger_continues_with_its_own_data_only(book):
    x, y = data(records=40)
    assert run(book, x, y, 2).spent == 2
    before = [Path(name).read_bytes() for name in (book, f"{book}.data")]
    other = x.clone()
    other[3, 1] += 1.0
    for (more_x, more_y), condition in (
        ((x[:30], y[:30]), "30 records instead of 40"),
        ((other, y), "other contents"),
        ((x.flip(0), y.flip(0)), "another order"),
        ((x, 2 - y), "other contents"),
        ((x, y.flip(0)), "another order"),
    ):
        for options in ({}, {"noise_multiplier": 3.0}):
            with pytest.raises(
                InvalidParameterError, match=rf"{condition}.*another ledger and compose both"
            ) as rejected:
                run(book, more_x, more_y, 1, **options)
            assert "\n" not in str(rejected.value)
    assert [Path(name).read_bytes() for name in (book, f"{book}.data")] == before
    assert run(book, x, y, 2).spent == 4
    assert len(run(book, x, y, 1, noise_multiplier=3.0).phases) == 2


def test_ledger_that_lost_releases_is_rejected(book):
    """Lines cut off at the end look like an earlier kill. What it had when it was closed is known a second time."""
    x, y = data(records=40)
    run(book, x, y, 3)
    run(book, x, y, 1)
    lines = Path(book).read_bytes().splitlines(keepends=True)
    for kept in (lines[:-1], lines[:-2], lines[:2], lines[:1], []):
        Path(book).write_bytes(b"".join(kept))
        with pytest.raises(InvalidParameterError, match=r"4 releases that .*\.data records, got .* with \d.*backup"):
            run(book, x, y, 1)
        assert Path(book).read_bytes() == b"".join(kept)
    Path(book).unlink()
    with pytest.raises(InvalidParameterError, match=r"4 releases that .*\.data records"):
        run(book, x, y, 1)
    Path(book).write_bytes(b"".join(lines))
    assert run(book, x, y, 1).spent == 5


def test_identity_is_private_and_not_in_the_ledger(book, monkeypatch):
    monkeypatch.setattr(os, "umask", lambda mask: 0)
    x, y = data(records=40)
    run(book, x, y, 1)
    text = Path(f"{book}.data").read_text()
    found = json.loads(text)
    assert stat.S_IMODE(os.stat(f"{book}.data").st_mode) == 0o600
    assert "do not publish" in text.splitlines()[1] and found["records"] == 40
    assert len(found["digest"]) == 64 and found["digest"][:12] not in Path(book).read_text()


def test_identity_is_on_the_disk_before_the_first_release(book):
    _, optimizer, _ = private(mlp(), *data(records=40), ledger=book)
    assert read_ledger(book).spent == 0 and os.path.exists(f"{book}.data")
    optimizer.close()


def test_ledger_without_a_release_is_of_no_data_yet(book):
    run(book, *data(records=40), 0)
    run(book, *data(records=30), 1)
    with pytest.raises(InvalidParameterError, match="40 records instead of 30"):
        run(book, *data(records=40), 1)


def test_ledger_that_lost_the_identity_of_its_data_is_rejected(book):
    x, y = data(records=40)
    run(book, x, y, 1)
    os.remove(f"{book}.data")
    with pytest.raises(InvalidParameterError, match=r"without ledger\.jsonl\.data\. Put the file back"):
        run(book, x, y, 1)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[1]",
        '{"records": "40", "releases": 1, "digest": "a"}',
        '{"records": 4, "releases": 1, "digests": {}}',
    ],
)
def test_damaged_identity_is_rejected(book, text):
    run(book, *data(records=40), 1)
    Path(f"{book}.data").write_text(text)
    with pytest.raises(InvalidParameterError, match="Restore it from a backup"):
        run(book, *data(records=40), 1)


def test_missing_digest_is_not_compared(book):
    spent = Account(phases=(({"steps": 3}, 1),))
    starts = (None, Account()), ("x", spent), (None, spent), ("x", spent)
    for digest, account in starts:
        sidecar = Sidecar(book, Identity(5, digest))
        sidecar.check(account)
        sidecar.keep(account.spent)
    for other in (Identity(5, "z"), Identity(6, "x")):
        with pytest.raises(InvalidParameterError, match="has releases of"):
            Sidecar(book, other).check(spent)


def test_ledger_has_begun_even_if_not_closed(book):
    x, y = data(records=40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module, optimizer, loader = private(mlp(), x, y, ledger=book, steps=6)
    optimizer.step_on(own(module), next(iter(loader)))
    assert json.loads(Path(f"{book}.data").read_text())["releases"] == 1
    os.close(optimizer._spending.ledger.file)  # as a kill would
    optimizer._spending.ledger.file = -1
    os.remove(book)
    with pytest.raises(InvalidParameterError, match=r"1 releases that .*\.data records"):
        run(book, x, y, 1)


def test_ledger_under_another_name_has_the_same_data(book, tmp_path):
    x, y = data(records=40)
    for name in ("one", "two"):
        (tmp_path / name).symlink_to(book)
    assert run(str(tmp_path / "one"), x, y, 1).spent == 1
    with pytest.raises(InvalidParameterError, match="30 records instead of 40"):
        run(str(tmp_path / "two"), x[:30], y[:30], 1)
    assert run(str(tmp_path / "two"), x, y, 1).spent == 2
    os.link(book, tmp_path / "three")
    with pytest.raises(InvalidParameterError, match=r"without three\.data\. Put the file back"):
        run(str(tmp_path / "three"), x, y, 1)


def test_full_disk_stops_before_a_release(book, monkeypatch):
    def broken(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(
        UnsupportedError, match=r"could not be written \(No space left on device\), so nothing was released"
    ):
        run(book, *data(records=40), 1)
    monkeypatch.undo()
    assert run(book, *data(records=40), 1).spent == 1
