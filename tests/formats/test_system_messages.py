"""System messages stay where the model knows them; elsewhere they become text at their own place in the prompt."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dovetail
from dovetail.errors import RenderError
from dovetail.formats.base import Format
from dovetail.formats.prompts import turns
from dovetail.formats.prompts.turns import Place, Repairs, Slot
from dovetail.formats.registry import FAMILIES
from tests.examples import seeds
from tests.formats import chat_templates

ROLES = st.sampled_from(["system", "user", "assistant", "tool"])


def placed(history: list[dict[str, Any]], known: Place, repairs: Repairs) -> list[dict[str, Any]]:
    slots = [Slot(i, [message]) for i, message in enumerate(history)]
    return [slot.joined("reasoning_content") for slot in turns.placed(slots, known, repairs)]


def words(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Messages whose contents are words of their own, as a string or as parts."""
    history: list[dict[str, Any]] = []
    for i, role in enumerate(draw(st.lists(ROLES, min_size=1, max_size=9))):
        text = f"word{i}."
        parts = draw(st.booleans())
        history.append({"role": role, "content": [{"type": "text", "text": text}] if parts else text})
    return history


@given(histories(), st.sampled_from(["first", "one"]))
def test_no_system_message_is_left_where_the_model_does_not_know_it(
    history: list[dict[str, Any]], known: Place
) -> None:
    made: list[tuple[str, str, str]] = []
    original = [dict(message) for message in history]
    result = placed(history, known, lambda *repair: not made.append(repair))  # type: ignore[func-returns-value]
    assert history == original, "the client's messages were changed"
    # Every text is there once, in order, and those of other roles in messages of their role.
    text = "".join(words(message["content"]) for message in result)
    places = [text.find(f"word{i}.") for i in range(len(history))]
    assert places == sorted(places) and places[0] >= 0
    for i, message in enumerate(history):
        if message["role"] != "system":
            (holder,) = (m for m in result if f"word{i}." in words(m["content"]))
            assert holder["role"] == message["role"]
    systems = [i for i, message in enumerate(result) if message["role"] == "system"]
    assert systems == list(range(len(systems)))
    assert known == "first" or len(systems) <= 1
    # As many repairs as system messages that moved.
    leading = next((i for i, message in enumerate(history) if message["role"] != "system"), len(history))
    later = sum(message["role"] == "system" for message in history[leading:])
    merged = max(0, leading - 1) if known == "one" else 0
    assert sorted(kind for kind, *_ in made) == ["system_merged"] * merged + ["system_role"] * later
    assert placed(result, known, lambda *repair: pytest.fail("repaired twice")) == result


@given(histories(), st.sampled_from(["anywhere", "first", "one"]))
def test_what_came_before_an_answer_stays_as_it_was(history: list[dict[str, Any]], known: Place) -> None:
    whole = placed(history, known, lambda *_: True)
    for end in (i + 1 for i, message in enumerate(history) if message["role"] == "assistant"):
        before = placed(history[:end], known, lambda *_: True)
        assert whole[: len(before)] == before


def test_a_repair_that_is_off_and_messages_with_tools_stay() -> None:
    history = [
        {"role": "system", "content": "a"},
        {"role": "system", "content": "b"},
        {"role": "user", "content": "c"},
        {"role": "system", "content": "d"},
    ]
    assert placed(history, "one", lambda *_: False) == history
    declaring: list[dict[str, Any]] = [
        {"role": "user", "content": "c"},
        {"role": "system", "content": "", "tools": [{}]},
    ]
    assert placed(declaring, "one", lambda *_: pytest.fail("moved")) == declaring


# -- in prompts -------------------------------------------------------------------------------------------------------

BEGINNING = [
    {"role": "system", "content": "Wrules"},
    {"role": "user", "content": "Wquestion"},
    {"role": "assistant", "content": "Wanswer"},
]
HISTORIES = {
    "between turns": [*BEGINNING, {"role": "system", "content": "Wnew"}, {"role": "user", "content": "Wlast"}],
    "at the end": [*BEGINNING, {"role": "user", "content": "Wlast"}, {"role": "system", "content": "Wnew"}],
    "two at the beginning": [{"role": "system", "content": "Wfirst"}, *BEGINNING, {"role": "user", "content": "Wlast"}],
}


def check(fmt: Format) -> None:
    """Each word is in the prompt once, in the order of the history, after the beginning as it was, before an answer."""
    opening = rendered(fmt, [*BEGINNING, {"role": "user", "content": "Wlast"}]).rpartition("Wlast")[2]
    for name, history in HISTORIES.items():
        text = rendered(fmt, history)
        places = [text.find(message["content"]) for message in history]
        assert places == sorted(places) and places[0] >= 0, (name, text)
        assert text.endswith(opening), (name, text)
        if name != "two at the beginning":
            before = rendered(fmt, [*BEGINNING, {"role": "user", "content": "Wlast"}]).partition("Wanswer")[0]
            assert text.startswith(before), name


def rendered(fmt: Format, messages: list[dict[str, Any]]) -> str:
    repaired, _ = fmt.repair(messages)
    return fmt.render(repaired).text


@functools.cache
def rendering() -> list[str]:
    names = []
    for name in FAMILIES:
        try:
            dovetail.format(name).render([{"role": "user", "content": "hi"}])
            names.append(name)
        except RenderError:
            pass
    return names


@pytest.mark.parametrize("name", rendering())
def test_every_familys_prompts_show_them_in_place(name: str) -> None:
    check(dovetail.format(name))


@pytest.mark.parametrize("first", seeds(10, quick=1))
def test_every_published_templates_prompts_show_them_in_place(shared_data: Path, first: int) -> None:
    places: dict[str, int] = {}
    for path in chat_templates.paths(shared_data)[first::10]:
        fmt = chat_templates.of(path)
        try:
            plain = fmt.render([*BEGINNING, {"role": "user", "content": "Wlast"}]).text
        except RenderError:
            continue  # the model knows no system messages at all
        if not 0 <= plain.find("Wrules") < plain.find("Wquestion"):
            continue  # it drops the first system message, or puts it into the last user message
        check(fmt)
        places[fmt.history_rules.system] = places.get(fmt.history_rules.system, 0) + 1
    assert sum(places.values()) >= 4
    assert first or places.keys() >= {"anywhere", "first", "one"}
