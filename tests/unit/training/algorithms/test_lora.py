"""LoRA-FA and re-sampled LoRA: identities and equivalences."""

import pytest
from helpers import needs

from privproj.errors import InvalidParameterError

torch = needs("torch", "opacus")

from torch import nn  # noqa: E402
from unit.training.helpers import DOUBLE, data, mlp, one_step, private, step  # noqa: E402

from privproj.training import add_frozen_lora, prepare_peft  # noqa: E402
from privproj.training.generators import streams  # noqa: E402


def test_lora_fa_with_an_orthogonal_factor_is_projected_clipping():
    """The same noise in r coordinates, the same clip: W moves by S A, with rows of A of length sqrt(d/r)."""
    x, y = data()
    plain = nn.Linear(6, 3, bias=False).double()
    adapted = add_frozen_lora(nn.Linear(6, 3, bias=False).double(), 2)
    adapted.base.weight.data = plain.weight.detach().clone()
    changes = []
    _, ours, _ = private(plain, x, y, algorithm="m2-projected-clip", rank=2, noise_multiplier=0.7, insecure_seed=5)
    adapted.lora_A.weight.data = ours._views[0].q.T.clone()
    _, theirs, _ = private(adapted, x, y, algorithm="lora-fa", noise_multiplier=0.7, insecure_seed=5)
    before = plain.weight.detach().clone()
    for module, optimizer in ((plain, ours), (adapted, theirs)):
        step(module, optimizer, x, y)
    changes = plain.weight - before, adapted.lora_B.weight @ adapted.lora_A.weight
    assert torch.allclose(changes[0], changes[1], rtol=1e-9)


def test_lora_fa_does_not_depend_on_the_basis_of_its_factor():
    x, y = data()
    turn = torch.linalg.qr(torch.randn(3, 3, dtype=DOUBLE))[0]
    moves = []
    for rotation in (torch.eye(3, dtype=DOUBLE), turn):
        torch.manual_seed(2)
        module = add_frozen_lora(nn.Linear(6, 3).double(), 3, insecure_seed=1)
        module.lora_A.weight.data = rotation @ module.lora_A.weight.data
        one_step(module, x, y, algorithm="lora-fa", rank=3)
        moves.append(module.lora_B.weight @ module.lora_A.weight)
    assert torch.allclose(*moves, rtol=1e-8, atol=1e-12)


def test_lora_adam_gets_gradient_of_the_low_rank_merge():
    x, y = data()
    options = {"algorithm": "m2", "rank": 3, "insecure_seed": 3, "noise_multiplier": 0.5}
    merged = one_step(mlp(), x, y, **options)
    dense = one_step(mlp(), x, y, **options, optimizer=lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.5))
    assert torch.allclose(merged, dense, rtol=1e-9)
    decayed = [
        one_step(
            mlp(), x, y, **options, optimizer=lambda p, m=m: torch.optim.SGD(p, lr=0.5, weight_decay=0.1, momentum=m)
        )
        for m in (0.0, 0.5)
    ]
    assert torch.allclose(*decayed, rtol=1e-9)
    assert one_step(mlp(), x, y, **options, optimizer=lambda p: torch.optim.Adam(p, lr=0.1)).isfinite().all()


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


def test_lora_resampled_each_step_is_projected_clipping():
    x, y = data()
    plain, adapted = nn.Linear(6, 3, bias=False).double(), add_frozen_lora(nn.Linear(6, 3, bias=False).double(), 2)
    adapted.base.weight.data = plain.weight.detach().clone()
    _, ours, _ = private(plain, x, y, algorithm="m2-projected-clip", rank=2, noise_multiplier=0.7, insecure_seed=5)
    adapted.lora_A.weight.data = ours._views[0].q.T.clone()
    _, theirs, _ = private(adapted, x, y, algorithm="lora-resampled", noise_multiplier=0.7, insecure_seed=5)
    before = plain.weight.detach().clone()
    step(plain, ours, x, y)
    step(adapted, theirs, x, y)
    assert torch.allclose(plain.weight - before, adapted.base.weight - before, rtol=1e-8, atol=1e-12)


def test_what_cannot_be_adapted_is_rejected():
    with pytest.raises(InvalidParameterError, match="linear layers"):
        add_frozen_lora(torch.nn.ReLU(), 2)
    with pytest.raises(InvalidParameterError, match="lora-fa or m2"):
        prepare_peft(torch.nn.Linear(4, 2), "lora")
