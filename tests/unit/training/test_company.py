"""No record changes what another one contributes: caught errors, rules of the program, structures, and norms."""

import contextlib
from collections import defaultdict
from enum import Enum

import pytest
from helpers import needs

from privproj.errors import InvalidParameterError, UnsupportedError

torch = needs("torch")

from torch.nn import functional as F  # noqa: E402
from unit.training.helpers import data, looped_sums, mlp, private, sums_of  # noqa: E402

from privproj.training import per_example  # noqa: E402
from privproj.training.per_record import group  # noqa: E402


def cholesky(x):
    """Fails for records with a negative entry."""
    try:
        torch.linalg.cholesky(torch.diag_embed(x[0, :2]))
    except Exception:
        return -1.0
    return 1.0


def lookup(x):
    """Fails for records whose index is out of range."""
    try:
        torch.arange(3)[(x[0, :1] > 0).long() * 5]
    except IndexError:
        return -1.0
    return 1.0


def bare_except(x):
    try:
        return 2.0 if (x[0] > 0).all() or x[0, 0] > 0 else 1.0
    except:  # noqa: E722
        return 0.0


def returned_in_finally(x):
    scale = 0.5
    try:
        scale = 2.0 if x[0, 0] > 0 else 1.0
    finally:
        return scale  # noqa: B012


def suppressed(x):
    scale = 0.5
    with contextlib.suppress(BaseException):
        scale = 2.0 if x[0, 0] > 0 else 1.0
    return scale


def all_true(x):
    return torch._is_all_true(x[0, :2] > 0).to(x) + 1.0


CASES = [cholesky, lookup, bare_except, returned_in_finally, suppressed, all_true]


def run_of(loss_of):
    """A private run of a small network, the loss of a record, and the records."""
    module, (x, y) = mlp(), data()
    _, optimizer, _ = private(module, x, y, max_grad_norm=0.5)
    return optimizer, loss_of(module), [[one[None], label[None]] for one, label in zip(x, y, strict=True)]


@pytest.mark.parametrize("scale", CASES)
def test_error_or_branch_of_one_record_changes_no_other(scale):
    optimizer, loss, records = run_of(lambda m: lambda r: scale(r[0]) * F.cross_entropy(m(r[0]), r[1]))
    found, wanted = sums_of(optimizer, loss, records), looped_sums(optimizer, loss, records)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def test_error_caught_after_random_numbers_is_rejected():
    optimizer, loss, records = run_of(
        lambda m: lambda r: cholesky(F.dropout(r[0], 0.1)) * F.cross_entropy(m(r[0]), r[1])
    )
    with pytest.raises(UnsupportedError, match="catches an error"):
        sums_of(optimizer, loss, records)


def test_caught_error_about_seeds_is_raised():
    def loss_of(module):
        def loss(record):
            with contextlib.suppress(ValueError):
                torch.rand(3, generator=torch.Generator())
            return F.cross_entropy(module(record[0]), record[1])

        return loss

    optimizer, loss, records = run_of(loss_of)
    with pytest.raises(InvalidParameterError, match="without seeds and generators"):
        sums_of(optimizer, loss, records)


def test_input_written_in_place_is_the_same_in_every_part():
    """Records that branch apart are computed twice, from the same input."""

    def loss_of(module):
        def loss(record):
            x = record[0].mul_(2.0)
            return F.cross_entropy(module(x), record[1]) * (2.0 if x[0, 0] > 0 else 1.0)

        return loss

    optimizer, loss, records = run_of(loss_of)
    copies = [[one.clone(), label] for one, label in records]
    found, wanted = sums_of(optimizer, loss, records), looped_sums(optimizer, loss, copies)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)


def forked(x):
    with torch.random.fork_rng(devices=[]):
        return F.dropout(x, 0.5)


def replayed(x):
    state = torch.get_rng_state()
    x = F.dropout(x, 0.5)
    torch.set_rng_state(state)
    return x


@pytest.mark.parametrize("draw", [forked, replayed])
def test_random_numbers_that_repeat_are_rejected(draw):
    """Masks that groups share depend on the places of records in their groups."""
    optimizer, loss, records = run_of(lambda m: lambda r: F.cross_entropy(m(draw(r[0])), r[1]))
    with pytest.raises(InvalidParameterError, match="fork_rng or set_rng_state"):
        sums_of(optimizer, loss, records)


def test_branch_on_a_forked_random_number_is_rejected():
    def loss_of(module):
        def loss(record):
            with torch.random.fork_rng(devices=[]):
                number = torch.rand(1)
            return F.cross_entropy(module(record[0]), record[1]) * (2.0 if number + 0 * record[0].sum() > 0.5 else 1.0)

        return loss

    optimizer, loss, records = run_of(loss_of)
    optimizer._batches_seen = 1  # the first record is not computed alone
    with pytest.raises(UnsupportedError, match="may depend on random numbers"):
        sums_of(optimizer, loss, records)


