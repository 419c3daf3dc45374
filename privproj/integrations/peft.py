"""From a PEFT LoRA directory to the layers that are trained: local files only, nothing downloaded, nothing imported.

LoRA's ``A`` projects a linear layer's input side, so a layer's ``dim`` is its number of inputs and its ``rank`` LoRA's.
"""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from privproj.errors import InvalidParameter
from privproj.mechanisms import Layer

HIDDEN, INNER = "hidden", "inner"

INPUTS: dict[str, str] = {
    **dict.fromkeys(
        ("q_proj", "k_proj", "v_proj", "query", "key", "value", "query_key_value", "c_attn", "qkv_proj"), HIDDEN
    ),
    **dict.fromkeys(
        ("gate_proj", "up_proj", "gate_up_proj", "fc1", "c_fc", "dense_h_to_4h", "intermediate.dense"), HIDDEN
    ),
    **dict.fromkeys(("down_proj", "fc2", "mlp.c_proj", "dense_4h_to_h", "w2"), INNER),
    **dict.fromkeys(("o_proj", "out_proj", "attn.c_proj", "attention.dense", "q", "k", "v", "w1", "w3"), HIDDEN),
}
"""What feeds the linear modules that LoRA usually adapts, by the end of their names."""

AMBIGUOUS = {
    "dense": ("attention.dense", "intermediate.dense", "output.dense"),
    "c_proj": ("attn.c_proj", "mlp.c_proj"),
}
"""Names that match several modules of one block, and which."""

SIZES = {
    HIDDEN: ("hidden_size", "n_embd", "d_model", "dim"),
    INNER: ("intermediate_size", "n_inner", "ffn_dim", "hidden_dim", "d_ff"),
    "blocks": ("num_hidden_layers", "n_layer", "num_layers", "n_layers"),
}


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file as a table; raises :class:`InvalidParameter` where it is missing or malformed."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InvalidParameter("from_peft", str(path), "a readable JSON file", str(error)) from None
    if not isinstance(data, dict):
        raise InvalidParameter("from_peft", str(path), "a JSON object")
    return data


def layers_from_peft(directory: str, base: str | None = None) -> tuple[Layer, ...]:
    """Every adapted layer ``(dim, rank, count)`` from ``adapter_config.json`` and the base model's ``config.json``.

    ``base`` is the base model's directory; without it, ``config.json`` beside the adapter or in the directory that
    the adapter names. Raises :class:`InvalidParameter` for a module or a size that is not understood: give
    ``--layer`` then.
    """
    home = Path(directory)
    adapter = read_json(home / "adapter_config.json")
    if str(adapter.get("peft_type", "LORA")).upper() != "LORA":
        raise InvalidParameter("from_peft", adapter.get("peft_type"), "an adapter of type LORA")
    places = [Path(base)] if base else [home, Path(str(adapter.get("base_model_name_or_path", "")))]
    config = next((read_json(p / "config.json") for p in places if (p / "config.json").is_file()), None)
    if config is None:
        searched = ", ".join(str(place) for place in places)
        raise InvalidParameter("from_peft", searched, "a config.json of the base model", "give --base DIR")
    found: Counter[tuple[int, int]] = Counter()
    modules = targets(adapter)
    blocks = blocks_of(adapter, size(config, "blocks"))
    for module in modules:
        for name in AMBIGUOUS.get(module, (module,)):
            found[inputs(name, config), rank_of(adapter, module)] += blocks
    return tuple(Layer(dim=dim, rank=min(rank, dim), count=count) for (dim, rank), count in sorted(found.items()))


def targets(adapter: dict[str, Any]) -> list[str]:
    """The adapted modules by name; patterns and "all-linear" are refused."""
    given = adapter.get("target_modules")
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not names or not all(re.fullmatch(r"[\w.]+", str(name)) for name in names):
        raise InvalidParameter("target_modules", given, "a list of module names", "give the layers with --layer")
    for key in ("modules_to_save", "bias"):
        if adapter.get(key) not in (None, [], "none"):
            remedy = "it shares the clip unprojected; give the layers with --layer"
            raise InvalidParameter(key, adapter[key], "no tensor trained in full", remedy)
    return sorted(str(name) for name in names)


def inputs(module: str, config: dict[str, Any]) -> int:
    """How many inputs a module has."""
    if module == "output.dense":
        return size(config, INNER)
    for end, kind in INPUTS.items():
        if module == end or module.endswith("." + end):
            if end in ("o_proj", "out_proj") and "head_dim" in config and "num_attention_heads" in config:
                return int(config["head_dim"]) * int(config["num_attention_heads"])
            return size(config, kind)
    raise InvalidParameter("target_modules", module, "a module whose size is known", "give the layers with --layer")


def size(config: dict[str, Any], kind: str) -> int:
    """A size from the base model's configuration, under any of its names."""
    for name in SIZES[kind]:
        if isinstance(config.get(name), int):
            return int(config[name])
    if kind == INNER and ("n_embd" in config or "hidden_size" in config):
        return 4 * size(config, HIDDEN)
    raise InvalidParameter("config.json", kind, "one of the keys " + ", ".join(SIZES[kind]))


def rank_of(adapter: dict[str, Any], module: str) -> int:
    """LoRA's rank for a module."""
    pattern = adapter.get("rank_pattern") or {}
    rank = next((value for key, value in pattern.items() if key.split(".")[-1] == module), adapter.get("r"))
    if not isinstance(rank, int) or rank < 1:
        raise InvalidParameter("r", rank, "a whole number r >= 1 in adapter_config.json")
    return rank


def blocks_of(adapter: dict[str, Any], blocks: int) -> int:
    """How many blocks are adapted."""
    chosen = adapter.get("layers_to_transform")
    if chosen is None:
        return blocks
    return 1 if isinstance(chosen, int) else len(set(chosen))
