"""Formats that differ from Kimi K2.5 in one thing, for tests of how the gateway treats that thing."""

from __future__ import annotations

from typing import Any

from dovetail.errors import InvalidRequest
from dovetail.formats.base import ReasoningBlock
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.tokens import Prompt


class WithOptions(KimiK25):
    """Declares template options, and records those of each prompt in `rendered`. It refuses a low effort."""

    def __init__(self, *options: str) -> None:
        self.template_options = options
        self.rendered: list[dict[str, Any]] = []

    def _render(self, *arguments: Any, **options: Any) -> Prompt:
        self.rendered.append({"thinking": arguments[2], **options})
        if options.get("reasoning_effort") == "low":
            raise InvalidRequest("not low", param="chat_template_kwargs.reasoning_effort")
        return super()._render(*arguments)


class OpensReasoning(KimiK25):
    """The model writes the opening of its reasoning block itself."""

    reasoning: ReasoningBlock = "written"

    def _render(self, messages: Any, tools: Any, thinking: bool, open_turn: bool, **options: Any) -> Prompt:
        pieces = super()._render(messages, tools, thinking, open_turn).pieces
        return Prompt.alternating(pieces[:-2] if open_turn and thinking else [*pieces])


class ShowsMessageTools(KimiK25):
    """Shows the tools that system messages declare."""

    def _render(self, messages: Any, tools: Any, *arguments: Any, **options: Any) -> Prompt:
        declared = [tool for message in messages if message["role"] == "system" for tool in message.get("tools") or ()]
        return super()._render(messages, [*tools, *declared], *arguments, **options)


class HidesTools(KimiK25):
    """Leaves tools out of its prompts."""

    def _render(self, messages: Any, tools: Any, *arguments: Any, **options: Any) -> Prompt:
        return super()._render(messages, (), *arguments, **options)
