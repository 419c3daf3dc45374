"""What holds on a CPU holds on a GPU, in single precision and with TF32 allowed: ``python -m pytest -n0 -m gpu``.

``PRIVPROJ_TEST_DEVICE=cpu`` runs the tests that need no GPU on the CPU, as a check of the tests themselves.
"""

import math
import os

import numpy as np
import pytest
from helpers import needs
from scipy import stats

torch = needs("torch", "opacus")

from torch import nn  # noqa: E402
from torch.utils._pytree import tree_map_only  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from unit.training.helpers import batch_of, clipped_sums, data, make_private, mlp, own, private, sums_of, take_in  # noqa: E402
from unit.training.models import MODELS, build  # noqa: E402

from privproj.errors import PrivprojError  # noqa: E402
from privproj.training import AdaptiveClipping, Subspace, per_example  # noqa: E402
from privproj.training.algorithms import ALGORITHMS, load  # noqa: E402
from privproj.training.generators import Stream, generator, normal, philox_state, streams  # noqa: E402

CPU, GPU = torch.device("cpu"), torch.device(os.environ.get("PRIVPROJ_TEST_DEVICE", "cuda:0"))
IS_CUDA = GPU.type == "cuda"
pytestmark = [
    pytest.mark.gpu, pytest.mark.skipif(IS_CUDA and not torch.cuda.is_available(), reason="needs a GPU")
]  # fmt: skip
cuda_only = pytest.mark.skipif(not IS_CUDA, reason="needs a GPU")

OPTIONS = {name: {"rank": 3} for name in ("m2", "m2-projected-clip", "projected-dp-sgd", "flora")}
EVERY = [*((name, "joint") for name in ALGORITHMS), ("dp-sgd", "per-layer"), ("m2", "per-layer")]
every_algorithm = pytest.mark.parametrize(("name", "clipping"), EVERY, ids=lambda part: part)
WAITS = {"prism": "it looks at its bases in every step"}
"""Algorithms whose step waits for the GPU, and why."""


