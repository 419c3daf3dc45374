"""Private training of models of transformers, by themselves and wrapped by PEFT; all are built from a configuration."""

import sys

import pytest
from helpers import needs

import privproj
from privproj.errors import InvalidParameterError

torch = needs("torch", "opacus")

from torch import nn  # noqa: E402
from unit.training.helpers import check_gradients, mlp, private  # noqa: E402

from privproj.training import export_peft, import_peft, prepare_peft  # noqa: E402


@pytest.fixture
def peft_model():
    """A small randomly initialized transformer, wrapped by PEFT; nothing is downloaded."""
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
def test_peft_model_trains(peft_model, algorithm):
    tokens = text()
    model = prepare_peft(peft_model, algorithm)
    options = {"rank": 3} if algorithm == "m2" else {}
    sgd = lambda p: torch.optim.SGD(p, lr=0.5)  # noqa: E731
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    _, optimizer, loader = private(
        model, tokens, tokens, sgd, algorithm=algorithm, noise_multiplier=0.01, steps=4, **options
    )
    first = text_losses(model, tokens).mean()
    while optimizer._steps < 4:
        for batch in loader:
            optimizer.backward_on(lambda rows: text_losses(model, rows[0]), batch)
            optimizer.step()
    part = "lora_B" if algorithm == "lora-fa" else "base_layer.weight"
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert len(moved) == 4 and all(part in name for name in moved)
    assert text_losses(model, tokens).mean() < first
    if algorithm == "m2":
        assert optimizer._plan.mechanism.layers == (privproj.Layer(dim=16, rank=3, count=4),)


@pytest.mark.filterwarnings("ignore")
def test_peft_clipped_sums_match_single_records(peft_model):
    tokens = text(5)
    model = prepare_peft(peft_model, "lora-fa")
    _, optimizer, _ = private(model, tokens, tokens, algorithm="lora-fa", max_grad_norm=1e-3)

    def sums(rows):
        optimizer._turn.drawn = None
        optimizer._turn.open(len(rows))
        optimizer._noisy_sum.begin()
        optimizer.backward_on(lambda part: text_losses(model, part), rows)
        return torch.cat([s.flatten() for s in optimizer._noisy_sum.sums])

    alone = [sums(tokens[i : i + 1]) for i in range(5)]
    assert all(abs(float(part.norm()) - 1e-3) < 1e-6 for part in alone)
    assert torch.allclose(sums(tokens), sum(alone), rtol=1e-4, atol=1e-8)


@pytest.mark.filterwarnings("ignore")
def test_optimizer_built_before_wrapping_is_caught(peft_model):
    base = peft_model.get_base_model()
    early = torch.optim.SGD([p for p in base.parameters() if not p.requires_grad], lr=0.1)
    with pytest.raises(InvalidParameterError, match="after the model is wrapped"):
        private(prepare_peft(peft_model, "lora-fa"), text(), text(), lambda p: early, algorithm="lora-fa")


def test_prepare_peft_says_what_it_needs():
    with pytest.raises(InvalidParameterError, match="a PEFT model with LoRA adapters"):
        prepare_peft(mlp(), "m2")


# --- what PEFT makes of small models, all of it built from a configuration ---------------------------


def classifier(**config):
    """A small Llama with a new head, wrapped for classification."""
    peft, transformers = needs("peft"), needs("transformers")
    torch.manual_seed(0)
    model = transformers.LlamaForSequenceClassification(
        transformers.LlamaConfig(
            vocab_size=20, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=2, max_position_embeddings=16, num_labels=3, pad_token_id=0,
        )
    )  # fmt: skip
    config = {"r": 4, "target_modules": ["q_proj", "v_proj"], "task_type": "SEQ_CLS", **config}
    return peft.get_peft_model(model, peft.LoraConfig(**config))


def label_losses(model, batch):
    return nn.functional.cross_entropy(model(input_ids=batch["ids"]).logits, batch["labels"], reduction="none")


