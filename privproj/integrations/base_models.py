"""Which linear layers a base model has and how many inputs each, by its ``config.json`` alone: nothing is imported.

Names are those of the model's own modules, which is what PEFT matches its targets and patterns against.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from privproj.errors import InvalidParameter

HIDDEN = "hidden"
"""The residual stream feeds the layer."""

INNER = "inner"
"""The feed-forward width feeds the layer."""

HEADS = "heads"
"""All attention heads feed the layer; ``head_dim`` may be left out."""

GIVEN_HEADS = "given heads"
"""All attention heads feed the layer; ``head_dim`` has to be given, for its default is not ``hidden / heads``."""

MOST_BLOCKS = 10_000
"""The largest number of blocks of a base model. Speed only: it keeps a mistaken file from running for hours."""

KEYS = {HIDDEN: "hidden_size", INNER: "intermediate_size", "blocks": "num_hidden_layers"}
"""The keys of ``config.json`` under which most base models have their sizes."""

GPT2_KEYS = {HIDDEN: "n_embd", INNER: "n_inner", "blocks": "n_layer"}
"""The same keys as GPT-2 calls them."""

OPT_KEYS = {**KEYS, INNER: "ffn_dim"}
"""The same keys as OPT calls them."""


@dataclass(frozen=True)
class Family:
    """Models whose blocks hold the same linear layers.

    ``types`` are the values of ``model_type``, and ``block`` says what feeds each linear layer of a block. ``stacks``
    are the names of the list of blocks, in the model with a head and in the bare one. ``outside`` are modules besides
    the blocks that some model of the family has, ``heads`` those that are linear and no output embedding. ``keys`` are
    the sizes' names in ``config.json``.
    """

    types: tuple[str, ...]
    stacks: tuple[str, ...]
    block: dict[str, str]
    outside: tuple[str, ...]
    heads: tuple[str, ...] = ()
    keys: Mapping[str, str] = field(default_factory=lambda: KEYS)

    def names(self, stack: str, config: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """``(name, what feeds it)`` of every linear layer in the blocks of the model that ``config`` describes."""
        blocks = self.size(config, "blocks")
        if blocks > MOST_BLOCKS:
            raise InvalidParameter("config.json", blocks, f"at most {MOST_BLOCKS} blocks")
        for i in range(blocks):
            for layer, kind in self.block.items():
                yield f"{stack}.{i}.{layer}", kind

    def size(self, config: dict[str, Any], kind: str) -> int:
        """How many inputs a layer of this kind has, or how many blocks there are, by the base model's configuration."""
        if kind in (HEADS, GIVEN_HEADS):
            if config.get("head_dim") is None and kind == HEADS:
                return self.size(config, HIDDEN)
            return _positive_size(config, "head_dim") * _positive_size(config, "num_attention_heads")
        name = self.keys[kind]
        if name == "n_inner" and config.get(name) is None:
            return 4 * self.size(config, HIDDEN)
        return _positive_size(config, name)


def _positive_size(config: dict[str, Any], name: str) -> int:
    """A size that has to be there; raises :class:`InvalidParameter` otherwise."""
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidParameter(f"config.json: {name}", value, "a whole number of at least 1 in the base model's file")
    return value


def _gated_block(heads: str) -> dict[str, str]:
    """A block with separate attention projections and a gated feed-forward layer."""
    attention = dict.fromkeys(("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"), HIDDEN)
    return {
        **attention,
        "self_attn.o_proj": heads,
        "mlp.gate_proj": HIDDEN,
        "mlp.up_proj": HIDDEN,
        "mlp.down_proj": INNER,
    }


DECODER = ("model.layers", "layers")
"""Names of the list of blocks of a decoder, in the model with a head and in the bare one."""

DECODER_OUTSIDE = ("lm_head", "model.embed_tokens", "embed_tokens", "score")
"""Linear layers and embeddings of a decoder outside its blocks."""


