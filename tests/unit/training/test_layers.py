"""Every kind of layer that is trained: a record's gradient is what plain autograd says of its loss alone."""

import pytest
from helpers import needs

from privproj.errors import InvalidParameterError

torch = needs("torch", "opacus")

from torch import nn  # noqa: E402
from unit.training.helpers import (  # noqa: E402
    ALGORITHMS,
    DOUBLE,
    alone,
    check_gradients,
    data,
    flat_weights,
    mlp,
    options_of,
    own,
    private,
    state,
    step,
)

from privproj.training import Subspace, per_example  # noqa: E402
from privproj.training.per_example import LookedUp  # noqa: E402


class Conv1D(nn.Module):
    """GPT-2's layer, as transformers has it: a linear one with its weight transposed."""

    def __init__(self, outputs, inputs):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs)), nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


Conv1D.__module__ = "transformers.pytorch_utils"


class Gain(nn.Module):
    """A norm as Llama has it."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, width))

    def forward(self, hidden_states):
        return self.weight * hidden_states * hidden_states.square().mean(-1, keepdim=True).add(1e-6).rsqrt()


class Net(nn.Module):
    """Layers in a row over tokens, the mean of which is squared."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def squares(model, batch):
    return model(batch).flatten(1).square().mean(1) + model(batch).flatten(1).sum(1)


def vectors(records=5, tokens=4, width=6):
    return torch.randn(records, tokens, width, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)


def numbers(records=5, tokens=4, most=9):
    return torch.randint(0, most, (records, tokens), generator=torch.Generator().manual_seed(0))


LAYERS = {
    "linear": lambda: nn.Linear(6, 6),
    "Conv1D": lambda: Conv1D(6, 6),
    "RMSNorm": lambda: nn.RMSNorm(6),
    "Llama's norm": lambda: Gain(6),
    "LayerNorm": lambda: nn.LayerNorm(6),
    "LayerNorm without bias": lambda: nn.LayerNorm(6, bias=False),
    "Linear without bias": lambda: nn.Linear(6, 6, bias=False),
    "PReLU": lambda: nn.PReLU(),
    "Linear of another class": lambda: type("Mine", (nn.Linear,), {})(6, 6),
    "grouped convolution": lambda: nn.Conv1d(4, 4, 3, padding=1, groups=2),
    "reflected convolution": lambda: nn.Conv1d(4, 4, 3, padding=1, padding_mode="reflect"),
}


@pytest.mark.parametrize("build", LAYERS.values(), ids=LAYERS.keys())
def test_gradients_of_layers_are_those_of_records_alone(build):
    torch.manual_seed(0)
    check_gradients(Net(nn.Linear(6, 6), build(), build()).double(), squares, vectors(), 5)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("options", [{}, {"stride": (2, 1), "padding": (0, 2)}, {"dilation": (1, 2), "padding": 1}])
def test_gradients_of_convolutions_of_any_window(options, bias):
    torch.manual_seed(0)
    model = Net(nn.Conv2d(2, 3, (2, 3), bias=bias, **options), nn.Conv2d(3, 2, 2, bias=bias)).double()
    images = torch.randn(5, 2, 6, 7, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    check_gradients(model, squares, images, 5)


def test_layers_may_be_called_with_names_and_used_twice():
    class Named(Net):
        def forward(self, x):
            inner, norm, gain = self.layers
            return norm(input=gain(hidden_states=inner(input=gain(hidden_states=x))))

    check_gradients(Named(nn.Linear(6, 6), nn.LayerNorm(6), Gain(6)).double(), squares, vectors(), 5)


# --- embeddings ------------------------------------------------------------------------------------


class Text(nn.Module):
    """Token, position and kind embeddings and a head, which may be tied to the first."""

    def __init__(self, positions, tied=False, bias=True, padding=None):
        super().__init__()
        self.tokens, self.places, self.kinds = nn.Embedding(9, 6, padding), nn.Embedding(8, 6), nn.Embedding(2, 6)
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, 9, bias=bias)
        self.positions = positions
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids):
        places = torch.arange(ids.shape[1]) if self.positions == 1 else torch.arange(ids.shape[1])[None]
        kinds = torch.zeros_like(places) if self.positions == 1 else torch.zeros((1, ids.shape[1]), dtype=torch.long)
        # Kinds are looked up by name.
        hidden = self.tokens(ids) + self.norm(self.places(places) + self.kinds(input=kinds))
        return self.head(torch.tanh(hidden))


