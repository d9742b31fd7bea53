"""Law 9 for every family: each kind of repair, alone and turned off, and any history at all."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dovetail.errors import InvalidRequest
from dovetail.formats.prompts.history import (
    BILLING_LINE,
    DATE_LINE,
    GENERIC_TOOLS,
    KINDS,
    REASONING_FIELDS,
    TOOLS_ORDER,
    UNMARKED_CALL,
    HistoryRules,
    Repair,
    listed_kinds,
    repaired,
)

ANY = HistoryRules()
KIMI = HistoryRules(call_id=lambda name, number: f"functions.{name}:{number}", developer=False)
TEXT = HistoryRules(parts="text", reasoning_field="thinking")
PARTS = HistoryRules(parts="parts")
OBJECTS = HistoryRules(arguments="object")
ORDER = HistoryRules(results_in_order=True)
HIDDEN = HistoryRules(hides_calls=True, hides_results=True)
FIRST, ONE = HistoryRules(system="first"), HistoryRules(system="one")
NEIGHBOURS, SPOKEN = HistoryRules(alternation="neighbours"), HistoryRules(alternation="spoken")
NEEDS_USER, ONE_CALL = HistoryRules(needs_user=True), HistoryRules(one_call=True)

Messages = list[dict[str, Any]]
USER = {"role": "user", "content": "go"}
EMPTY_USER = {"role": "user", "content": ""}
SYSTEM = {"role": "system", "content": "s"}


def repair(messages: Any, rules: HistoryRules, off: Any = (), **options: Any) -> tuple[Messages, list[Repair]]:
    changed, repairs, _ = repaired(messages, rules, off, **options)
    return changed, repairs


def asks(*ids: str, arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    calls = [{"id": i, "type": "function", "function": {"name": "f", "arguments": arguments}} for i in ids]
    return {"role": "assistant", "content": "", "tool_calls": calls, **more}


def answer(call_id: str, content: Any = "done") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def says(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def text(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": t} for t in texts]


IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}

# A kind of repair, the rules that need it, a history, and the repaired history.
CHANGES: list[tuple[str, HistoryRules, Messages, Messages]] = [
    ("developer_role", KIMI, [{"role": "developer", "content": "x"}], [{"role": "system", "content": "x"}]),
    (
        "system_role",
        FIRST,
        [USER, {"role": "system", "content": "x"}],
        [{"role": "user", "content": "go\n\n<system-reminder>\nx\n</system-reminder>"}],
    ),
    (
        "system_role",
        ONE,
        [says("a"), {"role": "system", "content": text("x")}, USER],
        [
            says("a"),
            {"role": "user", "content": text("<system-reminder>\n", "x", "\n</system-reminder>", "\n\n", "go")},
        ],
    ),
    (
        "system_merged",
        ONE,
        [{"role": "system", "content": "a"}, {"role": "system", "content": "b"}, USER],
        [{"role": "system", "content": "a\n\nb"}, USER],
    ),
    ("user_merged", SPOKEN, [USER, user("x"), says("a"), USER], [user("go\n\nx"), says("a"), USER]),
    ("user_merged", NEIGHBOURS, [SYSTEM, USER, USER, user("")], [SYSTEM, user("go\n\ngo")]),
    ("user_merged", SPOKEN, [user(""), user("")], [user("")]),
    (
        "user_merged",
        SPOKEN,
        [user([*text("a"), IMAGE]), user("b"), user("")],
        [user([*text("a"), IMAGE, *text("\n\n", "b")])],
    ),
    (
        "assistant_merged",
        SPOKEN,
        [USER, says("a", reasoning_content="r"), says("b"), says("c", reasoning_content="s"), USER],
        [USER, says("a\n\nb\n\nc", reasoning_content="r\n\ns"), USER],
    ),
    (
        "assistant_merged",
        SPOKEN,
        [USER, says("a"), asks("1"), answer("1"), says("b"), USER],
        [USER, {**asks("1"), "content": "a"}, answer("1"), says("b"), USER],
    ),
    (
        "assistant_merged",
        NEIGHBOURS,
        [USER, asks("1"), asks("2", reasoning_content="r"), says("b")],
        [USER, {**asks("1", "2"), "content": "b", "reasoning_content": "r"}],
    ),
    (
        "assistant_added",
        SPOKEN,
        [USER, asks("1"), answer("1"), USER],
        [USER, asks("1"), answer("1"), says("Understood."), USER],
    ),
    ("user_added", SPOKEN, [SYSTEM, says("a"), USER], [SYSTEM, EMPTY_USER, says("a"), USER]),
    ("user_added", SPOKEN, [asks("1"), answer("1"), says("a")], [EMPTY_USER, asks("1"), answer("1"), says("a")]),
    (
        "user_added",
        SPOKEN,
        [USER, says("a"), answer("1"), says("a")],
        [USER, says("a"), answer("1"), EMPTY_USER, says("a")],
    ),
    ("user_added", NEEDS_USER, [SYSTEM], [SYSTEM, EMPTY_USER]),
    ("user_added", NEEDS_USER, [SYSTEM, asks("1"), answer("1")], [SYSTEM, EMPTY_USER, asks("1"), answer("1")]),
    (
        "calls_split",
        ONE_CALL,
        [USER, asks("1", "2", content="x", reasoning_content="r"), answer("2", "b"), answer("1", "a"), says("c")],
        [
            USER,
            asks("1", content="x", reasoning_content="r"),
            answer("1", "a"),
            asks("2"),
            answer("2", "b"),
            says("c"),
        ],
    ),
    (
        "calls_split",
        ONE_CALL,
        [asks("1", "1"), answer("1", "a"), answer("1", "b")],
        [asks("1"), answer("1", "a"), asks("1"), answer("1", "b")],
    ),
    (
        "calls_split",
        ONE_CALL,
        [asks("1"), answer("1"), asks("2", "3"), answer("1"), answer("3"), answer("4")],
        [asks("1"), answer("1"), asks("2"), asks("3"), answer("3"), answer("1"), answer("4")],
    ),
    ("null_reasoning", ANY, [says("x", reasoning_content=None)], [says("x")]),
    ("null_reasoning", ANY, [says("x", thinking=None)], [says("x")]),
    ("reasoning_field", ANY, [says("x", reasoning="hm")], [says("x", reasoning_content="hm")]),
    ("reasoning_field", TEXT, [says("x", reasoning_content="hm")], [says("x", thinking="hm")]),
    ("reasoning_field", ANY, [says("x", thinking="no", reasoning_content="hm")], [says("x", reasoning_content="hm")]),
    ("reasoning_field", ANY, [says("x", thinking="hm", reasoning_content="")], [says("x", reasoning_content="hm")]),
    ("reasoning_field", ANY, [says("x", reasoning="")], [says("x")]),
    ("empty_content", ANY, [says(None)], [says("")]),
    ("empty_content", ANY, [says([])], [says("")]),
    ("empty_content", ANY, [says(text("", ""))], [says("")]),
    ("empty_content", ANY, [{"role": "user"}], [{"role": "user", "content": ""}]),
    ("empty_content", PARTS, [says(None)], [says(text(""))]),
    ("empty_content", PARTS, [says("")], [says(text(""))]),
    ("content_parts", TEXT, [says(text("a ", "b"))], [says("a b")]),
    ("content_parts", TEXT, [asks("a"), answer("a", text("x"))], [asks("a"), answer("a", "x")]),
    ("content_parts", PARTS, [says("ab")], [says(text("ab"))]),
    ("empty_calls", ANY, [says("x", tool_calls=None)], [says("x")]),
    ("empty_calls", ANY, [says("x", tool_calls=[])], [says("x")]),
    (
        "result_order",
        ORDER,
        [asks("a", "b", "c"), answer("c"), answer("b"), answer("a"), USER],
        [asks("a", "b", "c"), answer("a"), answer("b"), answer("c"), USER],
    ),
    ("hidden_call", HistoryRules(hides_calls=True), [asks("a"), answer("a")], [asks("a"), answer("a")]),
    ("hidden_result", HistoryRules(hides_results=True), [asks("a"), answer("a")], [asks("a"), answer("a")]),
    (
        "picture_moved",
        HistoryRules(pictures=frozenset(("user",))),
        [asks("a"), {**answer("a"), "content": [*text("x"), IMAGE]}],
        [asks("a"), {**answer("a"), "content": text("x")}, {"role": "user", "content": [IMAGE]}],
    ),
    ("call_id", KIMI, [asks("a"), answer("a")], [asks("functions.f:0"), answer("functions.f:0")]),
    ("result_id", KIMI, [asks("a"), answer("a")], [asks("functions.f:0"), answer("functions.f:0")]),
    (
        "arguments_object",
        OBJECTS,
        [asks("a", arguments='{"n": 12345678901234567890, "é": [1.5]}'), answer("a")],
        [asks("a", arguments={"n": 12345678901234567890, "é": [1.5]}), answer("a")],
    ),
    ("arguments_object", OBJECTS, [asks("a", arguments=" "), answer("a")], [asks("a", arguments={}), answer("a")]),
]
CHANGES += [
    (
        "invalid_arguments",
        OBJECTS,
        [asks("a", arguments=wrong), answer("a")],
        [asks("a", arguments={"arguments": wrong}), answer("a")],
    )
    for wrong in ('{"a": ', "[1]", "null", '"{}"', "NaN", '{"a": 1e999}', '{"a": "\ud800"}', '{"a":' * 100_000, "\0")
]
REFUSED: list[tuple[str, Messages, str]] = [
    ("orphan_result", [USER, answer("a")], "messages[1].tool_call_id"),
    ("orphan_result", [asks("a"), answer("b"), answer("a")], "messages[1].tool_call_id"),
    ("orphan_result", [answer("a"), asks("a"), answer("a")], "messages[0].tool_call_id"),
    ("unanswered_call", [asks("a")], "messages[0].tool_calls[0].id"),
    ("unanswered_call", [asks("a", "b"), answer("a"), USER, answer("b")], "messages[0].tool_calls[1].id"),
    ("unanswered_call", [USER, asks("a"), asks("a"), answer("a")], "messages[1].tool_calls[0].id"),
    ("unanswered_call", [asks("a", "a"), answer("a")], "messages[0].tool_calls[1].id"),
]


def test_every_kind_has_a_case() -> None:
    assert {kind for kind, *_ in CHANGES} | {kind for kind, *_ in REFUSED} == {*KINDS} - {
        UNMARKED_CALL,
        GENERIC_TOOLS,
        BILLING_LINE,
        TOOLS_ORDER,
        DATE_LINE,
    }


@pytest.mark.parametrize(("kind", "rules", "messages", "expected"), CHANGES, ids=[kind for kind, *_ in CHANGES])
def test_each_repair_is_made_and_reported_and_can_be_left_off(
    kind: str, rules: HistoryRules, messages: Messages, expected: Messages
) -> None:
    refusals = {"orphan_result", "unanswered_call"}
    repaired, repairs = repair(messages, rules, refusals)
    others = {"call_id", "result_id"} - {kind}  # which go together
    assert repaired == expected
    assert kind in {r.kind for r in repairs} <= {kind, *others}
    for r in repairs:
        assert r.where.startswith("messages[")
    left, repairs = repair(messages, rules, {kind, *others, *refusals})
    assert (left, repairs) == (messages, [])


@pytest.mark.parametrize(("kind", "messages", "param"), REFUSED)
@pytest.mark.parametrize("rules", [ANY, KIMI])
def test_calls_and_results_that_do_not_match_are_refused_by_field(
    kind: str, messages: Messages, param: str, rules: HistoryRules
) -> None:
    with pytest.raises(InvalidRequest, match=f"leave off the repair {kind}$") as refused:
        repair(messages, rules)
    assert refused.value.param == param
    assert param in refused.value.message
    left, repairs = repair(messages, rules, ["orphan_result", "unanswered_call", "call_id"])
    assert (left, repairs) == (messages, [])


def test_a_refusal_that_is_off_does_not_affect_other_results() -> None:
    off = ["orphan_result", "unanswered_call"]
    history = [answer("z"), asks("a", "b"), answer("a", "1"), USER, answer("b", "2"), asks("c")]
    repaired, _ = repair(history, KIMI, off)
    assert [m["tool_call_id"] for m in repaired if m["role"] == "tool"] == ["z", "functions.f:0", "functions.f:1"]
    assert repair(repaired, KIMI, off) == (repaired, [])


def test_ids_stay_if_the_family_has_no_rule() -> None:
    history = [
        asks("search:2", "call_abc"),
        answer("call_abc"),
        answer("search:2"),
        asks("call_abc"),
        answer("call_abc"),
    ]
    assert repair(history, ANY) == (history, [])


def test_ids_count_over_the_whole_conversation() -> None:
    first, second = asks("call_a", "call_b"), asks("search:2")
    history = [USER, first, answer("call_b", "b"), answer("call_a", "a"), USER, second, answer("search:2", "c")]
    repaired, repairs = repair(history, KIMI)
    made = [call["id"] for message in repaired for call in message.get("tool_calls", ())]
    assert made == ["functions.f:0", "functions.f:1", "functions.f:2"]
    answered = [(message["tool_call_id"], message["content"]) for message in repaired if message["role"] == "tool"]
    assert answered == [("functions.f:1", "b"), ("functions.f:0", "a"), ("functions.f:2", "c")]
    assert [each.kind for each in repairs] == ["call_id"] * 2 + ["result_id"] * 2 + ["call_id", "result_id"]
    assert (repairs[4].where, repairs[5].detail) == ("messages[5].tool_calls[0].id", "search:2 -> functions.f:2")


@pytest.mark.parametrize(
    "history", [[asks("a"), answer("a"), asks("a"), answer("a")], [asks("a", "a"), answer("a"), answer("a")]]
)
def test_calls_that_share_an_id_get_their_own_results(history: Messages) -> None:
    """In two turns, each turn's result answers its own call; in one turn, results answer the calls in order."""
    repaired, _ = repair(history, KIMI)
    answered = [message["tool_call_id"] for message in repaired if message["role"] == "tool"]
    assert answered == ["functions.f:0", "functions.f:1"]


