"""Per-example norms: ghost norms, shared layers, tokens, types."""

import json
import subprocess
import sys

import pytest
from helpers import needs
from hypothesis import given, settings
from hypothesis import strategies as st

torch = needs("torch", "opacus")

from unit.training.helpers import (  # noqa: E402
    DOUBLE,
    MODELS,
    Texts,
    batch_of,
    clipped,
    clipped_sums,
    data,
    gradients,
    one_step,
    own,
    private,
    take_in,
)

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


def test_layers_without_factors_match_vmap_gradients():
    x = torch.randint(0, 7, (12, 4), generator=torch.Generator().manual_seed(0))
    y = data()[1]
    module = Texts().double()
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


@pytest.mark.parametrize("tokens", [1, 3, 40])
@pytest.mark.parametrize("width", [10, 400])
def test_norm_does_not_underflow(tokens, width):
    """What underflows on the way is added as a bound: nothing is lost, and little is added at sizes that occur."""
    for size_g, size_x, rtol in ((1e-24, 1e17, None), (1e-10, 1e4, 1e-4)):
        g, x = torch.full((2, tokens, width), size_g), torch.full((2, tokens, width), size_x)
        exact = torch.einsum("nto,nti->noi", g.double(), x.double()).square().sum((1, 2))
        found = per_example.squared_norms(g, x)
        assert (found >= exact * (1.0 - 1e-5)).all()
        if rtol is not None or tokens == 1:
            assert torch.allclose(found, exact, rtol=rtol or 1e-5)


# --- sums -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["equal", "one large in sixteen"])
@pytest.mark.parametrize("tokens", [1, 10])
def test_per_example_sum_of_aligned_records_is_exact(tokens, pattern):
    """Single precision moves it by 1 + 2.7e-3, since one record changes how all others are rounded; 1e-9 is allowed."""
    records = 65536
    c = torch.full((records,), 0.7)
    if pattern != "equal":
        # Each small part is lost beside the sum of a block in single precision, or not, by where it stands.
        c[torch.arange(records) % 16 != 0] = 4e-8
    g, x = torch.full((records, tokens, 2), 1.1), torch.full((records, tokens, 3), 0.3)
    own = per_example.formed(g[:1], x[:1])[0].double() * c[0].double()
    whole = per_example.clipped_sum(c, g, x)
    rest = per_example.clipped_sum(c[1:], g[1:], x[1:])
    assert whole.dtype is torch.float64
    assert abs((whole - rest).norm() / own.norm() - 1.0) <= (1e-9 if tokens > 1 else 1e-6)


def test_sums_skip_records_that_are_not_finite():
    draw = torch.Generator().manual_seed(0)
    c, mask = torch.rand(7, generator=draw), torch.tensor([True] * 6 + [False])
    for tokens in (1, 3, 20):
        g, x = torch.randn(7, tokens, 4, generator=draw), torch.randn(7, tokens, 5, generator=draw)
        g[6], x[6] = torch.nan, torch.inf
        expected = per_example.clipped_sum(c[:6], g[:6], x[:6])
        assert torch.allclose(per_example.clipped_sum(c, g, x, mask=mask), expected, rtol=1e-12)
        rows = per_example.formed(g, x)
        assert torch.allclose(per_example.weighted_sum(c, rows, mask), expected, rtol=1e-6)


@pytest.mark.parametrize("tokens", [9, 300])
def test_sums_in_blocks_are_sums(tokens):
    draw = torch.Generator().manual_seed(0)
    c = torch.rand(6, generator=draw)
    g, x = torch.randn(6, tokens, 300, generator=draw), torch.randn(6, tokens, 400, generator=draw)
    exact = torch.einsum("n,nto,nti->oi", c.double(), g.double(), x.double())
    for found in (per_example.clipped_sum(c, g, x), per_example.weighted_sum(c, per_example.formed(g, x))):
        assert (found - exact).norm() <= 1e-6 * exact.norm()
    norms = torch.einsum("nto,nti->noi", g.double(), x.double()).square().sum((1, 2))
    assert (per_example.squared_norms(g, x) >= norms * (1.0 - 1e-6)).all()
    assert torch.allclose(per_example.squared_norms(g, x), norms, rtol=1e-2)


# --- precision --------------------------------------------------------------------------------------

SETTINGS = {
    "nothing": "pass",
    "old": 'torch.set_float32_matmul_precision("medium")',
    "old, of CUDA": "torch.backends.cuda.matmul.allow_tf32 = True",
    "new": 'torch.backends.fp32_precision = "tf32"',
    "new, full": 'torch.backends.fp32_precision = "ieee"',
    "new, of CUDA": 'torch.backends.cudnn.fp32_precision = "tf32"',
    "new, of CUDA's matrices": 'torch.backends.cuda.matmul.fp32_precision = "tf32"',
    "new, of the CPU's matrices": 'torch.backends.mkldnn.matmul.fp32_precision = "bf16"',
    "both": 'torch.set_float32_matmul_precision("high"); torch.backends.cuda.matmul.fp32_precision = "ieee"',
}
"""Ways to ask torch for shorter mantissas, as its documentation has them."""

PROGRAM = """
import json, os, sys
import torch
from privproj.training import per_example

def seen():
    try:
        old = torch.get_float32_matmul_precision()
    except RuntimeError:
        old = "mixed"
    backends = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul, torch.backends.cudnn, torch.backends.mkldnn
    return old, [backend.fp32_precision for backend in backends], torch.backends.fp32_precision

def later(setting, times):
    exec(setting)
    before = seen()
    for _ in range(times):
        with per_example.full_precision():
            assert torch.get_float32_matmul_precision() == "highest"
            assert seen()[1][:2] == ["ieee", "ieee"], seen()
    assert seen() == before, (before, seen())
    torch.backends.fp32_precision = "tf32"
    return seen()[1][:2]

for name, setting in json.loads(sys.argv[1]).items():
    for times in 0, 2:
        if not os.fork():
            print(json.dumps([name, times, later(setting, times)]), flush=True)
            os._exit(0)
        os.wait()
"""


@pytest.fixture(scope="module")
def message():
    """What a later change of all settings makes of each, never and twice set aside: by processes forked from one."""
    command = [sys.executable, "-c", PROGRAM, json.dumps(SETTINGS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    return {(name, times): found for name, times, found in map(json.loads, done.stdout.splitlines())}, done.stderr


@pytest.mark.full
@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="needs torch's newer settings")
@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_of_precision_is_set_aside_and_restored(message, name):
    later, errors = message
    assert (name, 2) in later, errors
    assert later[name, 2] == later[name, 0]


def test_autocast_norms_are_those_of_the_trained_type():
    x = torch.randint(0, 7, (12, 4), generator=torch.Generator().manual_seed(0))
    y, module = data()[1], Texts()
    _, optimizer, _ = private(module, x, y, max_grad_norm=1e-3)
    with torch.autocast("cpu", torch.bfloat16):
        take_in(optimizer, own(module), batch_of(x, y))
    assert clipped_sums(optimizer).norm() <= 12e-3
