"""Define DP-SGD on LoRA adapters whose random factor ``A`` is frozen (DP-LoRA-FA).

Only the ``B`` factors and whole modules, such as a new head, are trained. A variant merges the adapters and draws new
ones every few steps. For PEFT models this module also prepares M2, which trains the adapted weights themselves.
"""

import re
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import Any, Literal

import torch
from torch import Tensor, nn

from privproj.errors import InvalidParameterError
from privproj.io.files import write_atomically
from privproj.parameters import integer
from privproj.training.generators import Streams, normal, streams
from privproj.training.plan import Plan
from privproj.training.trained import Trained, is_conv1d
from privproj.training.view import Algorithm

# called with the name of a linear layer and the layer; returns whether to adapt the layer
Picks = Callable[[str, nn.Linear], bool]


class FrozenLoRA(nn.Module):
    """A linear layer with a LoRA adapter and frozen ``A``: ``y = W x + b + s B A x``.

    The scale ``s`` is fixed. ``W``, ``b`` and ``A`` (rank x inputs, entries N(0, 1/rank)) are frozen. Only ``B``
    (outputs x rank) is trained, and it starts at zero. ``A`` comes from public randomness and may be published with the
    adapter.

    Args:
        base: The linear layer to adapt. Its tensors are frozen.
        rank: Rank of the adapter, from 1 to the number of inputs.
        alpha: LoRA's ``alpha``: the scale is ``s = alpha / rank``. None: ``s = 1``.
        stream: The random generator for ``A``, on the device of the layer.

    Raises:
        InvalidParameterError: ``rank`` is not a whole number from 1 to the number of inputs.

    >>> import torch
    >>> from privproj.training import FrozenLoRA
    >>> base = torch.nn.Linear(6, 3)
    >>> layer = FrozenLoRA(base, rank=2, alpha=None, stream=torch.Generator().manual_seed(0))
    >>> [name for name, tensor in layer.named_parameters() if tensor.requires_grad]
    ['lora_B.weight']
    >>> torch.equal(layer(torch.ones(5, 6)), base(torch.ones(5, 6)))
    True
    """

    def __init__(self, base: nn.Linear, rank: int, alpha: float | None, stream: torch.Generator) -> None:
        super().__init__()
        inputs = base.in_features
        rank = integer("rank", rank, f"an integer from 1 to {inputs}, the inputs of a layer", 1, inputs)
        self.base = base.requires_grad_(False)
        self.rank, self.scale = rank, 1.0 if alpha is None else alpha / rank
        weight = base.weight
        self.lora_A = nn.Linear(base.in_features, rank, bias=False, device=weight.device, dtype=weight.dtype)
        self.lora_B = nn.Linear(rank, base.out_features, bias=False, device=weight.device, dtype=weight.dtype)
        self.lora_A.weight.requires_grad_(False)
        self.draw(stream)

    @torch.no_grad()
    def draw(self, stream: torch.Generator) -> None:
        """Draw a new factor ``A`` of the adapter, and set its factor ``B`` to zero.

        Args:
            stream: The random generator for ``A``, on the device of the layer.
        """
        weight = self.lora_A.weight
        # A = N/sqrt(r).
        weight.copy_(normal(tuple(weight.shape), weight, stream) / self.rank**0.5)
        self.lora_B.weight.zero_()

    @torch.no_grad()
    def merge(self, stream: torch.Generator) -> None:
        """Add the adapter to the weight of the layer, and start a new adapter.

        The new adapter has ``B = 0``, so the outputs of the layer do not change.

        Args:
            stream: The random generator for the new ``A``.
        """
        # W <- W + s B A.
        self.base.weight.addmm_(self.lora_B.weight, self.lora_A.weight, alpha=self.scale)
        self.draw(stream)

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the layer with its adapter.

        Args:
            x: A tensor whose last dimension has the inputs of the layer.

        Returns:
            ``W x + b + s B A x`` with the scale ``s``. The last dimension has the outputs of the layer.
        """
        # y = W x + b + s B A x.
        return self.base(x) + self.scale * self.lora_B(self.lora_A(x))


def add_frozen_lora(
    module: nn.Module, rank: int, *, alpha: float | None = None, where: Picks | None = None,
    insecure_seed: int | None = None,
) -> nn.Module:  # fmt: skip
    """Wrap linear layers of a module in :class:`FrozenLoRA`; freeze all other tensors.

    Call this before you build the optimizer. The module is changed in place. If ``module`` is a linear layer, a wrapped
    layer is returned.

    Args:
        module: The module to adapt.
        rank: Rank of every adapter, from 1 to the number of inputs of the narrowest adapted layer.
        alpha: LoRA's ``alpha``: the output of an adapter is multiplied by ``alpha / rank``. None: by 1.
        where: Called with the name of a linear layer and the layer; returns True to adapt the layer. None: all linear
            layers are adapted. ``where`` is not called if the module itself is a linear layer.
        insecure_seed: A whole number of at least 0 that makes the factors ``A`` repeatable. None: they come from a
            generator seeded by the operating system.

    Returns:
        The module with its adapters.

    Raises:
        InvalidParameterError: ``rank`` is outside its range for a layer, or no layer is adapted.

    >>> import torch
    >>> from privproj.training import add_frozen_lora
    >>> module = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> module = add_frozen_lora(module, 3, where=lambda name, layer: name == "0")
    >>> [name for name, tensor in module.named_parameters() if tensor.requires_grad]
    ['0.lora_B.weight']
    """
    drawn = streams(insecure_seed).projection
    return wrap_layers(module, lambda layer: FrozenLoRA(layer, rank, alpha, drawn.on(layer.weight.device)), where)


def wrap_layers(module: nn.Module, wrap: Callable[[nn.Linear], nn.Module], where: Picks | None) -> nn.Module:
    """Freeze a module, replace its selected linear layers, and return the module.

    ``wrap`` returns the replacement of a layer. ``where`` is called with a name and a layer, and returns True to select
    the layer; None selects all. If the module itself is a linear layer, its replacement is returned. Raises
    :class:`InvalidParameterError` if no layer is selected.
    """
    module.requires_grad_(False)
    if isinstance(module, nn.Linear):
        return wrap(module)
    layers = [(name, layer) for name, layer in module.named_modules() if type(layer) is nn.Linear]
    picked = [(name, layer) for name, layer in layers if where is None or where(name, layer)]
    for name, layer in picked:
        parent, _, child = name.rpartition(".")
        setattr(module.get_submodule(parent), child, wrap(layer))
    if not picked:
        raise InvalidParameterError("module", type(module).__name__, "a module with linear layers")
    return module


def prepare_peft(model: nn.Module, algorithm: Literal["lora-fa", "m2"]) -> nn.Module:
    """Prepare a PEFT model with LoRA adapters for private training.

    Call this before you build the optimizer. The model is the result of ``peft.get_peft_model(model,
    peft.LoraConfig(...))``. Only active adapters are used. Whole modules that PEFT trains (``modules_to_save``, such as
    a new classification head) remain trained. Adapters of ``nn.Embedding`` and ``nn.MultiheadAttention`` are not
    supported.

    Args:
        model: The wrapped model. It is changed in place.
        algorithm: "lora-fa" freezes the ``A`` factors and trains the ``B`` factors and the head, which are one Gaussian
            release together. "m2" freezes both factors and trains the weights that they adapt; the factors have no
            effect, because ``B`` is zero. The projection of a weight has the rank of its adapter. The projections of
            the matrices of the head have the largest of these ranks. A rank in the ``Method`` of :func:`make_private`
            replaces them all. ``model.save_pretrained`` then works like :func:`export_peft`.

    Returns:
        The same model.

    Raises:
        InvalidParameterError: ``algorithm`` is unknown. The model has no LoRA layers, adapters that are not
            supported, or trained tensors outside adapters and heads. For "m2" also: a B factor is not zero, or the
            model uses a variant of LoRA such as DoRA.

    >>> import torch
    >>> from privproj.training import prepare_peft
    >>> prepare_peft(torch.nn.Linear(4, 2), "lora-fa")
    Traceback (most recent call last):
    ...
    privproj.errors.InvalidParameterError: model must be a PEFT model with LoRA adapters, got Linear.
    """
    if algorithm not in ("lora-fa", "m2"):
        raise InvalidParameterError("algorithm", algorithm, "lora-fa or m2")
    layers: list[Any] = [part for part in model.modules() if hasattr(part, "base_layer") and hasattr(part, "lora_B")]
    if not layers:
        raise InvalidParameterError("model", type(model).__name__, "a PEFT model with LoRA adapters")
    for layer in layers:
        _check_adapts_linear(layer)
    heads = _active_heads(model)
    _check_nothing_else_trains(model, layers, heads)
    model.requires_grad_(False)
    for head in heads:
        head.requires_grad_(True)
    if algorithm == "m2":
        _train_adapted_weights(model, layers, heads)
        return model
    for factor in (factor for layer in layers for factor in _active_factors(layer)):
        factor.requires_grad_(True)
    return model


def _train_adapted_weights(model: Any, layers: list[Any], heads: list[nn.Module]) -> None:
    """Make the weights under LoRA adapters trainable, and store their projection ranks.

    The projection of a weight has the rank of its adapter. Raises :class:`InvalidParameterError` if a LoRA ``B`` factor
    is not zero, or for a variant such as DoRA.
    """
    ranks = [1]
    for layer in layers:
        factors = _active_factors(layer)
        variants = {**getattr(layer, "use_dora", {}), **getattr(layer, "lora_variant", {})}
        if any(variants.get(name) for name in layer.active_adapters):
            # DoRA rescales the weight, so the trained weight would not be valid in the model without its adapters.
            remedy = "set use_dora=False, or train the factors"
            raise InvalidParameterError("model", "DoRA or another variant", "a model with plain LoRA for m2", remedy)
        if any(bool(part.any()) for factor in factors for part in factor.parameters()):
            raise InvalidParameterError(
                "model", "nonzero B factors", "a model with zero B factors", "merge the adapter first"
            )
        if factors:
            layer.base_layer.weight.requires_grad_(True)
            layer.base_layer.projection_rank = max(factor.in_features for factor in factors)
            ranks.append(layer.base_layer.projection_rank)
    matrices: list[Any] = [part for head in heads for part in head.modules() if _has_matrix(part)]
    for matrix in matrices:
        # Matrices in heads have the largest rank of an adapter.
        matrix.projection_rank = max(ranks)
    model.trained_by_m2 = tuple(name for name, p in model.named_parameters() if p.requires_grad)
    model.save_pretrained = MethodType(_save_trained, model)


def _active_factors(layer: Any) -> list[nn.Linear]:
    """Return the LoRA ``B`` factors of the active adapters of a PEFT layer."""
    return [layer.lora_B[name] for name in layer.active_adapters if name in layer.lora_B]


def _active_heads(model: nn.Module) -> list[nn.Module]:
    """Return the modules in PEFT's ``modules_to_save`` that belong to active adapters."""
    wrappers: list[Any] = [
        part for part in model.modules() if isinstance(getattr(part, "modules_to_save", None), nn.ModuleDict)
    ]
    return [w.modules_to_save[name] for w in wrappers for name in w.active_adapters if name in w.modules_to_save]


