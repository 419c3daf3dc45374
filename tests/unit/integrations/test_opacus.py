"""Opacus, where it is installed, and its accountant where it is not."""

import json
import math
import subprocess
import sys

import pytest
from helpers import needs

import privproj
from privproj import M2, Gaussian, InvalidParameterError, Layer, PrivprojError, UnsupportedError
from privproj.integrations.opacus import ProjectionAccountant, loader_rate
from privproj.sampling import NeighboringRelation
from privproj.training.plan import Method, Plan

RELEASE = M2(dim=2048, rank=16, noise_multiplier=0.2)


class Stock:
    """What a stock optimizer shows to a hook, and a name that claims more."""

    noise_multiplier = 1.0
    release = RELEASE


class Planned:
    """An optimizer of this package, with a plan."""

    noise_multiplier = 1.0

    def __init__(self, **given):
        needs("torch", "opacus")
        options = {"clip": 1.0, "steps": 100, "sampling_rate": 0.01, "dataset_size": 1000, **given}
        mechanism = M2(dim=2048, rank=16, noise_multiplier=1.0)
        self._plan = Plan(algorithm=Method("m2", rank=16), mechanism=mechanism, ranks=(16,), **options)


@pytest.mark.extra
def test_only_projected_optimizer_is_accounted_as_m2():
    plain, projected = ProjectionAccountant(), ProjectionAccountant()
    for accountant, optimizer in ((plain, Stock()), (projected, Planned())):
        hook = accountant.get_optimizer_hook_fn(0.01)
        for _ in range(50):
            hook(optimizer)
        assert len(accountant) == 50
    run = {"delta": 1e-5, "steps": 50, "sampling_rate": 0.01}
    assert plain.get_epsilon(1e-5) == privproj.epsilon(Gaussian(noise_multiplier=1.0), **run).value
    assert projected.get_epsilon(1e-5) == privproj.epsilon(M2(dim=2048, rank=16, noise_multiplier=1.0), **run).value
    mixed = ProjectionAccountant()
    mixed.load_state_dict(json.loads(json.dumps(projected.state_dict())))
    assert mixed.get_epsilon(1e-5) == projected.get_epsilon(1e-5)
    mixed.step(noise_multiplier=1.0, sample_rate=0.01)
    assert mixed.get_epsilon(1e-5) > projected.get_epsilon(1e-5) and len(mixed) == 51
    with pytest.raises(InvalidParameterError, match="assign its history instead"):
        mixed.load_state_dict({"mechanism": "rdp", "history": []})
    with pytest.raises(InvalidParameterError, match="sample_rate"):
        mixed.step(noise_multiplier=1.0, sample_rate=1.5)
    assert ProjectionAccountant().get_epsilon(1e-5) == 0.0


def test_accountant_needs_neither_torch_nor_opacus():
    code = "import sys, privproj.integrations.opacus as m; assert not {'torch', 'opacus'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def opacus_parts(records=64, batch=8, loader=None):
    torch, opacus = needs("torch"), needs("opacus")
    from privproj.integrations.opacus import register

    register()
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 2)
    data = torch.utils.data.TensorDataset(torch.randn(records, 8), torch.randint(0, 2, (records,)))
    engine = opacus.PrivacyEngine(accountant="privproj")
    parts = {
        "module": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "data_loader": loader(data) if loader else torch.utils.data.DataLoader(data, batch_size=batch),
        "max_grad_norm": 1.0,
    }
    return engine, parts


def train(model, optimizer, loader):
    torch = needs("torch")
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


@pytest.mark.filterwarnings("ignore")
def test_stock_optimizer_is_not_accounted_as_m2():
    engine, parts = opacus_parts()
    train(*engine.make_private(**parts, noise_multiplier=1.0))
    accountant = engine.accountant
    assert {mechanism.name for mechanism, _, _ in accountant.history} == {"gaussian"}
    known = privproj.epsilon(Gaussian(noise_multiplier=1.0), delta=1e-3, steps=len(accountant), sampling_rate=0.125)
    assert engine.get_epsilon(1e-3) == known.value


ADAPTIVE = {
    "clipping": "adaptive", "target_unclipped_quantile": 0.5, "clipbound_learning_rate": 0.2, "max_clipbound": 10.0,
    "min_clipbound": 0.1, "unclipped_num_std": 2.0,
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"poisson_sampling": False}, "poisson_sampling=True"),
        ({"rand_on_empty": True}, "rand_on_empty=False"),
        (ADAPTIVE, "clipping='flat'"),
    ],
)
def test_unsupported_optimizer_is_rejected_before_step(options, text):
    engine, parts = opacus_parts()
    with pytest.raises(UnsupportedError, match=text):
        engine.make_private(**parts, noise_multiplier=1.0, **options)
    assert len(engine.accountant) == 0


@pytest.mark.filterwarnings("ignore")
def test_non_poisson_steps_are_rejected():
    needs("opacus")
    from opacus.optimizers import AdaClipDPOptimizer

    engine, parts = opacus_parts()
    model, optimizer, loader = engine.make_private(**parts, noise_multiplier=1.0)
    hook = ProjectionAccountant().get_optimizer_hook_fn(0.125)
    for batch in list(loader)[:2]:
        model.allow_grad_accumulation()
        model(batch[0]).sum().backward()
    with pytest.raises(UnsupportedError, match="2 accumulated batches"):
        optimizer.step()
    options = {key: value for key, value in ADAPTIVE.items() if key != "clipping"}
    bare = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "expected_batch_size": 8}
    with pytest.raises(UnsupportedError, match="AdaClip"):
        hook(AdaClipDPOptimizer(parts["optimizer"], **bare, **options))


