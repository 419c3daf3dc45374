"""Read the dimensions and ranks of the adapted layers from a PEFT LoRA directory.

The ``dim`` of a layer is its number of inputs, because LoRA's ``A`` projects the input side. Its ``rank`` is that of
LoRA. Both are read from ``adapter_model.safetensors``, which PEFT also writes before training. A configuration that
trains other parameters is rejected, because these parameters would share the clipping norm without being projected.
"""

import re
from collections import Counter
from pathlib import Path
from typing import Any

from privproj.errors import InvalidParameterError, within
from privproj.io.files import read_bounded, read_json
from privproj.lazy import import_extra
from privproj.mechanisms import Layer
from privproj.parameters import integer, quoted

__all__ = ["layers_from_peft"]

BY_HAND = "give the layers with --layer"  # remedy for a configuration that cannot be read

# keys that change neither the trained tensors nor their shapes; every other key may
HARMLESS = (
    "auto_mapping", "revision",  # which class and which copy of the base model are loaded
    "inference_mode", "peft_version", "runtime_config",  # how the adapter was saved, and where its tensors lie
    "lora_alpha", "alpha_pattern", "use_rslora",  # the scale of the adapter's output; clipping of gradients follows it
    "lora_dropout",  # sampled for each record independently, before its gradient is clipped
    "fan_in_fan_out",  # how the weight is stored; its inputs are the same
    "megatron_core", "qalora_group_size",  # only used with keys that are rejected
)  # fmt: skip

# keys that specify which tensors are trained
READ = (
    "peft_type", "task_type", "base_model_name_or_path", "r", "rank_pattern", "target_modules", "exclude_modules",
    "layers_to_transform", "layers_pattern", "init_lora_weights",
)  # fmt: skip

PLAIN = "unset, as in plain LoRA of linear layers"  # supported configurations

# tasks for which PEFT trains no head besides the adapters
TASKS = (None, "CAUSAL_LM", "SEQ_2_SEQ_LM", "FEATURE_EXTRACTION")

TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.default)?\.weight")  # names of the tensors of an adapter


def layers_from_peft(directory: str) -> tuple[Layer, ...]:
    """Return the adapted layers of a PEFT LoRA directory.

    :class:`privproj.M2` with these layers accounts for full gradients that are clipped and then projected to these
    ranks. Training LoRA's own factors is accounted as :class:`privproj.Gaussian`, for any shapes.

    Args:
        directory: The path of the adapter, with ``adapter_config.json`` and ``adapter_model.safetensors``, as
            ``save_pretrained`` writes them, also for a model that is not trained yet.

    Returns:
        One :class:`privproj.Layer` for each pair of inputs and rank, with the number of such layers; sorted by pair.

    Raises:
        InvalidParameterError: A file is missing or malformed, or the adapter trains parameters that are not projected.

    >>> import json, tempfile
    >>> from pathlib import Path
    >>> from privproj import InvalidParameterError
    >>> from privproj.integrations.peft import layers_from_peft
    >>> adapter = {"peft_type": "LORA", "r": 8, "target_modules": ["q_proj"], "modules_to_save": ["head"]}
    >>> with tempfile.TemporaryDirectory() as home:
    ...     _ = Path(home, "adapter_config.json").write_text(json.dumps(adapter))
    ...     try:
    ...         layers_from_peft(home)
    ...     except InvalidParameterError as error:
    ...         print(error.expected)
    unset, as in plain LoRA of linear layers
    """
    folder = Path(directory)
    adapter = _read_json(folder / "adapter_config.json")
    with within("adapter_config.json"):
        _check_adapter(adapter)
    weights_file = folder / "adapter_model.safetensors"
    sizes = _layers_of(weights_file.name, adapter, _shapes_in(weights_file))
    return tuple(Layer(dim=dim, rank=rank, count=count) for (dim, rank), count in sorted(Counter(sizes).items()))