@pytest.fixture(params=["float32", "tf32"])
def precision(request):
    """How matrices are multiplied outside of the release; TF32 keeps 10 bits of a mantissa."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest" if request.param == "float32" else "high")
    yield request.param
    torch.set_float32_matmul_precision(before)


def run(name, clipping, device, x, y, **options):
    """A private run on a device, with the same weights and adapters on every device; the data stay on the CPU."""
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


def share_draws(optimizer, twin):
    """Give the views of a run what those of another run drew: generators differ between devices."""
    for view, other in zip(optimizer._views, twin._views, strict=True):
        for key in ("a", "q", "back"):
            if hasattr(other, key):
                setattr(view, key, getattr(other, key).to(view.parameters[0]))


@every_algorithm
def test_clipped_sums_are_those_of_a_cpu(name, clipping, precision):
    x, y = data(dtype=torch.float32)
    module, optimizer = run(name, clipping, GPU, x, y)
    reference, twin = run(name, clipping, CPU, x, y)
    share_draws(twin, optimizer)
    found = sums_of(optimizer, own(module), batch_of(x, y))
    expected = sums_of(twin, own(reference), batch_of(x, y))
    assert found.device.type == GPU.type and found.dtype is torch.float64
    # TF32 rounds what forward and backward pass give to 2^-11, not what is made of it.
    limit = {"float32": 1e-4, "tf32": 2e-2}[precision]
    assert (found.cpu() - expected).norm() <= limit * expected.norm()


ON_CPU = {"encoder with a padding mask", "different lengths", "in-place operations", "several rows for a record"}
"""Models whose loss makes tensors of its own on the CPU."""


@pytest.mark.parametrize("name", sorted(MODELS.keys() - (ON_CPU if IS_CUDA else set())))
def test_clipped_sums_of_many_models_are_those_of_a_cpu(name):
    """In double precision; records come from the CPU and are moved to the device of the weights."""
    module, records, loss = build(MODELS[name])
    rows = torch.zeros(len(records))
    torch.set_default_dtype(torch.float64)
    try:
        _, optimizer, _ = private(module, rows, rows, max_grad_norm=0.5)
        expected = sums_of(optimizer, loss, records)
        module = module.to(GPU)
        _, optimizer, _ = private(module, rows, rows, max_grad_norm=0.5)
        found = sums_of(optimizer, loss, tree_map_only(torch.Tensor, torch.clone, records))
    finally:
        torch.set_default_dtype(torch.float32)
    assert (found.cpu() - expected).norm() <= 1e-9 * expected.norm()


@every_algorithm
def test_no_record_adds_more_than_the_clip(name, clipping, precision):
    """Large features, so that every record is clipped, one record a batch."""
    x, y = data(dtype=torch.float32)
    module, optimizer = run(name, clipping, GPU, x, y)
    for row in range(len(x)):
        take_in(optimizer, own(module), batch_of(100.0 * x[row : row + 1], y[row : row + 1]))
        assert 0.0 < float(clipped_sums(optimizer).norm()) <= 1.0 + 1e-9
        optimizer.step()


@pytest.mark.parametrize("tokens", [1, 3, 40])
def test_norms_and_sums_keep_precision_under_tf32(tokens, precision):
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


@pytest.mark.parametrize("options", [{}, {"pin_memory": IS_CUDA}, {"pin_memory": IS_CUDA, "num_workers": 1}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_loop_over_the_loader_trains(options, dtype):
    """Records are read on the CPU and moved; dropout and autocast run on the device."""
    x, y = data(records=60, dtype=torch.float32)
    module = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 3)).to(GPU)
    before = [p.detach().clone() for p in module.parameters()]
    _, optimizer, loader = make_private(
        module=module, optimizer=torch.optim.Adam(module.parameters(), lr=0.01), max_grad_norm=1.0,
        data_loader=DataLoader(TensorDataset(x, y), batch_size=20, **options), noise_multiplier=1.0, epochs=2,
        clipping=AdaptiveClipping(sigma=2.0),
    )  # fmt: skip

    def loss(record):
        with torch.autocast(GPU.type, dtype, enabled=dtype is torch.bfloat16):
            return own(module)(record).float()

    while optimizer.steps_left:
        for batch in loader:
            mean = optimizer.step_on(loss, batch, micro_batch_size=7)
            assert mean.device.type == GPU.type and math.isfinite(float(mean))
    moved = zip(before, module.parameters(), strict=True)
    assert all(bool((old != new).any()) and bool(new.isfinite().all()) for old, new in moved)


def test_dropout_on_the_device_ignores_the_seed_of_the_program():
    x, y = data(dtype=torch.float32)
    found, after = [], []
    for _ in range(2):
        module = nn.Sequential(nn.Dropout(0.5), mlp(dtype=torch.float32)).to(GPU)
        _, optimizer, _ = private(module, x, y)
        torch.manual_seed(0)
        found.append(sums_of(optimizer, own(module), batch_of(x, y)))
        after.append(float(torch.rand((), device=GPU)))
    torch.manual_seed(0)
    assert after == [float(torch.rand((), device=GPU))] * 2 and not torch.allclose(*found)


@cuda_only
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in WAITS])
def test_no_step_waits_for_the_gpu(name):
    """The steps after the first ones, in which the first record is computed alone too."""
    x, y = data(dtype=torch.float32)
    module, optimizer = run(name, "joint", GPU, x, y, noise_multiplier=1.0)
    batch = batch_of(x.to(GPU), y.to(GPU))

    def step():
        take_in(optimizer, own(module), batch)
        optimizer.step()

    for _ in range(5):
        step()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


# --- random numbers ---------------------------------------------------------------------------------


@cuda_only
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


@cuda_only
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
    module = OnTwoDevices()
    _, optimizer, _ = private(module, x, y, **OPTIONS.get(name, {}), algorithm=name, noise_multiplier=1.0)
    for _ in range(2):
        take_in(
            optimizer, lambda record: nn.functional.cross_entropy(module(record[0]), record[1].cpu()), batch_of(x, y)
        )
        optimizer.step()
    assert {device.type for device in optimizer._noisy_sum.streams.noise.generators} == {GPU.type, "cpu"}
    assert all(math.isfinite(float(p.sum())) for p in module.parameters())
