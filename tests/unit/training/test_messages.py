"""Common mistakes in a training loop raise an error that names a remedy."""

import pytest
from helpers import needs

torch = needs("torch")

from torch.nn.functional import cross_entropy  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

from privproj.errors import InvalidParameterError  # noqa: E402
from privproj.training import Method, make_private  # noqa: E402


def run(module, **options):
    """Return the private module, optimizer and loader for a few records."""
    records = TensorDataset(torch.randn(20, 4), torch.randint(0, 2, (20,)))
    return make_private(
        module=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=DataLoader(records, batch_size=5), max_grad_norm=1.0, steps=3, batches="fixed",
        **{"noise_multiplier": 1.0, **options},
    )  # fmt: skip


def test_hook_on_a_trained_tensor_raises():
    seen = []
    module, optimizer, loader = run(torch.nn.Linear(4, 2))
    module.weight.register_hook(seen.append)
    for batch in loader:
        with pytest.raises(InvalidParameterError, match="a hook on the gradient of a trained tensor"):
            optimizer.step_on(lambda record: cross_entropy(module(record[0]), record[1]), batch)
        break
    assert not seen


def test_batch_cannot_be_unpacked():
    _, _, loader = run(torch.nn.Linear(4, 2))
    with pytest.raises(TypeError, match=r"Pass it to optimizer\.step_on"):
        for _, _ in loader:
            pass


def test_batch_used_twice_raises():
    module, optimizer, loader = run(torch.nn.Linear(4, 2))
    batch = next(iter(loader))
    optimizer.backward_on(lambda record: module(record[0]).sum(), batch)
    with pytest.raises(InvalidParameterError, match="got a batch that was used before"):
        optimizer.backward_on(lambda record: module(record[0]).sum(), batch)


@pytest.mark.parametrize("loss_fn", [lambda x, y: x, cross_entropy, 3])
def test_loss_function_of_two_arguments_raises(loss_fn):
    _, optimizer, loader = run(torch.nn.Linear(4, 2))
    with pytest.raises(InvalidParameterError, match=r"a function of one record.* Write lambda record: cross_entropy"):
        optimizer.step_on(loss_fn, next(iter(loader)))


@pytest.mark.parametrize("seed", ["a", -1, 0.5])
def test_seed_that_is_no_whole_number_raises(seed):
    with pytest.raises(InvalidParameterError, match="insecure_seed must be an integer from 0 to"):
        run(torch.nn.Linear(4, 2), insecure_seed=seed)


def test_step_without_gradients_raises():
    _, optimizer, loader = run(torch.nn.Linear(4, 2))
    next(iter(loader))
    with pytest.raises(InvalidParameterError, match="called after backward_on of the batch"):
        optimizer.step()


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("loss_reduction", "$"), ("total_steps", " Use steps=1.0"), ("sample_rate", " Use batches=PoissonBatches"),
        ("sampling_rate", r" Use batches=PoissonBatches\(rate=1.0\)\.$"),
    ],
)  # fmt: skip
def test_make_private_explains_names_of_other_tools(name, remedy):
    with pytest.raises(InvalidParameterError, match=rf"^{name} must be omitted, got 1\.0\.{remedy}"):
        run(torch.nn.Linear(4, 2), **{name: 1.0})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clipping": "per-layer"}, r"given to make_private.* Write make_private\(..., clipping='per-layer'\)\."),
        ({"sampling_rate": 0.1}, r"given to make_private.* Use batches=PoissonBatches\(rate=0\.1\)\."),
        ({"rnk": 4}, "unknown option 'rnk' of Method; did you mean 'rank'"),
    ],
)
def test_method_states_where_other_options_belong(options, message):
    with pytest.raises(InvalidParameterError, match=message):
        Method("m2", **options)
