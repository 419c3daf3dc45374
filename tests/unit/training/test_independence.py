"""A record's loss is its own, or the batch is refused: every way that was found to mix records."""

import dataclasses
import itertools
import math
import random
import types
import weakref
from collections import OrderedDict
from functools import partial
from itertools import chain, count

import numpy as np
import pytest
from helpers import needs

from privproj.errors import InvalidParameterError

torch = needs("torch", "opacus")

from torch import nn  # noqa: E402
from torch.nn.functional import cross_entropy, dropout, gumbel_softmax, scaled_dot_product_attention  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from unit.training.helpers import alone, clipped, gradients, make_private, mlp, private  # noqa: E402

from privproj.training.batches import BatchState, _sum_of  # noqa: E402
from privproj.training.generators import own_generators, seeded_generators  # noqa: E402
from privproj.training.independence import _norms, first_difference  # noqa: E402

CHANGES = "a gradient at .* that changes by"


def records(count=64, width=6, seed=0, y_from=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, width, generator=draw), torch.randint(y_from, 3, (count,), generator=draw)


def tokens(count=64, length=5, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(count, length, 6, generator=draw), torch.randint(0, 3, (count,), generator=draw)


def whole(module, x, y, **options):
    """A private run whose every batch is the whole data, and its batches."""
    module, optimizer, loader = private(module.to(x.dtype), x, y, **options)
    return module, optimizer, chain.from_iterable(iter(loader) for _ in range(optimizer._plan.steps))


def own(module):
    return lambda part: cross_entropy(module(part[0]), part[1], reduction="none")


class Between(nn.Module):
    """A function of the hidden rows between two trained layers."""

    def __init__(self, change):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.change, self.last = nn.Linear(6, 6), change, nn.Linear(6, 3)

    def forward(self, x):
        h = self.change(self, torch.tanh(self.first(x)))
        return self.last(h if h.dim() == 2 else h.mean(1))


def encoder(batch_first):
    torch.manual_seed(1)
    return nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=batch_first).requires_grad_(False)


class Causal(nn.Module):
    """A frozen causal encoder before the trained layers, which takes the batch for the sequence."""

    def __init__(self, batch_first):
        super().__init__()
        self.encoder, self.last = encoder(batch_first), nn.Linear(6, 3)

    def forward(self, x):
        length = x.shape[1] if self.encoder.self_attn.batch_first else x.shape[0]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        return self.last(self.encoder(x, src_mask=mask, is_causal=True).mean(1))


class Recurrent(nn.Module):
    def __init__(self, batch_first):
        super().__init__()
        torch.manual_seed(2)
        self.cell, self.last = nn.LSTM(6, 6, batch_first=batch_first).requires_grad_(False), nn.Linear(6, 3)

    def forward(self, x):
        return self.last(self.cell(x)[0].mean(1))


class Sorting(nn.Module):
    """Sorts its records on the way and puts them back in order."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x):
        order = x[:, 0].argsort()
        back = self.first(x[order])
        return self.last(torch.tanh(back[order.argsort()]))


def kept(module, h):
    mean = h.detach().mean(0)
    module.ema = 0.9 * getattr(module, "ema", torch.zeros_like(mean)) + 0.1 * mean
    return h - module.ema


def kept_number(module, h):
    module.scale = float(h.detach().abs().mean())
    return h


def kept_list(module, h):
    module.__dict__.setdefault("memory", []).append(h.detach())
    return h


MIXING = {
    "detached mean": lambda _, h: h - h.mean(0).detach(),
    "mean": lambda _, h: h - h.mean(0),
    "cumulative sum": lambda _, h: h.cumsum(0),
    "cumulative sum from behind": lambda _, h: h.flip(0).cumsum(0).flip(0).detach() + h,
    "first record": lambda _, h: torch.cat([h[:1] + h[1:].sum(0, keepdim=True).detach(), h[1:]]),
    "largest entry": lambda _, h: h / h.detach().abs().max(),
    "random neighbor": lambda _, h: 0.7 * h + 0.3 * h[torch.randperm(len(h))].detach(),
    "only while training": lambda m, h: h - h.mean(0).detach() if m.training else h,
    "many records only": lambda _, h: h - h.mean(0).detach() if len(h) > 32 else h,
    "number of records": lambda _, h: h * len(h),
    "kept mean": kept,
    "kept number": kept_number,
    "kept rows": kept_list,
}


@pytest.mark.parametrize("name", MIXING)
def test_what_mixes_records_between_layers_is_rejected(name):
    x, y = records()
    module, optimizer, batches = whole(Between(MIXING[name]), x, y)
    with pytest.raises(InvalidParameterError, match=f"{CHANGES}|by the forward pass"):
        optimizer.step_on(own(module), next(batches))
    assert optimizer._steps == 0


@pytest.mark.parametrize("build", [Causal, Recurrent, lambda _: Sorting()])
def test_layers_that_take_the_batch_for_the_sequence_are_refused(build):
    x, y = tokens()
    x = x[:, 0] if isinstance(build(False), Sorting) else x
    module, optimizer, batches = whole(build(False), x, y)
    with pytest.raises(InvalidParameterError, match=CHANGES):
        optimizer.backward_on(own(module), next(batches))


@pytest.mark.parametrize("build", [Causal, Recurrent])
def test_same_layers_pass_with_the_batch_first(build):
    x, y = tokens()
    module, optimizer, batches = whole(build(True), x, y)
    optimizer.step_on(own(module), next(batches))
    assert optimizer._steps == 1


def test_change_of_mode_is_checked_again():
    """Twenty steps in eval mode, and the first one in training mode is refused."""
    x, y = records()
    module, optimizer, batches = whole(Between(MIXING["only while training"]), x, y)
    module.eval()
    for _ in range(20):
        optimizer.step_on(own(module), next(batches))
    module.train()
    with pytest.raises(InvalidParameterError, match=CHANGES):
        optimizer.backward_on(own(module), next(batches))


COUPLED_LOSSES = {
    "a divisor of the batch": lambda m, p: cross_entropy(m(p[0]), p[1], reduction="none") / (p[1] > 0).sum(),
    "a mean": lambda m, p: cross_entropy(m(p[0]), p[1]).expand(len(p[1])) / len(p[1]),
    "a contrast": lambda m, p: cross_entropy(m(p[0]) @ m(p[0]).T, torch.arange(len(p[0])), reduction="none"),
    "weights of the batch": lambda m, p: cross_entropy(m(p[0]), p[1], reduction="none") * m(p[0]).detach().std(),
    "ranks": lambda m, p: cross_entropy(m(p[0]), p[1], reduction="none").sort().values * torch.arange(len(p[1])),
    "one record twice": lambda m, p: own(m)([torch.cat([c[:1], c[:1], c[2:]]) if len(c) > 1 else c for c in p]),
}


@pytest.mark.parametrize("name", COUPLED_LOSSES)
def test_losses_that_depend_on_the_batch_are_rejected(name):
    x, y = records()
    module, optimizer, batches = whole(mlp(), x, y)
    with pytest.raises(InvalidParameterError, match=CHANGES):
        optimizer.step_on(lambda part: COUPLED_LOSSES[name](module, part), next(batches))


def test_random_functions_of_a_record_are_no_mixing():
    """Dropout and noise are drawn for each record; the mode of the module and torch's generator stay as they are."""

    def noisy(module, h):
        return dropout(h, 0.3, module.training) + 0.1 * torch.randn_like(h) * torch.rand(len(h), 1, 1)

    x, y = tokens()
    module = nn.Sequential(nn.Linear(6, 6), nn.TransformerEncoderLayer(6, 2, 8, batch_first=True), Between(noisy))
    module[1].requires_grad_(False)
    module, optimizer, batches = whole(module, x, y)
    batch = next(batches)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    optimizer.backward_on(own(module), batch)
    assert torch.equal(torch.rand(3), expected)


class Texts(torch.utils.data.Dataset):
    """Records of different lengths."""

    def __init__(self, count=40):
        draw = torch.Generator().manual_seed(0)
        lengths = torch.randint(2, 9, (count,), generator=draw)
        self.words = [torch.randint(1, 20, (int(n),), generator=draw) for n in lengths]

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        return {"input_ids": self.words[i], "labels": i % 3}


def padded(side):
    def join(texts):
        longest = max(len(t["input_ids"]) for t in texts)
        rows = []
        for text in texts:
            spare = torch.zeros(longest - len(text["input_ids"]), dtype=torch.long)
            rows.append(torch.cat([spare, text["input_ids"]] if side == "left" else [text["input_ids"], spare]))
        return {"input_ids": torch.stack(rows), "labels": torch.tensor([t["labels"] for t in texts])}

    return join


