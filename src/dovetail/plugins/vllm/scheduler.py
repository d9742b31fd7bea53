"""vLLM's scheduler with Dovetail's gate: `--scheduler-cls dovetail.plugins.vllm.GatedScheduler`.

vLLM drafts the same number of tokens for all sequences of a step: the scheduler's `num_spec_tokens_to_schedule`. It
verifies the drafts that the scheduler hands out. So the gate's choice is applied twice: the step drafts the largest
number of any sequence, and the drafts of each sequence are cut to its own number. A drafter with a cache still runs
over the decoded tokens when nothing is drafted.

Data-parallel ranks that share a model's experts must run equally many passes of the drafter, or they wait for each
other for ever. There every step drafts the full number, and the gate chooses only how many drafts are verified, which
may differ by rank.
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

from dovetail.gate import CostModel, Gate, Limits, cost_file
from dovetail.plugins.vllm import gate_settings, graphs
from dovetail.plugins.vllm.gate_report import GateReport
from dovetail.plugins.vllm.step_gate import Decoding, Outcome, StepGate

_log = logging.getLogger("vllm.dovetail")  # a child of vLLM's logger, because vLLM shows only its own

#: The key in `vllm_xargs` for a request's own cap on drafts.
CAP = "draft_tokens"


class GatedScheduler(Scheduler):
    """vLLM's scheduler with the gate. An instance is an `AsyncScheduler` if vLLM schedules ahead.

    Raises `PlanError` for bad settings.
    """

    def __new__(cls, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> GatedScheduler:
        ahead = vllm_config.scheduler_config.async_scheduling
        scheduler: GatedScheduler = object.__new__(_Ahead if ahead and cls is GatedScheduler else cls)
        return scheduler

    def __init__(self, vllm_config: VllmConfig, *args: Any, **kwargs: Any) -> None:
        settings = gate_settings.read(vllm_config.additional_config)
        super().__init__(vllm_config, *args, **kwargs)
        self._shared_step = vllm_config.parallel_config.data_parallel_size > 1
        self._makes_all = self._shared_step or graphs.makes_all_drafts(vllm_config)
        self._costs: Path | None = None
        costs: CostModel | None = None
        stages = vllm_config.parallel_config.pipeline_parallel_size > 1
        if self.num_spec_tokens and settings.gate == "measured" and not stages:
            batch, context = self.scheduler_config.max_num_seqs, vllm_config.model_config.max_model_len
            self._costs = _costs(vllm_config, (batch, self.num_spec_tokens, context))
            costs = cost_file.read(self._costs) or CostModel.unmeasured()
        numbers = graphs.available(vllm_config, self.num_spec_tokens, self.dynamic_sd_lookup)
        always = numbers is not None and 0 not in numbers(1)
        gate = (
            Gate(None, Limits(), self.num_spec_tokens)
            if always
            else settings.gate_for(costs, self.num_spec_tokens, numbers)
        )
        self.gate = StepGate(gate, uniform=numbers is not None)
        self._report = GateReport(self.gate, settings.limits, str(vllm_config.parallel_config.data_parallel_index))
        if not self.num_spec_tokens:
            _log.warning("GatedScheduler has no effect: vLLM was started without --speculative-config")
            return
        _log.info("gate: %s", settings)
        if always and (settings.gate == "measured" or settings.limits != gate_settings.NO_LIMITS):
            _log.warning(
                "gate: only steps with %d drafts have CUDA graphs, and others take several times as long, so every "
                "step drafts %d: the gate and its limits have no effect here",
                self.num_spec_tokens,
                self.num_spec_tokens,
            )
        if stages and settings.gate == "measured":
            _log.warning("gate: steps of pipeline stages overlap and cannot be timed, so only the limits apply")
        if self._shared_step:
            _log.warning(
                "gate: with data parallelism every rank drafts %d tokens at every step, and the gate chooses only "
                "how many of them are verified",
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
        if ready and not self._makes_all:
            scheduler_output.num_spec_tokens_to_schedule = self.gate.depth
        elif ready and not self.gate.depth and getattr(self, "can_skip_drafts", False):
            scheduler_output.skip_drafts = True  # vLLM 0.33 skips drafting if all ranks set this

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        super().update_draft_token_ids(draft_token_ids)
        for name in draft_token_ids.req_ids:
            request = self.requests.get(name)
            if request is not None and request.spec_token_ids:
                # Some drafters always make the full number, and all do with data parallelism.
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
        costs = self.gate.gate.learned()
        if self._costs is not None and costs is not None:
            cost_file.write(self._costs, costs)
        super().shutdown()

    def _decoding(self, request: Request) -> Decoding:
        # The length if all of its drafts are accepted, and the sampled token.
        context = request.num_computed_tokens + 1
        extra = request.sampling_params and request.sampling_params.extra_args
        cap = extra.get(CAP) if extra else None
        if not isinstance(cap, int) or not 0 <= cap < self.num_spec_tokens:
            cap = self.num_spec_tokens
        kind = "constrained" if request.use_structured_output else ""
        return Decoding(request.request_id, context, cap, kind)

    def _hand_out(self, request: Request, drafts: int) -> None:
        """Reserve places for the drafts that the next step verifies, if the scheduler does not see them before."""


class _Ahead(GatedScheduler, AsyncScheduler):
    """Schedules the next step before this one is done. Drafts stay on the device, so it reserves places for them."""

    def _hand_out(self, request: Request, drafts: int) -> None:
        request.spec_token_ids = [-1] * drafts


def _outcomes(scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput) -> Mapping[str, Outcome]:
    """The outcome of each request that got tokens in this step."""
    outcomes: dict[str, Outcome] = {}
    sampled, invalid = model_runner_output.sampled_token_ids, scheduler_output.num_invalid_spec_tokens or {}
    for name in scheduler_output.num_scheduled_tokens:
        tokens = sampled[model_runner_output.req_id_to_index[name]] if sampled else []
        if len(tokens):
            drafts = len(scheduler_output.scheduled_spec_decode_tokens.get(name, ())) - invalid.get(name, 0)
            outcomes[name] = Outcome(drafts, len(tokens) - 1)
    return outcomes


def _costs(vllm_config: VllmConfig, sizes: tuple[int, ...]) -> Path:
    """The file for the measured step times, below vLLM's own cache folder."""
    rank = vllm_config.parallel_config.data_parallel_index
    device = current_platform.get_device_name()
    name = cost_file.name(vllm.__version__, vllm_config.compute_hash(), device, rank, *sizes)
    return Path(envs.VLLM_CACHE_ROOT) / "dovetail" / name
