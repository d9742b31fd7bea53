"""Writes a plan as values for the chart in `deploy/chart`: a gateway in front of vLLM on one node or on several."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import yaml  # type: ignore[import-untyped]

from dovetail.plan.emit import vllm
from dovetail.plan.emit.command import comment
from dovetail.plan.layers import Setting, value
from dovetail.plan.parallel import GPUS

#: The number of GPUs that one node is assumed to have.
GPUS_PER_NODE = 8
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
    nodes, gpus = _nodes(plan)
    words = [_word(each) for each in command.argv[len(command.start) :]]
    data = {
        "model": {"name": target},
        "vllm": {
            "nodes": nodes,
            "gpus": gpus,
            "args": words,
            "env": {name: _word(text) for name, text in command.variables.items()},
        },
        "gateway": {"drafts": value(plan, "method") is not None and value(plan, "draft_tokens") != 0},
    }
    lines = [line for note in (*notes, *command.notes) for line in comment(note)]
    return "".join(f"{line}\n" for line in lines) + _yaml_text(data)


def _nodes(plan: Mapping[str, Setting[Any]]) -> tuple[int, int]:
    """The nodes that the plan needs and the GPUs of each: vLLM needs the same number on every node."""
    gpus = math.prod(value(plan, degree) or 1 for degree in GPUS)
    each = next(each for each in range(GPUS_PER_NODE, 0, -1) if gpus % each == 0)
    return gpus // each, each


class _Word(str):
    """Text that YAML readers must not take for a number (`1e5`); written in double quotes."""


def _word(text: str) -> _Word:
    """`text`, escaped so that the cluster does not expand `$(NAME)` in it."""
    return _Word(text.replace("$", "$$"))


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    def ignore_aliases(self, data: object) -> bool:
        return True


_Dumper.add_representer(_Word, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))


def _yaml_text(document: dict[str, Any]) -> str:
    """YAML in the order of the keys, without aliases and line breaks inside texts."""
    text: str = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**20)
    return text