class Reader(nn.Module):
    """Adds a number for each place, and takes the mean over the words that are not padding."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(4)
        self.words, self.places = nn.Embedding(20, 6), nn.Embedding(9, 6).requires_grad_(False)
        self.last = nn.Linear(6, 3)

    def forward(self, words):
        mask = (words > 0).float()[..., None]
        h = torch.tanh(self.words(words) + self.places(torch.arange(words.shape[1])))
        return self.last((h * mask).sum(1) / mask.sum(1))


def reading(side, **options):
    module = Reader()
    sgd = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1)
    given = {"algorithm": "dp-sgd", "max_grad_norm": 1.0, "noise_multiplier": 1.0, "steps": 10, "sampling_rate": 0.5}
    loader = DataLoader(Texts(), batch_size=4, collate_fn=padded(side))
    return make_private(module=module, optimizer=sgd, data_loader=loader, **{**given, **options})


def text_losses(module):
    return lambda part: cross_entropy(module(part["input_ids"]), part["labels"], reduction="none")


def counted(texts):
    """Padded on the left, with the number of each record in its batch, which nothing uses."""
    return padded("left")(texts) | {"number": list(range(len(texts)))}


def test_padding_that_mixes_is_detected_beside_numbers_of_places():
    """A list that says where a record stands is another one for it alone: so padding passed by, in all 30 steps."""
    module = Reader()
    sgd = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1)
    _, optimizer, loader = make_private(
        module=module, optimizer=sgd, data_loader=DataLoader(Texts(), batch_size=4, collate_fn=counted),
        max_grad_norm=1.0, noise_multiplier=1.0, steps=3, sampling_rate=1.0,
    )  # fmt: skip
    with pytest.raises(InvalidParameterError, match=CHANGES):
        for batch in loader:
            optimizer.step_on(text_losses(module), batch)


def test_left_padding_without_position_ids_is_rejected():
    module, optimizer, loader = reading("left", sampling_rate=1.0)
    batch = next(iter(loader))
    with pytest.raises(InvalidParameterError, match="padded to the length of others"):
        optimizer.backward_on(text_losses(module), batch)
    optimizer.backward_on(text_losses(module), batch, strict=True)
    module, optimizer, loader = reading("right")
    for batch in loader:
        optimizer.step_on(text_losses(module), batch, micro_batch_size=7)


def test_strict_makes_the_loss_a_records_own_by_construction():
    """Whatever mixes records has nothing to mix; the sum is that of every record alone."""
    for name in ("detached mean", "cumulative sum", "number of records", "first record"):
        x, y = records(16)
        module, optimizer, batches = whole(Between(MIXING[name]), x.double(), y)
        loss, batch = own(module), next(batches)
        optimizer.backward_on(loss, batch, strict=True)
        rows = []
        for one, other in zip(*batch, strict=True):
            tensors = [p.requires_grad_(True) for p in module.parameters()]
            parts = torch.autograd.grad(loss((one[None], other[None])).sum(), tensors, allow_unused=True)
            pairs = zip(parts, tensors, strict=True)
            rows.append(torch.cat([torch.zeros(p.numel()) if g is None else g.flatten() for g, p in pairs]))
        found = torch.cat([total.flatten() for total in optimizer._noisy_sum.sums if total is not None])
        expected = clipped(torch.stack(rows))
        matrices = torch.cat([torch.cat([w, b[:, None]], 1).flatten() for w, b in split(expected, module)])
        assert torch.allclose(found, matrices, rtol=1e-9, atol=1e-12)


def split(row, module):
    """A row of all trained numbers as pairs of weight and bias."""
    parts = iter(row.split([p.numel() for p in module.parameters()]))
    for weight, bias in zip(*[iter(list(module.parameters()))] * 2, strict=True):
        yield next(parts).view(weight.shape), next(parts).view(bias.shape)


def test_strict_takes_any_first_dimension():
    x, y = tokens(12)
    module, optimizer, batches = whole(Recurrent(False), x, y)
    optimizer.step_on(own(module), next(batches), strict=True)
    assert optimizer._steps == 1


class Crops(nn.Module):
    """The crops of a record go through a layer together, the first ones before the others."""

    def __init__(self, layer, parts):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head, self.parts = layer, nn.Linear(4, 3), parts
        self.others = (0, 2, 3) if isinstance(layer, nn.Conv2d) else (0, 1)

    def forward(self, x):
        seen = [torch.tanh(self.layer(part)).mean(self.others) for part in x[0].split(self.parts)]
        return self.head(torch.stack(seen).prod(0)[None])


@pytest.mark.parametrize("parts", [[5], [2, 3]])
@pytest.mark.parametrize(
    ("layer", "form"),
    [(nn.Conv2d, (1, 3, 3)), (nn.Conv2d, (1, 9, 9)), (nn.Linear, (2, 9)), (nn.Linear, (7, 9))],
)
def test_strict_takes_any_number_of_rows_of_a_record(layer, form, parts):
    model = Crops(layer(1, 4, 3) if layer is nn.Conv2d else layer(9, 4), parts).double()
    x = torch.randn(6, 5, *form, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model, optimizer, batches = whole(model, x, torch.arange(6) % 3)
    taps, batch = optimizer._taps, next(batches)
    rows = alone(model, taps, lambda _, part: own(model)(part), batch, 6)
    expected = clipped(torch.stack([torch.cat([g.flatten() for g in row]) for row in rows]))
    optimizer.backward_on(own(model), batch, strict=True)
    pairs = zip(taps.taps, optimizer._noisy_sum.sums, strict=True)
    found = [tap.shaped(p, part).flatten() for tap, total in pairs for p, part in tap.split(total)]
    assert torch.allclose(torch.cat(found), expected, rtol=1e-9, atol=1e-12)


def test_strict_rejects_records_of_changing_length():
    x, y = records(5)
    module, optimizer, batches = whole(mlp(), x, y)

    def loss(part):
        scores = [module(row.expand(count, 6)).mean(0) for row, count in zip(part[0], [1, 3, 2, 3, 1], strict=False)]
        return cross_entropy(torch.stack(scores), part[1], reduction="none")

    batch = next(batches)
    with pytest.raises(InvalidParameterError, match=r"one row for each record.*strict=True"):
        optimizer.step_on(loss, batch)
    optimizer.step_on(loss, batch, strict=True)
    assert optimizer._steps == 1


@dataclasses.dataclass
class Pair:
    x: torch.Tensor
    y: torch.Tensor
    note: str = "shared"


@pytest.mark.parametrize("size", [None, 1, 5, 100])
def test_batch_of_any_form_in_any_parts_gives_the_clipped_sum(size):
    x, y = (part.double() if part.is_floating_point() else part for part in records(23))
    forms = {
        "list": (None, lambda p: p),
        "dict": (lambda rows: {"x": torch.stack([r[0] for r in rows]), "y": torch.stack([r[1] for r in rows])},
                 lambda p: (p["x"], p["y"])),
        "dataclass": (lambda rows: Pair(*map(torch.stack, zip(*rows, strict=True))), lambda p: (p.x, p.y)),
        "nested": (lambda rows: ({"x": torch.stack([r[0] for r in rows])}, [[int(r[1])] for r in rows]),
                   lambda p: (p[0]["x"], torch.tensor(p[1])[:, 0])),
    }  # fmt: skip
    for join, parts in forms.values():
        module = mlp()
        expected = clipped(gradients(module, x, y))
        loader = DataLoader(TensorDataset(x, y), batch_size=4, collate_fn=join)
        _, optimizer, private_loader = make_private(
            module=module, optimizer=torch.optim.SGD(module.parameters(), lr=1.0), data_loader=loader,
            algorithm="dp-sgd", max_grad_norm=1.0, noise_multiplier=1.0, steps=3, sampling_rate=1.0,
        )  # fmt: skip
        batch = next(iter(private_loader))
        optimizer.backward_on(lambda p, parts=parts, module=module: own(module)(parts(p)), batch, size)
        found = torch.cat([total.flatten() for total in optimizer._noisy_sum.sums])
        matrices = torch.cat([torch.cat([w, b[:, None]], 1).flatten() for w, b in split(expected, module)])
        assert torch.allclose(found, matrices, rtol=1e-9, atol=1e-12)


def test_only_the_batch_that_was_drawn_is_taken_in_and_only_once():
    x, y = records(12)
    module, optimizer, batches = whole(mlp(), x, y)
    first = next(batches)
    for other in ([x, y], [x[:12], y], None):
        with pytest.raises(InvalidParameterError, match="the last batch of the private loader"):
            optimizer.backward_on(own(module), other)
    optimizer.backward_on(own(module), first)
    with pytest.raises(InvalidParameterError, match="unchanged and used once"):
        optimizer.backward_on(own(module), first)
    optimizer.step()
    second = next(batches)
    with pytest.raises(InvalidParameterError, match="the last batch of the private loader"):
        optimizer.backward_on(own(module), first)
    second[0][1] = second[0][0]
    with pytest.raises(InvalidParameterError, match="changed in place"):
        optimizer.backward_on(own(module), second)


def test_batch_that_failed_is_taken_in_again():
    """Out of memory at one size of parts, tried again with smaller ones: no record counts twice."""
    x, y = records(12)
    module = mlp(dtype=x.dtype)
    expected = clipped(gradients(module, x, y))
    module, optimizer, batches = whole(module, x, y)
    batch, sums = next(batches), []
    for limit in (4, 100):
        calls = []

        def loss(part, limit=limit, calls=calls):
            calls.append(1)
            if len(calls) > limit + 8:
                raise RuntimeError("out of memory")
            return own(module)(part)

        try:
            optimizer.backward_on(loss, batch, 1)
        except RuntimeError:
            assert all(total is None for total in optimizer._noisy_sum.sums)
            continue
        sums.append(torch.cat([total.flatten() for total in optimizer._noisy_sum.sums]))
    (found,) = sums
    assert torch.allclose(found.norm(), expected.double().norm(), rtol=1e-5)


def test_rejected_batch_is_checked_again_when_repeated():
    """Outliers of a batch were left out by a loop that tried twice: one record more moved the sum by 4 clips."""
    x, y = records()
    x[:2, 0] = 9.0
    module, optimizer, batches = whole(mlp(), x, y)

    def loss(part):
        is_outlier = part[0][:, :1] > 8.0
        return own(module)((part[0] - is_outlier * part[0].mean(0), part[1]))

    def is_refused(batch):
        optimizer._turn.taken = False
        try:
            optimizer.backward_on(loss, batch)
        except InvalidParameterError as error:
            assert "that changes by" in str(error)
            return True
        return False

    batch, again = next(batches), []
    while len(again) < 30:
        optimizer._independence.spot = True
        if is_refused(batch):
            again.append(is_refused(batch))
    # One record of 64 at a time sees one of the two in one of 32.
    assert sum(again) > 10


def test_loss_for_the_whole_batch_is_rejected():
    x, y = records(12)
    module, optimizer, batches = whole(mlp(), x, y)
    batch = next(batches)
    for loss, remedy in (
        (lambda p: own(module)(p).mean(), 'reduction="none"'),
        (lambda p: own(module)(p)[1:], "of the part that the function is given"),
        (lambda p: own(module)(p)[:, None].expand(-1, 3), r"losses\.flatten\(1\)\.mean\(1\)"),
    ):
        with pytest.raises(InvalidParameterError, match=f"one loss for each of 12 records.*{remedy}"):
            optimizer.backward_on(loss, batch)


@pytest.mark.parametrize("kind", ["mean of the batch", "mixed up", "sorted", "random", "rarely random"])
def test_collate_that_depends_on_other_records_is_rejected(kind):
    """Sorting and randomness of a record's own are no mixing."""

    def join(rows):
        x, y = torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])
        if kind == "mean of the batch":
            return x - x.mean(0), y
        if kind == "mixed up":
            return 0.5 * (x + x.roll(1, 0)), y
        if kind == "sorted":
            order = x[:, 0].argsort()
            return x[order], y[order]
        return x * (torch.rand(len(x), 1) < (0.5 if kind == "random" else 0.9)), y

    x, y = records(32)
    module = mlp(dtype=x.dtype)
    _, optimizer, loader = make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=1.0), algorithm="dp-sgd", sampling_rate=1.0,
        data_loader=DataLoader(TensorDataset(x, y), batch_size=4, collate_fn=join), max_grad_norm=1.0,
        noise_multiplier=1.0, steps=6,
    )  # fmt: skip
    for _ in range(6):
        batch = next(iter(loader))
        if kind in ("mean of the batch", "mixed up"):
            with pytest.raises(InvalidParameterError, match="collate_fn treats every record independently"):
                optimizer.step_on(own(module), batch)
            break
        optimizer.step_on(own(module), batch)


