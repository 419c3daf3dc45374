"""Loops as people write them around other libraries."""

import pytest
from helpers import needs

from privproj.errors import InvalidParameterError

torch = needs("torch", "opacus", "accelerate", "peft", "transformers")

from accelerate import Accelerator  # noqa: E402
from accelerate.state import AcceleratorState  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from unit.training.helpers import make_private, own  # noqa: E402

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
        step_on(own(module), batch)
    assert optimizer.steps_done == 10 and not torch.equal(module.weight, before)


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
    batch = next(iter(loader))
    accelerator.backward(cross_entropy(module(torch.ones(1, 8)), torch.zeros(1, dtype=torch.long)))
    with pytest.raises(InvalidParameterError, match=r"Call optimizer\.step_on"):
        wrapped.step()
    with pytest.raises(InvalidParameterError, match="Remove calls of backward from the loop"):
        wrapped.step_on(own(module), batch)


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


def test_language_model_never_sees_an_empty_batch():
    model, optimizer, loader = language_model()
    while optimizer.steps_left:
        for batch in loader:
            assert batch._groups
            optimizer.step_on(lambda tokens: model(input_ids=tokens, labels=tokens).loss, batch)


def test_toggled_adapter_leaves_no_gradient():
    """PEFT unfreezes both factors when it switches the adapter on."""
    model, optimizer, loader = language_model()
    with model.disable_adapter(), torch.no_grad():
        model(input_ids=torch.zeros(1, 4, dtype=torch.long))
    frozen = [p for name, p in model.named_parameters() if "lora_A" in name]
    for p in frozen:
        p.requires_grad_(True)
    with pytest.raises(InvalidParameterError, match=r"(?i)freeze or convert tensors before make_private"):
        for batch in loader:
            optimizer.backward_on(lambda tokens: model(input_ids=tokens, labels=tokens).loss, batch)
    assert all(p.grad is None for p in model.parameters())
