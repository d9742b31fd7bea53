"""Which engine can run which drafter, and why not.

Sources: vLLM 0.33 (config/speculative.py, models/registry.py), SGLang 0.5.23 (speculative/spec_info.py, models/) and
TensorRT-LLM's documentation of speculative decoding.
"""

from __future__ import annotations

from dovetail.checkpoints.drafter import Drafter
from dovetail.checkpoints.methods import OF_EMBEDDED


def cannot_run(drafter: Drafter, engine: str) -> str | None:
    """Why `engine` ("embedded", "vllm", "sglang", "trtllm") cannot run the drafter, None when it can.

    The embedded engine's own check of the configs (`plan.embedded`) finds further reasons.
    """
    if drafter.hidden is None or drafter.attention is None or drafter.vocab is None:
        return "its config leaves out hidden_size, num_attention_heads or vocab_size, so no engine can build it"
    if drafter.method in ("medusa", "mlp_speculator"):
        return f"{drafter.method} heads were dropped by engines that still run EAGLE-3"
    if engine == "embedded":
        if drafter.method not in OF_EMBEDDED:
            return "the embedded engine drafts with EAGLE-3, P-EAGLE, MTP layers inside the target and draft models"
        if drafter.method == "mtp" and drafter.config_format != "inside the target":
            return "the embedded engine drafts with MTP layers inside the target only"
    elif engine == "vllm":
        mla = drafter.attention.kind == "mla"
        if drafter.method == "domino":
            return "vLLM 0.33 has no Domino; SGLang runs it as DFLASH"
        if drafter.config_format == "speculators" and drafter.method in ("eagle3", "peagle") and mla:
            return "vLLM 0.33 reads speculators drafters of model_type llama or qwen3 only; write it as a plain config"
        if drafter.method == "peagle" and drafter.mask_token is None:
            return "vLLM 0.33 needs a P-EAGLE drafter's mask_token_id, and its config has none"
    elif engine == "sglang":
        if drafter.method == "peagle":
            return "SGLang 0.5.23 has no P-EAGLE; vLLM runs it"
    elif engine == "trtllm" and drafter.method in ("dspark", "domino", "peagle"):
        return f"TensorRT-LLM has no {drafter.method}; it runs EAGLE-3, DFlash, MTP and draft models"
    return None