def test_parallel_results_keep_the_clients_order() -> None:
    history = [asks("a", "b", "c"), answer("c"), answer("a"), answer("b")]
    repaired, _ = repair(history, KIMI)
    assert [m["tool_call_id"] for m in repaired[1:]] == ["functions.f:2", "functions.f:0", "functions.f:1"]


def test_every_result_that_moves_is_reported() -> None:
    history = [USER, asks("a", "b", "b"), answer("b", "1"), answer("b", "2"), answer("a"), USER]
    repaired, repairs = repair(history, ORDER)
    assert repaired == [*history[:2], history[4], history[2], history[3], USER]
    assert [(r.kind, r.where, r.detail) for r in repairs] == [
        ("result_order", "messages[4]", "-> messages[2]"),
        ("result_order", "messages[2]", "-> messages[3]"),
        ("result_order", "messages[3]", "-> messages[4]"),
    ]


@pytest.mark.parametrize(
    "history",
    [
        [asks("a"), answer("a"), asks("b", "c"), answer("c"), answer("a")],  # of another turn
        [asks("a", "b"), answer("b"), answer("x"), answer("a")],  # of no call
        [asks("a", "b"), says("wait"), answer("b"), answer("a")],
    ],
)
def test_results_of_another_message_are_not_sorted(history: Messages) -> None:
    assert repair(history, ORDER, ["orphan_result", "unanswered_call"]) == (history, [])