def test_branch_on_an_integer_with_random_bits_is_rejected():
    def loss_of(module):
        def loss(record):
            whole = record[0].long() * 0
            view = whole.view(-1)
            view |= torch.randint(0, 2, view.shape)
            return F.cross_entropy(module(record[0]), record[1]) * (2.0 if whole[0, 0] > 0 else 1.0)

        return loss

    optimizer, loss, records = run_of(loss_of)
    optimizer._batches_seen = 1  # the first record is not computed alone
    with pytest.raises(UnsupportedError, match="may depend on random numbers"):
        sums_of(optimizer, loss, records)


def adds_to_a_view(kept, value):
    part = kept[:1]
    part += value


KEPT = {
    "view": lambda kept, value: kept[0].add_(value),
    "copy": lambda kept, value: kept.narrow(0, 0, 1).copy_(value[None]),
    "data": lambda kept, value: kept.data.add_(value),
    "out": lambda kept, value: torch.add(kept[0], value, out=kept[0]),
    "operator": adds_to_a_view,
}


@pytest.mark.parametrize("write", KEPT.values(), ids=KEPT)
def test_write_through_a_view_is_rejected_one_by_one(write):
    kept = torch.zeros(2, dtype=torch.float64)

    def loss_of(module):
        def loss(record):
            write(kept, record[0].sum())
            return F.cross_entropy(module(record[0]), record[1]) * (1.0 + kept.sum())

        return loss

    optimizer, loss, records = run_of(loss_of)
    with pytest.raises(InvalidParameterError, match="kept after the call"):
        sums_of(optimizer, loss, records, one_by_one=True)


class Mixing(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g

    @staticmethod
    def vmap(info, dims, x):
        return x + x.sum(dims[0], keepdim=True), dims[0]


def test_function_with_a_vmap_rule_of_its_own_is_rejected():
    optimizer, loss, records = run_of(lambda m: lambda r: F.cross_entropy(m(Mixing.apply(r[0])), r[1]))
    with pytest.raises(InvalidParameterError, match="with a vmap method"):
        sums_of(optimizer, loss, records)


@pytest.mark.parametrize("call", [lambda op, x: op(x), lambda _, x: torch.ops.privproj_tests.centered(x)])
def test_operator_with_a_vmap_rule_of_its_own_is_rejected(call):
    with torch.library._scoped_library("privproj_tests", "FRAGMENT"):
        centered = torch.library.custom_op(
            "privproj_tests::centered", lambda x: x.clone(), mutates_args=(), schema="(Tensor x) -> Tensor"
        )
        centered.register_vmap(lambda info, dims, x: (x - x.mean(dims[0], keepdim=True), dims[0]))
        optimizer, loss, records = run_of(lambda m: lambda r: F.cross_entropy(m(call(centered, r[0])), r[1]))
        with pytest.raises(InvalidParameterError, match="with register_vmap"):
            sums_of(optimizer, loss, records)


class Kind(Enum):
    ONE, TWO = 1, 2

    def __repr__(self):
        return "Kind"


class Key:
    def __init__(self, value):
        self.value = value

    def __repr__(self):
        return "Key"


def test_values_with_equal_texts_do_not_share_a_group():
    x = torch.ones(1, 2)
    assert len(group([{"x": x, "kind": Kind.ONE}, {"x": x, "kind": Kind.TWO}])) == 2
    first, second = ({"x": x} for _ in range(2))
    tables = defaultdict(lambda: 1, first), defaultdict(lambda: 2, second)
    (together,) = group(tables)
    assert type(together.build((x,))) is dict
    with pytest.raises(InvalidParameterError, match="dense tensors, numbers and text"):
        group([{Key(1): x}, {Key(2): x}])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("inputs", [2048, 16384])
def test_norm_is_not_understated_for_tokens_that_nearly_cancel(dtype, inputs):
    """Entries far below the root of the machine epsilon are lost next to the large ones in a plain product."""
    small = (torch.finfo(dtype).eps / 40.0) ** 0.5
    x = torch.full((1, 2, inputs), small, dtype=dtype)
    x[:, 1] *= -1.0
    x[:, :, :16] = 0.25
    g = torch.ones(1, 2, 4, dtype=dtype)
    g[:, 1] *= -1.0
    exact = torch.bmm(g.mT.double(), x.double()).norm().square()
    assert per_example.squared_norms(g, x).item() >= exact.item() * (1.0 - 1e-12)
