"""Training in a subspace, and the run in two stages."""

import pytest
from helpers import needs

import privproj
from privproj.errors import InvalidParameterError
from privproj.io.ledger import INSECURE, Account, read_ledger

torch = needs("torch", "opacus")

from torch import nn  # noqa: E402
from unit.training.helpers import (  # noqa: E402
    DOUBLE,
    data,
    gradients,
    losses_of,
    mlp,
    one_step,
    orthonormal,
    own,
    private,
    state,
    step,
)

from privproj.training import Subspace, Trajectory, add_frozen_lora, leading  # noqa: E402


def directional(direction, x, y):
    """The forward-mode derivative of every loss along one direction of all weights."""
    model = mlp()
    weights = {name: p.detach() for name, p in model.named_parameters()}
    parts = direction.split([p.numel() for p in weights.values()])
    along = {name: part.view_as(weights[name]) for name, part in zip(weights, parts, strict=True)}

    def losses(tensors):
        return losses_of(lambda inputs: torch.func.functional_call(model, tensors, (inputs,)), x, y)

    return torch.func.jvp(losses, (weights,), (along,))[1]


@pytest.mark.parametrize("tokens", [None, 4])
def test_coordinates_are_directional_derivatives(tokens):
    x, y = data(tokens=tokens)
    basis = orthonormal(sum(p.numel() for p in mlp().parameters()), 3)
    module = mlp()
    subspace = Subspace(basis, "public")
    before = state(module)
    _, optimizer, _ = private(module, x, y, algorithm="dp-sft", subspace=subspace, max_grad_norm=0.3)
    rows = gradients(mlp(), x, y) @ basis
    assert torch.allclose(directional(basis[:, 0], x, y), rows[:, 0], rtol=1e-6, atol=1e-9)
    step(module, optimizer, x, y)
    norms = rows.norm(dim=1) * (1 + 1e-6)
    expected = basis @ (rows * (0.3 / norms).clamp_max(1.0)[:, None]).sum(0)
    assert torch.allclose(12 * (before - state(module)), expected, rtol=1e-8, atol=1e-11)


def test_whole_space_is_dp_sgd():
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


def test_leading_directions_are_the_right_singular_vectors():
    rows = torch.randn(8, 40, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    basis = leading(rows, 3)
    vectors = torch.linalg.eigh(rows.T @ rows)[1][:, -3:]
    assert torch.allclose(basis.T @ basis, torch.eye(3, dtype=DOUBLE), atol=1e-12)
    assert torch.allclose(basis @ basis.T, vectors @ vectors.T, atol=1e-9)
    assert leading(torch.outer(rows[:, 0], rows[0]), 5).shape == (40, 1)
    with pytest.raises(InvalidParameterError, match="differ from the start"):
        leading(torch.zeros(3, 5), 2)
    with pytest.raises(InvalidParameterError, match="did not diverge"):
        leading(torch.full((3, 5), float("nan")), 2)


@pytest.mark.parametrize("k", [0, -1, 1.5])
def test_number_of_directions_below_one_is_rejected(k):
    with pytest.raises(InvalidParameterError, match="k must be an integer >= 1"):
        leading(torch.eye(3), k)


def test_both_stages_are_accounted_and_share_a_ledger(tmp_path):
    x, y = data(records=40)
    module, path = mlp(), str(tmp_path / "ledger.jsonl")
    _, search, loader = private(module, x, y, noise_multiplier=4.0, steps=12, sampling_rate=0.5, ledger=path)
    trajectory = Trajectory(search, 4)
    with pytest.raises(InvalidParameterError, match="12 steps left"):
        trajectory.subspace()
    with pytest.raises(InvalidParameterError, match="at most 12, the number of steps"):
        Trajectory(search, 13)
    while search.steps_done < 12:
        for batch in loader:
            search.backward_on(own(module), batch)
            search.step()
    search.close()
    assert len(trajectory.rows) == 4 and trajectory.every == 3
    subspace = trajectory.subspace()
    options = {"algorithm": "dp-sft", "subspace": subspace, "sampling_rate": 0.5, "steps": 8}
    with pytest.raises(InvalidParameterError, match=r"(?i)one ledger for both"):
        private(mlp(), x, y, **options, ledger=str(tmp_path / "other.jsonl"))
    target = {"noise_multiplier": None, "epsilon": 3.0, "delta": 1e-5}
    _, tuned, loader = private(module, x, y, **options, **target, ledger=path)
    while tuned.steps_done < 8:
        for batch in loader:
            tuned.backward_on(own(module), batch)
            tuned.step()
    tuned.close()
    assert 2.99 < tuned.epsilon(1e-5).value <= 3.0 and read_ledger(path).spent == 20
    assert tuned.epsilon(1e-5).value == read_ledger(path).epsilon(1e-5).value
    alone = privproj.epsilon(tuned.plan.mechanism, delta=1e-5, steps=8, sampling_rate=0.5).value
    assert tuned.epsilon(1e-5).value > alone


def test_search_with_a_seed_protects_nothing_afterwards_either():
    """Whoever knows the seed can take the noise of the search away."""
    x, y = data()
    module = mlp()
    _, search, loader = private(module, x, y, steps=2, noise_multiplier=1.0, insecure_seed=3)
    trajectory = Trajectory(search, 1)
    while len(loader):
        for batch in loader:
            search.step_on(own(module), batch)
    search.close()
    options = {"algorithm": "dp-sft", "subspace": trajectory.subspace(), "steps": 1, "noise_multiplier": 1.0}
    _, tuned, loader = private(module, x, y, **options)
    tuned.step_on(own(module), next(iter(loader)))
    assert INSECURE in search.epsilon(1e-5).warnings and INSECURE in tuned.epsilon(1e-5).warnings


def test_subspace_names_its_source():
    basis = orthonormal(20, 2)
    cases = (("private", None, "public or dp"), ("dp", None, "account"), ("public", Account(), "account"))
    for source, account, condition in cases:
        with pytest.raises(InvalidParameterError, match=condition):
            Subspace(basis, source, account=account)
    with pytest.raises(InvalidParameterError, match="orthonormal"):
        Subspace(2 * basis, "public")
    with pytest.raises(InvalidParameterError, match="trained weights"):
        private(mlp(), *data(), algorithm="dp-sft", subspace=Subspace(basis, "public"))
    with pytest.raises(InvalidParameterError, match="a subspace for dp-sft"):
        private(mlp(), *data(), algorithm="dp-sft")
