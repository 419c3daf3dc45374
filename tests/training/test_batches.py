"""Batches and the relation that goes with them."""

import pytest
from helpers import needs

from privproj.errors import InvalidParameter, Refused

torch = needs("torch", "opacus")

from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler  # noqa: E402
from training.helpers import data, mlp, private  # noqa: E402

from privproj.training import make_private  # noqa: E402

# --- accounting ---------------------------------------------------------------------------------------


def test_fixed_size_batches_go_with_replace():
    x, y = data(records=40)
    _, optimizer, loader = private(mlp(), x, y, sampling="fixed", sampling_rate=0.25, noise_multiplier=1.0)
    assert optimizer.plan.relation == "replace" and {len(b) for b in loader.sampler(20)} == {10}
    assert all(len(set(b)) == 10 for b in loader.sampler(20))
    with pytest.raises(Refused, match="amplification"):
        private(mlp(), x, y, sampling="fixed", sampling_rate=0.25, relation="add-remove")


# --- what the loop may not do -----------------------------------------------------------------------


def test_a_sampler_of_its_own_is_refused():
    x, y = data()
    module = mlp()
    loader = DataLoader(TensorDataset(x, y), sampler=WeightedRandomSampler([1.0] * 12, 12))
    with pytest.raises(InvalidParameter, match="sampler of its own"):
        make_private(module=module, optimizer=torch.optim.SGD(module.parameters(), lr=1.0), data_loader=loader,
                     max_grad_norm=1.0, noise_multiplier=1.0, steps=3, algorithm="dp-sgd")  # fmt: skip