FAMILIES = (
    Family(("llama", "mistral", "qwen2"), DECODER, _gated_block(HEADS), DECODER_OUTSIDE),
    Family(("gemma", "gemma2", "qwen3"), DECODER, _gated_block(GIVEN_HEADS), DECODER_OUTSIDE),
    Family(
        ("phi3",),
        DECODER,
        {
            "self_attn.qkv_proj": HIDDEN,
            "self_attn.o_proj": HEADS,
            "mlp.gate_up_proj": HIDDEN,
            "mlp.down_proj": INNER,
        },
        DECODER_OUTSIDE,
    ),
    Family(
        ("phi",),
        DECODER,
        {
            "self_attn.q_proj": HIDDEN,
            "self_attn.k_proj": HIDDEN,
            "self_attn.v_proj": HIDDEN,
            "self_attn.dense": HEADS,
            "mlp.fc1": HIDDEN,
            "mlp.fc2": INNER,
        },
        DECODER_OUTSIDE,
    ),
    Family(
        ("opt",),
        ("model.decoder.layers", "decoder.layers"),
        {
            "self_attn.q_proj": HIDDEN,
            "self_attn.k_proj": HIDDEN,
            "self_attn.v_proj": HIDDEN,
            "self_attn.out_proj": HIDDEN,
            "fc1": HIDDEN,
            "fc2": INNER,
        },
        ("lm_head", "score", "model.decoder.embed_tokens", "decoder.embed_tokens"),
        ("model.decoder.project_in", "model.decoder.project_out", "decoder.project_in", "decoder.project_out"),
        OPT_KEYS,
    ),
    Family(
        ("gpt_neox",),
        ("gpt_neox.layers", "layers"),
        {
            "attention.query_key_value": HIDDEN,
            "attention.dense": HIDDEN,
            "mlp.dense_h_to_4h": HIDDEN,
            "mlp.dense_4h_to_h": INNER,
        },
        ("lm_head", "embed_out", "gpt_neox.embed_in", "embed_in", "score"),
    ),
    Family(
        ("gpt2",),
        ("transformer.h", "h"),
        {"attn.c_attn": HIDDEN, "attn.c_proj": HIDDEN, "mlp.c_fc": HIDDEN, "mlp.c_proj": INNER},
        ("lm_head", "score", "transformer.wte", "transformer.wpe", "wte", "wpe"),
        keys=GPT2_KEYS,
    ),
    Family(
        ("bert", "roberta"),
        ("bert.encoder.layer", "roberta.encoder.layer", "encoder.layer"),
        {
            "attention.self.query": HIDDEN,
            "attention.self.key": HIDDEN,
            "attention.self.value": HIDDEN,
            "attention.output.dense": HIDDEN,
            "intermediate.dense": HIDDEN,
            "output.dense": INNER,
        },
        ("classifier", "cls.predictions.decoder", "lm_head.decoder"),
        ("bert.pooler.dense", "pooler.dense", "cls.predictions.transform.dense", "lm_head.dense", "classifier.dense"),
    ),
)
"""Names and sizes as transformers builds these models; a test builds each and compares."""


UNUSUAL = {
    "is_encoder_decoder": "an encoder and a decoder, which hold different blocks",
    "add_cross_attention": "cross-attention in its blocks",
    "num_experts": "experts in its blocks",
    "num_local_experts": "experts in its blocks",
    "n_routed_experts": "experts in its blocks",
    "text_config": "several models in one",
}
"""Keys of a configuration that say that the blocks are not those of the table."""


def possible_families(config: dict[str, Any], causal: bool) -> list[tuple[Family, str]]:
    """The families and stacks that this configuration may stand for; ``causal`` says that the model has its head.

    Without a ``model_type`` every family is possible, and the caller has to find that all which fit agree. Raises
    :class:`InvalidParameter` for an unknown model type and for blocks that are not those of the table.
    """
    kind = config.get("model_type")
    remedy = "save the adapter with PEFT (adapter_model.safetensors names every layer) or give the layers with --layer"
    for key, what in UNUSUAL.items():
        if config.get(key) not in (None, False, 0):
            raise InvalidParameter(f"config.json: {key}", str(config[key])[:60], f"a base model without {what}", remedy)
    families = [family for family in FAMILIES if kind is None or kind in family.types]
    if not families:
        known = ", ".join(name for family in FAMILIES for name in family.types)
        raise InvalidParameter("config.json: model_type", kind, f"one of {known}", remedy)
    return [(family, stack) for family in families for stack in (family.stacks[:1] if causal else family.stacks)]