def test_results_keep_their_ids_with_result_id_off() -> None:
    repaired, repairs = repair([asks("a"), answer("a")], KIMI, ["result_id"])
    assert repaired == [asks("functions.f:0"), answer("a")]
    assert [r.kind for r in repairs] == ["call_id"]


def test_parts_that_are_not_text_stay_for_the_renderer() -> None:
    history = [says([*text("a"), IMAGE]), says([IMAGE])]
    for rules in (ANY, TEXT, PARTS):
        assert repair(history, rules) == (history, [])


def test_strings_and_parts_stay_with_content_parts_off() -> None:
    for rules, content, empty in ((PARTS, "x", None), (TEXT, text("x"), [])):
        repaired, _ = repair([says(content), says(empty)], rules, ["content_parts"])
        assert repaired == [says(content), says("")]


def test_reasoning_that_is_not_text_stays() -> None:
    history = [says("x", thinking={"budget": 3}), says("x", reasoning_content=["a"])]
    assert repair(history, ANY) == (history, [])


def test_arguments_that_may_be_strings_stay_unchanged() -> None:
    for arguments in ("", "{", "null", {"a": 1}):
        history = [asks("a", arguments=arguments), answer("a")]
        assert repair(history, ANY) == (history, [])
    objects = [asks("a", arguments={"a": 1}), answer("a")]
    assert repair(objects, OBJECTS) == (objects, [])