def test_weights_that_are_used_past_their_layers_are_rejected():
    """A tied head and a penalty on the weights have gradients that no hook sees: wrong in silence otherwise."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.words = nn.Linear(6, 6)

        def forward(self, x):
            return torch.tanh(self.words(x)) @ self.words.weight.T

    x, y = records(32)
    for module, penalty in ((Tied(), 0.0), (mlp(dtype=x.dtype), 0.1)):
        weight = next(module.parameters())
        module, optimizer, batches = whole(module, x, y)

        def loss(part, module=module, weight=weight, penalty=penalty):
            return own(module)(part) + penalty * weight.square().sum()

        with pytest.raises(InvalidParameterError, match="weights used outside their layers"):
            optimizer.step_on(loss, next(batches))


def test_losses_without_gradients_are_rejected():
    x, y = records(12)
    module, optimizer, batches = whole(mlp(), x, y)
    batch = next(batches)
    with torch.no_grad(), pytest.raises(InvalidParameterError, match="gradients enabled"):
        optimizer.backward_on(own(module), batch)


@pytest.mark.parametrize("around", [True, False])
def test_mixed_precision_passes_and_mixing_is_detected_in_it(around):
    x, y = records()
    for change, mixes in ((lambda _, h: h, False), (MIXING["detached mean"], True)):
        module, optimizer, batches = whole(Between(change), x, y)
        cast = torch.autocast("cpu", torch.bfloat16)

        def loss(part, module=module, cast=cast):
            with torch.autocast("cpu", torch.bfloat16, enabled=not around):
                return own(module)(part)

        for _ in range(2):
            batch = next(batches)
            with torch.autocast("cpu", torch.bfloat16, enabled=around):
                if mixes:
                    with pytest.raises(InvalidParameterError, match=CHANGES):
                        optimizer.step_on(loss, batch)
                    break
                optimizer.step_on(loss, batch, 40)


def test_checkpointed_modules_pass_and_mixing_is_seen_in_them():
    from torch.utils.checkpoint import checkpoint

    x, y = records()
    for reentrant in (False, True):
        for mixes in (False, True):
            module = Between(MIXING["detached mean"] if mixes else lambda _, h: dropout(h, 0.2))
            module, optimizer, batches = whole(module, x, y)

            def loss(part, module=module, reentrant=reentrant):
                scores = checkpoint(module, part[0].requires_grad_(reentrant), use_reentrant=reentrant)
                return cross_entropy(scores, part[1], reduction="none")

            batch = next(batches)
            if mixes:
                with pytest.raises(InvalidParameterError, match=CHANGES):
                    optimizer.step_on(loss, batch)
            else:
                optimizer.step_on(loss, batch)


def test_compiled_modules_give_same_sums_and_detect_mixing():
    x, y = records()
    for mixes in (False, True):
        module = Between(MIXING["detached mean"] if mixes else lambda _, h: h)
        module, optimizer, batches = whole(module, x, y)
        compiled, batch = torch.compile(module, backend="eager"), next(batches)
        if mixes:
            with pytest.raises(InvalidParameterError, match=CHANGES):
                optimizer.step_on(own(compiled), batch)
            continue
        sums = []
        for called in (compiled, module):
            optimizer.backward_on(own(called), batch)
            sums.append([total.clone() for total in optimizer._noisy_sum.sums])
            optimizer._noisy_sum.forget()
            optimizer._turn.taken = False
        assert all(torch.allclose(one, other) for one, other in zip(*sums, strict=True))
        optimizer.step_on(own(compiled), batch)


def _first_mean(module, h):
    if not hasattr(module, "start"):
        module.start = h.detach().mean(0)
    return h - module.start


def _in_a_table(module, h):
    table = module.__dict__.setdefault("table", {})
    return h - table.setdefault("mean", h.detach().mean(0))


def _deep_in_tables(module, h):
    table = module.__dict__.setdefault("table", {"a": {"b": [None]}})["a"]["b"]
    table[0] = h.detach().mean(0) if table[0] is None else table[0]
    return h - table[0]


@pytest.mark.parametrize("change", [_first_mean, _in_a_table, _deep_in_tables])
@pytest.mark.parametrize("parts", [{}, {"micro_batch_size": 1}, {"strict": True}])
def test_what_a_layer_sets_by_its_first_batch_is_rejected(change, parts):
    """It stays for all batches: one record of the first batch then changes what every later record adds."""
    x, y = records()
    module, optimizer, batches = whole(Between(change), x, y)
    module.table = {"a": {"b": [None]}}
    batch = next(batches)
    with pytest.raises(InvalidParameterError, match="set attributes that the first batch sets before make_private"):
        optimizer.backward_on(own(module), batch, **parts)


def test_constants_beside_dropout_are_accepted():
    def constant(module, h):
        module.row = torch.linspace(1.0, 2.0, h.shape[-1])
        return h * module.row

    x, y = tokens()
    frozen = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True).requires_grad_(False)
    module, optimizer, batches = whole(nn.Sequential(nn.Linear(6, 6), frozen, Between(constant)), x, y)
    for _ in range(3):
        optimizer.step_on(own(module), next(batches))
    assert optimizer._steps == 3


class Sharing(nn.Module):
    """A layer that reads what another one has left in a table that both hold."""

    def __init__(self, table, leave):
        super().__init__()
        self.table, self.leave, self.layer = table, leave, nn.Linear(6, 3, dtype=torch.float64)
        self.layer.table = table

    def forward(self, x):
        self.table["seen"] = self.leave(x)
        found = self.layer(dropout(x, 0.1) - self.layer.table["seen"]) / self.table.get("heat", 1.0)
        del self.table["seen"]
        return found


def test_table_that_layers_share_is_one_in_checks():
    """Copies of it would hide what goes from one layer to another, and keep a loop from changing it."""
    table = {"heat": 1.0}
    module, optimizer, batches = whole(Sharing(table, lambda x: 0.5 * x), *records())
    for heat in (2.0, 3.0, 4.0):
        table["heat"] = heat
        optimizer.step_on(own(module), next(batches))
        assert module.table is module.layer.table is table and table == {"heat": heat}
    module, optimizer, batches = whole(Sharing({}, lambda x: x.mean(0)), *records())
    with pytest.raises(InvalidParameterError, match=CHANGES):
        optimizer.step_on(own(module), next(batches))


class Rising(nn.Module):
    """Dropout at a rate that rises with every call."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return dropout(x, min(0.3, self.calls / 100.0))


def test_rising_dropout_rate_is_accepted():
    module, optimizer, batches = whole(nn.Sequential(*mlp(), Rising(), Rising()), *records(12))
    for _ in range(12):
        optimizer.step_on(own(module), next(batches))
    assert optimizer._steps == 12


def test_function_made_of_first_batch_is_detected():
    def made(module, h):
        if not hasattr(module, "center"):
            mean = h.detach().mean(0)
            module.center = lambda rows: rows - mean
        return module.center(h)

    module, optimizer, batches = whole(Between(made), *records())
    with pytest.raises(InvalidParameterError, match=CHANGES):
        optimizer.step_on(own(module), next(batches))


@pytest.mark.parametrize("change", [_first_mean, _in_a_table])
@pytest.mark.parametrize("strict", [False, True])
def test_state_set_by_first_record_is_detected(change, strict):
    module, optimizer, loader = private(Between(change), *records())
    loader.sampler = lambda steps: iter([[0], [1], [2, 3, 4]])
    batches = iter(loader)
    for _ in range(2):
        optimizer.step_on(own(module), next(batches), strict=strict)
    with pytest.raises(InvalidParameterError, match="set attributes that the first batch sets before make_private"):
        optimizer.step_on(own(module), next(batches), strict=strict)


def test_write_past_torch_version_counter_is_rejected():
    def write(module, h):
        if not hasattr(module, "done"):
            module.first.bias.data.sub_(h.detach().mean(0))
            module.done = True
        return h

    x, y = records()
    module, optimizer, batches = whole(Between(write), x, y)
    batch = next(batches)
    with pytest.raises(InvalidParameterError, match=r"do not write through \.data"):
        optimizer.backward_on(own(module), batch)


def test_constants_made_in_first_batch_are_accepted():
    def constant(module, h):
        if not hasattr(module, "row"):
            module.row, module.rows = torch.linspace(1.0, 2.0, h.shape[1]), {h.shape[1]: torch.ones(h.shape[1])}
        return h * module.row * module.rows[h.shape[1]]

    x, y = records()
    module, optimizer, batches = whole(Between(constant), x, y)
    for _ in range(3):
        batch = next(batches)
        optimizer.backward_on(own(module), batch)
        optimizer.step()
    assert optimizer._steps == 3 and hasattr(module, "row")


RARE = {
    "mixing below a half": lambda _, h: h - h.mean(0).detach() if torch.rand(1) < 0.5 else h,
    "mixing now and then": lambda _, h: 0.5 * h + 0.5 * h.roll(1, 0) if torch.rand(()) < 0.1 else h,
    "mixing above a half": lambda _, h: h - h.mean(0).detach() if torch.rand(1) > 0.9 else h,
    "noise of the batch's size": lambda _, h: h + h.detach().std() * torch.randn(1, 6),
    "normal noise": lambda _, h: h + torch.empty(1, 6).normal_(0.0, 2.0 * float(h.detach().std())),
    "even noise": lambda _, h: h + torch.empty(1, 6).uniform_(0.0, 3.0 * float(h.detach().abs().mean())),
}


def permuted(module, part, draw):
    h = torch.tanh(module[0](part[0]))
    return cross_entropy(module[2](0.6 * h + 0.4 * h[draw(len(h))]), part[1], reduction="none")


def disagreeing(module, part, least=1e-8):
    """Weights by how far two passes with dropout are apart."""
    one, other = (module[2](dropout(torch.tanh(module[0](part[0])), 0.3)) for _ in range(2))
    apart = (one.softmax(1) - other.softmax(1)).abs().sum(1).detach()
    return cross_entropy(one, part[1], reduction="none") * apart / (apart.max() + least)


def centred(module, part):
    one, other = (module[2](dropout(torch.tanh(module[0](part[0])), 0.3)) for _ in range(2))
    return cross_entropy(one - 10.0 * (one - other).detach().mean(0), part[1], reduction="none")


def weighted_by_time(module, part):
    """The weights of a diffusion over their mean."""
    time = 0.01 + 0.98 * torch.rand(len(part[0]), 1)
    weight, noise = ((1.0 - time) / time) ** 2, torch.randn_like(part[0])
    found = module((1.0 - time) * part[0] + time * noise)
    return (weight / weight.mean() * (found - noise[:, :3]) ** 2).sum(1)


