"""Private training of models of transformers, by themselves and wrapped by PEFT; all are built from a configuration."""

import sys

import pytest
from helpers import needs

import privproj
from privproj.errors import InvalidParameterError, UnsupportedError

torch = needs("torch", "opacus")

from torch import nn  # noqa: E402
from unit.training.helpers import check_sums, clipped_sums, mlp, private, sums_of, take_in  # noqa: E402

from privproj.training import export_peft, import_peft, prepare_peft  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

LLAMA = {
    "vocab_size": 20, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 2, "max_position_embeddings": 16,
}  # fmt: skip


@pytest.fixture
def peft_model():
    """A small randomly initialized transformer, wrapped by PEFT; nothing is downloaded."""
    peft, transformers = needs("peft"), needs("transformers")
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
    return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0))


def text(records=8):
    draw = torch.Generator().manual_seed(0)
    return torch.randint(0, 20, (records, 6), generator=draw)


def alone(tokens):
    """Batches of one record each."""
    return [row[None] for row in tokens]


def text_loss(model):
    return lambda tokens: model(input_ids=tokens, labels=tokens).loss


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
    first = float(text_loss(model)(tokens))
    while optimizer.steps_left:
        for batch in loader:
            optimizer.step_on(lambda record: text_loss(model)(record[0]), batch)
    part = "lora_B" if algorithm == "lora-fa" else "base_layer.weight"
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert len(moved) == 4 and all(part in name for name in moved)
    assert float(text_loss(model)(tokens)) < first
    if algorithm == "m2":
        assert optimizer.plan.mechanism.layers == (privproj.Layer(dim=16, rank=3, count=4),)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_adapters_in_single_precision_over_any_base(peft_model, dtype):
    """A record adds exactly the clip, so the norm is that of what is summed; the sum is that of single records."""
    peft = needs("peft")
    base = peft_model.unload().to(dtype)
    model = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    model = prepare_peft(model, "lora-fa")
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    assert dtype in {p.dtype for p in model.parameters()}
    tokens = text(5)
    _, optimizer, _ = private(model, tokens, tokens, algorithm="lora-fa", max_grad_norm=1e-3)
    loss = lambda record: text_loss(model)(record).float()  # noqa: E731
    single = [sums_of(optimizer, loss, [record]) for record in alone(tokens)]
    assert all(abs(float(part.norm()) / 1e-3 - 1.0) < 1e-5 for part in single)
    rtol = 1e-4 if dtype is torch.float32 else 0.02
    assert (sums_of(optimizer, loss, alone(tokens)) - sum(single)).norm() <= rtol * sum(single).norm()


def test_optimizer_built_before_wrapping_is_caught(peft_model):
    base = peft_model.get_base_model()
    early = torch.optim.SGD([p for p in base.parameters() if not p.requires_grad], lr=0.1)
    with pytest.raises(InvalidParameterError, match="after all changes to the module"):
        private(prepare_peft(peft_model, "lora-fa"), text(), text(), lambda p: early, algorithm="lora-fa")


def test_prepare_peft_names_its_requirements():
    with pytest.raises(InvalidParameterError, match="a PEFT model with LoRA adapters"):
        prepare_peft(mlp(), "m2")


# --- what PEFT makes of small models, all of it built from a configuration ---------------------------


def classifier(**config):
    """A small Llama with a new head, wrapped for classification."""
    peft, transformers = needs("peft"), needs("transformers")
    torch.manual_seed(0)
    options = {**LLAMA, "num_hidden_layers": 1, "num_labels": 3, "pad_token_id": 0}
    model = transformers.LlamaForSequenceClassification(transformers.LlamaConfig(**options))
    config = {"r": 4, "target_modules": ["q_proj", "v_proj"], "task_type": "SEQ_CLS", **config}
    return peft.get_peft_model(model, peft.LoraConfig(**config))


def label_loss(model):
    return lambda record: model(**record).loss


def labeled(records=6):
    ids = text(records).clamp_min(1)
    return [{"input_ids": row[None], "labels": torch.tensor([i % 3])} for i, row in enumerate(ids)]


def test_new_head_is_trained_beside_the_factors():
    model = prepare_peft(classifier(lora_dropout=0.5), "lora-fa").double().eval()
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert {name.rsplit("layers.0.")[-1] for name in trained} == {
        "self_attn.q_proj.lora_B.default.weight",
        "self_attn.v_proj.lora_B.default.weight",
        "base_model.model.score.modules_to_save.default.weight",
    }
    check_sums(model, label_loss(model), labeled(), algorithm="lora-fa")


