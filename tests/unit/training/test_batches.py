"""Batches and the relation that goes with them."""

import json
import math
import os
import shutil
import warnings

import numpy as np
import pytest
from helpers import needs
from scipy import stats

import privproj
from privproj.errors import InvalidParameterError, UnsupportedError
from privproj.io.ledger import read_ledger

torch = needs("torch", "opacus")

from torch.utils.data import DataLoader, Dataset, SequentialSampler, TensorDataset, WeightedRandomSampler  # noqa: E402
from unit.training.helpers import data, make_private, mlp, own, private  # noqa: E402

from privproj.training import Batch  # noqa: E402
from privproj.training.generators import pick_batches  # noqa: E402
from privproj.training.private import LostEpoch, ResumedLedger  # noqa: E402

RECORDS, BATCHES, EPOCHS = 80, 4, 3
"""So many records that a batch without one, which is a release of its own, has a chance below 1e-9."""
IN_BINS = {
    "sampling": "balls-in-bins", "batches": BATCHES, "epochs": EPOCHS, "steps": None, "sampling_rate": None,
    "noise_multiplier": 2.0,
}  # fmt: skip

# --- accounting ---------------------------------------------------------------------------------------


def test_fixed_size_batches_go_with_replace():
    x, y = data(records=40)
    _, optimizer, loader = private(mlp(), x, y, sampling="fixed", sampling_rate=0.25, noise_multiplier=1.0)
    assert optimizer.plan.relation == "replace" and {len(b) for b in loader.sampler(20)} == {10}
    assert all(len(set(b)) == 10 for b in loader.sampler(20))
    with pytest.raises(UnsupportedError, match="not supported under relation=add-remove"):
        private(mlp(), x, y, sampling="fixed", sampling_rate=0.25, relation="add-remove")


# --- balls in bins ------------------------------------------------------------------------------------


def in_bins(**more):
    """A run of balls-in-bins over records that say their own number."""
    x = torch.eye(RECORDS, dtype=torch.float64)
    module = mlp(width=RECORDS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResumedLedger)
        return private(module, x, torch.arange(RECORDS) % 3, **{**IN_BINS, **more})


def numbers(batch):
    """The numbers of the records of a batch of :func:`in_bins`."""
    return [number for group in batch._groups for number in group.columns[0][:, 0].argmax(1).tolist()]


def train(run, most=math.inf):
    """Make so many releases at most; the position and the record numbers of each batch with a record."""
    module, optimizer, loader = run
    seen, first = {}, optimizer.steps_done
    while min(optimizer.plan.steps, first + most) > optimizer.steps_done:
        for batch in loader:
            seen[optimizer.steps_done] = numbers(batch)
            optimizer.backward_on(own(module), batch)
            optimizer.step()
            if optimizer.steps_done >= first + most:
                break
    optimizer.close()
    return seen


