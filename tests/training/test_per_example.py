"""Per-example norms: ghost norms, shared layers, tokens, types."""

import pytest
from helpers import needs
from hypothesis import given, settings
from hypothesis import strategies as st

from privproj.errors import InvalidParameter

torch = needs("torch", "opacus")

from torch import nn  # noqa: E402
from training.helpers import DOUBLE, MODELS, Words, clipped, data, gradients, losses_of, one_step, private  # noqa: E402

from privproj.training import per_example  # noqa: E402

# --- norms ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("build", "shape"), MODELS.values(), ids=MODELS.keys())
@pytest.mark.parametrize("dtype", [DOUBLE, torch.float32])
def test_one_silent_step_is_the_clipped_sum_of_vmap_gradients(build, shape, dtype):
    x, y = data(**shape, dtype=dtype)
    module = build().to(dtype)
    expected = clipped(gradients(module, x, y), 0.7)
    rtol = 1e-9 if dtype is DOUBLE else 3e-5
    found = one_step(module, x, y, max_grad_norm=0.7)
    assert (found - expected).norm() <= rtol * expected.norm()


def test_layers_that_opacus_materialises():
    x = torch.randint(0, 7, (12, 4), generator=torch.Generator().manual_seed(0))
    y = data()[1]
    module = Words().double()
    expected = clipped(gradients(module, x, y), 0.3)
    assert torch.allclose(one_step(module, x, y, max_grad_norm=0.3), expected, rtol=1e-8, atol=1e-12)


@given(st.integers(1, 6), st.integers(1, 7), st.integers(1, 9), st.floats(-3, 3), st.integers(0, 10**6))
@settings(max_examples=40)
def test_ghost_norms(outputs, inputs, tokens, log_size, seed):
    draw = torch.Generator().manual_seed(seed)
    g = torch.randn(5, tokens, outputs, generator=draw, dtype=DOUBLE) * 10.0**log_size
    x = torch.randn(5, tokens, inputs, generator=draw, dtype=DOUBLE)
    exact = torch.einsum("nto,nti->noi", g, x).square().sum((1, 2))
    assert torch.allclose(per_example.squared_norms(g, x), exact, rtol=1e-9, atol=1e-12 * float(exact.max()))


@pytest.mark.parametrize("tokens", [2, 40])
def test_tokens_that_cancel_cannot_hide_a_norm(tokens):
    """In single precision a Gram form of cancelling tokens is rounding noise; the norm must not come out too small."""
    draw = torch.Generator().manual_seed(0)
    g, x = torch.randn(2000, 1, 30, generator=draw), torch.randn(2000, 1, 40, generator=draw)
    g, x = g.repeat(1, tokens, 1), x.repeat(1, tokens, 1)
    g[:, 1::2] *= -1.0
    x = x * (1.0 + 1e-6 * torch.randn(2000, tokens, 1, generator=draw))
    exact = torch.einsum("nto,nti->noi", g.double(), x.double()).square().sum((1, 2))
    assert (per_example.squared_norms(g, x) >= exact * (1.0 - 1e-6)).all()


# --- what the loop may not do -----------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [1, 3])
def test_a_norm_does_not_underflow(tokens):
    g, x = torch.full((2, tokens, 10), 1e-24), torch.full((2, tokens, 10), 1e19)
    exact = torch.einsum("nto,nti->noi", g.double(), x.double()).square().sum((1, 2))
    assert torch.allclose(per_example.squared_norms(g, x), exact, rtol=1e-4)


def test_autocast_norms_are_those_of_the_trained_type():
    x = torch.randint(0, 7, (12, 4), generator=torch.Generator().manual_seed(0))
    y, module = data()[1], Words()
    _, optimizer, _ = private(module, x, y, max_grad_norm=1e-3)
    optimizer.turn.open(12)
    with torch.autocast("cpu", torch.bfloat16):
        optimizer.backward(losses_of(module, x, y))
    assert torch.cat([s.flatten() for s in optimizer.boundary.sums]).norm() <= 12e-3


def test_an_input_changed_in_place_is_noticed():
    x, y = data()
    module = nn.Linear(6, 3).double()
    _, optimizer, _ = private(module, x, y)
    optimizer.turn.open(12)
    losses = losses_of(module, x, y)
    x.mul_(2.0)
    with pytest.raises(InvalidParameter, match="in place"):
        optimizer.backward(losses)
