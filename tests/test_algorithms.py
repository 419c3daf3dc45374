"""PRISM, DP-SFT, re-sampled LoRA, Flora, projected descent, PEFT: identities and equivalences."""

import math

import numpy as np
import pytest

import privproj
from privproj.errors import InvalidParameter, Refused
from privproj.records.ledger import Account, read

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

from test_training import DOUBLE, data, gradients, losses_of, mlp, one_step, private, state  # noqa: E402
from torch import nn  # noqa: E402

from privproj.training import (  # noqa: E402
    ProjectedDescent,
    Steps,
    Subspace,
    Trajectory,
    add_frozen_lora,
    add_prism,
    leading,
    prepare_peft,
)
from privproj.training.algorithms import fixed_rank  # noqa: E402
from privproj.training.algorithms.fixed_rank import Point  # noqa: E402
from privproj.training.generators import streams  # noqa: E402

TOLERANCE = {DOUBLE: 1e-6, torch.float32: 1e-4}


def step(module, optimizer, x, y):
    optimizer.turn.open(len(x))
    optimizer.backward(losses_of(module, x, y))
    optimizer.step()


# --- the tangent space ------------------------------------------------------------------------------


def point(m=9, n=7, r=3, dtype=DOUBLE, seed=0):
    draw = torch.Generator().manual_seed(seed)
    u, v = (torch.linalg.qr(torch.randn(side, r, generator=draw, dtype=dtype))[0] for side in (m, n))
    return Point(u, torch.rand(r, generator=draw, dtype=dtype).sort(descending=True)[0] + 0.1, v)


