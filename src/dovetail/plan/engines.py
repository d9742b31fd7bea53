"""Whether a plan can run on its engine: what that has no setting for, and what is missing."""

from __future__ import annotations

import os
from collections.abc import Mapping

from dovetail.checkpoints.files import has_weights
from dovetail.checkpoints.tensor_files import check_complete
from dovetail.errors import CheckpointError, PlanError
from dovetail.plan import embedded
from dovetail.plan.candidate import Advice, Candidate
from dovetail.plan.chat_format import chat_format
from dovetail.plan.options import BY_NAME, GATE
from dovetail.plan.parallel import SIZES

#: What people call the engines that a plan can be for.
NAMES = {"embedded": "the embedded engine", "vllm": "vLLM", "sglang": "SGLang", "trtllm": "TensorRT-LLM"}


def check(plan: Candidate, folders: Mapping[str, str]) -> list[Advice]:
    """What there is to know about the plan on its engine. `folders`: where target and drafter lie.

    Raises `PlanError` or `CheckpointError` if it cannot be.
    """
    if plan.engine == "embedded":
        return [*_embedded(plan, folders), *_without_words(plan, _OURS)]
    advice = _whole(plan, folders)
    if "://" in plan.engine:
        note = f"the server at {plan.engine} was started with settings of its own: what is planned here has to be them"
        return [*advice, Advice("note", "engine", note)]
    gate = _gated(plan) if plan.engine == "vllm" else _ungated(plan)
    return [*advice, *gate, *_without_words(plan, ("gpus", *GATE))]


def _gated(plan: Candidate) -> list[Advice]:
    """vLLM drafts one length always; Dovetail's scheduler inside it does not."""
    said = [name for name in GATE if name != "max_draft_tokens" and plan.value(name) not in (None, "off")]
    ours = "a scheduler of Dovetail's sees to that inside vLLM: `pip install dovetail[vllm]` where vLLM runs"
    return [Advice("note", said[0], f"{', '.join(map(plan.text, said))}: {ours}")] if said else []


def _ungated(plan: Candidate) -> list[Advice]:
    return [
        Advice("warning", name, f"{plan.text(name)}: {NAMES[plan.engine]} {without}")
        for name, without in GATE.items()
        if plan.value(name) not in (None, "off")  # off is what they do
    ]


def _embedded(plan: Candidate, folders: Mapping[str, str]) -> list[Advice]:
    """Weights have to be here: only a plan for a model on the hub is made without them, and serving it is refused."""
    why = embedded.why_not(plan)
    if why is not None:
        raise PlanError(f"{plan.text('engine')} but {why}: --engine vllm")
    advice = embedded.check(plan)
    for which, name in (("target", plan.target.path), ("drafter", plan.drafter.path if plan.drafter else "")):
        if which in folders:
            missing = missing_files(
                name, folders[which], tokenizer=which == "target" and plan.value("tokenizer") is None
            )
            if missing is not None:
                advice.append(Advice("warning", which, missing))
    if plan.value("format") is None:
        raise CheckpointError(f"{chat_format(folders['target']).reason}; or say --format")
    return advice


def missing_files(name: str, folder: str, *, tokenizer: bool = False) -> str | None:
    """Why the model `name` of a hub cannot be loaded from its `folder` in the cache, None if it can.

    Raises `CheckpointError` for a folder of one's own that is incomplete.
    """
    try:
        check_complete(folder, tokenizer=tokenizer)
    except CheckpointError:
        if os.path.isabs(name):
            raise
        return f"the weights of {name} are not here: `hf download {name}` fetches them"
    return None


def _whole(plan: Candidate, folders: Mapping[str, str]) -> list[Advice]:
    """A folder without weights can be planned for; one with weights and no tokenizer is incomplete."""
    target = plan.target
    if not os.path.isabs(target.path):
        return []
    if not has_weights(folders["target"]):
        empty = f"{target.path} holds no weights: what they take is reckoned, and it cannot be served from there"
        return [Advice("warning", "target", empty)]
    if target.tokenizer is None and plan.value("tokenizer") is None:
        raise CheckpointError(f"{target.path} is incomplete: it has no tokenizer; or say --tokenizer")
    return []


#: Settings that Dovetail sees to itself, that only say how a checkpoint is found, or of which is spoken elsewhere.
_OURS = ("tokenizer", "revision", "trust_remote_code", "gpus", *SIZES)


def _without_words(plan: Candidate, aside: tuple[str, ...]) -> list[Advice]:
    """Settings that somebody said and the engine does not have."""
    return [
        Advice("warning", name, f"{plan.text(name)}: {NAMES[plan.engine]} has no such setting and does without")
        for name, setting in plan.settings.items()
        if setting.value is not None and setting.source != "default"
        if plan.engine not in BY_NAME[name].engine_names and not BY_NAME[name].gateway and name not in aside
    ]
