"""Repairs histories before vLLM renders them: vLLM's renderers, with `Format.repair` in front.

vLLM has a table of renderers, and `register` replaces each by a subclass from this module. The subclass repairs for the
format of the server's parsers, and does nothing if they are vLLM's own.
"""

from __future__ import annotations

import functools
import logging
import os
from importlib import import_module
from typing import Any

from vllm.exceptions import VLLMValidationError

from dovetail.errors import InvalidRequest
from dovetail.plugins.vllm import model_format, names

_log = logging.getLogger("vllm.dovetail")
#: Kinds that are never applied here: vLLM moves reasoning to its own field, and accepts incomplete histories.
_NOT_IN_VLLM = frozenset({"reasoning_field", "null_reasoning", "orphan_result", "unanswered_call"})


class Repairing:
    """A mixin for vLLM's renderers that repairs the messages first."""

    def render_messages(self, messages: Any, params: Any) -> Any:
        return super().render_messages(self._repaired(messages, params), params)  # type: ignore[misc]

    async def render_messages_async(self, messages: Any, params: Any) -> Any:
        return await super().render_messages_async(self._repaired(messages, params), params)  # type: ignore[misc]

    def _repaired(self, messages: Any, params: Any) -> Any:
        fmt = model_format.format_served(self.tokenizer)  # type: ignore[attr-defined]
        if fmt is None or not all(isinstance(message, dict) for message in messages):
            return messages
        try:
            off = names.repairs_off(os.environ.get(names.NO_REPAIR, "")) | _NOT_IN_VLLM
            repaired, repairs = fmt.repair(messages, (params.chat_template_kwargs or {}).get("tools"), off=off)
        except InvalidRequest as error:
            raise VLLMValidationError(error.message, parameter=error.param) from error
        for repair in repairs:
            _log.debug("repaired %s: %s %s", repair.where, repair.kind, repair.detail)
        return repaired


@functools.cache
def __getattr__(name: str) -> Any:
    """The repairing subclass of a renderer. `name` is like `vllm/renderers/hf:HfRenderer`."""
    module, _, renderer = name.partition(":")
    if not renderer:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    base = getattr(import_module(module.replace("/", ".")), renderer)
    return type(f"Repairing{renderer}", (Repairing, base), {"__module__": __name__})
