"""How clients return the answers that they got: `docs/clients.md` and the requests of these clients show it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tests.gateway.dialogues import AnthropicMessages, Chat, Dialogue, Responses


class Opencode(Chat):
    """No reasoning, and arguments as JavaScript writes them."""

    def answer(self, body: bytes, change: Callable[[str], str], drop_reasoning: bool) -> list[tuple[str, str]]:
        return super().answer(body, as_javascript, True)


class QwenCode(Chat):
    """Arguments as JavaScript writes them."""

    def answer(self, body: bytes, change: Callable[[str], str], drop_reasoning: bool) -> list[tuple[str, str]]:
        return super().answer(body, as_javascript, False)


class KimiCode(Chat):
    """Arguments as JavaScript writes them, ids of calls without dots and colons, and no empty content."""

    def answer(self, body: bytes, change: Callable[[str], str], drop_reasoning: bool) -> list[tuple[str, str]]:
        super().answer(body, as_javascript, False)
        message = self.history[-1]
        if not message["content"]:
            del message["content"]
        for call in message.get("tool_calls") or ():
            call["id"] = re.sub(r"[^A-Za-z0-9_-]", "_", call["id"])
        return [(call["id"], call["function"]["name"]) for call in message.get("tool_calls") or ()]


class KimiCli(Chat):
    """Everything as it was, with null for empty content."""

    def answer(self, body: bytes, change: Callable[[str], str], drop_reasoning: bool) -> list[tuple[str, str]]:
        calls = super().answer(body, str, False)
        self.history[-1]["content"] = self.history[-1]["content"] or None
        return calls


class LiteLlm(Chat):
    """No reasoning, null for empty content, and more fields that are null."""

    def answer(self, body: bytes, change: Callable[[str], str], drop_reasoning: bool) -> list[tuple[str, str]]:
        calls = super().answer(body, str, True)
        message = self.history[-1]
        message |= {"content": message["content"] or None, "function_call": None, "provider_specific_fields": None}
        message.setdefault("tool_calls", None)
        return calls


class AgentsChat(Chat):
    """No reasoning."""

    def answer(self, body: bytes, change: Callable[[str], str], drop_reasoning: bool) -> list[tuple[str, str]]:
        return super().answer(body, str, True)


class AgentsResponses(Responses):
    """All items as they were. It does not ask for records, and lets the server store."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        del self._fields["store"]

    def answer(self, body: bytes, change: Callable[[str], str], drop_reasoning: bool) -> list[tuple[str, str]]:
        return super().answer(body, str, False)


class Codex(Responses):
    """All items, with records; the reasoning's text in the summary."""

    def answer(self, body: bytes, change: Callable[[str], str], drop_reasoning: bool) -> list[tuple[str, str]]:
        calls = super().answer(body, str, False)
        for item in self.history:
            if item["type" if "type" in item else "role"] == "reasoning" and item.get("content"):
                item["summary"] = [{"type": "summary_text", "text": part["text"]} for part in item["content"]]
                item["content"] = None
        return calls


class ClaudeCode(AnthropicMessages):
    """Thinking without its text, and records behind calls."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if self._fields["thinking"]["type"] == "adaptive":
            self._fields["thinking"]["display"] = "omitted"

    def answer(self, body: bytes, change: Callable[[str], str], drop_reasoning: bool) -> list[tuple[str, str]]:
        return super().answer(body, str, False)


class Client(NamedTuple):
    """`returns_records`: it asks for records and returns them by itself."""

    dialogue: type[Dialogue]
    returns_records: bool = False


CLIENTS: Mapping[str, Client] = {
    "opencode": Client(Opencode),
    "qwen-code": Client(QwenCode),
    "kimi-cli": Client(KimiCli),
    "Kimi Code": Client(KimiCode),
    "LiteLLM": Client(LiteLlm),
    "openai-agents, chat": Client(AgentsChat),
    "openai-agents, responses": Client(AgentsResponses),
    "codex": Client(Codex, returns_records=True),
    "claude-code": Client(ClaudeCode, returns_records=True),
}


def as_javascript(arguments: str) -> str:
    """`JSON.stringify(JSON.parse(arguments))`; what is no JSON stays."""
    try:
        value = json.loads(arguments, parse_float=_number)
    except ValueError:
        return arguments
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _number(literal: str) -> float:
    number = float(literal)
    return int(number) if number.is_integer() and abs(number) < 1e21 else number
