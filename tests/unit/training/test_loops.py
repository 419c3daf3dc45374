"""Loops as people write them around other libraries."""

import copy
from functools import partial

import pytest
from helpers import needs

from privproj.errors import InvalidParameterError

torch = needs("torch", "opacus", "accelerate", "peft", "transformers")

from accelerate import Accelerator  # noqa: E402
from accelerate.state import AcceleratorState  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from unit.training.helpers import losses_of, make_private  # noqa: E402

from privproj.training import prepare_peft  # noqa: E402

GIVEN = {"algorithm": "dp-sgd", "max_grad_norm": 1.0, "noise_multiplier": 1.0, "epochs": 1}


def parts():
    torch.manual_seed(0)
    x = torch.randn(200, 8)
    module = torch.nn.Linear(8, 2)
    loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long()), batch_size=20, shuffle=True)
    return module, torch.optim.SGD(module.parameters(), lr=0.5), loader


def trained(module, step_on, optimizer, loader):
    before = module.weight.detach().clone()
    for batch in loader:
        step_on(lambda part: losses_of(module, *part), batch)
    assert optimizer._steps == 10 and not torch.equal(module.weight, before)


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_accelerate_may_come_first_or_last(precision):
    AcceleratorState._reset_state(True)
    accelerator = Accelerator(cpu=True, mixed_precision=precision)
    module, sgd, loader = accelerator.prepare(*parts())
    module, optimizer, loader = make_private(module=module, optimizer=sgd, data_loader=loader, **GIVEN)
    trained(module, optimizer.step_on, optimizer, loader)

    module, sgd, loader = parts()
    module, optimizer, loader = make_private(module=module, optimizer=sgd, data_loader=loader, **GIVEN)
    module, wrapped, loader = accelerator.prepare(module, optimizer, loader)
    assert wrapped is optimizer
    scheduler = accelerator.prepare(torch.optim.lr_scheduler.StepLR(wrapped, 1, 0.5))
    trained(module, wrapped.step_on, optimizer, loader)
    scheduler.step()
    assert wrapped.param_groups[0]["lr"] == 0.25


def test_accelerates_own_backward_is_rejected():
    AcceleratorState._reset_state(True)
    accelerator = Accelerator(cpu=True)
    module, sgd, loader = parts()
    module, optimizer, loader = make_private(module=module, optimizer=sgd, data_loader=loader, **GIVEN)
    module, wrapped, loader = accelerator.prepare(module, optimizer, loader)
    x, y = next(iter(loader))
    accelerator.backward(cross_entropy(module(x), y))
    with pytest.raises(InvalidParameterError, match=r"Call optimizer\.step_on"):
        wrapped.step()


def language_model():
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    model = get_peft_model(LlamaForCausalLM(config), LoraConfig(r=2, target_modules=["q_proj", "down_proj"]))
    model = prepare_peft(model, "lora-fa")
    adam = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
    texts = (torch.arange(40)[:, None] + torch.arange(6)) % 16
    given = {**GIVEN, "algorithm": "lora-fa", "steps": 6, "sampling_rate": 0.03}
    del given["epochs"]
    return make_private(module=model, optimizer=adam, data_loader=DataLoader(texts), **given)


def text_losses(model, tokens):
    logits = model(input_ids=tokens).logits[:, :-1]
    return cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none").mean(1)


def test_language_model_never_sees_an_empty_batch():
    model, optimizer, loader = language_model()
    while optimizer._steps < optimizer._plan.steps:
        for tokens in loader:
            assert len(tokens)
            optimizer.backward_on(lambda part: text_losses(model, part), tokens)
            optimizer.step()


def test_toggled_adapter_leaves_no_gradient():
    """PEFT unfreezes both factors when it switches the adapter on."""
    model, optimizer, loader = language_model()
    with model.disable_adapter(), torch.no_grad():
        model(input_ids=torch.zeros(1, 4, dtype=torch.long))
    frozen = [p for name, p in model.named_parameters() if "lora_A" in name]
    for p in frozen:
        p.requires_grad_(True)
    with pytest.raises(InvalidParameterError, match=r"Convert and freeze layers before make_private"):
        for tokens in loader:
            optimizer.backward_on(lambda part: text_losses(model, part), tokens)
    assert all(p.grad is None for p in model.parameters())


def test_copy_of_the_module_is_a_teacher_and_is_not_trained():
    module, sgd, loader = parts()
    module, optimizer, loader = make_private(module=module, optimizer=sgd, data_loader=loader, **GIVEN)
    teacher = copy.deepcopy(module)
    with torch.no_grad():
        teacher.weight.add_(1.0)
    batch = next(iter(loader))

    def loss(part, enabled=True):
        with torch.set_grad_enabled(enabled):
            taught = teacher(part[0])
        return (module(part[0]) - taught).square().sum(1)

    # Another optimizer could step by the gradient that it would have.
    with pytest.raises(InvalidParameterError, match="differentiable in the trained tensors only"):
        optimizer.backward_on(loss, batch)
    assert all(p.grad is None for p in teacher.parameters())
    optimizer.step_on(partial(loss, enabled=False), batch)
    assert optimizer._steps == 1