def records_of(seen, epoch):
    """All records of the batches of an epoch, each as often as it is there."""
    return sorted(record for position, batch in seen.items() if position // BATCHES == epoch for record in batch)


def test_balls_in_bins_puts_each_record_in_a_fresh_batch():
    seen = train(in_bins())
    assert all(records_of(seen, epoch) == list(range(RECORDS)) for epoch in range(EPOCHS))
    epochs = [[seen.get(BATCHES * epoch + i) for i in range(BATCHES)] for epoch in range(EPOCHS)]
    assert len({json.dumps(epoch) for epoch in epochs}) == EPOCHS


def test_batches_of_an_epoch_are_independent_picks():
    loader = in_bins(epochs=1500, insecure_seed=3)[2]
    batches = list(loader.sampler(1500 * BATCHES))
    where = np.empty((1500, RECORDS), int)
    for position, batch in enumerate(batches):
        where[position // BATCHES, batch] = position % BATCHES
    sizes = np.array([len(batch) for batch in batches])
    distribution = stats.binom(RECORDS, 1.0 / BATCHES)
    assert np.mean(sizes) == distribution.mean() and np.std(sizes) == pytest.approx(distribution.std(), rel=0.05)
    # One epoch after another, and one record beside another.
    for one, other in ((where[:-1], where[1:]), (where[:, :-1], where[:, 1:])):
        table = np.zeros((BATCHES, BATCHES))
        np.add.at(table, (one.ravel(), other.ravel()), 1)
        assert stats.chisquare(table.ravel()).pvalue > 1e-3


def test_divisor_is_public_and_an_empty_batch_is_a_release():
    _, optimizer, _ = run = in_bins(batches=4 * RECORDS, epochs=1)
    assert optimizer.plan.expected_batch == 0.25
    seen = train(run)
    assert optimizer.steps_done == 4 * RECORDS and len(seen) < 4 * RECORDS
    assert sorted(record for batch in seen.values() for record in batch) == list(range(RECORDS))


def known(epochs):
    """The accountant's own epsilon of so many epochs."""
    run = {"sampling": "balls-in-bins", "batches": BATCHES, "steps": epochs}
    return privproj.epsilon(privproj.Gaussian(noise_multiplier=2.0), delta=1e-5, **run).value


def test_epoch_that_was_begun_is_accounted_as_a_whole_one(tmp_path):
    _, optimizer, _ = run = in_bins(ledger=str(tmp_path / "book"))
    train(run, BATCHES + 1)
    account = read_ledger(tmp_path / "book")
    assert (account.spent, account.left) == (BATCHES + 1, BATCHES * (EPOCHS - 1) - 1)
    assert optimizer.epsilon(1e-5).value == account.epsilon(1e-5).value == known(2)
    assert account.planned.epsilon(1e-5).value == known(EPOCHS) > known(2)
    assert "made 5 of 12 planned steps" in account.stopped[0]
    train(in_bins(ledger=str(tmp_path / "book")))
    assert read_ledger(tmp_path / "book").stopped == ()


@pytest.mark.full
def test_calibrated_noise_meets_the_target_for_the_epochs():
    plan = in_bins(noise_multiplier=None, epsilon=2.0, delta=1e-5)[1].plan
    query = {"sampling": "balls-in-bins", "batches": BATCHES, "steps": EPOCHS}
    found = privproj.sigma(privproj.Gaussian(), epsilon=2.0, delta=1e-5, **query).value
    assert plan.mechanism.noise_multiplier == found
    assert plan.steps == BATCHES * EPOCHS


@pytest.mark.parametrize("stops", [(1, 3, 2), (BATCHES, 1), (BATCHES - 1, BATCHES)])
def test_run_that_is_gone_on_with_is_in_the_same_epoch(tmp_path, stops):
    """Otherwise a record could be in two batches of an epoch that is accounted once."""
    book, seen = str(tmp_path / "book"), {}
    for most in (*stops, math.inf):
        part = train(in_bins(ledger=book), most)
        assert not part.keys() & seen.keys()
        seen |= part
    assert all(records_of(seen, epoch) == list(range(RECORDS)) for epoch in range(EPOCHS))
    assert read_ledger(book).spent == BATCHES * EPOCHS


def test_where_the_epoch_is_lost_what_is_left_of_it_is_given_up(tmp_path):
    book = tmp_path / "book"
    train(in_bins(ledger=str(book)), BATCHES + 1)
    beside = tmp_path / "book.data"
    kept = json.loads(beside.read_text())
    secret = kept.pop("epochs")["secret"]
    assert secret not in book.read_text() and beside.stat().st_mode & 0o077 == 0
    beside.write_text(json.dumps(kept))
    with pytest.warns(LostEpoch, match="The 3 batches left in this epoch are skipped"):
        run = in_bins(ledger=str(book))
    # The lines of the epoch are all there before anything is drawn again, and the plan is no longer than it was.
    assert read_ledger(book).spent == 2 * BATCHES == run[1].steps_done
    seen = train(run)
    assert seen.keys() <= set(range(2 * BATCHES, 3 * BATCHES)) and records_of(seen, 2) == list(range(RECORDS))
    account = read_ledger(book)
    assert account.spent == BATCHES * EPOCHS and account.released_phases()[0].run.steps == EPOCHS
    assert json.loads(beside.read_text())["epochs"]["secret"] != secret


def test_copies_of_a_run_share_at_most_one_epoch(tmp_path):
    """Equal picks in every epoch would cost more than both ledgers together say."""
    train(in_bins(ledger=str(tmp_path / "book")), BATCHES + 1)
    seen = []
    for copy in ("one", "two"):
        for end in ("", ".data"):
            shutil.copy(f"{tmp_path}/book{end}", f"{tmp_path}/{copy}{end}")
        seen.append(train(in_bins(ledger=str(tmp_path / copy))))
    one, two = seen
    assert all(sorted(one.get(i, [])) == sorted(two.get(i, [])) for i in range(BATCHES + 1, 2 * BATCHES))
    assert any(sorted(one.get(i, [])) != sorted(two.get(i, [])) for i in range(2 * BATCHES, 3 * BATCHES))


class Noisy(Dataset):
    """Records that differ each time they are read, so that nobody can tell their order."""

    def __len__(self):
        return RECORDS

    def __getitem__(self, number):
        return torch.eye(RECORDS)[number] + 1e-9 * torch.rand(RECORDS), 0


def test_epoch_is_dropped_if_record_order_is_unknown(tmp_path):
    book = str(tmp_path / "book")

    def begun():
        module = mlp(width=RECORDS).float()
        return make_private(
            module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1), data_loader=DataLoader(Noisy()),
            algorithm="dp-sgd", max_grad_norm=1.0, noise_multiplier=2.0, sampling="balls-in-bins", batches=BATCHES,
            epochs=EPOCHS, ledger=book,
        )  # fmt: skip

    train(begun(), 2)
    with pytest.warns(LostEpoch, match="may be in another order"), warnings.catch_warnings():
        _, optimizer, _ = begun()
    assert optimizer.steps_done == BATCHES


def test_another_phase_on_a_ledger_draws_other_batches(tmp_path):
    book = str(tmp_path / "book")
    first = train(in_bins(ledger=book))
    second = train(in_bins(ledger=book, noise_multiplier=3.0), 2)
    third = train(in_bins(ledger=book, noise_multiplier=3.0))
    assert records_of(second | third, 0) == list(range(RECORDS))
    assert {**second, **third} != first and len(read_ledger(book).phases) == 2


def test_uncounted_release_does_not_shift_batches(tmp_path, monkeypatch):
    module, optimizer, loader = run = in_bins(ledger=str(tmp_path / "book"))

    def broken(file):
        raise OSError(28, "No space left on device")

    batches = iter(loader)
    batch = next(batches)
    optimizer.backward_on(own(module), batch)
    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(UnsupportedError, match="No space left"):
        optimizer.step()
    monkeypatch.undo()
    with pytest.raises(InvalidParameterError, match="batch 2 after 0 releases"):
        next(batches)
    seen = train(run)
    assert sorted(seen[0]) == sorted(numbers(batch)) and records_of(seen, 0) == list(range(RECORDS))


def test_two_passes_at_a_time_are_rejected():
    module, optimizer, loader = in_bins()
    one, other = iter(loader), iter(loader)
    for batches in (one, other):
        optimizer.step_on(own(module), next(batches))
    with pytest.raises(InvalidParameterError, match="used in one pass at a time"):
        next(one)


def test_picks_are_uniform_for_any_number_of_batches():
    """A remainder of 2^64 is not: condition above the last multiple are drawn again, here a quarter of them."""
    batches = 3 * 2**61
    found = pick_batches("a", 0, 4000, batches)
    assert len(found) == 4000 and stats.kstest(found / batches, "uniform").pvalue > 1e-3
    assert (found == pick_batches("a", 0, 4000, batches)).all()
    assert (found != pick_batches("a", 1, 4000, batches)).all()


# --- batches that are cut at a largest size -----------------------------------------------------------


def test_batch_that_is_too_large_loses_records_at_random():
    x, y = data(records=40)
    options = {"sampling_rate": 0.25, "max_batch_size": 11, "noise_multiplier": 1.0, "insecure_seed": 3}
    _, optimizer, loader = private(mlp(), x, y, **options)
    assert optimizer.plan.relation == "zero-out" and optimizer.plan.expected_batch == pytest.approx(10.0, rel=1e-5)
    assert {"max_batch_size": 11, "dataset_size": 40}.items() <= optimizer.plan.run(3).items()
    batches = list(loader.sampler(6000))
    sizes = np.array([len(batch) for batch in batches])
    assert sizes.max() == 11 and all(len(set(batch)) == len(batch) for batch in batches)
    distribution = stats.binom(40, optimizer.plan.sampling_rate)
    assert stats.binomtest(int((sizes == 11).sum()), 6000, float(distribution.sf(10))).pvalue > 1e-3
    counts = np.bincount([number for batch in batches for number in batch], minlength=40)
    # A uniform subset prefers no record; counts of a batch vary less than a multinomial.
    assert stats.chisquare(counts).pvalue > 1e-3


def test_largest_batch_is_accounted():
    """10 of 40 records are expected and 24 allowed: a cut has a probability of some 1e-6, which delta pays for."""
    options = {"sampling_rate": 0.25, "noise_multiplier": 3.0, "steps": 2, "relation": "zero-out"}
    found = []
    for more in ({}, {"max_batch_size": 24}):
        _, optimizer, _ = private(mlp(), *data(records=40), **options, **more)
        for _ in range(2):
            optimizer._turn.open(Batch([]))
            optimizer.step()
        found.append(optimizer.epsilon(1e-5))
    assert found[0].value < found[1].value
    run = {**options, "sampling_rate": optimizer.plan.sampling_rate, "max_batch_size": 24, "dataset_size": 40}
    assert found[1].value == privproj.epsilon(privproj.Gaussian(noise_multiplier=run.pop("noise_multiplier")),
                                              delta=1e-5, **run).value  # fmt: skip


# --- what the loop may not do -----------------------------------------------------------------------


def test_private_loader_keeps_data_and_sampler():
    x, y = data()
    _, _, loader = private(mlp(), x, y)
    with pytest.raises(InvalidParameterError, match="Call make_private for another dataset"):
        loader.dataset = [(x[0], y[0])] * 12
    with pytest.raises(AttributeError, match="micro_batch_size"):
        loader.batch_sampler.sampler  # noqa: B018
    assert torch.equal(loader.dataset.tensors[0], x) and not hasattr(loader, "batch_sampler")


def test_sampler_of_its_own_is_rejected():
    x, y = data()
    module = mlp()
    loader = DataLoader(TensorDataset(x, y), sampler=WeightedRandomSampler([1.0] * 12, 12))
    with pytest.raises(InvalidParameterError, match="sampler of its own"):
        make_private(module=module, optimizer=torch.optim.SGD(module.parameters(), lr=1.0), data_loader=loader,
                     max_grad_norm=1.0, noise_multiplier=1.0, steps=3, algorithm="dp-sgd")  # fmt: skip


class Hardest(SequentialSampler):
    def __iter__(self):
        yield from (3, 3, 4)


@pytest.mark.parametrize(
    ("options", "condition"),
    [({"sampler": Hardest(range(12))}, "sampler of its own"), ({"batch_size": None}, "a DataLoader with a batch_size")],
)
def test_loader_batch_settings_are_not_replaced_silently(options, condition):
    module = mlp()
    with pytest.raises(InvalidParameterError, match=condition):
        make_private(
            module=module, optimizer=torch.optim.SGD(module.parameters(), lr=1.0), max_grad_norm=1.0,
            data_loader=DataLoader(TensorDataset(*data()), **options), noise_multiplier=1.0, steps=3,
        )  # fmt: skip


@pytest.mark.parametrize("sampling", ["shuffle", "partition"])
def test_shuffled_batches_are_rejected_with_both_sound_choices(sampling):
    with pytest.raises(UnsupportedError, match=rf"balls-in-bins.*privproj epsilon \.\.\. --sampling {sampling}"):
        private(mlp(), *data(), sampling=sampling)


@pytest.mark.parametrize(
    ("options", "condition"),
    [
        ({"sampling": "bernoulli"}, "unknown sampling 'bernoulli'"),
        ({**IN_BINS, "epochs": 1.5}, "epochs must be an integer"),
        ({**IN_BINS, "epochs": None, "steps": 6}, "steps must be a multiple of 4"),
        ({**IN_BINS, "batches": 0}, "batches must be an integer from 1 to 1e7, got 0"),
        ({**IN_BINS, "relation": "replace"}, "Use relation=zero-out"),
        ({"max_batch_size": 3}, "omitted with sampling_rate=1"),
        ({"sampling_rate": 0.5, "max_batch_size": 0}, "max_batch_size"),
    ],
)
def test_what_does_not_go_with_the_sampling_is_rejected(options, condition):
    with pytest.raises((InvalidParameterError, UnsupportedError), match=condition):
        private(mlp(), *data(), **options)


@pytest.mark.parametrize("options", [{}, {"sampling": "fixed"}, {"sampling": "balls-in-bins", "sampling_rate": None}])
def test_data_without_a_record_are_rejected(options):
    x, y = data()
    with pytest.raises(InvalidParameterError, match="a nonempty dataset"):
        private(mlp(), x[:0], y[:0], **options)
