"""How an engine is set up: `LLMCore`'s keywords as one type, and how a model is held in words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Required, TypedDict, get_args

import torch

from dovetail.engine.attention.causal import Backend
from dovetail.engine.drafting.choose import DraftSampling
from dovetail.engine.linear import Quantization
from dovetail.engine.models.layers import Options
from dovetail.errors import EngineError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class CoreOptions(TypedDict, total=False):
    """What `LLMCore` takes beside target, drafter and tokenizer; what is absent is as there."""

    draft_tokens: Required[int]
    max_draft_tokens: int | None
    speculate_below_context: int | None
    speculate_up_to_batch: int | None
    gated: bool
    costs: Path | None
    max_batch: int
    context: int | None
    dtype: str
    threads: int | None
    cache_bytes: int
    max_batched_tokens: int
    prefix_caching: bool
    overlap: bool | None
    draft_sampling: DraftSampling
    options: Options
    draft_options: Options
    progress: Callable[[int, int], None] | None


def held(
    kv_cache_dtype: str | None = None, attention_backend: str | None = None, quantization: str | None = None
) -> Options:
    """`Options` in words; None is what they are where nothing is said, and so is a kv_cache_dtype "auto".

    Raises `EngineError` for a word that is none, with those that are.
    """
    kind = _one_of(kv_cache_dtype or "auto", ("auto", *DTYPES), "kv_cache_dtype")
    return Options(
        None if kind == "auto" else DTYPES[kind],
        _one_of(attention_backend or "auto", get_args(Backend), "attention_backend"),
        None if quantization is None else _one_of(quantization, get_args(Quantization), "quantization"),
    )


def _one_of(word: str, words: tuple[str, ...], name: str) -> Any:
    if word not in words:
        raise EngineError(f"{name} {word!r} is not one of {', '.join(words)}")
    return word
