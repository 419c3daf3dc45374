"""What torch.vmap does not keep apart by itself: state, errors, and what programs learn about a record.

Each test fails without the treatment that it is about.
"""

import copy
import io
import pickle
import warnings
from contextlib import nullcontext

import numpy as np
import pytest
from helpers import needs

from privproj.errors import InvalidParameterError, PrivprojError, UnsupportedError

torch = needs("torch")

from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from unit.training.helpers import batch_of, clipped_sums, data, looped_sums, mlp, own, private, step, sums_of, take_in  # noqa: E402

BOTH = pytest.mark.parametrize("options", [{}, {"one_by_one": True}], ids=["vmap", "one by one"])
KEPT = []
"""A global list, as a program may have one."""


class Keeper(nn.Module):
    """A linear layer whose forward pass does something besides."""

    def __init__(self, do, value=None):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.do, self.value, self.table = nn.Linear(6, 3).double(), do, value, {}
        self.register_buffer("ema", torch.zeros(1, 3).double())
        self.frozen = nn.Parameter(torch.zeros(1, 3).double(), requires_grad=False)

    def forward(self, x):
        y = self.layer(x)
        out = self.do(self, y)
        return y if out is None else out


def run_of(module, **options):
    """A private run of a module on twelve records, with its sums of a batch."""
    x, y = data()
    _, optimizer, _ = private(module, x, y, max_grad_norm=0.5, **options)
    return optimizer, batch_of(x, y)


def plain_sums(module):
    """The sums of a loop with the linear layer alone."""
    optimizer, _ = run_of(module)
    x, y = data()
    records = [[one[None], label[None]] for one, label in zip(x, y, strict=True)]
    return looped_sums(optimizer, lambda record: F.cross_entropy(module.layer(record[0]), record[1]), records)


# --- kept tensors ---------------------------------------------------------------------------------------


def in_a_global(module, y):
    KEPT.extend(y[0, 1:].detach().unbind())


def in_a_table(module, y):
    module.table["y"] = y * 1


def in_a_closure(module, y):
    module.do.__dict__["y"] = y.detach() + 1


@BOTH
@pytest.mark.parametrize("keep", [in_a_global, in_a_table, in_a_closure])
def test_tensor_kept_after_a_pass_is_rejected(keep, options):
    """A tensor of an earlier pass would be paired with the records of the next one."""
    optimizer, batch = run_of(Keeper(keep))
    try:
        with pytest.raises(InvalidParameterError, match="function of one record alone"):
            take_in(optimizer, own(optimizer._module), batch, **options)
        assert not clipped_sums(optimizer).any() and optimizer.steps_done == 0
    finally:
        KEPT.clear()
        vars(keep).clear()


@BOTH
def test_input_of_a_loss_that_is_kept_is_rejected(options):
    optimizer, batch = run_of(mlp())
    try:
        with pytest.raises(InvalidParameterError, match="function of one record alone"):
            take_in(optimizer, lambda record: KEPT.append(record) or own(optimizer._module)(record), batch, **options)
    finally:
        KEPT.clear()


@BOTH
def test_cyclic_garbage_is_not_a_kept_tensor(options):
    def cycle(module, y):
        ring = [y * 1]
        ring.append(ring)

    x, y = data(2)
    optimizer, _ = run_of(Keeper(cycle))
    take_in(optimizer, own(optimizer._module), batch_of(x, y), **options)


# --- what a forward pass leaves in the module ------------------------------------------------------------


def last_output(module, y):
    """Add the output of the last call, if there was one."""
    out = y if module.value is None else y + module.value
    module.value = y.detach()
    return out


def calls(module, y):
    module.value = 1 if module.value is None else module.value + 1
    return y * module.value


def new_attribute(module, y):
    out = y * 2 if hasattr(module, "seen") else y
    module.seen = 3
    return out


def new_buffer(module, y):
    out = y + module.ema
    module.ema = y.detach()
    return out


def calls_by_branch(module, y):
    if y[0, 0] > 0:
        module.value = 1 if module.value is None else module.value + 1
    return y * (module.value or 1)


LEFT = [last_output, calls, new_attribute, new_buffer, calls_by_branch]