def test_calls_and_results_that_the_prompt_does_not_show_are_reported() -> None:
    """Once for each message, and only those that the template would have to show."""
    history = [USER, asks("a", "b"), answer("b"), answer("a"), says("done"), says("", tool_calls=[])]
    repaired, repairs = repair(history, HIDDEN)
    assert repaired == [*history[:-1], says("")]
    assert [(each.kind, each.where) for each in repairs] == [
        ("hidden_call", "messages[1].tool_calls"),
        ("hidden_result", "messages[2]"),
        ("hidden_result", "messages[3]"),
        ("empty_calls", "messages[5].tool_calls"),
    ]
    assert [each.kind for each in repair(history, HIDDEN, verbatim={1: "a b"})[1]][:1] == ["hidden_result"]


@pytest.mark.parametrize("off", [["call_ids"], "call_id", ["call_id", 3], ["x" * 1000]])
def test_an_unknown_kind_is_refused_with_those_there_are(off: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"there is no repair .*; there are developer_role, .*unanswered_call$"):
        repair([USER], ANY, off)


def test_kinds_can_be_listed_in_a_word() -> None:
    assert listed_kinds("all") == {*KINDS}
    assert listed_kinds("none") == frozenset()
    assert listed_kinds("call_id,result_id") == {"call_id", "result_id"}
    for wrong in ("", "call_id, result_id", "call_id,all"):
        with pytest.raises(InvalidRequest, match="there is no repair"):
            listed_kinds(wrong)