def _check_nothing_else_trains(model: nn.Module, layers: list[Any], heads: list[nn.Module]) -> None:
    """Raise an error for a trained tensor outside of adapters and PEFT heads.

    The weights under adapters may be trained too.
    """
    allowed = {id(p) for part in (*layers, *heads) for p in part.parameters()}
    allowed -= {id(p) for layer in layers for n, p in layer.base_layer.named_parameters() if n != "weight"}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in allowed:
            remedy = 'freeze it with requires_grad_(False), bias="none" and no trainable_token_indices'
            raise InvalidParameterError(
                "model", f"a trained {name}", "a model that trains adapters and heads only", remedy
            )


def _has_matrix(module: nn.Module) -> bool:
    return any(p.dim() >= 2 for p in module.parameters(recurse=False))


def _check_adapts_linear(layer: Any) -> None:
    """Raise an error unless an adapter is on a linear layer or a 2-d convolution."""
    base = layer.base_layer
    if not len(layer.lora_B) or not (isinstance(base, nn.Linear | nn.Conv2d) or is_conv1d(base)):
        kind = type(base).__name__
        remedy = f"remove the {kind} from target_modules"
        raise InvalidParameterError("model", f"an adapter of {kind}", "a model with LoRA of linear layers only", remedy)


SAVED_WEIGHTS = "m2_weights.safetensors"  # name of the file that export_peft writes


