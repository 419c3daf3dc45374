"""Records: each is read and collated alone with random numbers of its own, and comes back as it was.

Records share a group only where they differ in nothing but the values of their tensors.
"""

import random
import sys
from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import pytest
from helpers import needs

from privproj.errors import InvalidParameterError

torch = needs("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset  # noqa: E402
from unit.training.helpers import clipped_sums, data, make_private, mlp, own, private, take_in  # noqa: E402

from privproj.training.per_record import group  # noqa: E402


class Listed(Dataset):
    """Records made by a function of their number."""

    def __init__(self, make, records=40):
        self.make, self.records = make, records

    def __len__(self):
        return self.records

    def __getitem__(self, number):
        return self.make(number)


def loader_of(dataset, module=None, **options):
    """The optimizer and the loader of a run over a data set, all records in each batch unless shown_values."""
    module = module or nn.Linear(6, 3)
    settings = {name: options.pop(name) for name in ("collate_fn", "num_workers", "pin_memory") if name in options}
    given = {"max_grad_norm": 1.0, "noise_multiplier": 1.0, "steps": 20, "sampling_rate": 1.0, **options}
    return make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=DataLoader(dataset, batch_size=4, **settings), **given,
    )[1:]  # fmt: skip


def rows_of(batch):
    """The records of a batch, as the loss function gets them."""
    return [g.build(tuple(c[i] for c in g.columns)) for g in batch._groups for i in range(g.records)]


# --- random numbers of single records ---------------------------------------------------------------------


def drawn(number):
    """A record with numbers drawn by torch, numpy and Python, in double precision so that none agree by chance."""
    own = float(torch.rand((), dtype=torch.float64))
    return torch.tensor([float(number), own, np.random.rand(), random.random()], dtype=torch.float64)


def numbers_of(batch):
    """What was drawn for each record of a batch."""
    return {int(row[0, 0]): tuple(row[0, 1:].tolist()) for row in rows_of(batch)}


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.full)])
def test_augmentation_of_a_record_is_its_own(workers):
    """The records that are read with it draw nothing that it could have drawn."""
    found = []
    for rate in (1.0, 0.5, 0.25):
        optimizer, loader = loader_of(
            Listed(drawn), sampling_rate=rate, insecure_seed=3, num_workers=workers, steps=2, noise_multiplier=1e-3
        )
        found.append(numbers_of(next(iter(loader))))
        optimizer.close()
    everyone, half, quarter = found
    assert len(everyone) == 40 > len(half) > len(quarter) > 0
    assert all(numbers == everyone[number] for part in (half, quarter) for number, numbers in part.items())
    values = [value for numbers in everyone.values() for value in numbers]
    assert len(set(values)) == len(values)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.full)])
def test_augmentation_is_fresh_in_each_step_and_secret(workers):
    """Neither the seed of the program nor an earlier step says what is drawn."""
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        optimizer, loader = loader_of(Listed(drawn), num_workers=workers, steps=3)
        for _ in range(2):
            for batch in loader:
                found.append(numbers_of(batch))
                take = own_loss(optimizer)
                optimizer.step_on(take, batch)
        optimizer.close()
    assert len(found) == 4
    values = [value for numbers in found for draws in numbers.values() for value in draws]
    assert len(set(values)) == len(values)


def own_loss(optimizer):
    """A loss of records that say their number."""
    module = optimizer._module
    return lambda record: module(F.pad(record.float(), (0, module.in_features - record.shape[-1])) / 40).square().sum()


def test_reading_records_leaves_the_numbers_of_the_program():
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    expected = float(torch.rand(())), np.random.rand(), random.random()
    _, loader = loader_of(Listed(drawn))
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    next(iter(loader))
    assert (float(torch.rand(())), np.random.rand(), random.random()) == expected