@pytest.mark.filterwarnings("ignore")
def test_distributed_loader_is_rejected():
    torch, opacus = needs("torch"), needs("opacus")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        engine, parts = opacus_parts()
        parts["module"] = needs("opacus.distributed").DifferentiallyPrivateDistributedDataParallel(parts["module"])
        loader = opacus.data_loader.DPDataLoader.from_data_loader(parts["data_loader"], distributed=True)
        with pytest.raises(UnsupportedError, match="distributed loader"):
            loader_rate(loader)
        with pytest.raises(UnsupportedError, match="DistributedDPOptimizer"):
            engine.make_private(**parts, noise_multiplier=1.0)
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
def test_loader_rate_equals_rate_of_sampler():
    torch = needs("torch")
    for length, batch in ((64, 9), (70, 7), (1000, 7)):
        engine, parts = opacus_parts(length, batch)
        train(*engine.make_private(**parts, noise_multiplier=1.0)[:2], [(torch.randn(3, 8), torch.tensor([0, 1, 0]))])
        ((_, rate, _),) = engine.accountant.history
        below = torch.arange(2**24, dtype=torch.float32) * 2.0**-24 < 1 / math.ceil(length / batch)
        assert rate == int(below.sum()) / 2**24 >= 1 / math.ceil(length / batch) - 1e-12


@pytest.mark.filterwarnings("ignore")
def test_opacus_calibrates_with_accountant():
    engine, parts = opacus_parts()
    _, optimizer, _ = engine.make_private_with_epsilon(**parts, target_epsilon=2.0, target_delta=1e-3, epochs=2)
    run = {"delta": 1e-3, "steps": 16, "sampling_rate": 0.125}
    found = privproj.epsilon(Gaussian(noise_multiplier=optimizer.noise_multiplier), **run).value
    assert 1.98 < found <= 2.0


def test_foreign_accountant_state_is_rejected():
    accountant = ProjectionAccountant()
    accountant.record(M2(layers=(Layer(dim=64, rank=4, count=2),), noise_multiplier=1.0), 0.01, 7)
    accountant.step(noise_multiplier=1.0, sample_rate=0.01)
    state = json.loads(json.dumps(accountant.state_dict()))
    again = ProjectionAccountant()
    again.load_state_dict(state)
    assert again.history == accountant.history
    wrong = [
        ("relation", "replace"), ("relation", "zero-out"), ("group_size", 3), ("sampling", "fixed"), ("planned", True),
        ("bound", "gaussian"), ("epochs", 3), ("steps", 0), ("sampling_rate", 2.0), ("mechanism", "wishart"),
        ("noise_multiplier", "1"), ("fixed_projection", True),
    ]  # fmt: skip
    for key, value in wrong:
        phases = [state["phases"][0] | {key: value}, state["phases"][1]]
        with pytest.raises(PrivprojError):
            again.load_state_dict({**state, "phases": phases})
            again.get_epsilon(1e-5)
    for phases in (None, {}, "phases", [3]):
        with pytest.raises(InvalidParameterError):
            again.load_state_dict({**state, "phases": phases})
    with pytest.raises(InvalidParameterError, match="phases"):
        again.load_state_dict({"mechanism": "privproj"})


@pytest.mark.parametrize("steps", [0, -4, 2.5])
def test_accountant_never_removes_steps(steps):
    accountant = ProjectionAccountant()
    accountant.record(Gaussian(noise_multiplier=1.0), 0.01, 5)
    with pytest.raises(InvalidParameterError, match="steps must be an integer >= 1"):
        accountant.record(Gaussian(noise_multiplier=1.0), 0.01, steps)
    assert len(accountant) == 5


def test_accountant_ignores_no_option():
    accountant = ProjectionAccountant()
    accountant.step(noise_multiplier=1.0, sample_rate=0.01)
    known = accountant.get_epsilon(1e-5)
    assert accountant.get_epsilon(1e-5, poisson=True, alphas=None, eps_error=0.1) == known
    with pytest.raises(UnsupportedError, match="poisson"):
        accountant.get_epsilon(1e-5, poisson=False)
    with pytest.raises(TypeError, match="relation"):
        accountant.get_epsilon(1e-5, relation="replace")
    with pytest.raises(InvalidParameterError, match="delta"):
        ProjectionAccountant().get_epsilon(1.5)


def test_accountant_counts_entries_of_history():
    one, other = ProjectionAccountant(), ProjectionAccountant()
    one.history.append((1.0, 0.01, 1000))
    other.history = [(1.0, 0.01, 10)]
    other.history[-1] = (1.0, 0.01, 1000)
    again = ProjectionAccountant()
    again.history = one.history
    assert one.get_epsilon(1e-5) == other.get_epsilon(1e-5) == again.get_epsilon(1e-5) > 1.8


@pytest.mark.extra
def test_plan_with_other_sampling_is_rejected():
    hook = ProjectionAccountant().get_optimizer_hook_fn(0.01)
    hook(Planned())
    with pytest.raises(UnsupportedError, match="replace"):
        hook(Planned(relation=NeighboringRelation.REPLACE, sampling_rate=1.0))
    with pytest.raises(UnsupportedError, match="fixed"):
        hook(Planned(sampling="fixed", relation=NeighboringRelation.REPLACE))
    with pytest.raises(UnsupportedError, match="balls-in-bins"):
        hook(Planned(sampling="balls-in-bins", batches=100))
    with pytest.raises(UnsupportedError, match="supports Poisson sampling of single records"):
        hook(Planned(relation=NeighboringRelation.ZERO_OUT, max_batch_size=20))
    with pytest.raises(UnsupportedError, match="group_size=4"):
        hook(Planned(group_size=4))
    with pytest.raises(InvalidParameterError, match="sample_rate"):
        hook(Planned(sampling_rate=0.02))
