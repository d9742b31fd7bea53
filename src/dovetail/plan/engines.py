"""Checks a plan against its engine: settings that the engine does not have, files that are missing, the chat format."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from dovetail.checkpoints.files import has_weights
from dovetail.checkpoints.gguf.folder import gguf_file
from dovetail.checkpoints.tensor_files import check_complete
from dovetail.errors import CheckpointError, DovetailError, PlanError
from dovetail.plan import embedded, llama_cpp
from dovetail.plan.candidate import Advice, Candidate
from dovetail.plan.options import BY_NAME, GATE
from dovetail.plan.parallel import SIZES


class ChatFormat(msgspec.Struct, frozen=True):
    """A format's name and why it was chosen. `name` is None when no format fits, and `reason` says why.

    `template`: whether prompts come from the model's own chat template, so that `name` does not tell how calls look.
    `reads_calls`: whether the format reads tool calls.
    """

    name: str | None
    reason: str | None = None
    template: bool = False
    reads_calls: bool = True


def chat_format(folder: str, *, generic_tools: bool = True) -> ChatFormat:
    """What `dovetail.format` detects in a checkpoint's folder."""
    from dovetail.formats import format  # imports every family, which a plan that names its format does not need
    from dovetail.formats.registry import JINJA

    try:
        detected = format(folder, generic_tools=generic_tools)
        return ChatFormat(detected.name, detected.because or None, detected.name == JINJA, detected.reads_calls)
    except DovetailError as error:
        return ChatFormat(None, error.message)


#: Engine -> its name in messages.
NAMES = {"embedded": "the embedded engine", "vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"} | {
    "llama.cpp": "llama.cpp"
}


def check(plan: Candidate, folders: Mapping[str, str]) -> list[Advice]:
    """Check `plan` on its engine, with target and drafter in `folders`, and return what there is to know.

    Raises `PlanError` or `CheckpointError` if the engine cannot run it.
    """
    if plan.engine == "embedded":
        return [*_embedded(plan, folders), *_unknown_settings(plan, _USED_BEFORE)]
    if plan.engine == llama_cpp.NAME:
        return [*llama_cpp.check(plan, folders), *_unknown_settings(plan, _USED_BEFORE)]
    advice = _check_folder(plan, folders)
    if plan.engine == "vllm" and gguf_file(folders["target"]) is not None:
        raise PlanError(
            f"{plan.text('engine')}, which does not read {plan.target.path}: --engine llama.cpp, or embedded, or give "
            "the model's original folder"
        )
    if "://" in plan.engine:
        note = f"the server at {plan.engine} has settings of its own, which this plan must agree with"
        return [*advice, Advice("note", "engine", note)]
    gate = _gated(plan) if plan.engine == "vllm" else _ungated(plan)
    return [*advice, *gate, *_unknown_settings(plan, ("gpus", *GATE))]


def _gated(plan: Candidate) -> list[Advice]:
    """A note on the gate: vLLM needs Dovetail's scheduler for it."""
    gated = [name for name in GATE if name != "max_draft_tokens" and plan.value(name) not in (None, "off")]
    scheduler = "Dovetail's scheduler inside vLLM does that: `pip install dovetail[vllm]` where vLLM runs"
    return [Advice("note", gated[0], f"{', '.join(map(plan.text, gated))}: {scheduler}")] if gated else []


def _ungated(plan: Candidate) -> list[Advice]:
    return [
        Advice("warning", name, f"{plan.text(name)}: {NAMES[plan.engine]} {without}")
        for name, without in GATE.items()
        if plan.value(name) not in (None, "off")  # off is the default of these engines
    ]


def _embedded(plan: Candidate, folders: Mapping[str, str]) -> list[Advice]:
    """Weights must be on this machine. A model on the hub can be planned for without them, but not served."""
    reason = embedded.why_not(plan)
    if reason is not None:
        other = "vllm" if gguf_file(folders["target"]) is None else llama_cpp.NAME
        raise PlanError(f"{plan.text('engine')} but {reason}: --engine {other}")
    advice = embedded.check(plan, folders["target"])
    for which, name in (("target", plan.target.path), ("drafter", plan.drafter.path if plan.drafter else "")):
        if which in folders:
            missing = missing_files(
                name, folders[which], tokenizer=which == "target" and plan.value("tokenizer") is None
            )
            if missing is not None:
                advice.append(Advice("warning", which, missing))
    if plan.value("format") is None:
        raise CheckpointError(f"{chat_format(folders['target']).reason}, or give --format")
    return advice


def missing_files(name: str, folder: str, *, tokenizer: bool = False) -> str | None:
    """Why the model `name` cannot be loaded from `folder`, None if it can.

    For a model on the hub, `folder` is in the hub's cache. Raises `CheckpointError` for an incomplete folder.
    """
    try:
        check_complete(folder, tokenizer=tokenizer)
    except CheckpointError:
        if os.path.isabs(name):
            raise
        return f"the weights of {name} are not here: `hf download {name}` fetches them"
    return None


def _check_folder(plan: Candidate, folders: Mapping[str, str]) -> list[Advice]:
    """A folder without weights can be planned for. A folder with weights but no tokenizer is refused as incomplete."""
    target = plan.target
    if not os.path.isabs(target.path):
        return []
    if not has_weights(folders["target"]):
        empty = f"{target.path} has no weights: their size is estimated, and the folder cannot be served"
        return [Advice("warning", "target", empty)]
    if target.tokenizer is None and plan.value("tokenizer") is None:
        raise CheckpointError(f"{target.path} is incomplete: it has no tokenizer; or give --tokenizer")
    return []


#: Settings that the embedded engine does not need, because Dovetail uses them before the engine starts.
_USED_BEFORE = ("tokenizer", "revision", "trust_remote_code", "gpus", *SIZES)


def _unknown_settings(plan: Candidate, excepted: tuple[str, ...]) -> list[Advice]:
    """Warnings about settings that a source sets and the engine does not have."""
    return [
        Advice("warning", name, f"{plan.text(name)}: {NAMES[plan.engine]} has no such setting and ignores it")
        for name, setting in plan.settings.items()
        if setting.value is not None and setting.source != "default"
        if plan.engine not in BY_NAME[name].engine_names and not BY_NAME[name].gateway and name not in excepted
    ]
