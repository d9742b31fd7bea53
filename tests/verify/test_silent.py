"""Suite `silent`: scripted models that go silent, say nothing or loop at a known rate, and who is to blame for it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.client.answer import Answer
from dovetail.client.endpoint import Limits
from dovetail.client.transport import Reply
from dovetail.completion import Completion
from dovetail.events import Call, Message
from dovetail.verify.language import Language
from dovetail.verify.outcome import Outcome
from dovetail.verify.report import html, junit, results
from dovetail.verify.suites import Silent
from dovetail.verify.suites.agent import Conversation
from dovetail.verify.suites.base import Figure
from dovetail.verify.suites.loops import Loop, loop_at_end
from dovetail.verify.suites.silent import kind_of
from tests.verify.harness import AppTransport, endpoint, gateway, kimi, verified
from tests.verify.model import Model

LOOP = "It is the same line again.\n" * 60
SILENT, EMPTY, LOOPING = Message("", "Hm, I know that."), Message(""), Message(LOOP, "Hm.")


#: A call to the first tool of each plan.
CALLS = {
    "list_files": '{"path": "src"}',
    "get_weather": '{"city": "Oslo"}',
    "find_orders": '{"customer": "Berg"}',
    "query": '{"sql": "select 1"}',
}


class Faulty(Model):
    """Answers with one of `faults` at its rate, by a hash of the prompt: the same request has the same answer.

    Else it answers an instruction with a call, and a result with a sentence.
    """

    def __init__(self, faults: Sequence[tuple[Message, float]]) -> None:
        super().__init__()
        self.faults = faults

    def wish(self, prompt: str, completion: Completion) -> Message:
        drawn = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:4]) / 2**32
        for message, rate in self.faults:
            drawn -= rate
            if drawn < 0:
                return message
        tool = next((name for name in CALLS if f"type {name} " in prompt), None)
        _, result, since = prompt.rpartition("## Return of")
        if tool is None or (result and "<|im_user|>" not in since):
            return Message("So it is.", "That is all.")
        call = Call(f"functions.{tool}:{prompt.count('<|tool_call_begin|>')}", tool, CALLS[tool])
        return Message("", "I look.", (call,))


def figures(outcomes: Sequence[Outcome], suite: Silent) -> dict[str, Figure]:
    return dict(results([suite], outcomes).suites["silent"].figures)


def run(
    model: Model, suite: Silent, language: Language | None = None, *, allow_silent: bool = True, **options: Any
) -> list[Outcome]:
    """With answers of 600 tokens."""
    transport = options.pop("transport", AppTransport)(gateway(model, allow_silent=allow_silent), **options)
    asked = endpoint(transport, limits=Limits(max_requests=5000, max_tokens=600))
    return list(verified(asked, suites=[suite], language=language))


def test_the_rates_are_in_their_intervals() -> None:
    rates = {"silent turns": 0.2, "empty turns": 0.1, "looping turns": 0.1}
    suite = Silent(conversations=8, turns=20)
    faults = list(zip((SILENT, EMPTY, LOOPING), rates.values(), strict=True))
    outcomes = run(Faulty(faults), suite)
    shown = figures(outcomes, suite)
    assert [outcome.case for outcome in outcomes][3:5] == ["log/0", "repair/1"]
    for name, rate in rates.items():
        figure = shown[name]
        assert figure.low is not None and figure.high is not None
        assert 140 < figure.n <= 160  # a conversation may fill its context
        assert figure.low < rate < figure.high < rate + 0.12
    assert shown["  of them by model"].value == 1
    assert shown["turns cut off"] == shown["looping turns"]  # by the limit of 600 tokens
    assert shown["turns with calls"].value == pytest.approx(0.4, abs=0.1)
    failures = results([suite], outcomes).failures
    assert {(failure.suite, failure.step) for failure in failures} == {("silent", "model")}
    evidence = "\n".join(failure.evidence for failure in failures)
    assert "ends after 16 characters of reasoning with neither content nor a call (finish_reason 'stop')" in evidence
    assert re.search(r"its tokens end in '.*Hm, I know that\.</think>", evidence)
    assert re.search(r"turn \d+ ends in 1\d{3} characters of repeats of '", evidence)


def test_a_sound_model_has_no_such_turn() -> None:
    suite = Silent(conversations=2, turns=20)
    outcomes = run(Faulty([]), suite)
    assert all(outcome.passed for outcome in outcomes)
    shown = figures(outcomes, suite)
    assert [shown[f"{kind} turns"].value for kind in ("silent", "empty", "looping")] == [0, 0, 0]
    assert shown["silent turns"].high == pytest.approx(0.0876, abs=1e-4)
    assert not any("of them" in name for name in shown)


def test_our_own_gateway_lets_no_model_be_silent() -> None:
    suite = Silent(conversations=2, turns=10)
    for message in (SILENT, EMPTY):
        shown = figures(run(Faulty([(message, 0.5)]), suite, allow_silent=False), suite)
        assert (shown["silent turns"].value, shown["empty turns"].value) == (0, 0)
        assert shown["silent turns"].n > 10


# --- Blame ------------------------------------------------------------------------------------------------------------


class UnderConstraint(Faulty):
    def wish(self, prompt: str, completion: Completion) -> Message:
        return super().wish(prompt, completion) if completion.grammar is not None else Message("Here I am.")


class WithDrafts(Faulty):
    def wish(self, prompt: str, completion: Completion) -> Message:
        return super().wish(prompt, completion) if completion.draft_tokens != 0 else Message("Here I am.")


class Unsteady(Faulty):
    """Is silent every third time, whatever it is asked."""

    def wish(self, prompt: str, completion: Completion) -> Message:
        return SILENT if len(self.seen) % 3 == 0 else Message("Here I am.", "Hm.")


def edited(path: str, reply: Reply, edit: Callable[[Any], None]) -> Reply:
    """The reply with its message edited."""
    if path != "/v1/chat/completions" or reply.status != 200 or not reply.body.startswith(b"{"):
        return reply
    page = json.loads(reply.body)
    edit(page)
    return Reply(reply.status, reply.headers, json.dumps(page).encode())


def shows_nothing(path: str, body: Any, reply: Reply) -> Reply:
    """A reader that loses every content."""
    return edited(path, reply, lambda page: page["choices"][0]["message"].update(content=None))


def without_ids(path: str, body: Any, reply: Reply) -> Reply:
    """As an endpoint of another program: neither token ids nor counts of drafts."""

    def edit(page: Any) -> None:
        page["choices"][0]["message"].pop("dovetail", None)
        page["usage"].pop("speculation")

    return edited(path, reply, edit)


class Cuts(AppTransport):
    """Of a history of more than seven messages, only the last four reach the model."""

    async def send(self, method: str, path: str, body: bytes | None) -> Reply:
        request = json.loads(body) if body else None
        if path == "/v1/chat/completions" and request and len(request["messages"]) > 7:
            request["messages"] = [each for each in request["messages"] if each["role"] == "user"][-1:]
            body = json.dumps(request).encode()
        return await super().send(method, path, body)


def only(message: Message) -> list[tuple[Message, float]]:
    return [(message, 1.0)]


@pytest.mark.parametrize("language", [kimi(), Language()], ids=["known", "unknown"])
@pytest.mark.parametrize(
    ("model", "options", "step", "why"),
    [
        (Faulty(only(SILENT)), {}, "model", ""),
        (Faulty(only(EMPTY)), {}, "model", ""),
        (Faulty(only(LOOPING)), {}, "model", "repeats of"),
        (Unsteady([]), {}, "model", ""),
        (UnderConstraint(only(SILENT)), {}, "schema", "without the constraint the same turn is not silent"),
        (UnderConstraint(only(LOOPING)), {}, "schema", "without the constraint the same turn is not looping"),
        (WithDrafts(only(EMPTY)), {}, "draft", "without drafts the same turn is not empty"),
        (Faulty(only(Message("a b c d e f g h i j k l m", "Hm."))), {"change": shows_nothing}, "reader", ""),
        (Faulty([(SILENT, 0.6)]), {"transport": Cuts}, "prompt", ""),
    ],
)
def test_the_step_that_is_to_blame(
    model: Model, options: dict[str, Any], step: str, why: str, language: Language
) -> None:
    suite = Silent(conversations=1, turns=12 if options.get("transport") else 4)
    outcomes = run(model, suite, language, **options)
    failures = results([suite], outcomes).failures
    assert step in {failure.step for failure in failures}
    # Turns before the first one that is cut are the model's.
    assert {failure.step for failure in failures} <= {step, "model" if step == "prompt" else step}
    assert why in next(failure.evidence for failure in failures if failure.step == step)


def test_what_cannot_be_known_of_a_foreign_endpoint() -> None:
    suite = Silent(conversations=1, turns=3)
    (outcome,) = run(Faulty(only(SILENT)), suite, Language(), change=without_ids)
    (failure,) = outcome.failures
    assert failure.step == "model"
    assert "whether the reader is at fault is not known: the endpoint returns no token ids" in failure.evidence


# --- Turns ------------------------------------------------------------------------------------------------------------


def test_turns_that_are_cut_off_are_counted_apart() -> None:
    suite = Silent(conversations=1, turns=8)
    (outcome,) = run(Faulty([(Message("", "word " * 700), 0.5)]), suite)
    shown = figures([outcome], suite)
    cut = shown["turns cut off"].value
    assert cut is not None and 0 < cut < 1
    assert shown["silent turns"].n == round(8 * (1 - cut)) and shown["silent turns"].value == 0


def test_a_conversation_of_nothing_but_cut_turns_is_not_tested() -> None:
    thinks = Message("", " ".join(map(str, range(900))))
    (outcome,) = run(Faulty(only(thinks)), Silent(conversations=1, turns=3))
    assert outcome.untested is not None
    assert outcome.untested.because == "every answer ran to its limit of 600 tokens (--max-tokens)"


def test_a_full_context_ends_a_conversation() -> None:
    suite = Silent(conversations=1, turns=400)
    (outcome,) = run(Faulty([]), suite)
    assert outcome.passed and 20 < outcome.measures["turns"] < 400


def test_a_refused_request_is_not_tested() -> None:
    def refuse(path: str, body: Any, reply: Reply) -> Reply:
        request = json.loads(body) if body else {}
        if len(request.get("tools", ())) > 1:
            return Reply(400, reply.headers, b'{"error": {"message": "too many tools"}}')
        return reply

    outcomes = run(Faulty([]), Silent(conversations=2, turns=3), change=refuse)
    assert [outcome.untested and outcome.untested.because for outcome in outcomes] == [
        "it refused a request: 400: too many tools",
        None,
    ]


def test_the_conversation_of_an_agent() -> None:
    plan = {
        "system": "Be quick.",
        "steps": ["Do {subject}.", "Undo {subject}."],
        "subjects": ["a", "b"],
        "results": "xyz",
    }
    conversation = Conversation(plan, 1)
    call = Message("", "Hm.", (Call("1", "f", "{}"), Call("2", "f", "{}")))
    for _ in range(7):
        conversation.go_on(call)
    conversation.go_on(None)
    conversation.go_on(Message("Done."))
    roles = "".join(message["role"][0] for message in conversation.messages)
    assert roles == "su" + "att" * 6 + "u" + "att" + "u" + "au"
    said = [message["content"] for message in conversation.messages if message["role"] == "user"]
    assert said == ["Do b.", "Undo b.", "Do a.", "Undo a."]
    assert [each["content"] for each in conversation.messages if each["role"] == "tool"][:4] == ["z", "x", "y", "z"]
    assert conversation.messages[2]["reasoning_content"] == "Hm."


def test_the_cases_are_as_many_as_asked_for_and_differ() -> None:
    cases = Silent(conversations=10, turns=7).cases()
    assert len({case.name for case in cases}) == 10
    starts = {json.dumps(Conversation(case.expect, case.expect["number"]).messages) for case in cases}
    assert len(starts) == 10
    assert {case.expect["turns"] for case in cases} == {7}


def test_a_report_has_what_was_found() -> None:
    suite = Silent(conversations=1, turns=4)
    outcomes = run(Faulty(only(SILENT)), suite)
    result = results([suite], outcomes)
    page, tests = html(result, ("http://app",)), junit(outcomes, ("http://app",))
    assert "silent turns" in page and "neither content nor a call" in page
    assert "neither content nor a call" in tests


# --- Kinds ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "fields", "kind"),
    [
        (Message("Hi"), {}, None),
        (Message("", "Hm.", (Call("1", "f", "{}"),)), {}, None),
        (Message(" \n", "Hm."), {}, "silent"),
        (Message(""), {}, "empty"),
        (Message("", " "), {}, "empty"),
        (Message(""), {"usage": {"completion_tokens_details": {"reasoning_tokens": 40}}}, "silent"),
        (Message("", "Hm."), {"finish": "length"}, None),
        (Message("", LOOP), {"finish": "length"}, "looping"),
        (Message("", "", (Call("1", "f", '{"a": "' + LOOP),)), {"finish": "length"}, "looping"),
    ],
)
def test_the_kind_of_a_turn(message: Message, fields: dict[str, Any], kind: str | None) -> None:
    assert kind_of(Answer(200, "", message, **{"finish": "stop"} | fields)) == kind


@pytest.mark.parametrize(
    ("text", "loop"),
    [
        ("Once.\n" + "Twenty characters ok" * 50, Loop("Twenty characters ok", 1000)),
        ("a line\n" * 143, Loop("a line\n", 1001)),
        ("begins " + "a line\n" * 150 + "a li", Loop("ne\na li", 1054)),
        ("a line\n" * 142, None),  # too short
        ("x" * 2000, None),  # a rule
        ("0, " * 700, None),  # a list
        (("y" * 400 + "\n") * 3, None),  # too few
        ("a line\n" * 200 + "and an end", None),
        ("".join(f"| {i} | 0 |\n" for i in range(400)), None),  # a table
        ("", None),
    ],
)
def test_loops(text: str, loop: Loop | None) -> None:
    assert loop_at_end(text) == loop


def naive(text: str) -> Loop | None:
    """By the definition: the shortest period that fills enough of the end."""
    for period in range(1, len(text) // 4 + 1):
        length = period
        while length < len(text) and text[-1 - length] == text[period - 1 - length :][:1]:
            length += 1
        if length >= max(1000, 4 * period):
            repeated = text[-period:]
            return Loop(repeated, length) if period >= 20 or "\n" in repeated else None
    return None


@given(
    st.text("ab\n", max_size=40),
    st.text("ab\n", min_size=1, max_size=40),
    st.integers(0, 60),
    st.text("ab", max_size=2),
)
def test_loops_against_the_definition(before: str, period: str, times: int, after: str) -> None:
    text = before + period * times + after
    assert loop_at_end(text) == naive(text)
