"""Items of the input become the messages that the model wrote and got."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.conversation import check_messages
from dovetail.gateway.apis.responses.conversation import Conversation

A, B = "a" * 32, "b" * 32


def messages_of(*items: Any) -> list[dict[str, Any]]:
    conversation = Conversation(lambda name: None)
    conversation.add_input([*items])
    return conversation.messages


def words(role: str, *texts: str, kind: str = "input_text", **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text} for text in texts], **fields}


def reasoned(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}], **fields}


def call(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": name, "name": "f", "arguments": "{}", **fields}


def result(name: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": name, "output": "ok"}


def called(name: str) -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}}


def tool(name: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": name, "content": "ok"}


def assistant(content: str = "", reasoning: str | None = None, calls: tuple[str, ...] = ()) -> dict[str, Any]:
    made: dict[str, Any] = {"role": "assistant", "content": content}
    made |= {} if reasoning is None else {"reasoning_content": reasoning}
    return made | ({"tool_calls": [*map(called, calls)]} if calls else {})


USER = {"role": "user", "content": "hi"}
CASES: list[tuple[str, list[Any], list[Any]]] = [
    ("text of every role", [words("system", "a"), words("developer", "b"), {"role": "user", "content": "hi"}], [
        {"role": "system", "content": "a"}, {"role": "developer", "content": "b"}, USER]),
    ("parts", [words("user", "a", "b")], [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]),
    ("no content", [{"role": "user", "content": None}], [{"role": "user", "content": ""}]),
    ("a message from another agent", [
        words("assistant", "a"), {"type": "agent_message", "author": "/root", "recipient": "/root/x", "content": [
            {"type": "input_text", "text": "Payload:\n"}, {"type": "encrypted_content", "encrypted_content": "list"}]},
        words("assistant", "b"), {"type": "agent_message", "content": None}], [
        assistant("a"), {"role": "user", "content": [
            {"type": "text", "text": "Payload:\n"}, {"type": "text", "text": "list"}]},
        assistant("b"), {"role": "user", "content": ""}]),
    ("one answer", [USER, reasoned("r"), words("assistant", "c", kind="output_text"), call("1"), call("2"), result("1"),
                    result("2")], [USER, assistant("c", "r", ("1", "2")), tool("1"), tool("2")]),
    ("text behind calls", [USER, words("assistant", "c"), call("1"), words("assistant", "d"), result("1")], [
        USER, assistant("cd", None, ("1",)), tool("1")]),
    ("a call each round", [USER, call("1"), result("1"), call("2"), result("2"), words("assistant", "c")], [
        USER, assistant(calls=("1",)), tool("1"), assistant(calls=("2",)), tool("2"), assistant("c")]),
    ("reasoning begins an answer", [
        USER, reasoned("r"), words("assistant", "c"), reasoned("s"), call("1"), result("1")], [
        USER, assistant("c", "r"), assistant("", "s", ("1",)), tool("1")]),
    ("two messages of the assistant", [USER, words("assistant", "a"), words("assistant", "b")], [
        USER, assistant("a"), assistant("b")]),
    ("but one of one response", [USER, words("assistant", "a", id=f"msg_{A}_0"), reasoned("r", id=f"rs_{A}_1"),
                                 words("assistant", "b", id=f"msg_{A}_2"), words("assistant", "c", id=f"msg_{B}_0")], [
        USER, assistant("ab", "r"), assistant("c")]),
    ("results between the calls of one response", [
        USER, call("1", id=f"fc_{A}_0"), result("1"), call("2", id=f"fc_{A}_1"), result("2"), call("3", id=f"fc_{B}_0"),
        result("3")], [
        USER, assistant(calls=("1", "2")), tool("1"), tool("2"), assistant(calls=("3",)), tool("3")]),
    ("a summary in the place of reasoning", [
        USER, {"type": "reasoning", "summary": [{"type": "summary_text", "text": t} for t in "ab"]},
        words("assistant", "c")], [USER, assistant("c", "a\n\nb")]),
    ("a refusal", [USER, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}], [
        USER, assistant("no")]),
    ("reasoning alone", [USER, reasoned("r"), USER], [USER, assistant("", "r"), USER]),
    ("a record", [USER, call("1"), {"type": "reasoning", "summary": [], "encrypted_content": "e"}, result("1")], [
        USER, {**assistant(calls=("1",)), "dovetail": {"record": "e"}}, tool("1")]),
]  # fmt: skip


@pytest.mark.parametrize(("items", "messages"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_items_become_messages(items: list[Any], messages: list[Any]) -> None:
    assert messages_of(*items) == messages


_ids = st.sampled_from([None, A, B])
_items = st.lists(
    st.one_of(
        st.builds(lambda i: words("assistant", "c", id=f"msg_{i}_0"), _ids),
        st.builds(lambda i: reasoned("r", id=f"rs_{i}_0"), _ids),
        st.builds(lambda i: call("1", id=f"fc_{i}_0"), _ids),
        st.builds(lambda role: words(role, "u"), st.sampled_from(["user", "system", "developer"])),
        st.just(result("1")),
    ),
    max_size=12,
)


@given(items=_items)
def test_nothing_is_lost_or_out_of_order(items: list[Any]) -> None:
    """Every item is in a message, users' and results in their order, and each place of a message has a name."""
    conversation = Conversation(lambda name: None)
    conversation.add_input(items)
    messages = conversation.messages
    if messages:
        check_messages(messages)

    def count(kind: str) -> int:
        return sum(item["type"] == kind for item in items)

    assert sum(len(m["content"]) for m in messages if m["role"] == "assistant") == sum(
        item.get("role") == "assistant" for item in items
    )
    assert sum(len(m.get("reasoning_content", "")) for m in messages) == count("reasoning")
    assert sum(len(m.get("tool_calls", ())) for m in messages) == count("function_call")
    others = [
        item.get("role", "tool")
        for item in items
        if item["type"] == "function_call_output" or item.get("role", "assistant") != "assistant"
    ]
    assert [m["role"] for m in messages if m["role"] != "assistant"] == others
    assert all(f"messages[{i}]" in conversation.fields for i in range(len(messages)))
