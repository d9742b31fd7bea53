"""Whether a model divides over so many GPUs: heads, experts, layers, context, and the number of GPUs itself."""

from __future__ import annotations

import math

from dovetail.checkpoints.attention import Attention
from dovetail.checkpoints.drafter import Drafter
from dovetail.errors import PlanError
from dovetail.plan.case import Advice, Case
from dovetail.plan.methods import LOOKUPS, READS_TARGET

#: Architectures whose hidden states vLLM 0.33 hands on between pipeline stages (supports_aux_hidden_states_over_pp).
_HANDED_ON = ("Llama", "Qwen2", "MiniMaxM3", "DeepseekV4", "KimiK3", "Sarvam")
GPUS = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
SIZES = (*GPUS, "decode_context_parallel_size")


def check(case: Case) -> list[Advice]:
    """What there is to know about the sizes. Raises `PlanError` for sizes that cannot be."""
    target, drafter = case.target, case.drafter
    if case.engine == "embedded":
        for name in SIZES:
            if case.size(name) > 1:
                raise PlanError(f"{case.said(name)} but the embedded engine runs on one device: --engine vllm")
    used = math.prod(case.size(name) for name in GPUS)
    _enough_gpus(case, used)
    tensor = case.size("tensor_parallel_size")
    _heads(target.attention, tensor, f"{case.said('tensor_parallel_size')} but {target.path} has")
    _experts(case, tensor)
    if case.size("pipeline_parallel_size") > target.layers:
        raise PlanError(
            f"{case.said('pipeline_parallel_size')} but {target.path} has {target.layers} layers, one a stage at the "
            "least: ask for fewer stages"
        )
    _context(case, tensor)
    advice = []
    if case.method not in (None, *LOOKUPS):
        _draft_size(case, tensor)
    if drafter is not None and drafter.attention is not None:
        _draft(case, drafter, drafter.attention, tensor)
        advice += _staged(case, drafter)
    if case.gpus is not None and case.engine != "embedded" and used < case.gpus.count:
        advice.append(Advice("note", "gpus", f"{used} of {case.gpus} are used"))
    return advice


def _enough_gpus(case: Case, needed: int) -> None:
    if case.gpus is not None and needed > case.gpus.count:
        asked = ", ".join(case.said(name) for name in GPUS if case.size(name) > 1)
        raise PlanError(
            f"{asked}: that takes {needed} GPUs and there are {case.gpus}: ask for smaller sizes, or say --gpus"
        )


def _heads(attention: Attention, tensor: int, asked: str, way_out: str = "") -> None:
    """Heads are divided; key-value heads too, or repeated (vLLM 0.33: config/model.py, layers/linear.py)."""
    heads, kv = attention.heads, attention.kv_heads
    if heads % tensor:
        raise PlanError(
            f"{asked} {heads} attention heads, which it does not divide: one of {_divisors(heads)}{way_out}"
        )
    if attention.kind not in ("mla", "compressed") and kv % tensor and tensor % kv:
        fitting = [size for size in _divisors(heads) if not kv % size or not size % kv]
        raise PlanError(
            f"{asked} {kv} key-value heads, which it neither divides nor is a multiple of: one of {fitting}{way_out}"
        )


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, min(number, 1024) + 1) if number % size == 0]


def _experts(case: Case, tensor: int) -> None:
    """Each expert is cut lengthwise, and a cut must not go through a block that shares a scale.

    vLLM 0.33, quantization/utils/fp8_utils.py: validate_fp8_block_shape_moe. Qwen3-235B-A22B-FP8 fails so on 8 GPUs.
    """
    experts, stored = case.target.experts, case.target.quantization
    if experts is None:
        return
    unit = 1
    if stored is not None and stored.covers(f"model.layers.{case.target.layers // 2}.mlp.experts.0.down_proj"):
        unit = (stored.block[0] if stored.block else stored.group) or 1
    if experts.width % (tensor * unit) and tensor > 1:
        blocks = f" in blocks of {unit} that share a scale ({stored.kind})" if stored is not None and unit > 1 else ""
        fitting = [size for size in _divisors(case.target.attention.heads) if experts.width % (size * unit) == 0]
        raise PlanError(
            f"{case.said('tensor_parallel_size')} but the experts of {case.target.path} are {experts.width} wide"
            f"{blocks}, which it does not divide: one of {fitting}"
        )


def _context(case: Case, tensor: int) -> None:
    """Decode-context parallelism uses the tensor-parallel GPUs again, for tokens where heads are repeated.

    vLLM 0.33: config/parallel.py, and config/model.py for attention that is not MLA.
    """
    attention, context = case.target.attention, case.size("decode_context_parallel_size")
    if context == 1:
        return
    asked = case.said("decode_context_parallel_size")
    beside = f"tensor_parallel_size is {tensor}"
    if tensor % context:
        raise PlanError(f"{asked} but {beside}, which it must divide: one of {_divisors(tensor)}")
    if attention.kind in ("mla", "compressed"):
        return
    copies = max(tensor // attention.kv_heads, 1)
    if context > copies:
        raise PlanError(
            f"{asked} but {beside}, which leaves {copies} of each of the {attention.kv_heads} key-value heads "
            f"({attention.kind}) of {case.target.path}: at most {copies}"
        )
    sharing = attention.heads // attention.kv_heads
    if sharing % context:
        raise PlanError(
            f"{asked} but {sharing} heads of {case.target.path} share a key-value head, which it must divide: one of "
            f"{[size for size in _divisors(sharing) if size <= copies]}"
        )


def _draft_size(case: Case, tensor: int) -> None:
    """A drafter runs whole on every GPU or divided as the target is (vLLM 0.33: config/speculative.py)."""
    its = case.value("draft_tensor_parallel_size") or tensor
    if its not in (1, tensor):
        raise PlanError(
            f"{case.said('draft_tensor_parallel_size')} but tensor_parallel_size is {tensor}: a drafter runs whole on "
            f"every GPU or divided like its target: 1 or {tensor}"
        )


def _draft(case: Case, drafter: Drafter, attention: Attention, tensor: int) -> None:
    _heads(
        attention,
        case.value("draft_tensor_parallel_size") or tensor,
        f"{case.said('tensor_parallel_size')} but {drafter.path} has",
        "; or --draft-tensor-parallel-size 1",
    )


def _staged(case: Case, drafter: Drafter) -> list[Advice]:
    architecture = case.target.text_architecture
    if (
        case.size("pipeline_parallel_size") == 1
        or drafter.method not in READS_TARGET
        or architecture.startswith(_HANDED_ON)
    ):
        return []
    return [
        Advice(
            "warning",
            "pipeline_parallel_size",
            f"{drafter.method} reads hidden states, which vLLM 0.33 hands from stage to stage for some models only; "
            f"{architecture} is none of them",
        )
    ]