def _layers_of(file: str, adapter: dict[str, Any], shapes: dict[str, list[int]]) -> list[tuple[int, int]]:
    """Return ``(inputs, rank)`` of every LoRA layer, from the shapes of its tensors.

    Raises:
        InvalidParameterError: The tensors are not factors of linear layers with the ranks of the configuration.
    """
    layers: dict[str, dict[str, list[int]]] = {}
    for tensor, shape in shapes.items():
        match = TENSOR.fullmatch(tensor)
        if match is None or len(shape) != 2:
            raise InvalidParameterError(
                file, f"{tensor} {shape}", "an adapter with factors A and B of linear layers only", BY_HAND
            )
        layers.setdefault(match[1], {})[match[2]] = shape
    if not layers:
        raise InvalidParameterError(file, "no tensor", "an adapter with factors A and B of linear layers")
    for name, factors in layers.items():
        a, b = factors.get("A"), factors.get("B")
        if a is None or b is None or a[0] != b[1] or min(*a, *b) < 1:
            raise InvalidParameterError(
                file, f"{name}: A {a}, B {b}", "an adapter with A of shape rank x inputs and B of shape outputs x rank"
            )
    sizes = [factors["A"] for factors in layers.values()]
    ranks, patterns = {rank for rank, _ in sizes}, {*(adapter.get("rank_pattern") or {}).values()}
    if not patterns <= ranks <= {adapter["r"], *patterns}:
        expected = f"an adapter of rank {adapter['r']}, or of a rank in rank_pattern of adapter_config.json"
        raise InvalidParameterError(file, f"ranks {sorted(ranks)}", expected, BY_HAND)
    return [(inputs, min(rank, inputs)) for rank, inputs in sizes]


def _read_json(path: Path) -> dict[str, Any]:
    """Return a JSON file as a dictionary.

    Raises :class:`InvalidParameterError` if the file is missing or malformed.
    """
    expected = "a readable file with one JSON object"
    table = read_json(read_bounded(path, "from_peft"), "from_peft", str(path), expected)
    if not isinstance(table, dict):
        raise InvalidParameterError("from_peft", str(path), expected)
    return table


def _shapes_in(path: Path) -> dict[str, list[int]]:
    """Return the shapes of the tensors in a safetensors file, from its header."""
    safetensors = import_extra("safetensors", "a saved adapter", "peft", ", or give the layers with --layer")
    try:
        with safetensors.safe_open(path, "numpy") as file:
            return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    except (OSError, safetensors.SafetensorError) as error:
        remedy = f"save the adapter with save_pretrained ({error})"
        raise InvalidParameterError("from_peft", str(path), "a complete safetensors file", remedy) from None


def _check_adapter(adapter: dict[str, Any]) -> None:
    """Raise :class:`InvalidParameterError` for a configuration other than plain LoRA.

    Plain LoRA trains only the low-rank factors of linear layers.
    """
    settings = {"peft_type": "LORA", "task_type": None, "init_lora_weights": True, **adapter}
    kind, task, start = settings["peft_type"], settings["task_type"], settings["init_lora_weights"]
    if str(kind).upper() != "LORA":
        raise InvalidParameterError("peft_type", quoted(kind), "LORA", BY_HAND)
    for key, value in adapter.items():
        is_off = value is None or value is False or value in ([], {}) or (key, value) == ("bias", "none")
        if key not in (*HARMLESS, *READ) and not is_off:
            raise InvalidParameterError(key, quoted(value), PLAIN, BY_HAND)
    if task not in TASKS:
        tasks = "null or one of " + ", ".join(filter(None, TASKS))
        why = ", because PEFT also trains a head for other tasks"
        raise InvalidParameterError("task_type", quoted(task), tasks, f"{BY_HAND}{why}")
    # These initializations have B = 0 and A from public randomness.
    if start is not True and start != "gaussian":
        why = "other starts look at the data or the weights, change the base weights, or leave B nonzero"
        raise InvalidParameterError("init_lora_weights", quoted(start), "true or gaussian", f"{BY_HAND}, because {why}")
    integer("r", adapter.get("r"), "an integer >= 1")
    ranks = adapter.get("rank_pattern")
    if not isinstance(ranks, dict | None):
        raise InvalidParameterError("rank_pattern", quoted(ranks), "a table of ranks by module name")
    for key, rank in (ranks or {}).items():
        integer(f"rank_pattern: {key}", rank, "an integer >= 1")
    if not adapter.get("target_modules"):
        raise InvalidParameterError("target_modules", adapter.get("target_modules"), "a list of module names", BY_HAND)
