"""Records that mix are noticed."""

import pytest
from helpers import needs

from privproj.errors import InvalidParameterError

torch = needs("torch", "opacus")

from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from unit.training.helpers import DOUBLE, data, make_private, mlp, own, private  # noqa: E402


class Mixing(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(6, 6).double(), nn.Linear(6, 3).double()

    def forward(self, x):
        hidden = self.inner(x)
        return self.head(hidden - hidden.mean(0))


class Positions(nn.Module):
    """As many public rows as records: the first dimension of the inner layer is not the batch."""

    def __init__(self):
        super().__init__()
        self.rows, self.inner, self.head = (
            torch.eye(12, 6, dtype=DOUBLE),
            nn.Linear(6, 6).double(),
            nn.Linear(6, 3).double(),
        )

    def forward(self, x):
        return self.head(x + self.inner(self.rows).sum(0))


@pytest.mark.parametrize("build", [Mixing, Positions])
def test_records_that_mix_are_detected(build):
    x, y = data()
    module = build()
    _, optimizer, _ = private(module, x, y)
    optimizer._turn.open(12)
    with pytest.raises(InvalidParameterError, match=r"one row for each record|independent of other records"):
        optimizer.backward_on(own(module), (x, y))


def test_layers_that_keep_something_of_a_batch_are_detected():
    x, y = data()
    tokens = torch.zeros((12, 4), dtype=torch.long)
    for keeper, inputs, dim in (
        (nn.Embedding(7, 6, max_norm=0.1), tokens, 1),
        (nn.InstanceNorm1d(6, track_running_stats=True), x[:, :, None].expand(12, 6, 5), 2),
    ):
        keeper, head = keeper.double().requires_grad_(False), nn.Linear(6, 3).double()
        _, optimizer, _ = private(nn.ModuleList([keeper, head]), inputs, y)
        optimizer._turn.open(12)

        def losses(part, keeper=keeper, head=head, dim=dim):
            return cross_entropy(head(keeper(part[0]).mean(dim)), part[1], reduction="none")

        with pytest.raises(InvalidParameterError, match="changed by the forward pass"):
            optimizer.backward_on(losses, (inputs, y))


def test_repeated_records_are_rejected():
    module, (x, y) = mlp(), data()
    loader = DataLoader(torch.utils.data.Subset(TensorDataset(x, y), [0, 1, 1]))
    sgd = torch.optim.SGD(module.parameters(), lr=1.0)
    options = {"max_grad_norm": 1.0, "noise_multiplier": 1.0, "steps": 3, "algorithm": "dp-sgd"}
    with pytest.raises(InvalidParameterError, match="every record once"):
        make_private(module=module, optimizer=sgd, data_loader=loader, **options)
