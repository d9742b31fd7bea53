"""Checks that a model can be divided over the GPUs: heads, experts, layers, context and the number of GPUs."""

from __future__ import annotations

import math

from dovetail.checkpoints.attention import Attention
from dovetail.checkpoints.drafter import Drafter
from dovetail.checkpoints.methods import LOOKUPS, READS_TARGET
from dovetail.engine.config import target_config
from dovetail.engine.parallel.sizes import Sizes, indivisible
from dovetail.errors import CheckpointError, PlanError
from dovetail.plan.candidate import Advice, Candidate

#: Architectures whose hidden states vLLM 0.33 passes between pipeline stages (supports_aux_hidden_states_over_pp).
_PASSED_ON = ("Llama", "Qwen2", "MiniMaxM3", "DeepseekV4", "KimiK3", "Sarvam")
GPUS = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
SIZES = (*GPUS, "decode_context_parallel_size")
#: The degrees that the embedded engine has.
OF_EMBEDDED = ("tensor_parallel_size", "decode_context_parallel_size")


def check(plan: Candidate) -> list[Advice]:
    """Check the degrees of parallelism, and return what there is to know. Raises `PlanError` for impossible ones."""
    target, drafter = plan.target, plan.drafter
    if plan.engine == "embedded":
        reason = why_not_embedded(plan)
        if reason is not None:
            raise PlanError(f"{reason}: --engine vllm")
        return []
    used = math.prod(plan.size(name) for name in GPUS)
    _enough_gpus(plan, used)
    tensor = plan.size("tensor_parallel_size")
    _heads(target.attention, tensor, f"{plan.text('tensor_parallel_size')} but {target.path} has")
    _experts(plan, tensor)
    if plan.size("pipeline_parallel_size") > target.layers:
        raise PlanError(
            f"{plan.text('pipeline_parallel_size')} but {target.path} has {target.layers} layers, and a stage needs "
            "one: use fewer stages"
        )
    _context(plan, tensor)
    advice = []
    if plan.method not in (None, *LOOKUPS):
        _draft_size(plan, tensor)
    if drafter is not None and drafter.attention is not None:
        _draft(plan, drafter, drafter.attention, tensor)
        advice += _staged(plan, drafter)
    if plan.gpus is not None and used < plan.gpus.count:
        advice.append(Advice("note", "gpus", f"{used} of {plan.gpus} are used"))
    return advice


def why_not_embedded(plan: Candidate) -> str | None:
    """Why the embedded engine cannot divide the model like this, None if it can."""
    for name in SIZES:
        if plan.size(name) > 1 and name not in OF_EMBEDDED:
            return f"{plan.text(name)} but the embedded engine has {' and '.join(OF_EMBEDDED)} only"
    if plan.size("draft_tensor_parallel_size") > 1:
        return f"{plan.text('draft_tensor_parallel_size')} but the embedded engine has the drafter whole on one rank"
    sizes = embedded_sizes(plan)
    if sizes.tensor == sizes.context == 1:
        return None
    try:
        reason = indivisible(target_config(plan.target), sizes)
    except CheckpointError as error:
        return error.message
    named = [plan.text(name) for name in OF_EMBEDDED if plan.size(name) > 1]
    return None if reason is None else f"{', '.join(named)}, but {reason} ({plan.target.path})"


def embedded_sizes(plan: Candidate) -> Sizes:
    """How the embedded engine divides the target of `plan`."""
    return Sizes(*(plan.size(name) for name in (*OF_EMBEDDED, "context_interleave")))


def _enough_gpus(plan: Candidate, needed: int) -> None:
    if plan.gpus is not None and needed > plan.gpus.count:
        degrees = ", ".join(plan.text(name) for name in GPUS if plan.size(name) > 1)
        raise PlanError(
            f"{degrees}: this needs {needed} GPUs and there are {plan.gpus}: use smaller degrees, or set --gpus"
        )


