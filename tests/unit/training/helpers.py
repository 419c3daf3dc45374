"""Small models, data, and one private step, for the tests of training."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from privproj import training
from privproj.training import Method
from privproj.training.algorithms.prism import Point, from_products
from privproj.training.algorithms.projected import Projected
from privproj.training.containers import take
from privproj.training.plan import KINDS
from privproj.training.release import SLACK

DOUBLE = torch.float64

SILENT = 1e-12
"""A noise multiplier that cannot be seen next to the sums of a test."""


def make_private(
    *, algorithm="dp-sgd", rank=None, frame=None, subspace=None, every=None, beta=None, bound=None, sampling=None,
    sampling_rate=None, batches=None, max_batch_size=None, clipping="joint", shares=None, adaptive_clipping=None,
    **given,
):  # fmt: skip
    """``privproj.training.make_private`` with the options of all its records, which tests vary one by one."""
    options = {"rank": rank, "frame": frame, "subspace": subspace, "every": every, "beta": beta, "bound": bound}
    options = {name: value for name, value in options.items() if value is not None}
    drawing = {"rate": sampling_rate, "count": batches, "max_batch_size": max_batch_size}
    drawing = {name: value for name, value in drawing.items() if value is not None}
    sampling = sampling or "poisson"
    return training.make_private(
        algorithm=Method(algorithm, **options) if options else algorithm,
        batches=KINDS[sampling](**drawing) if drawing and sampling in KINDS else sampling,
        clipping=shares or adaptive_clipping or clipping,
        **given,
    )


def losses_of(module, x, y):
    """Cross entropy of each record, summed over its tokens where it has several."""
    scores = module(x)
    if scores.dim() == 3:
        return (
            cross_entropy(scores.flatten(0, 1), y[:, None].expand(scores.shape[:2]).flatten(), reduction="none")
            .view(scores.shape[:2])
            .sum(1)
        )
    return cross_entropy(scores, y, reduction="none")


def own(module):
    """The loss function of a classifier whose batches are pairs."""
    return lambda part: losses_of(module, *part)


def data(records=12, width=6, tokens=None, seed=0, dtype=DOUBLE):
    draw = torch.Generator().manual_seed(seed)
    shape = (records, width) if tokens is None else (records, tokens, width)
    return torch.randn(shape, generator=draw, dtype=dtype), torch.randint(0, 3, (records,), generator=draw)


def mlp(width=6, hidden=5, dtype=DOUBLE):
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(width, hidden), nn.Tanh(), nn.Linear(hidden, 3)).to(dtype)


def gradients(module, x, y):
    """Per-example gradients of all trained tensors, by torch.func: a row for each example."""
    trained = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
    rest = {name: p.detach() for name, p in module.named_parameters() if not p.requires_grad}

    def loss(tensors, one_x, one_y):
        scores = lambda inputs: torch.func.functional_call(module, {**tensors, **rest}, (inputs,))  # noqa: E731
        return losses_of(scores, one_x[None], one_y[None])[0]

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(trained, x, y)
    return torch.cat([g.flatten(1) for g in found.values()], 1)


def private(module, x, y, optimizer=None, **options):
    """A private run over the whole data in every step, noise too small to see unless told."""
    trained = [p for p in module.parameters() if p.requires_grad]
    chosen = {
        "algorithm": "dp-sgd",
        "max_grad_norm": 1.0,
        "noise_multiplier": SILENT,
        "steps": 50,
        "sampling_rate": 1.0,
    }
    optimizer = torch.optim.SGD(trained, lr=1.0) if optimizer is None else optimizer(trained)
    loader = DataLoader(TensorDataset(x, y), batch_size=4)
    return make_private(module=module, optimizer=optimizer, data_loader=loader, **{**chosen, **options})


def state(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()]).clone()


def one_step(module, x, y, parts=1, **options):
    """The change of all tensors in one step over a batch in so many parts, times the expected batch size."""
    before = state(module)
    _, optimizer, _ = private(module, x, y, **options)
    optimizer._turn.open(len(x))
    optimizer.backward_on(own(module), (x, y), -(-len(x) // parts))
    optimizer.step()
    optimizer.close()
    return (before - state(module)) * optimizer._plan.expected_batch


def clipped(rows, clip=1.0):
    norms = rows.norm(dim=1) * (1.0 + SLACK)
    return (rows * (clip / norms).clamp_max(1.0)[:, None]).sum(0)


ALGORITHMS = {
    "dp-sgd": {},
    "m2": {"rank": 3},
    "m2 wishart": {"algorithm": "m2", "rank": 3, "frame": "wishart"},
    "m2-projected-clip": {"rank": 3},
    "m1": {"rank": 3},
    "per layer": {"algorithm": "dp-sgd", "clipping": "per-layer", "shares": (0.2, 0.8)},
    "m2 per layer": {"algorithm": "m2", "rank": 3, "clipping": "per-layer"},
}


def options_of(name):
    return {"algorithm": name, "insecure_seed": 7, **ALGORITHMS[name]}


def view(rank, frame="haar", inputs=6):
    """A projected view of a linear layer, with its streams."""
    layer = nn.Linear(inputs - 1, 4).double()
    _, optimizer, _ = private(layer, *data(width=inputs - 1), algorithm="m2", rank=rank, frame=frame)
    (found,) = optimizer._views
    assert isinstance(found, Projected)
    return found


def released_sums(name, x, y, **more):
    """The sums inside the boundary, joined over tensors."""
    module = mlp()
    _, optimizer, _ = private(module, x, y, **{**options_of(name), **more})
    optimizer._turn.open(len(x))
    optimizer.backward_on(own(module), (x, y))
    return torch.cat([s.flatten() for s in optimizer._noisy_sum.sums])


class Twice(nn.Module):
    """One layer used twice, and a second layer with the same weight: all of it one gradient."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.second.weight, self.second.bias = self.first.weight, self.first.bias

    def forward(self, x):
        return self.head(torch.tanh(self.second(torch.tanh(self.first(torch.tanh(self.first(x)))))))


