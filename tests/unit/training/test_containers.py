"""Batches of any form are cut by records and moved, and keep their form."""

from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass

import pytest
from helpers import needs

torch = needs("torch", "opacus")

from privproj.training.containers import has_rows, leaves, move, take  # noqa: E402

Point = namedtuple("Point", "x y")


@dataclass
class Record:
    x: object
    name: str = "kept"


SHARED = torch.zeros(9, 2)


def forms(x, y):
    """The records of one batch in every form; the words and boxes of a record are told by its ``y``."""
    words, boxes = [str(int(i)) for i in y], [{"boxes": torch.full((int(i) + 9, 4), i)} for i in y]
    return (
        x, [x, y], (x, y), {"x": x, "y": y}, OrderedDict(x=x, more=[{"y": y}]), UserDict({"x": x}), Point(x, y),
        Record([x, y]), (x, words), (x, boxes), (x, None, 3, "word", torch.tensor(1.0), SHARED),
    )  # fmt: skip


def plain(batch):
    """A batch as plain data with its types."""
    if isinstance(batch, torch.Tensor):
        return batch.tolist()
    if isinstance(batch, Record):
        return "record", batch.name, plain(batch.x)
    if hasattr(batch, "items"):
        return type(batch), [(key, plain(part)) for key, part in batch.items()]
    return (type(batch), [plain(part) for part in batch]) if isinstance(batch, list | tuple) else batch


@pytest.mark.parametrize("records", [1, 2, 3, 6])
def test_part_of_a_batch_is_the_batch_of_its_records(records):
    x, y = torch.arange(2.0 * records).view(records, 2), torch.arange(records)
    cuts = [slice(0, i) for i in range(records + 1)] + [slice(i, records) for i in range(records + 1)]
    for rows in (*cuts, torch.tensor([records - 1, 0])):
        pairs = zip(forms(torch.zeros(1, 2), torch.arange(1)), forms(torch.zeros(2, 2), torch.arange(2)), strict=True)
        for batch, wanted, samples in zip(forms(x, y), forms(x[rows], y[rows]), pairs, strict=True):
            assert plain(take(batch, rows, records, samples)) == plain(wanted)


def test_leaves_are_all_tensors_in_their_order():
    x, y = torch.zeros(2, 2), torch.arange(2)
    assert [len(leaves(batch)) for batch in forms(x, y)] == [1, 2, 2, 2, 2, 1, 2, 2, 1, 3, 3]
    assert leaves(forms(x, y)[6])[1] is y


def test_lists_of_records_are_cut_and_what_is_shared_stays():
    x = torch.zeros(3, 2)
    assert take((x, ["a", "b", "c"]), slice(1, 3), 3)[1] == ["b", "c"]
    assert take((x, ["a", "b", "c"]), torch.tensor([2, 0]), 3)[1] == ["c", "a"]
    assert take((x, ["a", "b"], torch.ones(2)), slice(0, 1), 3)[1:][0] == ["a", "b"]


def test_list_of_images_is_split_by_record():
    pictures = [torch.full((3, 4, 4), float(i)) for i in range(3)]
    part = take(pictures, slice(1, 3), 3, (pictures[:1], pictures[:2]))
    assert len(part) == 2 and part[0] is pictures[1] and part[1] is pictures[2]


def test_table_with_a_default_is_rebuilt_with_it():
    part = take(defaultdict(list, x=torch.arange(3)), slice(0, 1), 3)
    assert type(part) is defaultdict and part["x"].tolist() == [0] and part["other"] == []


def test_all_tensors_move():
    x, y = torch.zeros(3, 2), torch.zeros(3)
    for batch in forms(x, y):
        moved = move(batch, torch.device("meta"))
        assert type(moved) is type(batch) and all(leaf.device.type == "meta" for leaf in leaves(moved))


@pytest.mark.parametrize("records", range(1, 7))
def test_words_and_arrays_are_cut_with_the_tensors_beside_them(records):
    x, words = torch.arange(2.0 * records).view(records, 2), [f"word {i}" for i in range(records)]
    arrays = x.numpy()
    # default_collate makes such a list of records (word, number), and tuple(zip(*records)) such tuples.
    for batch in ([tuple(words), x], (tuple(words), tuple(range(records)), x), {"x": arrays, "words": words}):
        for rows in (slice(0, 1), torch.tensor([records - 1])):
            first = int(torch.arange(records)[rows][0])
            part = take(batch, rows, records)
            parts = part.values() if isinstance(part, dict) else part
            assert len(parts) == len(batch) and all(len(column) == 1 for column in parts)
            for column in parts:
                if isinstance(column[0], str):
                    assert column[0] == words[first]
                elif not isinstance(column[0], int):
                    assert list(column[0]) == list(arrays[first])


def test_as_many_columns_as_records_are_not_taken_for_records():
    columns = [("a", "b", "c"), torch.zeros(3, 2), (0, 1, 2)]
    assert [len(column) for column in take(columns, slice(0, 2), 3)] == [2, 2, 2]
    shared = [torch.zeros(3, 2), torch.ones(5, 5, dtype=torch.bool), torch.arange(3)]
    assert [len(column) for column in take(shared, slice(0, 2), 3)] == [2, 5, 2]
    records = [("a", 0, torch.zeros(4)), ("b", 1, torch.zeros(4)), ("c", 2, torch.zeros(4))]
    assert take(records, slice(1, 2), 3) == records[1:2]


def test_batch_without_rows_is_known():
    assert has_rows({"x": torch.zeros(3, 2), "n": 3}, 3) and has_rows(["a", "b", "c"], 3)
    assert not has_rows(object(), 3) and not has_rows({"x": torch.zeros(2)}, 3)


@pytest.mark.parametrize("records", range(1, 5))
def test_list_of_columns_is_not_split_by_record(records):
    """Three records with three channels each look like three columns of three records."""
    pictures = lambda count: [torch.full((3, 4, 4), float(i)) for i in range(count)]  # noqa: E731
    columns = lambda count: [torch.arange(float(count)).expand(3, count).T for _ in range(3)]  # noqa: E731
    for form in (pictures, columns):
        part = take(form(records), slice(records - 1, records), records, (form(1), form(2)))
        wanted = form(records)[-1:] if form is pictures else [column[-1:] for column in form(records)]
        assert plain(part) == plain(wanted)
