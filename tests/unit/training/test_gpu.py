"""What holds on a CPU holds on a GPU, in single precision and with TF32 allowed: ``python -m pytest -n0 -m gpu``."""

import math

import numpy as np
import pytest
from helpers import needs
from scipy import stats

torch = needs("torch", "opacus")

from torch import nn  # noqa: E402
from unit.training.helpers import batch_of, data, mlp, own, private, step, take_in  # noqa: E402

from privproj.errors import PrivprojError  # noqa: E402
from privproj.training import Subspace, per_example  # noqa: E402
from privproj.training.algorithms import ALGORITHMS, load  # noqa: E402
from privproj.training.generators import Stream, generator, normal, philox_state, streams  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

GPU, CPU = torch.device("cuda", 0), torch.device("cpu")
OPTIONS = {"m2": {"rank": 3}, "m2-projected-clip": {"rank": 3}, "m1": {"rank": 3}, "flora": {"rank": 3}}
EVERY = [*((name, "joint") for name in ALGORITHMS), ("dp-sgd", "per-layer"), ("m2", "per-layer")]
every_algorithm = pytest.mark.parametrize(("name", "clipping"), EVERY, ids=lambda part: part)
WAITS = {"prism": "its singular values are found with a check that waits for the GPU"}
"""Algorithms whose step waits for the GPU, and why."""


@pytest.fixture(params=["float32", "tf32"])
def precision(request):
    """How matrices are multiplied outside of the release; TF32 keeps 10 bits of a mantissa."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if request.param == "float32" else "high")
    yield request.param
    torch.set_float32_matmul_precision(before)


def run(name, clipping, device, x, y, **options):
    """A private run on a device, with the same weights and adapters on every device."""
    module, adapt = mlp(dtype=torch.float32), load(name).adapt
    module = module if adapt is None else adapt(module, 3, insecure_seed=4)
    with torch.no_grad():
        for key, part in module.named_parameters():
            if key.endswith((".s", "lora_B.weight")):
                part.copy_(torch.linspace(0.7, 0.2, part.numel()).view_as(part))
    module = module.to(device)
    more = {**OPTIONS.get(name, {}), **options}
    if load(name).needs_subspace:
        total = sum(p.numel() for p in module.parameters())
        draw = torch.Generator().manual_seed(2)
        basis = torch.linalg.qr(torch.randn(total, 4, generator=draw))[0].contiguous()
        more["subspace"] = Subspace(basis.to(device), "public")
    return module, private(module, x, y, algorithm=name, clipping=clipping, insecure_seed=3, **more)[1]


def sums(module, optimizer, x, y):
    """The sums of a batch inside the boundary, before any noise."""
    take_in(optimizer, own(module), batch_of(x, y))
    return torch.cat([part.flatten().cpu() for part in optimizer._noisy_sum.sums])


def share_draws(optimizer, twin):
    """Give the views of a run what those of another run drew: generators differ between devices."""
    for view, other in zip(optimizer._views, twin.views, strict=True):
        for key in ("a", "q", "back"):
            if hasattr(other, key):
                setattr(view, key, getattr(other, key).to(view.parameters[0]))


@every_algorithm
def test_clipped_sums_are_those_of_a_cpu(name, clipping, precision):
    x, y = data(dtype=torch.float32)
    module, optimizer = run(name, clipping, GPU, x, y)
    reference, twin = run(name, clipping, CPU, x, y)
    share_draws(twin, optimizer)
    found, expected = sums(module, optimizer, x.to(GPU), y.to(GPU)), sums(reference, twin, x, y)
    # TF32 rounds what forward and backward pass give to 2^-11, not what is made of it.
    assert (found - expected).norm() <= {"float32": 1e-4, "tf32": 2e-2}[precision] * expected.norm()
    assert found.dtype is torch.float64


@every_algorithm
def test_no_record_adds_more_than_the_clip(name, clipping, precision):
    """Large features, so that every record is clipped, one record a batch."""
    x, y = data(dtype=torch.float32)
    module, optimizer = run(name, clipping, GPU, x, y)
    for row in range(len(x)):
        found = sums(module, optimizer, 100.0 * x[row : row + 1].to(GPU), y[row : row + 1].to(GPU))
        assert 0.0 < float(found.norm()) <= 1.0 + 1e-9
        optimizer.step()


@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_gpu_norms_and_sums_keep_precision_under_tf32(tokens, precision):
    draw = torch.Generator().manual_seed(1)
    g, x = (torch.randn(8, tokens, width, generator=draw) for width in (64, 96))
    exact = torch.einsum("nto,nti->noi", g.double(), x.double())
    with per_example.full_precision():
        squared = per_example.squared_norms(g.to(GPU), x.to(GPU)).cpu()
        total = per_example.clipped_sum(torch.ones(8, device=GPU), g.to(GPU), x.to(GPU)).cpu().double()
    assert torch.allclose(squared, exact.square().sum((1, 2)), rtol=1e-4)
    assert (squared >= exact.square().sum((1, 2)) * (1.0 - 1e-6)).all()
    assert (total - exact.sum(0)).norm() <= 1e-5 * exact.sum(0).norm()
    if precision == "tf32":
        assert torch.get_float32_matmul_precision() == "high"


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in WAITS])
def test_no_step_waits_for_the_gpu(name):
    """The steps after the first ones, in which it is looked whether weights move and losses are the records' own."""
    x, y = data(dtype=torch.float32)
    module, optimizer = run(name, "joint", GPU, x, y, noise_multiplier=1.0)
    x, y = x.to(GPU), y.to(GPU)

    def step():
        step(module, optimizer, x, y)

    for _ in range(5):
        step()
    optimizer.own_loss.checks_more = lambda *form: False
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


