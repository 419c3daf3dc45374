"""PEFT's files, and the layers that they adapt."""

import json
from collections import Counter

import pytest
from helpers import needs
from privproj_cli.main import exit_code
from unit.integrations.peft_files import NAMED, factors, llama, save_tensors, write

import privproj
from privproj import M2, InvalidParameterError, Layer
from privproj.integrations import peft as peft_rules
from privproj.integrations.peft import layers_from_peft

needs("safetensors")

# --- PEFT -----------------------------------------------------------------------------------------


def test_layers_from_peft_reads_directory(tmp_path, capsys):
    home = tmp_path / "adapter"
    write(home, "adapter_config.json", peft_type="LORA", r=16, target_modules=["q_proj", "v_proj", "down_proj"],
          rank_pattern={"down_proj": 8}, bias="none")  # fmt: skip
    shapes = {"q_proj": (2048, 2048, 16), "v_proj": (256, 2048, 16), "down_proj": (2048, 5632, 8)}
    layers = {f"layers.{i}.{end}": shape for i in range(22) for end, shape in shapes.items()}
    save_tensors(home / "adapter_model.safetensors", factors(layers))
    expected = (Layer(dim=2048, rank=16, count=44), Layer(dim=5632, rank=8, count=22))
    assert layers_from_peft(str(home)) == expected
    line = f"epsilon m2 --from-peft {home} --whole-gradients --noise-multiplier 0.5 --delta 1e-5 --json"
    assert exit_code(line.split()) == 0
    shown = capsys.readouterr()
    known = privproj.epsilon(M2(layers=expected, noise_multiplier=0.5), delta=1e-5).value
    assert json.loads(shown.out)["value"] == known and "2048x16x44" in shown.err


@pytest.mark.parametrize(
    ("adapter", "config", "sentence"),
    [
        (
            {"r": 0, "target_modules": ["q_proj"]},
            {"hidden_size": 8, "num_hidden_layers": 2},
            "r must be an integer",
        ),
        (
            {"r": 4, "target_modules": ["q_proj"], "modules_to_save": ["head"]},
            {"num_hidden_layers": 2},
            "modules_to_save must be unset",
        ),
        (
            {"r": 4, "target_modules": ["q_proj"], "bias": "all"},
            {"num_hidden_layers": 2},
            "bias must be unset",
        ),
        ({"peft_type": "IA3", "r": 4}, {}, "LORA"),
    ],
)
def test_unsupported_peft_configuration_is_rejected(tmp_path, adapter, config, sentence):
    write(tmp_path, "config.json", **config)
    write(tmp_path, "adapter_config.json", **adapter)
    with pytest.raises(InvalidParameterError, match=sentence):
        layers_from_peft(str(tmp_path))


def test_every_peft_key_is_known_with_default(tmp_path):
    peft = needs("peft")
    keys = peft.LoraConfig().to_dict()
    assert {*peft_rules.READ} <= {*keys} and not {*peft_rules.HARMLESS} & {*peft_rules.READ}
    llama(tmp_path)
    peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"]).save_pretrained(tmp_path)
    assert layers_from_peft(str(tmp_path)) == (Layer(dim=64, rank=4, count=4), Layer(dim=96, rank=4, count=4))


