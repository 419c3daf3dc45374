"""Clipped sums of many models equal those of a loop over the records, and depend on no other record.

A loop of plain autograd in double precision computes the gradient of each record alone. Where the clip is in the middle
of their norms, both sums agree to 1e-10 of the clip.
"""

import math
import random
from functools import partial

import numpy as np
import pytest
from helpers import full_if, needs

torch = needs("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from unit.training.helpers import check_sums, clipped_sums, looped_sums, private, sums_of, take_in  # noqa: E402
from unit.training.models import (  # noqa: E402
    MODELS,
    build,
    convolutions,
    encoder,
    labeled,
    perceptron,
    recurrent,
    vision_transformer,
)

from privproj.training import AdaptiveClipping, Batch  # noqa: E402
from privproj.training.per_record import group  # noqa: E402


@pytest.fixture(autouse=True)
def double():
    """Tensors that a loss function makes are in double precision, as the models are."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


QUICK = {"perceptron", "convolutions", "different lengths", "tied table and layer used twice", "branches", "checkpoint"}
"""Models of the tests that are left to ``full`` for the others."""

# --- the law --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_clipped_sum_equals_a_loop_over_records(name):
    module, records, loss = build(MODELS[name])
    check_sums(module, loss, records)


@pytest.mark.parametrize("name", full_if(MODELS, lambda name: name not in QUICK))
def test_clipped_sum_one_by_one_equals_a_loop(name):
    module, records, loss = build(MODELS[name])
    check_sums(module, loss, records, options={"one_by_one": True})


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_train_one_by_one(kind):
    module, records, loss = build(partial(recurrent, kind))
    check_sums(module, loss, records, options={"one_by_one": True})


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("name", ["different lengths", "branches", "tied table and layer used twice"])
def test_micro_batches_do_not_change_the_sum(name, size):
    module, records, loss = build(MODELS[name])
    check_sums(module, loss, records, options={"micro_batch_size": size})


def test_empty_batch_adds_nothing():
    module, _, loss = build(perceptron)
    _, optimizer, _ = private(module, torch.zeros(5), torch.zeros(5))
    assert float(take_in(optimizer, loss, Batch([]))) == 0.0
    assert not clipped_sums(optimizer).any()
    optimizer.step()
    assert optimizer.steps_done == 1


@pytest.mark.parametrize("name", full_if(MODELS, lambda name: name not in QUICK))
def test_contribution_of_a_record_does_not_depend_on_others(name):
    """With one record more, in other company and in another order, the sum changes by that record alone."""
    module, records, loss = build(MODELS[name])
    _, optimizer, _ = private(module, torch.zeros(5), torch.zeros(5), max_grad_norm=0.5)
    alone = [sums_of(optimizer, loss, [record]) for record in records]
    for chosen in ([0, 1, 2, 3, 4], [4, 2, 0], [1, 3]):
        found = sums_of(optimizer, loss, [records[i] for i in chosen])
        assert (found - sum(alone[i] for i in chosen)).norm() <= 1e-12


def test_first_record_draws_the_same_numbers_in_any_company():
    """numpy and Python numbers in the loss begin anew in every pass: a cutout is where it would be alone."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))

    def loss(record):
        x, mask = record[0], torch.ones(6, 6)
        row, column = np.random.randint(0, 4), random.randrange(4)
        mask[row : row + 3, column : column + 3] = 0.0
        return F.cross_entropy(module(x * mask * np.random.rand()), record[1])

    def sums(records, size=None):
        rows = torch.zeros(4)
        return sums_of(private(module, rows, rows, insecure_seed=3)[1], loss, records, micro_batch_size=size)

    records = labeled((6, 6), count=4)
    alone = [sums([record]) for record in records]
    for size in (None, 1, 3):
        found = sums(records, size)
        assert (found - sum(alone)).norm() <= 1e-12


def test_dropout_masks_differ_between_records():
    """Entries of the gradient are the mask of a record: no two records have one mask."""
    module = nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 1, bias=False))
    records = [[torch.ones(1, 64)] for _ in range(64)]
    _, optimizer, _ = private(module, torch.zeros(64), torch.zeros(64), max_grad_norm=1e6)
    take_in(optimizer, lambda record: module(record[0]).sum(), records)
    masks = clipped_sums(optimizer) / 2.0
    assert torch.equal(masks, masks.round())
    # Sums of 64 independent bits have mean 32 and standard deviation 4; with one mask for all they are 0 or 64.
    assert abs(float(masks.mean()) - 32.0) < 5.0 * 4.0 / 8 and abs(float(masks.std()) - 4.0) < 5.0 * 4.0 / math.sqrt(
        128
    )