def test_order_within_a_batch_is_random():
    """The place of a record says nothing of which others there are."""
    found = []
    for dataset in (TensorDataset(torch.arange(40.0)[:, None]), Listed(lambda i: (torch.tensor([float(i)]),))):
        optimizer, loader = loader_of(dataset, nn.Linear(1, 1), steps=4)
        for _ in range(2):
            batch = next(iter(loader))
            found.append([float(row[0]) for row in rows_of(batch)])
            optimizer.step_on(lambda record: optimizer._module(record[0]).sum(), batch)  # noqa: B023
    assert all(sorted(order) == list(range(40)) for order in found)
    assert len({tuple(order) for order in found}) == 4


# --- settings of the loader ---------------------------------------------------------------------------------


def test_settings_of_the_loader_are_kept(monkeypatch):
    """Workers, prefetching, pinned memory and start-up functions are those of the user's loader."""
    import privproj.training.batches as batches

    seen = {}

    class Spy(DataLoader):
        def __init__(self, dataset, **options):
            seen.update(options)
            super().__init__(
                dataset,
                **{
                    **options,
                    **dict.fromkeys(("prefetch_factor", "multiprocessing_context")),
                    "num_workers": 0,
                    "timeout": 0,
                },
            )

    start = lambda worker: None  # noqa: E731
    module = nn.Linear(6, 3)
    loader = DataLoader(
        Listed(lambda i: (torch.ones(6), i % 3)), batch_size=4, num_workers=2, prefetch_factor=3, timeout=77,
        worker_init_fn=start, multiprocessing_context="fork",
    )  # fmt: skip
    _, optimizer, private_loader = make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1), data_loader=loader, max_grad_norm=1.0,
        noise_multiplier=1.0, steps=2,
    )  # fmt: skip
    monkeypatch.setattr(batches, "DataLoader", Spy)
    optimizer.step_on(own(module), next(iter(private_loader)))
    assert (seen["num_workers"], seen["prefetch_factor"], seen["timeout"]) == (2, 3, 77)
    assert seen["worker_init_fn"] is start and not seen["pin_memory"]
    assert seen["multiprocessing_context"] is loader.multiprocessing_context


def test_pin_memory_is_passed_on(monkeypatch):
    """Without a GPU torch pins nothing; a group says how it is pinned."""
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: pinned.append(tensor.shape) or tensor)
    (found,) = group([[torch.ones(1, 3), torch.zeros(1)] for _ in range(4)])
    again = found.pin_memory()
    assert pinned == [(4, 1, 3), (4, 1)] and again.records == 4 and again.build is found.build
    x, y = data()
    module = mlp()
    _, optimizer, loader = private(module, x, y)
    loader.settings["pin_memory"] = True
    optimizer.step_on(own(module), next(iter(loader)))


@pytest.mark.full
def test_records_with_workers_train_as_without():
    x, y = data(dtype=torch.float32)
    found = []
    for workers in (0, 2):
        torch.manual_seed(0)
        module = nn.Linear(6, 3)
        dataset = TensorDataset(x, y)
        optimizer, loader = loader_of(dataset, module, num_workers=workers, noise_multiplier=1e-12, steps=2)
        for batch in loader:
            optimizer.step_on(own(module), batch)
        optimizer.close()
        found.append(module.weight.detach().clone())
    assert torch.allclose(*found, rtol=1e-5, atol=1e-7)


def test_collate_fn_gets_one_record_and_its_error_is_named():
    sizes = []

    def join(rows):
        sizes.append(len(rows))
        return torch.stack([x for x, _ in rows]), torch.tensor([y for _, y in rows])

    _, loader = loader_of(Listed(lambda i: (torch.ones(6), i % 3)), collate_fn=join)
    next(iter(loader))
    assert set(sizes) == {1}

    def of_two(rows):
        return rows[1]

    _, loader = loader_of(Listed(lambda i: (torch.ones(6), i % 3)), collate_fn=of_two)
    with pytest.raises(InvalidParameterError, match=r"a loader whose collate_fn accepts one record, got IndexError"):
        next(iter(loader))