@pytest.mark.parametrize("options", [{}, {"micro_batch_size": 5}, {"one_by_one": True}], ids=str)
@pytest.mark.parametrize("do", LEFT)
def test_attributes_and_buffers_are_restored_after_each_pass(do, options):
    module = Keeper(do)
    expected = plain_sums(module)
    optimizer, batch = run_of(module)
    for _ in range(2):
        take_in(optimizer, own(module), batch, **options)
        assert torch.allclose(clipped_sums(optimizer), expected, rtol=1e-9, atol=1e-12)
        optimizer._turn.batch = None
        optimizer._noisy_sum.forget()
    assert (module.value, module.ema.any(), hasattr(module, "seen")) == (None, False, False)


def by_addition(module, y):
    module.ema += 1.0


def by_copy(module, y):
    module.ema.copy_(module.ema + 1.0)


def frozen_parameter(module, y):
    with torch.no_grad():
        module.frozen.add_(1.0)


def trained_parameter(module, y):
    with torch.no_grad():
        places = [p for p in KEPT if isinstance(p, nn.Parameter)]
        places[0].mul_(0.5)


@BOTH
@pytest.mark.parametrize("write", [by_addition, by_copy, frozen_parameter, trained_parameter])
def test_write_in_place_to_the_module_is_rejected(write, options):
    module = Keeper(write)
    KEPT.append(module.layer.weight)
    optimizer, batch = run_of(module)
    try:
        with pytest.raises(InvalidParameterError, match="a forward pass that writes to a buffer or a parameter"):
            take_in(optimizer, own(module), batch, **options)
    finally:
        KEPT.clear()
    assert not clipped_sums(optimizer).any()


def record_by_copy(module, y):
    module.ema.copy_(y.detach())


def record_by_data(module, y):
    module.ema.data.add_(y.data)


def record_as_data(module, y):
    module.ema.data = y.data


def call_as_data(module, y):
    module.ema.data = module.ema.detach() + 1.0


@pytest.mark.parametrize("write", [record_by_copy, record_by_data, record_as_data, call_as_data])
@BOTH
def test_record_written_into_a_buffer_is_rejected(write, options):
    optimizer, batch = run_of(Keeper(write))
    with pytest.raises(PrivprojError):
        take_in(optimizer, own(optimizer._module), batch, **options)
    assert not clipped_sums(optimizer).any()


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.SyncBatchNorm])
def test_batch_norm_in_training_mode_is_rejected(norm):
    module = nn.Sequential(nn.Linear(6, 4), norm(4), nn.Linear(4, 3)).double()
    rejected = pytest.raises(InvalidParameterError, match=r"BatchNorm.* in training mode\. Replace it by nn\.GroupNorm")
    with rejected:
        run_of(module)  # before the first step
    module[1].eval()
    optimizer, batch = run_of(module)
    module[1].train()
    with rejected:
        take_in(optimizer, own(module), batch)
    module[1].eval()
    optimizer._turn.batch = None
    take_in(optimizer, own(module), batch)


# --- hooks, and what shows all records ------------------------------------------------------------------


def full_hook(module):
    return module.layer.register_full_backward_hook(lambda layer, given, got: None)


def pre_hook(module):
    return module.layer.register_full_backward_pre_hook(lambda layer, got: None)


def global_hook(module):
    return nn.modules.module.register_module_full_backward_hook(lambda layer, given, got: None)


def global_pre_hook(module):
    return nn.modules.module.register_module_full_backward_pre_hook(lambda layer, got: None)


@pytest.mark.parametrize("register", [full_hook, pre_hook, global_hook, global_pre_hook])
def test_backward_hooks_are_rejected(register):
    module = Keeper(lambda module, y: None)
    optimizer, batch = run_of(module)
    handle = register(module)
    try:
        with pytest.raises(InvalidParameterError, match=r"because it sees|because they see"):
            take_in(optimizer, own(module), batch)
    finally:
        handle.remove()
    optimizer._turn.batch = None
    take_in(optimizer, own(module), batch)


def test_forward_hooks_see_one_record():
    shapes, module = set(), Keeper(lambda module, y: None)
    module.layer.register_forward_hook(lambda layer, given, out: shapes.add(tuple(out.shape)))
    optimizer, batch = run_of(module)
    take_in(optimizer, own(module), batch)
    assert shapes == {(1, 3)}


