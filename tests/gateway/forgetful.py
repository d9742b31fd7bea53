"""Worlds of a few tenants with conversations that are much alike, and what forgetful clients and adversaries return.

A naive oracle says which answers memory may put back.

The oracle compares whole conversations as plain values: it knows neither digests nor files.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from dovetail.events import Call, Message
from dovetail.formats.base import parameters_by_name
from dovetail.gateway.records.memory import Memory, Tenant, digest_of_turn

_ALL = {"type": "boolean", "default": False}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"all": _ALL}}}}
    for name in ("edit", "read")
]
TENANTS = (Tenant(""), Tenant("key a"), Tenant("key b"), Tenant("key a", "salt"), Tenant("key asalt"))
MODELS = (b"model--1", b"model--2")
_TEXTS = (
    "",
    "Done.",
    "a b",
    "ab",
    "a  b",
    "one\n\ntwo",
    "one two",
    "\tx = 1\n  y = 2\n",
    "東京 🙂",
    "<think>no</think>",
)
_REASONINGS = ("", "First.", "Second.")
_ARGUMENTS = (
    {},
    {"x": 1},
    {"x": 1.5},
    {"x": True},
    {"x": "1"},
    {"x": [1, {"y": None}]},
    {"x": 1, "all": True},
    {"x": {}},
)
_PICTURES = ("0" * 64, "1" * 64)


@dataclass
class Answered:
    """An answer that was kept: whose it is, what came before it, and what of it tells it from others (`plain`).

    `sent`: the message that the client got. `first_id`: the id of its first call, if the server made that.
    """

    tenant: Tenant
    model: bytes
    before: list[Any]
    message: Any
    first_id: str | None
    record: str
    answer: Message
    sent: dict[str, Any]


@dataclass
class History:
    """What a client sends. `pictures` has the digests of the pictures by number."""

    tenant: Tenant
    model: bytes
    messages: list[dict[str, Any]] = field(default_factory=list)
    pictures: list[str] = field(default_factory=list)


class World:
    """Some conversations, all of them kept in `memory`."""

    def __init__(self, rng: Random, memory: Memory) -> None:
        self.rng = rng
        self.memory = memory
        self.kept: list[Answered] = []
        self.histories: list[History] = []

    def converse(self, answers: int) -> None:
        """A conversation of so many answers, perhaps one that goes on from a part of an earlier one."""
        rng = self.rng
        if self.histories and rng.random() < 0.4:
            history = copy.deepcopy(rng.choice(self.histories))
            ends = [i for i, message in enumerate(history.messages) if message["role"] != "assistant"]
            del history.messages[rng.choice(ends) + 1 :]
        else:
            history = History(rng.choice(TENANTS), rng.choice(MODELS))
            if rng.random() < 0.5:
                history.messages.append({"role": "system", "content": rng.choice(_TEXTS)})
            self._user(history)
        for _ in range(answers):
            calls = self._answer(history)
            for call in calls:
                result = {"role": "tool", "tool_call_id": call["id"], "content": rng.choice(_TEXTS)}
                history.messages.append(result)
            if not calls or rng.random() < 0.2:
                self._user(history)
        self.histories.append(history)

    def _user(self, history: History) -> None:
        content: Any = self.rng.choice(_TEXTS)
        if self.rng.random() < 0.1:
            content = [{"type": "text", "text": content}, {"type": "image", "number": len(history.pictures)}]
            history.pictures.append(self.rng.choice(_PICTURES))
        history.messages.append({"role": "user", "content": content})

    def _answer(self, history: History) -> list[dict[str, Any]]:
        """Let the model answer, keep that, and add it to the history as it was sent. Returns its calls."""
        rng = self.rng
        before = [plain(message, history.pictures) for message in history.messages]
        answer, sent = self._again(history, before) or self._new()
        calls = sent.get("tool_calls", [])
        record = f"{plain(sent, history.pictures)} {answer.reasoning} in tokens {rng.randint(0, 1)}"
        recalled = self.memory.recall(history.messages, TOOLS, history.tenant, history.model, history.pictures)
        shown = digest_of_turn(answer.content, answer.calls, parameters_by_name(TOOLS))
        ids = [call["id"] for call in calls]
        self.memory.keep(record, shown, ids, history.tenant, history.model, recalled.place)
        first = ids[0] if ids and ids[0].startswith("call_") else None
        self.kept.append(
            Answered(history.tenant, history.model, before, plain(sent, history.pictures), first, record, answer, sent)
        )
        history.messages.append(copy.deepcopy(sent))
        return calls

    def _again(self, history: History, before: list[Any]) -> tuple[Message, dict[str, Any]] | None:
        """An answer that was given here before, with other reasoning."""
        alike = [
            each
            for each in self.kept
            if (each.tenant, each.model, each.before, each.first_id) == (history.tenant, history.model, before, None)
        ]
        if not alike or self.rng.random() < 0.5:
            return None
        one = self.rng.choice(alike)
        reasoning = self.rng.choice(_REASONINGS)
        answer = Message(one.answer.content, reasoning, one.answer.calls)
        return answer, {**one.sent, "reasoning_content": reasoning}

    def _new(self) -> tuple[Message, dict[str, Any]]:
        rng = self.rng
        own = f"call_{rng.getrandbits(64):016x}_" if rng.random() < 0.5 else "functions.f:"
        calls = tuple(
            Call(f"{own}{i}", rng.choice(("edit", "read")), json.dumps(rng.choice(_ARGUMENTS)))
            for i in range(rng.choice((0, 0, 1, 1, 2)))
        )
        answer = Message(rng.choice(_TEXTS), rng.choice(_REASONINGS), calls)
        sent: dict[str, Any] = {"role": "assistant", "content": answer.content, "reasoning_content": answer.reasoning}
        if calls:
            sent["tool_calls"] = [
                {"id": each.id, "type": "function", "function": {"name": each.name, "arguments": each.arguments}}
                for each in calls
            ]
        return answer, sent

    def expected(self, history: History) -> list[str | None]:
        """The record of each message of `history` that memory may put back; None for all others."""
        messages = [plain(message, history.pictures) for message in history.messages]
        return [
            self._record(history, messages, i) if message["role"] == "assistant" else None
            for i, message in enumerate(history.messages)
        ]

    def _record(self, history: History, messages: Sequence[Any], i: int) -> str | None:
        mine = [each for each in self.kept if (each.tenant, each.model) == (history.tenant, history.model)]
        alike = [each for each in mine if each.message == messages[i]]
        ids = [call["id"] for call in history.messages[i].get("tool_calls") or ()]
        if ids and ids[0].startswith("call_"):
            records = {each.record for each in alike if each.first_id == ids[0]}
        else:
            records = {each.record for each in alike if each.before == messages[:i]}
        return next(iter(records)) if len(records) == 1 else None

    def recalled(self, history: History) -> list[str | None]:
        """The records that memory puts back. Their calls have the ids that they had, and so have their results."""
        recalled = self.memory.recall(history.messages, TOOLS, history.tenant, history.model, history.pictures)
        records = [(message.get("dovetail") or {}).get("record") for message in recalled.messages]
        for before, after, record in zip(history.messages, recalled.messages, records, strict=True):
            ids = [call["id"] for call in after.get("tool_calls") or ()]
            if record is None:
                assert ids == [call["id"] for call in before.get("tool_calls") or ()]
            else:
                assert ids in [[call.id for call in each.answer.calls] for each in self.kept if each.record == record]
        return records


def plain(message: Mapping[str, Any], pictures: Sequence[str]) -> Any:
    """What of a message tells it from others, as JSON."""
    content = message.get("content") or ""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    text = "".join(part["text"] for part in parts if part["type"] == "text")
    if message["role"] == "assistant":
        calls = [
            [plain_id(call["id"]), call["function"]["name"], _arguments(call["function"]["arguments"])]
            for call in message.get("tool_calls") or ()
        ]
        return json.dumps(["assistant", text.split(), calls], sort_keys=True)
    seen = [pictures[part["number"]] for part in parts if part["type"] == "image"]
    return json.dumps([message["role"], plain_id(message.get("tool_call_id")), text.strip(), seen])


def plain_id(call_id: str | None) -> str | None:
    return call_id and call_id.replace(":", "_").replace(".", "_")


def _arguments(text: str) -> Any:
    value = json.loads(text, parse_float=lambda number: int(float(number)) if float(number) % 1 == 0 else float(number))
    return {key: each for key, each in value.items() if (key, json.dumps(each)) != ("all", "false")}


# -- what clients return ----------------------------------------------------------------------------------------------

Change = Callable[[Random, History], None]


def _answers(history: History) -> list[dict[str, Any]]:
    return [message for message in history.messages if message["role"] == "assistant"]


def _functions(history: History) -> list[dict[str, Any]]:
    return [call["function"] for message in _answers(history) for call in message.get("tool_calls") or ()]


def drop_reasoning(_: Random, history: History) -> None:
    for message in _answers(history):
        message.pop("reasoning_content", None)


def write_arguments_anew(rng: Random, history: History) -> None:
    for function in _functions(history):
        items = [*json.loads(function["arguments"]).items()]
        rng.shuffle(items)
        function["arguments"] = json.dumps(dict(items), indent=rng.choice((None, 2)), ensure_ascii=rng.random() < 0.5)


def add_defaults(_: Random, history: History) -> None:
    for function in _functions(history):
        function["arguments"] = json.dumps({"all": False, **json.loads(function["arguments"])})


def change_white_space(rng: Random, history: History) -> None:
    for message in _answers(history):
        if isinstance(message["content"], str):
            words = message["content"].split()
            message["content"] = rng.choice(("", " ", "\n")) + rng.choice((" ", "\n", "  ", "\r\n")).join(words)


def content_as_parts(rng: Random, history: History) -> None:
    for message in history.messages:
        if isinstance(message["content"], str):
            cut = rng.randint(0, len(message["content"]))
            texts = message["content"][:cut], message["content"][cut:]
            message["content"] = [{"type": "text", "text": text} for text in texts]


def write_ids_anew(_: Random, history: History) -> None:
    """As Kimi Code does."""
    for message in history.messages:
        for call in message.get("tool_calls") or ():
            call["id"] = plain_id(call["id"])
        if "tool_call_id" in message:
            message["tool_call_id"] = plain_id(message["tool_call_id"])


def empty_as_null(_: Random, history: History) -> None:
    for message in _answers(history):
        message["content"] = message["content"] or None


#: What clients do without meaning to: every answer stays what it was.
FORGETTING: tuple[Change, ...] = (
    drop_reasoning,
    write_arguments_anew,
    add_defaults,
    change_white_space,
    content_as_parts,
    empty_as_null,
    write_ids_anew,
)


def edit_a_text(rng: Random, history: History) -> None:
    rng.choice(history.messages)["content"] = rng.choice((*_TEXTS, "Done!", "done.", "a b c"))


def edit_arguments(rng: Random, history: History) -> None:
    if functions := _functions(history):
        rng.choice(functions)["arguments"] = json.dumps(rng.choice(_ARGUMENTS))


def edit_a_name(rng: Random, history: History) -> None:
    if functions := _functions(history):
        rng.choice(functions)["name"] = rng.choice(("edit", "read", "write"))


def edit_an_id(rng: Random, history: History) -> None:
    if messages := [message for message in _answers(history) if message.get("tool_calls")]:
        call = rng.choice(rng.choice(messages)["tool_calls"])
        call["id"] = rng.choice(
            (call["id"][:-1] + "7", "functions.f:0", "functions.f:1", f"call_{rng.getrandbits(64):016x}_0")
        )


def drop_a_call(rng: Random, history: History) -> None:
    if messages := [message for message in _answers(history) if message.get("tool_calls")]:
        calls = rng.choice(messages)["tool_calls"]
        del calls[rng.randrange(len(calls))]


def drop_a_message(rng: Random, history: History) -> None:
    del history.messages[rng.randrange(len(history.messages))]


def swap_messages(rng: Random, history: History) -> None:
    one, other = (rng.randrange(len(history.messages)) for _ in range(2))
    messages = history.messages
    messages[one], messages[other] = messages[other], messages[one]


def be_another(rng: Random, history: History) -> None:
    history.tenant = rng.choice(TENANTS)


def ask_another_model(rng: Random, history: History) -> None:
    history.model = rng.choice(MODELS)


def show_another_picture(rng: Random, history: History) -> None:
    history.pictures = [rng.choice(_PICTURES) for _ in history.pictures]


#: What makes other conversations of them, or other answers.
EDITS: tuple[Change, ...] = (
    edit_a_text,
    edit_arguments,
    edit_a_name,
    edit_an_id,
    drop_a_call,
    drop_a_message,
    swap_messages,
    be_another,
    ask_another_model,
    show_another_picture,
)


def returned(world: World) -> Iterator[History]:
    """What comes back of a conversation: forgetful, edited, or with turns of another one; one after the other."""
    rng = world.rng
    while True:
        history = copy.deepcopy(rng.choice(world.histories))
        if rng.random() < 0.3:
            donor = copy.deepcopy(rng.choice(world.histories))
            history.messages[rng.randrange(len(history.messages)) :] = [
                message for message in donor.messages if isinstance(message["content"], str)
            ]
        for change in rng.sample(EDITS, rng.choice((0, 0, 1, 1, 2))):
            if history.messages:
                change(rng, history)
        for change in rng.sample(FORGETTING, rng.randint(0, len(FORGETTING))):
            change(rng, history)
        yield history