def labeled(records=6):
    return {"ids": text(records).clamp_min(1), "labels": torch.arange(records) % 3}


@pytest.mark.filterwarnings("ignore")
def test_new_head_is_trained_beside_the_factors():
    model = prepare_peft(classifier(lora_dropout=0.5), "lora-fa").double().eval()
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert {name.rsplit("layers.0.")[-1] for name in trained} == {
        "self_attn.q_proj.lora_B.default.weight",
        "self_attn.v_proj.lora_B.default.weight",
        "base_model.model.score.modules_to_save.default.weight",
    }
    check_gradients(model, label_losses, labeled(), 6, algorithm="lora-fa")
    # Under dropout the gradients of records add up to that of the batch, by the same masks.
    batch, sums = labeled(), []
    model = prepare_peft(classifier(lora_dropout=0.5), "lora-fa").double()
    _, optimizer, _ = private(model.train(), batch["ids"], batch["labels"], algorithm="lora-fa")
    torch.manual_seed(1)
    factor, head = optimizer._taps.taps[0], optimizer._taps.taps[-1]
    with optimizer._taps.armed(6):
        label_losses(model, batch).sum().backward()
        sums = [sum(tap.gradient_of(slice(j, j + 1), torch.ones(1))[0] for j in range(6)) for tap in (factor, head)]
    optimizer.close()
    torch.manual_seed(1)
    weights = [factor.weight, head.weight]
    expected = torch.autograd.grad(label_losses(model, batch).sum(), weights)
    assert all(torch.allclose(one, other, rtol=1e-9) for one, other in zip(sums, expected, strict=True))


@pytest.mark.filterwarnings("ignore")
def test_only_the_active_adapter_is_trained():
    peft = needs("peft")
    model = classifier()
    model.add_adapter("other", peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="SEQ_CLS"))
    model.set_adapter("other")
    prepare_peft(model, "lora-fa")
    assert {name.split(".")[-2] for name, p in model.named_parameters() if p.requires_grad} == {"other"}
    check_gradients(model.double(), label_losses, labeled(), 6, algorithm="lora-fa")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"use_dora": True}, "Dora.*norm of W"),
        ({"target_modules": ["embed_tokens", "q_proj"]}, "an adapter of Embedding.*target_modules"),
        (
            {"bias": "all", "target_modules": ["q_proj"], "trainable_token_indices": [1, 2]},
            "trains adapters and heads only",
        ),
    ],
)
def test_adapters_past_the_hooks_are_rejected(config, words):
    model = classifier(**config)
    with pytest.raises(InvalidParameterError, match=words):
        prepare_peft(model, "lora-fa")
    if "use_dora" in config:
        with pytest.raises(InvalidParameterError, match=words):
            private(model, text(), text())


