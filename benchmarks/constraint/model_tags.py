"""xgrammar's own model tag for each family."""

from __future__ import annotations

#: Format -> what `xgrammar.get_model_structural_tag` calls it (0.2.8). It has none for Mistral's, for lists
#: of Python calls, and for GLM-4.5's, which has newlines that GLM-4.7's has not.
MODEL_TAGS = {
    "kimi_k2": "kimi",
    "kimi_k2_thinking": "kimi",
    "kimi_k25": "kimi",
    "kimi_k3": "kimi_k3",
    "deepseek_v3": "deepseek_r1",
    "deepseek_v31": "deepseek_v3_1",
    "deepseek_v32": "deepseek_v3_2",
    "deepseek_v4": "deepseek_v4",
    "deepseek_v41": "deepseek_v4_1",
    "hermes": "qwen_3",
    "qwen3": "qwen_3",
    "qwen3_coder": "qwen_3_coder",
    "glm47": "glm_4_7",
    "minimax_m2": "minimax",
    "harmony": "harmony",
    "llama3_json": "llama",
}