def test_only_the_active_adapter_is_trained():
    peft = needs("peft")
    model = classifier()
    model.add_adapter("other", peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="SEQ_CLS"))
    model.set_adapter("other")
    prepare_peft(model, "lora-fa")
    assert {name.split(".")[-2] for name, p in model.named_parameters() if p.requires_grad} == {"other"}
    check_sums(model.double(), label_loss(model), labeled(), algorithm="lora-fa")


@pytest.mark.parametrize(
    ("config", "condition"),
    [
        ({"target_modules": ["embed_tokens", "q_proj"]}, "an adapter of Embedding.*target_modules"),
        (
            {"bias": "all", "target_modules": ["q_proj"], "trainable_token_indices": [1, 2]},
            "trains adapters and heads only",
        ),
    ],
)
def test_adapters_that_prepare_peft_does_not_know_are_rejected(config, condition):
    with pytest.raises(InvalidParameterError, match=condition):
        prepare_peft(classifier(**config), "lora-fa")


def test_what_m2_trains_is_saved_and_loads_again(tmp_path):
    """The head and the adapted weights; a base model and a wrapped one then give the same outputs."""
    ids = text(6).clamp_min(1)
    model = prepare_peft(classifier(), "m2")
    _, optimizer, _ = private(model, ids, ids, algorithm="m2", rank=None, noise_multiplier=0.5)
    assert optimizer.plan.ranks == (4, 4, 4) and len(optimizer._trained) == 3
    take_in(optimizer, label_loss(model), labeled())
    optimizer.step()
    path = export_peft(model, tmp_path / "new")
    optimizer.close()
    wanted = model.eval()(input_ids=ids).logits
    fresh, bare = classifier().eval(), classifier().unload().eval()
    assert not torch.allclose(wanted, bare(input_ids=ids).logits, rtol=1e-3)
    assert torch.equal(import_peft(fresh, tmp_path / "new")(input_ids=ids).logits, wanted)
    assert torch.equal(import_peft(bare, tmp_path / "new")(input_ids=ids).logits, wanted)
    again = classifier().unload().eval()
    needs("safetensors.torch")
    found = again.load_state_dict(sys.modules["safetensors.torch"].load_file(path), strict=False)
    assert not found.unexpected_keys and torch.equal(again(input_ids=ids).logits, wanted)
    model.save_pretrained(tmp_path / "adapter")
    assert [file.name for file in (tmp_path / "adapter").iterdir()] == [path.name]
    assert (tmp_path / "adapter" / path.name).read_bytes() == path.read_bytes()
    for given, condition in (({"push_to_hub": True}, "push_to_hub"), ({"selected_adapters": ["a"]}, "a folder only")):
        with pytest.raises(InvalidParameterError, match=condition):
            model.save_pretrained(tmp_path / "adapter", **given)
    (tmp_path / "adapter" / "adapter_config.json").touch()
    with pytest.raises(InvalidParameterError, match="without a PEFT adapter"):
        model.save_pretrained(tmp_path / "adapter")
    with pytest.raises(InvalidParameterError, match="base model that was trained"):
        import_peft(mlp(), tmp_path / "new")
    with pytest.raises(InvalidParameterError, match="prepare_peft"):
        export_peft(classifier(), tmp_path / "new")


def test_peft_head_in_half_precision_is_rejected():
    peft = needs("peft")
    base = classifier().unload().bfloat16()
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="SEQ_CLS")
    model = prepare_peft(peft.get_peft_model(base, config), "lora-fa")
    with pytest.raises(InvalidParameterError, match=r"float32 or float64.*float\(\)"):
        private(model, text(6), text(6), algorithm="lora-fa")
    model.score.float()
    _, optimizer, _ = private(model, text(6), text(6), algorithm="lora-fa", max_grad_norm=1e-3)
    with torch.autocast("cpu", torch.bfloat16):
        take_in(optimizer, lambda record: label_loss(model)(record).float(), labeled())
    assert 0.0 < clipped_sums(optimizer).norm() <= 6e-3


# --- models of transformers, all of whose tensors are trained ----------------------------------------

