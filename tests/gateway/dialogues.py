"""One conversation as a client of each API keeps it: what it sends, what it gets, and what it adds to its history."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from dovetail.gateway.apis.chat import ChatCompletion
from dovetail.gateway.apis.messages import Messages
from dovetail.gateway.apis.responses.exchange import ResponsesExchange
from dovetail.gateway.http.endpoint import Exchange
from tests.gateway.scripted import MODEL


class Dialogue(Protocol):
    """`history` is in the shapes of the API. An answer returns its calls, each as id and name."""

    history: list[dict[str, Any]]

    def __init__(self, system: str, tools: Sequence[dict[str, Any]], thinking: bool) -> None: ...

    def exchange(self, history: list[dict[str, Any]]) -> Exchange: ...

    def user(self, text: str) -> None: ...

    def system(self, text: str) -> None: ...

    def answer(self, body: bytes, change: Callable[[str], str], drop_reasoning: bool) -> list[tuple[str, str]]: ...

    def result(self, call: tuple[str, str], text: str) -> None: ...

    def without_records(self) -> list[dict[str, Any]]: ...


class Chat:
    def __init__(self, system: str, tools: Sequence[dict[str, Any]], thinking: bool) -> None:
        self.history: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
        self._fields: dict[str, Any] = {"tools": tools, "dovetail": {"record": True}}
        self._fields |= {} if thinking else {"chat_template_kwargs": {"thinking": False}}

    def exchange(self, history: list[dict[str, Any]]) -> Exchange:
        return ChatCompletion(json.dumps({"model": MODEL, "messages": history, **self._fields}).encode())

    def user(self, text: str) -> None:
        self.history.append({"role": "user", "content": text})

    def system(self, text: str) -> None:
        self.history.append({"role": "system", "content": text})

    def answer(self, body: bytes, change: Callable[[str], str], drop_reasoning: bool) -> list[tuple[str, str]]:
        message = json.loads(body)["choices"][0]["message"]
        calls = message.get("tool_calls") or []
        for call in calls:
            call["function"]["arguments"] = change(call["function"]["arguments"])
        if drop_reasoning:
            message.pop("reasoning_content", None)
        self.history.append(message)
        return [(call["id"], call["function"]["name"]) for call in calls]

    def result(self, call: tuple[str, str], text: str) -> None:
        self.history.append({"role": "tool", "tool_call_id": call[0], "name": call[1], "content": text})

    def without_records(self) -> list[dict[str, Any]]:
        return [{key: value for key, value in message.items() if key != "dovetail"} for message in self.history]


class AnthropicMessages:
    def __init__(self, system: str, tools: Sequence[dict[str, Any]], thinking: bool) -> None:
        self.history: list[dict[str, Any]] = []
        functions = [tool["function"] for tool in tools or ()]
        self._fields: dict[str, Any] = {"max_tokens": 10_000, "system": system}
        self._fields["thinking"] = {"type": "adaptive" if thinking else "disabled"}
        if functions:
            self._fields["tools"] = [
                {"name": each["name"], "input_schema": each.get("parameters") or {"type": "object"}}
                for each in functions
            ]

    def exchange(self, history: list[dict[str, Any]]) -> Exchange:
        return Messages(json.dumps({"model": MODEL, "messages": history, **self._fields}).encode())

    def user(self, text: str) -> None:
        self._add({"type": "text", "text": text})

    def system(self, text: str) -> None:
        self.history.append({"role": "system", "content": [{"type": "text", "text": text}]})

    def answer(self, body: bytes, change: Callable[[str], str], drop_reasoning: bool) -> list[tuple[str, str]]:
        """Inputs are objects here, which a client always writes in its own way."""
        blocks = json.loads(body)["content"]
        if drop_reasoning:
            blocks = [block for block in blocks if block["type"] != "thinking"]
        self.history.append({"role": "assistant", "content": blocks or [{"type": "text", "text": "-"}]})
        return [(block["id"], block["name"]) for block in blocks if block["type"] == "tool_use"]

    def result(self, call: tuple[str, str], text: str) -> None:
        self._add({"type": "tool_result", "tool_use_id": call[0], "content": text})

    def _add(self, block: dict[str, Any]) -> None:
        if not self.history or self.history[-1]["role"] != "user":
            self.history.append({"role": "user", "content": []})
        self.history[-1]["content"].append(block)

    def without_records(self) -> list[dict[str, Any]]:
        return [
            {**message, "content": [each for each in message["content"] if each["type"] != "redacted_thinking"]}
            for message in self.history
        ]


class Responses:
    def __init__(self, system: str, tools: Sequence[dict[str, Any]], thinking: bool) -> None:
        self.history: list[dict[str, Any]] = [{"role": "developer", "content": system}] if system else []
        self._fields: dict[str, Any] = {"store": False, "include": ["reasoning.encrypted_content"]}
        self._fields["tools"] = [{"type": "function", "strict": False, **tool["function"]} for tool in tools or ()]
        self._fields |= {} if thinking else {"reasoning": {"effort": "none"}}

    def exchange(self, history: list[dict[str, Any]]) -> Exchange:
        body = json.dumps({"model": MODEL, "input": history, **self._fields}).encode()
        return ResponsesExchange(body, None, 1_000)

    def user(self, text: str) -> None:
        self.history.append({"role": "user", "content": text})

    def system(self, text: str) -> None:
        self.history.append({"role": "developer", "content": text})

    def answer(self, body: bytes, change: Callable[[str], str], drop_reasoning: bool) -> list[tuple[str, str]]:
        items = json.loads(body)["output"]
        for item in items:
            if item["type"] == "function_call":
                item["arguments"] = change(item["arguments"])
            elif item["type"] == "reasoning" and drop_reasoning:
                item |= {"content": [], "summary": []}
        self.history += items
        return [(item["call_id"], item["name"]) for item in items if item["type"] == "function_call"]

    def result(self, call: tuple[str, str], text: str) -> None:
        self.history.append({"type": "function_call_output", "call_id": call[0], "output": text})

    def without_records(self) -> list[dict[str, Any]]:
        items = copy.deepcopy(self.history)
        for item in items:
            item.pop("encrypted_content", None)
        return items


APIS: dict[str, type[Dialogue]] = {"chat": Chat, "messages": AnthropicMessages, "responses": Responses}