def block_dropped(module, part):
    """DropBlock divides by the mean of its mask over the batch."""
    h = torch.tanh(module[0](part[0]))
    mask = torch.empty_like(h).bernoulli_(0.8)
    return cross_entropy(module[2](h * mask * mask.numel() / (1e-6 + mask.sum())), part[1], reduction="none")


def beside_a_shared_draw(module, part):
    """Weights over their mean, and noise for all records that has as many rows as the part."""
    h, shared = torch.tanh(module[0](part[0])), torch.randn(64)
    weight = torch.rand(len(h), 1)
    return cross_entropy(module[2](h + 0.1 * shared[:5]) * weight / weight.mean(), part[1], reduction="none")


def routed(module, part):
    """Experts with room for a share of the batch, first come, first served."""
    scores = module[2](torch.tanh(module[0](part[0])))
    one = torch.nn.functional.gumbel_softmax(scores, hard=True)
    kept = one * (one.cumsum(0) * one <= max(1.0, len(one) / 3)).float()
    return cross_entropy(scores * kept.sum(1, keepdim=True), part[1], reduction="none")


def sent_back(module, part):
    """An adversarial step within the loss, for hard records one way and for easy ones the other."""
    x = dropout(part[0], 0.1).detach().requires_grad_()
    losses = cross_entropy(module(x), part[1], reduction="none")
    losses.backward(gradient=1.0 - 2.0 * (losses.detach() > losses.detach().mean()).to(losses))
    return cross_entropy(module(x.detach() + 2.0 * x.grad), part[1], reduction="none")


def rated(module, part, drop):
    """Dropout at a rate that the batch says."""
    h = torch.tanh(module[0](part[0]))
    return cross_entropy(module[2](drop(h, float(h.detach().abs().mean()))), part[1], reduction="none")


def attended(h, rate):
    rows = h[:, None, :, None]
    return scaled_dot_product_attention(rows, rows, rows, dropout_p=rate)[:, 0, :, 0]


DRAWN_APART = {
    "a rate of dropout": lambda m, part: rated(m, part, dropout),
    "a rate of dropout in attention": lambda m, part: rated(m, part, lambda h, rate: attended(dropout(h, 0.1), rate)),
    "an order of drawn numbers": lambda m, part: permuted(m, part, lambda n: torch.rand(n).argsort()),
    "numbers drawn from one law": lambda m, part: permuted(m, part, lambda n: torch.multinomial(torch.ones(n), n)),
    "weights of a pass back within the loss": sent_back,
    "two passes with dropout": disagreeing,
    "two passes with dropout, 0/0": lambda m, part: disagreeing(m, part, 0.0),
    "the mean of two passes": centred,
    "weights of drawn times": weighted_by_time,
    "a mask over its mean": block_dropped,
    "weights beside a draw of as many rows": beside_a_shared_draw,
    "room for some of the batch": routed,
}


@pytest.mark.parametrize("name", DRAWN_APART)
def test_mixing_that_vanishes_where_all_draws_are_one_is_refused(name):
    """In the first steps each record has draws of its own, the same in every pass."""
    x, y = records()
    x[0] *= 10.0
    module, optimizer, batches = whole(mlp(), x, y)

    def steps():
        for _ in range(3):
            optimizer.step_on(lambda part: DRAWN_APART[name](module, part), next(batches))

    with pytest.raises(InvalidParameterError, match=CHANGES):
        steps()


@pytest.mark.parametrize("count", [1, 3, 5, 32])
def test_draws_for_records_for_columns_and_for_all_are_no_mixing(count):
    """There are 5 hidden columns, and as many records in one of the runs."""
    x, y = records(count)
    module, optimizer, batches = whole(mlp(), x, y)

    def loss(part):
        h = torch.tanh(module[0](part[0])) * (0.5 + torch.rand(5)) + 0.1 * torch.randn(len(part[0]), 5)
        h = dropout(h, 0.2) * torch.rand(1) + 0.1 * torch.rand(len(h)).view(-1, 1)
        return cross_entropy(module[2](h), part[1], reduction="none")

    for _ in range(4):
        optimizer.step_on(loss, next(batches))
    assert optimizer._steps == 4


@pytest.mark.parametrize("name", RARE)
def test_mixing_behind_randomness_is_rejected_early(name):
    """Random functions are quiet at levels near 0 and near 1, so that their branches are taken and noise has a size."""
    x, y = records()
    module, optimizer, batches = whole(Between(RARE[name]), x, y)

    def steps():
        for _ in range(2):
            batch = next(batches)
            optimizer.backward_on(own(module), batch)
            optimizer.step()

    with pytest.raises(InvalidParameterError, match=CHANGES):
        steps()


def test_loss_function_may_write_into_its_part():
    """Every pass of a check gets a part of its own, and the batch is used as it was drawn."""
    x, y = records()

    def loss(part, module):
        part[0].mul_(0.5)
        return own(module)(part)

    sums = []
    for writes in (True, False):
        data = x.clone() if writes else 0.5 * x
        module, optimizer, batches = whole(mlp(dtype=x.dtype), data, y, insecure_seed=3)
        optimizer.backward_on(
            (lambda part, module=module: loss(part, module)) if writes else own(module), next(batches)
        )
        sums.append(torch.cat([total.flatten() for total in optimizer._noisy_sum.sums]))
    assert torch.allclose(sums[0], sums[1], rtol=1e-5)


class Augmented(TensorDataset):
    """Records that are other ones each time they are read."""

    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return x + 0.3 * torch.randn_like(x), y


@pytest.mark.parametrize("data", [TensorDataset, Augmented])
def test_what_a_part_is_told_of_the_whole_batch_is_rejected(data):
    """A count that the loss function leaves in its part, and a number that the collate_fn gives beside the tensors."""

    def join(rows):
        x, y = torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])
        return {"x": x, "y": y, "count": sum(int(row[1]) for row in rows)}

    def scores(module, part):
        return cross_entropy(module(part["x"]), part["y"], reduction="none")

    x, y = records(y_from=1)
    for given in (True, False):
        module = mlp(dtype=x.dtype)
        _, optimizer, loader = make_private(
            module=module, optimizer=torch.optim.SGD(module.parameters(), lr=1.0), algorithm="dp-sgd",
            data_loader=DataLoader(data(x, y), batch_size=4, collate_fn=join), max_grad_norm=1.0,
            noise_multiplier=1.0, steps=6, sampling_rate=1.0,
        )  # fmt: skip

        def loss(part, module=module, given=given):
            if not given:
                part.setdefault("own", int(part["y"].sum()))
            return scores(module, part) / part["count" if given else "own"]

        with pytest.raises(InvalidParameterError, match="from the whole batch" if given else CHANGES):
            optimizer.step_on(loss, next(iter(loader)))


def test_messages_about_random_records_name_them():
    def join(rows):
        x, y = torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])
        return {"x": x, "y": y, "size": len(rows), "least": [float(row.min()) for row in x], "all": {"of": ("a", 1)}}

    module = mlp(dtype=torch.float32)
    optimizer, loader = joining(module, Augmented(*records()), join)

    def loss(part):
        assert part["all"] == {"of": ("a", 1)}
        weights = torch.tensor(part["least"]).sigmoid()
        return weights * cross_entropy(module(part["x"]), part["y"], reduction="none")

    for _ in range(3):
        optimizer.step_on(loss, next(iter(loader)))
    assert optimizer._steps == 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_backward_pass_outside_of_autocast_passes(dtype):
    """As in every loop of torch's own pages: losses under autocast, and the way back after it."""
    x, y = records()
    module, optimizer, batches = whole(mlp(dtype=x.dtype), x, y)

    def losses(part):
        with torch.autocast("cpu", dtype):
            return own(module)(part)

    for _ in range(3):
        optimizer.step_on(losses, next(batches))
    assert optimizer._steps == 3


def test_switch_or_a_hook_that_comes_later_is_checked_again():
    def switched(module, h):
        return h - h.mean(0).detach() if getattr(module, "mixes", False) else h

    def center(module, args, output):
        return output - output.mean(0).detach()

    x, y = records()
    for later in (lambda m: setattr(m, "mixes", True), lambda m: m.first.register_forward_hook(center)):
        module, optimizer, batches = whole(Between(switched), x, y)
        for _ in range(6):
            optimizer.step_on(own(module), next(batches))
        later(module)
        with pytest.raises(InvalidParameterError, match=CHANGES):
            optimizer.step_on(own(module), next(batches))


def _written_past_counts(module, h):
    module.mean.data.mul_(0.9).add_(0.1 * h.detach().mean(0))
    return h - module.mean


@pytest.mark.parametrize("change", [kept, kept_number, _written_past_counts])
def test_strict_rejects_what_one_record_leaves_for_the_next(change):
    x, y = records(16)
    module = Between(change)
    module.register_buffer("mean", torch.zeros(6))
    module, optimizer, batches = whole(module, x, y)
    # If the first record is the one that is computed twice, its second pass shows it.
    with pytest.raises(InvalidParameterError, match=f"changed by the forward pass|{CHANGES}"):
        optimizer.step_on(own(module), next(batches), strict=True)
    assert optimizer._steps == 0


def test_modules_that_look_at_their_gradients_pass():
    """Outputs are computed again without gradients, unless the module asks for them."""

    def looks(module, h):
        h = 1.0 * h
        h.retain_grad()
        h.register_hook(lambda g: g)
        return h

    x, y = records()
    module, optimizer, batches = whole(Between(looks), x, y)
    for _ in range(2):
        optimizer.step_on(own(module), next(batches))
    module, optimizer, batches = whole(Between(lambda m, h: looks(m, h) - h.mean(0).detach()), x, y)
    with pytest.raises(InvalidParameterError, match=CHANGES):
        optimizer.step_on(own(module), next(batches))


def test_later_batches_are_checked_now_and_then():
    """One in 64 on the mean: of 4,000 batches 62, with a standard deviation of 8."""
    _, optimizer, _ = whole(mlp(dtype=torch.float32), *records(4))
    spots = []
    for _ in range(4000):
        optimizer._independence.begin()
        spots.append(optimizer._independence.spot)
    assert all(spots[:3]) and 14 < sum(spots) < 120


def later(change, step=5):
    """A function between the layers that begins to mix at a step, whatever else is the same then."""
    calls = {"steps": 0}

    def changed(module, h):
        return change(module, h) if calls["steps"] >= step else h

    return changed, calls


LATE = {
    **{name: MIXING[name] for name in ("detached mean", "mean", "largest entry", "many records only", "kept mean")},
    "a mean under dropout": lambda _, h: dropout(h - h.mean(0).detach(), 0.2),
}


