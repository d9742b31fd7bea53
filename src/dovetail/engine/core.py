"""The engine without threads: add requests, step, cancel. One caller at a time.

core = LLMCore.load(target, drafter, tokenizer, EngineSettings(draft_tokens=3))
core.add("a", Completion(prompt=(1, 2, 3), max_tokens=16))
while core.live:
    for request_id, outcome in core.step():
        ...
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Self

import torch

from dovetail.completion import Completion, EngineInfo, MetricSample
from dovetail.engine import profile
from dovetail.engine.cache.tables import Tables
from dovetail.engine.drafting.base import Drafter
from dovetail.engine.loading import Models, load_models
from dovetail.engine.overlap import Overlap
from dovetail.engine.request import Request
from dovetail.engine.scheduler import Scheduler
from dovetail.engine.settings import EngineSettings
from dovetail.engine.step import Counters, Outcome, StepLoop
from dovetail.gate import CostModel, Gate, Limits, cost_file
from dovetail.tokens import Tokenizer


class LLMCore:
    """A target, perhaps a drafter, and their requests. The thread that loads it is the one that steps it.

    With gate "measured" the core first times a few hundred milliseconds of steps, unless it finds their times in
    `cost_folder`, where `close` writes them. Where the steps cannot be timed, the core logs that and drafts
    `draft_tokens` always.
    """

    def __init__(self, models: Models, tokenizer: Tokenizer, settings: EngineSettings) -> None:
        self.models = models
        self._tokenizer = tokenizer
        self._settings = settings
        self.overlap = Overlap(settings.async_scheduling)
        self._most = 0 if models.drafter is None else settings.most_draft_tokens
        self._cost_file = self._cost_file_path()
        costs = self._costs()
        self._draft_tokens = min(settings.draft_tokens, self._most) if costs is None else self._most
        limits = Limits(settings.speculate_below_context, settings.speculate_up_to_batch)
        known = () if settings.acceptance is None else (settings.acceptance,)
        gate = Gate(costs, limits, self._draft_tokens, default=settings.draft_tokens, acceptance=known)
        tables = Tables(models.pool, share=settings.prefix_caching)
        self.loop = self._step_loop(tables, models.drafter, gate, settings.max_batched_tokens)
        self.scheduler = self.loop.scheduler

    @classmethod
    def load(
        cls,
        target: Path,
        drafter: Path | str | None,
        tokenizer: Tokenizer,
        settings: EngineSettings,
        progress: Callable[[int, int], None] | None = None,
    ) -> Self:
        """Load a target and a drafter. `load_models` explains the arguments and errors."""
        return cls(load_models(target, drafter, tokenizer, settings, progress), tokenizer, settings)

    def _step_loop(self, tables: Tables, drafter: Drafter | None, gate: Gate, max_batched_tokens: int) -> StepLoop:
        max_batch = self._settings.max_batch
        return StepLoop(
            self.models.target,
            Scheduler(tables, drafter, gate, max_batch=max_batch, max_batched_tokens=max_batched_tokens),
            self._tokenizer,
            max_batch=max_batch,
            draft_tokens=self._most,
            overlap=self.overlap,
        )

    def _cost_file_path(self) -> Path | None:
        """The file of this core's cost model, or None. Its name is made from everything that step times depend on."""
        settings, models = self._settings, self.models
        if settings.gate == "off" or settings.cost_folder is None or not self._most:
            return None
        types = (settings.dtype, settings.quantization, settings.kv_cache_dtype, settings.draft_kv_cache_dtype)
        attention = (settings.attention_backend, settings.draft_attention_backend)
        kernels = ((settings.kernels, torch.get_num_threads()), attention)
        sizes = (models.context, settings.max_batch, self._most, settings.sizes)
        return settings.cost_folder / cost_file.name(profile.HOW, models.sources, types, kernels, sizes)

    def _costs(self) -> CostModel | None:
        """The gate's model of step times: from its file, or measured. None without a gate, or if measuring fails."""
        settings, models = self._settings, self.models
        if settings.gate == "off" or models.drafter is None or not self._most:
            return None
        drafter = profile.RandomDrafts(models.drafter, models.target.vocab_size)
        whole_batch = max(settings.max_batched_tokens, settings.max_batch * (self._most + 1))
        timed = self._step_loop(Tables(models.pool, share=False), drafter, Gate(None, Limits(), 0), whole_batch)
        return profile.costs(self._cost_file, timed, settings.max_batch, self._most, models.context)

    def close(self) -> None:
        """End the second thread, if one runs (a later step would start another), and write the cost file.

        Ends the other ranks too, if there are any: a later step raises `EngineError`.
        """
        self.overlap.close()
        self.models.close()
        costs = self.scheduler.gate.learned()
        if self._cost_file is not None and costs is not None:
            cost_file.write(self._cost_file, costs)

    @property
    def info(self) -> EngineInfo:
        models = self.models
        vocab_size = models.target.vocab_size
        return EngineInfo(
            models.context,
            vocab_size,
            models.eos_ids,
            self._draft_tokens,
            prompt_logprobs=True,
            reports_steps=True,
            salts_cache=True,
        )

    @property
    def live(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self.scheduler.running or self.scheduler.ready or self.scheduler.waiting)

    def add(self, request_id: str, completion: Completion) -> None:
        """Queue a completion. Raises `InvalidRequest`, `ContextExceeded` or `EngineBusy`."""
        most = self._draft_tokens
        if not completion.gated and completion.draft_tokens is None:
            most = min(self._settings.draft_tokens, most)
        self.scheduler.add(
            Request(
                request_id,
                completion,
                context=self.models.context,
                vocab_size=self.models.target.vocab_size,
                draft_tokens=most,
                eos_ids=self.models.eos_ids,
            )
        )

    def cancel(self, request_id: str) -> None:
        """Forget a request and free its blocks; nothing happens if it has ended."""
        self.scheduler.remove(request_id)

    def cancel_running(self) -> list[str]:
        """Forget all running requests, or the first waiting one if no request runs, and return their ids.

        Called after a step that failed, so that the step is not tried again with the same requests.
        """
        running = self.scheduler.running or [*self.scheduler.ready, *self.scheduler.waiting][:1]
        ids = [request.id for request in running]
        for request_id in ids:
            self.scheduler.remove(request_id)
        return ids

    def step(self) -> list[Outcome]:
        """Run one step: for each running request the tokens it added, or the error that ended it."""
        with torch.inference_mode():
            return self.loop.step()

    def counters(self) -> Counters:
        """Totals since start."""
        return self.loop.counters

    def gauges(self) -> list[MetricSample]:
        """Current numbers and totals since start, by the names of the metrics."""
        pool, counters, totals = self.scheduler.tables.pool, self.loop.counters, self.scheduler.totals
        gate = self.scheduler.gate.counts()
        numbers = {
            "running": len(self.scheduler.running) + len(self.scheduler.ready),
            "waiting": len(self.scheduler.waiting),
            "free_blocks": pool.free,
            "total_blocks": pool.total,
            "preemptions_total": totals.preemptions,
            "prompt_tokens_total": totals.prompt_tokens,
            "prompt_tokens_cached_total": totals.prompt_tokens_cached,
            "steps_total": counters.steps,
            "drafted_total": counters.drafted,
            "accepted_total": counters.accepted,
            "forced_total": counters.forced,
            "forced_accepted_total": counters.forced_accepted,
            "drafting_failures_total": counters.failed,
            "gate_draft_tokens": gate.draft_tokens,
        }
        samples = [MetricSample(name, {}, number) for name, number in numbers.items()]
        for reason, count in gate.decisions.items():
            samples.append(MetricSample("gate_decisions_total", {"reason": reason}, count))
        for (context, position), (drafted, accepted) in gate.by_position.items():
            labels = {"position": str(position), "drafter": self.models.method, "context": str(context)}
            samples.append(MetricSample("drafted_per_position_total", labels, drafted))
            samples.append(MetricSample("accepted_per_position_total", labels, accepted))
        return samples

    def check_integrity(self) -> None:
        """Raise `EngineError` when blocks are lost or belong to a request that ended."""
        self.scheduler.check_integrity()
