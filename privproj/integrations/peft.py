"""From a PEFT LoRA directory to the layers that are adapted: local files only, nothing downloaded.

LoRA's ``A`` projects a linear layer's input side. So a layer's ``dim`` is its number of inputs and its ``rank`` that of
LoRA. Both are read from ``adapter_model.safetensors``, which PEFT writes before training too. Whatever else a
configuration trains would share the clip unprojected, and is refused.
"""

import re
from collections import Counter
from pathlib import Path
from typing import Any

from privproj.errors import InvalidParameter, within
from privproj.io.files import read_bounded, read_json
from privproj.lazy import import_extra
from privproj.mechanisms import Layer
from privproj.parameters import integer, quoted

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

TASKS = (None, "CAUSAL_LM", "SEQ_2_SEQ_LM", "FEATURE_EXTRACTION")
"""The tasks for which PEFT trains no head of the model beside the adapters."""

TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.default)?\.weight")
"""Names of the tensors of an adapter."""


def layers_from_peft(directory: str) -> tuple[Layer, ...]:
    """Read from a PEFT LoRA directory which layers are adapted: their inputs, their rank and how many are alike.

    Training LoRA's own factors is :class:`privproj.Gaussian`, whatever their shapes. :class:`privproj.M2` with these
    layers accounts for whole gradients that are clipped, and then projected to these ranks.

    Args:
        directory: Path of the adapter, with ``adapter_config.json`` and ``adapter_model.safetensors``, as
            ``save_pretrained`` writes them, also of a model that was not trained yet.

    Returns:
        One :class:`privproj.Layer` for each pair of inputs and rank, with its count, in rising order.

    Raises:
        InvalidParameter: A file is missing or not understood, or the adapter trains more than is projected.

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
    sizes = _layers_of(saved.name, adapter, _shapes_in(saved))
    return tuple(Layer(dim=dim, rank=rank, count=count) for (dim, rank), count in sorted(Counter(sizes).items()))


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
    ranks, patterns = {rank for rank, _ in sizes}, {*(adapter.get("rank_pattern") or {}).values()}
    if not patterns <= ranks <= {adapter["r"], *patterns}:
        expected = f"rank {adapter['r']} and every rank of rank_pattern in adapter_config.json"
        raise InvalidParameter(file, f"ranks {sorted(ranks)}", expected, BY_HAND)
    return [(inputs, min(rank, inputs)) for rank, inputs in sizes]


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON file as a table; raises :class:`InvalidParameter` where it is missing or malformed."""
    expected = "a readable file with one JSON object"
    table = read_json(read_bounded(path, "from_peft"), "from_peft", str(path), expected)
    if not isinstance(table, dict):
        raise InvalidParameter("from_peft", str(path), expected)
    return table


def _shapes_in(path: Path) -> dict[str, list[int]]:
    """The shapes of the tensors in a safetensors file, which is not read further than its header."""
    safetensors = import_extra("safetensors", "a saved adapter", "peft", ", or give the layers with --layer")
    try:
        with safetensors.safe_open(path, "numpy") as file:
            return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    except (OSError, safetensors.SafetensorError) as error:
        remedy = f"save_pretrained writes it, before training too: {error}"
        raise InvalidParameter("from_peft", str(path), "a whole safetensors file", remedy) from None


def _check_adapter(adapter: dict[str, Any]) -> None:
    """Raise for a configuration that trains anything but ``B A`` of linear layers, or that is damaged."""
    settings = {"peft_type": "LORA", "task_type": None, "init_lora_weights": True, **adapter}
    kind, task, start = settings["peft_type"], settings["task_type"], settings["init_lora_weights"]
    if str(kind).upper() != "LORA":
        raise InvalidParameter("peft_type", quoted(kind), "an adapter of type LORA", BY_HAND)
    for key, value in adapter.items():
        is_off = value is None or value is False or value in ([], {}) or (key, value) == ("bias", "none")
        if key not in (*HARMLESS, *READ) and not is_off:
            raise InvalidParameter(key, quoted(value), PLAIN, f"it may train more, or otherwise; {BY_HAND}")
    if task not in TASKS:
        tasks = "null or one of " + ", ".join(filter(None, TASKS))
        raise InvalidParameter("task_type", quoted(task), tasks, f"PEFT trains the heads of others; {BY_HAND}")
    # These start with B = 0 and an A from public randomness.
    if start is not True and start != "gaussian":
        why = "other starts look at the data or the weights, change the base weights, or leave B nonzero"
        raise InvalidParameter("init_lora_weights", quoted(start), "true or gaussian", f"{why}; {BY_HAND}")
    integer("r", adapter.get("r"), "a whole number r >= 1 in adapter_config.json")
    ranks = adapter.get("rank_pattern")
    if not isinstance(ranks, dict | None):
        raise InvalidParameter("rank_pattern", quoted(ranks), "a table from names to ranks")
    for key, rank in (ranks or {}).items():
        integer(f"rank_pattern: {key}", rank, "a whole rank >= 1")
    if not adapter.get("target_modules"):
        raise InvalidParameter("target_modules", adapter.get("target_modules"), "names of the adapted modules", BY_HAND)