@pytest.mark.filterwarnings("ignore")
def test_what_m2_trains_is_saved_and_loads_again(tmp_path):
    """The head and the adapted weights; a base model and a wrapped one then give the same outputs."""
    batch = labeled()
    model = prepare_peft(classifier(), "m2")
    _, optimizer, _ = private(model, batch["ids"], batch["labels"], algorithm="m2", rank=None, noise_multiplier=0.5)
    ranks = {
        tap.name.split(".")[-1]: rank for tap, rank in zip(optimizer._taps.taps, optimizer._plan.ranks, strict=True)
    }
    assert set(ranks.values()) == {4} and len(ranks) == 2
    optimizer._turn.open(6)
    optimizer.backward_on(lambda part: label_losses(model, part), batch)
    optimizer.step()
    path = export_peft(model, tmp_path / "new")
    optimizer.close()
    wanted = model.eval()(input_ids=batch["ids"]).logits
    fresh, bare = classifier().eval(), classifier().unload().eval()
    assert not torch.allclose(wanted, bare(input_ids=batch["ids"]).logits, rtol=1e-3)
    assert torch.equal(import_peft(fresh, tmp_path / "new")(input_ids=batch["ids"]).logits, wanted)
    assert torch.equal(import_peft(bare, tmp_path / "new")(input_ids=batch["ids"]).logits, wanted)
    again = classifier().unload().eval()
    needs("safetensors.torch")
    found = again.load_state_dict(sys.modules["safetensors.torch"].load_file(path), strict=False)
    assert not found.unexpected_keys and torch.equal(again(input_ids=batch["ids"]).logits, wanted)
    model.save_pretrained(tmp_path / "adapter")
    assert [file.name for file in (tmp_path / "adapter").iterdir()] == [path.name]
    assert (tmp_path / "adapter" / path.name).read_bytes() == path.read_bytes()
    for given, words in (({"push_to_hub": True}, "push_to_hub"), ({"selected_adapters": ["a"]}, "a folder only")):
        with pytest.raises(InvalidParameterError, match=words):
            model.save_pretrained(tmp_path / "adapter", **given)
    (tmp_path / "adapter" / "adapter_config.json").touch()
    with pytest.raises(InvalidParameterError, match="without a PEFT adapter"):
        model.save_pretrained(tmp_path / "adapter")
    with pytest.raises(InvalidParameterError, match="base model that was trained"):
        import_peft(mlp(), tmp_path / "new")
    with pytest.raises(InvalidParameterError, match="prepare_peft"):
        export_peft(classifier(), tmp_path / "new")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_adapters_in_single_precision_over_a_base_in_half(peft_model, dtype):
    """A record adds exactly the clip, so the norm is that of what is summed; the sum is that of single records."""
    peft = needs("peft")
    base = peft_model.unload().to(dtype)
    model = prepare_peft(
        peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"])), "lora-fa"
    )
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    assert dtype in {p.dtype for p in model.parameters()}
    tokens = text(5)
    _, optimizer, _ = private(model, tokens, tokens, algorithm="lora-fa", max_grad_norm=1e-3)

    def sums(rows):
        optimizer._turn.drawn = None
        optimizer._turn.open(len(rows))
        optimizer._noisy_sum.begin()
        optimizer.backward_on(lambda part: text_losses(model, part).float(), rows)
        return torch.cat([s.flatten() for s in optimizer._noisy_sum.sums])

    single = [sums(tokens[i : i + 1]) for i in range(5)]
    assert all(abs(float(part.norm()) / 1e-3 - 1.0) < 1e-5 for part in single)
    assert (sums(tokens) - sum(single)).norm() <= 0.02 * sum(single).norm()


@pytest.mark.filterwarnings("ignore")
def test_peft_half_precision_head_needs_autocast():
    peft = needs("peft")
    base = classifier().unload().bfloat16()
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="SEQ_CLS")
    model, batch = prepare_peft(peft.get_peft_model(base, config), "lora-fa"), labeled()
    with pytest.raises(InvalidParameterError, match=r"float32 or float64.*autocast"):
        private(model, batch["ids"], batch["labels"], algorithm="lora-fa")
    model.score.float()
    _, optimizer, _ = private(model, batch["ids"], batch["labels"], algorithm="lora-fa", max_grad_norm=1e-3)
    optimizer._turn.open(6)
    with torch.autocast("cpu", torch.bfloat16):
        optimizer.backward_on(lambda part: label_losses(model, part).float(), batch)
    assert torch.cat([s.flatten() for s in optimizer._noisy_sum.sums]).norm() <= 6e-3


# --- models of transformers, all of whose tensors are trained ----------------------------------------