def export_peft(model: nn.Module, directory: str | Path) -> Path:
    """Save the weights that M2 (:class:`privproj.M2`) trained in a PEFT model.

    The sum of the steps of M2 does not have low rank, so an adapter cannot represent the trained weights. Tensors in
    the file have the names of the model without adapters. :func:`import_peft` loads the file. Without privproj, call
    ``base.load_state_dict(safetensors.torch.load_file(path), strict=False)``.

    Args:
        model: The trained model, from ``prepare_peft(model, "m2")``.
        directory: The folder to write to. It is created if it does not exist.

    Returns:
        The path of the file.

    Raises:
        InvalidParameterError: The model is not from ``prepare_peft(model, "m2")``.

    >>> import torch
    >>> from privproj.training import export_peft
    >>> export_peft(torch.nn.Linear(4, 2), "adapter")
    Traceback (most recent call last):
    ...
    privproj.errors.InvalidParameterError: model must be a model from prepare_peft(model, "m2"), got Linear.
    """
    names: Any = getattr(model, "trained_by_m2", None)
    if names is None:
        raise InvalidParameterError("model", type(model).__name__, 'a model from prepare_peft(model, "m2")')
    from safetensors.torch import save

    tensors, plain = dict(model.named_parameters()), _plain_names(model)
    weights = {plain[name]: tensors[name].detach().cpu().contiguous() for name in names}
    path = Path(directory) / SAVED_WEIGHTS
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: file.write(save(weights, {"format": "pt"})))
    return path


