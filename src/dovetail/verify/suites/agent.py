"""An agent's conversation that goes on: instructions, what the model answers to them, and results of its calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.events import Message

#: Calls after which the next instruction comes, also from a model that would go on for ever.
_MOST_CALLS = 6


class Conversation:
    """A conversation by a plan: `system`, `steps` with a place for a subject, `subjects`, and `results` of calls.

    Every call has the next of the results, whatever it asks for. `number`: conversations with different ones have other
    subjects.
    """

    def __init__(self, plan: Mapping[str, Any], number: int) -> None:
        self._plan, self._number = plan, number
        self.messages: list[dict[str, Any]] = []
        self._instructed = self._calls = self._results = 0
        if plan["system"]:
            self.messages.append({"role": "system", "content": plan["system"]})
        self._instruct()

    @property
    def instructed(self) -> bool:
        """Whether an instruction is the last message, rather than results."""
        return bool(self.messages[-1]["role"] == "user")

    def go_on(self, message: Message | None) -> None:
        """Add the model's message, and results or the next instruction. None: the model has answered nothing usable."""
        calls = () if message is None else message.calls
        if message is not None:
            self.messages.append(_assistant(message))
        for call in calls:
            self.messages.append({"role": "tool", "tool_call_id": call.id, "content": self._result()})
        self._calls += bool(calls)
        if not calls or self._calls >= _MOST_CALLS:
            self._instruct()

    def _instruct(self) -> None:
        steps, subjects = self._plan["steps"], self._plan["subjects"]
        subject = subjects[(self._number + self._instructed // len(steps)) % len(subjects)]
        content = steps[self._instructed % len(steps)].format(subject=subject)
        self.messages.append({"role": "user", "content": content})
        self._instructed, self._calls = self._instructed + 1, 0

    def _result(self) -> str:
        results = self._plan["results"]
        self._results += 1
        return str(results[(self._number + self._results) % len(results)])


def _assistant(message: Message) -> dict[str, Any]:
    """A message as clients return it, with its reasoning."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.calls
    ]
    reasoning = {"reasoning_content": message.reasoning} if message.reasoning else {}
    return {"role": "assistant", "content": message.content, **reasoning, **({"tool_calls": calls} if calls else {})}
