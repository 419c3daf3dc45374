"""Small models of many kinds, each with records and a loss, as functions that return all three.

``build`` makes them in double precision. Their names are in :data:`MODELS`.
"""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

CLASSES = 3


def labeled(*shapes, count=5, kind=torch.randn):
    """Records of random tensors with a label."""
    draw = torch.Generator().manual_seed(0)
    return [
        [*(kind(1, *shape, generator=draw) for shape in shapes), torch.randint(0, CLASSES, (1,), generator=draw)]
        for _ in range(count)
    ]


def condition(count=5, length=7, vocabulary=20, low=1):
    """Records of token numbers with a label, with a padded end of 0 to 2 zeros."""
    draw = torch.Generator().manual_seed(0)
    ids = [torch.randint(low, vocabulary, (1, length), generator=draw) for _ in range(count)]
    for i, row in enumerate(ids):
        row[:, length - i % 3 :] = 0
    return [[row, torch.tensor([i % CLASSES])] for i, row in enumerate(ids)]


def classified(module):
    """The loss of a classifier: all parts of a record except the last one are its inputs."""
    return lambda record: F.cross_entropy(module(*record[:-1]), record[-1])


class Model(nn.Module):
    """A module of these parts, whose forward pass is a function of them."""

    def __init__(self, forward, **parts):
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.function = forward

    def forward(self, *inputs):
        return self.function(self, *inputs)


def perceptron():
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))
    return module, labeled((8,)), classified(module)


def perceptron_without_some():
    module = nn.Sequential(nn.Linear(8, 16, bias=False), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 3))
    module[2].weight.requires_grad_(False)
    module[3].bias.requires_grad_(False)
    return module, labeled((8,)), classified(module)


def biases():
    module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    return module, labeled((8,)), classified(module)


def convolutions():
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2, groups=2),
        nn.ReLU(inplace=True), nn.Conv2d(8, 6, (3, 2), padding="same", dilation=(1, 2)), nn.Conv2d(6, 6, 2, bias=False),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3),
    )  # fmt: skip
    return module, labeled((3, 12, 12)), classified(module)


def other_convolutions():
    module = nn.Sequential(
        nn.Conv1d(3, 6, 3, padding="valid"), nn.ReLU(), nn.Unflatten(1, (2, 3)), nn.Unflatten(3, (2, 5)),
        nn.Conv3d(2, 4, (2, 1, 3), stride=(1, 1, 2), padding=(0, 1, 1)), nn.PReLU(), nn.Flatten(), nn.LazyLinear(3),
    )  # fmt: skip
    module(torch.zeros(1, 3, 12))
    return module, labeled((3, 12)), classified(module)


def transposed_convolution():
    module = nn.Sequential(nn.ConvTranspose2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))
    return module, labeled((3, 4, 4)), classified(module)


def unbatched_convolution():
    module = Model(lambda m, x: m.head(m.conv(x[0]).mean((1, 2)))[None], conv=nn.Conv2d(3, 4, 3), head=nn.Linear(4, 3))
    return module, labeled((3, 6, 6)), classified(module)


def encoder(layers=1, dropout=0.0):
    def forward(m, ids):
        hidden = m.tokens(ids) + m.places(torch.arange(ids.shape[1]))
        return m.head(m.body(hidden, src_key_padding_mask=ids == 0).mean(1))

    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=dropout, batch_first=True)
    module = Model(
        forward, tokens=nn.Embedding(20, 16, padding_idx=0), places=nn.Embedding(9, 16),
        body=nn.TransformerEncoder(layer, layers, enable_nested_tensor=False), head=nn.Linear(16, 3),
    )  # fmt: skip
    return module, condition(), classified(module)


def lengths():
    """Records of three lengths, in three groups."""
    module, _, loss = encoder()
    return module, [[record[0][:, : 7 - i % 3], record[1]] for i, record in enumerate(condition(6))], loss


def attention():
    def forward(m, x, y):
        seen, _ = m.own(x, x, x)
        crossed, _ = m.cross(seen, y, y, need_weights=False)
        return m.head(crossed.mean(1))

    parts = {name: nn.MultiheadAttention(16, 2, batch_first=True) for name in ("own", "cross")}
    module = Model(forward, **parts, head=nn.Linear(16, 3))
    return module, labeled((5, 16), (4, 16)), classified(module)


