"""What is measured: the demo pair and a Llama of middle size, each as an engine for every drafter and one without.

All engines of a model share its weights and its cache, so that many sequences of a long context have room; only one of
them may run at a time.
"""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import dovetail
from benchmarks.engine import shapes
from benchmarks.engine.cases import DEMO, Case, demo_target
from benchmarks.speculation.frozen import Frozen
from benchmarks.speculation.synthetic import Script, Synthetic
from dovetail.completion import Completion, Sampling
from dovetail.engine import loading
from dovetail.engine.attention.gqa import HeadCache
from dovetail.engine.cache.tables import Tables
from dovetail.engine.core import LLMCore
from dovetail.engine.drafting.base import Drafter
from dovetail.engine.drafting.chain import ChainDrafter
from dovetail.engine.settings import LOOKUP, EngineSettings
from dovetail.tokens import Tokenizer
from training.corpus import sample
from training.data import HELD_OUT, encode

#: The fewest tokens of a prompt: a context of 0 is a prompt and nothing before it.
_SHORT = 16
#: New tokens that a sequence has room for.
ROOM = 256
_DRAFT_VOCAB = 8000
_CHUNK = 1 << 20


@dataclass
class Model:
    """`off` has no drafter; `drafting` are gated engines by the names of their drafters: with a gate that has no table
    one drafts a fixed number. `prompts(count, context)` are as many others, of that many tokens (at context 0: of a
    few). `script` says what the synthetic drafter is right about.
    """

    title: str
    contexts: tuple[int, ...]
    prompts: Callable[[int, int], list[list[int]]]
    off: Frozen
    drafting: dict[str, Frozen]
    script: Script | None = None

    def begin(self, prompts: Sequence[Sequence[int]], drafters: Sequence[str]) -> dict[str | None, Frozen]:
        """Engines in which each of these sequences has its first token, by drafter; None: off. The sequences' names are
        "0", "1", …

        `off` comes first: what it computes of a prompt is in the cache for engines whose sequences count as computed.
        """
        return {name: _begin(self.off if name is None else self.drafting[name], prompts) for name in (None, *drafters)}


def _begin(frozen: Frozen, prompts: Sequence[Sequence[int]]) -> Frozen:
    core = frozen.thaw()
    for number, prompt in enumerate(prompts):
        core.add(str(number), Completion(tuple(prompt), ROOM, sampling=Sampling(temperature=0.0)))
    waiting = {str(number) for number in range(len(prompts))}
    while waiting:
        waiting -= {name for name, _ in core.step()}
    return Frozen(core, (Script,))


def demo(folder: Path, drafts: int, batch: int, contexts: Sequence[int], drafters: Sequence[str]) -> Model:
    """The demo pair, whose context ends at 4,096, with its EAGLE-3 drafter and with lookup, on held-out conversations.

    For a longer context other conversations stand before the one that is answered. A step may compute any number of
    tokens, so that all prompts are computed in one and all sequences begin to decode together.
    """
    target = demo_target(folder)
    tokenizer = dovetail.tokenizer(target)
    sources: dict[str, Path | str] = {"eagle3": DEMO / "drafter", "lookup": LOOKUP}
    made = _Maker(target, tokenizer, drafts, batch, context=4096, budget=batch * 4096)
    longest = 4096 - ROOM
    return Model(
        "demo",
        tuple(dict.fromkeys(min(context, longest) for context in contexts)),
        lambda count, context: _conversations(target, tokenizer, count, context),
        made.core(None),
        # Lookup has nothing to compute of a prompt.
        {name: made.core(sources[name], begun=sources[name] == LOOKUP) for name in drafters},
    )


def middle(
    folder: Path,
    drafts: int,
    batch: int,
    contexts: Sequence[int],
    config: dict[str, Any] = shapes.MIDDLE,
    draft_vocab: int = _DRAFT_VOCAB,
) -> Model:
    """A Llama of random weights with a synthetic drafter, on random tokens.

    A long context is not computed: its sequences begin as if they had been, over rows of random numbers, of the size
    that computed ones have. Every row is written once before, because memory that never was is read faster than any
    other. So steps take what they would take; the text means nothing, as with random weights anyway.
    """
    target = shapes.middle(folder, config)
    drafter = shapes.eagle3(folder / "middle-eagle3", config, draft_vocab)
    made = _Maker(
        target,
        dovetail.tokenizer(target),
        drafts,
        batch,
        context=max(*contexts, _SHORT) + ROOM,
        budget=max(512, batch * (drafts + 1)),
        script=Script(shapes.successors(config)),
    )
    return Model(
        "Llama 154 M",
        tuple(contexts),
        _random_prompts(config["vocab_size"]),
        made.core(None, begun=True),
        {"synthetic": made.core(drafter, begun=True)},
        made.script,
    )