SMALL = {
    "vocab_size": 20, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
    "max_position_embeddings": 20, "pad_token_id": 0, "num_labels": 3,
}  # fmt: skip
DISTILBERT = {"vocab_size": 20, "dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 2, "num_labels": 3}
GPT2 = {"vocab_size": 20, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16, "eos_token_id": 1}
VIT = {"image_size": 8, "patch_size": 4, "num_channels": 1}
T5 = {
    "vocab_size": 20, "d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2,
    "decoder_start_token_id": 0, "pad_token_id": 0,
}  # fmt: skip
SEGFORMER = {
    "hidden_sizes": [8, 8], "depths": [1, 1], "num_attention_heads": [1, 1], "num_encoder_blocks": 2,
    "sr_ratios": [2, 1], "patch_sizes": [7, 3], "strides": [4, 2], "mlp_ratios": [2, 2], "num_labels": 3,
    "decoder_hidden_size": 8,
}  # fmt: skip

MODELS = {
    "GPT2LMHeadModel": (GPT2, "next"),
    "LlamaForCausalLM": ({**SMALL, "num_key_value_heads": 1}, "next"),
    "Qwen2ForCausalLM": ({**SMALL, "num_key_value_heads": 1, "tie_word_embeddings": True}, "next"),
    "GemmaForCausalLM": ({**SMALL, "num_key_value_heads": 1, "head_dim": 8}, "next"),
    "GPTNeoXForCausalLM": (SMALL, "next"),
    "OPTForCausalLM": ({**SMALL, "ffn_dim": 24, "word_embed_proj_dim": 16}, "next"),
    "T5ForConditionalGeneration": (T5, "next"),
    "BertForMaskedLM": (SMALL, "next"),
    "BertForSequenceClassification": (SMALL, "label"),
    "RobertaForSequenceClassification": (SMALL, "label"),
    "DistilBertForSequenceClassification": (DISTILBERT, "label"),
    "ViTForImageClassification": ({**SMALL, **VIT}, "image"),
    "SegformerForSemanticSegmentation": (SEGFORMER, "segments"),
}
"""Names of models, their configuration, and the task of each."""
QUICK = {"LlamaForCausalLM", "BertForSequenceClassification"}
FEW = {**SMALL, "num_key_value_heads": 1}
MORE = {
    "ElectraForSequenceClassification": ({**SMALL, "embedding_size": 16}, "label"),
    "AlbertForSequenceClassification": ({**SMALL, "embedding_size": 16}, "label"),
    "MPNetForSequenceClassification": (SMALL, "label"),
    "XLMRobertaForSequenceClassification": (SMALL, "label"),
    "MistralForCausalLM": ({**FEW, "sliding_window": 4}, "next"),
    "Gemma2ForCausalLM": ({**FEW, "head_dim": 8, "sliding_window": 4}, "next"),
    "Phi3ForCausalLM": (FEW, "next"),
    "Qwen3ForCausalLM": ({**FEW, "head_dim": 8}, "next"),
    "StableLmForCausalLM": (FEW, "next"),
    "Olmo2ForCausalLM": (FEW, "next"),
    "CohereForCausalLM": (FEW, "next"),
    "MambaForCausalLM": ({**SMALL, "state_size": 4, "expand": 2}, "next"),
    "FalconForCausalLM": ({**SMALL, "alibi": False, "new_decoder_architecture": False}, "next"),
    "DeiTForImageClassification": ({**SMALL, **VIT}, "image"),
    "Dinov2ForImageClassification": ({**SMALL, **VIT}, "image"),
}
"""More families, run by hand."""
ALONE = {
    "DebertaV2ForSequenceClassification": (
        {**SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "pooler_hidden_size": 16}, "label"
    ),
    "LongformerForSequenceClassification": ({**SMALL, "attention_window": 4}, "label"),
    "BloomForCausalLM": ({**SMALL, "n_head": 2, "n_layer": 2}, "next"),
}  # fmt: skip
"""Families that torch.vmap cannot run."""


def model_of(name, options):
    transformers = needs("transformers")
    torch.manual_seed(0)
    family = next(end for end in ("LMHeadModel", "For") if end in name)
    config = getattr(transformers, f"{name[: name.index(family)]}Config")(**options)
    return getattr(transformers, name)(config).double().eval()


def records_for(kind, records=5):
    """Batches of one record of a task, with padding where there is a mask."""
    draw = torch.Generator().manual_seed(0)
    tokens, labels = text(records).clamp_min(3), torch.arange(records)[:, None] % 3
    mask = (torch.arange(6) < 6 - torch.arange(records)[:, None] % 3).long()
    if kind == "next":
        columns = {"input_ids": tokens * mask, "attention_mask": mask, "labels": tokens.masked_fill(mask == 0, -100)}
    elif kind == "label":
        tokens[:, 0] = 2  # Bart looks for the last token of a text
        columns = {"input_ids": tokens * mask, "attention_mask": mask, "labels": labels.squeeze(1)}
    elif kind == "image":
        columns = {"pixel_values": torch.randn(records, 1, 8, 8, generator=draw).double(), "labels": labels.squeeze(1)}
    else:
        classes = torch.randint(0, 3, (records, 32, 32), generator=draw)
        columns = {"pixel_values": torch.randn(records, 3, 32, 32, generator=draw).double(), "labels": classes}
    return [{name: column[i : i + 1] for name, column in columns.items()} for i in range(records)]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in MODELS]
)
def test_clipped_sums_of_transformers_equal_a_loop(name):
    options, kind = MODELS[name]
    model = model_of(name, options)
    check_sums(model, label_loss(model), records_for(kind))


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_clipped_sums_of_more_families_equal_a_loop(name):
    options, kind = MORE[name]
    model = model_of(name, options)
    check_sums(model, label_loss(model), records_for(kind))


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE)
def test_families_without_vmap_train_one_by_one(name):
    options, kind = ALONE[name]
    model = model_of(name, options)
    check_sums(model, label_loss(model), records_for(kind), options={"one_by_one": True})
    _, optimizer, _ = private(model, torch.zeros(5), torch.zeros(5))
    with pytest.raises(UnsupportedError, match="one_by_one=True"):
        take_in(optimizer, label_loss(model), records_for(kind))


