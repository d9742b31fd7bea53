"""Histories whose turns a chat template refuses: repaired where it does, and nowhere else."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from random import Random
from typing import Any

import pytest

from dovetail.errors import DovetailError, RenderError
from dovetail.formats.derived.jinja import JinjaFormat
from tests.examples import seeds
from tests.formats import chat_templates
from tests.formats.conversations import TOOLS, assistant, calling, result, system, user

Messages = list[dict[str, Any]]
KINDS = ("user_merged", "assistant_merged", "assistant_added", "user_added", "calls_split")
#: What templates say when they refuse turns.
_REFUSES = re.compile("roles must alternate|single tool-calls at once|No user query found")


def template(shared_data: Path, name: str) -> JinjaFormat:
    path = shared_data / "templates/llama.cpp" / f"{name}.jinja"
    if not path.exists():
        pytest.skip(f"no published template {name}")
    return chat_templates.of(path)


SMALL, NEMO = "Mistral-Small-3.2-24B-Instruct-2506", "mistralai-Mistral-Nemo-Instruct-2407"
MINISTRAL, GEMMA = "mistralai-Ministral-3-14B-Reasoning-2512", "google-gemma-2-2b-it"
LLAMA, QWEN = "meta-llama-Llama-3.3-70B-Instruct", "Qwen3.5-4B"
CALLED = [user("go"), calling("now", arguments={}), result(0, "12", "now")]
TWO_CALLS = [user("go"), calling("get_weather", "now"), result(1, "12", "now"), result(0, "rain")]

# The template, a history that it refuses, the kinds of repair, and the roles and texts after them.
REFUSED: list[tuple[str, Messages, list[str], list[tuple[str, str]]]] = [
    (SMALL, [system("s"), user("one"), user("two")], ["user_merged"], [("system", "s"), ("user", "one\n\ntwo")]),
    (NEMO, [user("a"), assistant("b"), assistant("c"), user("d")], ["assistant_merged"], [
        ("user", "a"), ("assistant", "b\n\nc"), ("user", "d")]),
    (MINISTRAL, [assistant("a"), user("b")], ["user_added"], [("user", ""), ("assistant", "a"), ("user", "b")]),
    (MINISTRAL, [*CALLED, user("and?")], ["assistant_added"], [
        ("user", "go"), ("assistant", ""), ("tool", "12"), ("assistant", "Understood."), ("user", "and?")]),
    (MINISTRAL, [user("go"), assistant("a"), *CALLED[1:], assistant("b")], ["assistant_merged"], [
        ("user", "go"), ("assistant", "a"), ("tool", "12"), ("assistant", "b")]),
    (GEMMA, [assistant("a"), user("b"), user("c")], ["user_added", "user_merged"], [
        ("user", ""), ("assistant", "a"), ("user", "b\n\nc")]),
    (LLAMA, TWO_CALLS, ["calls_split"], [
        ("user", "go"), ("assistant", ""), ("tool", "rain"), ("assistant", ""), ("tool", "12")]),
    (QWEN, [system("s")], ["user_added"], [("system", "s"), ("user", "")]),
    (QWEN, CALLED[1:], ["user_added"], [("user", ""), ("assistant", ""), ("tool", "12")]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "history", "kinds", "shown"), REFUSED)
def test_a_history_that_the_template_refuses_is_repaired(
    shared_data: Path, name: str, history: Messages, kinds: list[str], shown: list[tuple[str, str]]
) -> None:
    fmt = template(shared_data, name)
    turn = fmt.turn(history, TOOLS)
    assert [repair.kind for repair in turn.repairs if repair.kind in KINDS] == kinds
    repaired, _ = fmt.repair(history)
    assert [(message["role"], message["content"]) for message in repaired] == shown
    for _, text in shown:
        assert text in turn.prompt.text
    with pytest.raises(RenderError, match="the chat template refuses this conversation"):
        fmt.turn(history, TOOLS, no_repair=kinds)


def test_a_result_follows_its_call(shared_data: Path) -> None:
    text = template(shared_data, LLAMA).turn(TWO_CALLS, TOOLS).prompt.text
    places = [text.rindex(word) for word in ('"get_weather"', "rain", '"now"', '"12"')]
    assert places == sorted(places)


ALTERNATING = """{% set ns = namespace(role='') %}{% for message in messages %}
{%- if message.role == ns.role %}{{ raise_exception('neighbours') }}{% endif %}{% set ns.role = message.role %}
{%- if loop.first and message.role != 'user' %}{{ raise_exception('first') }}{% endif %}
<|im_start|>{{ message.role }}
{% for part in message.content %}{{ part.text }}{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def test_messages_that_are_added_have_the_form_that_the_template_reads() -> None:
    fmt = chat_templates.of_source(ALTERNATING)
    assert (fmt.history_rules.alternation, fmt.history_rules.parts) == ("neighbours", "parts")
    repaired, _ = fmt.repair([assistant("a"), assistant("b"), user("c")])
    texts = [[part["text"] for part in message["content"]] for message in repaired]
    assert texts == [[""], ["a", "\n\n", "b"], ["c"]]
    assert "a\n\nb<|im_end|>" in fmt.render(repaired).text


@pytest.mark.parametrize("check", ["message.role == ns.role", "loop.first and message.role != 'user'"])
def test_a_template_that_refuses_only_a_part_is_left_alone(check: str) -> None:
    fmt = chat_templates.of_source(ALTERNATING.replace(check, "false"))
    assert fmt.history_rules.alternation == "any"


# -- all templates ----------------------------------------------------------------------------------------------------


def conversation(rng: Random) -> Messages:
    """Turns in any order. Each call has its result, in any order."""
    messages = [system("Wsystem")] if rng.random() < 0.3 else []
    number = 0
    for i in range(rng.randint(1, 7)):
        kind = rng.choice(("user", "user", "assistant", "assistant", "calls"))
        if kind == "user":
            messages.append(user(f"Wuser{i}."))
        elif kind == "assistant":
            messages.append(assistant(f"Wanswer{i}."))
        else:
            # Llama 3's templates take the first message for the user's, and show none of its calls.
            count = rng.choice((1, 1, 2)) if any(message["role"] != "system" for message in messages) else 1
            content = rng.choice(("", f"Wbeside{i}."))
            messages.append(calling(*["get_weather"] * count, content=content, first=number))
            results = [result(number + j, f"Wresult{number + j}.") for j in range(count)]
            messages += rng.sample(results, count)
            number += count
    return messages


def regular(messages: Messages) -> Messages:
    """A conversation of the same kinds of messages, in the order that every template knows."""
    begins = [message for message in messages if message["role"] == "system"]
    called = [user("Wq."), calling("get_weather"), result(0, "Wr.")] if any("tool_calls" in m for m in messages) else []
    return [*begins, *(called or [user("Wq.")]), assistant("Wa."), user("Wnext.")]


def rendered(fmt: JinjaFormat, messages: Messages, off: tuple[str, ...] = ()) -> str | None:
    try:
        return fmt.turn(messages, TOOLS, no_repair=off).prompt.text
    except DovetailError:
        return None


def check(fmt: JinjaFormat, rng: Random) -> tuple[int, int]:
    """Check one conversation. Whether it is repaired, and whether the template takes it as it is."""
    messages = conversation(rng)
    plain = rendered(fmt, messages, KINDS)
    repaired, repairs = fmt.repair(messages)
    kinds = {repair.kind for repair in repairs}
    if plain is not None:
        # Where Gemma 2 has no message of the user, its tools are one.
        assert kinds.isdisjoint(KINDS) or fmt.family_name == "generic", (messages, kinds)
        assert rendered(fmt, messages) == plain
        return 0, 1
    usual = rendered(fmt, regular(messages), KINDS)
    if usual is None:
        return 0, 0
    text = fmt.render(repaired, TOOLS).text
    assert kinds & {*KINDS}
    if "Wq." in usual and "Wnext." in usual:
        words = [message["content"] for message in messages if message["role"] == "user"]
        places = [text.find(word) for word in words]
        assert -1 not in places and places == sorted(places)
    for number in range(sum(message["role"] == "tool" for message in messages)):
        assert (f"Wresult{number}." in text) == ("Wr." in usual)
    assert fmt.repair(repaired)[0] == repaired
    return 1, 0


@functools.cache
def refusing(shared_data: Path) -> list[Path]:
    return [p for p in chat_templates.paths(shared_data) if _REFUSES.search(p.read_text(encoding="utf-8"))]


def test_templates_that_refuse_turns_get_random_conversations_repaired(shared_data: Path) -> None:
    """All of them but one, whose check has no effect, with conversations that they take, too."""
    without = set()
    for path in refusing(shared_data):
        rng = Random(path.stem)
        counts = [check(chat_templates.of(path), rng) for _ in range(60)]
        repaired, taken = map(sum, zip(*counts, strict=True))
        if not repaired:
            without.add(path.stem)
        assert taken
    assert without == {"tool_chat_template_mistral3"}


@pytest.mark.parametrize("first", seeds(10, quick=1))
def test_other_templates_get_them_as_they_are(shared_data: Path, first: int) -> None:
    for path in [path for path in chat_templates.paths(shared_data) if path not in refusing(shared_data)][first::10]:
        rng = Random(path.stem)
        assert sum(check(chat_templates.of(path), rng)[0] for _ in range(30)) == 0, path