def next_token(model, ids):
    scores = model(ids)[:, :-1]
    return (
        nn.functional.cross_entropy(scores.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        .view(len(ids), -1)
        .sum(1)
    )


@pytest.mark.parametrize("positions", [1, 2])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_gradients_of_embeddings_that_records_share(positions, tied, bias):
    torch.manual_seed(0)
    check_gradients(Text(positions, tied, bias).double(), next_token, numbers(), 5)


@pytest.mark.parametrize("tied", [False, True])
def test_positions_are_shared_in_a_part_of_one_record_too(tied):
    torch.manual_seed(0)
    model, ids = Text(1, tied).double(), numbers(tokens=3)
    found = []
    for options in ({"micro_batch_size": 4}, {"micro_batch_size": 1}, {"strict": True}):
        _, optimizer, loader = private(model, ids, ids)
        optimizer.backward_on(lambda part: next_token(model, part[0]), next(iter(loader)), **options)
        found.append(torch.cat([total.flatten() for total in optimizer._noisy_sum.sums]))
        optimizer.close()
    assert all(torch.allclose(one, found[2], rtol=1e-9) for one in found)


def test_padding_gets_no_gradient():
    torch.manual_seed(0)
    ids = numbers()
    ids[:, -2:] = 3
    for tied in (False, True):
        check_gradients(Text(2, tied, padding=3).double(), next_token, ids, 5)
    model = Text(2, padding=3).double()
    kept = model.tokens.weight[3].clone()
    _, optimizer, _ = private(model, torch.zeros(5), torch.zeros(5))
    optimizer._turn.open(5)
    optimizer.backward_on(lambda part: next_token(model, part), ids)
    optimizer.step()
    assert torch.allclose(model.tokens.weight[3], kept, atol=1e-9)


def test_as_many_positions_as_records_are_still_positions():
    torch.manual_seed(0)
    model = Text(1).double()
    _, optimizer, _ = private(model, torch.zeros(5), torch.zeros(5))
    for ids in (numbers(), numbers(records=4)):
        (tap,) = [tap for tap in optimizer._taps.taps if tap.name == "places"]
        with optimizer._taps.armed(len(ids)):
            next_token(model, ids).sum().backward()
            found = [tap.gradient_of(slice(j, j + 1), torch.ones(1))[0] for j in range(len(ids))]
        expected = [
            g[next(i for i, p in enumerate(tensors(optimizer._taps)) if p is model.places.weight)]
            for g in alone(model, optimizer._taps, next_token, ids, len(ids))
        ]
        assert all(torch.allclose(own, g) for own, g in zip(found, expected, strict=True))


def test_layers_distinguish_shared_from_per_record_arguments():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(6))

        def forward(self, x, table):
            return x * self.scale * table

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.scaled = Scaled()

        def forward(self, x):
            table = torch.linspace(1.0, 2.0, x.shape[1] * 6, dtype=x.dtype).view(x.shape[1], 6)
            return self.scaled(x, table).pow(2).sum(-1)

    model = Model().double()
    _, optimizer, _ = private(model, torch.zeros(5), torch.zeros(5))
    (tap,) = optimizer._taps.taps
    # Parts of 3 and then of 4 records, of 4 tokens each.
    for records in (3, 4):
        x = torch.randn(records, 4, 6, dtype=torch.double)
        with optimizer._taps.armed(records):
            model(x).sum().backward()
            rows = [tap.gradient_of(slice(j, j + 1), torch.ones(1))[0] for j in range(records)]
        for row, g in zip(rows, alone(model, optimizer._taps, lambda m, b: m(b).sum(1), x, records), strict=True):
            assert torch.allclose(row, g[0])