SMALL = {
    "vocab_size": 20, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 20,
}  # fmt: skip
GPT2 = {"vocab_size": 20, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "eos_token_id": 1}
BART = {
    "vocab_size": 20, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "eos_token_id": 2, "num_labels": 3,
}  # fmt: skip
DISTILBERT = {"vocab_size": 20, "dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 2, "num_labels": 3}
VIT = {"image_size": 8, "patch_size": 4, "num_channels": 1, "num_labels": 3}
T5 = {"vocab_size": 20, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
OPT = {"ffn_dim": 24, "word_embed_proj_dim": 16}

MODELS = {
    "GPT2LMHeadModel": (GPT2, "next"),
    "LlamaForCausalLM": ({**SMALL, "num_key_value_heads": 1}, "next"),
    "Qwen2ForCausalLM": ({**SMALL, "num_key_value_heads": 1, "tie_word_embeddings": True}, "next"),
    "GemmaForCausalLM": ({**SMALL, "num_key_value_heads": 1, "head_dim": 8}, "next"),
    "GPTNeoXForCausalLM": (SMALL, "next"),
    "BertForSequenceClassification": ({**SMALL, "num_labels": 3}, "label"),
    "BertForMaskedLM": (SMALL, "next"),
    "RobertaForSequenceClassification": ({**SMALL, "num_labels": 3, "pad_token_id": 0}, "label"),
    "DistilBertForSequenceClassification": (DISTILBERT, "label"),
    "BartForSequenceClassification": (BART, "label"),
    "ViTForImageClassification": ({**SMALL, **VIT}, "image"),
}
"""Names of models, their configuration, and the task of each."""


def model_of(name, options):
    transformers = needs("transformers")
    torch.manual_seed(0)
    family = next(end for end in ("LMHeadModel", "For", "EncoderModel") if end in name)
    config = getattr(transformers, f"{name[: name.index(family)]}Config")(**options)
    return getattr(transformers, name)(config).double().eval()


def task(kind, records=5):
    """A loss of each record and a batch, with padding where there is a mask."""
    tokens, labels = text(records).clamp_min(3), torch.arange(records) % 3
    if kind == "image":
        draw = torch.Generator().manual_seed(0)
        batch = {"pixel_values": torch.randn(records, 1, 8, 8, generator=draw, dtype=torch.float64)}
    elif kind == "next":
        return (lambda model, batch: text_losses(model, batch["input_ids"])), {"input_ids": tokens}
    else:
        mask = torch.ones_like(tokens)
        mask[1, 4:] = mask[3, 2:] = 0
        # Bart looks for the last token of a text.
        tokens[:, 0] = 2
        batch = {"input_ids": torch.where(mask > 0, tokens, 0), "attention_mask": mask}

    def losses(model, batch):
        inputs = {key: value for key, value in batch.items() if key != "labels"}
        return nn.functional.cross_entropy(model(**inputs).logits, batch["labels"], reduction="none")

    return losses, {**batch, "labels": labels}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODELS)
def test_gradients_of_records_are_those_of_autograd_alone(name):
    options, kind = MODELS[name]
    loss_of, batch = task(kind)
    check_gradients(model_of(name, options), loss_of, batch, 5, rtol=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "LlamaForCausalLM", "BartForSequenceClassification"])
def test_peft_loop_over_private_loader_passes_checks(name):
    options, kind = MODELS[name]
    loss_of, batch = task(kind, records=8)
    model = model_of(name, options).float().train()
    _, optimizer, loader = private(
        model, batch["input_ids"], torch.arange(8) % 3, sampling_rate=0.5, steps=4, noise_multiplier=0.1
    )
    while optimizer._steps < 4:
        for drawn in loader:
            optimizer.step_on(lambda part: loss_of(model, {"input_ids": part[0], "labels": part[1]}), drawn, 3)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("algorithm", ["lora-fa", "m2", "dp-sgd"])