VISIBLE = {
    "repr": repr, "format": lambda y: f"{y}", "register_hook": lambda y: (y * 1).register_hook(lambda g: g),
    "retain_grad": lambda y: (y * 1).retain_grad(), "grad_fn": lambda y: y.grad_fn,
    "backward": lambda y: y.sum().backward(retain_graph=True),
    "autograd.backward": lambda y: torch.autograd.backward(y.sum(), retain_graph=True),
    "autograd.grad": lambda y: torch.autograd.grad(y.sum(), y, retain_graph=True),
}  # fmt: skip


@pytest.mark.parametrize("name", VISIBLE)
def test_what_shows_all_records_is_rejected(name):
    module = Keeper(lambda module, y: VISIBLE[name](y) and None)
    optimizer, batch = run_of(module)
    with pytest.raises(PrivprojError, match=r"loss_fn must be a function|inside a functorch transform"):
        take_in(optimizer, own(module), batch)
    assert all(p.grad is None for p in module.parameters())


def test_gradient_within_the_loss_may_be_taken_one_by_one():
    def penalty(record):
        x = record[0].clone().requires_grad_()
        (g,) = torch.autograd.grad(own(module)([x, record[1]]).sum(), x, create_graph=True)
        return own(module)(record).sum() + g.square().sum()

    x, y = data()
    module = mlp()
    optimizer, batch = run_of(module)
    with pytest.raises(InvalidParameterError, match=r"Use torch\.func\.grad, or pass one_by_one=True"):
        take_in(optimizer, penalty, batch)
    optimizer._turn.batch = None
    records = [[one[None], label[None]] for one, label in zip(x, y, strict=True)]
    expected = looped_sums(optimizer, penalty, records)
    found = sums_of(optimizer, penalty, batch, one_by_one=True)
    assert torch.allclose(found, expected, rtol=1e-9)


@BOTH
def test_backward_within_the_loss_leaves_no_gradient(options):
    module = mlp()
    optimizer, batch = run_of(module)

    def loss(record):
        found = own(module)(record)
        found.sum().backward(retain_graph=True)
        return found

    with pytest.raises(InvalidParameterError, match="loss_fn must be a function"):
        take_in(optimizer, loss, batch, **options)
    assert all(p.grad is None for p in module.parameters())


@pytest.mark.parametrize("around", [True, False])
def test_hooks_on_saved_tensors_are_rejected(around):
    seen, module = [], mlp()
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append(x) or x, lambda x: x)
    optimizer, batch = run_of(module)

    def loss(record):
        with nullcontext() if around else hooks:
            return own(module)(record)

    with hooks if around else nullcontext(), pytest.raises(UnsupportedError, match="hooks on saved tensors"):
        take_in(optimizer, loss, batch)
    assert not any(len(x) == 12 for x in seen if x.dim())


# --- what is shown_values of a record ---------------------------------------------------------------------------

OTHER = torch.tensor([3.0, 4.0], dtype=torch.float64)
VALUES_READ = {
    "item": lambda v: v[0].item(), "float": lambda v: float(v[0]), "int": lambda v: int(v[0]),
    "index": lambda v: [1, 2, 3, 4, 5, 6, 7][v[0].long()], "tolist": lambda v: v.tolist(),
    "allclose": lambda v: torch.allclose(v, OTHER), "in": lambda v: 3.0 in v, "unique": lambda v: len(torch.unique(v)),
    "masked_select": lambda v: torch.masked_select(v, v > 2).shape, "mask": lambda v: v[v > 2].shape,
    "nonzero": lambda v: torch.nonzero(v > 2).shape, "where": lambda v: torch.where(v > 2)[0].shape,
    "bincount": lambda v: torch.bincount(v.long()).shape, "argwhere": lambda v: torch.argwhere(v > 2).shape,
    "repeat_interleave": lambda v: torch.repeat_interleave(OTHER, v.long()).shape,
    "one_hot": lambda v: F.one_hot(v.long()).shape, "arange": lambda v: torch.arange(v[0]).shape,
    "zeros": lambda v: torch.zeros(v[0].long()).shape, "range": lambda v: len(range(v[0].long())),
    "split": lambda v: torch.split(torch.ones(20), v.long()), "pad": lambda v: F.pad(OTHER, (v[0].long(), 0)).shape,
    "tensor": lambda v: torch.tensor(v[0]), "tensor of a list": lambda v: torch.tensor(list(v)).sum().item(),
    "numpy": lambda v: np.asarray(v).sum(), "cpu numpy": lambda v: v.detach().cpu().numpy().sum(),
    "array": lambda v: np.array([float(x) for x in v]).sum(), "dlpack": lambda v: torch.utils.dlpack.to_dlpack(v),
    "pickle": lambda v: pickle.dumps(v), "save": lambda v: torch.save(v, io.BytesIO()), "copy": copy.deepcopy,
    "reduce": lambda v: v.__reduce_ex__(2), "text": lambda v: f"{v}", "percent": lambda v: "%s" % v,  # noqa: UP031
    "storage": lambda v: bytes(v.detach().untyped_storage()), "pointer": lambda v: v.data_ptr(),
    "hash": lambda v: type(hash(v)), "sparse": lambda v: v.to_sparse()._nnz(), "shape": lambda v: tuple(v.shape),
    "cholesky": lambda v: torch.linalg.cholesky(torch.diag(v - 2)).shape, "size": lambda v: (len(v), v.dim()),
    "nested": lambda v: torch.nested.nested_tensor([v]).size(0), "stride": lambda v: v.contiguous().stride(),
    "packed": lambda v: nn.utils.rnn.pack_padded_sequence(torch.ones(1, 4, 2), v[:1].long(), True).data.shape,
    "is_complex": lambda v: (v.is_complex(), v.dtype, v.device.type), "numpy max": np.max,
    "memoryview": lambda v: bytes(memoryview(v.numpy())), "array interface": lambda v: v.__array_interface__,
    "set": lambda v: len({float(x) for x in v}), "complex": lambda v: complex(v[0]), "log": str,
    "isinstance": lambda v: isinstance(v, torch.Tensor), "version": lambda v: v._version,
    "equal to itself": lambda v: v is v, "default": lambda v: v.new_tensor([1.0]).sum().item(),
}  # fmt: skip