def test_many_positions_are_told_from_numbers_of_records_at_once():
    torch.manual_seed(0)
    model = Text(1).double()
    model.kinds.requires_grad_(False)
    check_gradients(model, next_token, numbers(records=8, tokens=8), 8)


def tensors(taps):
    return [p for tap in taps.taps for p in tap.parameters]


def test_one_number_for_each_record_is_no_position():
    class Users(nn.Module):
        def __init__(self):
            super().__init__()
            self.user, self.head = nn.Embedding(9, 6), nn.Linear(6, 3)

        def forward(self, user):
            return self.head(torch.tanh(self.user(user)))

    torch.manual_seed(0)
    check_gradients(Users().double(), lambda m, u: m(u).square().sum(1), numbers()[:, 0], 5)


@pytest.mark.parametrize("options", [{"max_norm": 1.0}, {"scale_grad_by_freq": True}, {"sparse": True}])
def test_embeddings_that_look_beyond_a_record_are_rejected(options):
    with pytest.raises(InvalidParameterError, match="without max_norm"):
        private(nn.Embedding(9, 6, **options), numbers(), numbers())


@pytest.mark.parametrize("algorithm", ["m2", "m1", "m2-projected-clip", "dp-sgd", "per layer"])
@pytest.mark.parametrize("kind", ["tied", "Conv1D", "embedding"])
def test_every_algorithm_projects_the_inputs_of_every_matrix(kind, algorithm):
    """What is summed is c_j G_j P, with G_j of plain autograd laid out as outputs x inputs."""
    torch.manual_seed(0)
    model = {
        "tied": lambda: Text(2, tied=True, bias=True).requires_grad_(False),
        "Conv1D": lambda: Conv1D(5, 6),
        "embedding": lambda: nn.Embedding(9, 6),
    }[kind]().double()
    if kind == "tied":
        model.head.requires_grad_(True)
    batch = vectors() if kind == "Conv1D" else numbers()
    loss_of = next_token if kind == "tied" else squares
    options = {"algorithm": algorithm, "insecure_seed": 7, **ALGORITHMS.get(algorithm, {})}
    options = options | ({"shares": (1.0,)} if "shares" in options else {})
    _, optimizer, _ = private(model, torch.zeros(5), torch.zeros(5), max_grad_norm=1e6, **options)
    (view,) = optimizer._views
    expected = []
    for row in alone(model, optimizer._taps, loss_of, batch, 5):
        parts = [g if g.dim() > 1 else g[:, None] for g in row]
        expected.append(torch.cat([parts[0].T if kind == "Conv1D" else parts[0], *parts[1:]], 1))
    optimizer._turn.open(5)
    optimizer.backward_on(lambda part: loss_of(model, part), batch)
    p = {"m1": lambda: view.a.T @ view.a, "dp-sgd": lambda: 1.0, "per layer": lambda: 1.0}.get(
        algorithm, lambda: view.q
    )()
    want = sum(g * p if isinstance(p, float) else g @ p for g in expected)
    assert optimizer._taps.taps[0].shape == expected[0].shape
    assert (optimizer._noisy_sum.sums[0] - want).norm() <= 1e-9 * want.norm()
    before = flat_weights(optimizer._taps)
    optimizer.step()
    assert not torch.equal(before, flat_weights(optimizer._taps))


