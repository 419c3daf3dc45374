"""Base models by their configuration."""

import json

import pytest
from integrations.peft_files import llama, write

from privproj import InvalidParameter, Layer
from privproj.integrations.peft import layers_from_peft


def test_gpt2_and_bert_names(tmp_path):
    write(tmp_path, "config.json", n_embd=768, n_layer=12)
    write(tmp_path, "adapter_config.json", r=4, target_modules=["c_attn", "c_proj"])
    assert layers_from_peft(str(tmp_path)) == (Layer(dim=768, rank=4, count=24), Layer(dim=3072, rank=4, count=12))
    write(tmp_path, "config.json", hidden_size=768, num_hidden_layers=12, intermediate_size=3072)
    write(tmp_path, "adapter_config.json", r=4, target_modules=["query", "dense"], layers_to_transform=[0, 1])
    assert layers_from_peft(str(tmp_path)) == (Layer(dim=768, rank=4, count=6), Layer(dim=3072, rank=4, count=2))


def test_a_missing_base_model_is_said(tmp_path):
    write(tmp_path, "adapter_config.json", r=4, target_modules=["q_proj"], base_model_name_or_path="hub/model")
    with pytest.raises(InvalidParameter, match="--base"):
        layers_from_peft(str(tmp_path))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "unknown"}, "model_type"), ({"model_type": ["llama"]}, "model_type"),
        ({"num_hidden_layers": 0}, "num_hidden_layers"), ({"num_hidden_layers": 10**9}, "blocks"),
        ({"hidden_size": "64"}, "hidden_size"), ({"hidden_size": True}, "hidden_size"), ({"n_embd": 32}, None),
        ({"num_experts": 8}, "experts"), ({"is_encoder_decoder": True}, "decoder"),
        ({"intermediate_size": None}, "intermediate_size"), ({"model_type": "gemma"}, None),
        ({"model_type": "bert"}, "q_proj"),
    ],
)  # fmt: skip
def test_a_base_model_that_is_not_understood_is_said(tmp_path, config, words):
    home = llama(tmp_path)
    sizes = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**sizes, **config}))
    if words is None:
        assert layers_from_peft(home)
        return
    with pytest.raises(InvalidParameter, match=words):
        layers_from_peft(home)
