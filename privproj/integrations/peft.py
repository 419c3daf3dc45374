"""From a PEFT LoRA directory to the layers that are adapted: local files only, nothing downloaded.

LoRA's ``A`` projects a linear layer's input side. So a layer's ``dim`` is its number of inputs and its ``rank`` that of
LoRA. Both are read from ``adapter_model.safetensors``; where nothing is saved yet, PEFT itself puts the adapter on the
base model, which transformers builds without memory for its weights. Whatever else a configuration trains would share
the clip unprojected, and is refused.
"""

import re
from collections import Counter
from pathlib import Path
from typing import Any

from privproj.errors import InvalidParameter, within
from privproj.lazy import import_extra
from privproj.mechanisms import Layer
from privproj.records.files import LARGEST_FILE, parse_json, read_bounded, read_json
from privproj.validation import quoted, whole

__all__ = ["layers_from_peft"]

BY_HAND = "give the layers with --layer"
"""The remedy where a configuration cannot be read."""

HARMLESS = (
    "auto_mapping", "revision",  # which class and which copy of the base model are loaded
    "inference_mode", "peft_version", "runtime_config",  # how the adapter was saved, and where its tensors lie
    "lora_alpha", "alpha_pattern", "use_rslora",  # scale the adapter's output; gradients are clipped after that
    "lora_dropout",  # drawn for each record without the others, before its gradient is clipped
    "fan_in_fan_out",  # how the weight is stored; its inputs are the same
    "megatron_core", "qalora_group_size",  # only used with keys that are refused
)  # fmt: skip
"""Keys that change neither what is trained nor its shape. Every other key that is on may train more, or otherwise."""

READ = (
    "peft_type", "task_type", "base_model_name_or_path", "r", "rank_pattern", "target_modules", "exclude_modules",
    "layers_to_transform", "layers_pattern", "init_lora_weights",
)  # fmt: skip
"""Keys that say what is trained, and are followed."""

PLAIN = "plain LoRA of linear layers, and nothing else trained"
"""What is expected of a configuration."""

MODELS = {
    "CAUSAL_LM": ("AutoModelForCausalLM",),
    "SEQ_2_SEQ_LM": ("AutoModelForSeq2SeqLM",),
    "FEATURE_EXTRACTION": ("AutoModel",),
    None: ("AutoModel", "AutoModelForCausalLM"),
}
"""The classes that may hold the base model, by the task; of several, all on which the adapter fits have to agree. For
the other tasks PEFT trains the model's head beside the adapters."""

MOST_BLOCKS = 1_000
"""The largest number of blocks of a base model. Speed only: it keeps a mistaken file from running for hours."""

TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.default)?\.weight")
"""Names of the tensors of an adapter."""


def layers_from_peft(directory: str, base: str | None = None) -> tuple[Layer, ...]:
    """Read from a PEFT LoRA directory which layers are adapted: their inputs, their rank and how many are alike.

    Training LoRA's own factors is :class:`privproj.Gaussian`, whatever their shapes. :class:`privproj.M2` with these
    layers accounts for whole gradients that are clipped, and then projected to these ranks.

    Args:
        directory: Path of the adapter, with ``adapter_config.json`` and maybe ``adapter_model.safetensors``.
        base: Path of the base model's directory, with its ``config.json``; only used where no tensors are saved (extra:
            peft). None: ``config.json`` beside the adapter or in the directory that the adapter names.

    Returns:
        One :class:`privproj.Layer` for each pair of inputs and rank, with its count, in rising order.

    Raises:
        InvalidParameter: A file is missing or not understood, or the adapter trains more than is projected.
        MissingPackage: No tensors are saved, and PEFT or transformers is not installed.

    >>> import json, tempfile
    >>> from pathlib import Path
    >>> from privproj import InvalidParameter
    >>> from privproj.integrations.peft import layers_from_peft
    >>> adapter = {"peft_type": "LORA", "r": 8, "target_modules": ["q_proj"], "modules_to_save": ["head"]}
    >>> with tempfile.TemporaryDirectory() as home:
    ...     _ = Path(home, "adapter_config.json").write_text(json.dumps(adapter))
    ...     try:
    ...         layers_from_peft(home)
    ...     except InvalidParameter as error:
    ...         print(error.expected)
    plain LoRA of linear layers, and nothing else trained
    """
    home = Path(directory)
    adapter = _read_json(home / "adapter_config.json")
    with within("adapter_config.json"):
        _check_adapter(adapter)
    saved = home / "adapter_model.safetensors"
    if saved.is_file():
        found = _layers_of(saved.name, adapter, _shapes_in(saved))
    else:
        found = _configured_layers(home, adapter, base)
    return tuple(Layer(dim=dim, rank=rank, count=count) for (dim, rank), count in sorted(Counter(found).items()))