def test_optimizers_agree_on_a_transposed_matrix():
    steps = []
    for momentum in (0.0, 0.5):
        torch.manual_seed(0)
        model = Conv1D(5, 6).double()
        sgd = lambda p, m=momentum: torch.optim.SGD(p, lr=1.0, momentum=m)  # noqa: E731
        _, optimizer, _ = private(model, torch.zeros(5), torch.zeros(5), sgd, **options_of("m2"))
        optimizer._turn.open(5)
        optimizer.backward_on(lambda part, model=model: squares(model, part), vectors())
        optimizer.step()
        steps.append(state(model))
    assert torch.allclose(*steps, rtol=1e-9)


@pytest.mark.parametrize("size", [1e-24, 1.0, 1e18])
def test_norms_of_tables_are_never_understated(size):
    """Neither where numbers are far apart, nor where tokens of one row cancel."""
    draw = torch.Generator().manual_seed(0)
    for rows in (torch.randint(0, 3, (500, 8), generator=draw), torch.zeros((500, 8), dtype=torch.long)):
        x = torch.randn(500, 10, 4, generator=draw) * size
        x[:, 3::2] = -x[:, 2:-1:2] * (1.0 + 1e-6 * torch.randn(500, 4, 4, generator=draw))
        for dense in (torch.randn(500, 2, 7, generator=draw), torch.zeros(500, 2, 7)):
            g = LookedUp(dense, rows)
            exact = torch.einsum("nto,nti->noi", g.to_dense().double(), x.double()).square().sum((1, 2))
            found = per_example.squared_norms(g, x)
            assert (found >= exact * (1.0 - 1e-6)).all()
            assert (found <= exact * 1.001 + 1e-3 * x.double().square().sum((1, 2))).all()


@pytest.mark.parametrize("tokens", [6, 62, 510])
def test_what_a_table_adds_is_never_longer_than_its_norm(tokens):
    """Tokens of the layers that multiply by it cancel but for rounding in the type in which they are summed."""
    dense, x = torch.zeros(1, tokens + 2, 50), torch.zeros(1, tokens + 3, 16)
    dense[0, :, 0] = 1.5
    dense[0, 0, 0], dense[0, -1, 0] = 2.0**24, -(2.0**24 + 3 * (tokens // 2))
    x[:, :-1, 0] = 1.0
    g = LookedUp(dense, torch.zeros(1, 1, dtype=torch.long))
    with per_example.full_precision():
        norm = per_example.squared_norms(g, x).sqrt()
        assert per_example.clipped_sum(1.0 / norm, g, x).norm() <= 1.0


@pytest.mark.parametrize("kind", ["tied", "Conv1D"])
def test_subspace_coordinates_match_stored_weights(kind):
    torch.manual_seed(0)
    model = (Text(2, tied=True) if kind == "tied" else Net(Conv1D(6, 6), nn.Linear(6, 6))).double()
    loss_of, batch = (next_token, numbers()) if kind == "tied" else (squares, vectors())
    total = sum(p.numel() for p in model.parameters())
    basis = torch.linalg.qr(torch.randn(total, 3, dtype=DOUBLE))[0]
    subspace = Subspace(basis, "public")
    _, optimizer, _ = private(
        model, torch.zeros(5), torch.zeros(5), algorithm="dp-sft", subspace=subspace, max_grad_norm=1e6
    )
    expected = [
        torch.cat([g.flatten() for g in row]) @ basis for row in alone(model, optimizer._taps, loss_of, batch, 5)
    ]
    optimizer._turn.open(5)
    optimizer.backward_on(lambda part: loss_of(model, part), batch)
    assert torch.allclose(optimizer._noisy_sum.sums[0], sum(expected), rtol=1e-9)


# --- attention and other layers of torch -----------------------------------------------------------


class Attention(nn.Module):
    def __init__(self, bias=True, **options):
        super().__init__()
        self.inner, self.attend = nn.Linear(6, 6), nn.MultiheadAttention(6, 2, batch_first=True, bias=bias, **options)

    def forward(self, x):
        hidden, causal = self.inner(x), torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), 1)
        return self.attend(hidden, hidden, hidden, attn_mask=causal, key_padding_mask=x[:, :, 0] > 1.5)[0]