def test_unusable_loops_are_rejected_before_a_release():
    class Unknown:
        def __init__(self, x):
            self.x = x

    class NoLength:
        def __getitem__(self, i):
            return torch.zeros(8), 0

    module, sgd, loader = parts()
    for change, match in (
        ({"optimizer": torch.optim.LBFGS(module.parameters())}, "no closure"),
        ({"optimizer": torch.optim.SparseAdam([*module.parameters()])}, "dense gradients"),
        ({"optimizer": torch.optim.SGD(module.parameters(), lr=0.1, differentiable=True)}, "dense gradients"),
        ({"data_loader": DataLoader(NoLength(), batch_size=2)}, "a length and an index"),
    ):
        with pytest.raises(InvalidParameterError, match=match):
            make_private(**{"module": module, "optimizer": sgd, "data_loader": loader, **GIVEN, **change})
    joined = DataLoader(loader.dataset, 20, collate_fn=lambda rows: Unknown(torch.stack([x for x, _ in rows])))
    module, optimizer, batches = make_private(module=module, optimizer=sgd, data_loader=joined, **GIVEN)
    with pytest.raises(InvalidParameterError, match=r"one row for each of .* records"):
        optimizer.step_on(lambda part: module(part.x).sum(1), next(iter(batches)))
    assert not optimizer._steps
    with pytest.raises(InvalidParameterError, match=r"optimizer\.close\(\)"):
        make_private(module=module, optimizer=sgd, data_loader=loader, **GIVEN)


@pytest.mark.parametrize("broken", [0, 7])
def test_collate_fn_that_drops_records_is_rejected(broken):
    module, sgd, loader = parts()
    loader.dataset.tensors[0][broken] = torch.nan

    def join(rows):
        kept = [row for row in rows if bool(row[0].isfinite().all())]
        return torch.stack([x for x, _ in kept]), torch.stack([y for _, y in kept])

    given = {**GIVEN, "data_loader": DataLoader(loader.dataset, 200, collate_fn=join), "sampling_rate": 1.0}
    words = "collate_fn accepts 1 of the records alone" if broken == 0 else "drop no record"
    with pytest.raises(InvalidParameterError, match=words):
        _, optimizer, batches = make_private(module=module, optimizer=sgd, **given)
        optimizer.step_on(lambda part: losses_of(module, *part), next(iter(batches)))


SPARSE = torch.eye(8).to_sparse()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    "join",
    [
        lambda x: x.to_sparse(), lambda x: x.to_sparse_csr(), lambda x: torch.nested.nested_tensor(list(x)),
        lambda x: torch.nested.nested_tensor(list(x), layout=torch.jagged),
    ],
)  # fmt: skip
def test_nested_and_sparse_rows_are_rejected(join):
    module, sgd, loader = parts()
    rows = lambda found: [torch.stack(column) for column in zip(*found, strict=True)]  # noqa: E731
    given = lambda collate: {"data_loader": DataLoader(loader.dataset, 20, collate_fn=collate), **GIVEN}  # noqa: E731
    columns = DataLoader(TensorDataset(SPARSE))
    with pytest.raises(InvalidParameterError, match="a loader of dense tensors"):
        make_private(module=module, optimizer=sgd, data_loader=columns, **GIVEN)
    _, optimizer, batches = make_private(
        module=module, optimizer=sgd, **given(lambda found: (join(rows(found)[0]), rows(found)[1]))
    )
    batch = next(iter(batches))
    for strict in (False, True):
        with pytest.raises(InvalidParameterError, match=r"Pad it and use a mask"):
            optimizer.step_on(lambda part: losses_of(module, *part), batch, strict=strict)
    optimizer.close()
    _, optimizer, batches = make_private(
        module=module, optimizer=sgd, **given(lambda found: (*rows(found), SPARSE.clone()))
    )
    whole = lambda _, batch: optimizer.step_on(lambda p: losses_of(module, p[0] @ p[2], p[1]), batch)  # noqa: E731
    trained(module, whole, optimizer, batches)


def test_optimizer_that_finds_its_rate_by_itself_trains():
    from transformers import Adafactor

    module, _, loader = parts()
    own = Adafactor(module.parameters())
    module, optimizer, loader = make_private(module=module, optimizer=own, data_loader=loader, **GIVEN)
    trained(module, optimizer.step_on, optimizer, loader)


class _Idle(torch.optim.Optimizer):
    """An optimizer without a rate that moves nothing."""

    def step(self, closure=None):
        """Do nothing."""


def test_optimizer_without_a_rate_has_to_move_the_weights_too():
    module, _, loader = parts()
    module, optimizer, loader = make_private(
        module=module, optimizer=_Idle(module.parameters(), {}), data_loader=loader, **GIVEN
    )
    with pytest.raises(InvalidParameterError, match="must be changed by the first step"):
        trained(module, optimizer.step_on, optimizer, loader)