def values_of_two_batches(function, **options):
    """What Python learns from a function of a record, for two batches of one shape."""
    seen = []
    for values in ([[1.0, 2.0], [3.0, 4.0], [3.0, 6.0]], [[2.0, 5.0], [6.0, 5.0], [5.0, 3.0]]):
        shown_values, module = [], nn.Linear(2, 1).double()
        x = torch.tensor(values, dtype=torch.float64)
        _, optimizer, _ = private(module, x, torch.zeros(3))

        def loss(record, shown_values=shown_values, module=module):
            out, value = module(record[0]).sum(), function(record[0][0])
            shown_values.append("tensor" if isinstance(value, torch.Tensor) else value)
            return out

        optimizer._batches_seen = 1  # without the comparison with one record alone, which may know its own values
        try:
            take_in(optimizer, loss, batch_of(x, torch.zeros(3)), **options)
        except Exception as error:
            shown_values.append(type(error).__name__)
        seen.append(shown_values)
    assert all(seen)
    return seen


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", VALUES_READ)
def test_no_function_tells_python_the_value_of_a_record(name):
    """Whatever Python learns, it is the same for both batches."""
    one, other = values_of_two_batches(VALUES_READ[name])
    assert one == other


@pytest.mark.parametrize("name", ["item", "tolist", "array"])
def test_functions_that_tell_values_do_so_one_by_one(name):
    """Negative control."""
    one, other = values_of_two_batches(VALUES_READ[name], one_by_one=True)
    assert len(one) == 3 and one != other


# --- random numbers --------------------------------------------------------------------------------------


def seeds_torch(x):
    torch.manual_seed(0)
    return F.dropout(x, 0.5)


def seeds_in_a_fork(x):
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(0)
        return F.dropout(x, 0.5)


STATE = torch.Generator().manual_seed(1).get_state()


def sets_a_state(x):
    torch.set_rng_state(STATE)
    return F.dropout(x, 0.5)


def has_a_generator(x):
    return x * torch.rand(x.shape, generator=torch.Generator().manual_seed(0))


def writes_by_a_generator(x):
    return x * torch.empty(x.shape).uniform_(generator=torch.Generator().manual_seed(0))


@BOTH
@pytest.mark.parametrize("draw", [seeds_torch, seeds_in_a_fork, sets_a_state, has_a_generator, writes_by_a_generator])
def test_seed_or_generator_in_the_loss_is_rejected(draw, options):
    """Known masks depend on the place of a record in its batch."""
    module = Keeper(lambda module, y: draw(y))
    optimizer, batch = run_of(module)
    with pytest.raises(InvalidParameterError, match=r"a seed or a generator of its own.*Remove torch\.manual_seed"):
        take_in(optimizer, own(module), batch, **options)


