"""`dovetail explain` shows a recording and says in words why its answer is as it is."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dovetail.cli.terminal import visible
from dovetail.errors import InvalidRequest
from dovetail.events import Call, CallArguments, CallEnd, CallStart, Content, Defect, Event, Message, Reasoning
from dovetail.gateway.observe.recording import (
    PromptSegment,
    RecordedCall,
    RecordedError,
    RecordedLogprob,
    RecordedMessage,
    RecordedOptions,
    RecordedPicture,
    RecordedPrompt,
    RecordedRepair,
    RecordedStep,
    RecordedTokenizer,
    Recording,
    RefusedBy,
    Token,
    decode,
)
from dovetail.gateway.observe.redaction import redacted
from dovetail.inspect.recording_diff import Difference, differences
from dovetail.inspect.verdict import verdict
from dovetail.tokens import Tokenizer
from tests.cli.conftest import Dovetail
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of
from tests.gateway.test_recordings import TOOL, files, recorded

OPTIONS = RecordedOptions(64, {}, (), 0, False, True, False, (), (), 3)
PROMPT = RecordedPrompt(3, segments=(PromptSegment("<|a|>", True, 1), PromptSegment("hello", False, 2)), ids=(1, 2, 3))
FIRST, SECOND = CallStart(0, "a", "one"), CallStart(1, "b", "two")


def step(*events: Event, **fields: Any) -> RecordedStep:
    tokens = (Token(5, "Hel"), Token(6, "lo"), Token(7, " you"))
    values = {"choice": 0, "at": 0.5, "tokens": tokens, "drafted": 4, "accepted": 2, "forced": 1, "cached": 0}
    return RecordedStep(**{**values, "events": events, **fields})


def recording(*steps: RecordedStep, **fields: Any) -> Recording:
    values = {"id": "chatcmpl-1", "request_id": "r", "api": "chat", "model": "m", "began": "2026-01-01T00:00:00Z"}
    return Recording(**{**values, "prompt": PROMPT, "options": OPTIONS, "steps": steps, **fields})


def options(**changes: Any) -> RecordedOptions:
    return msgspec.structs.replace(OPTIONS, **changes)


VERDICTS: dict[str, tuple[Recording, str]] = {
    "cut in a call": (
        recording(step(FIRST, CallEnd(0), SECOND, CallArguments(1, "{"), finish="length")),
        "cut at max_tokens (64) inside call 2 (two)",
    ),
    "cut after a call": (recording(step(FIRST, CallEnd(0), finish="length")), "cut at max_tokens (64) after call 1"),
    "cut in reasoning": (recording(step(Reasoning("h"), finish="length")), "cut at max_tokens (64) in reasoning"),
    "cut in content": (recording(step(Content("h"), finish="length")), "cut at max_tokens (64) in content"),
    "cut before text": (
        recording(step(finish="length"), prompt=RecordedPrompt(1, in_reasoning=True), options=None),
        "cut at max_tokens in reasoning, before any text",
    ),
    "cut at once": (recording(step(finish="length")), "cut at max_tokens (64) before any text"),
    "ended in reasoning": (
        recording(step(Reasoning("h"), finish="stop")),
        "the model ended its turn in reasoning: no content, no call",
    ),
    "empty": (recording(step(finish="stop")), "the model ended its turn without any text, after 3 tokens"),
    "answered": (recording(step(Content("h"), finish="stop")), "the model answered in words, and ended its turn"),
    "no call": (
        recording(step(Content("h"), finish="stop"), options=options(tools=2)),
        "the model answered in words, and called none of 2 tools",
    ),
    "call in text": (
        recording(
            step(Content('```json\n{"name": "get_weather", '), Content('"arguments": {}}\n```'), finish="stop"),
            options=options(tools=1),
            request=msgspec.Raw(b'{"tools": [{"type": "function", "function": {"name": "get_weather"}}]}'),
        ),
        "the model wrote a call of get_weather as text, not as calls of this model are read: it stays content",
    ),
    "call in text, of Messages": (
        recording(
            step(Content('{"name": "one", "input": {}}'), finish="stop"),
            options=options(tools=1),
            request=msgspec.Raw(b'{"tools": [{"name": "one"}]}'),
        ),
        "the model wrote a call of one as text, not as calls of this model are read: it stays content",
    ),
    "JSON beside tools": (
        recording(
            step(Content("[1]"), finish="stop"), options=options(tools=1), request=msgspec.Raw(b'{"tools": [3]}')
        ),
        "the model answered in JSON, and called none of 1 tool",
    ),
    "JSON": (recording(step(Content("{}"), finish="stop")), "the model answered in JSON, and ended its turn"),
    "JSON that was asked for": (
        recording(step(Content('{"a": 1}'), finish="stop"), options=options(structured=True)),
        "the model answered in JSON, as response_format asks, and ended its turn",
    ),
    "words in place of JSON": (
        recording(step(Content("Sure: {}"), finish="stop"), options=options(structured=True)),
        "the model answered in words, although response_format is set, and ended its turn",
    ),
    "a loop of words": (
        recording(step(Content("Well. " + "Boil an egg: " * 7 + "Bo"), finish="stop")),
        "the content ends in a loop: 'Boil an egg:' 7 times",
    ),
    "cut in a loop": (
        recording(step(Reasoning("0, " * 40 + "0"), finish="length")),
        "the reasoning ends in a loop: '0,' 40 times",
    ),
    "called": (
        recording(step(FIRST, CallEnd(0), SECOND, CallEnd(1), finish="tool_calls")),
        "the model called one, two",
    ),
    "open call": (
        recording(step(FIRST, finish="tool_calls")),
        "call 1 (one) did not end: its arguments are not whole JSON",
    ),
    "stop string": (
        recording(step(FIRST, finish="stop", stop_string="END")),
        "ended by the stop string 'END' inside call 1 (one)",
    ),
    "fault": (
        recording(step(FIRST, CallEnd(0), finish="tool_calls", checks=(RecordedCall("one", "invalid_type"),))),
        "check 1, of a call of one: invalid_type",
    ),
    "unknown tool": (
        recording(step(FIRST, CallEnd(0), finish="tool_calls", checks=(RecordedCall(None, "unknown_name"),))),
        "check 1, of a call of an unknown tool: unknown_name",
    ),
    "defects": (
        recording(step(Defect("stray_marker"), Defect("stray_marker"), Content("h"), finish="stop")),
        "the reader reports stray_marker (2 times): a marker where it means nothing; it is dropped",
    ),
    "silent": (
        recording(step(Defect("silent_turn"), finish="stop")),
        "the answer ended without content and without a call",
    ),
    "went on behind a token": (
        recording(step(Reasoning("h"), guards=("silent",), inserted=1), step(Content("h"), finish="stop")),
        "the model would have ended its turn without a word, and had to go on, behind ' you'",
    ),
    "a loop": (
        recording(step(Content("h"), Defect("loop", "a period of 9 tokens, 40 times"), finish="stop")),
        "the answer repeats itself",
    ),
    "ended in a loop": (
        recording(step(Content("h"), guards=("loop",)), step(finish="length")),
        "ended because it repeats itself in content",
    ),
    "cut after a loop": (
        recording(step(Reasoning("h"), guards=("loop",)), step(finish="length"), options=options(max_tokens=6)),
        "cut at max_tokens (6) in reasoning",
    ),
    "out of a loop": (
        recording(step(Reasoning("h"), guards=("loop",)), step(inserted=2), step(Content("h"), finish="stop")),
        "the reasoning repeated itself, and was ended with 'lo you'",
    ),
    "second choice": (
        recording(step(Content("h"), finish="stop"), step(finish="stop", choice=1)),
        "choice 1: the model ended its turn without any text, after 3 tokens",
    ),
    "refused": (
        recording(prompt=None, options=None, error=RecordedError("InvalidRequest", "no messages")),
        "the request was refused: InvalidRequest: no messages",
    ),
    "failed": (
        recording(step(Content("h")), error=RecordedError("EngineError", "out of memory")),
        "the answer failed after 1 step: EngineError: out of memory",
    ),
    "left": (
        recording(error=RecordedError("disconnected", "")),
        "the client left before the end of the answer, before its first token",
    ),
    "left later": (
        recording(step(), error=RecordedError("disconnected", "")),
        "the client left before the end of the answer",
    ),
    "continued": (
        recording(options=options(continue_final_message=True)),
        "the prompt lacks a generation prompt: `continue_final_message` was set",
    ),
    "no generation prompt": (
        recording(options=options(add_generation_prompt=False)),
        "the prompt lacks a generation prompt: `add_generation_prompt` was false",
    ),
    "omitted": (
        recording(options=options(omitted=("tools[0]",))),
        "fields of the request that were left out: tools[0]",
    ),
    "unenforced": (recording(options=options(unenforced=("tools[0]#/x",))), "no grammar enforces tools[0]#/x"),
    "repaired": (
        recording(repairs=(RecordedRepair("ids", "m", "", True),) * 2 + (RecordedRepair("roles", "m", "", True),)),
        "3 repairs of the history: ids 2, roles",
    ),
    "speculation": (recording(step(), step()), "4 of 8 drafts stood (50%) in 2 steps"),
    "left out": (recording(left_out=("grammar", "steps")), "left out of the recording: grammar, steps"),
    "redacted": (recording(redacted=True), "texts are redacted: only their lengths were recorded"),
}


@pytest.mark.parametrize("changes", [{"redacted": True}, {"steps": (step(Content("a " * 40), guards=("loop",)),)}])
def test_a_loop_is_told_once_and_not_of_texts_that_are_not_there(changes: dict[str, Any]) -> None:
    it = recording(step(Content("a " * 40), finish="stop"))
    assert "repeats" in [finding.kind for finding in verdict(it)]
    assert "repeats" not in [finding.kind for finding in verdict(msgspec.structs.replace(it, **changes))]


def test_a_guard_stands_at_its_step(dovetail: Dovetail, tmp_path: Path) -> None:
    guarded = step(Reasoning("h"), guards=("silent",), inserted=1)
    shown = dovetail("explain", write(tmp_path, recording(guarded, step(Content("h"), finish="stop")))).stdout
    assert "guard: silent  the last 1 inserted\n" in shown


@pytest.mark.parametrize("name", VERDICTS)
def test_the_verdict_in_words(name: str) -> None:
    it, text = VERDICTS[name]
    assert text in [finding.text for finding in verdict(it)]


def write(folder: Path, it: Recording) -> Path:
    path = folder / "a.recording.json"
    path.write_bytes(msgspec.json.encode(it))
    return path


def test_a_recording_on_one_screen(dovetail: Dovetail, tmp_path: Path) -> None:
    it = recording(
        step(Reasoning("Hel"), FIRST, CallArguments(0, "{}"), CallEnd(0), Defect("stray_marker", "x"), Content("lo")),
        step(drafted=None, choice=1, tokens=(Token(1, "a\nb"), Token(9, "<|e|>", True), Token(3, "")), accepted=0),
        step(finish="tool_calls", checks=(RecordedCall("one", "invalid_type"), RecordedCall("one", None))),
        repairs=(
            RecordedRepair("ids", "messages[1]", "x -> y", False),
            RecordedRepair("ids", "messages[2]", "z", True),
        ),
        messages=(RecordedMessage(0, "lo", "Hel", (Call("a", "one", "{}"),)), RecordedMessage(1, "", "", ())),
        grammar="start: any",
        times={"first": 0.25},
        pictures=(RecordedPicture("ab12", "image/png", 1234), RecordedPicture("", "image/gif", 5, b"12345")),
    )
    done = dovetail("explain", write(tmp_path, it))
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.strip() for line in done.stdout.splitlines()]
    assert lines[0] == "chatcmpl-1  chat m  2026-01-01T00:00:00Z  first 0.250 s"
    assert "<|a|>hello" in lines and "messages[1]: ids x -> y  (an earlier turn had it)" in lines
    assert "0.500 s choice 0    2/4  «Hel»‹lo› you  call 1 one  end of call 1  stray_marker x" in lines
    assert "0.500 s choice 1      ?  a⏎b<|e|>…" in lines
    assert "0.500 s choice 0    2/4  «Hel»‹lo› you  invalid_type  tool_calls" in lines
    assert "1  image/png  1,234 bytes  sha256 ab12" in lines and "2  image/gif  5 bytes" in lines
    assert "call      a  one({})" in lines and "start: any" not in done.stdout
    assert "start: any" in dovetail("explain", write(tmp_path, it), "--all").stdout
    shown = json.loads(dovetail("explain", write(tmp_path, it), "--json").stdout)
    assert shown["verdict"][0] == {"kind": "called", "text": "choice 0: the model called one", "problem": False}
    assert decode(json.dumps(shown["recording"]).encode(), "it").steps == it.steps


@pytest.mark.parametrize(
    ("refused_by", "words"), [("model", "~aXb~"), ("grammar", "~aXb~ by the grammar"), ("end", "~aXb~ after the end")]
)
def test_refused_drafts_and_what_was_allowed(
    dovetail: Dovetail, tmp_path: Path, refused_by: RefusedBy, words: str
) -> None:
    refused = (Token(8, "a"), Token(9, "X", True), Token(10, "b"))
    it = recording(step(refused=refused, refused_by=refused_by, allowed=(1, None, 12)))
    short, whole = (dovetail("explain", write(tmp_path, it), *more).stdout for more in ((), ("--all",)))
    assert f"«Hel»‹lo› you {words}\n" in short and f"{words}  allowed: 1 ? 12\n" in whole
    several = recording(step(refused=()), options=options(most_drafts=None))
    shown = dovetail("explain", write(tmp_path, several)).stdout
    assert "Hello you" in shown and "whose the tokens are is not known" in shown


def test_a_long_recording_is_shortened_unless_all_is_wanted(dovetail: Dovetail, tmp_path: Path) -> None:
    word = "w" * 1_000_000
    prompt = RecordedPrompt(1, segments=(PromptSegment(word, False, 1),))
    it = recording(
        *(step(Content("a"), at=float(i)) for i in range(50)),
        repairs=tuple(RecordedRepair("ids", f"messages[{i}]", "", True) for i in range(20)),
        prompt=prompt,
        messages=(RecordedMessage(0, word, "", ()),),
    )
    path = write(tmp_path, it)
    short = dovetail("explain", path).stdout
    assert (
        len(short) < 10_000
        and "[… 34 steps; --all shows them …]" in short
        and "[… 4 repairs" in short
        and "[… 998,500 characters" in short
    )
    whole = dovetail("explain", path, "--all").stdout
    assert whole.count(word) == 2 and "49.000 s" in whole and "[…" not in whole


hostile = st.text(st.sampled_from("a\x1b[31m\x9b\r\u202e\u2067\u200f\u2028<>[/bold]\x00\n"), max_size=40)


@given(st.lists(hostile, min_size=12, max_size=12))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_hostile_text_in_any_field_is_shown_as_text(dovetail: Dovetail, tmp_path: Path, texts: Sequence[str]) -> None:
    a, b, c, d, e, f, g, h, i, j, k, m = texts
    it = recording(
        step(CallStart(0, a, b), Defect(c, d), checks=(RecordedCall(e, f),), finish=g, tokens=(Token(1, h),)),
        step(
            CallArguments(0, k),
            Defect("schema_mismatch", f"call 0: /{a} against #/{b}"),
            Defect("invalid_json", "call 0"),
            refused=(Token(2, c), Token(3, d, True)),
            refused_by="grammar",
            logprobs=(RecordedLogprob(-1.0, ((e, -2.0),)),) * 3,
            allowed=(None, 0, -5),
            stop_string=f,
        ),
        tokenizer=RecordedTokenizer(g, -1),
        format=h,
        id=i,
        model=j,
        grammar=k,
        error=RecordedError(m, a),
        repairs=(RecordedRepair(b, c, d, True),),
        prompt=RecordedPrompt(1, segments=(PromptSegment(e, True, 1),)),
        messages=(RecordedMessage(0, f, g, (Call(h, i, j),)),),
        times={k: 1.0},
        left_out=(m,),
        pictures=(RecordedPicture(a, b, -1),),
    )
    done = dovetail("explain", write(tmp_path, it), "--all")
    assert (done.returncode, done.stderr) == (0, "")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]", done.stdout)
    for text in filter(None, (a, b, e, f)):
        assert visible(text).strip("\n") in done.stdout or "\n" in text


def values_of(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths to all values in a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in items:
        yield from values_of(each, (*path, key))


@given(st.data())
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_recording_with_any_value_changed_is_shown_or_refused_in_one_line(
    dovetail: Dovetail, tmp_path: Path, data: st.DataObject
) -> None:
    it = recording(
        step(Reasoning("h"), FIRST, CallArguments(0, "{}"), CallEnd(0), allowed=(1, 2, None), refused=(Token(1, "a"),)),
        step(
            Defect("schema_mismatch", "call 0: /a against #/b"), finish="tool_calls", checks=(RecordedCall("a", "b"),)
        ),
        messages=(RecordedMessage(0, "a", "b", (Call("a", "b", "c"),)),),
        request=msgspec.Raw(b'{"model": "m", "messages": [{"role": "user"}], "tools": [{}], "seed": 1}'),
        tokenizer=RecordedTokenizer("a", 5),
        times={"first": 0.5},
        **{"grammar": "a", "repairs": (RecordedRepair("a", "b", "c", True),)},
    )
    value = json.loads(msgspec.json.encode(it))
    path = data.draw(st.sampled_from([path for path in values_of(value) if path]))
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = data.draw(
        st.sampled_from([None, True, -1, 0, 2**70, 1e308, "", "x\u202e", [], {}, [[]], "w" * 3000, {"a": {"b": [1]}}])
    )
    file = tmp_path / "changed.recording.json"
    file.write_text(json.dumps(value))
    for more in (
        (),
        ("--all",),
        ("--json",),
        ("--html", tmp_path / "page"),
        ("--diff", write(tmp_path, it)),
    ):
        done = dovetail("explain", file, *more)
        assert done.returncode in (0, 1) or (done.returncode == 2 and done.stderr.count("\n") == 1), (path, more)


BASE: dict[str, Any] = {"request": msgspec.Raw(b'{"a": [1, 2], "b": 3}'), "grammar": "start: a"}
CHANGES: dict[str, tuple[dict[str, Any], tuple[str, str, str]]] = {
    "a value": ({"request": msgspec.Raw(b'{"a": [1, 9], "b": 3}')}, ("request.a[1]", "2", "9")),
    "a length": ({"request": msgspec.Raw(b'{"a": [1], "b": 3}')}, ("request.a", "2 items", "1 items")),
    "a field": ({"request": msgspec.Raw(b'{"a": [1, 2], "c": 3}')}, ("request.b", "3", "(nothing)")),
    "a repair": ({"repairs": (RecordedRepair("ids", "m", "", True),)}, ("repairs", "0 items", "1 items")),
    "an option": ({"options": options(max_tokens=8)}, ("options.max_tokens", "64", "8")),
    "a prompt": ({"prompt": msgspec.structs.replace(PROMPT, ids=(1, 9, 3))}, ("prompt, token 1", "id 2", "id 9")),
    "a longer prompt": (
        {"prompt": msgspec.structs.replace(PROMPT, ids=(1, 2, 3, 4))},
        ("prompt, token 3", "the end", "id 4"),
    ),
    "a grammar": ({"grammar": None}, ("grammar", '"start: a"', "null")),
    "a token": (
        {"steps": (step(tokens=(Token(5, "Hel"), Token(8, "p")), finish="stop"),)},
        ("choice 0, token 1", "'lo' (id 6) after 'Hel'", "'p' (id 8) after 'Hel'"),
    ),
    "a finish": ({"steps": (step(finish="length"),)}, ("choice 0, finish", '"stop"', '"length"')),
    "a choice": (
        {"steps": (step(finish="stop"), step(choice=1))},
        ("choice 1, token 0", "the end after ''", "'Hel' (id 5) after ''"),
    ),
    "a tokenizer": ({"tokenizer": RecordedTokenizer("ab", 9)}, ("tokenizer", "null", '"ab"')),
    "a picture": ({"pictures": (RecordedPicture("ab", "image/png", 3),)}, ("pictures", "0 items", "1 items")),
    "an error": ({"error": RecordedError("E", "m")}, ("error", "null", '{"type":"E","message":"m"}')),
}


@pytest.mark.parametrize("name", CHANGES)
def test_two_recordings_differ_where_they_do(name: str) -> None:
    changes, (where, first, second) = CHANGES[name]
    one = recording(step(finish="stop"), **BASE)
    other = msgspec.structs.replace(one, **changes)
    assert Difference(where, first, second) in differences(one, other)
    assert Difference(where, second, first) in differences(other, one)
    assert differences(other, other) == []
    assert differences(one, msgspec.structs.replace(one, id="b", times={"first": 9.0})) == []


def test_the_ids_of_different_tokenizers_are_not_compared() -> None:
    """The texts are: they are what both models read and wrote."""
    one = recording(step(finish="stop"), tokenizer=RecordedTokenizer("a", 9), **BASE)
    tokens = tuple(Token((token.id or 0) + 100, token.text) for token in one.steps[0].tokens)
    prompt = msgspec.structs.replace(PROMPT, ids=(101, 102, 103))
    same = msgspec.structs.replace(
        one, tokenizer=RecordedTokenizer("b", 9), steps=(step(finish="stop", tokens=tokens),), prompt=prompt
    )
    assert differences(one, same) == [Difference("tokenizer", '"a"', '"b"')]
    other_prompt = msgspec.structs.replace(prompt, segments=(PromptSegment("<|a|>", True, 1),))
    other = msgspec.structs.replace(
        same, steps=(step(finish="stop", tokens=(*tokens[:2], Token(1, "!"))),), prompt=other_prompt
    )
    assert differences(one, other)[1:] == [
        Difference("prompt, as text", "2 items", "1 items"),
        Difference("choice 0, token 2", "' you' after 'Hello'", "'!' after 'Hello'"),
    ]


@pytest.mark.parametrize("depth", range(600, 1100, 50))
def test_requests_that_are_nested_too_deeply_are_refused_in_one_line(
    dovetail: Dovetail, tmp_path: Path, depth: int
) -> None:
    for name, inside in (("a", b"1"), ("b", b"2")):
        data = msgspec.json.encode(recording(step(), request=msgspec.Raw(b"0")))
        request = b'"request":' + b"[" * depth + inside + b"]" * depth
        (tmp_path / name).write_bytes(data.replace(b'"request":0', request))
    done = dovetail("explain", tmp_path / "a", "--diff", tmp_path / "b")
    refused = done.returncode == 2 and done.stderr.count("\n") == 1 and "nested too deeply" in done.stderr
    assert refused or (done.returncode == 1 and depth < 1000)


def test_requests_at_the_edge_of_the_stack_are_refused() -> None:
    it = recording(step(), request=msgspec.Raw(b"[" * 500 + b"1" + b"]" * 500))
    other = msgspec.structs.replace(it, request=msgspec.Raw(b"[" * 500 + b"2" + b"]" * 500))

    def deep(frames: int) -> list[Difference]:
        return deep(frames - 1) if frames else differences(it, other)

    assert deep(0)[0].second == "2"
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        deep(sys.getrecursionlimit() - 400)


def test_recordings_without_ids_are_compared_as_far_as_they_go() -> None:
    one = recording(step(), **BASE)
    for prompt in (None, msgspec.structs.replace(PROMPT, ids=None), RecordedPrompt(3)):
        assert differences(one, msgspec.structs.replace(one, prompt=prompt)) == []


def test_a_refused_request_and_a_redacted_one_are_shown(dovetail: Dovetail, tmp_path: Path) -> None:
    refused = recording(prompt=None, options=None, error=RecordedError("InvalidRequest", "no messages"))
    assert dovetail("explain", write(tmp_path, refused)).stdout.splitlines()[1].startswith("! the request was refused")
    redacted = recording(step(tokens=(Token(None, ""), Token(None, ""))), redacted=True)
    assert "‹·›" in dovetail("explain", write(tmp_path, redacted)).stdout


def test_a_page_has_all_texts_as_text_and_loads_nothing(dovetail: Dovetail, tmp_path: Path) -> None:
    evil = "<script src=x>alert(1)</script><img src=//x>{code}{stylesheet}\u202e</pre>"
    it = recording(
        step(CallStart(0, evil, evil), Defect(evil, evil), tokens=(Token(1, evil),), finish=evil),
        id=evil,
        grammar=evil,
        messages=(RecordedMessage(0, evil, evil, (Call(evil, evil, evil),)),),
    )
    done = dovetail("explain", write(tmp_path, it), "--html", tmp_path / "page.html")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in page and "&lt;script src=x&gt;" in page
    tags = set(re.findall("<[/!]?([a-z]+)", page))
    assert tags == {"doctype", "html", "head", "meta", "title", "style", "body", "pre", "span"}
    assert page.count("</pre>") == 1 and "\u202e" not in page and "href" not in page
    refused = dovetail("explain", write(tmp_path, it), "--html", tmp_path)
    assert refused.returncode == 2 and "cannot be written" in refused.stderr


def test_differences_in_the_terminal(dovetail: Dovetail, tmp_path: Path) -> None:
    one, other = recording(step(finish="stop"), **BASE), recording(step(finish="length"), **BASE)
    (tmp_path / "one").write_bytes(msgspec.json.encode(one))
    (tmp_path / "other").write_bytes(msgspec.json.encode(other))
    done = dovetail("explain", tmp_path / "one", "--diff", tmp_path / "other")
    assert (done.returncode, done.stdout) == (1, 'choice 0, finish\n- "stop"\n+ "length"\n')
    done = dovetail("explain", tmp_path / "one", "--diff", tmp_path / "one")
    assert (done.returncode, done.stdout) == (0, "equal, apart from ids and times\n")
    done = dovetail("explain", tmp_path / "one", "--diff", tmp_path / "other", "--json")
    difference = {"where": "choice 0, finish", "first": '"stop"', "second": '"length"'}
    assert done.returncode == 1 and json.loads(done.stdout) == {"equal": False, "differences": [difference]}
    done = dovetail("explain", tmp_path / "one", "--diff", tmp_path / "one", "--json")
    assert done.returncode == 0 and json.loads(done.stdout) == {"equal": True, "differences": []}


@pytest.mark.parametrize(
    "data", [b"", b'{"kind": "dovetail recording", "version": 1, "id"', b'{"kind": 7}', b"[" * 5000]
)
def test_other_files_are_refused_in_one_line(dovetail: Dovetail, tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    done = dovetail("explain", path)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1 and "file" in done.stderr


def test_a_file_that_is_not_there(dovetail: Dovetail, tmp_path: Path) -> None:
    done = dovetail("explain", tmp_path / "nothing")
    assert done.returncode == 2 and "cannot be read" in done.stderr


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_served_request_is_explained(dovetail: Dovetail, small_tokenizer: Tokenizer, tmp_path: Path) -> None:
    engine = ScriptedEngine(small_tokenizer)
    answer = Message(reasoning="hmm", calls=(Call("functions.look_up:0", "look_up", '{"word": "ok"}'),))
    engine.ids, engine.sizes = ids_of(answer, small_tokenizer), (2,)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "please"}], "tools": [TOOL]}
    async with recorded(engine, small_tokenizer, tmp_path) as client:
        await client.post("/v1/chat/completions", json=body)
        await client.post("/v1/chat/completions", json=body | {"max_tokens": len(engine.ids) - 6})
    called, cut = (dovetail("explain", path).stdout for path in files(tmp_path))
    assert "the model called look_up" in called and "please" in called and "drafts stood" in called
    assert f"cut at max_tokens ({len(engine.ids) - 6}) inside call 1 (look_up)" in cut


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_last_prompt_and_this_one_are_lanes(
    dovetail: Dovetail, small_tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """With the first token that differs marked, on the screen and on the page, which runs no script."""
    engine = ScriptedEngine(small_tokenizer)
    engine.ids = ids_of(Message("ok"), small_tokenizer)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "please"}]
    folder, memory = tmp_path / "recordings", tmp_path / "memory.db"
    async with recorded(engine, small_tokenizer, folder, memory=memory) as client:
        await client.post("/v1/chat/completions", json={"model": MODEL, "messages": messages})
        messages[0]["content"] = "Be <b>kind."
        messages += [{"role": "assistant", "content": "ok"}, {"role": "user", "content": "more"}]
        await client.post("/v1/chat/completions", json={"model": MODEL, "messages": messages})
    first, second = files(folder)
    assert decode(first.read_bytes(), "").lanes is None
    it = decode(second.read_bytes(), "")
    assert it.lanes is not None and it.prefix is not None and it.prompt is not None and it.prompt.ids is not None
    texts = ["".join(token.text for token in (*it.lanes.shared, *lane)) for lane in (it.lanes.last, it.lanes.this)]
    assert "Be brief." in texts[0] and "Be <b>kind." in texts[1]
    assert it.lanes.this[0].id == it.prompt.ids[it.prefix.kept] != it.lanes.last[0].id
    shown = dovetail("explain", second).stdout
    assert "another one (messages[0].content)" in shown
    last, this = (line.split("►") for line in shown.splitlines() if "►" in line)
    assert last[0].split()[0] == "last" and this[0].split()[0] == "this" and last[0][8:] == this[0][8:]
    assert (last[1][0], this[1][0]) == (it.lanes.last[0].text[0], it.lanes.this[0].text[0])
    dovetail("explain", second, "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("►") == 2 and "&lt;b&gt;" in page and "<b>" not in page
    assert {token.id for token in redacted(it).lanes.last if not token.control} == {None}
