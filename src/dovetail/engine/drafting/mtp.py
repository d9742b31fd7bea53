"""Multi-token prediction in DeepSeek-V3's layout (https://arxiv.org/abs/2412.19437, section 2.2), chained.

The layer reads ``eh_proj(cat(enorm(embedding), hnorm(feature)))``, where the feature is the target's hidden state after
its final norm. The next step reads the layer's output after `shared_head.norm`, as in vLLM and SGLang. chain.py has the
alignment. Embeddings and head are the target's; the copies that a checkpoint may have are not read. Of several MTP
layers only the first is used, for every step, as in vLLM.

vLLM replaces the embedding of slot 0 by zeros; this does not, like the paper and SGLang.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from dovetail.engine.config import MTPConfig
from dovetail.engine.models.base import ForwardBatch, Model
from dovetail.engine.models.deepseek_v3 import load_layer
from dovetail.engine.models.layers import Options, Prefixed, RMSNorm, rotary_table


class MTP:
    """The network of an MTP layer."""

    def __init__(
        self,
        config: MTPConfig,
        weights: Mapping[str, Tensor],
        target: Model,
        *,
        rows: int,
        context: int,
        dtype: torch.dtype,
        options: Options,
    ) -> None:
        shape = config.target

        def norm(name: str) -> RMSNorm:
            return RMSNorm(weights[config.prefix + name].to(dtype), shape.rms_norm_eps)

        self.aux_layers = config.aux_layers
        self._target = target
        self._embedding_norm, self._hidden_norm = norm("enorm.weight"), norm("hnorm.weight")
        self._eh_proj = options.linear(weights[config.prefix + "eh_proj.weight"].to(dtype))
        self._layer = load_layer(Prefixed(weights, config.prefix), shape, False, rows, dtype, options)
        self._norm = norm("shared_head.norm.weight")
        self._table = rotary_table(shape.rope, shape.rotary_width, context).unsqueeze(1)

    def enter(self, features: Tensor) -> Tensor:
        return features

    def run(self, batch: ForwardBatch, hidden: Tensor) -> Tensor:
        table = self._table[batch.positions]
        embedded = self._embedding_norm(F.embedding(batch.tokens, self._target.embed_tokens))
        stream = self._eh_proj(torch.cat((embedded, self._hidden_norm(hidden)), -1))
        input_norm, attention, post_norm, mlp = self._layer
        stream = attention.add(batch, input_norm(stream), table, stream)
        return self._norm(mlp.add(post_norm(stream), stream))

    def logits(self, hidden: Tensor) -> Tensor:
        return self._target.logits(hidden)

    def best(self, hidden: Tensor) -> Tensor:
        return self._target.best(hidden)