def _heads(attention: Attention, tensor: int, subject: str, way_out: str = "") -> None:
    """Check that heads can be divided, and key-value heads divided or repeated (vLLM 0.33: config/model.py)."""
    heads, kv = attention.heads, attention.kv_heads
    if heads % tensor:
        raise PlanError(
            f"{subject} {heads} attention heads, which it does not divide: one of {_divisors(heads)}{way_out}"
        )
    if attention.kind not in ("mla", "compressed") and kv % tensor and tensor % kv:
        fitting = [size for size in _divisors(heads) if not kv % size or not size % kv]
        raise PlanError(
            f"{subject} {kv} key-value heads, which it neither divides nor is a multiple of: one of {fitting}{way_out}"
        )


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, min(number, 1024) + 1) if number % size == 0]


def _experts(plan: Candidate, tensor: int) -> None:
    """Every expert is divided over the GPUs, but not within a block of weights that shares a scale.

    Source: vLLM 0.33, quantization/utils/fp8_utils.py, validate_fp8_block_shape_moe. It refuses Qwen3-235B-A22B-FP8 on
    8 GPUs.
    """
    experts, stored = plan.target.experts, plan.target.quantization
    if experts is None:
        return
    unit = 1
    if stored is not None and stored.covers(f"model.layers.{plan.target.layers // 2}.mlp.experts.0.down_proj"):
        unit = (stored.block[0] if stored.block else stored.group) or 1
    if experts.width % (tensor * unit) and tensor > 1:
        blocks = f" in blocks of {unit} that share a scale ({stored.kind})" if stored is not None and unit > 1 else ""
        fitting = [size for size in _divisors(plan.target.attention.heads) if experts.width % (size * unit) == 0]
        raise PlanError(
            f"{plan.text('tensor_parallel_size')} but the experts of {plan.target.path} are {experts.width} wide"
            f"{blocks}, which it does not divide: one of {fitting}"
        )


def _context(plan: Candidate, tensor: int) -> None:
    """Decode-context parallelism divides tokens over the tensor-parallel GPUs that hold copies of the same heads.

    Source: vLLM 0.33, config/parallel.py, and config/model.py for attention that is not MLA.
    """
    attention, context = plan.target.attention, plan.size("decode_context_parallel_size")
    if context == 1:
        return
    degree = plan.text("decode_context_parallel_size")
    tensor_text = f"tensor_parallel_size is {tensor}"
    if tensor % context:
        raise PlanError(f"{degree} but {tensor_text}, which it must divide: one of {_divisors(tensor)}")
    if attention.kind in ("mla", "compressed"):
        return
    copies = max(tensor // attention.kv_heads, 1)
    if context > copies:
        raise PlanError(
            f"{degree} but {tensor_text}, which leaves {copies} of each of the {attention.kv_heads} key-value "
            f"heads ({attention.kind}) of {plan.target.path}: at most {copies}"
        )
    sharing = attention.heads // attention.kv_heads
    if sharing % context:
        raise PlanError(
            f"{degree} but {sharing} heads of {plan.target.path} share a key-value head, which it must divide: one of "
            f"{[size for size in _divisors(sharing) if size <= copies]}"
        )


def _draft_size(plan: Candidate, tensor: int) -> None:
    """A drafter runs whole on every GPU, or divided like the target (vLLM 0.33: config/speculative.py)."""
    size = plan.value("draft_tensor_parallel_size") or tensor
    if size not in (1, tensor):
        raise PlanError(
            f"{plan.text('draft_tensor_parallel_size')} but tensor_parallel_size is {tensor}: a drafter runs whole on "
            f"every GPU or divided like its target: 1 or {tensor}"
        )


def _draft(plan: Candidate, drafter: Drafter, attention: Attention, tensor: int) -> None:
    _heads(
        attention,
        plan.value("draft_tensor_parallel_size") or tensor,
        f"{plan.text('tensor_parallel_size')} but {drafter.path} has",
        "; or --draft-tensor-parallel-size 1",
    )


def _staged(plan: Candidate, drafter: Drafter) -> list[Advice]:
    architecture = plan.target.text_architecture
    if (
        plan.size("pipeline_parallel_size") == 1
        or drafter.method not in READS_TARGET
        or architecture.startswith(_PASSED_ON)
    ):
        return []
    return [
        Advice(
            "warning",
            "pipeline_parallel_size",
            f"{drafter.method} reads hidden states, which vLLM 0.33 passes between stages for some models only, and "
            f"not for {architecture}",
        )
    ]