@BOTH
def test_dropout_does_not_follow_the_seed_of_the_program(options):
    """The masks come from a secret seed, and the generators of the program go on as if nothing had been drawn."""
    found, after = [], []
    module = nn.Sequential(nn.Dropout(0.5), mlp())
    for _ in range(2):
        optimizer, batch = run_of(module)
        torch.manual_seed(0)
        take_in(optimizer, own(module), batch, **options)
        found.append(clipped_sums(optimizer))
        after.append(float(torch.rand(())))
    torch.manual_seed(0)
    assert after == [float(torch.rand(()))] * 2
    assert not torch.allclose(*found)


# --- weights used otherwise than through the module, and other leaves -----------------------------------


def test_weight_captured_past_its_module_is_rejected():
    module = mlp()
    weight = module[0].weight
    optimizer, batch = run_of(module)
    with pytest.raises(InvalidParameterError, match=r"0\.weight past its module"):
        take_in(optimizer, lambda record: own(module)(record) + weight.square().sum(), batch)
    assert all(p.grad is None for p in module.parameters())


@BOTH
def test_no_gradient_is_left_on_tensors_outside_the_module(options):
    outside, module = nn.Parameter(torch.ones(3).double()), mlp()
    optimizer, batch = run_of(module)
    take_in(optimizer, lambda record: F.cross_entropy(outside * module(record[0]), record[1]), batch, **options)
    assert outside.grad is None


@BOTH
def test_frozen_teacher_outside_the_module_is_a_constant(options):
    module, teacher = mlp(), copy.deepcopy(mlp()).requires_grad_(False)
    with torch.no_grad():
        teacher[0].weight.add_(1.0)
    optimizer, batch = run_of(module)
    records = [[one[None], label[None]] for one, label in zip(*data(), strict=True)]
    loss = lambda record: F.mse_loss(module(record[0]), teacher(record[0]))  # noqa: E731
    expected = looped_sums(optimizer, loss, records)
    assert torch.allclose(sums_of(optimizer, loss, batch, **options), expected, rtol=1e-9)


# --- operations without a rule ---------------------------------------------------------------------------


class OldStyle(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return 2 * g


NO_RULE = {
    "old function": lambda module, x: OldStyle.apply(module(x)),
    "mask": lambda module, x: (y := module(x))[y > -100.0].reshape(1, 3),
    "item": lambda module, x: module(x) * (1.0 + 0.0 * module(x).sum().item()),
    "nonzero": lambda module, x: module(x) + torch.nonzero(module(x) > -100.0).sum() * 0.0,
}


@pytest.mark.parametrize("name", NO_RULE)
def test_operation_without_a_rule_names_one_by_one(name):
    module = mlp()
    optimizer, batch = run_of(module)
    loss = lambda record: F.cross_entropy(NO_RULE[name](module, record[0]), record[1])  # noqa: E731
    with pytest.raises(UnsupportedError, match=r"one_by_one=True to step_on"):
        take_in(optimizer, loss, batch)
    assert not clipped_sums(optimizer).any()
    optimizer._turn.batch = None
    records = [[one[None], label[None]] for one, label in zip(*data(), strict=True)]
    expected = looped_sums(optimizer, loss, records)
    assert torch.allclose(sums_of(optimizer, loss, batch, one_by_one=True), expected, rtol=1e-9)


@pytest.mark.parametrize("option", ["max_norm", "scale_grad_by_freq"])
def test_embedding_options_that_look_at_a_batch_are_rejected(option):
    module = nn.Sequential(nn.Embedding(7, 6, **{option: 1.0 if option == "max_norm" else True}), nn.Flatten())
    x = torch.randint(0, 7, (5, 1), generator=torch.Generator().manual_seed(0))
    _, optimizer, _ = private(module, x, x)
    with pytest.raises(InvalidParameterError, match=f"an embedding with {option}"):
        take_in(optimizer, lambda record: module(record[0]).square().sum(), batch_of(x, x))


@pytest.mark.full
@pytest.mark.parametrize("part", ["whole", "inner"])
def test_compiled_module_runs_eagerly_in_a_pass(part):
    """A compiled function would mix the records of a batch."""
    module = mlp()
    compiled = torch.compile(module if part == "whole" else module[:2], backend="eager")
    forward = compiled if part == "whole" else lambda x: module[2](compiled(x))
    x, y = data()
    with torch.no_grad():
        forward(x)
    optimizer, batch = run_of(module)
    records = [[one[None], label[None]] for one, label in zip(x, y, strict=True)]
    expected = looped_sums(optimizer, own(module), records)
    found = sums_of(optimizer, lambda record: F.cross_entropy(forward(record[0]), record[1]), batch)
    assert torch.allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("loss", "condition"),
    [
        (lambda module, record: module(record[0]), r"returns Tensor of shape \(1, 3\)"),
        (lambda module, record: 1.0, "returns float"),
        (lambda module, record: None, "returns NoneType"),
    ],
)
def test_loss_that_is_no_number_is_rejected(loss, condition):
    module = mlp()
    optimizer, batch = run_of(module)
    with pytest.raises(InvalidParameterError, match=condition):
        take_in(optimizer, lambda record: loss(module, record), batch)


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_every_reduction_gives_the_same_sum(reduction):
    module = mlp()
    optimizer, batch = run_of(module)
    found = sums_of(optimizer, lambda r: F.cross_entropy(module(r[0]), r[1], reduction=reduction), batch)
    assert torch.equal(found, sums_of(optimizer, own(module), batch))


