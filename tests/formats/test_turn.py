"""`Format.turn`: one object that knows its prompt, so that nobody has to say whether reasoning is open."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dovetail
from dovetail.conversation import check_tools
from dovetail.errors import InvalidRequest
from dovetail.events import Call, Message
from dovetail.formats.turn import Turn
from dovetail.grammar.matcher import compile
from dovetail.reading import MALFORMED
from tests.examples import examples
from tests.grammar.test_matcher import TOOLS, allows
from tests.reading import families

USER = [{"role": "user", "content": "hi"}]
TEXT = st.text("ab é.\n", min_size=1, max_size=12).map(str.strip).filter(bool)


@pytest.mark.parametrize("name", families.RENDERING)
@given(content=TEXT, reasoning=TEXT, thinking=st.booleans(), calls=st.booleans())
@examples(20)
def test_a_turn_reads_what_its_model_writes(
    name: str, content: str, reasoning: str, thinking: bool, calls: bool
) -> None:
    """Prompt, grammar and reader agree with nothing but the request's own `thinking`."""
    fmt, tokenizer = families.format_of(name), families.tokenizer_of(name)
    turn = fmt.turn(USER, TOOLS, thinking=thinking)
    reasons = turn.may_reason and fmt.reasoning != "none"
    call = Call("functions.get_weather:0", "get_weather", '{"city": "Oslo", "days": 1}')
    order = list(fmt.shown_order(TOOLS[0]["function"]["parameters"])["properties"])
    arguments = {
        key: value for key, value in sorted({"city": "Oslo", "days": 1}.items(), key=lambda it: order.index(it[0]))
    }
    call = Call(call.id, call.name, json.dumps(arguments))
    message = Message(content, reasoning if reasons else "", (call,) if calls else ())
    answer = fmt.write(message, thinking=reasons)
    grammar = turn.grammar()
    assert grammar is not None
    ends = [tokenizer.control[literal] for literal in fmt.end_of_turn if literal in tokenizer.control]
    assert allows(compile(grammar, tokenizer, ends), answer.ids(tokenizer))
    reader = turn.reader(tokenizer)
    read = dovetail.fold([*reader.feed("", answer.ids(tokenizer)), *reader.finish()])
    meant = (message.content, message.reasoning, [json.loads(each.arguments) for each in message.calls])
    assert (read.content, read.reasoning, [json.loads(each.arguments) for each in read.calls]) == meant
    assert not read.defects


@pytest.mark.parametrize("name", families.RENDERING)
def test_the_prompt_is_that_of_the_repaired_history(name: str) -> None:
    fmt = families.format_of(name)
    history: list[Any] = [*USER, {"role": "assistant", "content": [{"type": "text", "text": "Hello."}]}, *USER]
    repaired, repairs = fmt.repair(history, TOOLS)
    turn = fmt.turn(history, TOOLS)
    assert turn.prompt == fmt.render(repaired, TOOLS)
    assert list(turn.repairs) == repairs
    assert fmt.turn(history, TOOLS, no_repair=dovetail.formats.prompts.history.KINDS).repairs == ()


@pytest.mark.parametrize(("off", "reads"), [((), True), (["call_id"], True), (iter(["unmarked_call"]), False)])
def test_calls_without_markup_are_a_repair_that_can_be_left_out(off: Iterable[str], reads: bool) -> None:
    fmt, answer = dovetail.format("kimi_k25"), '{"name": "get_weather", "arguments": {"city": "Oslo", "days": 1}}'
    message = fmt.turn(USER, TOOLS, thinking=False, no_repair=off).parse(answer)
    assert bool(message.calls) is reads
    assert fmt.parse(answer, TOOLS, thinking=False, bare_calls=reads) == message


def test_a_call_that_cannot_be_read_is_an_error_or_text() -> None:
    fmt = dovetail.format("kimi_k25")
    text = fmt.write(
        Message(calls=(Call("functions.get_weather:0", "get_weather", "rainy Oslo"),)), thinking=False
    ).text
    for turn in (
        fmt.turn(USER, TOOLS, thinking=False),
        fmt.turn(USER, TOOLS, thinking=False, on_malformed_call="error"),
    ):
        (call,) = turn.parse(text).calls
        assert json.loads(call.arguments) == {MALFORMED: "rainy Oslo"}
        assert fmt.parse(text, TOOLS, thinking=False).calls == (call,)
    turn = fmt.turn(USER, TOOLS, thinking=False, on_malformed_call="text")
    message = turn.parse(text)
    assert not message.calls and "rainy Oslo" in message.content
    assert fmt.parse(text, TOOLS, thinking=False, on_malformed_call="text") == message


def test_text_that_looks_like_a_call_is_none_without_tools() -> None:
    fmt = dovetail.format("kimi_k25")
    text = fmt.write(Message(calls=(Call("functions.f:0", "f", "{}"),)), thinking=False).text
    assert not fmt.turn(USER, thinking=False).parse(text).calls
    assert fmt.turn(USER, TOOLS, thinking=False).parse(text).calls