@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("GPT2LMHeadModel", ["c_attn", "c_proj", "c_fc"]),
        ("LlamaForCausalLM", "all-linear"),
        ("BertForSequenceClassification", ["query", "value", "dense"]),
    ],
)
def test_adapters_of_peft_on_real_layers(name, targets, algorithm):
    peft = needs("peft")
    (options, kind), config = MODELS[name], {"r": 2, "target_modules": targets}
    config |= {"fan_in_fan_out": True} if name == "GPT2LMHeadModel" else {}
    config |= {"task_type": "SEQ_CLS"} if kind == "label" else {}
    model = peft.get_peft_model(model_of(name, options), peft.LoraConfig(**config)).double()
    for part, weight in model.named_parameters():
        if "lora_B" in part and algorithm != "m2":
            nn.init.normal_(weight, generator=torch.Generator().manual_seed(1))
    if algorithm != "dp-sgd":
        prepare_peft(model, algorithm)
    loss_of, batch = task(kind)
    check_gradients(model, loss_of, batch, 5, rtol=1e-6, algorithm=algorithm)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("IA3", {"target_modules": ["k_proj", "down_proj"], "feedforward_modules": ["down_proj"]}),
        ("Vera", {"target_modules": ["q_proj"], "r": 2}),
        ("AdaLora", {"target_modules": ["q_proj"], "init_r": 3, "target_r": 2, "total_step": 9}),
        ("HRA", {"target_modules": ["q_proj"], "r": 2}),
        ("Lora", {"target_modules": ["embed_tokens"], "r": 2}),
        ("Lora", {"target_modules": ["q_proj"], "r": 2, "trainable_token_indices": [3, 4]}),
    ],
)
def test_adapters_that_keep_their_tensors_in_tables_train(kind, options):
    peft = needs("peft")
    base = model_of("LlamaForCausalLM", MODELS["LlamaForCausalLM"][0])
    model = peft.get_peft_model(base, getattr(peft, f"{kind}Config")(**options)).double()
    draw = torch.Generator().manual_seed(1)
    for tensor in (p for p in model.parameters() if p.requires_grad):
        nn.init.normal_(tensor, generator=draw)
    loss_of, batch = task("next")
    check_gradients(model, loss_of, batch, 5, rtol=1e-6)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["LoHa", "LoKr"])
def test_peft_dropout_of_rate_zero_error_names_remedy(kind):
    peft = needs("peft")
    base = model_of("LlamaForCausalLM", MODELS["LlamaForCausalLM"][0])
    model = peft.get_peft_model(base, getattr(peft, f"{kind}Config")(target_modules=["q_proj"], r=2)).double()
    _, optimizer, loader = private(model, text(5), text(5))
    with pytest.raises(InvalidParameterError, match=r"(?i)train LoRA in place of LoHa or LoKr"):
        optimizer.step_on(lambda part: text_losses(model, part[0]), next(iter(loader)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "options", "flat"),
    [
        ("T5EncoderModel", T5, ["relative_attention_bias"]),
        ("OPTForCausalLM", {**SMALL, **OPT}, ["fc1", "fc2", "final_layer_norm"]),
    ],
)
def test_peft_layers_must_be_batch_first_or_frozen(name, options, flat):
    model, tokens = model_of(name, options), text(5).clamp_min(3)
    losses = (
        (lambda rows: model(input_ids=rows).last_hidden_state.square().sum((1, 2)))
        if name == "T5EncoderModel"
        else (lambda rows: text_losses(model, rows))
    )
    _, optimizer, loader = private(model, tokens, tokens)
    # One record at a time its rows are the batch.
    optimizer.step_on(lambda batch: losses(batch[0]), next(iter(loader)), strict=True)
    optimizer._turn.drawn = None
    optimizer._turn.open(5)
    with pytest.raises(InvalidParameterError, match=rf"({'|'.join(flat)}).*rows for 5 losses"):
        optimizer.backward_on(losses, tokens)
    optimizer.close()
    model = model_of(name, options)
    for part, parameter in model.named_parameters():
        parameter.requires_grad_(not any(word in part for word in flat))
    _, optimizer, _ = private(model, tokens, tokens)
    optimizer._turn.open(5)
    optimizer.backward_on(losses, tokens)