class Picture(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.conv, self.norm = nn.Conv2d(1, 3, 2, stride=1, padding=1), nn.GroupNorm(1, 3)
        self.head = nn.Linear(3, 3)

    def forward(self, x):
        x = x.view(len(x), 1, 2, 3)
        return self.head(torch.relu_(self.norm(self.conv(x))).mean((2, 3)))


class Words(nn.Module):
    """Embedding, layer norm and a head over tokens."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.embed, self.norm, self.head = nn.Embedding(7, 6), nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.embed(x))).mean(1))


def step(module, optimizer, x, y):
    optimizer._turn.open(len(x))
    optimizer.backward_on(own(module), (x, y))
    optimizer.step()


def orthonormal(rows, k, seed=0):
    return torch.linalg.qr(torch.randn(rows, k, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE))[0]


def point(m=9, n=7, r=3, dtype=DOUBLE, seed=0):
    draw = torch.Generator().manual_seed(seed)
    u, v = (torch.linalg.qr(torch.randn(side, r, generator=draw, dtype=dtype))[0] for side in (m, n))
    return Point(u, torch.rand(r, generator=draw, dtype=dtype).sort(descending=True)[0] + 0.1, v)


def gradient(at, seed=1):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(len(at.u), len(at.v), generator=draw, dtype=at.u.dtype)


MODELS = {
    "linear": (lambda: nn.Linear(6, 3), {}),
    "mlp": (mlp, {}),
    "few tokens": (mlp, {"tokens": 2}),
    "many tokens": (mlp, {"tokens": 9}),
    "shared weights": (Twice, {}),
    "convolution": (Picture, {}),
}


def alone(model, taps, loss_of, batch, records):
    """Each record's gradient of all trained tensors, from its loss alone, by plain autograd."""
    parameters = [p for tap in taps.taps for p in tap.parameters]
    for j in range(records):
        (loss,) = loss_of(model, take(batch, slice(j, j + 1), records))
        yield torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)


def check_gradients(model, loss_of, batch, records, rtol=1e-9, **options):
    """Gradients of records are those of autograd alone, and a silent step is their clipped sum."""
    rows = torch.zeros(records)
    options = {"algorithm": "dp-sgd", **options}
    _, optimizer, _ = private(model, rows, rows, **options)
    taps = optimizer._taps
    with taps.armed(records):
        loss_of(model, batch).sum().backward()
        found = [[tap.gradient_of(slice(j, j + 1), torch.ones(1)) for tap in taps.taps] for j in range(records)]
    expected = list(alone(model, taps, loss_of, batch, records))
    known = {id(p): name for name, p in model.named_parameters()}
    for j in range(records):
        pairs = [
            (p, g)
            for tap, own in zip(taps.taps, found[j], strict=True)
            for p, g in zip(tap.parameters, own, strict=True)
        ]
        for (parameter, ours), theirs in zip(pairs, expected[j], strict=True):
            error, size = (ours - theirs).norm(), theirs.norm()
            assert error <= rtol * size + 1e-6 * rtol, (j, known[id(parameter)], float(error), float(size))
    optimizer.close()
    norms = torch.stack([torch.cat([g.flatten() for g in row]).norm() for row in expected])
    # The clip bites on some records and not on others.
    clip = float(norms.median())
    factors = (clip / (norms * (1.0 + SLACK))).clamp_max(1.0)
    clipped_sums = [sum(c * g for c, g in zip(factors, column, strict=True)) for column in zip(*expected, strict=True)]
    before = flat_weights(taps)
    _, optimizer, _ = private(model, rows, rows, max_grad_norm=clip, **options)
    optimizer._turn.open(records)
    optimizer.backward_on(lambda part: loss_of(model, part), batch)
    if options["algorithm"] == "m2":
        wanted = iter(clipped_sums)
        pairs = list(zip(optimizer._views, optimizer._noisy_sum.sums, strict=True))
        for view, found in pairs:
            parts = [view.tap.laid_out(p, next(wanted)) for p in view.parameters]
            want = view.sketched(torch.cat([part.flatten(1) for part in parts], 1))
            assert (found - want).norm() <= max(rtol, 1e-6) * want.norm() + 1e-6 * rtol
        optimizer.step()
        optimizer.close()
        return
    optimizer.step()
    optimizer.close()
    moved = (before - flat_weights(optimizer._taps)) * optimizer._plan.expected_batch
    want = torch.cat([part.flatten() for part in clipped_sums])
    assert (moved - want).norm() <= max(rtol, 1e-6) * want.norm()


def flat_weights(taps):
    return torch.cat([p.detach().flatten() for tap in taps.taps for p in tap.parameters]).clone()


def matrix_of(at):
    """The matrix ``Z = U diag(s) V^T`` of a point."""
    return (at.u * at.s) @ at.v.T


def as_matrix(xi, at):
    """A tangent vector ``U K V^T + Up V^T + U Vp^T`` as a matrix."""
    return at.u @ xi.k @ at.v.T + xi.up @ at.v.T + at.u @ xi.vp.T


def projected(g, at):
    """The projection ``P_T(G) = U U^T G + G V V^T - U U^T G V V^T``."""
    return from_products(g @ at.v, g.T @ at.u, at)