def test_a_continued_answer_is_left_as_it_is() -> None:
    fmt = dovetail.format("kimi_k25")
    turn = fmt.turn([*USER, {"role": "assistant", "content": "It is"}], continue_final_message=True)
    assert turn.prompt.text.endswith("It is") and not turn.left_open and not turn.may_reason
    assert turn.parse(" sunny.").content == " sunny."
    constrained = fmt.turn(
        [*USER, {"role": "assistant", "content": "It is"}],
        continue_final_message=True,
        response_format={"type": "json_object"},
    )
    with pytest.raises(InvalidRequest, match="go on from where this prompt ends"):
        constrained.grammar()


@pytest.mark.parametrize("name", ["kimi_k25", "qwen3", "glm47", "deepseek_v31", "harmony", "mistral", "hermes"])
@pytest.mark.parametrize("thinking", [None, True, False])
def test_parse_without_a_turn_does_not_lose_an_answer(name: str, thinking: bool | None) -> None:
    """The plain answer is content, unless the caller says that the family's own prompt left reasoning open."""
    fmt = dovetail.format(name)
    text = "It rains." if name != "harmony" else "<|channel|>final<|message|>It rains."
    certain = thinking is True and fmt.reasoning == "opened"
    assert fmt.parse(text, thinking=thinking).content == ("" if certain else "It rains.")


def test_parse_reads_reasoning_that_the_output_closes() -> None:
    assert dovetail.format("kimi_k25").parse("hm</think>It rains.").reasoning == "hm"
    assert dovetail.format("qwen3").parse("<think>\nhm\n</think>\n\nIt rains.", thinking=True).content == "It rains."
    assert dovetail.format("qwen3").parse("hm\n</think>\n\nIt rains.", thinking=True).reasoning == "hm"


def test_repr_says_what_it_is() -> None:
    fmt = dovetail.format("kimi_k25")
    assert repr(fmt) == "<format kimi_k25>"
    assert repr(fmt.turn(USER)).startswith("Turn(<format kimi_k25>, Prompt('<|im_user|>user")


@pytest.mark.parametrize("name", families.RENDERING)
def test_an_answer_goes_back_into_the_history(name: str) -> None:
    fmt = families.format_of(name)
    calls = (Call("functions.get_weather:0", "get_weather", '{"city": "Oslo", "days": 1}'),)
    message = Message("", "Hm.", calls)
    result = {"role": "tool", "tool_call_id": calls[0].id, "content": "It snows."}
    prompt = fmt.turn([*USER, message.to_openai(), result], TOOLS).prompt.text
    assert "Oslo" in prompt and "It snows." in prompt
    assert message.to_openai()["reasoning_content"] == "Hm."
    assert json.loads(json.dumps(message.to_openai())) == message.to_openai()


@pytest.mark.parametrize("name", sorted(families.NAMES))
def test_a_structural_tag_needs_no_tokenizer(name: str) -> None:
    """xgrammar finds control tokens by their literals; only in EBNF it needs the ids."""
    fmt, tokenizer = families.format_of(name), families.tokenizer_of(name)
    grammar = fmt.grammar(TOOLS)
    assert grammar is not None
    try:
        tag = grammar.structural_tag()
    except ValueError as error:
        assert "needs the id of" in str(error) and name in ("functiongemma", "gemma4", "minimax_m3")
        return
    vocabulary = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
    xgrammar = pytest.importorskip("xgrammar")
    ends = [tokenizer.control[literal] for literal in fmt.end_of_turn if literal in tokenizer.control]
    info = xgrammar.TokenizerInfo(vocabulary, stop_token_ids=ends)
    assert xgrammar.GrammarCompiler(info).compile_structural_tag(json.dumps(tag))


def test_which_answers_cannot_be_continued_under_a_grammar() -> None:
    """Those that begin with a header rather than with text; a schema that is enforced in part changes nothing."""
    unusable = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "required": True}}}
    refused = set()
    for name in sorted(families.NAMES):
        for tools in (TOOLS, [unusable]):
            turn = Turn(families.format_of(name), tools=tools, continues=True, left_open=False)
            try:
                assert turn.grammar() is not None
            except InvalidRequest as error:
                assert error.param == "continue_final_message"
                refused.add(name)
    assert refused == {"beam", "harmony", "muse", "functionary", "inkling"}


def test_reasoning_that_the_prompt_opened_for_a_family_that_opens_it_itself() -> None:
    fmt = families.format_of("qwen3")
    assert Turn(fmt, left_open=True).grammar() is None
    with pytest.raises(InvalidRequest, match="go on from where this prompt ends") as refused:
        Turn(fmt, tools=TOOLS, left_open=True).grammar()
    assert refused.value.param == "dovetail.strict"
    assert Turn(fmt, left_open=True).parse("hm</think>\n\nHi").reasoning == "hm"


def test_tools_that_are_checked_already_are_taken_as_they_are() -> None:
    fmt = families.format_of("kimi_k25")
    text = fmt.write(Message(calls=(Call("functions.get_weather:0", "get_weather", "{}"),)), thinking=False).text
    turn = Turn(fmt, tools=check_tools(TOOLS), left_open=False)
    assert turn.parse(text) == Turn(fmt, tools=TOOLS, left_open=False).parse(text)
    assert turn.grammar() == Turn(fmt, tools=TOOLS, left_open=False).grammar()