def attention_with_bias():
    """The mask of the attention is trained, as relative positions are."""

    def forward(m, x):
        q, k, v = m.project(x).chunk(3, -1)
        return m.head(F.scaled_dot_product_attention(q, k, v, m.mask).mean(1))

    mask = nn.Parameter(0.1 * torch.randn(5, 5))
    module = Model(forward, project=nn.Linear(8, 24), mask=mask, head=nn.Linear(8, 3))
    return module, labeled((5, 8)), classified(module)


def vision_transformer():
    """Patches, and trained tensors of their own for the class and the places."""

    def forward(m, x):
        patches = m.patches(x).flatten(2).mT
        hidden = torch.cat([m.cls.expand(len(x), -1, -1), patches], 1) + m.places
        return m.head(m.norm(m.body(hidden))[:, 0])

    module = Model(
        forward, patches=nn.Conv2d(3, 8, 4, stride=4), cls=nn.Parameter(torch.randn(1, 1, 8)),
        places=nn.Parameter(torch.randn(1, 5, 8)), body=nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True),
        norm=nn.LayerNorm(8), head=nn.Linear(8, 3),
    )  # fmt: skip
    return module, labeled((3, 8, 8)), classified(module)


def tied():
    """A table that is looked up, multiplied by a head, and used as a matrix; and a layer that is used twice."""

    def forward(m, ids):
        hidden = torch.tanh(m.layer(torch.tanh(m.layer(m.table(ids)))))
        return m.head(hidden) + hidden @ m.table.weight.T

    module = Model(forward, table=nn.Embedding(20, 8), layer=nn.Linear(8, 8), head=nn.Linear(8, 20, bias=False))
    module.head.weight = module.table.weight
    records = [[record[0], record[0].flip(1)] for record in condition()]
    return module, records, lambda record: F.cross_entropy(module(record[0]).transpose(1, 2), record[1])


def tied_with_biases():
    """One matrix with two biases, and once without any."""

    def forward(m, x):
        hidden = torch.tanh(m.second(torch.tanh(m.first(x))))
        return m.head(torch.tanh(F.linear(hidden, m.first.weight)))

    module = Model(forward, first=nn.Linear(8, 8), second=nn.Linear(8, 8), head=nn.Linear(8, 3))
    module.second.weight = module.first.weight
    return module, labeled((8,)), classified(module)


def functional():
    """Weights that are arguments of functions: sums, products, parts of them."""

    def forward(m, x):
        weight = m.layer.weight
        return x @ weight.T + F.linear(x, weight * 2.0) + F.linear(x, weight[:, :4].repeat(1, 2)) + weight.sum()

    module = Model(forward, layer=nn.Linear(8, 3))
    return module, labeled((8,)), classified(module)


def bag():
    module = Model(lambda m, x: m.head(m.bag(x)), bag=nn.EmbeddingBag(20, 8), head=nn.Linear(8, 3))
    return module, condition(), classified(module)


def in_place():
    """Operations that write to what a trained layer returned, and to tensors that the program made."""

    def forward(m, x, ids):
        picture = F.relu_(m.conv(x)).mean((2, 3)).repeat(1, 2)
        rows = m.table(ids.long().abs())
        rows *= 2
        rows = m.layer(rows)
        rows += 1
        rows[:, 0] = rows[:, 0] * 2
        out = torch.zeros(1, 16)
        out[:, :8] = picture
        out[:, 8:] = nn.functional.relu(rows, inplace=True).mean(1)
        return m.head(out)

    module = Model(
        forward, conv=nn.Conv2d(3, 4, 3), table=nn.Embedding(9, 8), layer=nn.Linear(8, 8), head=nn.Linear(16, 3)
    )
    return module, labeled((3, 5, 5), (6,)), classified(module)


def normalized_weight():
    parametrized = torch.nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
    module = nn.Sequential(parametrized, nn.Tanh(), nn.Linear(8, 3))
    return module, labeled((8,)), classified(module)


def own_experts():
    """Each record gathers the matrix of its best expert."""

    def forward(m, x):
        scores = m.gate(x)
        chosen = torch.einsum("bi,bio->bo", x, m.experts[scores.argmax(-1)])
        return m.head(chosen * scores.max(-1).values[:, None])

    module = Model(
        forward, gate=nn.Linear(8, 3), experts=nn.Parameter(0.3 * torch.randn(3, 8, 8)), head=nn.Linear(8, 3)
    )
    return module, labeled((8,), count=7), classified(module)


def checkpointed(reentrant):
    def forward(m, x):
        hidden = m.first(x)
        hidden = checkpoint(m.inner, hidden, use_reentrant=reentrant)
        hidden = checkpoint(lambda h, scale: torch.tanh(m.inner(h)) * scale, hidden, 0.5, use_reentrant=reentrant)
        return m.head(hidden)

    inner = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 16))
    module = Model(forward, first=nn.Linear(8, 16), inner=inner, head=nn.Linear(16, 3))
    return module, labeled((8,)), classified(module)


