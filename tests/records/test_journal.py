"""A journal cut anywhere is continued, and another grid's is refused."""

import random

import pytest
from records.grids import GRID

import privproj
from privproj.records import journal
from privproj.records.sweep import grid_from, run_sweep


def rows_at(grid, *numbers):
    return grid.work()([grid.values(number) for number in numbers])


def test_a_journal_of_another_grid_is_refused_and_kept(tmp_path):
    out = tmp_path / "out.csv"
    book = journal.Journal(f"{out}.journal", grid_from(GRID).title())
    book.add([0], rows_at(grid_from(GRID), 0))
    book.close()
    before = (tmp_path / "out.csv.journal").read_bytes()
    with pytest.raises(privproj.InvalidParameter, match="this very question"):
        run_sweep(grid_from({**GRID, "epsilon": 2.0}), out)
    assert (tmp_path / "out.csv.journal").read_bytes() == before


def test_a_journal_cut_anywhere_gives_the_same_table(tmp_path):
    out, kept = tmp_path / "out.csv", tmp_path / "out.csv.journal"
    grid = grid_from(GRID)
    run_sweep(grid, out)
    whole = out.read_bytes()
    book = journal.Journal(kept, grid.title())
    for number in random.Random(1).sample(range(len(grid)), len(grid)):
        book.add([number], rows_at(grid, number))
    book.close()
    content = kept.read_bytes()
    random.seed(3)
    for cut in (0, 1, len(content), *random.sample(range(len(content)), 25)):
        out.unlink(missing_ok=True)
        kept.write_bytes(content[:cut])
        run_sweep(grid, out)
        assert out.read_bytes() == whole


def test_only_what_is_missing_is_asked(tmp_path):
    grid, calls = grid_from(GRID), []

    def counting(work, batches):
        for batch in batches:
            calls.extend(number for number, _ in batch)
            yield [number for number, _ in batch], work([task for _, task in batch])

    book = journal.Journal(tmp_path / "out.csv.journal", grid.title())
    book.add([3, 7], rows_at(grid, 3, 7))
    book.close()
    run_sweep(grid, tmp_path / "out.csv", counting)
    assert sorted(calls) == [i for i in range(len(grid)) if i not in (3, 7)]


def test_two_sweeps_cannot_share_a_journal(tmp_path):
    book = journal.Journal(tmp_path / "out.csv.journal", grid_from(GRID).title())
    with pytest.raises(privproj.InvalidParameter, match="no other process"):
        run_sweep(grid_from(GRID), tmp_path / "out.csv")
    book.close()


def test_rows_come_in_the_order_of_their_numbers_and_once(tmp_path):
    book = journal.Journal(tmp_path / "journal", {"of": "numbers"})
    rng = random.Random(2)
    for start in rng.sample(range(0, 100, 10), 10):
        book.add(list(range(start, start + 10)), [f"row,{i}" for i in range(start, start + 10)])
    book.close()
    again = journal.Journal(tmp_path / "journal", {"of": "numbers"})
    assert list(again.rows()) == [f"row,{i}" for i in range(100)] and list(again.missing(103)) == [100, 101, 102]
    assert len(again.runs) <= 10
    again.close()