def gradient(at, seed=1):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(len(at.u), len(at.v), generator=draw, dtype=at.u.dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_projection_is_orthogonal_and_its_coordinates_an_isometry(dtype):
    at, close = point(dtype=dtype), {"rtol": TOLERANCE[dtype], "atol": TOLERANCE[dtype]}
    g, other = gradient(at), gradient(at, 2)
    xi = fixed_rank.projected(g, at)
    p, q = at.u @ at.u.T, at.v @ at.v.T
    assert torch.allclose(xi.matrix(at), p @ g + g @ q - p @ g @ q, **close)
    assert torch.allclose(fixed_rank.projected(xi.matrix(at), at).flat(), xi.flat(), **close)
    left, right = (xi.matrix(at) * other).sum(), (g * fixed_rank.projected(other, at).matrix(at)).sum()
    assert torch.allclose(left, right, **close)
    energy = (g @ at.v).square().sum() + (at.u.T @ g).square().sum() - (at.u.T @ g @ at.v).square().sum()
    assert torch.allclose(xi.flat().square().sum(), energy, **close)
    assert torch.allclose(xi.matrix(at).square().sum(), energy, **close)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("shape", [(9, 7, 3), (4, 7, 3), (5, 4, 4), (6, 6, 1)])
def test_the_retraction_is_the_truncated_svd(dtype, shape):
    at = point(*shape, dtype=dtype)
    xi = fixed_rank.projected(gradient(at), at)
    new = fixed_rank.retracted(at, xi, 0.3)
    u, s, vt = torch.linalg.svd(at.matrix() - 0.3 * xi.matrix(at))
    best = (u[:, : shape[2]] * s[: shape[2]]) @ vt[: shape[2]]
    assert torch.allclose(new.matrix(), best, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert torch.allclose(new.u.T @ new.u, torch.eye(shape[2], dtype=dtype), atol=TOLERANCE[dtype])
    assert (new.s >= 0).all() and (new.s.diff() <= 0).all()


def test_transport_is_the_projection_at_the_new_point():
    at = point()
    xi = fixed_rank.projected(gradient(at), at)
    new = fixed_rank.retracted(at, fixed_rank.projected(gradient(at, 3), at), 0.5)
    expected = fixed_rank.projected(xi.matrix(at), new)
    assert torch.allclose(fixed_rank.transported(xi, at, new).flat(), expected.flat(), atol=1e-12)


def test_the_lift_is_horizontal_and_carries_the_tangent_vector():
    at = point()
    xi = fixed_rank.projected(gradient(at), at)
    a, b = at.u * at.s.sqrt(), at.v * at.s.sqrt()
    da, db = fixed_rank.lifted(xi, at)
    assert torch.allclose(da @ b.T + a @ db.T, xi.matrix(at), atol=1e-12)
    assert torch.allclose(a.T @ da, db.T @ b, atol=1e-12)


def test_the_noise_moment_of_the_lift():
    at, draws = point(), []
    stream = torch.Generator().manual_seed(0)
    for _ in range(20_000):
        row = 0.2 * torch.randn(fixed_rank.size(9, 7, 3), generator=stream, dtype=DOUBLE)
        da, _ = fixed_rank.lifted(fixed_rank.from_flat(row, at), at)
        draws.append(da.T @ da / 9)
    mean = torch.stack(draws).mean(0)
    known = torch.diag(fixed_rank.noise_moment(at.s, 9, 0.2))
    assert torch.allclose(mean, known, rtol=0.05, atol=0.02 * float(known.max()))


def test_the_noise_is_isotropic_on_the_tangent_space_and_nowhere_free():
    """Its covariance is the tangent projector, of rank r (m + n - r): every linear functional of a release is noisy."""
    at = point(5, 4, 2)
    rows = torch.eye(fixed_rank.size(5, 4, 2), dtype=DOUBLE)
    lifted = torch.stack([fixed_rank.from_flat(row, at).matrix(at).flatten() for row in rows])
    covariance = lifted.T @ lifted
    assert torch.allclose(covariance @ covariance, covariance, atol=1e-12)
    assert torch.linalg.matrix_rank(covariance) == 2 * (5 + 4 - 2) == round(float(covariance.trace()))


def test_the_energy_of_the_noise():
    module = add_prism(nn.Linear(30, 20).double(), 4)
    x, y = data(width=30)
    _, optimizer, _ = private(module, x, y, algorithm="prism", noise_multiplier=3.0)
    view, energies = optimizer.views[0], []
    for _ in range(400):
        optimizer.turn.open(0)
        optimizer.turn.close()
        optimizer.boundary.record = lambda: None
        (mean,) = optimizer.boundary.release()
        energies.append(float(fixed_rank.from_flat(mean, view.point).flat().norm()))
    known = 3.0 / 12 * math.sqrt(4 * (20 + 30 - 4))
    assert abs(np.mean(np.square(energies)) - known**2) < 5 * np.std(np.square(energies)) / math.sqrt(400)


# --- PRISM ------------------------------------------------------------------------------------------


def prism_model(rank, steps=None, hidden=5):
    torch.manual_seed(2)
    return add_prism(mlp(hidden=hidden), rank, steps=steps, insecure_seed=4)


def test_the_joint_tangent_norms_are_those_of_materialised_gradients():
    x, y = data(tokens=3)
    module = prism_model(2)
    layers = [part for part in module if hasattr(part, "base")]
    with torch.no_grad():
        for layer in layers:
            layer.s.copy_(torch.tensor([0.7, 0.2]))
    dense = mlp()
    with torch.no_grad():
        for layer, copy in zip(layers, (dense[0], dense[2]), strict=True):
            copy.weight.copy_(layer.base.weight + (layer.u * layer.s) @ layer.v.T)
            copy.bias.copy_(layer.base.bias)
    rows, norms = gradients(dense, x, y), torch.zeros(12, dtype=DOUBLE)
    sizes = [p.numel() for p in dense.parameters()]
    for layer, part in zip(layers, (rows.split(sizes, 1)[0], rows.split(sizes, 1)[2]), strict=True):
        at = Point(layer.u.detach(), layer.s.detach(), layer.v.detach())
        norms += torch.stack([fixed_rank.projected(g.view(len(at.u), -1), at).flat().square().sum() for g in part])
    _, optimizer, _ = private(module, x, y, algorithm="prism")
    losses_of(module, x, y).sum().backward()
    found = sum(view.squared_norms() for view in optimizer.views)
    assert torch.allclose(found, norms, rtol=1e-9)


def test_full_rank_prism_is_dp_sgd():
    x, y = data(width=4)
    layer = nn.Linear(4, 4, bias=False).double()
    plain = nn.Linear(4, 4, bias=False).double()
    plain.weight.data = layer.weight.data.clone()
    change = one_step(plain, x, y, max_grad_norm=0.5)
    module = add_prism(layer, 4)
    _, optimizer, _ = private(module, x, y, algorithm="prism", max_grad_norm=0.5)
    step(module, optimizer, x, y)
    found = -12 * (module.u * module.s) @ module.v.T
    assert torch.allclose(found.flatten(), change, rtol=1e-8, atol=1e-12)


def test_prism_does_not_depend_on_the_gauge():
    """Turning U and V by one rotation where singular values are equal changes nothing."""
    x, y = data()
    turn = torch.linalg.qr(torch.randn(2, 2, dtype=DOUBLE))[0]
    found = []
    for rotation in (torch.eye(2, dtype=DOUBLE), turn):
        module = add_prism(mlp()[0], 2, insecure_seed=4)
        with torch.no_grad():
            module.s.fill_(0.5)
            module.u.copy_(module.u @ rotation)
            module.v.copy_(module.v @ rotation)
        _, optimizer, _ = private(module, x, y, algorithm="prism", max_grad_norm=0.3)
        step(module, optimizer, x, y % 5)
        found.append((module.u * module.s) @ module.v.T)
    assert torch.allclose(*found, atol=1e-10)


def test_the_part_of_prism_with_fixed_rows_is_lora_fa():
    """Keeping only G V of the tangent vector, clipped on it, is DP-LoRA-FA with A = V^T."""
    x, y = data()
    layer = nn.Linear(6, 3, bias=False).double()
    v = torch.linalg.qr(torch.randn(6, 2, dtype=DOUBLE))[0]
    adapted = add_frozen_lora(nn.Linear(6, 3, bias=False).double(), 2)
    adapted.base.weight.data, adapted.lora_A.weight.data = layer.weight.data.clone(), v.T.clone()
    rows = gradients(layer, x, y).view(12, 3, 6) @ v
    norms = rows.flatten(1).norm(dim=1) * (1 + 1e-6)
    expected = (rows * (0.4 / norms).clamp_max(1.0)[:, None, None]).sum(0)
    one_step(adapted, x, y, algorithm="lora-fa", max_grad_norm=0.4)
    assert torch.allclose(-12 * adapted.lora_B.weight, expected, rtol=1e-9)


@pytest.mark.parametrize("kind", ["plain", "adaptive"])
def test_prism_from_zero_reaches_a_matrix_of_its_rank(kind):
    """f(Z) = |Z - target|^2 through per-example losses of a linear layer, started at s = 0."""
    draw = torch.Generator().manual_seed(0)
    target = point(5, 6, 2, seed=5).matrix()
    x = torch.randn(64, 6, generator=draw, dtype=DOUBLE)
    base = nn.Linear(6, 5, bias=False).double()
    base.weight.data.zero_()
    module = add_prism(base, 2, steps=Steps(kind=kind, momentum=0.5 if kind == "plain" else 0.8))
    rate = 0.3 if kind == "plain" else 0.02
    sgd = lambda p: torch.optim.SGD(p, lr=rate)  # noqa: E731
    _, optimizer, _ = private(
        module, x, torch.zeros(64), sgd, algorithm="prism", max_grad_norm=1e6, steps=800, noise_multiplier=1e-12
    )
    wanted = x @ target.T
    for _ in range(800):
        optimizer.turn.open(64)
        optimizer.backward(0.5 * (module(x) - wanted).square().sum(1))
        optimizer.step()
    error = ((module.u * module.s) @ module.v.T - target).norm() / target.norm()
    assert error < (1e-6 if kind == "plain" else 0.05)


def test_momentum_is_transported():
    x, y = data()
    module = prism_model(2, Steps(momentum=0.9))
    _, optimizer, _ = private(module, x, y, algorithm="prism")
    view = optimizer.views[0]
    step(module, optimizer, x, y)
    for part, basis in ((view.moment.up, view.point.u), (view.moment.vp, view.point.v)):
        assert torch.allclose(basis.T @ part, torch.zeros(2, 2, dtype=DOUBLE), atol=1e-12)


def test_the_adaptive_step_does_not_depend_on_the_frame():
    at, found = point(), []
    for flip in (1.0, -1.0):
        turned = Point(at.u * flip, at.s, at.v * flip)
        layer = add_prism(nn.Linear(7, 9).double(), 3, steps=Steps(kind="adaptive", momentum=0.5))
        with torch.no_grad():
            for parameter, value in zip((layer.u, layer.s, layer.v), (turned.u, turned.s, turned.v), strict=True):
                parameter.copy_(value)
        _, optimizer, _ = private(layer, *data(width=7), algorithm="prism", noise_multiplier=0.1)
        view = optimizer.views[0]
        for seed in (1, 2, 3):
            g = gradient(at, seed)
            view.apply(fixed_rank.projected(g, view.point).flat(), {"lr": 0.05}, plain=True)
        found.append(view.point.matrix())
    assert torch.allclose(*found, atol=1e-9)


def test_bases_that_were_edited_are_mended_or_refused():
    x, y = data()
    module = prism_model(2)
    with torch.no_grad():
        module[0].s.fill_(0.5)
        module[0].u.mul_(2.0)
    before = ((module[0].u * module[0].s) @ module[0].v.T).detach().clone()
    _, optimizer, _ = private(module, x, y, algorithm="prism", max_grad_norm=1e-3)
    assert torch.allclose((module[0].u * module[0].s) @ module[0].v.T, before, atol=1e-12)
    optimizer.turn.open(1)
    optimizer.backward(losses_of(module, x[:1], y[:1]))
    assert torch.cat([s.flatten() for s in optimizer.boundary.sums]).norm() <= 1e-3
    optimizer.step()
    with torch.no_grad():
        module[0].u.mul_(2.0)
    optimizer.turn.open(1)
    with pytest.raises(InvalidParameter, match="not orthonormal"):
        optimizer.backward(losses_of(module, x[:1], y[:1]))


def test_a_layer_with_one_output_trains():
    for seed in range(6):
        module = add_prism(nn.Linear(6, 1).double(), 1, insecure_seed=seed)
        _, optimizer, _ = private(module, *data(), algorithm="prism", noise_multiplier=1.0)
        optimizer.turn.open(0)
        optimizer.step()


def test_prism_is_accounted_as_the_gaussian_mechanism_and_needs_its_layers():
    x, y = data()
    plan = private(prism_model(2), x, y, algorithm="prism", noise_multiplier=1.5)[1].plan
    assert plan.mechanism == privproj.Gaussian(noise_multiplier=1.5)
    with pytest.raises(InvalidParameter, match="add_prism"):
        private(mlp(), x, y, algorithm="prism")
    with pytest.raises(InvalidParameter, match="add_prism"):
        private(prism_model(2), x, y, algorithm="m2", rank=1)
    with pytest.raises(InvalidParameter, match="smaller side"):
        prism_model(4)


# --- DP-SFT -----------------------------------------------------------------------------------------


def orthonormal(rows, k, seed=0):
    return torch.linalg.qr(torch.randn(rows, k, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE))[0]


def directional(direction, x, y):
    """The forward-mode derivative of every loss along one direction of all weights."""
    model = mlp()
    weights = {name: p.detach() for name, p in model.named_parameters()}
    parts = direction.split([p.numel() for p in weights.values()])
    along = {name: part.view_as(weights[name]) for name, part in zip(weights, parts, strict=True)}

    def losses(tensors):
        return losses_of(lambda inputs: torch.func.functional_call(model, tensors, (inputs,)), x, y)

    return torch.func.jvp(losses, (weights,), (along,))[1]


@pytest.mark.parametrize("mode", ["full", "subspace"])
@pytest.mark.parametrize("tokens", [None, 4])
def test_coordinates_are_directional_derivatives(mode, tokens):
    x, y = data(tokens=tokens)
    basis = orthonormal(sum(p.numel() for p in mlp().parameters()), 3)
    module = mlp()
    subspace = Subspace(basis, "public", mode)
    held = (lambda p: torch.optim.SGD([subspace.phi], lr=1.0)) if mode == "subspace" else None
    before = state(module)
    _, optimizer, _ = private(module, x, y, held, algorithm="dp-sft", subspace=subspace, max_grad_norm=0.3)
    rows = gradients(mlp(), x, y) @ basis
    assert torch.allclose(directional(basis[:, 0], x, y), rows[:, 0], rtol=1e-6, atol=1e-9)
    step(module, optimizer, x, y)
    norms = rows.norm(dim=1) * (1 + 1e-6)
    expected = basis @ (rows * (0.3 / norms).clamp_max(1.0)[:, None]).sum(0)
    assert torch.allclose(12 * (before - state(module)), expected, rtol=1e-8, atol=1e-11)


def test_the_whole_space_is_dp_sgd():
    x, y = data()
    total = sum(p.numel() for p in mlp().parameters())
    module, expected = mlp(), one_step(mlp(), x, y)
    before = state(module)
    _, optimizer, _ = private(module, x, y, algorithm="dp-sft", subspace=Subspace(orthonormal(total, total), "public"))
    step(module, optimizer, x, y)
    assert torch.allclose(12 * (before - state(module)), expected, rtol=1e-8, atol=1e-11)


def test_turning_the_basis_changes_nothing():
    x, y = data()
    basis = orthonormal(sum(p.numel() for p in mlp().parameters()), 3)
    found = []
    for turned in (basis, basis @ orthonormal(3, 3, 9)):
        module = mlp()
        _, optimizer, _ = private(module, x, y, algorithm="dp-sft", subspace=Subspace(turned, "public"))
        step(module, optimizer, x, y)
        found.append(state(module))
    assert torch.allclose(*found, atol=1e-12)


def test_lora_fa_is_a_subspace():
    """With A = V^T orthonormal, training B is DP-SFT with the directions e_a v_b^T."""
    x, y = data()
    layer, v = nn.Linear(6, 3, bias=False).double(), orthonormal(6, 2)
    adapted = add_frozen_lora(nn.Linear(6, 3, bias=False).double(), 2)
    adapted.base.weight.data, adapted.lora_A.weight.data = layer.weight.data.clone(), v.T.clone()
    basis = torch.stack([torch.outer(e, v[:, b]).flatten() for e in torch.eye(3, dtype=DOUBLE) for b in range(2)], 1)
    before = layer.weight.detach().clone()
    _, optimizer, _ = private(layer, x, y, algorithm="dp-sft", subspace=Subspace(basis, "public"), max_grad_norm=0.4)
    step(layer, optimizer, x, y)
    one_step(adapted, x, y, algorithm="lora-fa", max_grad_norm=0.4)
    moved = adapted.lora_B.weight @ adapted.lora_A.weight
    assert torch.allclose(layer.weight - before, moved, rtol=1e-8, atol=1e-12)


def test_the_leading_directions_are_the_right_singular_vectors():
    rows = torch.randn(8, 40, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    basis = leading(rows, 3)
    _, _, vt = torch.linalg.svd(rows, full_matrices=False)
    assert torch.allclose(basis.T @ basis, torch.eye(3, dtype=DOUBLE), atol=1e-12)
    assert torch.allclose(basis @ basis.T, vt[:3].T @ vt[:3], atol=1e-9)
    assert leading(torch.outer(rows[:, 0], rows[0]), 5).shape == (40, 1)
    with pytest.raises(InvalidParameter, match="moved"):
        leading(torch.zeros(3, 5), 2)


def test_both_stages_are_accounted_and_share_a_ledger(tmp_path):
    x, y = data(records=40)
    module, path = mlp(), str(tmp_path / "ledger.jsonl")
    _, search, loader = private(module, x, y, noise_multiplier=4.0, steps=12, sampling_rate=0.5, ledger=path)
    trajectory = Trajectory(search, 4)
    with pytest.raises(InvalidParameter, match="12 steps left"):
        trajectory.subspace()
    with pytest.raises(InvalidParameter, match="each of the 12 steps"):
        Trajectory(search, 13)
    while search.steps < 12:
        for a, b in loader:
            search.backward(losses_of(module, a, b))
            search.step()
    search.close()
    assert len(trajectory.rows) == 4 and trajectory.every == 3
    subspace = trajectory.subspace()
    options = {"algorithm": "dp-sft", "subspace": subspace, "sampling_rate": 0.5, "steps": 8}
    with pytest.raises(InvalidParameter, match="one ledger for both"):
        private(module, x, y, **options, ledger=str(tmp_path / "other.jsonl"))
    target = {"noise_multiplier": None, "epsilon": 3.0, "delta": 1e-5}
    _, tuned, loader = private(module, x, y, **options, **target, ledger=path)
    while tuned.steps < 8:
        for a, b in loader:
            tuned.backward(losses_of(module, a, b))
            tuned.step()
    tuned.close()
    assert 2.99 < tuned.epsilon(1e-5).value <= 3.0 and read(path).spent == 20
    assert tuned.epsilon(1e-5).value == read(path).epsilon(1e-5).value
    alone = privproj.epsilon(tuned.plan.mechanism, delta=1e-5, steps=8, sampling_rate=0.5).value
    assert tuned.epsilon(1e-5).value > alone


def test_a_subspace_says_where_it_is_from():
    basis = orthonormal(20, 2)
    cases = (("private", None, "public or dp"), ("dp", None, "account"), ("public", Account(), "account"))
    for source, account, words in cases:
        with pytest.raises(InvalidParameter, match=words):
            Subspace(basis, source, account=account)
    with pytest.raises(InvalidParameter, match="orthonormal"):
        Subspace(2 * basis, "public")
    with pytest.raises(InvalidParameter, match="trained weights"):
        private(mlp(), *data(), algorithm="dp-sft", subspace=Subspace(basis, "public"))
    with pytest.raises(InvalidParameter, match="a subspace for dp-sft"):
        private(mlp(), *data(), algorithm="dp-sft")


# --- re-sampled factors --------------------------------------------------------------------------------


def test_resampling_merges_and_keeps_the_function():
    x, y = data()
    module = add_frozen_lora(mlp(), 2, insecure_seed=1)
    _, optimizer, _ = private(module, x, y, algorithm="lora-resampled", every=3)
    layer = module[0]
    for count in range(1, 7):
        old = layer.lora_A.weight.clone()
        step(module, optimizer, x, y)
        assert torch.equal(old, layer.lora_A.weight) == (count % 3 != 0)
        assert bool(layer.lora_B.weight.any()) == (count % 3 != 0)
    assert optimizer.plan.mechanism.name == "gaussian"
    layer.lora_B.weight.data.normal_()
    before = module(x).detach()
    layer.merge(streams(insecure_seed=0).projection)
    assert torch.allclose(module(x), before, atol=1e-12)


def test_resampling_every_step_with_orthonormal_factors_is_projected_clipping():
    x, y = data()
    plain, adapted = nn.Linear(6, 3, bias=False).double(), add_frozen_lora(nn.Linear(6, 3, bias=False).double(), 2)
    adapted.base.weight.data = plain.weight.detach().clone()
    _, ours, _ = private(plain, x, y, algorithm="m2-projected-clip", rank=2, noise_multiplier=0.7, insecure_seed=5)
    adapted.lora_A.weight.data = ours.views[0].q.T.clone()
    _, theirs, _ = private(adapted, x, y, algorithm="lora-resampled", noise_multiplier=0.7, insecure_seed=5)
    before = plain.weight.detach().clone()
    step(plain, ours, x, y)
    step(adapted, theirs, x, y)
    assert torch.allclose((plain.weight - before) * 2 / 6, adapted.base.weight - before, rtol=1e-8, atol=1e-12)


def test_the_sketch_of_flora_is_unbiased():
    _, optimizer, _ = private(mlp(), *data(), algorithm="flora", rank=4)
    view, drawn = optimizer.views[0], streams(insecure_seed=2)
    mean = torch.zeros(7, 7, dtype=DOUBLE)
    for _ in range(4000):
        view.refresh(drawn)
        mean += view.a.T @ view.a / 4000
    assert torch.allclose(mean, torch.eye(7, dtype=DOUBLE), atol=0.1)


def test_flora_without_momentum_is_a_clipped_sketched_step():
    x, y = data()
    layer = nn.Linear(6, 3, bias=False).double()
    before, rows = layer.weight.detach().clone(), gradients(layer, x, y).view(12, 3, 6)
    _, optimizer, _ = private(layer, x, y, algorithm="flora", rank=4, beta=0.0, max_grad_norm=0.4)
    a = optimizer.views[0].a
    step(layer, optimizer, x, y)
    sketched = rows @ a.T
    norms = sketched.flatten(1).norm(dim=1) * (1 + 1e-6)
    expected = (sketched * (0.4 / norms).clamp_max(1.0)[:, None, None]).sum(0) @ a
    assert torch.allclose(12 * (before - layer.weight), expected, rtol=1e-9, atol=1e-12)


def test_flora_keeps_its_sketch_and_carries_its_momentum():
    x, y = data()
    module = mlp()
    _, optimizer, _ = private(module, x, y, algorithm="flora", rank=4, every=2, beta=0.5)
    view, sketches = optimizer.views[0], []
    for _ in range(4):
        sketches.append(view.a)
        old = view.moment
        step(module, optimizer, x, y)
    assert sketches[0] is sketches[1] and sketches[1] is not sketches[2] and sketches[2] is sketches[3]
    assert old is not None and view.moment.shape == (5, 4)
    carried = view.moment
    view.refresh(streams(insecure_seed=1))
    assert view.moment is carried or torch.allclose(view.moment, carried @ sketches[3] @ view.a.T, rtol=1e-9)


def test_projected_descent_stays_in_its_range_and_has_no_epsilon():
    x, y = data()
    module = mlp()
    before = state(module)
    descent = ProjectedDescent(module, 3, lr=0.1)
    moves = []
    for _ in range(5):
        losses_of(module, x, y).mean().backward()
        descent.step()
        moves.append(state(module) - before)
    assert torch.linalg.matrix_rank(torch.stack(moves), rtol=1e-9) <= 3
    outside = moves[-1] - descent.z @ torch.linalg.lstsq(descent.z, moves[-1][:, None]).solution[:, 0]
    assert outside.norm() < 1e-9 * moves[-1].norm() + 1e-12
    with pytest.raises(Refused, match="no epsilon"):
        descent.epsilon(1e-5)


# --- PEFT ---------------------------------------------------------------------------------------------


@pytest.fixture
def peft_model():
    """A small randomly initialised transformer, wrapped by PEFT; nothing is downloaded."""
    peft, transformers = pytest.importorskip("peft"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=20, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=16,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0))


def text(records=8):
    draw = torch.Generator().manual_seed(0)
    return torch.randint(0, 20, (records, 6), generator=draw)


def text_losses(model, tokens):
    logits = model(input_ids=tokens).logits[:, :-1]
    flat = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    return flat.view(len(tokens), -1).mean(1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("algorithm", ["lora-fa", "m2"])
def test_a_peft_model_trains(peft_model, algorithm):
    tokens = text()
    model = prepare_peft(peft_model, algorithm)
    options = {"rank": 3} if algorithm == "m2" else {}
    sgd = lambda p: torch.optim.SGD(p, lr=0.5)  # noqa: E731
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    _, optimizer, loader = private(
        model, tokens, tokens, sgd, algorithm=algorithm, noise_multiplier=0.01, steps=4, **options
    )
    first = text_losses(model, tokens).mean()
    while optimizer.steps < 4:
        for rows, _ in loader:
            optimizer.backward(text_losses(model, rows))
            optimizer.step()
    part = "lora_B" if algorithm == "lora-fa" else "base_layer.weight"
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert len(moved) == 4 and all(part in name for name in moved)
    assert text_losses(model, tokens).mean() < first
    if algorithm == "m2":
        assert optimizer.plan.mechanism.layers == (privproj.Layer(dim=16, rank=3, count=4),)


@pytest.mark.filterwarnings("ignore")
def test_clipped_sums_of_a_peft_model_are_those_of_single_records(peft_model):
    tokens = text(5)
    model = prepare_peft(peft_model, "lora-fa")
    _, optimizer, _ = private(model, tokens, tokens, algorithm="lora-fa", max_grad_norm=1e-3)

    def sums(rows):
        optimizer.turn.drawn = None
        optimizer.turn.open(len(rows))
        optimizer.boundary.begin()
        optimizer.backward(text_losses(model, rows))
        return torch.cat([s.flatten() for s in optimizer.boundary.sums])

    alone = [sums(tokens[i : i + 1]) for i in range(5)]
    assert all(abs(float(part.norm()) - 1e-3) < 1e-6 for part in alone)
    assert torch.allclose(sums(tokens), sum(alone), rtol=1e-4, atol=1e-8)


@pytest.mark.filterwarnings("ignore")
def test_an_optimizer_built_before_wrapping_is_caught(peft_model):
    base = peft_model.get_base_model()
    early = torch.optim.SGD([p for p in base.parameters() if not p.requires_grad], lr=0.1)
    with pytest.raises(InvalidParameter, match="after the model is wrapped"):
        private(prepare_peft(peft_model, "lora-fa"), text(), text(), lambda p: early, algorithm="lora-fa")


def test_prepare_peft_says_what_it_needs():
    with pytest.raises(InvalidParameter, match="PEFT wrapped"):
        prepare_peft(mlp(), "m2")
