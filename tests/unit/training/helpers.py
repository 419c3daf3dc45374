"""Small models, data, and one private step, for the tests of training."""

import math

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from privproj import training
from privproj.training import Method
from privproj.training.algorithms.prism import Point, from_products
from privproj.training.algorithms.projected import Projected
from privproj.training.batches import Batch
from privproj.training.per_record import Group, group
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
    """The loss function of a classifier whose records are pairs."""
    return lambda record: losses_of(module, *record)


def batch_of(*columns):
    """A batch whose records are the rows of these tensors."""
    return Batch(
        [Group(tuple(column[:, None] for column in columns), list, len(columns[0]))] if len(columns[0]) else []
    )


def records_of(x, y):
    """The batches of one record of a data set."""
    return [[one[None], label[None]] for one, label in zip(x, y, strict=True)]


def take_in(optimizer, loss_fn, batch, *options, **more):
    """Draw this batch and take it in; a list has batches of one record each."""
    batch = batch if isinstance(batch, Batch) else Batch(group(batch))
    optimizer._turn.open(batch)
    return optimizer.backward_on(loss_fn, batch, *options, **more)


def clipped_sums(optimizer):
    """The sums inside the boundary, joined over tensors."""
    sums = zip(optimizer._noisy_sum.sums, optimizer._views, strict=True)
    parts = [torch.zeros(view.shape, dtype=DOUBLE) if part is None else part for part, view in sums]
    return torch.cat([part.flatten() for part in parts])


def step(module, optimizer, x, y, *options, **more):
    """Make one step on these records."""
    take_in(optimizer, own(module), batch_of(x, y), *options, **more)
    optimizer.step()


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
    """A private run over the whole data in every step, noise too small to see unless shown_values."""
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
    step(module, optimizer, x, y, -(-len(x) // parts))
    optimizer.close()
    return (before - state(module)) * optimizer.plan.expected_batch


def clipped(rows, clip=1.0):
    norms = rows.norm(dim=1) * (1.0 + SLACK)
    return (rows * (clip / norms).clamp_max(1.0)[:, None]).sum(0)


ALGORITHMS = {
    "dp-sgd": {},
    "m2": {"rank": 3},
    "m2 wishart": {"algorithm": "m2", "rank": 3, "frame": "wishart"},
    "m2-projected-clip": {"rank": 3},
    "projected-dp-sgd": {"rank": 3},
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
    take_in(optimizer, own(module), batch_of(x, y))
    return clipped_sums(optimizer)


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


class Texts(nn.Module):
    """Embedding, layer norm and a head over tokens."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.embed, self.norm, self.head = nn.Embedding(7, 6), nn.LayerNorm(6), nn.Linear(6, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.embed(x))).mean(1))


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


def sums_of(optimizer, loss_fn, records, **more):
    """The clipped sums of a batch, which is dropped then."""
    take_in(optimizer, loss_fn, records, **more)
    found = clipped_sums(optimizer)
    optimizer._turn.batch = None
    optimizer._noisy_sum.forget()
    return found


def gradients_alone(loss_fn, record, parameters):
    """The gradient of one record by plain autograd, 0 where nothing came back."""
    loss_fn(record).sum().backward()
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    for parameter in parameters:
        parameter.grad = None
    return found


def looped_sums(optimizer, loss_fn, records):
    """The clipped sums of an algorithm with one view for each tensor, from plain autograd for each record."""
    noisy_sum, total = optimizer._noisy_sum, 0.0
    parameters = [p for one in optimizer._trained for p in one.parameters]
    for record in records:
        known = {id(p): g for p, g in zip(parameters, gradients_alone(loss_fn, record, parameters), strict=True)}
        summed, norms = [], []
        for one, view in zip(optimizer._trained, optimizer._views, strict=True):
            for parameter in one.parameters:
                one.add_whole(parameter, known[id(parameter)][None])
            gradient = one.take()[0][0].double()
            summed.append(view.sketched(gradient).flatten())
            norms.append(float((summed[-1] if view.clips_what_it_sums else gradient).norm()))
        norms = norms if optimizer.plan.shares else [math.hypot(*norms)] * len(norms)
        limits = noisy_sum.clips if optimizer.plan.shares else noisy_sum.clips * len(norms)
        # c = min(1, C / |G|), with the norm overstated by the slack of the release.
        factors = [min(1.0, limit / (n * (1.0 + SLACK) + 1e-300)) for limit, n in zip(limits, norms, strict=True)]
        total = total + torch.cat([c * part for c, part in zip(factors, summed, strict=True)])
    return total


def check_sums(module, loss_fn, records, *, rtol=1e-10, options=(), **more):
    """Assert that the sums of a batch are those of a loop, with a clip in the middle of the norms of the records."""
    trained = [p for p in module.parameters() if p.requires_grad]
    found = [gradients_alone(loss_fn, record, trained) for record in records]
    clip = float(torch.stack([torch.cat([g.flatten() for g in row]).norm() for row in found]).median())
    rows = torch.zeros(len(records))
    _, optimizer, _ = private(module, rows, rows, max_grad_norm=clip, **more)
    found, expected = sums_of(optimizer, loss_fn, records, **dict(options)), looped_sums(optimizer, loss_fn, records)
    assert expected.norm() > 0.1 * clip
    assert (found - expected).norm() <= rtol * clip
    optimizer.close()


def matrix_of(at):
    """The matrix ``Z = U diag(s) V^T`` of a point."""
    return (at.u * at.s) @ at.v.T


def as_matrix(xi, at):
    """A tangent vector ``U K V^T + Up V^T + U Vp^T`` as a matrix."""
    return at.u @ xi.k @ at.v.T + xi.up @ at.v.T + at.u @ xi.vp.T


def projected(g, at):
    """The projection ``P_T(G) = U U^T G + G V V^T - U U^T G V V^T``."""
    return from_products(g @ at.v, g.T @ at.u, at)
