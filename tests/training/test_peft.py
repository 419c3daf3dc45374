"""Private training of PEFT models."""

import pytest
from helpers import needs

import privproj
from privproj.errors import InvalidParameter

torch = needs("torch", "opacus")

from torch import nn  # noqa: E402
from training.helpers import mlp, private  # noqa: E402

from privproj.training import prepare_peft  # noqa: E402


@pytest.fixture
def peft_model():
    """A small randomly initialised transformer, wrapped by PEFT; nothing is downloaded."""
    peft, transformers = needs("peft"), needs("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=20, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=16,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config)
    return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0))


def text(records=8):
    draw = torch.Generator().manual_seed(0)
    return torch.randint(0, 20, (records, 6), generator=draw)


def text_losses(model, tokens):
    logits = model(input_ids=tokens).logits[:, :-1]
    flat = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
    return flat.view(len(tokens), -1).mean(1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("algorithm", ["lora-fa", "m2"])
def test_a_peft_model_trains(peft_model, algorithm):
    tokens = text()
    model = prepare_peft(peft_model, algorithm)
    options = {"rank": 3} if algorithm == "m2" else {}
    sgd = lambda p: torch.optim.SGD(p, lr=0.5)  # noqa: E731
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    _, optimizer, loader = private(
        model, tokens, tokens, sgd, algorithm=algorithm, noise_multiplier=0.01, steps=4, **options
    )
    first = text_losses(model, tokens).mean()
    while optimizer.steps < 4:
        for rows, _ in loader:
            optimizer.backward(text_losses(model, rows))
            optimizer.step()
    part = "lora_B" if algorithm == "lora-fa" else "base_layer.weight"
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert len(moved) == 4 and all(part in name for name in moved)
    assert text_losses(model, tokens).mean() < first
    if algorithm == "m2":
        assert optimizer.plan.mechanism.layers == (privproj.Layer(dim=16, rank=3, count=4),)


@pytest.mark.filterwarnings("ignore")
def test_clipped_sums_of_a_peft_model_are_those_of_single_records(peft_model):
    tokens = text(5)
    model = prepare_peft(peft_model, "lora-fa")
    _, optimizer, _ = private(model, tokens, tokens, algorithm="lora-fa", max_grad_norm=1e-3)

    def sums(rows):
        optimizer.turn.drawn = None
        optimizer.turn.open(len(rows))
        optimizer.boundary.begin()
        optimizer.backward(text_losses(model, rows))
        return torch.cat([s.flatten() for s in optimizer.boundary.sums])

    alone = [sums(tokens[i : i + 1]) for i in range(5)]
    assert all(abs(float(part.norm()) - 1e-3) < 1e-6 for part in alone)
    assert torch.allclose(sums(tokens), sum(alone), rtol=1e-4, atol=1e-8)


@pytest.mark.filterwarnings("ignore")
def test_an_optimizer_built_before_wrapping_is_caught(peft_model):
    base = peft_model.get_base_model()
    early = torch.optim.SGD([p for p in base.parameters() if not p.requires_grad], lr=0.1)
    with pytest.raises(InvalidParameter, match="after the model is wrapped"):
        private(prepare_peft(peft_model, "lora-fa"), text(), text(), lambda p: early, algorithm="lora-fa")


def test_prepare_peft_says_what_it_needs():
    with pytest.raises(InvalidParameter, match="PEFT wrapped"):
        prepare_peft(mlp(), "m2")