ADAPTED = {
    "GPT2LMHeadModel": ["c_attn", "c_proj", "c_fc"],
    "LlamaForCausalLM": "all-linear",
    "BertForSequenceClassification": ["query", "value", "dense"],
}


@pytest.mark.full
@pytest.mark.parametrize("algorithm", ["lora-fa", "dp-sgd"])
@pytest.mark.parametrize("name", ADAPTED)
def test_adapters_of_peft_on_real_layers(name, algorithm):
    peft = needs("peft")
    (options, kind), config = MODELS[name], {"r": 2, "target_modules": ADAPTED[name]}
    config |= {"fan_in_fan_out": True} if name == "GPT2LMHeadModel" else {}
    config |= {"task_type": "SEQ_CLS"} if kind == "label" else {}
    model = peft.get_peft_model(model_of(name, options), peft.LoraConfig(**config)).double()
    for part, weight in model.named_parameters():
        if "lora_B" in part:
            nn.init.normal_(weight, generator=torch.Generator().manual_seed(1))
    if algorithm != "dp-sgd":
        prepare_peft(model, algorithm)
    check_sums(model, label_loss(model), records_for(kind), algorithm=algorithm)


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("Lora", {"target_modules": ["q_proj"], "r": 2, "use_dora": True}),
        ("IA3", {"target_modules": ["k_proj", "down_proj"], "feedforward_modules": ["down_proj"]}),
        ("Vera", {"target_modules": ["q_proj"], "r": 2}),
        ("AdaLora", {"target_modules": ["q_proj"], "init_r": 3, "target_r": 2, "total_step": 9}),
        ("HRA", {"target_modules": ["q_proj"], "r": 2}),
        ("LoKr", {"target_modules": ["q_proj"], "r": 2}),
        ("Lora", {"target_modules": ["embed_tokens"], "r": 2}),
        ("Lora", {"target_modules": ["q_proj"], "r": 2, "trainable_token_indices": [3, 4]}),
    ],
)
def test_other_adapters_train(kind, options):
    peft = needs("peft")
    base = model_of("LlamaForCausalLM", MODELS["LlamaForCausalLM"][0])
    model = peft.get_peft_model(base, getattr(peft, f"{kind}Config")(**options)).double()
    draw = torch.Generator().manual_seed(1)
    for tensor in (p for p in model.parameters() if p.requires_grad):
        nn.init.normal_(tensor, generator=draw)
    check_sums(model, label_loss(model), records_for("next"))