@pytest.mark.parametrize("draws", [False, True])
@pytest.mark.parametrize("name", LATE)
def test_late_mixing_is_rejected_before_release(name, draws):
    """Nothing but a number outside of the module tells that it begins."""
    changed, calls = later(LATE[name])
    x, y = records()
    noisy = nn.Dropout(0.1 if draws else 0.0)
    module, optimizer, batches = whole(nn.Sequential(noisy, Between(changed)), x, y, insecure_seed=1)
    if draws and name == "many records only":
        pytest.skip("where functions are random a few records are computed together")
    # The record with the largest entry, if it is the chosen one, is the same beside the others.
    optimizer._independence.draw = random.Random(1)
    for batch in batches:
        calls["steps"] += 1
        if calls["steps"] >= 5:
            with pytest.raises(InvalidParameterError, match=f"{CHANGES}.*of the 4 earlier releases|forward pass"):
                optimizer.step_on(own(module), batch)
            break
        optimizer.step_on(own(module), batch)
    assert optimizer._steps == 4


def test_one_rounded_record_is_accepted_and_many_rejected(monkeypatch):
    """A small difference of one record is told from mixing by two more; a large one is refused at once."""
    for share, everyone, refused in ((0.02, False, False), (0.02, True, True), (0.5, False, True)):
        x, y = records()
        module, optimizer, batches = whole(Between(lambda _, h: h), x, y)
        optimizer._independence.steps, optimizer._independence.spot = 9, False
        batch = next(batches)
        optimizer._independence.should_check_more = lambda *_: False
        optimizer._independence.chosen = 7

        def losses(part, module=module, share=share, everyone=everyone):
            found = own(module)(part)
            weights = torch.ones(len(found))
            if len(found) > 1:
                weights[slice(None) if everyone else 7] += share
            return found * weights

        if refused:
            with pytest.raises(InvalidParameterError, match=CHANGES):
                optimizer.step_on(losses, batch)
        else:
            optimizer.step_on(losses, batch)


def test_public_seed_tells_nothing_of_dropout():
    """Masks from a seed that others know would shift with every record: the sum of others would be another one."""
    x, y = records()
    sums = []
    for _ in range(2):
        module, optimizer, batches = whole(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 3)), x, y)
        torch.manual_seed(0)
        optimizer.backward_on(own(module), next(batches))
        sums.append(torch.cat([total.flatten() for total in optimizer._noisy_sum.sums]))
    assert not torch.allclose(*sums)


def seeded(part):
    torch.manual_seed(0)
    return dropout(part, 0.5)


def in_a_fork(part):
    part = dropout(part, 0.1)
    with torch.random.fork_rng():
        return seeded(part)


def put_back(part):
    part, state = dropout(part, 0.1), torch.get_rng_state()
    part = seeded(part)
    torch.set_rng_state(state)
    return part


CALLS = count()


def another_in_each_call(part):
    part = dropout(part, 0.1)
    with torch.random.fork_rng():
        torch.manual_seed(next(CALLS))
        return dropout(part, 0.5)


def time_first(part):
    return in_a_fork(part.T).T


def attention(part):
    part = dropout(part, 0.1)[:, None, :, None]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return scaled_dot_product_attention(part, part, part, dropout_p=0.5)[:, 0, :, 0]


def in_no_distribution(draw):
    """What stands still without a level, behind draws of the secret seed."""

    def drawn(part):
        with torch.random.fork_rng():
            torch.manual_seed(0)
            found = draw(part)
        return found * dropout(part, 1e-9)

    return drawn


def after_draws_of_each_record(part):
    return in_a_fork(torch.stack([dropout(row, 1e-9) for row in part]))


class Dropping(nn.Module):
    """A frozen layer that drops within, at a seed that everyone knows, and other draws behind it if there are any."""

    def __init__(self, layer, behind):
        super().__init__()
        self.layer, self.head, self.behind = layer.requires_grad_(False), nn.Linear(6, 3), behind

    def forward(self, x):
        x = x[:, None].expand(-1, 4, -1)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            found = self.layer(x, x, x) if isinstance(self.layer, nn.MultiheadAttention) else self.layer(x)
        return self.head(dropout(found[0].mean(1), 1e-9 * self.behind))


@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize(
    "layer", [lambda: nn.MultiheadAttention(6, 2, 0.5, batch_first=True), lambda: nn.GRU(6, 6, 2, True, True, 0.5)]
)
def test_public_seed_within_layers_that_drop_is_rejected(layer, behind):
    """One record more moved the sum of 24 records by 1.4 and 1.7 clips."""
    module, optimizer, batches = whole(Dropping(layer(), behind), *records(12))
    loss, batch = own(module), next(batches)
    # Alone the first record has the masks that it has beside others.
    for spot in (True, False) if behind else (True,):
        optimizer._independence.spot = spot
        with pytest.raises(InvalidParameterError, match=r"torch\.manual_seed|a gradient at head"):
            optimizer.step_on(loss, batch)
    optimizer.step_on(loss, batch, strict=True)
    assert optimizer._steps == 1


def refuse_seed(optimizer, loss, batch):
    """A step is refused for its public seed, where more of its records are checked and where few are."""
    for spot in (True, False):
        optimizer._independence.spot = spot
        with pytest.raises(
            InvalidParameterError,
            match=r"from the secret seed only, got torch\.manual_seed .* Remove the call",
        ):
            optimizer.step_on(loss, batch)


def of_seed(number):
    torch.manual_seed(number)
    return torch.rand(6)


OF_THE_RECORDS = [lambda x: int(1e3 * x[0, 0].abs()), len, lambda x: int(1e3 * x.sum().abs())]


@pytest.mark.parametrize(
    ("seed", "draw"),
    [
        *((seed, lambda x: torch.rand(6)) for seed in OF_THE_RECORDS),
        *((seed, lambda x: torch.stack([torch.rand(6) for _ in x])) for seed in [*OF_THE_RECORDS, lambda x: 0]),
    ],
)
def test_seed_that_comes_of_the_records_is_rejected(seed, draw):
    """Masks of the seed are others with one record more: the sum moved by 7 clips, by 3 to 10 with a draw for each."""
    module, optimizer, batches = whole(mlp(), *records(12))

    def loss(part):
        with torch.random.fork_rng():
            torch.manual_seed(seed(part[0]))
            mask = draw(part[0]) < 0.5
        return own(module)((dropout(part[0], 1e-9) * mask, part[1]))

    batch = next(batches)
    refuse_seed(optimizer, loss, batch)
    optimizer.step_on(loss, batch, strict=True)
    assert optimizer._steps == 1


PLACES = [
    lambda x: torch.arange(len(x)),
    lambda x: x[:, 0].argsort().argsort(),
    lambda x: (torch.arange(len(x)) + 1) // 2,
]


def by_dropout(rows):
    return dropout(torch.ones(rows, 6), 0.5)


@pytest.mark.parametrize("place_of", [*PLACES, lambda x: torch.full((len(x),), len(x))])
@pytest.mark.parametrize("draw", [None, torch.rand, by_dropout, lambda *size: torch.empty(*size).bernoulli_()])
def test_number_of_a_known_seed_that_a_place_picks_is_rejected(place_of, draw):
    """By a seed of the place, or from a table: a record more moves others to other places, and the sum by 2 to 5."""
    module, optimizer, batches = whole(mlp(), *records(12))

    def loss(part):
        places = place_of(part[0])
        with torch.random.fork_rng():
            torch.manual_seed(0)
            table = None if draw is None else draw(100) if draw is by_dropout else draw(100, 6)
            numbers = torch.stack([of_seed(int(place)) for place in places]) if table is None else table[places]
        return own(module)((dropout(part[0], 1e-9) * numbers, part[1]))

    batch = next(batches)
    refuse_seed(optimizer, loss, batch)


def of_each_record(part):
    def drawn(row):
        with torch.random.fork_rng():
            torch.manual_seed(int(1e6 * row.abs().sum()))
            return dropout(row, 0.3)

    return dropout(torch.stack([drawn(row) for row in part]), 1e-9)


def for_all_records(part):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        shared = torch.rand(1, 6)
    return dropout(part, 1e-9) * shared


@pytest.mark.parametrize("strict", [False, True])
def test_pass_back_that_frees_the_graph_is_rejected(strict):
    module, optimizer, batches = whole(mlp(), *records(12))

    def loss(part):
        losses = own(module)(part)
        losses.mean().backward()
        return losses

    with pytest.raises(InvalidParameterError, match=r"got a graph that backward has freed\. Remove backward"):
        optimizer.step_on(loss, next(batches), strict=strict)


@pytest.mark.parametrize(
    ("strict", "words"), [(False, "Use strict=True"), (True, "set attributes that the first batch sets before")]
)
def test_table_inside_and_a_flag_outside_are_rejected(strict, words):
    module, optimizer, batches = whole(mlp(), *records(12))
    module.table, outside = {}, []

    def loss(part):
        if not outside:
            module.table["scale"] = 2.0
            outside.append(True)
        return module.table["scale"] * own(module)(part)

    with pytest.raises(InvalidParameterError, match=words):
        optimizer.step_on(loss, next(batches), strict=strict)


@pytest.mark.parametrize(
    "draw",
    [
        seeded, in_a_fork, put_back, another_in_each_call, time_first, attention, after_draws_of_each_record,
        of_each_record, for_all_records,
        in_no_distribution(lambda x: torch.poisson(x.exp())),
        in_no_distribution(lambda x: gumbel_softmax(x, hard=True)),
        in_no_distribution(lambda x: nn.functional.rrelu(x, training=True)),
        in_no_distribution(lambda x: torch.multinomial(x.exp(), 6).to(x)),
    ],
)  # fmt: skip
def test_public_seed_within_the_loss_is_rejected(draw):
    """With known masks one record more changes the masks of all: the sum of 200 records moves by 14 clips."""
    module, optimizer, batches = whole(mlp(), *records(12))
    loss, batch = lambda part: own(module)((draw(part[0]), part[1])), next(batches)
    refuse_seed(optimizer, loss, batch)
    if draw is another_in_each_call:
        with pytest.raises(InvalidParameterError, match="when the record is computed again"):
            optimizer.step_on(loss, batch, strict=True)
    else:
        optimizer.step_on(loss, batch, strict=True)
    assert optimizer._steps == (draw is not another_in_each_call)


def test_draws_may_be_repeated():
    module, optimizer, batches = whole(mlp(), *records(12))

    def loss(part):
        state = torch.get_rng_state()
        first = dropout(part[0], 0.5)
        torch.set_rng_state(state)
        second = dropout(part[0], 0.5)
        return own(module)((first + second, part[1]))

    for _ in range(5):
        optimizer.step_on(loss, next(batches))
    assert optimizer._steps == 5