def test_adapter_without_tensors_is_rejected_with_remedy(tmp_path):
    home = llama(tmp_path)
    (tmp_path / "adapter_model.safetensors").unlink()
    with pytest.raises(InvalidParameterError, match="save_pretrained"):
        layers_from_peft(home)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("lora_bias", True), ("bias", "all"), ("bias", "lora_only"), ("use_dora", True), ("modules_to_save", ["head"]),
        ("trainable_token_indices", [1]), ("trainable_token_indices", {"embed_tokens": [1]}),
        ("target_parameters", ["experts.up"]), ("init_lora_weights", "pissa"), ("init_lora_weights", "pissa_niter_4"),
        ("init_lora_weights", "olora"), ("init_lora_weights", "loftq"), ("init_lora_weights", "eva"),
        ("init_lora_weights", "corda"), ("init_lora_weights", "mica"), ("init_lora_weights", False),
        ("init_lora_weights", 1), ("loftq_config", {"loftq_bits": 4}), ("eva_config", {"rho": 2.0}),
        ("megatron_config", {"x": 1}), ("alora_invocation_tokens", [5]), ("layer_replication", [[0, 4], [2, 4]]),
        ("use_qalora", True), ("use_bdlora", {"nblocks": 2}), ("ensure_weight_tying", True),
        ("arrow_config", {"top_k": 3}), ("task_type", "SEQ_CLS"), ("task_type", "TOKEN_CLS"), ("task_type", 3),
        ("peft_type", "ADALORA"), ("peft_type", ["LORA"]), ("train_more", True), ("train_more", "all"), ("r", True),
        ("r", "16"), ("r", 2.5), ("r", None), ("r", "absent"), ("rank_pattern", []), ("rank_pattern", {"q_proj": 0}),
        ("rank_pattern", {"q_proj": "8"}), ("target_modules", None), ("target_modules", []),
        ("target_modules", "absent"),
    ],
)  # fmt: skip
def test_adapter_that_trains_more_is_rejected(tmp_path, key, value):
    with pytest.raises(InvalidParameterError) as caught:
        layers_from_peft(llama(tmp_path, **{key: value}))
    assert key in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["use_dora", "train_more", "lora_bias", "eva_config", "modules_to_save"])
def test_peft_key_that_is_off_changes_nothing(tmp_path, key):
    known = layers_from_peft(llama(tmp_path))
    for value in (None, False, [], {}):
        assert layers_from_peft(llama(tmp_path, **{key: value})) == known


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"r": 4, "r": 64, "target_modules": ["q_proj"]}', '{"r": NaN}', "[" * 10**5, "\x00",
     '{"rank_pattern": {"q_proj": 64, "q_proj": 4}, "r": 4, "target_modules": ["q_proj"]}', "1" * 5000],
)  # fmt: skip
def test_damaged_peft_file_error_is_one_sentence(tmp_path, text, capsys):
    home = llama(tmp_path)
    (tmp_path / "adapter_config.json").write_text(text)
    assert (
        exit_code(
            ["epsilon", "m2", "--from-peft", home, "--whole-gradients", "--noise-multiplier", "1", "--delta", "1e-5"]
        )
        == 2
    )
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.count("\n") == 1


# --- saved adapters -------------------------------------------------------------------------------


def test_saved_adapter_gives_layers_of_any_model(tmp_path):
    write(tmp_path, "adapter_config.json", r=4, target_modules=["wq", "wo"], rank_pattern={"wo": 3})
    named = {"blocks.0.wq": (8, 12, 4), "blocks.1.wq": (8, 12, 4), "blocks.0.wo": (12, 8, 3)}
    save_tensors(tmp_path / "adapter_model.safetensors", factors(named))
    assert layers_from_peft(str(tmp_path)) == (Layer(dim=8, rank=3), Layer(dim=12, rank=4, count=2))


FIRST = "model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("tensors", "sentence"),
    [
        (factors(NAMED | {FIRST: (64, 64, 8)}), "rank 4"),
        (factors(NAMED) | {"base_model.model.lm_head.weight": [20, 64]}, "linear layers only"),
        (factors(NAMED) | {f"base_model.model.{FIRST}.lora_B.bias": [64]}, "linear layers only"),
        (factors(NAMED) | {f"base_model.model.{FIRST}.lora_magnitude_vector": [64]}, "linear layers only"),
        (factors(NAMED) | {f"base_model.model.{FIRST}.lora_A.weight": [4, 64, 1, 1]}, "linear layers only"),
        (factors(NAMED) | {f"base_model.model.{FIRST}.lora_B.weight": [64, 3]}, "rank x inputs"),
        ({name: shape for name, shape in factors(NAMED).items() if f"{FIRST}.lora_B" not in name}, "rank x inputs"),
        ({}, "no tensor"),
    ],
)
def test_contradictory_saved_adapter_is_rejected(tmp_path, tensors, sentence):
    home = llama(tmp_path)
    save_tensors(tmp_path / "adapter_model.safetensors", factors(NAMED))
    known = layers_from_peft(home)
    assert known == (Layer(dim=64, rank=4, count=4), Layer(dim=96, rank=4, count=4))
    save_tensors(tmp_path / "adapter_model.safetensors", tensors)
    with pytest.raises(InvalidParameterError, match=sentence):
        layers_from_peft(home)