def test_subset_and_its_records_train():
    x, y = data(40, dtype=torch.float32)
    module = nn.Linear(6, 3)
    optimizer, loader = loader_of(Subset(TensorDataset(x, y), range(0, 40, 2)), module)
    optimizer.step_on(own(module), next(iter(loader)))
    assert optimizer.plan.dataset_size == 20 and optimizer.steps_done == 1


# --- structures -----------------------------------------------------------------------------------------------

Pair = namedtuple("Pair", ["x", "rest"])


class Kind(Enum):
    ONE = 1
    TWO = 2


class Encoding(UserDict):
    """A mapping with attributes and access by attribute, as tokenizers return it."""

    def __init__(self, data=None):
        super().__init__(data)
        self.text = None

    def __getattr__(self, name):
        if name == "data":
            raise AttributeError(name)
        return self.data[name]


@dataclass
class Sentence:
    ids: torch.Tensor
    length: int = 2
    more: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Frozen:
    ids: torch.Tensor


X = torch.arange(6.0).view(1, 6)
STRUCTURES = {
    "tensor": X, "list": [X, X + 1], "tuple": (X, (X, [X])), "dict": {"x": X, "y": {"z": X + 1}},
    "ordered dict": OrderedDict(a=X, b=X), "named tuple": Pair(X, [X]),
    "user dict": Encoding({"input_ids": X, "label": X}), "dataclass": Sentence(X, 3, {"mask": X > 2}),
    "frozen dataclass": Frozen(X),
    "plain values": [X, 1, 2.5, "text", b"bytes", True, None, 1j, Kind.ONE, np.float32(2.0)],
    "integers and flags": {"ids": X.long(), "mask": X > 2, "half": X.half()}, "empty parts": [X, [], {}, ()],
    "types": (X, torch.float32, torch.device("cpu")), "empty tensor": [X, torch.zeros(1, 0, 4)],
}  # fmt: skip


def equal(one, other):
    """Whether two records are the same in types, keys, values and tensors."""
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and bool((one == other).all())
    if isinstance(one, dict | UserDict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(equal, one, other))
    return equal(vars(one), vars(other)) if isinstance(one, Sentence | Frozen) else one == other


@pytest.mark.parametrize("name", STRUCTURES)
def test_record_comes_back_as_it_was(name):
    record = STRUCTURES[name]
    (found,) = group([record, record])
    assert found.records == 2
    for row in range(2):
        assert equal(found.build(tuple(column[row] for column in found.columns)), record)


def test_batch_encoding_of_transformers_comes_back():
    encoding = needs("transformers").BatchEncoding
    record = encoding({"input_ids": X.long(), "attention_mask": X.long()})
    (found,) = group([record, record])
    again = found.build(tuple(column[0] for column in found.columns))
    assert type(again) is encoding and torch.equal(again.input_ids, X.long())
    assert torch.equal(encoding(dict(again))["attention_mask"], X.long())


def test_values_that_differ_never_share_a_group():
    """Python code sees such a value: it must be that of the record itself."""
    values = [
        0, 1, 0.0, -0.0, 1.0, True, False, None, "a", "b", b"a", 1j, Kind.ONE, Kind.TWO, np.float32(1.0),
        np.float64(1.0), np.int64(1), 0.1 + 0.2, 0.3, float("nan"), "1", torch.float32, torch.float64, 10**30,
        10**30 + 1,
    ]  # fmt: skip
    records = [[X, value] for value in values] * 2
    groups = group(records)
    assert len(groups) == len(values)
    for found, value in zip(groups, values, strict=True):
        again = found.build(tuple(column[0] for column in found.columns))[1]
        assert found.records == 2 and type(again) is type(value) and repr(again) == repr(value)


@pytest.mark.parametrize(
    "other",
    [
        [X], [X, X.double()], [X, X[:, :5]], (X, X), [X, X, X], [X, [X]], {"x": X, "y": X}, [X, None], [X, X.long()],
    ],
)  # fmt: skip
def test_other_structures_shapes_and_types_form_other_groups(other):
    assert [found.records for found in group([[X, X], other, [X, X + 1]])] == [2, 1]


