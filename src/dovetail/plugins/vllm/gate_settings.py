"""The settings of the gate inside vLLM: `--additional-config '{"dovetail": {…}}'`; nothing here imports vLLM.

vLLM copies its config to every rank on every node, so the settings get there too.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from dovetail.errors import PlanError
from dovetail.gate import CostModel, Gate, Limits, UniformGate
from dovetail.gate.vllm_lengths import captured_lengths

#: Dovetail's key in vLLM's additional config.
MEMBER = "dovetail"


class GateSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """They have the names and meanings of the plan's settings. vLLM's num_speculative_tokens is the most drafts.

    `draft_tokens`: the drafter's own number, which the gate begins with; None is the most. `acceptance`: how likely a
    draft is to be accepted when those before it were, as far as the drafter's recipe has measured it.
    """

    gate: Literal["measured", "off"] = "measured"
    speculate_below_context: Annotated[int, Meta(ge=1)] | None = None
    speculate_up_to_batch: Annotated[int, Meta(ge=1)] | None = None
    draft_tokens: Annotated[int, Meta(ge=1)] | None = None
    acceptance: Annotated[float, Meta(ge=0, le=1)] | None = None

    @property
    def limits(self) -> Limits:
        return Limits(self.speculate_below_context, self.speculate_up_to_batch)

    def gate_for(self, costs: CostModel | None, most: int) -> Gate:
        """A gate that allows up to `most` drafts, the same for all sequences. Without `costs` only limits apply."""
        if costs is None:
            return Gate(None, self.limits, most)
        acceptance = () if self.acceptance is None else (self.acceptance,)
        return UniformGate(costs, self.limits, most, default=self.draft_tokens, acceptance=acceptance)


def read(additional_config: Any) -> GateSettings:
    """The settings in `additional_config`. Raises `PlanError`, which names the bad setting."""
    member = additional_config.get(MEMBER, {}) if isinstance(additional_config, dict) else {}
    try:
        return msgspec.convert(member, GateSettings)
    except msgspec.ValidationError as error:
        raise PlanError(
            f"--additional-config: {MEMBER}: {error}; it may hold {', '.join(GateSettings.__struct_fields__)}"
        ) from None


def graph_advice(vllm_config: Any, settings: GateSettings, most: int, captured: Sequence[int] | None) -> str | None:
    """What to add to vLLM's command, so that each number of drafts has graphs; None if there is nothing to add.

    `most`: vLLM's num_speculative_tokens. `captured`: the number of drafts for each batch size from 0 (unused) to
    max_num_seqs, by vLLM's list; None without a list.

    vLLM captures the graphs of a decode step by tokens per request: one token and `num_speculative_tokens` drafts, and
    each number in `num_speculative_tokens_per_batch_size`. A step with another number runs without a graph.
    """
    batch, parallel = vllm_config.scheduler_config.max_num_seqs, vllm_config.parallel_config
    measured = settings.gate == "measured" and parallel.pipeline_parallel_size == 1
    needed = {*range(most + 1)} if measured else {0, most} if settings.limits != Limits() else set()
    missing = sorted(needed - {*(captured[1:] if captured else (most,))})
    if (
        not missing
        or not vllm_config.compilation_config.cudagraph_mode.has_full_cudagraphs()
        # The older model runner gives up whole graphs if it gets a list. Data-parallel ranks get none from vLLM.
        or not vllm_config.use_v2_model_runner
        or parallel.data_parallel_size > 1
    ):
        return None
    enough = max(batch, len(needed))
    more = "" if enough == batch else f", and --max-num-seqs {enough}"
    member = json.dumps(captured_lengths(most, enough, measured=measured))[1:-1]
    return (
        f"gate: steps with {', '.join(map(str, missing))} drafts have no CUDA graph and take several times as long: "
        f"add {member} to --speculative-config{more}"
    )
