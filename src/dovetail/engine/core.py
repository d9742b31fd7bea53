"""The engine without threads: add requests, step, cancel. One caller at a time.

core = LLMCore(target, drafter, tokenizer, draft_tokens=3)
core.add("a", Completion(prompt=(1, 2, 3), max_tokens=16))
while core.live:
    for request_id, outcome in core.step():
        ...
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import torch

from dovetail.completion import Completion, EngineInfo
from dovetail.engine import profile
from dovetail.engine.ahead import Ahead
from dovetail.engine.attention.causal import PREFILL
from dovetail.engine.cache.blocks import BlockPool
from dovetail.engine.cache.tables import Tables
from dovetail.engine.checkpoint import inspect_target, load_tensors
from dovetail.engine.config import Eagle3Config, MTPConfig
from dovetail.engine.drafting.base import Drafter
from dovetail.engine.drafting.choose import DraftSampling
from dovetail.engine.drafting.deferred import Deferred
from dovetail.engine.drafting.forced import Forced
from dovetail.engine.drafting.load import DrafterCheckpoint, inspect_drafter, load_drafter
from dovetail.engine.drafting.lookup import Lookup
from dovetail.engine.models.layers import Options
from dovetail.engine.models.registry import build_model
from dovetail.engine.options import DTYPES
from dovetail.engine.request import Request
from dovetail.engine.scheduler import Scheduler
from dovetail.engine.step import Counters, Outcome, StepLoop
from dovetail.errors import CheckpointError, EngineError
from dovetail.gate import CostTable, Gate, Limits, kept
from dovetail.tokens import Tokenizer

_BLOCK_SIZE = 16
#: A longer window would be taken for a part of a prompt.
MAX_DRAFT_TOKENS = PREFILL - 1
_PLAIN = Options()
#: Stands for a drafter's folder where the sequence is looked up in itself.
LOOKUP = "lookup"


class LLMCore:
    """A target, perhaps a drafter, and their requests.

    `context` is the most tokens a sequence may have (default: what the checkpoint declares). The KV caches hold
    `max_batch` sequences of full length, or as many tokens as `cache_bytes` allow, but always one full sequence.
    A step computes at most `max_batched_tokens`, so a long prompt is computed in parts while others decode.
    `prefix_caching` lets a prompt find what others before it began with. `drafter` is a folder, "mtp" for what the
    target's own checkpoint holds, "lookup" for what the sequence itself says, or None: nothing drafts. One that is a
    model has a cache of its own, of as many tokens, and `draft_options` of its own. Any of them drafts what a
    constraint forces. `overlap` says whether masks and the next step are prepared in a second thread while the model
    computes: always, never, or (None) where there is enough to prepare. `progress(done, total)` is told of the bytes of
    the target that are read.
    With `gated`, what pays is drafted, from 0 to `max_draft_tokens` (default: `draft_tokens`); else always
    `draft_tokens`, or `max_draft_tokens` if that is less. Nothing is drafted for sequences of `speculate_below_context`
    tokens or more, nor where more than `speculate_up_to_batch` decode. What pays follows from what steps take, which is
    measured in a few hundred milliseconds, unless it is found in the folder `costs`, where `close` keeps it. Where it
    cannot be measured, that is logged, and `gated` is off.
    `threads` is torch's thread count for the calling thread, which must be the one that steps (default: half the
    cores). Raises `CheckpointError` before anything loads when a checkpoint is not whole or does not fit.
    """

    def __init__(
        self,
        target: Path,
        drafter: Path | str | None,
        tokenizer: Tokenizer,
        *,
        draft_tokens: int,
        max_draft_tokens: int | None = None,
        speculate_below_context: int | None = None,
        speculate_up_to_batch: int | None = None,
        gated: bool = False,
        costs: Path | None = None,
        max_batch: int = 16,
        context: int | None = None,
        dtype: str = "float32",
        threads: int | None = None,
        cache_bytes: int = 1 << 30,
        max_batched_tokens: int = 512,
        prefix_caching: bool = True,
        overlap: bool | None = None,
        draft_sampling: DraftSampling = "probabilistic",
        options: Options = _PLAIN,
        draft_options: Options = _PLAIN,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        torch.set_num_threads(_default_threads() if threads is None else threads)
        found = inspect_target(target)
        found_drafter = None if drafter is None or drafter == LOOKUP else inspect_drafter(drafter, found)
        config = found.config
        if dtype not in DTYPES:
            raise EngineError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
        most = draft_tokens if max_draft_tokens is None else max_draft_tokens
        for name, value in (("draft_tokens", draft_tokens), ("max_draft_tokens", most)):
            if not 0 <= value <= MAX_DRAFT_TOKENS:
                raise EngineError(f"{name} must be from 0 to {MAX_DRAFT_TOKENS}, found {value}")
        limits = Limits(speculate_below_context, speculate_up_to_batch)
        for name, size in (
            ("speculate_below_context", limits.below_context),
            ("speculate_up_to_batch", limits.up_to_batch),
            ("max_batch", max_batch),
            ("max_batched_tokens", max_batched_tokens),
        ):
            if size is not None and size < 1:
                raise EngineError(f"{name} must be 1 or more, found {size}")
        if tokenizer.vocab_size > config.vocab_size:
            raise CheckpointError(
                f"{target}: the tokenizer has {tokenizer.vocab_size} ids, the model's vocab_size is {config.vocab_size}"
            )
        context = config.max_position_embeddings if context is None else context
        if not 2 <= context <= config.max_position_embeddings:
            raise EngineError(
                f"a context of {context} tokens is not within 2 and the model's {config.max_position_embeddings}"
            )
        width = _row_bytes(config.cache_width * config.num_hidden_layers, DTYPES[dtype], options)
        if found_drafter is not None:
            width += _row_bytes(found_drafter.cache_width, DTYPES[dtype], draft_options)
        rows = _cache_rows(width, context, max_batch, cache_bytes)
        self._context = context
        if drafter is None or not draft_tokens:
            most = 0
        self._eos_ids = found.eos_ids
        pool, draft_pool = (BlockPool(rows // _BLOCK_SIZE, _BLOCK_SIZE) for _ in range(2))
        with torch.inference_mode():
            self._model = build_model(
                config,
                load_tensors(found.tensors, config.expected_tensors(), progress),
                rows=rows,
                context=context,
                dtype=DTYPES[dtype],
                aux_layers=() if found_drafter is None else found_drafter.aux_layers,
                options=options,
            )
            self._drafter: Drafter | None = Forced(Lookup()) if drafter == LOOKUP else None
            if found_drafter is not None:
                loaded = load_drafter(
                    found_drafter,
                    self._model,
                    draft_pool,
                    context=context,
                    dtype=DTYPES[dtype],
                    options=draft_options,
                    prefix_caching=prefix_caching,
                    draft_sampling=draft_sampling,
                )
                self._drafter = Forced(Deferred(loaded))
        self._ahead = Ahead(overlap)
        tables = Tables(pool, share=prefix_caching)

        def loop(
            tables: Tables, drafter: Drafter | None, gate: Gate, eos_ids: tuple[int, ...], budget: int
        ) -> StepLoop:
            return StepLoop(
                self._model,
                drafter,
                Scheduler(tables, drafter, gate, max_batch=max_batch, max_batched_tokens=budget),
                tokenizer,
                eos_ids=frozenset(eos_ids),
                max_batch=max_batch,
                draft_tokens=most,
                ahead=self._ahead,
            )

        table: CostTable | None = None
        self._costs: Path | None = None
        if gated and self._drafter is not None and most:
            if costs is not None:
                models = (config, drafter if found_drafter is None else found_drafter.config)
                held = (dtype, options, draft_options, torch.get_num_threads())
                self._costs = costs / kept.name(profile.HOW, models, held, (context, max_batch, most))
            aimless = profile.Aimless(self._drafter, config.vocab_size)
            everything = max(max_batched_tokens, max_batch * (most + 1))
            timed = loop(Tables(pool, share=False), aimless, Gate(None, Limits(), 0), (), everything)
            table = profile.costs(self._costs, timed, max_batch, most, context)
        self._draft_tokens = min(draft_tokens, most) if table is None else most
        self._gate = Gate(table, limits, self._draft_tokens)
        self._loop = loop(tables, self._drafter, self._gate, found.eos_ids, max_batched_tokens)
        self._scheduler = self._loop.scheduler
        self._kind = _kind(drafter, found_drafter)

    def close(self) -> None:
        """End the second thread, if one runs (a later step would start another), and keep what was learned of steps."""
        self._ahead.close()
        if self._costs is not None and self._gate.table is not None:
            kept.write(self._costs, self._gate.table)

    @property
    def info(self) -> EngineInfo:
        return EngineInfo(self._context, self._model.vocab_size, self._eos_ids, self._draft_tokens)

    @property
    def live(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self._scheduler.running or self._scheduler.ready or self._scheduler.waiting)

    def add(self, request_id: str, completion: Completion) -> None:
        """Queue a completion. Raises `InvalidRequest`, `ContextExceeded` or `EngineBusy`."""
        self._scheduler.add(
            Request(
                request_id,
                completion,
                context=self._context,
                vocab_size=self._model.vocab_size,
                draft_tokens=self._draft_tokens,
            )
        )

    def cancel(self, request_id: str) -> None:
        """Forget a request and free its blocks; nothing happens when it has ended already."""
        self._scheduler.remove(request_id)

    def cancel_running(self) -> list[str]:
        """Forget every running request, or the first in line where none runs, so that a step that failed is not tried
        again with the same; returns their ids."""
        running = self._scheduler.running or [*self._scheduler.ready, *self._scheduler.waiting][:1]
        ids = [request.id for request in running]
        for request_id in ids:
            self._scheduler.remove(request_id)
        return ids

    def step(self) -> list[Outcome]:
        """Run one step: for each running request the tokens it added, or the error that ended it."""
        with torch.inference_mode():
            return self._loop.step()

    def counters(self) -> Counters:
        """Totals since start."""
        return self._loop.counters

    def gauges(self) -> dict[str, float]:
        """What is going on now, and totals, by name."""
        pool, counters, totals = self._scheduler.tables.pool, self._loop.counters, self._scheduler.totals
        gauges: dict[str, float] = {
            "running": len(self._scheduler.running) + len(self._scheduler.ready),
            "waiting": len(self._scheduler.waiting),
            "free_blocks": pool.free,
            "total_blocks": pool.total,
            "preemptions_total": totals.preemptions,
            "prompt_tokens_total": totals.prompt_tokens,
            "prompt_tokens_cached_total": totals.prompt_tokens_found,
            "steps_total": counters.steps,
            "drafted_total": counters.drafted,
            "accepted_total": counters.accepted,
            "forced_total": counters.forced,
            "forced_accepted_total": counters.forced_accepted,
            "drafting_failures_total": counters.failed,
        }
        return gauges | self._gate.counts(self._kind)

    def check_integrity(self) -> None:
        """Raise `EngineError` when blocks are lost or held by a request that is gone."""
        self._scheduler.check_integrity()


def _kind(drafter: Path | str | None, found: DrafterCheckpoint | None) -> str:
    """What drafts, in the plan's word for it."""
    if found is None:
        return "suffix" if drafter == LOOKUP else "none"
    if isinstance(found.config, Eagle3Config):
        return "eagle3" if found.config.mask_token_id is None else "peagle"
    return "mtp" if isinstance(found.config, MTPConfig) else "draft_model"


def _default_threads() -> int:
    """Half the cores: torch's threads wait for each other by spinning, after every op. On two cores a second thread
    takes a third off a large product while its core is idle; with anything else there, steps took 4 to 190 times as
    long.
    """
    return max(1, (os.cpu_count() or 1) // 2)


def _row_bytes(width: int, dtype: torch.dtype, options: Options) -> int:
    return width * (options.kv_dtype or dtype).itemsize


def _cache_rows(row_bytes: int, context: int, max_batch: int, cache_bytes: int) -> int:
    """Rows of KV cache: whole blocks for `max_batch` full sequences, within `cache_bytes`, but at least for one."""
    blocks = -(-context // _BLOCK_SIZE)
    return max(blocks, min(blocks * max_batch, cache_bytes // (row_bytes * _BLOCK_SIZE))) * _BLOCK_SIZE