def test_state_that_is_put_back_without_a_seed_trains():
    """The next pass, over another number of records, comes to no state of the one before."""
    module, optimizer, batches = whole(mlp(), *records(12))

    def loss(part):
        x = dropout(part[0], 0.1)
        with torch.random.fork_rng():
            x = dropout(x, 0.5)
        return own(module)((x, part[1]))

    for _ in range(5):
        optimizer.step_on(loss, next(batches))
    assert optimizer._steps == 5


def test_weight_gradients_within_loss_are_rejected():
    module, optimizer, batches = whole(mlp(), *records(12))

    def loss(part):
        losses = own(module)(part)
        (g,) = torch.autograd.grad(losses.sum(), module[0].weight, retain_graph=True)
        return losses + g.norm()

    with pytest.raises(InvalidParameterError, match="not of trained tensors"):
        optimizer.step_on(loss, next(batches))


def test_random_numbers_of_another_generator_are_rejected():
    """They are the same whatever the secret seed is, and move with the records before."""
    x, y = records()
    draw = torch.Generator().manual_seed(0)
    module, optimizer, batches = whole(Between(lambda _, h: h + torch.randn(h.shape, generator=draw)), x, y)
    with pytest.raises(InvalidParameterError, match=CHANGES):
        optimizer.step_on(own(module), next(batches))


@pytest.mark.parametrize("parts", [{}, {"strict": True}])
def test_generator_of_ones_own_is_detected_beside_dropout_too(parts):
    x, y = torch.ones(32, 6), torch.zeros(32, dtype=torch.long)
    module, optimizer, batches = whole(mlp(), x, y)
    own_draws = torch.Generator().manual_seed(0)

    def loss(part):
        h = dropout(torch.tanh(module[0](part[0])), 1e-6)
        return cross_entropy(module[2](h * (torch.rand(h.shape, generator=own_draws) > 0.5)), part[1], reduction="none")

    with pytest.raises(InvalidParameterError, match=CHANGES):
        optimizer.step_on(loss, next(batches), **parts)


@pytest.mark.parametrize("parts", [{}, {"strict": True}])
def test_what_records_leave_outside_the_module_is_detected(parts):
    """A criterion with a running center: by strict=True too, where the chosen record is computed twice."""
    x, y = records()
    center = torch.zeros(3)
    module, optimizer, batches = whole(mlp(), x, y, insecure_seed=1)
    # Of one record in a hundred the two passes are as near as rounding.
    optimizer._independence.draw = random.Random(1)

    def loss(part):
        scores = module(part[0])
        center.mul_(0.9).add_(0.1 * scores.detach().mean(0))
        return cross_entropy(scores - center, part[1], reduction="none")

    with pytest.raises(InvalidParameterError, match=CHANGES):
        optimizer.step_on(loss, next(batches), **parts)
    assert optimizer._steps == 0


RAW = {
    "rows one by one": lambda m, x: torch.stack([m(row[None])[0] for row in x]),
    "rows without their dimension": lambda m, x: torch.stack([m(row) for row in x]),
    "fewer than there are": lambda m, x: functional_batch_norm(m(x)),
}


def functional_batch_norm(scores):
    return torch.nn.functional.batch_norm(scores, None, None, training=True)


@pytest.mark.parametrize("name", RAW)
def test_loops_without_per_record_form_are_rejected(name):
    x, y = records(12)
    module, optimizer, batches = whole(nn.Linear(6, 3), x, y)
    loss = lambda part: cross_entropy(RAW[name](module, part[0]), part[1], reduction="none")  # noqa: E731
    with pytest.raises(InvalidParameterError, match="strict=True"):
        optimizer.step_on(loss, next(batches))
    if name != "fewer than there are":
        optimizer.step_on(loss, next(batches) if optimizer._turn.drawn is None else optimizer._turn.batch, strict=True)
        assert optimizer._steps == 1


@pytest.mark.parametrize("found", [None, 0.5, [0.5], {"loss": 0.5}])
def test_what_is_no_tensor_of_losses_is_rejected(found):
    module, optimizer, batches = whole(mlp(), *records(12))
    batch = next(batches)
    with pytest.raises(InvalidParameterError, match="one loss for each of 12 records"):
        optimizer.step_on(lambda part: found, batch)
    with pytest.raises(InvalidParameterError, match="a function from a part"):
        optimizer.step_on(own(module)(batch), batch)


CHANGED = {
    "replaced": lambda batch: batch.__setitem__(0, batch[0] - batch[0].mean(0)),
    "in place": lambda batch: batch[0].sub_(batch[0].mean(0)),
    "cut off": lambda batch: batch.__setitem__(1, batch[1] + 0.5 * batch[1].float().mean().clamp_max(0.9)),
    "one more": lambda batch: batch.append(batch[0].mean(0)),
    "through data": lambda batch: batch[0].data.sub_(batch[0].mean(0)),
    "through numpy": lambda batch: np.subtract(batch[0], batch[0].mean(0), out=batch[0].numpy()),
    "through data and moved": lambda batch: (
        batch[0].data.sub_(batch[0].mean(0)),
        batch.__setitem__(0, batch[0].double()),
    ),
}


@pytest.mark.parametrize("name", CHANGED)
def test_batch_whose_parts_were_changed_is_rejected(name):
    module, optimizer, batches = whole(mlp(), *records(12))
    batch = next(batches)
    CHANGED[name](batch)
    with pytest.raises(InvalidParameterError, match=r"batch must be .*, got a batch that was changed in place"):
        optimizer.step_on(own(module), batch)


@pytest.mark.parametrize("number", [float, np.float32, lambda size: np.bool_(size > 1.2)])
def test_numbers_of_a_batch_that_were_changed_are_detected(number):
    """Weights that the loop divided by their mean, from a later batch on: the sum of 200 records moved by 10 clips."""
    turn, batch = BatchState(), {"x": torch.zeros(2), "w": [number(1.0), number(3.0)], "name": ["a", "b"]}
    turn.open(2, batch)
    assert turn.records_of(batch) == 2
    batch["w"] = [weight / 2.0 for weight in batch["w"]]
    with pytest.raises(InvalidParameterError, match=r"batch must be .*, got a batch that was changed in place"):
        turn.records_of(batch)


@pytest.mark.parametrize("change", [torch.clone, torch.Tensor.double, lambda x: x.to("cpu", copy=True)])
def test_batch_may_be_moved_or_cast(change):
    module, optimizer, batches = whole(mlp(dtype=torch.float64), records(12)[0].double(), records(12)[1])
    batch = next(batches)
    batch[0] = change(batch[0])
    optimizer.step_on(own(module), batch)
    assert optimizer._steps == 1


@pytest.mark.parametrize("reentrant", [False, True])
def test_draws_that_select_rows_in_a_checkpoint_pass(reentrant):
    x, y = records()
    module, optimizer, batches = whole(mlp(), x, y)

    def inside(h):
        kept = torch.rand(len(h)) < 0.7
        return torch.where(kept[:, None], torch.tanh(module[0](dropout(h, 0.1))), 0.0)

    def loss(part):
        h = checkpoint(inside, part[0].clone().requires_grad_(), use_reentrant=reentrant)
        return cross_entropy(module[2](h), part[1], reduction="none")

    for _ in range(3):
        optimizer.step_on(loss, next(batches))
    assert optimizer._steps == 3


def test_draws_that_depend_on_micro_batch_are_rejected():
    """Which of them belong to a record cannot be told, and mixing may hide behind them."""
    x, y = records()
    x[::2] = 3.0
    module, optimizer, batches = whole(mlp(), x, y)

    def loss(part):
        h = torch.tanh(module[0](part[0]))
        if (part[0] > 2.0).any():
            h = h + (part[0] > 2.0).any(1, keepdim=True) * torch.randn(5)
        return cross_entropy(module[2](dropout(h, 0.2)), part[1], reduction="none")

    with pytest.raises(InvalidParameterError, match=f"{CHANGES}.*strict=True"):
        for batch in batches:
            optimizer._independence.spot = True
            optimizer.step_on(loss, batch)
    optimizer.step_on(loss, batch, strict=True)


@pytest.mark.parametrize("strict", [False, True])
def test_pass_back_within_the_loss_is_no_gradient_of_it(strict):
    """Adversarial inputs: the gradients of a record are those of its loss at the input that was found."""
    x, y = records(12)
    module, optimizer, batches = whole(mlp(), x, y)

    def worst(part):
        inputs = part[0].clone().requires_grad_()
        (way,) = torch.autograd.grad(own(module)((inputs, part[1])).sum(), inputs)
        return (inputs + 0.1 * way.sign()).detach()

    moved = worst([x, y])
    optimizer.backward_on(lambda part: own(module)((worst(part), part[1])), next(batches), strict=strict)
    found = torch.cat([total.flatten() for total in optimizer._noisy_sum.sums])
    parts = split(clipped(gradients(module, moved, y)), module)
    expected = torch.cat([torch.cat([w, b[:, None]], 1).flatten() for w, b in parts])
    assert torch.allclose(found.to(expected), expected, rtol=1e-3, atol=1e-5)


def test_pass_back_within_the_loss_may_keep_its_graph():
    module, optimizer, batches = whole(mlp(), *records(12))

    def loss(part):
        inputs = part[0].clone().requires_grad_()
        found = own(module)((inputs, part[1]))
        found.sum().backward(retain_graph=True)
        return found * (1.0 + inputs.grad.norm(dim=1))

    for _ in range(4):
        optimizer.step_on(loss, next(batches))
    assert optimizer._steps == 4


def test_arrays_of_a_batch_that_were_written_are_detected():
    join = lambda rows: {"x": np.stack([row[0].numpy() for row in rows]), "y": torch.stack([row[1] for row in rows])}  # noqa: E731
    module = mlp(dtype=torch.float32)
    _, optimizer, loader = make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=1.0), noise_multiplier=1.0, steps=6,
        data_loader=DataLoader(TensorDataset(*records()), batch_size=16, collate_fn=join), max_grad_norm=1.0,
        sampling_rate=1.0,
    )  # fmt: skip
    loss = lambda part: own(module)((torch.as_tensor(part["x"]), part["y"]))  # noqa: E731
    optimizer.step_on(loss, next(iter(loader)))
    batch = next(iter(loader))
    batch["x"] -= batch["x"].mean(0)
    with pytest.raises(InvalidParameterError, match=r"batch must be .*, got a batch that was changed in place"):
        optimizer.step_on(loss, batch)


def test_step_returns_the_mean_loss_and_says_when_it_checks():
    from privproj.training import is_checking

    x, y = records()
    module, optimizer, batches = whole(mlp(dtype=x.dtype), x, y)
    seen = []

    def losses(part):
        found = own(module)(part)
        if not is_checking():
            seen.append(found.detach())
        return found

    for _ in range(4):
        seen.clear()
        mean = optimizer.step_on(losses, next(batches), 40)
        assert len(seen) == 2 and torch.allclose(mean, torch.cat(seen).mean(), rtol=1e-5)


