"""From a PEFT LoRA directory to the layers that are adapted: local files only, nothing downloaded.

LoRA's ``A`` projects a linear layer's input side. So a layer's ``dim`` is its number of inputs and its ``rank`` that of
LoRA, as PEFT resolves both: by ``adapter_model.safetensors`` where it is there, else by ``adapter_config.json`` and the
names of the base model's layers. Whatever else a configuration trains would share the clip unprojected, and is refused.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

from privproj.errors import InvalidParameter
from privproj.integrations.base_models import Family, possible_families
from privproj.mechanisms import Layer
from privproj.records.atomic import LARGEST_FILE, read_bounded
from privproj.validation import whole

__all__ = ["layers_from_peft"]

BY_HAND = "give the layers with --layer"
"""The remedy where a configuration cannot be read."""


# The types of a key's value.
NUMBER = (int, float)
TRUTH = (bool,)
TEXT = (str,)
TABLE = (dict,)

HARMLESS: dict[str, tuple[tuple[type, ...], str]] = {
    "auto_mapping": (TABLE, "which class loads the base model"),
    "revision": (TEXT, "which copy of the base model is loaded"),
    "inference_mode": (TRUTH, "true in every saved adapter"),
    "lora_alpha": (NUMBER, "scales the adapter's output; gradients are clipped after that"),
    "alpha_pattern": (TABLE, "scales the adapter's output; gradients are clipped after that"),
    "use_rslora": (TRUTH, "scales the adapter's output; gradients are clipped after that"),
    "lora_dropout": (NUMBER, "drawn for each record without the others, before its gradient is clipped"),
    "fan_in_fan_out": (TRUTH, "how the weight is stored; its inputs are the same"),
    "megatron_core": (TEXT, "names a package that only megatron_config uses"),
    "qalora_group_size": (NUMBER, "only use_qalora uses it"),
    "peft_version": (TEXT, "who wrote the file"),
    "runtime_config": (TABLE, "where tensors lie while training"),
}
"""Keys that change neither what is trained nor its shape: the types that they may have, and why."""

READ = (
    "peft_type", "task_type", "base_model_name_or_path", "r", "rank_pattern", "target_modules", "exclude_modules",
    "layers_to_transform", "layers_pattern", "init_lora_weights",
)  # fmt: skip
"""Keys that say what is trained, and are followed."""

FULL = "no tensor trained in full"
"""What is expected of a configuration: nothing but adapters is trained."""

LINEAR = "a plain LoRA layer B A, whose A is its only projection"
"""What is expected of an adapter."""

START = "adapters that start without a look at the data"
"""What is expected of how adapters begin."""


REFUSED: dict[str, tuple[str, str]] = {
    "bias": (FULL, "it shares the clip unprojected"),
    "lora_bias": (FULL, "the bias of B shares the clip unprojected"),
    "modules_to_save": (FULL, "it shares the clip unprojected"),
    "trainable_token_indices": (FULL, "rows of the embedding share the clip unprojected"),
    "target_parameters": ("adapters of linear layers only", "a bare parameter has no input side to project"),
    "use_dora": (LINEAR, "its magnitudes are trained in full"),
    "kasa_config": (LINEAR, "its singular values are trained in full"),
    "monteclora_config": (LINEAR, "its sampler is trained in full"),
    "velora_config": (LINEAR, "its backward pass compresses activations by a statistic of the batch"),
    "use_bdlora": (LINEAR, "its factors have blocks"),
    "use_qalora": (LINEAR, "it pools the inputs before A"),
    "arrow_config": (LINEAR, "it routes among several adapters"),
    "alora_invocation_tokens": (LINEAR, "it acts on a part of the tokens"),
    "layer_replication": ("blocks as the base model has them", "replicated blocks share their weights"),
    "ensure_weight_tying": ("layers that share no weight", "tied adapters are one tensor in two places"),
    "megatron_config": ("layers of torch", "Megatron's parallel layers hold a part of the weight each"),
    "loftq_config": (START, "it also quantizes the base weights"),
    "eva_config": (START, "EVA looks at the data, which no step accounts for, and moves ranks between layers"),
    "corda_config": (START, "CorDA looks at the data, which no step accounts for"),
    "lora_ga_config": (START, "LoRA-GA looks at gradients of the data, which no step accounts for"),
}
"""Keys that train more, or otherwise, than a linear layer's ``B A``: what is expected instead, and why."""

