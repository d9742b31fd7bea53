"""Writes a plan as values for the chart in `deploy/chart`: a gateway in front of vLLM on one node or on several."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.plan.emit import kubernetes, vllm
from dovetail.plan.emit.command import comment
from dovetail.plan.layers import Setting, value

#: Settings of the gateway, or of the chart itself: vLLM's command has none of them.
_NOT_VLLM = ("format", "api_key_file", "host", "port")
#: Where the chart mounts a model's claim or image, and a drafter's image.
_MODEL, _DRAFTER = "/model", "/drafter"


def values(plan: Mapping[str, Setting[Any]], version: str | None = None) -> str:
    """YAML for `helm install NAME deploy/chart -f -`. Images are left out: they are named by their digests.

    Folders of this machine become the paths where the chart mounts claims and images, with a note.
    """
    inside = {name: setting for name, setting in plan.items() if name not in _NOT_VLLM}
    target, drafter = value(plan, "target"), value(plan, "drafter")
    notes = ["For `helm install NAME deploy/chart -f FILE`, with vllm.image and gateway.image by their digests."]
    if target.startswith("/"):
        notes.append(f"{target} is a folder of this machine: set model.claim or model.image, which have it at {_MODEL}")
        target = _MODEL
    if drafter is not None and drafter.startswith("/"):
        notes.append(f"{drafter} is a folder of this machine: it has to be the image drafter.image of the chart")
        inside["drafter"] = Setting(_DRAFTER, plan["drafter"].source)
    command = vllm.command(inside, version)
    nodes, gpus = kubernetes.nodes_of(plan)
    words = [kubernetes.word(each) for each in command.argv[len(command.start) :]]
    data = {
        "model": {"name": target},
        "vllm": {
            "nodes": nodes,
            "gpus": gpus,
            "args": words,
            "env": {name: kubernetes.word(text) for name, text in command.variables.items()},
        },
        "gateway": {"drafts": value(plan, "method") is not None and value(plan, "draft_tokens") != 0},
    }
    lines = [line for note in (*notes, *command.notes) for line in comment(note)]
    return "".join(f"{line}\n" for line in lines) + kubernetes.yaml_text(data)