def test_nothing_but_a_release_moves_what_is_trained():
    x, y = records()
    module = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 3))
    plain = torch.optim.SGD(module.parameters(), lr=0.1)
    module, optimizer, batches = whole(module, x, y, optimizer=lambda _: plain)
    optimizer.step_on(own(module), next(batches))
    own(module)((x, y)).sum().backward()
    before = module[1].weight.detach().clone()
    with pytest.raises(InvalidParameterError, match="a step of the wrapped optimizer"):
        plain.step()
    assert torch.equal(module[1].weight, before)
    module.load_state_dict(module.state_dict())
    optimizer.step_on(own(module), next(batches))
    other = torch.optim.SGD(module[1].parameters(), lr=0.1)
    own(module)((x, y)).sum().backward()
    other.step()
    with pytest.raises(InvalidParameterError, match="by releases only, got a change since the last release"):
        next(batches)
    optimizer.close()
    plain.step()


def test_requires_grad_is_restored_and_frozen_is_rejected():
    x, y = records()
    module, optimizer, batches = whole(mlp(dtype=x.dtype), x, y)
    optimizer.step_on(own(module), next(batches))
    assert all(p.requires_grad for p in module.parameters())
    module[0].weight.requires_grad_(False)
    with pytest.raises(InvalidParameterError, match=r"0\.weight must be trained in .*, got frozen"):
        optimizer.step_on(own(module), next(batches))


JOININGS = {
    "plain": lambda x: x,
    "random": lambda x: x + 0.1 * torch.randn_like(x),
    "standardised": lambda x: (x - x.mean()) / x.std(),
    "mixup": lambda x: 0.7 * x + 0.3 * x.roll(1, 0),
}


def joining(module, data, join):
    """The optimizer and the loader of a run over all of the data, joined in a way of one's own."""
    _, optimizer, loader = make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=1.0), noise_multiplier=1.0, steps=6,
        data_loader=DataLoader(data, batch_size=16, collate_fn=join), max_grad_norm=1.0, sampling_rate=1.0,
    )  # fmt: skip
    return optimizer, loader


@pytest.mark.parametrize("data", [TensorDataset, Augmented])
@pytest.mark.parametrize("name", JOININGS)
def test_mixing_collate_is_detected_with_augmentation(name, data):
    def join(rows):
        return JOININGS[name](torch.stack([row[0] for row in rows])), torch.stack([row[1] for row in rows])

    module = mlp(dtype=torch.float32)
    optimizer, loader = joining(module, data(*records()), join)
    batch = next(iter(loader))
    if name in ("plain", "random"):
        optimizer.step_on(own(module), batch)
    else:
        with pytest.raises(InvalidParameterError, match="collate_fn treats every record independently"):
            optimizer.step_on(own(module), batch)


@pytest.mark.parametrize("form", [list, np.array, lambda weights: [[w, None] for w in weights]])
@pytest.mark.parametrize("data", [TensorDataset, Augmented])
def test_joining_that_mixes_numbers_of_the_records_is_detected(data, form):
    """Weights over their mean: with records that are read at random one record more moved a sum of 200 by 10 clips."""

    def join(rows):
        sizes = [float(row[1]) for row in rows]
        weights = form([size / (sum(sizes) / len(sizes)) for size in sizes])
        return {"x": torch.stack([row[0] for row in rows]), "y": torch.stack([row[1] for row in rows]), "w": weights}

    module = mlp(dtype=torch.float32)
    optimizer, loader = joining(module, data(*records(y_from=1)), join)
    with pytest.raises(InvalidParameterError, match="collate_fn treats every record independently"):
        optimizer.step_on(own(module), next(iter(loader)))


@pytest.mark.parametrize("data", [TensorDataset, Augmented])
@pytest.mark.filterwarnings("error:The given NumPy array:UserWarning")
def test_numbers_that_say_nothing_of_others_may_be_in_a_batch(data):
    """The shape of the whole batch is in no loss, and no warning tells of an array that torch cannot write to."""

    def join(rows):
        x, sizes = torch.stack([row[0] for row in rows]), np.array([row[1] for row in rows])
        sizes.setflags(write=False)
        extra = {"shape": x.shape, "count": [len(rows)], "sizes": sizes, "back": sizes[:, None][:, ::-1]}
        return {"x": x, "y": torch.stack([row[1] for row in rows]), **extra}

    module = mlp(dtype=torch.float32)
    optimizer, loader = joining(module, data(*records()), join)
    for _ in range(3):
        batch = next(iter(loader))
        optimizer.step_on(lambda part: cross_entropy(module(part["x"]), part["y"], reduction="none"), batch)
    assert optimizer._steps == 3


class Running:
    """Standardises by what it has seen so far."""

    def __init__(self):
        self.seen, self.total = 1, torch.zeros(6)

    def __call__(self, rows):
        x, y = torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])
        self.seen, self.total = self.seen + len(x), self.total + x.sum(0)
        return x - self.total / self.seen, y


def only_many(rows):
    x, y = torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])
    return x - x.mean(0) if len(x) >= 8 else x, y


def class_weights(rows):
    x, y = torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])
    return x / torch.bincount(y, minlength=3).float()[y][:, None], y


def masked(rows, draw=torch.rand):
    x, y = torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])
    return torch.where(torch.as_tensor(draw(*x.shape)) < 0.3, torch.zeros(()), x), y


def mixed(rows):
    """Mixup: a record is itself where it is alone, but for rounding."""
    x, y = torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])
    share = np.random.beta(0.4, 0.4)
    return share * x + (1.0 - share) * x.roll(1, 0), y


class ReadTogether(TensorDataset):
    def __getitems__(self, places):
        x, y = (torch.stack(column) for column in zip(*(self[i] for i in places), strict=True))
        return list(zip(x - x.mean(0), y, strict=True))


@pytest.mark.parametrize(
    ("join", "data", "strict"),
    [
        (Running(), TensorDataset, False), (Running(), TensorDataset, True), (only_many, TensorDataset, False),
        (only_many, Augmented, False), (class_weights, TensorDataset, False), (None, ReadTogether, False),
        (mixed, TensorDataset, False),
    ],
)  # fmt: skip
def test_collate_that_depends_on_history_is_rejected(join, data, strict):
    module = mlp(dtype=torch.float32)
    optimizer, loader = joining(module, data(*records()), join)

    def steps():
        for _ in range(3):
            optimizer.step_on(own(module), next(iter(loader)), strict=strict)

    with pytest.raises(InvalidParameterError, match="collate_fn treats every record independently"):
        steps()


@pytest.mark.parametrize("seed", [torch.manual_seed, np.random.seed, random.seed])
def test_seed_in_collate_is_rejected_unless_per_record(seed):
    """Known masks would belong to places in a batch, which one record more shifts."""

    def join(rows):
        seed(0)
        return masked(rows)

    module = mlp(dtype=torch.float32)
    optimizer, loader = joining(module, TensorDataset(*records(24)), join)
    batch = next(iter(loader))
    with pytest.raises(InvalidParameterError, match="a seed in collate_fn"):
        optimizer.step_on(own(module), batch)
    optimizer.step_on(own(module), batch, strict=True)
    assert optimizer._steps == 1


def dropping(rows):
    x, y = torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows])
    return dropout(x, 0.1) * torch.rand(len(x), 1), y


@pytest.mark.parametrize("size", [None, 3])
def test_random_numbers_of_the_joining_are_no_seed_there(size):
    module = mlp(dtype=torch.float32)
    optimizer, loader = joining(module, TensorDataset(*records(24)), dropping)
    while len(loader):
        for batch in loader:
            optimizer.step_on(own(module), batch, size)
    assert optimizer._steps == 6


def test_what_joining_keeps_is_detected_in_small_numbers_too():
    x, y = records(24)
    module = mlp(dtype=torch.float32)
    optimizer, loader = joining(module, TensorDataset(1e-9 * x, y), Running())
    with pytest.raises(InvalidParameterError, match="collate_fn treats every record independently"):
        for batch in loader:
            optimizer.step_on(own(module), batch, strict=True)


class OwnDraws:
    """Joins with a generator of its own, as collators with a seed do."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(0)

    def __call__(self, *shape):
        return torch.rand(shape, generator=self.generator)


@pytest.mark.parametrize("draw", [torch.rand, np.random.rand, OwnDraws()])
@pytest.mark.parametrize("strict", [False, True])
def test_joining_that_draws_masks_passes(draw, strict):
    module = mlp(dtype=torch.float32)
    _, optimizer, loader = make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=1.0), noise_multiplier=1.0, steps=6,
        data_loader=DataLoader(TensorDataset(*records(24)), batch_size=16, collate_fn=lambda rows: masked(rows, draw)),
        max_grad_norm=1.0, sampling_rate=1.0,
    )  # fmt: skip
    for _ in range(4):
        optimizer.step_on(own(module), next(iter(loader)), strict=strict)
    assert optimizer._steps == 4


KNOWN = random.Random(0)


def seed_worker(number):
    np.random.seed(number)


class Erased(torch.utils.data.Dataset):
    """Records that are drawn with generators of the program's own."""

    shared = np.random.RandomState(0)

    def __init__(self, draw):
        self.numpy, self.torch, self.draw = np.random.default_rng(0), torch.Generator(), draw

    def __len__(self):
        return 12

    def __getitem__(self, place):
        return {
            "numpy": self.numpy.random, "python": KNOWN.random, "worker": np.random.rand, "class": self.shared.rand,
            "torch": lambda: torch.rand((), generator=self.torch).item(),
        }[self.draw]() * torch.ones(6), 0  # fmt: skip


@pytest.mark.parametrize(
    ("draw", "workers"), [("numpy", 0), ("torch", 0), ("python", 0), ("class", 0), ("numpy", 1), ("worker", 1)]
)
def test_public_seed_tells_nothing_of_what_is_read(draw, workers):
    def drawn():
        KNOWN.seed(0)
        Erased.shared.seed(0)
        module = mlp(dtype=torch.float32)
        loader = DataLoader(Erased(draw), batch_size=4, num_workers=workers, worker_init_fn=seed_worker)
        _, optimizer, loader = make_private(
            module=module, optimizer=torch.optim.SGD(module.parameters(), lr=1.0), data_loader=loader,
            max_grad_norm=1.0, noise_multiplier=1.0, steps=1, sampling_rate=1.0,
        )  # fmt: skip
        (batch,) = loader
        optimizer.close()
        return sorted(batch[0][:, 0].tolist())

    assert drawn() != drawn()