# (messages, the field that is named)
WRONG: list[tuple[Any, str]] = [
    (None, "messages"),
    ({}, "messages"),
    ("", "messages"),
    ("hi", "messages"),
    ([3], "messages[0]"),
    ([[["role", "user"], ["content", "hi"]]], "messages[0]"),
    ([{"content": 3}], "messages[0].role"),
    ([{"role": "user", "content": {}}], "messages[0].content"),
    ([{"role": "user", "content": False}], "messages[0].content"),
    ([{"role": "user", "content": ["hi"]}], "messages[0].content[0]"),
    ([{"role": "user", "content": [{"text": "hi"}]}], "messages[0].content[0]"),
    ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
    ([{"role": "tool", "content": "hi"}], "messages[0].tool_call_id"),
    ([{"role": "tool", "content": "hi", "tool_call_id": ["a"]}], "messages[0].tool_call_id"),
    ([{"role": "assistant", "tool_calls": 3}], "messages[0].tool_calls"),
    ([{"role": "assistant", "tool_calls": {"id": "a"}}], "messages[0].tool_calls"),
    ([{"role": "assistant", "tool_calls": ["a"]}], "messages[0].tool_calls[0]"),
    ([{"role": "assistant", "tool_calls": [{"id": "a"}]}], "messages[0].tool_calls[0].function.name"),
    (
        [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": ""}}]}],
        "messages[0].tool_calls[0].id",
    ),
    (
        [{"role": "assistant", "tool_calls": [{"id": 3, "function": {"name": "f", "arguments": ""}}]}],
        "messages[0].tool_calls[0].id",
    ),
    (
        [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": 3, "arguments": ""}}]}],
        "messages[0].tool_calls[0].function.name",
    ),
    (
        [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f"}}]}],
        "messages[0].tool_calls[0].function.arguments",
    ),
]


@pytest.mark.parametrize("rules", [ANY, KIMI, TEXT, OBJECTS])
@pytest.mark.parametrize(("messages", "param"), WRONG)
def test_a_history_of_wrong_types_is_refused_by_field(messages: Any, param: str, rules: HistoryRules) -> None:
    with pytest.raises(InvalidRequest) as refused:
        repair(messages, rules)
    assert refused.value.param == param


def test_an_error_of_a_rule_is_an_invalid_request() -> None:
    def careless(name: str, number: int) -> str:
        raise LookupError(name)

    with pytest.raises(InvalidRequest, match="messages cannot be repaired: f"):
        repair([asks("a"), answer("a")], HistoryRules(call_id=careless))


IDS = st.sampled_from(("call_a", "call_b", "search:2", "functions.f:0", "functions.f:1"))
CONTENT = st.sampled_from((None, "", "x", [], *map(text, ("", "a")), text("a", "b"), text("", ""), [*text("a"), IMAGE]))
REASONING = st.dictionaries(st.sampled_from(REASONING_FIELDS), st.sampled_from((None, "", "hm", "so", 3)), max_size=3)
ARGUMENTS = st.sampled_from(("", "{}", '{"a": 1}', "[", "null", {"a": 1}))
RULES = st.builds(
    HistoryRules,
    call_id=st.sampled_from((None, KIMI.call_id)),
    parts=st.sampled_from(("any", "text", "parts")),
    arguments=st.sampled_from(("any", "object")),
    developer=st.booleans(),
    system=st.sampled_from(("anywhere", "first", "one")),
    alternation=st.sampled_from(("any", "neighbours", "spoken")),
    needs_user=st.booleans(),
    one_call=st.booleans(),
    results_in_order=st.booleans(),
    pictures=st.sampled_from((None, frozenset(("user",)), frozenset(("user", "tool")))),
    reasoning_field=st.sampled_from((*REASONING_FIELDS, "thoughts")),
)


@st.composite
def histories(draw: st.DrawFn) -> Messages:
    """Turns of any shape, in which results may be missing, too many, too late, or in another order."""
    history: Messages = []
    for _ in range(draw(st.integers(0, 4))):
        history.append({"role": draw(st.sampled_from(("system", "developer", "user"))), "content": draw(CONTENT)})
        if draw(st.booleans()):
            message = {"role": "assistant", "content": draw(CONTENT), **draw(REASONING)}
            ids = draw(st.lists(IDS, max_size=3))
            if ids or draw(st.booleans()):
                message["tool_calls"] = asks(*ids, arguments=draw(ARGUMENTS))["tool_calls"] or draw(
                    st.sampled_from((None, []))
                )
            history.append(message)
            answered = draw(st.permutations(ids)) if draw(st.integers(0, 3)) else draw(st.lists(IDS, max_size=3))
            history += [answer(i, draw(CONTENT)) for i in answered]
    return history


# With only `result_id` turned off, calls are renamed and results are not, so that they cannot be matched again.
OFF = st.sets(st.sampled_from(sorted(KINDS))).filter(lambda off: off & {"call_id", "result_id"} != {"result_id"})


@given(histories(), RULES, OFF)
@example(
    [{"role": role, "content": None} for role in ("system", "assistant") * 2],
    HistoryRules(system="first"),
    {"empty_content"},
)
def test_repair_is_pure_and_idempotent_and_skips_kinds_that_are_off(
    history: Messages, rules: HistoryRules, off: set[str]
) -> None:
    before = copy.deepcopy(history)
    try:
        repaired, repairs = repair(history, rules, off)
    except InvalidRequest as error:
        assert error.param is not None and error.param.startswith("messages[")
        assert not {"orphan_result", "unanswered_call"} <= off
        return
    finally:
        assert history == before
    assert not off & {r.kind for r in repairs}
    assert repair(repaired, rules, off) == (repaired, [])
    assert (repaired == history) == (not repairs)


@given(histories(), RULES)
def test_a_repaired_history_follows_the_rules(history: Messages, rules: HistoryRules) -> None:
    repaired, _ = repair(history, rules, ["orphan_result", "unanswered_call"])
    for number, call in enumerate(call for m in repaired for call in m.get("tool_calls", ())):
        if rules.call_id is not None:
            assert call["id"] == rules.call_id("f", number)
        if rules.arguments == "object":
            assert isinstance(call["function"]["arguments"], dict)
    for message in repaired:
        content = message["content"]
        assert content or rules.parts != "parts"
        if rules.parts == "text":
            assert isinstance(content, str) or IMAGE in content
        if rules.parts == "parts":
            assert isinstance(content, list)
        assert rules.developer or message["role"] != "developer"
        assert message.get("tool_calls", True)
        assert not any(isinstance(message.get(field), str) for field in {*REASONING_FIELDS} - {rules.reasoning_field})
        assert None not in (message.get(field, "") for field in REASONING_FIELDS)


@given(histories(), st.data())
def test_results_stay_with_their_calls(history: Messages, data: st.DataObject) -> None:
    """Which call a result answers is the same before and after, as the client's ids had it."""
    turn = asks("x", "y", "x")
    results = data.draw(st.permutations(["x", "y", "x"]))
    history = [*history, turn, *map(answer, results)]
    repaired, _ = repair(history, KIMI, ["orphan_result", "unanswered_call"])
    ids = [call["id"] for call in repaired[-4]["tool_calls"]]
    of = {"x": iter((ids[0], ids[2])), "y": iter((ids[1],))}
    assert [m["tool_call_id"] for m in repaired[-3:]] == [next(of[call_id]) for call_id in results]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def positions_in(value: Any) -> list[tuple[Any, Any]]:
    """Every place in JSON where a value stands, as the list or object around it and its key there."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    return [place for key in keys for place in ((value, key), *positions_in(value[key]))]


@given(histories(), RULES, st.data())
def test_nothing_in_a_history_breaks_repair(history: Messages, rules: HistoryRules, data: st.DataObject) -> None:
    """Some value anywhere in it replaced by some other JSON: repaired or refused, and nothing else."""
    history = json.loads(json.dumps(history))  # no two places share a value
    if positions := positions_in(history):
        holder, key = data.draw(st.sampled_from(range(len(positions))).map(positions.__getitem__))
        holder[key] = data.draw(JSON)
    try:
        messages, _, places = repaired(history, rules)
    except InvalidRequest as error:
        assert error.param is not None
    else:
        assert len(places) == len(history)
        for place, message in zip(places, history, strict=True):
            assert place is None or messages[place].get("role") in (message.get("role"), "system")


def test_beside_calls_null_may_be_wanted() -> None:
    rules = HistoryRules(null_beside_calls=True)
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": None},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "done"},
    ]
    repaired, repairs = repair(messages, rules)
    assert [message["content"] for message in repaired] == ["", None, "done"]
    assert [each.where for each in repairs] == ["messages[0].content", "messages[1].content"]
    assert repair(repaired, rules) == (repaired, [])
    assert repair(messages, rules, ["empty_content"]) == (messages, [])


def test_an_answer_in_the_models_own_words_keeps_the_ids_that_it_spells() -> None:
    """And no other repair of it is listed. A result has the id of its call; an id that is not spelled is repaired."""
    rules = HistoryRules(call_id=lambda name, number: f"functions.{name}:{number}", parts="text")

    def turn(*ids: str) -> list[dict[str, Any]]:
        calls = [{"id": each, "function": {"name": "now", "arguments": "{}"}} for each in ids]
        results = [{"role": "tool", "tool_call_id": each, "content": "12"} for each in ids]
        return [{"role": "assistant", "content": None, "tool_calls": calls}, *results]

    messages = [*turn("now:7", "call_1"), *turn("functions.now:0")]
    repaired, repairs = repair(messages, rules, verbatim={0: "it says now:7 and nothing else"})
    assert [call["id"] for call in repaired[0]["tool_calls"]] == ["now:7", "functions.now:1"]
    assert [message["tool_call_id"] for message in repaired if "tool_call_id" in message] == [
        *("now:7", "functions.now:1", "functions.now:2"),
    ]
    assert [(repair.kind, repair.where) for repair in repairs] == [
        ("result_id", "messages[2].tool_call_id"),
        ("empty_content", "messages[3].content"),
        ("call_id", "messages[3].tool_calls[0].id"),
        ("result_id", "messages[4].tool_call_id"),
    ]