# --- random numbers ---------------------------------------------------------------------------------


def test_state_of_a_generator_is_seed_and_offset():
    seed = np.random.SeedSequence(5)
    found = generator(GPU, seed)
    key, offset = (int(word) for word in found.get_state().numpy().view(np.uint64))
    assert (key, offset) == philox_state(np.random.SeedSequence(5)) and found.initial_seed() == key
    draw = torch.randn(100_000, generator=found, device=GPU)
    after = int(found.get_state().numpy().view(np.uint64)[1])
    assert after > offset and after % 4 == 0
    assert stats.kstest(draw.cpu().numpy(), "norm").pvalue > 1e-4
    assert torch.equal(draw, torch.randn(100_000, generator=generator(GPU, np.random.SeedSequence(5)), device=GPU))


def test_noise_is_fresh_in_every_draw_on_every_device():
    stream = streams().noise
    draws = [normal((50,), torch.zeros(1, device=place), stream).cpu() for place in (GPU, CPU, GPU, CPU)]
    assert all(not torch.equal(a, b) for i, a in enumerate(draws) for b in draws[:i])


def test_step_is_not_captured_in_a_graph():
    """A replay would be a release that no ledger counts."""
    stream = Stream(np.random.SeedSequence(1))
    normal((2,), torch.zeros(1, device=GPU), stream)
    with pytest.raises(PrivprojError, match="CUDA graph"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        normal((2,), torch.zeros(1, device=GPU), stream)


class OnTwoDevices(nn.Module):
    """The first layer on a GPU, the last on the CPU."""

    def __init__(self):
        super().__init__()
        whole = mlp()
        self.first, self.last = whole[0].to(GPU), whole[2]

    def forward(self, x):
        return self.last(torch.tanh(self.first(x.to(GPU))).cpu())


@pytest.mark.parametrize("name", ["dp-sgd", "m2"])
def test_model_on_several_devices_has_noise_on_each(name):
    x, y = data()
    options = {**OPTIONS.get(name, {}), "algorithm": name, "noise_multiplier": 1.0}
    module = OnTwoDevices()
    _, optimizer, _ = private(module, x, y, **options)
    for _ in range(2):
        step(module, optimizer, x, y)
    assert {device.type for device in optimizer._noisy_sum.streams.noise.generators} == {"cuda", "cpu"}
    assert all(math.isfinite(float(p.sum())) for p in module.parameters())