HEADS = ("SEQ_CLS", "TOKEN_CLS", "QUESTION_ANS")
"""Tasks for which PEFT itself adds the model's head to ``modules_to_save``."""

TASKS = ("CAUSAL_LM", "SEQ_2_SEQ_LM", "FEATURE_EXTRACTION")
"""Task types whose heads are not trained."""


STARTS = (True, "gaussian")
"""Starts with ``B = 0`` and an ``A`` from public randomness."""

BLOCK = r"(?:^|.*?\.){}\.(?P<idx>\d+)\."
"""PEFT's index of a block, by the name of the list of blocks."""

FIRST_INDEX = r".*?\.[^.]*\.(?P<idx>\d+)\."
"""PEFT's index of a block, as the first number in a module's name."""

TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
"""Names of the tensors of a saved adapter."""


def layers_from_peft(directory: str, base: str | None = None) -> tuple[Layer, ...]:
    """Read from a PEFT LoRA directory which layers are adapted: their inputs, their rank and how many are alike.

    Training LoRA's own factors is :class:`privproj.Gaussian`, whatever their shapes. :class:`privproj.M2` with these
    layers accounts for whole gradients that are clipped, and then projected to these ranks.

    With ``adapter_model.safetensors`` the configuration of the base model is only compared. Where that has no
    ``model_type``, the layers of its blocks are counted, and nothing else.

    Args:
        directory: Path of the adapter, with ``adapter_config.json`` and maybe ``adapter_model.safetensors``.
        base: Path of the base model's directory, with its ``config.json``. None: ``config.json`` beside the adapter or
            in the directory that the adapter names.

    Returns:
        One :class:`privproj.Layer` for each pair of inputs and rank, with its count, in rising order.

    Raises:
        InvalidParameter: A file is missing or not understood, or the adapter trains more than is projected.

    >>> import json, tempfile
    >>> from pathlib import Path
    >>> from privproj.integrations.peft import layers_from_peft
    >>> adapter = {"peft_type": "LORA", "r": 8, "target_modules": ["q_proj", "v_proj"]}
    >>> base = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    >>> with tempfile.TemporaryDirectory() as home:
    ...     _ = Path(home, "adapter_config.json").write_text(json.dumps(adapter))
    ...     _ = Path(home, "config.json").write_text(json.dumps(base))
    ...     [(layer.dim, layer.rank, layer.count) for layer in layers_from_peft(home)]
    [(64, 8, 4)]
    """
    home = Path(directory)
    adapter = _read_json(home / "adapter_config.json")
    try:
        return _adapted_layers(home, adapter, base)
    except InvalidParameter as error:
        if error.name == "from_peft" or ".json" in error.name or ".safetensors" in error.name:
            raise
        name = f"adapter_config.json: {error.name}"
        raise InvalidParameter(name, error.value, error.expected, error.remedy) from None


def _adapted_layers(home: Path, adapter: dict[str, Any], base: str | None) -> tuple[Layer, ...]:
    """The layers of an adapter whose configuration is read."""
    _check_adapter(adapter)
    config, places = _base_config(home, adapter, base)
    saved = _saved_layers(home / "adapter_model.safetensors", adapter)
    if config is None and (saved is None or base):
        searched = ", ".join(str(place) for place in places)
        raise InvalidParameter("from_peft", searched, "a config.json of the base model", "give --base DIR")
    found = _agreed_layers(saved, adapter, config)
    return tuple(Layer(dim=dim, rank=rank, count=count) for (dim, rank), count in sorted(found.items()))


Shapes = Counter[tuple[int, int]]
"""How many adapted layers there are of each ``(inputs, rank)``."""


def _agreed_layers(saved: Shapes | None, adapter: dict[str, Any], config: dict[str, Any] | None) -> Shapes:
    """The layers as saved, or as configured where none are saved.

    Raises :class:`InvalidParameter` where the configurations say otherwise than what is saved.
    """
    if saved is None:
        return _configured_layers(adapter, config or {})
    try:
        known = saved if config is None else _configured_layers(adapter, config)
    except InvalidParameter:
        known = saved
    if known != saved:
        told = ", ".join(f"{dim}x{rank}x{count}" for (dim, rank), count in sorted(known.items()))
        was = ", ".join(f"{dim}x{rank}x{count}" for (dim, rank), count in sorted(saved.items()))
        raise InvalidParameter("adapter_model.safetensors", was, f"the layers {told} of the configurations", BY_HAND)
    return saved


