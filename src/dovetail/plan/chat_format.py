"""Which chat format a target has, without failing when it is unknown."""

from __future__ import annotations

import msgspec

from dovetail.errors import DovetailError


class ChatFormat(msgspec.Struct, frozen=True):
    """A format's name and why it was chosen. `name` is None when no format fits, and `reason` says why.

    `template`: whether prompts come from the model's own chat template, so that `name` does not tell how calls look.
    `reads_calls`: whether the format reads tool calls.
    """

    name: str | None
    reason: str | None = None
    template: bool = False
    reads_calls: bool = True


def chat_format(folder: str) -> ChatFormat:
    """What `dovetail.format` detects in a checkpoint's folder."""
    from dovetail.formats import format  # imports every family, which a plan that names its format does not need
    from dovetail.formats.registry import JINJA

    try:
        detected = format(folder)
        return ChatFormat(detected.name, detected.because or None, detected.name == JINJA, detected.reads_calls)
    except DovetailError as error:
        return ChatFormat(None, error.message)