def test_keys_and_classes_distinguish_records():
    records = [{"x": X}, {"y": X}, OrderedDict(x=X), UserDict(x=X), Encoding({"x": X}), {1: X}, {"1": X}, Frozen(X)]
    assert len(group(records)) == len(records)


def test_group_keeps_the_order_of_its_records():
    (found,) = group([[X + i, torch.tensor([i])] for i in range(5)])
    assert found.columns[1].flatten().tolist() == [0, 1, 2, 3, 4]


class Attributed(dict):
    """A dictionary whose entries are attributes too, as several packages have it."""

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        self[name] = value


class Note(str):
    """A text with an attribute."""


@dataclass(slots=True)
class Slotted:
    ids: torch.Tensor


@dataclass
class Labeled(Slotted):
    label: int


def test_attributes_of_one_record_never_reach_another():
    """A group would be rebuilt from its first record, attributes included."""
    attributed, note = Attributed(), Note("text")
    attributed.x, note.length = X, 4
    for value in (attributed, note, Slotted(X), Labeled(X, 1), [attributed]):
        with pytest.raises(
            InvalidParameterError, match=r"a loader of records made of .*Convert other values in collate_fn"
        ):
            group([[X, value]])


@pytest.mark.parametrize("value", [object(), {1, 2}, np.zeros(3), lambda: None, X.to_sparse(), range(3), iter([X])])
def test_other_objects_are_rejected_with_a_remedy(value):
    """What they hold could be kept by the program, and reach another record."""
    with pytest.raises(
        InvalidParameterError, match=r"a loader of records made of .*Convert other values in collate_fn"
    ):
        group([[X, value]])


def test_tensors_of_records_are_plain_and_without_gradient():
    features = nn.Parameter(torch.ones(1, 3))
    for value in (features, features * 2):
        (found,) = group([[value], [value]])
        assert not found.columns[0].requires_grad and type(found.columns[0]) is torch.Tensor


def test_loss_gets_the_structure_of_the_loader():
    """A dictionary with text, numbers and tensors of two lengths, through a whole step."""
    seen = set()

    def record(number):
        length = 3 + number % 2
        return {"x": torch.full((length,), float(number + 1)), "length": length, "name": f"even {number % 2}"}

    def join(rows):
        (row,) = rows
        return {"x": row["x"][None], "length": row["length"], "meta": Pair(row["name"], [row["length"]])}

    module = nn.Linear(1, 1)
    optimizer, loader = loader_of(Listed(record, 8), module, collate_fn=join)

    def loss(batch):
        seen.add((batch["length"], batch["meta"].x, tuple(batch["x"].shape)))
        return module(batch["x"].mean(1, keepdim=True) / batch["length"]).sum()

    optimizer.step_on(loss, next(iter(loader)))
    assert seen == {(3, "even 0", (1, 3)), (4, "even 1", (1, 4))}


def test_labels_as_plain_numbers_train():
    """They are shown_values to Python, and divide the batch."""
    module = nn.Linear(6, 3)
    records = [[X * 0 + i, i % 3] for i in range(6)]
    _, optimizer, _ = private(module, torch.zeros(6), torch.zeros(6))
    take_in(optimizer, lambda r: F.cross_entropy(module(r[0]), torch.tensor([r[1]])), records)
    found = clipped_sums(optimizer)
    optimizer._turn.batch = None
    optimizer._noisy_sum.forget()
    tensors = [[x, torch.tensor([label])] for x, label in records]
    take_in(optimizer, lambda r: F.cross_entropy(module(r[0]), r[1]), tensors)
    assert torch.allclose(found, clipped_sums(optimizer), rtol=1e-5, atol=1e-6)


def test_loader_without_transformers_does_not_import_them():
    assert "transformers" not in vars(sys.modules["privproj.training.per_record"])
