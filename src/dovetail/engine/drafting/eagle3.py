"""EAGLE-3 (https://arxiv.org/abs/2503.01840): mostly one layer, which reads three hidden states of the target.

chain.py has the alignment. A feature is ``fc`` of the joined residual streams that enter the target's `aux_layers`. The
streams may be normed before that, together (`norm_before_fc`) or each by itself (`fc_norm`). The first layer reads
``cat(input_layernorm(embedding), hidden_norm(feature))``; its residual is the feature, or the normed feature with
`norm_before_residual`. The next step reads, without `fc`, the hidden state before the final norm (with `norm_output`:
after it).

Layers are Llama's or Qwen3's, or DeepSeek-V2's with a dense MLP. Embeddings and head are the target's if the checkpoint
has none.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.engine.config import DeepseekV3Config, Eagle3Config
from dovetail.engine.drafting.base import Head
from dovetail.engine.linear import Linear, cast
from dovetail.engine.models import deepseek_v3, llama
from dovetail.engine.models.base import ForwardBatch, Model
from dovetail.engine.models.decoder import Layer
from dovetail.engine.models.layers import Options, Prefixed, RMSNorm, rotary_table


class OwnHead:
    """A head of the drafter's own."""

    def __init__(self, linear: Linear) -> None:
        self._linear = linear

    def logits(self, hidden: Tensor) -> Tensor:
        return cast(self._linear(hidden))

    def best(self, hidden: Tensor) -> Tensor:
        return self.logits(hidden).argmax(-1)


class Eagle3:
    """The network of EAGLE-3."""

    def __init__(
        self,
        config: Eagle3Config,
        weights: Mapping[str, Tensor],
        target: Model,
        *,
        rows: int,
        context: int,
        dtype: torch.dtype,
        options: Options,
    ) -> None:
        layer = config.layer

        def norm(name: str) -> RMSNorm:
            return RMSNorm(weights[name].to(dtype), layer.rms_norm_eps)

        def linear(name: str) -> Linear:
            return options.linear(weights[name].to(dtype))

        self.aux_layers = config.aux_layers
        own = weights.get("embed_tokens.weight")
        self._embed = target.embed_tokens if own is None else own.to(dtype)
        self._joined_norm = norm("input_norm.weight") if config.norm_before_fc else None
        self._stream_norms = (
            [norm(f"fc_norm.{i}.weight") for i in range(len(self.aux_layers))] if config.fc_norm else []
        )
        self._fc = linear("fc.weight")
        self._hidden_norm = norm("layers.0.hidden_norm.weight")
        self._normed_residual = config.norm_before_residual
        self._layers: list[Layer] = []
        for i in range(layer.num_hidden_layers):
            of_layer = Prefixed(weights, f"layers.{i}.")
            if isinstance(layer, DeepseekV3Config):
                self._layers.append(deepseek_v3.load_layer(of_layer, layer, True, rows, dtype, options))
            else:
                self._layers.append(llama.load_layer(of_layer, layer, rows, dtype, options))
        self._norm = norm("norm.weight")
        self._norm_output = config.norm_output
        self._head: Head = OwnHead(linear("lm_head.weight")) if "lm_head.weight" in weights else target
        self._table = rotary_table(layer.rope, layer.rotary_width, context).unsqueeze(1)

    def enter(self, features: Tensor) -> Tensor:
        if self._joined_norm is not None:
            features = self._joined_norm(features)
        if self._stream_norms:
            streams = features.chunk(len(self._stream_norms), -1)
            features = torch.cat([norm(stream) for norm, stream in zip(self._stream_norms, streams, strict=True)], -1)
        return self._fc(features)

    def run(self, batch: ForwardBatch, hidden: Tensor) -> Tensor:
        table = self._table[batch.positions]
        normed = self._hidden_norm(hidden)
        stream = normed if self._normed_residual else hidden
        for i, (input_norm, attention, post_norm, mlp) in enumerate(self._layers):
            x = input_norm(F.embedding(batch.tokens, self._embed) if i == 0 else stream)
            stream = attention.add(batch, x if i else torch.cat((x, normed), -1), table, stream)
            stream = mlp.add(post_norm(stream), stream)
        return self._norm(stream) if self._norm_output else stream

    def logits(self, hidden: Tensor) -> Tensor:
        return self._head.logits(hidden if self._norm_output else self._norm(hidden))

    def best(self, hidden: Tensor) -> Tensor:
        return self._head.best(hidden if self._norm_output else self._norm(hidden))