# --- losses of whole batches, and gradients that are zero -------------------------------------------------


def contrastive(module):
    def loss(record):
        views = F.normalize(module(record[0]), dim=1)
        return F.cross_entropy(views @ views.T, torch.arange(len(views)))

    return loss


@BOTH
@pytest.mark.parametrize("make", [contrastive, lambda module: lambda r: own(module)(r).detach()])
def test_gradients_that_are_all_zero_are_rejected(make, options):
    """An in-batch loss of one record is a constant: the run would train on noise."""
    module = mlp()
    optimizer, batch = run_of(module)
    take_in(optimizer, make(module), batch, **options)
    optimizer.step()
    with pytest.raises(InvalidParameterError, match=r"zero.*for all records of the first 2 batches.*contrastive"):
        take_in(optimizer, make(module), batch, **options)
    assert optimizer.steps_done == 1


def test_one_gradient_that_is_not_zero_is_enough():
    module = mlp()
    optimizer, batch = run_of(module)
    take_in(optimizer, contrastive(module), batch)
    optimizer.step()
    for _ in range(2):
        take_in(optimizer, own(module), batch)
        optimizer.step()
        take_in(optimizer, contrastive(module), batch)
        optimizer.step()
    assert optimizer.steps_done == 5


# --- a module that changes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [nn.Module.bfloat16, nn.Module.half, nn.Module.float])
def test_module_that_changes_dtype_is_rejected(change):
    """Noise in 16 bits has few values, and norms of 16 bits are wrong by more than the slack."""
    module = mlp()
    optimizer, batch = run_of(module)
    take_in(optimizer, own(module), batch)
    change(module)
    with pytest.raises(InvalidParameterError, match="module must be trained as it was planned"):
        optimizer.step()
    assert optimizer.steps_done == 0
    optimizer._turn.batch = None
    with pytest.raises(InvalidParameterError, match="module must be trained as it was planned"):
        take_in(optimizer, lambda record: own(module)([record[0].to(module[0].weight), record[1]]), batch)


def test_many_shapes_give_one_warning():
    module = nn.Sequential(nn.AdaptiveAvgPool1d(6), nn.Flatten(), nn.Linear(6, 3))
    records = [[torch.randn(1, 1, 6 + i), torch.tensor([i % 3])] for i in range(12)]
    _, optimizer, _ = private(module, torch.zeros(12), torch.zeros(12))
    with pytest.warns(UserWarning, match=r"have 12 different shapes.*pad_to_multiple_of=64"):
        take_in(optimizer, own(module), records)
    optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        take_in(optimizer, own(module), records)


def test_step_after_a_rejected_batch_uses_another_loss():
    """A pass that raised an error leaves nothing for the next one."""
    x, y = data()
    module = Keeper(in_a_global)
    optimizer, batch = run_of(module)
    with pytest.raises(InvalidParameterError, match="function of one record alone"):
        take_in(optimizer, own(module), batch)
    KEPT.clear()
    module.do = lambda module, y: None
    optimizer._turn.batch = None
    expected = plain_sums(Keeper(lambda module, y: None))
    assert torch.allclose(sums_of(optimizer, own(module), batch), expected, rtol=1e-9)
    step(module, optimizer, x, y)