class _Maker:
    """Engines over one target; where there is a `script`, what they draft is synthetic, and all caches are filled."""

    def __init__(
        self,
        target: Path,
        tokenizer: Tokenizer,
        drafts: int,
        batch: int,
        *,
        context: int,
        budget: int,
        script: Script | None = None,
    ) -> None:
        self.script = script
        self._target, self._tokenizer, self._drafts = target, tokenizer, drafts
        self._sizes: dict[str, Any] = {"max_batch": batch, "context": context, "max_batched_tokens": budget}
        self._model: Any = None

    def core(self, drafter: Path | str | None, begun: bool = False) -> Frozen:
        """An engine, as it is after start. `begun`: its sequences count as computed when they begin."""
        with self._shared():
            core = LLMCore.load(
                self._target,
                drafter,
                self._tokenizer,
                EngineSettings(
                    draft_tokens=min(3, self._drafts),
                    max_draft_tokens=self._drafts,
                    gate="measured",
                    prefix_caching=False,
                    kv_cache_memory_bytes=1 << 50,
                    **self._sizes,
                ),
            )
        if begun:
            core.scheduler.tables = _Begun(core.scheduler.tables.pool, share=False)
        return Frozen(core, (Script,))

    @contextmanager
    def _shared(self) -> Iterator[None]:
        with (
            mock.patch.object(loading, "build_model", self._build(loading.build_model)),
            mock.patch.object(loading, "load_drafter", self._load(loading.load_drafter)),
        ):
            yield

    def _build(self, build: Callable[..., Any]) -> Callable[..., Any]:
        def built(*args: Any, aux_layers: tuple[int, ...], **options: Any) -> Any:
            if self._model is None:
                self._model = build(*args, aux_layers=(), **options)
                if self.script is not None:
                    _fill(self._model._layers)
            model = copy.copy(self._model)
            model._aux_layers = aux_layers
            return model

        return built

    def _load(self, load: Callable[..., Drafter]) -> Callable[..., Drafter]:
        def loaded(*args: Any, **options: Any) -> Drafter:
            drafter = load(*args, **options)
            if self.script is None:
                return drafter
            assert isinstance(drafter, ChainDrafter)
            _fill(drafter._network._layers)  # type: ignore[attr-defined]
            drafter._tables = _Begun(drafter._tables.pool, share=False)
            return Synthetic(drafter, self.script)

        return loaded


class _Begun(Tables):
    """Tables of sequences that count as computed when they begin, but for the last token."""

    def begin(self, owner: str, tokens: Sequence[int], limit: int | None = None, salt: bytes = b"") -> int:
        super().begin(owner, tokens, limit, salt)
        return len(tokens) - 1 if limit is None else limit


def _fill(layers: Sequence[Any]) -> None:
    """Write every row of these layers' caches: random numbers of the size that computed ones have."""
    with torch.inference_mode():
        numbers = torch.randn(_CHUNK, generator=torch.Generator().manual_seed(0))
        for layer in layers:
            cache: HeadCache = layer[1]._cache
            for tensor in (cache.keys, cache.values):
                for part in tensor.view(-1).split(_CHUNK):
                    part.copy_(numbers[: len(part)])


def _random_prompts(vocab: int) -> Callable[[int, int], list[list[int]]]:
    def prompts(count: int, context: int) -> list[list[int]]:
        draw = random.Random(f"{count} {context}")
        return [draw.choices(range(3, vocab), k=max(context, _SHORT)) for _ in range(count)]

    return prompts


def _conversations(target: Path, tokenizer: Tokenizer, count: int, context: int) -> list[list[int]]:
    """Prompts whose own answers are as long as a run may need; for a context, what came before is cut to it."""
    prompts = Case("", target, None, 0, None).prompts(count, 0, 60)
    if not context:
        return prompts
    others = (encode(one, tokenizer)[0] for one in map(sample, itertools.count(HELD_OUT + 5_000_000)))
    found = []
    for prompt in prompts:
        before: list[int] = []
        while len(before) + len(prompt) < context:
            before += next(others)
        found.append((before + prompt)[-context:])
    return found