# --- files ----------------------------------------------------------------------------------------


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A table from pairs whose keys are all different; raises :class:`ValueError` for a doubled key."""
    table = dict(pairs)
    if len(table) < len(pairs):
        key = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {key!r} occurs twice")
    return table


def _parse_object(text: str | bytes) -> dict[str, Any]:
    """A JSON object; raises :class:`ValueError` for anything else, for doubled keys and for nan."""

    def refuse(word: str) -> float:
        raise ValueError(f"{word} is no JSON number")

    data = json.loads(text, object_pairs_hook=_unique, parse_constant=refuse)
    if not isinstance(data, dict):
        raise ValueError("it is no JSON object")
    return data


def _read_json(path: Path) -> dict[str, Any]:
    """A JSON file as a table; raises :class:`InvalidParameter` where it is missing or malformed."""
    try:
        return _parse_object(read_bounded(path, "from_peft").decode())
    except InvalidParameter:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidParameter("from_peft", str(path), "a readable file with one JSON object", str(error)) from None


def _base_config(home: Path, adapter: dict[str, Any], base: str | None) -> tuple[dict[str, Any] | None, list[Path]]:
    """The base model's ``config.json``, if it is found, and the places that were searched."""
    named = adapter.get("base_model_name_or_path")
    if named is not None and not isinstance(named, str):
        raise InvalidParameter("base_model_name_or_path", named, "a name or a directory")
    places = [Path(base)] if base else [home, *([Path(named)] if named else [])]
    return next((_read_json(p / "config.json") for p in places if (p / "config.json").is_file()), None), places


def _saved_layers(path: Path, adapter: dict[str, Any]) -> Shapes | None:
    """``(inputs, rank)`` of every layer that a saved adapter holds; None where nothing is saved."""
    if not path.is_file():
        return None
    layers: dict[str, dict[str, list[int]]] = {}
    for tensor, shape in _shapes_in(path).items():
        match = TENSOR.fullmatch(tensor)
        if match is None or len(shape) != 2:
            raise InvalidParameter(path.name, f"{tensor} {shape}", "the A and B of linear layers only", BY_HAND)
        layers.setdefault(match[1], {})[match[2]] = shape
    if not layers:
        raise InvalidParameter(path.name, "no tensor", "the A and B of linear layers")
    key_of = _pattern_rule(adapter)
    return Counter(_saved_shape(path.name, name, factors, adapter, key_of) for name, factors in layers.items())


def _saved_shape(
    file: str, name: str, factors: dict[str, list[int]], adapter: dict[str, Any], key_of: "Rule"
) -> tuple[int, int]:
    """``(inputs, rank)`` of one saved layer, whose factors fit each other and the configuration."""
    a, b = factors.get("A"), factors.get("B")
    if a is None or b is None or a[0] != b[1] or min(*a, *b) < 1:
        raise InvalidParameter(file, f"{name}: A {a}, B {b}", "an A of rank x inputs and a B of outputs x rank")
    if not _takes_all(adapter) and not is_target(adapter, name):
        raise InvalidParameter(file, name, "only layers that target_modules of adapter_config.json names", BY_HAND)
    rank = _rank_of(adapter, name, key_of)
    if a[0] != rank:
        raise InvalidParameter(file, f"{name}: rank {a[0]}", f"rank {rank}, as adapter_config.json says", BY_HAND)
    return a[1], min(rank, a[1])