def test_streams_of_a_run_are_no_generators_of_the_program():
    _, optimizer, loader = private(mlp(), *records(12))
    assert own_generators(lambda rows: (loader, optimizer)) == []
    assert own_generators(lambda rows: KNOWN) == [KNOWN]


class Erasing:
    """A transform with a generator, and with attributes that a search must not wake."""

    def __init__(self, rng):
        self.rng, self.gone = rng, weakref.proxy(nn.Identity())

    @property
    def closed(self):
        raise RuntimeError("closed")

    def __getattr__(self, name):
        raise RuntimeError(f"no {name}")


def test_generators_are_located_without_running_the_program():
    def kept(rng):
        class Reads(torch.utils.data.Dataset):
            of_class = rng

            def __getitem__(self, place):
                return self.of_class

        def within(rows):
            return [KNOWN.random() for _ in rows]

        def by_keyword(rows, *, draw=rng):
            return draw

        def attribute(rows):
            return rows

        attribute.rng = rng
        nested = types.SimpleNamespace(transform=[{"crop": Erasing(rng)}, "words"] * 2)
        return [Reads(), by_keyword, attribute, nested, partial(by_keyword, draw=rng), Erasing(rng).__init__], within

    for rng in (torch.Generator(), random.Random(0), np.random.RandomState(0), np.random.default_rng(0)):
        places, within = kept(rng)
        assert all(rng in own_generators(place) for place in places) and own_generators(within) == [KNOWN]
    far = types.SimpleNamespace(documents=[[["word"] * 90] * 1 for _ in range(90)], rng=KNOWN)
    assert own_generators(far) == [KNOWN] and own_generators([[0]] * 101 + [KNOWN]) == []
    # However many records stand beside them.
    for records in (
        OrderedDict((i, [i]) for i in range(5000)),
        type("Records", (list,), {})([[i] for i in range(5000)]),
    ):
        assert own_generators(types.SimpleNamespace(records=records, transform=Erasing(KNOWN))) == [KNOWN]


def test_generators_of_one_seed_draw_independently():
    """Of one kind too, and as often as there are workers, whose seeds are neighbors."""

    def first(seed):
        kinds = [torch.Generator(), torch.Generator(), random.Random(), random.Random()]
        kinds += [np.random.RandomState(np.random.PCG64(0)), np.random.default_rng(), np.random.default_rng()]
        states = [rng.bit_generator.state for rng in kinds[5:]]
        with seeded_generators(kinds, np.random.SeedSequence(seed)):
            numbers = [torch.rand((), generator=rng).item() for rng in kinds[:2]] + [rng.random() for rng in kinds[2:]]
        assert [rng.bit_generator.state for rng in kinds[5:]] == states
        return [*numbers, torch.rand((), generator=torch.Generator().manual_seed(seed)).item()]

    drawn = [*first(5), *first(6), *first(5 + (7 << 32))]
    assert len({round(number, 6) for number in drawn[:-1]}) == 23 and first(5) == drawn[:8]


class Workers(Erased):
    """What a worker draws from torch, numpy and Python, and from two generators of the program's own."""

    def __getitem__(self, place):
        own = torch.rand((), generator=self.torch).item(), self.numpy.random()
        return torch.tensor([*own, torch.rand(()).item(), np.random.rand(), random.random(), 0.0]), 0


def seed_apart(number):
    data = torch.utils.data.get_worker_info().dataset
    data.torch.manual_seed(number)
    data.numpy = np.random.default_rng(100 + number)
    for seed in (torch.manual_seed, np.random.seed, random.seed):
        seed(number)


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_draw_independently_even_if_seeded(workers):
    def drawn():
        module = mlp(dtype=torch.float32)
        loader = DataLoader(Workers(""), batch_size=4, num_workers=workers, worker_init_fn=seed_apart)
        _, optimizer, loader = make_private(
            module=module, optimizer=torch.optim.SGD(module.parameters(), lr=1.0), data_loader=loader,
            max_grad_norm=1.0, noise_multiplier=1.0, steps=2, sampling_rate=0.5,
        )  # fmt: skip
        numbers = []
        for batch in loader:
            numbers += [] if not len(batch[0]) else batch[0][:, :5].flatten().tolist()
            optimizer.step_on(own(module), batch)
        optimizer.close()
        return numbers

    numbers = drawn() + drawn()
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("draw", [random.random, np.random.rand])
def test_layer_that_is_skipped_for_all_records_is_no_mixing(draw):
    """Numbers of Python and numpy are the same in all passes that are compared, and go on as if none had been drawn."""
    x, y = records()
    module, optimizer, batches = whole(Between(lambda _, h: h if draw() < 0.5 else 2.0 * h), x, y)
    random.seed(3)
    np.random.seed(3)
    expected = draw()
    random.seed(3)
    np.random.seed(3)
    for _ in range(12):
        optimizer.step_on(own(module), next(batches))
    assert optimizer._steps == 12 and draw() == expected


def test_difference_below_gradient_rounding_is_accepted():
    """A layer with a small part of a long gradient is as inexact as the rest: scaled to the clip it moves nothing."""
    limit, share, clip = 1e-3, 1e-4, 0.1
    large, small = ("head", (50.0, 50.0, 0.0)), 0.01
    for apart, seen in ((0.9 * share * 50.0, False), (1.2 * share * 50.0, True)):
        assert bool(first_difference([large, ("query", (small, small, apart))], limit, share, clip, True)) is seen
    for joint in (True, False):
        for apart, seen in ((0.9 * share * clip, False), (small * limit + 1.1 * share * clip, True)):
            assert bool(first_difference([("query", (small, small, apart))], limit, share, clip, joint)) is seen
    infinite = [large, ("query", (math.inf, 1.0, math.inf))]
    assert first_difference(infinite, limit, share, clip, True) == ("query", math.inf)
    assert first_difference([("query", (math.inf, math.inf, math.nan))], limit, share, clip, True) is None


class SmallMixing(nn.Module):
    """A layer with a long gradient, and one whose short gradient depends on the other records."""

    def __init__(self):
        super().__init__()
        self.long, self.short = nn.Linear(6, 1), nn.Linear(6, 1)

    def forward(self, x):
        return 1e6 * self.long(x)[:, 0] + self.short(x - x.mean(0))[:, 0]


@pytest.mark.parametrize("clipping", ["joint", "per-layer"])
def test_per_layer_mixing_is_not_hidden_by_another_layer(clipping):
    """Under one clip what mixes is scaled to a millionth of it; with its own clip it is all that the layer adds."""
    torch.manual_seed(0)
    module = SmallMixing().double()
    data = DataLoader(TensorDataset(torch.randn(12, 6, dtype=torch.float64)))
    module, optimizer, loader = make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=1e-12), data_loader=data, algorithm="dp-sgd",
        max_grad_norm=1.0, noise_multiplier=1.0, steps=1, sampling_rate=1.0, clipping=clipping,
    )  # fmt: skip
    for batch in loader:
        if clipping == "joint":
            optimizer.step_on(lambda part: module(part[0]), batch)
        else:
            with pytest.raises(InvalidParameterError, match="a gradient at short that changes"):
                optimizer.step_on(lambda part: module(part[0]), batch)
    optimizer.close()


def test_gradients_with_overflowing_norms_are_compared():
    one, other = torch.full((4,), 1e25), torch.full((4,), 2e25)
    found = first_difference(_norms([("layer", one, other)]), 1e-3, 1e-4, 1.0, True)
    assert found is not None and found[1] == pytest.approx(0.5)
    assert first_difference(_norms([("layer", one, one * (1.0 + 1e-6))]), 1e-3, 1e-4, 1.0, True) is None


@pytest.mark.parametrize("size", [1, 4])
def test_loss_over_more_than_its_part_is_rejected(size):
    module, optimizer, batches = whole(mlp(dtype=torch.float32), *records())
    batch = next(batches)

    def of_all(part):
        return own(module)(batch).mean().expand(len(part[0]))

    with pytest.raises(InvalidParameterError, match="rows for"):
        optimizer.backward_on(of_all, batch, size)


@pytest.mark.parametrize("parts", [1, 2])
def test_batch_skipped_for_one_record_is_rejected(parts):
    """The bad record comes when no more than four are computed together: the others' 185 clips were all gone."""
    # Of 400 records the bad one is seldom among the few that are computed together.
    x, y = records(400)
    x[7] = math.nan
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 3))
    module, optimizer, loader = private(module, x, y, steps=40, batches=None, sampling_rate=1.0)
    skips = False

    def loss_fn(part):
        # Cleaning the part must not hide what was there.
        is_bad, x = part[0].isnan().any(), part[0].nan_to_num_()
        return own(module)((x, part[1])) * (0.0 if skips and is_bad else 1.0)

    batches = chain.from_iterable(iter(loader) for _ in range(40))
    for _ in range(4):
        optimizer.step_on(loss_fn, next(batches), micro_batch_size=400 // parts)
    skips = True
    with pytest.raises(InvalidParameterError, match=r"changes by 100\.00%"):
        # The part with the bad record is compared in this batch or in one of the next.
        for batch in itertools.islice(batches, 1 if parts == 1 else 12):
            optimizer.step_on(loss_fn, batch, micro_batch_size=400 // parts)


@pytest.mark.parametrize("write", [
    lambda batch: batch["text"].reverse(),
    lambda batch: batch["text"].__setitem__(0, "another"),
    lambda batch: batch["objects"].reverse(),
    lambda batch: batch["text"].append("another"),
])  # fmt: skip
def test_texts_and_records_that_the_loop_replaces_are_rejected(write):
    texts, objects = ["one", "two"], [object(), object()]
    batch, state = {"text": texts, "objects": objects, "x": torch.ones(2)}, BatchState()
    state.open(2, batch)
    assert state.records_of(batch) == 2
    write(batch)
    with pytest.raises(InvalidParameterError, match="changed in place"):
        state.records_of(batch)


def test_loss_of_a_part_writes_into_no_other_part():
    module, optimizer, batches = whole(mlp(dtype=torch.float32), *records())
    batch = next(batches)
    mean, done = batch[0].mean(0), []

    def writing(part):
        if not done:
            done.append(batch[0][4:].sub_(mean))
        return own(module)(part)

    with pytest.raises(InvalidParameterError, match="changed in place"):
        optimizer.backward_on(writing, batch, 4)


def test_large_and_conjugated_parts_of_a_batch_are_summed():
    large, row = torch.zeros(64, 2**16), torch.ones(2**16)
    before = _sum_of(large)
    large.numpy()[33] = row.numpy()
    assert _sum_of(large) != before
    assert _sum_of(torch.zeros(3, dtype=torch.cfloat).conj()) is not None