def cells():
    def forward(m, x):
        state = None
        for token in x.unbind(1):
            state = m.cell(token, state)
        return m.head(state)

    module = Model(forward, cell=nn.GRUCell(4, 6), head=nn.Linear(6, 3))
    return module, labeled((3, 4)), classified(module)


def branches():
    """Records go different ways, and as often through a layer as their values say."""

    def forward(m, x):
        hidden = m.first(x)
        if hidden.sum() > 0:
            hidden = m.second(hidden)
        while hidden.abs().sum() > 2.0:
            hidden = torch.tanh(m.second(hidden)) / 2
        return m.head(hidden) if torch.equal(hidden, hidden) else hidden

    module = Model(forward, first=nn.Linear(8, 6), second=nn.Linear(6, 6), head=nn.Linear(6, 3))
    return module, labeled((8,), count=9), classified(module)


def adversarial():
    """The loss at an input that a gradient in the loss has moved."""
    module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))

    def loss(record):
        x, y = record
        ascent = torch.func.grad(lambda x: F.cross_entropy(module(x), y))(x)
        return F.cross_entropy(module(x + 0.1 * ascent.detach().sign()), y)

    return module, labeled((8,)), loss


def penalized():
    """A gradient of the loss is a part of the loss, and so is a norm of the weights."""
    module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))

    def loss(record):
        x, y = record
        value = lambda x: F.cross_entropy(module(x), y)  # noqa: E731
        decay = 1e-2 * sum(p.square().sum() for p in module.parameters())
        return value(x) + torch.func.grad(value)(x).square().sum() + decay

    return module, labeled((8,)), loss


def standardized():
    """Whatever a batch is divided by, it is the record's own."""
    module = nn.Linear(8, 3)

    def loss(record):
        losses = F.cross_entropy(module(record[0]), record[1], reduction="none")
        return (losses * (losses / losses.mean()).detach()).mean()

    return module, labeled((8,)), loss


def several_rows():
    """Two views of a record and their mixture, in one loss."""
    module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))

    def loss(record):
        views = module(torch.cat([record[0], -record[0], 2 * record[0]]))
        return F.cross_entropy(views @ views.T, torch.tensor([1, 2, 0])) + views.square().mean()

    return module, labeled((8,)), loss


def detection():
    """Images with a list of boxes, whose number differs."""
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 16, 8))
    draw = torch.Generator().manual_seed(0)
    counts = (0, 1, 3, 1, 2, 3)
    records = [
        {"image": torch.randn(1, 3, 6, 6, generator=draw), "targets": [{"boxes": torch.rand(n, 4, generator=draw)}]}
        for n in counts
    ]

    def loss(record):
        found, boxes = module(record["image"]).view(2, 4), record["targets"][0]["boxes"]
        if not len(boxes):
            return found.square().mean()
        return torch.cdist(found, boxes).min(0).values.sum() + found.square().mean()

    return module, records, loss


def recurrent(kind):
    module = Model(lambda m, x: m.head(m.body(x)[0][:, -1]), body=kind(4, 6, batch_first=True), head=nn.Linear(6, 3))
    return module, labeled((3, 4)), classified(module)


MODELS = {
    "perceptron": perceptron, "perceptron with frozen parts": perceptron_without_some, "biases only": biases,
    "convolutions": convolutions, "convolutions in 1 and 3 dimensions": other_convolutions,
    "transposed convolution": transposed_convolution, "convolution without a batch": unbatched_convolution,
    "encoder with a padding mask": encoder, "different lengths": lengths, "attention": attention,
    "attention with a trained mask": attention_with_bias, "vision transformer": vision_transformer,
    "tied table and layer used twice": tied, "tied matrix with several biases": tied_with_biases,
    "weights as arguments": functional, "bag of embeddings": bag, "in-place operations": in_place,
    "weight norm": normalized_weight, "own experts": own_experts, "cells": cells, "branches": branches,
    "checkpoint": partial(checkpointed, False), "reentrant checkpoint": partial(checkpointed, True),
    "adversarial input": adversarial, "gradient penalty and decay": penalized, "standardized loss": standardized,
    "several rows for a record": several_rows, "detection": detection,
}  # fmt: skip


def build(make):
    """The module and records of a model in double precision."""
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return make()
    finally:
        torch.set_default_dtype(before)