@pytest.mark.parametrize("records", [4, 5])
@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("options", [{}, {"bias": False}, {"add_bias_kv": True}])
def test_attention_of_torch(records, train, options):
    torch.manual_seed(0)
    check_gradients(Attention(**options).double().train(train), squares, vectors(records), records)


def test_attention_with_dropout_says_what_to_do():
    model = Attention(dropout=0.5).double()
    _, optimizer, _ = private(model, vectors(), vectors())
    optimizer._turn.open(5)
    with pytest.raises(InvalidParameterError, match="dropout to 0"):
        optimizer.backward_on(lambda part: squares(model, part), vectors())


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("trained", ["all", "linear1", "linear2", "norm1", "self_attn"])
def test_layers_of_torchs_transformer(train, trained):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True).double().train(train)
    for name, parameter in layer.named_parameters():
        parameter.requires_grad_(trained == "all" or name.startswith(trained))
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().train(train)
    check_gradients(Net(layer), squares, vectors(), 5)
    check_gradients(encoder, squares, vectors(), 5)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: nn.LSTM(6, 6, batch_first=True), "DPLSTM"),
        (lambda: nn.EmbeddingBag(9, 6), "nn.Embedding and a sum"),
        (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)), "(?i)remove the parametrization"),
        (lambda: nn.ParameterList([torch.ones(3)]), "a forward method of its own"),
        (lambda: nn.LazyLinear(3), "once before make_private"),
        (lambda: torch.jit.trace(nn.Linear(6, 6), torch.ones(1, 6)), "before torch.jit"),
    ],
)
def test_layers_without_gradients_of_records_are_rejected(build, words):
    with pytest.raises(InvalidParameterError, match=words):
        private(build(), vectors(), vectors())


def summed(found):
    """All outputs of a record in one number."""
    return (sum(found) if isinstance(found, tuple) else found).flatten(1).sum(1)


def test_what_cannot_be_computed_for_one_record_is_rejected():
    class Branching(Gain):
        def forward(self, x):
            return super().forward(x) if float(x.sum()) > -1e9 else x

    class Noisy(Gain):
        def forward(self, x):
            return super().forward(x) + torch.rand_like(x)

    class Pair(Gain):
        def forward(self, x):
            return super().forward(x), x * self.weight

    class Listed(Gain):
        def forward(self, x):
            return [super().forward(x)]

    for build, words in (
        (Branching, "one record alone"),
        (Noisy, "dropout to 0"),
        (Pair, "a gradient at Pair that changes"),
        (Listed, "returns a tensor"),
    ):
        model = build(6).double()
        _, optimizer, _ = private(model, vectors(), vectors())
        optimizer._turn.open(5)
        with pytest.raises(InvalidParameterError, match=words):
            optimizer.backward_on(lambda part, model=model: summed(model(part)), vectors())


@pytest.mark.parametrize("name", ["DPRNN", "DPGRU", "DPLSTM"])
def test_recurrent_layers_of_opacus_train(name):
    """They are what a refused layer of torch is to be replaced by."""
    from opacus import layers

    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.cells, self.head = getattr(layers, name)(6, 5, batch_first=True), nn.Linear(5, 3)

        def forward(self, x):
            return self.head(self.cells(x)[0][:, -1])

    check_gradients(Reader().double(), squares, torch.randn(5, 4, 6, dtype=DOUBLE), 5)