def _layers_of(file: str, adapter: dict[str, Any], shapes: dict[str, list[int]]) -> list[tuple[int, int]]:
    """Inputs and projected rank of every layer, from the shapes of an adapter's tensors.

    Raises :class:`InvalidParameter` for a tensor that is no factor of a linear layer, for factors that do not fit, and
    for ranks that are not those of the configuration.
    """
    layers: dict[str, dict[str, list[int]]] = {}
    for tensor, shape in shapes.items():
        match = TENSOR.fullmatch(tensor)
        if match is None or len(shape) != 2:
            raise InvalidParameter(file, f"{tensor} {shape}", "the A and B of linear layers only", BY_HAND)
        layers.setdefault(match[1], {})[match[2]] = shape
    if not layers:
        raise InvalidParameter(file, "no tensor", "the A and B of linear layers")
    for name, factors in layers.items():
        a, b = factors.get("A"), factors.get("B")
        if a is None or b is None or a[0] != b[1] or min(*a, *b) < 1:
            raise InvalidParameter(file, f"{name}: A {a}, B {b}", "an A of rank x inputs and a B of outputs x rank")
    sizes = [factors["A"] for factors in layers.values()]
    found, patterns = {rank for rank, _ in sizes}, {*(adapter.get("rank_pattern") or {}).values()}
    if not patterns <= found <= {adapter["r"], *patterns}:
        expected = f"rank {adapter['r']} and every rank of rank_pattern in adapter_config.json"
        raise InvalidParameter(file, f"ranks {sorted(found)}", expected, BY_HAND)
    return [(inputs, min(rank, inputs)) for rank, inputs in sizes]


def _configured_layers(home: Path, adapter: dict[str, Any], base: str | None) -> list[tuple[int, int]]:
    """The layers on which PEFT puts an adapter of which nothing is saved, as :func:`_layers_of` has them."""
    named = adapter.get("base_model_name_or_path")
    places = [Path(base)] if base else [home, *([Path(named)] if isinstance(named, str) and named else [])]
    model_home = next((place for place in places if (place / "config.json").is_file()), None)
    if model_home is None:
        searched = ", ".join(map(str, places))
        raise InvalidParameter("from_peft", searched, "a config.json of the base model", "give --base DIR")
    _read_json(model_home / "config.json")
    import_extra("peft", "an adapter without saved tensors", "peft")
    found, reasons = [], []
    for model_class in MODELS[adapter.get("task_type")]:
        try:
            found.append(_layers_of("adapter_config.json", adapter, _wrapped_shapes(adapter, model_home, model_class)))
        except Exception as error:  # whatever PEFT and transformers raise says that the two files do not fit
            reasons.append(" ".join(str(error).split())[:200])
    if not found:
        raise InvalidParameter("from_peft", str(home), f"an adapter that fits the model in {model_home}", reasons[0])
    if any(sorted(other) != sorted(found[0]) for other in found):
        raise InvalidParameter("task_type", None, "a task that settles what the names match", BY_HAND)
    return found[0]


