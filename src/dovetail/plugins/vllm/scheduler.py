"""vLLM's scheduler with Dovetail's gate: `--scheduler-cls dovetail.plugins.vllm.GatedScheduler`.

vLLM drafts one number of tokens for all sequences of a step, which its scheduler names (`num_spec_tokens_to_schedule`),
and verifies what drafts the scheduler hands out. So the gate's choice is both: the number for the step is that of
whoever has most, and each sequence's drafts are cut to its own. With none, drafters that keep a cache still take in
what was decoded.

Ranks of data parallelism that share a model's experts must run as many passes of the drafter each, or wait for each
other for ever. There the number for the step is always the whole, and the gate says only how many drafts are verified,
which may differ by rank.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import vllm
from vllm import envs
from vllm.config import VllmConfig
from vllm.platforms import current_platform
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request

from dovetail.gate import Gate, Limits, UniformGate, kept
from dovetail.plugins.vllm import settings
from dovetail.plugins.vllm.report import Report
from dovetail.plugins.vllm.stepgate import Decoding, Outcome, StepGate

_log = logging.getLogger("vllm.dovetail")  # below vLLM's logger, which is the one that is shown

#: A request's own cap: a member of `vllm_xargs`.
CAP = "draft_tokens"


class GatedScheduler(Scheduler):
    """Raises `PlanError` for settings that it does not know.

    What it makes is an `AsyncScheduler` where vLLM schedules ahead.
    """

    def __new__(cls, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> GatedScheduler:
        ahead = vllm_config.scheduler_config.async_scheduling
        made: GatedScheduler = object.__new__(_Ahead if ahead and cls is GatedScheduler else cls)
        return made

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        asked = settings.read(vllm_config.additional_config)
        super().__init__(vllm_config, *args, **kwargs)
        limits = Limits(asked.speculate_below_context, asked.speculate_up_to_batch)
        self._shared_step = vllm_config.parallel_config.data_parallel_size > 1
        self._costs: Path | None = None
        gate = Gate(None, limits, self.num_spec_tokens)
        stages = vllm_config.parallel_config.pipeline_parallel_size > 1
        if self.num_spec_tokens and asked.gate == "measured" and not stages:
            batch, context = self.scheduler_config.max_num_seqs, vllm_config.model_config.max_model_len
            self._costs = _costs(vllm_config, (batch, self.num_spec_tokens, context))
            table = kept.read(self._costs, batch, self.num_spec_tokens)
            gate = UniformGate(table, limits, self.num_spec_tokens, batch=batch, context=context)
        self.gate = StepGate(gate)
        self._report = Report(self.gate, limits, str(vllm_config.parallel_config.data_parallel_index))
        if not self.num_spec_tokens:
            _log.warning("GatedScheduler has nothing to gate: vLLM was started without --speculative-config")
            return
        _log.info("gate: %s", asked)
        if stages and asked.gate == "measured":
            _log.warning("gate: steps of pipeline stages overlap and cannot be timed, so only limits hold")
        if self._shared_step:
            _log.warning(
                "gate: with data parallelism every rank drafts %d tokens at every step, and only how many of them are "
                "verified is chosen",
                self.num_spec_tokens,
            )

    def _update_after_schedule(self, scheduler_output: SchedulerOutput) -> None:
        super()._update_after_schedule(scheduler_output)
        if not self.num_spec_tokens:
            return
        names = scheduler_output.num_scheduled_tokens
        ready = [request for name in names if not (request := self.requests[name]).is_prefill_chunk]
        self.gate.scheduled(names, [self._decoding(request) for request in ready], self.requests)
        for request in ready:
            self._hand_out(request, self.gate.allowed(request.request_id))
        if ready and not self._shared_step:
            scheduler_output.num_spec_tokens_to_schedule = self.gate.depth
        elif ready and not self.gate.depth and getattr(self, "can_skip_drafts", False):
            scheduler_output.skip_drafts = True  # vLLM 0.33 asks all ranks, and does so if all say so

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        super().update_draft_token_ids(draft_token_ids)
        for name in draft_token_ids.req_ids:
            request = self.requests.get(name)
            if request is not None and request.spec_token_ids:
                # Some drafters make as many always, and all do where ranks draft alike.
                request.spec_token_ids = request.spec_token_ids[: self.gate.allowed(name)]

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, Any]:
        outcomes = _outcomes(scheduler_output, model_runner_output)
        outputs: dict[int, Any] = super().update_from_output(scheduler_output, model_runner_output)
        if self.num_spec_tokens:
            self.gate.done(outcomes, more=bool(self.running))
            self._report.step(last=not self.running)
        return outputs

    def shutdown(self) -> None:
        if self._costs is not None and self.gate.gate.table is not None:
            kept.write(self._costs, self.gate.gate.table)
        super().shutdown()

    def _decoding(self, request: Request) -> Decoding:
        # It is as long where all that was drafted for it stands, and one token was sampled.
        context = request.num_computed_tokens + 1
        extra = request.sampling_params and request.sampling_params.extra_args
        cap = extra.get(CAP) if extra else None
        if not isinstance(cap, int) or not 0 <= cap < self.num_spec_tokens:
            cap = self.num_spec_tokens
        return Decoding(request.request_id, context, cap)

    def _hand_out(self, request: Request, drafts: int) -> None:
        """Note how many drafts the next step verifies, where the scheduler does not see them before that."""


class _Ahead(GatedScheduler, AsyncScheduler):
    """Schedules the next step before this one is done: drafts stay on the device, and places are kept for them."""

    def _hand_out(self, request: Request, drafts: int) -> None:
        request.spec_token_ids = [-1] * drafts


def _outcomes(scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput) -> Mapping[str, Outcome]:
    """Of each request that had drafts and got tokens."""
    found: dict[str, Outcome] = {}
    sampled, invalid = model_runner_output.sampled_token_ids, scheduler_output.num_invalid_spec_tokens or {}
    for name in scheduler_output.num_scheduled_tokens:
        tokens = sampled[model_runner_output.req_id_to_index[name]] if sampled else []
        if len(tokens):
            drafts = len(scheduler_output.scheduled_spec_decode_tokens.get(name, ())) - invalid.get(name, 0)
            found[name] = Outcome(drafts, len(tokens) - 1)
    return found


def _costs(vllm_config: VllmConfig, sizes: tuple[int, ...]) -> Path:
    """Where what steps take is kept, below vLLM's own cache."""
    rank = vllm_config.parallel_config.data_parallel_index
    device = current_platform.get_device_name()
    name = kept.name(vllm.__version__, vllm_config.compute_hash(), device, rank, *sizes)
    return Path(envs.VLLM_CACHE_ROOT) / "dovetail" / name
