"""Whole steps on torch's ``meta`` device, where any look at a value raises an error, and so does mixing of devices.

What runs there waits for no GPU and has no tensor on a wrong device.
"""

import pytest
from helpers import full_if, needs

torch = needs("torch")

from torch.utils._pytree import tree_map_only  # noqa: E402
from unit.training.helpers import data, mlp, orthonormal, private, step, take_in  # noqa: E402
from unit.training.models import MODELS, build  # noqa: E402

from privproj.training import AdaptiveClipping, Subspace, generators  # noqa: E402
from privproj.training.algorithms import ALGORITHMS, load  # noqa: E402

META = torch.device("meta")
OPTIONS = {name: {"rank": 3} for name in ("m2", "m2-projected-clip", "projected-dp-sgd", "flora")}
WAITS = {"prism": "it looks at its bases in every step"}
"""Algorithms whose step looks at values, and why."""


@pytest.fixture(autouse=True)
def numbers(monkeypatch):
    """Random numbers on the device come from a generator of the CPU, since it has none; nor does it know autocast."""
    plain = generators.generator
    monkeypatch.setattr(generators, "generator", lambda device, seed: plain(generators.CPU, seed))
    autocast = torch.is_autocast_enabled
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda kind: kind != "meta" and autocast(kind))


def on_meta(algorithm, clipping="joint", tokens=None, **more):
    """A run whose module, data and subspace are on the meta device, after its first batches."""
    x, y = data(tokens=tokens, dtype=torch.float32)
    module, adapt = mlp(dtype=torch.float32), load(algorithm).adapt
    module = (module if adapt is None else adapt(module, 3)).to(META)
    more = {**OPTIONS.get(algorithm, {}), **more}
    if load(algorithm).needs_subspace:
        more["subspace"] = Subspace(orthonormal(sum(p.numel() for p in module.parameters()), 4).float(), "public")
        object.__setattr__(more["subspace"], "basis", more["subspace"].basis.to(META))
    _, optimizer, _ = private(module, x, y, algorithm=algorithm, clipping=clipping, noise_multiplier=1.0, **more)
    return module, past_first_batches(optimizer), x.to(META), y.to(META)


def past_first_batches(optimizer):
    """Leave out what is looked at in the first batches only."""
    optimizer._batches_seen, optimizer._noisy_sum.has_gradients = 2, True
    return optimizer


CASES = [
    (name, clipping)
    for name in ALGORITHMS
    for clipping in ("joint", "per-layer")
    if name not in WAITS and (clipping == "joint" or not load(name).needs_subspace)
]


@pytest.mark.parametrize("tokens", [None, 9])
@pytest.mark.parametrize(("algorithm", "clipping"), CASES, ids=lambda part: part)
def test_step_of_every_algorithm_looks_at_no_value(algorithm, clipping, tokens):
    module, optimizer, x, y = on_meta(algorithm, clipping, tokens)
    step(module, optimizer, x, y)
    step(module, optimizer, x, y, 5)
    assert optimizer.steps_done == 2 and all(p.device == META for p in module.parameters())


def test_momentum_and_adam_run_on_the_device():
    x, y = data(dtype=torch.float32)
    for kind in (lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9), lambda p: torch.optim.Adam(p, lr=0.1)):
        module = mlp(dtype=torch.float32).to(META)
        _, optimizer, _ = private(module, x, y, kind, algorithm="m2", rank=3, noise_multiplier=1.0)
        step(module, past_first_batches(optimizer), x.to(META), y.to(META))


ON_CPU = {"encoder with a padding mask", "different lengths", "in-place operations", "several rows for a record"}
"""Models whose loss makes tensors of its own on the CPU."""
LOOKS = {"branches", "detection"}
"""Models whose loss looks at values."""
QUICK = {"perceptron", "convolutions", "attention", "tied table and layer used twice", "vision transformer"}
CHECKPOINTED = {"checkpoint", "reentrant checkpoint"}
"""Models that recompute under autocast, which does not know the device."""


@pytest.mark.parametrize(
    "name", full_if(sorted(MODELS.keys() - ON_CPU - LOOKS - CHECKPOINTED), lambda name: name not in QUICK)
)
def test_step_of_many_models_looks_at_no_value(name):
    module, records, loss = build(MODELS[name])
    module = module.to(META)
    records = tree_map_only(torch.Tensor, lambda tensor: tensor.to(META), records)
    _, optimizer, _ = private(module, torch.zeros(5), torch.zeros(5), noise_multiplier=1.0)
    take_in(past_first_batches(optimizer), loss, records)
    optimizer.step()


@pytest.mark.parametrize("options", [{"algorithm": "prism"}, {"clipping": AdaptiveClipping(sigma=1.0)}], ids=str)
def test_known_looks_at_values_raise(options):
    """Negative control: PRISM looks at its bases, and the next clip is a number of the program."""
    with pytest.raises(RuntimeError, match="cannot be called on meta tensors"):
        module, optimizer, x, y = on_meta(**{"algorithm": "dp-sgd", **options})
        step(module, optimizer, x, y)


def test_branches_and_first_batches_look_at_values():
    """Negative control: a first batch is compared with one record alone, and branches need their condition."""
    module, optimizer, x, y = on_meta("dp-sgd")
    optimizer._batches_seen = 0
    with pytest.raises((RuntimeError, NotImplementedError), match="meta tensor"):
        step(module, optimizer, x, y)
    module, records, loss = build(MODELS["branches"])
    _, optimizer, _ = private(module.to(META), torch.zeros(9), torch.zeros(9))
    records = tree_map_only(torch.Tensor, lambda tensor: tensor.to(META), records)
    with pytest.raises((RuntimeError, NotImplementedError), match="meta tensor"):
        take_in(past_first_batches(optimizer), loss, records)