def _shapes_in(path: Path) -> dict[str, list[int]]:
    """The shapes of the tensors in a safetensors file: an eight-byte length, a JSON header, the tensors in a row."""
    try:
        total = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > min(total - 8, LARGEST_FILE):
                raise ValueError("its header is cut off, or is too long")
            header = _parse_object(file.read(length))
        header.pop("__metadata__", None)
        ends = sorted(tuple(entry["data_offsets"]) for entry in header.values())
        starts = [0, *(end for _, end in ends)]
        if [start for start, _ in ends] != starts[:-1] or starts[-1] != total - 8 - length:
            raise ValueError("its tensors do not fill it")
        return {name: [whole("shape", side, "a size", 0) for side in entry["shape"]] for name, entry in header.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidParameter("from_peft", str(path), "a whole safetensors file", str(error)) from None


# --- adapter_config.json --------------------------------------------------------------------------


def _quoted(value: Any) -> str:
    """A value of a file, short enough for a sentence."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _is_off(value: Any) -> bool:
    """True for what switches a key off."""
    return value is None or value is False or value in ([], {})


def _check_adapter(adapter: dict[str, Any]) -> None:
    """Raise for a configuration that trains anything but ``B A`` of linear layers, or that is damaged."""
    kind = adapter.get("peft_type", "LORA")
    if not isinstance(kind, str) or kind.upper() != "LORA":
        raise InvalidParameter("peft_type", _quoted(kind), "an adapter of type LORA", BY_HAND)
    for key, value in adapter.items():
        _check_key(key, value)
    _check_start(adapter)
    whole("r", adapter.get("r"), "a whole number r >= 1 in adapter_config.json")
    ranks = _patterns_of(adapter)
    for key, rank in ranks.items():
        _compile_pattern("rank_pattern", key, r"(.*\.)?({})$")
        whole(f"rank_pattern: {key}", rank, "a whole rank >= 1")
    _check_targets(adapter)


def _check_key(key: str, value: Any) -> None:
    """Raise for a key that trains more than is accounted, that is unknown, or whose value has the wrong type."""
    if key in HARMLESS:
        types = HARMLESS[key][0]
        if value is not None and (not isinstance(value, types) or (isinstance(value, bool) and types is NUMBER)):
            raise InvalidParameter(key, _quoted(value), "null or " + " or ".join(kind.__name__ for kind in types))
    elif key in REFUSED:
        if not (_is_off(value) or (key == "bias" and value == "none")):
            expected, why = REFUSED[key]
            raise InvalidParameter(key, _quoted(value), expected, f"{why}; {BY_HAND}")
    elif key not in READ and not _is_off(value):
        raise InvalidParameter(
            key, _quoted(value), "only keys of adapter_config.json that are known here", f"it may train more; {BY_HAND}"
        )


def _check_start(adapter: dict[str, Any]) -> None:
    """Raise for tasks with a trained head and for adapters that do not start at ``B = 0``."""
    task, start = adapter.get("task_type"), adapter.get("init_lora_weights", True)
    if task in HEADS:
        raise InvalidParameter("task_type", task, FULL, f"PEFT trains this task's head unprojected; {BY_HAND}")
    if task is not None and task not in TASKS:
        raise InvalidParameter("task_type", _quoted(task), "null or one of " + ", ".join((*TASKS, *HEADS)))
    if not any(type(start) is type(known) and start == known for known in STARTS):
        why = "other starts look at the data or the weights, change the base weights, or leave B nonzero"
        raise InvalidParameter("init_lora_weights", _quoted(start), "true or gaussian", f"{why}; {BY_HAND}")


def _check_targets(adapter: dict[str, Any]) -> None:
    """Raise for targets that are no names or regular expressions, or that PEFT would not take together."""
    for key, around in (("target_modules", "{}"), ("exclude_modules", "{}"), ("layers_pattern", BLOCK)):
        given = adapter.get(key)
        if isinstance(given, str) and given:
            _compile_pattern(key, given, around)
        elif given is not None and not (isinstance(given, list) and all(isinstance(n, str) and n for n in given)):
            raise InvalidParameter(key, _quoted(given), "a regular expression or a list of names")
    targets, chosen, pattern = (adapter.get(key) for key in ("target_modules", "layers_to_transform", "layers_pattern"))
    if not targets:
        raise InvalidParameter("target_modules", _quoted(targets), "names of the adapted modules", BY_HAND)
    if chosen is not None:
        for index in chosen if isinstance(chosen, list) else [chosen]:
            whole("layers_to_transform", _quoted(index) if isinstance(index, str) else index, "indices of blocks", 0)
    for name in pattern if isinstance(pattern, list) else []:
        _compile_pattern("layers_pattern", name, BLOCK)
    if isinstance(targets, str) and not (chosen is None and pattern is None):
        raise InvalidParameter("target_modules", targets, "a list of names with layers_to_transform or layers_pattern")
    if pattern and chosen is None:
        raise InvalidParameter("layers_pattern", _quoted(pattern), "layers_to_transform with it")


def _compile_pattern(key: str, pattern: str, around: str) -> None:
    """Raise for text that is no regular expression in the place where it is used."""
    try:
        re.compile(around.replace("{}", pattern))
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidParameter(key, _quoted(pattern), "a regular expression", str(error)) from None


def _patterns_of(adapter: dict[str, Any]) -> dict[str, Any]:
    """The table ``rank_pattern`` of an adapter, empty where there is none."""
    found = adapter.get("rank_pattern")
    if found is not None and not isinstance(found, dict):
        raise InvalidParameter("rank_pattern", _quoted(found), "a table from names to ranks")
    return found or {}


# --- what PEFT matches ----------------------------------------------------------------------------


def pattern_key(keys: Iterable[str], name: str) -> str:
    """PEFT's rule: the first key that matches the end of a module's name, from a dot on; else the name itself."""
    return next((key for key in keys if re.match(rf"(.*\.)?({key})$", name)), name)


def _earlier_key(keys: Iterable[str], name: str) -> str:
    """The rule of PEFT's first versions: the key is not in parentheses, and something must stand before it."""
    return next((key for key in keys if re.match(rf".*\.{key}$", name)), name)


Rule = Callable[[Iterable[str], str], str]
"""From the keys of ``rank_pattern`` and the name of a module to the key that matches it, or to the name itself."""


def _pattern_rule(adapter: dict[str, Any]) -> Rule:
    """The rule by which the installed PEFT matches patterns; without one, a rule on which all versions agree."""
    version = _installed_version()
    if version is None or not _patterns_of(adapter):
        return _every_version
    return known_rule if version < UNKNOWN_VERSION else _own_rule


UNKNOWN_VERSION = (0, 22)
"""Versions of PEFT before this one match patterns by one of the two rules above. Where both agree PEFT is not imported,
which would take seconds. Speed only."""


def _installed_version() -> tuple[int, ...] | None:
    """PEFT's version, None where it is not installed; nothing is imported."""
    try:
        return tuple(int(part) for part in re.findall(r"\d+", metadata.version("peft"))[:2])
    except metadata.PackageNotFoundError:
        return None


def known_rule(keys: Iterable[str], name: str) -> str:
    """The key by PEFT's rule; PEFT itself is asked only where its versions differ."""
    key = pattern_key(keys, name)
    return key if key == _earlier_key(keys, name) else _own_rule(keys, name)


def _own_rule(keys: Iterable[str], name: str) -> str:
    """The key by the installed PEFT's own rule; without PEFT, one on which all versions agree."""
    try:
        from peft.utils import other  # pyright: ignore[reportMissingImports]
    except (ImportError, RuntimeError, OSError):
        return _every_version(keys, name)
    return getattr(other, "get_pattern_key", _earlier_key)(keys, name)


def _every_version(keys: Iterable[str], name: str) -> str:
    """The key by every version of PEFT's rule; raises :class:`InvalidParameter` where they differ."""
    key, earlier = pattern_key(keys, name), _earlier_key(keys, name)
    if key != earlier:
        remedy = "install PEFT as it trains, or write each key as the end of a module's name"
        raise InvalidParameter("rank_pattern", key, "a key that every version of PEFT matches alike", remedy)
    return key


def is_target(adapter: dict[str, Any], name: str) -> bool:
    """True if PEFT adapts the module of this name."""
    targets, excluded = adapter["target_modules"], adapter.get("exclude_modules") or []
    if isinstance(excluded, str):
        if re.fullmatch(excluded, name):
            return False
    elif _ends_with(name, excluded):
        return False
    if isinstance(targets, str):
        return re.fullmatch(targets, name) is not None
    return name in targets or (_ends_with(name, targets) and _in_chosen_block(adapter, name))


def _takes_all(adapter: dict[str, Any]) -> bool:
    """True if every linear layer but the output embedding is adapted."""
    targets = adapter["target_modules"]
    return isinstance(targets, str) and targets.lower() == "all-linear"


def _ends_with(name: str, ends: Iterable[str]) -> bool:
    """True if the name is one of these, or ends with one after a dot."""
    return any(name == end or name.endswith(f".{end}") for end in ends)


def _in_chosen_block(adapter: dict[str, Any], name: str) -> bool:
    """True if ``layers_to_transform`` lets this module through; where it names none, all are let through."""
    chosen, given = adapter.get("layers_to_transform"), adapter.get("layers_pattern")
    if chosen is None or chosen == []:
        return True
    stacks = [given] if isinstance(given, str) and given else given or []
    for start in [BLOCK.replace("{}", stack) for stack in stacks] or [FIRST_INDEX]:
        match = re.match(start, name)
        if match is not None:
            return int(match["idx"]) in (chosen if isinstance(chosen, list) else [chosen])
    return False


def _rank_of(adapter: dict[str, Any], name: str, key_of: Rule) -> int:
    """LoRA's rank for the module of this name."""
    ranks = _patterns_of(adapter)
    return int(ranks.get(key_of(list(ranks), name), adapter["r"]))


# --- layers ---------------------------------------------------------------------------------------


def _configured_layers(adapter: dict[str, Any], config: dict[str, Any]) -> Shapes:
    """``(inputs, rank)`` of every adapted layer, by the two configurations.

    Names are tried as every model has them that the base model's configuration may stand for. Raises
    :class:`InvalidParameter` where none fits, or where several do and differ.
    """
    if _takes_all(adapter) and config.get("model_type") is None:
        raise InvalidParameter(
            "target_modules", "all-linear", "a list of module names, or a model_type in config.json", BY_HAND
        )
    tried = possible_families(config, adapter.get("task_type") == "CAUSAL_LM")
    tried.sort(key=lambda pair: -_count_of_known_targets(pair[0], adapter["target_modules"]))
    key_of = _pattern_rule(adapter)
    found, failures = [], []
    for family, stack in tried:
        try:
            found.append(_layers_in(family, stack, adapter, config, key_of))
        except InvalidParameter as error:
            failures.append(error)
    if not found:
        raise failures[0]
    if any(other != found[0] for other in found):
        raise InvalidParameter(
            "config.json: model_type", config.get("model_type"), "a base model that settles what the names match",
            f"write names from the block's index on; or {BY_HAND}",
        )  # fmt: skip
    return found[0]


def _count_of_known_targets(family: Family, targets: Any) -> int:
    """How many of the targets a family's blocks hold."""
    names = targets if isinstance(targets, list) else []
    return sum(any(_ends_with(f".{layer}", [name]) for layer in family.block) for name in names)


def _layers_in(family: Family, stack: str, adapter: dict[str, Any], config: dict[str, Any], key_of: Rule) -> Shapes:
    """The adapted layers, were the base model of this family with its blocks under this name."""
    names = dict(family.names(stack, config))
    _check_outside(family, adapter, typed=config.get("model_type") is not None)
    if _takes_all(adapter):
        chosen = [name for name in names if is_target({**adapter, "target_modules": [name]}, name)]
    else:
        chosen = [name for name in names if is_target(adapter, name)]
    _check_used(adapter, list(names), chosen, family.size(config, "blocks"), key_of)
    shapes = [(family.size(config, names[name]), _rank_of(adapter, name, key_of)) for name in chosen]
    return Counter((dim, min(rank, dim)) for dim, rank in shapes)


def _check_outside(family: Family, adapter: dict[str, Any], *, typed: bool) -> None:
    """Raise for targets that match a module outside the blocks, which some models of the family have."""
    remedy = f"name the modules from the block's index on; or {BY_HAND}"
    if _takes_all(adapter):
        if family.heads:
            raise InvalidParameter(
                "target_modules", "all-linear", f"names, since {family.heads[0]} is there or not", remedy
            )
        return
    if not typed and not isinstance(adapter["target_modules"], str):
        return
    for name in (*family.outside, *family.heads):
        if is_target(adapter, name):
            targets = _quoted(adapter["target_modules"])
            raise InvalidParameter("target_modules", targets, f"layers of the blocks only, not {name}", remedy)


def _check_used(adapter: dict[str, Any], names: list[str], chosen: list[str], blocks: int, key_of: Rule) -> None:
    """Raise for a target, a pattern or a block that matches nothing: it was meant for another model."""
    targets, indices = adapter["target_modules"], adapter.get("layers_to_transform")
    for target in targets if isinstance(targets, list) else []:
        if not any(_ends_with(name, [target]) for name in names):
            raise InvalidParameter("target_modules", target, "a module whose size is known", BY_HAND)
    for index in indices if isinstance(indices, list) else [] if indices is None else [indices]:
        if index >= blocks:
            raise InvalidParameter("layers_to_transform", index, f"a block from 0 to {blocks - 1}")
    if not chosen:
        key = "exclude_modules" if adapter.get("exclude_modules") else "target_modules"
        raise InvalidParameter(key, _quoted(adapter[key]), "at least one adapted module whose size is known", BY_HAND)
    for key in _patterns_of(adapter):
        if all(key_of([key], name) != key for name in chosen):
            raise InvalidParameter("rank_pattern", key, "keys that match an adapted module", "remove it or correct it")