def test_gradient_hook_error_names_the_alternative():
    layer = nn.Linear(6, 3).double()
    handle = layer.weight.register_hook(lambda g: 0.0 * g)
    with pytest.raises(InvalidParameterError, match=r"To change released gradients, call register_step_pre_hook"):
        private(layer, *data())
    handle.remove()
    before, optimizer = layer.weight.clone(), torch.optim.SGD(layer.parameters(), lr=1.0)
    optimizer.register_step_pre_hook(lambda *_: layer.weight.grad.__setitem__(0, 0.0))
    _, ours, _ = private(layer, *data(), optimizer=lambda _: optimizer)
    step(layer, ours, *data())
    assert torch.equal(layer.weight[0], before[0]) and not torch.equal(layer.weight[1], before[1])


@pytest.mark.parametrize("change", [nn.utils.spectral_norm, nn.utils.weight_norm])
def test_weights_that_are_made_from_others_are_rejected(change):
    model = nn.Sequential(change(nn.Linear(6, 6)), nn.Linear(6, 3)).double()
    with pytest.raises(InvalidParameterError, match="or freeze the layer and put it in eval mode"):
        private(model, *data())
    # Its own iteration would change buffers otherwise.
    model[0].requires_grad_(False).eval()
    _, optimizer, loader = private(model, *data())
    optimizer.step_on(own(model), next(iter(loader)))
    assert optimizer._steps == 1


def test_layer_within_torch_func_is_rejected():
    x, y = data()
    model = mlp()
    _, optimizer, loader = private(model, x, y)
    with pytest.raises(InvalidParameterError, match=r"Remove vmap and grad"):
        optimizer.step_on(lambda part: torch.func.vmap(lambda row: model(row[None]).sum())(part[0]), next(iter(loader)))


class Scaled(nn.Module):
    """A layer between others, with tensors in a list and in a table."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.rows = nn.Linear(6, 6), nn.ParameterList([torch.randn(6), torch.randn(6)])
        self.table = nn.ParameterDict({"gain": torch.randn(6, 6), "same": self.rows[0]})

    def forward(self, x):
        hidden = torch.tanh(self.first(x) * self.rows[0] + self.rows[1])
        return hidden @ self.table["gain"] + self.table["same"]


def test_parameter_lists_and_dicts_are_trained():
    check_gradients(Net(Scaled(), nn.Linear(6, 3)).double(), squares, vectors(), 5)
    with pytest.raises(InvalidParameterError, match="a forward method of its own"):
        private(nn.ModuleDict({"held": Scaled().rows}), vectors(), vectors())


@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("parts", [None, 3])
def test_unbatched_images_are_rejected_and_train_alone(channels, parts):
    """Three of three channels are no batch of three."""
    x = torch.randn(9, channels, 5, 5, dtype=DOUBLE)
    model = nn.Conv2d(channels, 3, 3).double()
    _, optimizer, loader = private(model, x, torch.arange(9) % 3)
    loss = lambda part: torch.stack([model(one).mean((1, 2))[0] for one in part[0]])  # noqa: E731
    batch = next(iter(loader))
    with pytest.raises(InvalidParameterError, match=r"got an input of shape .*strict=True"):
        optimizer.step_on(loss, batch, parts)
    optimizer.step_on(loss, batch, strict=True)
    assert optimizer._steps == 1


def test_gathered_rows_train_with_every_record_by_itself():
    """A mixture of experts sees some rows in each expert, so that no row is known to be a record's."""

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.gate, self.experts = nn.Linear(6, 2), nn.ModuleList([nn.Linear(6, 3), nn.Linear(6, 3)])

        def forward(self, x):
            weights, found = self.gate(x), x.new_zeros(len(x), 3)
            for i, expert in enumerate(self.experts):
                rows = (weights.argmax(1) == i).nonzero()[:, 0]
                found = found.index_add(0, rows, expert(x[rows]) * weights[rows, i : i + 1])
            return found

    x, y = data()
    model = Experts().double()
    _, optimizer, loader = private(model, x, y)
    batch = next(iter(loader))
    with pytest.raises(InvalidParameterError, match="strict=True"):
        optimizer.step_on(own(model), batch)
    optimizer.step_on(own(model), batch, strict=True)
    assert optimizer._steps == 1