@pytest.mark.parametrize("damage", [b"", b"\xff" * 40, (2).to_bytes(8, "little") + b"[]", "cut", "entry"])
def test_damaged_saved_adapter_is_rejected(tmp_path, damage):
    home, path = llama(tmp_path), tmp_path / "adapter_model.safetensors"
    save_tensors(path, factors(NAMED), cut=4)
    if damage == "entry":
        damage = (8).to_bytes(8, "little") + b'{"a": 1}'
    if damage != "cut":
        path.write_bytes(damage)
    with pytest.raises(InvalidParameterError, match="safetensors"):
        layers_from_peft(home)


# --- what is accounted is what is trained -----------------------------------------------------------


def peft_model(**adapter):
    """A small language model wrapped by PEFT."""
    torch, transformers = needs("torch"), needs("transformers")
    peft = needs("peft")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=20, num_key_value_heads=1, **sizes))
    given = {"r": 4, "target_modules": ["q_proj", "o_proj", "down_proj"], **adapter}
    return peft.get_peft_model(model, peft.LoraConfig(**given))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "adapter",
    [
        {},
        {"rank_pattern": {r"layers\.[12]\.mlp.down_proj": 9, "^model.layers.0.self_attn.q_proj": 2, "o_proj": 7}},
        {
            "rank_pattern": {"0.self_attn.o_proj": 2},
            "layers_to_transform": [0, 2],
            "lora_alpha": 32,
            "use_rslora": True,
        },
    ],
)
def test_accounted_layers_are_trained_layers(tmp_path, adapter):
    torch = needs("torch")
    needs("torch", "opacus")
    training = needs("privproj.training")
    model = peft_model(**adapter)
    model.save_pretrained(tmp_path)
    accounted = {(layer.dim, layer.rank): layer.count for layer in layers_from_peft(str(tmp_path))}
    tokens = torch.randint(0, 20, (4, 5), generator=torch.Generator().manual_seed(0))
    training.prepare_peft(model, "m2")
    trained = [p for p in model.parameters() if p.requires_grad]
    _, optimizer, loader = training.make_private(
        module=model, optimizer=torch.optim.SGD(trained, lr=0.1), algorithm="m2", max_grad_norm=1.0, steps=1,
        data_loader=torch.utils.data.DataLoader(torch.utils.data.TensorDataset(tokens), batch_size=4),
        noise_multiplier=1.0,
    )  # fmt: skip
    assert {(layer.dim, layer.rank): layer.count for layer in optimizer.plan.mechanism.layers} == accounted
    assert Counter((view.q.shape[0], view.q.shape[1]) for view in drawn(optimizer, model, loader)) == accounted


def drawn(optimizer, model, loader):
    """The views of an optimizer after one step, with the projections that they drew."""
    for batch in loader:
        optimizer.step_on(lambda record: model(input_ids=record[0], labels=record[0]).loss, batch)
    return optimizer._views


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("algorithm", "adapter", "condition"),
    [
        ("m2", {"use_dora": True}, "plain LoRA for m2"),
        ("m2", {"init_lora_weights": "mica"}, "plain LoRA for m2"),
        ("m2", {"target_modules": ["q_proj", "embed_tokens"]}, "an adapter of Embedding"),
        ("lora-fa", {"target_modules": ["q_proj", "embed_tokens"]}, "an adapter of Embedding"),
    ],
)
def test_prepare_peft_rejects_adapters(algorithm, adapter, condition):
    needs("torch", "opacus")
    training = needs("privproj.training")
    with pytest.raises(InvalidParameterError, match=condition):
        training.prepare_peft(peft_model(**adapter), algorithm)
