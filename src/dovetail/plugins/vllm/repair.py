"""Histories as the model was trained on them, before vLLM renders them: its renderers, with `Format.repair` in front.

vLLM takes renderers from a table by mode, and `register` puts one of these in front of each of its own. They repair for
the format of the server's parsers, and do nothing where those are vLLM's. What cannot be put right is left as it is.
"""

from __future__ import annotations

import functools
import logging
import os
from importlib import import_module
from typing import Any

from vllm.exceptions import VLLMValidationError

from dovetail.errors import InvalidRequest
from dovetail.plugins.vllm import names, served

_log = logging.getLogger("vllm.dovetail")
#: vLLM itself moves reasoning to the name that it reads, and takes a history that Dovetail's gateway refuses.
_LEFT = frozenset({"reasoning_field", "null_reasoning", "orphan_result", "unanswered_call"})


class Repairing:
    """In front of a renderer of vLLM's."""

    def render_messages(self, messages: Any, params: Any) -> Any:
        return super().render_messages(self._repaired(messages, params), params)  # type: ignore[misc]

    async def render_messages_async(self, messages: Any, params: Any) -> Any:
        return await super().render_messages_async(self._repaired(messages, params), params)  # type: ignore[misc]

    def _repaired(self, messages: Any, params: Any) -> Any:
        fmt = served.format_served(self.tokenizer)  # type: ignore[attr-defined]
        if fmt is None or not all(isinstance(message, dict) for message in messages):
            return messages
        try:
            off = names.repairs_off(os.environ.get(names.NO_REPAIR, "")) | _LEFT
            repaired, repairs = fmt.repair(messages, (params.chat_template_kwargs or {}).get("tools"), off=off)
        except InvalidRequest as error:
            raise VLLMValidationError(error.message, parameter=error.param) from error
        for repair in repairs:
            _log.debug("repaired %s: %s %s", repair.where, repair.kind, repair.detail)
        return repaired


@functools.cache
def __getattr__(name: str) -> Any:
    """The renderer `vllm/renderers/hf:HfRenderer`, repairing."""
    module, _, renderer = name.partition(":")
    if not renderer:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    base = getattr(import_module(module.replace("/", ".")), renderer)
    return type(f"Repairing{renderer}", (Repairing, base), {"__module__": __name__})