@torch.no_grad()
def import_peft(model: nn.Module, directory: str | Path) -> nn.Module:
    """Load the weights from :func:`export_peft` into the base model.

    The model may be wrapped by PEFT or not.

    Args:
        model: The base model with the weights that it had before training. It is changed in place.
        directory: The folder that :func:`export_peft` wrote to.

    Returns:
        The same model.

    Raises:
        InvalidParameterError: There is no such file, or the model lacks a tensor with a name and shape in the file. In
            both cases the model does not change.

    >>> import torch
    >>> from privproj.training import import_peft
    >>> import_peft(torch.nn.Linear(4, 2), "no/such/folder")
    Traceback (most recent call last):
    ...
    privproj.errors.InvalidParameterError: directory must be a folder from export_peft, got no/such/folder.
    """
    path = Path(directory) / SAVED_WEIGHTS
    if not path.exists():
        raise InvalidParameterError("directory", directory, "a folder from export_peft")
    from safetensors.torch import load_file

    tensors, saved = dict(model.named_parameters()), load_file(path)
    parameters = {plain: tensors[name] for name, plain in _plain_names(model).items()}
    for name, value in saved.items():
        if name not in parameters or parameters[name].shape != value.shape:
            raise InvalidParameterError(
                "model", f"a model without {name} of shape {tuple(value.shape)}", "the base model that was trained"
            )
    for name, value in saved.items():
        parameters[name].copy_(value)
    return model


def _plain_names(model: nn.Module) -> dict[str, str]:
    """Map the name of every parameter of a PEFT model to its name in the base model.

    Heads of inactive adapters keep the names that PEFT gives them.
    """
    active = {id(p) for head in _active_heads(model) for p in head.parameters()}
    plain_names = {}
    for name, parameter in model.named_parameters():
        plain = re.sub(r"\.modules_to_save\.[^.]+", "", name) if id(parameter) in active else name
        plain_names[name] = plain.replace(".base_layer", "").removeprefix("base_model.model.")
    return plain_names


def _save_trained(
    model: nn.Module, save_directory: str | Path, *saved: object, is_main_process: bool = True, **options: object
) -> None:
    """Save the weights that M2 trained, in place of ``save_pretrained`` of a PEFT model.

    The options ``state_dict`` and ``safe_serialization`` are ignored. Raises :class:`InvalidParameterError` for other
    options, or if the folder has a PEFT adapter.
    """
    # transformers' Trainer passes these two options.
    others = [name for name in options if name not in ("state_dict", "safe_serialization") and options[name]]
    if saved or others:
        raise InvalidParameterError(
            "save_pretrained", ", ".join(others) or saved, "called with a folder only, as export_peft is"
        )
    # PEFT would load the adapter.
    if (Path(save_directory) / "adapter_config.json").exists():
        raise InvalidParameterError("save_directory", save_directory, "a folder without a PEFT adapter")
    if is_main_process:
        export_peft(model, save_directory)


def _resampling(module: nn.Module, plan: Plan, drawn: Streams) -> Callable[[Any], None]:
    """Return a hook that merges LoRA adapters and draws new ones every few steps.

    Each step is accounted as DP-SGD on the ``B`` factors of the adapters.
    """
    layers = [part for part in module.modules() if isinstance(part, FrozenLoRA)]
    if not layers:
        raise InvalidParameterError("module", type(module).__name__, "a module with adapters from add_frozen_lora")

    def after_step(optimizer: Any) -> None:
        # The randomness of A does not reduce epsilon, because from the second step after a draw gradients depend on A.
        for layer in layers if optimizer.steps_done % plan.algorithm.every == 0 else ():
            layer.merge(drawn.projection.on(layer.lora_A.weight.device))
            optimizer.state.pop(layer.lora_B.weight, None)

    return after_step


def _check_trains_b(algorithm: str, trained: Trained) -> None:
    """Raise an error unless a trained tensor is a LoRA ``B`` factor or in a PEFT head.

    A head is a module that PEFT trains as a whole.
    """
    if not any(part in f".{trained.name}" for part in (".lora_B", ".modules_to_save.")):
        remedy = f"freeze {trained.name}, or wrap the module with add_frozen_lora"
        raise InvalidParameterError("algorithm", algorithm, "used with B factors and modules_to_save only", remedy)


RECORDS = (
    Algorithm(
        name="lora-fa", rank="module", check_layer=_check_trains_b, adapt=add_frozen_lora,
        summary="DP-SGD on the B factors of LoRA, the random A factors frozen.",
    ),
    Algorithm(
        name="lora-resampled", rank="module", check_layer=_check_trains_b, adapt=add_frozen_lora, step_hook=_resampling,
        summary="DP-SGD on the B factors of LoRA; the adapters are merged and resampled every few steps.",
    ),
)  # fmt: skip
