"""Ways of drafting: their names, how a config.json shows which one a checkpoint is for, and what sets them apart."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from dovetail.errors import CheckpointError

Method = Literal[
    "eagle", "eagle3", "peagle", "dflash", "dspark", "domino", "mtp", "draft_model", "medusa", "mlp_speculator"
]

#: speculators_model_type -> method. DFlash2 runs as DFlash (vLLM 0.33, transformers_utils/configs/speculators).
SPECULATORS: dict[str, Method] = {
    "eagle": "eagle",
    "eagle3": "eagle3",
    "peagle": "peagle",
    "dflash": "dflash",
    "dflash2": "dflash",
    "dspark": "dspark",
    "mtp": "mtp",
}
#: What an architecture's name holds -> method; the first that matches. Names: vLLM 0.33 models/registry.py, SGLang
#: 0.5.23 models/, SpecForge configs/.
_ARCHITECTURES: tuple[tuple[str, Method], ...] = (
    (r"P-?Eagle", "peagle"),
    (r"Eagle3", "eagle3"),
    (r"DSpark", "dspark"),
    (r"DFlash", "dflash"),
    (r"Domino", "domino"),
    (r"MTP|NextN", "mtp"),
    (r"Medusa", "medusa"),
    (r"MLPSpeculator", "mlp_speculator"),
    (r"Eagle|EAGLE", "eagle"),
)
#: Methods that draft a block at once, from features of the target's layers.
BLOCK_METHODS = ("dflash", "dspark", "domino")
#: Methods that read the target's hidden states, so that target and drafter must be made for each other.
READS_TARGET = ("eagle", "eagle3", "peagle", "mtp", "medusa", "mlp_speculator", *BLOCK_METHODS)
#: Methods of drafters that the embedded engine runs.
OF_EMBEDDED = ("eagle3", "peagle", "mtp", "draft_model")
#: Methods that look earlier text up and have no weights.
LOOKUPS = ("ngram", "suffix")
#: Of n-gram lookup, the shortest match with which tool calls were reported clean; matches of 2 corrupted about half of
#: them (https://github.com/vllm-project/vllm/issues/40875).
CLEAN_LOOKUP = 8


def method_of(raw: Mapping[str, Any], tensors: frozenset[str] | None = None) -> Method | None:
    """The method that a checkpoint with this config.json is made for, None for a model that stands alone.

    A plain Llama architecture is an EAGLE-3 head if it has a draft vocabulary or an eagle_config (yuhuili's are so
    written), and an EAGLE head if it has one layer and a tensor `fc`. Raises `CheckpointError` for a
    speculators_model_type that is not known.
    """
    if "speculators_model_type" in raw:
        kind = raw["speculators_model_type"]
        if not isinstance(kind, str) or kind not in SPECULATORS:
            raise CheckpointError(
                f"speculators_model_type is {kind!r:.80}, which is not known; those that are: {', '.join(SPECULATORS)}"
            )
        return SPECULATORS[kind]
    listed = raw.get("architectures")
    # NVIDIA's vision-language models are called Eagle too.
    names = [
        name
        for name in (listed if isinstance(listed, list) else ())
        if isinstance(name, str) and not name.endswith("ForConditionalGeneration")
    ]
    for pattern, method in _ARCHITECTURES:
        if any(re.search(pattern, name) for name in names):
            return method
    if raw.get("draft_vocab_size") is not None or raw.get("eagle_config") is not None:
        return "eagle3"
    if raw.get("num_hidden_layers") == 1 and tensors and any("fc." in f".{name}" for name in tensors):
        return "eagle"
    return None
