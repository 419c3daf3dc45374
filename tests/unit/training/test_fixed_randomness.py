"""Quiet passes draw nothing, are the same again, and leave everything as it was."""

import pytest
from helpers import needs

torch = needs("torch", "opacus")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from privproj.training.fixed_randomness import fix_randomness  # noqa: E402


class Noisy(nn.Module):
    """Draws random numbers in many ways."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(6, 2, dropout=0.5, batch_first=True)
        self.cell = nn.LSTM(6, 6, num_layers=2, dropout=0.5, batch_first=True)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        x = self.drop(x) + functional.dropout(x, 0.5) + functional.alpha_dropout(x, 0.5, True)
        x = self.attention(x, x, x, need_weights=False)[0] + self.cell(x)[0]
        x = functional.scaled_dot_product_attention(x, x, x, None, 0.5) + x * (torch.rand(len(x), 1, 1) < 0.7)
        return x + torch.randn_like(x) + torch.empty_like(x).bernoulli_(0.5) + torch.empty_like(x).uniform_()


def test_quiet_pass_is_the_same_again_for_any_records():
    module, x = Noisy(), torch.randn(5, 4, 6)
    with fix_randomness(module) as still:
        whole = module(x)
        assert torch.equal(module(x), whole) and module.training
        assert torch.allclose(module(x[2:3]), whole[2:3], rtol=1e-4, atol=1e-6)
    assert not torch.equal(module(x), module(x)) and module.cell.dropout == 0.5 and torch.float32 in still.types


def test_generators_go_on_as_if_nothing_had_been_drawn():
    module, x = Noisy(), torch.randn(5, 4, 6)
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    with fix_randomness(module):
        module(x)
        torch.randperm(9)
    assert torch.equal(torch.rand(4), expected)


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_recomputed_on_the_way_back_is_quiet_too(reentrant):
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    x = torch.randn(3, 4, requires_grad=True)
    with fix_randomness(module):
        (plain,) = torch.autograd.grad(module(x).sum(), x)
        checkpoint(module, x, use_reentrant=reentrant).sum().backward()
    assert torch.allclose(x.grad, plain)


DRAWS = {
    "rand": lambda x: x + torch.rand(len(x), 1, 1), "randn": lambda x: x + torch.randn_like(x),
    "normal": lambda x: x + torch.normal(torch.zeros_like(x), 0.3) + torch.normal(0.0, 1.0, x.shape),
    "uniform": lambda x: x + torch.empty_like(x).uniform_(-2.0, 2.0),
    "exponential": lambda x: x + torch.empty_like(x).exponential_(2.0),
    "skewed": lambda x: x + torch.empty_like(x).log_normal_() + torch.empty_like(x).cauchy_(1.0),
    "whole": lambda x: x + torch.empty_like(x).geometric_(0.2) + torch.empty_like(x).random_(3, 9),
    "bernoulli": lambda x: x * torch.bernoulli(x.sigmoid()) + torch.empty_like(x).bernoulli_(0.3),
    "randint": lambda x: x * torch.randint(0, 1000, (len(x), 1, 1)) + torch.randint(7, x.shape),
    "randint_like": lambda x: x + torch.randint_like(x, 1, 5),
    "randperm": lambda x: x[..., torch.randperm(x.shape[-1])],
    "multinomial": lambda x: torch.gather(x[:, 0], 1, torch.multinomial(x[:, 0].softmax(-1), 2)),
    "gumbel": lambda x: functional.gumbel_softmax(x, hard=True) + functional.gumbel_softmax(x, tau=2.0, dim=1),
    "rrelu": lambda x: functional.rrelu(x, training=True),
    "pooling": lambda x: functional.fractional_max_pool2d(x[:, None], 2, output_size=(3, 4)),
    "distributions": lambda x: x * torch.distributions.Beta(2.0, 3.0).sample((len(x), 1, 1))
    + torch.distributions.Categorical(logits=x).sample()[..., None] + torch.distributions.Normal(x, 1.0).rsample(),
    "poisson": lambda x: torch.poisson(x.abs() * 3.0),
}  # fmt: skip


@pytest.mark.parametrize("level", [0.02, 0.5, 0.98])
@pytest.mark.parametrize("name", DRAWS)
def test_random_functions_ignore_other_records(name, level):
    x = torch.randn(5, 4, 6, generator=torch.Generator().manual_seed(0))
    with fix_randomness(nn.Identity(), level):
        whole = DRAWS[name](x)
        assert whole.isfinite().all() and torch.allclose(DRAWS[name](x[2:3]), whole[2:3], rtol=1e-5, atol=1e-6)
    assert not torch.equal(DRAWS[name](x), DRAWS[name](x))


def test_what_is_drawn_has_the_size_that_it_is_drawn_with():
    with fix_randomness(nn.Identity(), 0.9):
        found = [torch.empty(3).normal_(1.0, 2.0), torch.normal(1.0, 2.0, (3,)), 1.0 + 2.0 * torch.randn(3)]
        assert all(torch.allclose(one, found[0]) for one in found) and float(found[0][0]) > 3.0
        assert torch.equal(torch.empty(2).uniform_(2.0, 4.0), torch.full((2,), 3.8))
        # The law has at most its level below.
        skewed = torch.distributions.LogNormal(1.0, 2.0).icdf(torch.tensor(0.9))
        assert torch.allclose(torch.empty(1).log_normal_(), skewed) and int(torch.empty(1).geometric_(0.5)) == 4
        assert torch.allclose(
            torch.empty(1).cauchy_(2.0, 3.0), torch.distributions.Cauchy(2.0, 3.0).icdf(torch.tensor(0.9))
        )
        assert int(torch.randint(10, (1,))) == 9 and float(torch.empty(1).bernoulli_(0.95)) == 1.0
        assert float(torch.bernoulli(torch.tensor([0.8]))) == 0.0


def test_loop_that_waits_for_a_draw_ends():
    with fix_randomness(nn.Identity(), 0.98):
        while torch.rand(1) > 0.5:
            pass