def test_encoder_layer_trains_with_its_default_dropout():
    module, records, loss = build(partial(encoder, 1, 0.1))
    _, optimizer, _ = private(module, torch.zeros(5), torch.zeros(5), max_grad_norm=1e-3)
    take_in(optimizer, loss, records)
    assert 1e-3 < float(clipped_sums(optimizer).norm()) <= 5e-3
    optimizer.step()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_recomputes_the_same_dropout(reentrant):
    """The gradient of a linear function of the masks is the loss: another mask on the way back would differ."""
    module = nn.Linear(16, 16, bias=False)
    module.weight.data = torch.eye(16)

    def loss(record):
        part = lambda x: F.dropout(module(x), 0.5)  # noqa: E731
        return checkpoint(part, record[0], use_reentrant=reentrant).sum()

    _, optimizer, _ = private(module, torch.zeros(6), torch.zeros(6), max_grad_norm=1e6)
    records = [[torch.full((1, 16), 1.0)] for _ in range(6)]
    mean = take_in(optimizer, loss, records)
    found = clipped_sums(optimizer).view(16, 16)
    # Row i of the gradient of record j is 2 m_ji: its diagonal adds up to the losses.
    assert float(found.diagonal().sum()) == pytest.approx(6 * float(mean), rel=1e-6)


def test_bfloat16_autocast_is_close_to_a_loop():
    torch.set_default_dtype(torch.float32)
    for make in (perceptron, convolutions, vision_transformer):
        torch.manual_seed(0)
        module, records, plain = make()

        def loss(record, plain=plain):
            with torch.autocast("cpu", torch.bfloat16):
                return plain(record).float()

        rows = torch.zeros(len(records))
        _, optimizer, _ = private(module, rows, rows, max_grad_norm=0.1)
        found, expected = sums_of(optimizer, loss, records), looped_sums(optimizer, loss, records)
        assert (found - expected).norm() <= 0.02 * expected.norm()
        for record in records:
            assert float(sums_of(optimizer, loss, [record]).norm()) <= 0.1 * (1.0 + 1e-9)


# --- algorithms -----------------------------------------------------------------------------------------

ALGORITHMS = {
    "dp-sgd": {}, "m2": {"rank": 3}, "m2 wishart": {"algorithm": "m2", "rank": 3, "frame": "wishart"},
    "m2-projected-clip": {"rank": 3}, "projected-dp-sgd": {"rank": 3}, "flora": {"rank": 3},
    "adaptive": {"algorithm": "dp-sgd", "clipping": AdaptiveClipping(sigma=1e-12)},
    "groups": {"algorithm": "dp-sgd", "group_size": 3},
}  # fmt: skip


ACROSS = ["convolutions", "tied matrix with several biases", "attention", "different lengths"]


@pytest.mark.parametrize("name", full_if(ACROSS, lambda name: name not in ACROSS[:2]))
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_clipped_sum_of_each_algorithm_equals_a_loop(algorithm, name):
    """The sums that the algorithm makes of whole gradients, several tokens, tied weights and several groups."""
    module, records, loss = build(MODELS[name])
    options = {"algorithm": algorithm, "clipping": "per-layer", **ALGORITHMS[algorithm]}
    rows = torch.zeros(len(records))
    _, optimizer, _ = private(module, rows, rows, max_grad_norm=0.5, **options)
    found, expected = sums_of(optimizer, loss, records), looped_sums(optimizer, loss, records)
    assert found.norm() > 0.1
    # Norms of several tokens and of projections are overstated by a bound on their rounding.
    assert (found - expected).norm() <= 1e-9


def test_sum_follows_the_clip_that_adapts():
    module, records, loss = build(perceptron)
    clipping = AdaptiveClipping(sigma=1e-12, learning_rate=1.0)
    rows = torch.zeros(len(records))
    _, optimizer, _ = private(module, rows, rows, max_grad_norm=1e-2, clipping=clipping)
    for _ in range(3):
        take_in(optimizer, loss, records)
        found, expected = clipped_sums(optimizer), looped_sums(optimizer, loss, records)
        assert (found - expected).norm() <= 1e-10
        before = optimizer.clip
        optimizer.step()
        assert optimizer.clip > before


# --- groups ---------------------------------------------------------------------------------------------


def test_records_of_one_shape_form_a_group():
    records = [[torch.ones(1, size), {"y": torch.zeros(1)}] for size in (3, 4, 3, 3, 4)]
    groups = group(records)
    assert [found.records for found in groups] == [3, 2]
    assert [column.shape for column in groups[0].columns] == [(3, 1, 3), (3, 1)]
    x, labels = groups[1].build(tuple(column[0] for column in groups[1].columns))
    assert x.shape == (1, 4) and list(labels) == ["y"]


def test_rows_of_a_group_are_a_group():
    (whole,) = group([[torch.tensor([float(i)])] for i in range(6)])
    assert whole.rows([4, 1]).columns[0].flatten().tolist() == [4.0, 1.0]
    assert (whole.rows(slice(4, 9)).records, whole.rows(slice(4, 9)).columns[0].shape) == (2, (2, 1))
