"""Methods of drafting, and how a checkpoint's config.json shows which one it is made for."""

from __future__ import annotations

import re
from typing import Literal

from dovetail.checkpoints.fields import Fields

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
#: A pattern in an architecture's name -> method; the first match wins. Names: vLLM 0.33 models/registry.py and
#: config/speculative.py (the assistants), SGLang 0.5.23 models/, SpecForge configs/.
_ARCHITECTURES: tuple[tuple[str, Method], ...] = (
    (r"P-?[Ee]agle", "peagle"),
    (r"Eagle3", "eagle3"),
    (r"DSpark", "dspark"),
    (r"DFlash|MuseGlimmerAssistant", "dflash"),
    (r"Domino", "domino"),
    (r"MTP|NextN|Gemma4(Unified)?Assistant", "mtp"),
    (r"Medusa", "medusa"),
    (r"MLPSpeculator", "mlp_speculator"),
    (r"Eagle|EAGLE", "eagle"),
)
#: Methods that draft a block of tokens at once, from hidden states of the target's layers.
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


def is_drafter(config: Fields) -> bool:
    """Whether the config is a drafter's. An unknown kind of speculators model counts as a drafter."""
    return "speculators_model_type" in config.raw or drafting_method(config) is not None


def drafting_method(config: Fields, tensors: frozenset[str] | None = None) -> Method | None:
    """The method that a checkpoint with this config.json is made for, None for a model that generates by itself.

    A plain Llama architecture is an EAGLE-3 head when it has a draft vocabulary or an eagle_config, as the heads of
    yuhuili have, and an EAGLE head when it has one layer and a tensor `fc`. Raises `CheckpointError` for an unknown
    speculators_model_type.
    """
    if "speculators_model_type" in config.raw:
        kind = config.raw["speculators_model_type"]
        if not isinstance(kind, str) or kind not in SPECULATORS:
            raise config.error(f"speculators_model_type is {kind!r:.80}, not one of {', '.join(SPECULATORS)}")
        return SPECULATORS[kind]
    listed = config.raw.get("architectures")
    # NVIDIA's vision-language models are called Eagle too.
    names = [
        name
        for name in (listed if isinstance(listed, list) else ())
        if isinstance(name, str) and not name.endswith("ForConditionalGeneration")
    ]
    for pattern, method in _ARCHITECTURES:
        if any(re.search(pattern, name) for name in names):
            return method
    if config.raw.get("draft_vocab_size") is not None or config.raw.get("eagle_config") is not None:
        return "eagle3"
    if config.raw.get("num_hidden_layers") == 1 and tensors and any("fc." in f".{name}" for name in tensors):
        return "eagle"
    return None
