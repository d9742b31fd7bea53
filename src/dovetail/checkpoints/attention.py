"""A transformer's attention as config.json declares it: heads, latents, windows, linear layers."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from dovetail.checkpoints.fields import Fields


class Attention(msgspec.Struct, frozen=True, kw_only=True):
    """One layer's attention, and how many layers have another kind. Widths are in elements.

    `kind` describes the layers whose cache grows with every token. MLA caches `kv_lora_rank` + `rope_dim` elements per
    token, however many heads there are (DeepSeek-V2, https://arxiv.org/abs/2405.04434). `index_dim` is the width of
    the keys by which DeepSeek-V3.2's sparse attention selects tokens. "compressed" is DeepSeek-V4's attention, whose
    cache size is not computed.
    """

    kind: Literal["mla", "gqa", "mqa", "mha", "compressed"]
    heads: int
    kv_heads: int
    head_dim: int
    q_lora_rank: int | None = None
    kv_lora_rank: int | None = None
    rope_dim: int | None = None
    value_dim: int | None = None
    index_dim: int | None = None
    index_heads: int = 0
    window: int | None = None
    windowed_layers: int = 0
    linear_layers: int = 0

    @property
    def word(self) -> str:
        """The attention in a few words: "mla", "gqa", "hybrid (36 linear layers, gqa)"."""
        if self.linear_layers:
            return f"hybrid ({self.linear_layers} linear layers, {self.kind})"
        if self.windowed_layers:
            return f"{self.kind}, {self.windowed_layers} layers with a window of {self.window}"
        return f"{self.kind}, sparse" if self.index_dim else self.kind

    def parameters(self, hidden: int, width: int | None = None) -> tuple[int, int]:
        """Parameters of one layer: how many tensor parallelism divides, and how many every GPU holds whole.

        `width` is the input width of the projections when it is not `hidden`: an EAGLE-3 layer reads two vectors.
        Latent down-projections and the indexer are not divided (vLLM 0.33, models/deepseek_v2.py: ReplicatedLinear).
        """
        width = width or hidden
        if self.kind == "mla":
            rank, rope = self.kv_lora_rank or 0, self.rope_dim or 0
            keys, values = self.head_dim, self.value_dim or self.head_dim
            latent = width * (rank + rope) + width * (self.q_lora_rank or 0)
            index_input = self.q_lora_rank or width
            latent += (self.index_dim or 0) * (width + index_input * self.index_heads) + width * self.index_heads
            up = (self.q_lora_rank or width) * self.heads * keys
            up += rank * self.heads * (max(keys - rope, 0) + values)
            return up + self.heads * values * hidden, latent
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return width * (queries + 2 * keys) + queries * hidden, 0


def read_attention(fields: Fields, layers: int) -> Attention:
    """The attention of a model with `layers` layers."""
    heads = fields.size("num_attention_heads", "n_head")
    kv_heads = fields.number("num_key_value_heads", "num_kv_heads", "n_head_kv", "num_attention_groups") or heads
    linear, windowed = _layer_kinds(fields, layers)
    window = fields.number("sliding_window", "attention_chunk_size")
    common: dict[str, Any] = {
        "heads": heads,
        "kv_heads": kv_heads,
        "linear_layers": linear,
        "windowed_layers": windowed if window else 0,
        "window": window if windowed else None,
    }
    if fields.raw.get("compress_ratios") or fields.raw.get("compress_rates"):
        return Attention(kind="compressed", head_dim=fields.size("head_dim"), **common)
    if fields.number("kv_lora_rank"):
        rope_dim = fields.number("qk_rope_head_dim") or 0
        return Attention(
            kind="mla",
            head_dim=fields.size("qk_nope_head_dim") + rope_dim,
            q_lora_rank=fields.number("q_lora_rank") or None,
            kv_lora_rank=fields.number("kv_lora_rank"),
            rope_dim=rope_dim,
            value_dim=fields.size("v_head_dim"),
            index_dim=fields.number("index_head_dim") if fields.number("index_topk") else None,
            index_heads=fields.number("index_n_heads") or 0,
            **common,
        )
    if heads % kv_heads:
        raise fields.error(f"num_key_value_heads is {kv_heads}, which does not divide the {heads} num_attention_heads")
    kind: Literal["mha", "mqa", "gqa"] = "mha" if kv_heads == heads else "mqa" if kv_heads == 1 else "gqa"
    return Attention(kind=kind, head_dim=_head_dim(fields, heads), **common)


def _head_dim(fields: Fields, heads: int) -> int:
    declared = fields.number("head_dim", "kv_channels")
    if declared:
        return declared
    if fields.raw.get("model_type") == "qwen3":
        return 128  # the default of transformers' Qwen3Config; other families divide the hidden size
    hidden = fields.hidden()
    if hidden < heads:
        raise fields.error(f"num_attention_heads is {heads} but hidden_size is {hidden}, so a head has no width")
    return hidden // heads


def _layer_kinds(fields: Fields, layers: int) -> tuple[int, int]:
    """How many layers keep a state of fixed size (linear attention, convolution, Mamba), and how many have a window.

    Every family declares this in its own way.
    """
    kinds = fields.items("layer_types", "layers_block_type")
    if kinds is not None:
        check_one_per_layer(fields, "layer_types", len(kinds), layers)
        windowed = sum(kind in ("sliding_attention", "chunked_attention") for kind in kinds)
        return sum(kind in ("linear_attention", "conv", "mamba", "recurrent") for kind in kinds), windowed
    linear = fields.block("linear_attn_config")  # Kimi Linear and K3
    if linear is not None:
        numbers = set(linear.numbers("kda_layers") or ())
        if len(numbers) > layers:
            raise linear.error(f"kda_layers has {len(numbers)} layers, num_hidden_layers is {layers}")
        return len(numbers), 0
    letters = fields.text("hybrid_override_pattern")  # Nemotron-H: M a Mamba layer, - a feed-forward, * attention
    if letters is not None:
        check_one_per_layer(fields, "hybrid_override_pattern", len(letters), layers)
        return sum(letter in "M-E" for letter in letters), 0
    interval = fields.number("full_attention_interval")  # Qwen3-Next
    if interval:
        return layers - layers // interval, 0
    interval = fields.number("sliding_window_pattern")  # Gemma 3
    if interval:
        return 0, layers - layers // interval
    return 0, 0


def check_one_per_layer(fields: Fields, name: str, entries: int, layers: int) -> None:
    """Raises `CheckpointError` unless the list `name` has one entry for each layer."""
    if entries != layers:
        raise fields.error(f"{name} has {entries} entries, num_hidden_layers is {layers}")
