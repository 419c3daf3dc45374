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