def _wrapped_shapes(adapter: dict[str, Any], base: Path, model_class: str) -> dict[str, list[int]]:
    """The shapes of all that is trained once PEFT has put the adapter on the base model, which has no weights."""
    import peft
    import torch
    import transformers

    config = transformers.AutoConfig.from_pretrained(base, local_files_only=True, trust_remote_code=False)
    whole("num_hidden_layers", config.num_hidden_layers, f"from 1 to {MOST_BLOCKS} blocks", 1, MOST_BLOCKS)
    with torch.device("meta"):
        model = getattr(transformers, model_class).from_config(config, trust_remote_code=False)
        wrapped = peft.get_peft_model(model, peft.LoraConfig(**{key: adapter[key] for key in READ if key in adapter}))
    return {name: [*part.shape] for name, part in wrapped.named_parameters() if part.requires_grad}


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON file as a table; raises :class:`InvalidParameter` where it is missing or malformed."""
    expected = "a readable file with one JSON object"
    found = read_json(read_bounded(path, "from_peft"), "from_peft", str(path), expected)
    if not isinstance(found, dict):
        raise InvalidParameter("from_peft", str(path), expected)
    return found


def _shapes_in(path: Path) -> dict[str, list[int]]:
    """The shapes of the tensors in a safetensors file: an eight-byte length, a JSON header, the tensors in a row."""
    try:
        total = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(total - 8, LARGEST_FILE):
                raise ValueError("its header is cut off, or is too long")
            header = parse_json(file.read(length).decode())
        header.pop("__metadata__", None)
        ends = sorted(tuple(entry["data_offsets"]) for entry in header.values())
        starts = [0, *(end for _, end in ends)]
        if [start for start, _ in ends] != starts[:-1] or starts[-1] != total - 8 - length:
            raise ValueError("its tensors do not fill it")
        return {name: [whole("shape", side, "a size", 0) for side in entry["shape"]] for name, entry in header.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidParameter("from_peft", str(path), "a whole safetensors file", str(error)) from None


def _check_adapter(adapter: dict[str, Any]) -> None:
    """Raise for a configuration that trains anything but ``B A`` of linear layers, or that is damaged."""
    given = {"peft_type": "LORA", "task_type": None, "init_lora_weights": True, **adapter}
    kind, task, start = given["peft_type"], given["task_type"], given["init_lora_weights"]
    if str(kind).upper() != "LORA":
        raise InvalidParameter("peft_type", quoted(kind), "an adapter of type LORA", BY_HAND)
    for key, value in adapter.items():
        is_off = value is None or value is False or value in ([], {}) or (key, value) == ("bias", "none")
        if key not in (*HARMLESS, *READ) and not is_off:
            raise InvalidParameter(key, quoted(value), PLAIN, f"it may train more, or otherwise; {BY_HAND}")
    if not isinstance(task, str | None) or task not in MODELS:
        known = "null or one of " + ", ".join(filter(None, MODELS))
        raise InvalidParameter("task_type", quoted(task), known, f"PEFT trains the heads of others; {BY_HAND}")
    # These start with B = 0 and an A from public randomness.
    if start is not True and start != "gaussian":
        why = "other starts look at the data or the weights, change the base weights, or leave B nonzero"
        raise InvalidParameter("init_lora_weights", quoted(start), "true or gaussian", f"{why}; {BY_HAND}")
    whole("r", adapter.get("r"), "a whole number r >= 1 in adapter_config.json")
    ranks = adapter.get("rank_pattern")
    if not isinstance(ranks, dict | None):
        raise InvalidParameter("rank_pattern", quoted(ranks), "a table from names to ranks")
    for key, rank in (ranks or {}).items():
        whole(f"rank_pattern: {key}", rank, "a whole rank >= 1")
    if not adapter.get("target_modules"):
        raise InvalidParameter("target_modules", adapter.get("target_modules"), "names of the adapted modules", BY_HAND)
