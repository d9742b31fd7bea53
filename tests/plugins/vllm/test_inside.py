"""Inside vLLM, through its own detokenizer and composition of parsers: the message is that of `Format.parse`.

DOVETAIL_VLLM_PARSERS names the Pythons of environments with vLLM (see docs/vllm.md): their parsers are enough.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dovetail
from dovetail.events import Call, Message
from dovetail.formats.registry import FAMILIES
from dovetail.plugins.vllm import names
from dovetail.reading import MALFORMED
from dovetail.tokens import Detokenizer, Prompt
from dovetail.tokens.raw_text import raw_prompt
from tests.examples import examples
from tests.plugins.vllm.conftest import Inside, ids_of, prompt_of, tokenizer_in
from tests.reading import families
from tests.reading.families import TOOLS, cut, opened, reasons, stream_ids

families_all = pytest.mark.parametrize("name", FAMILIES)
few = examples(8, fuzz=400)
Message_ = dict[str, Any]


def plain(message: Message) -> Message_:
    calls = [{"name": call.name, "arguments": call.arguments} for call in message.calls]
    return {"content": message.content, "reasoning": message.reasoning, "calls": calls}


def nameless(answer: Message_) -> Message_:
    """An answer without its calls' ids, which are new for each reading if the model wrote none."""
    assert "error" not in answer, answer
    ids = [call.pop("id") for call in answer["calls"]]
    assert all(ids) and len(set(ids)) == len(ids)
    return answer


def job(name: str, folder: Path, groups: list[list[int]], thinking: bool, **changed: Any) -> dict[str, Any]:
    job_fields: dict[str, Any] = {
        "tool_parser": f"dovetail_{name}",
        "reasoning_parser": f"dovetail_{name}",
        "folder": str(folder),
        "tools": TOOLS,
        "prompt": prompt_of(name, thinking, folder),
        "groups": groups,
        "ended": False,
    }
    return job_fields | changed


# -- law 1, through vLLM -----------------------------------------------------------------------------------------------


@families_all
@few
@given(st.data(), st.booleans(), families.cuts)
def test_written_answers_are_read_back_in_any_groups_of_tokens(
    inside: Inside, folders: dict[str, Path], name: str, data: st.DataObject, thinking: bool, places: list[int]
) -> None:
    """Streamed and not; texts that spell control tokens in ordinary tokens stay texts."""
    fmt, folder = families.format_of(name), folders[name]
    message = data.draw(families.messages(name, reasons=reasons(name, thinking), ids=True))
    ids = fmt.write(message, thinking=thinking).ids(tokenizer_in(folder))
    ends = {tokenizer_in(folder).control[end] for end in fmt.end_of_turn if end in tokenizer_in(folder).control}
    open_ = opened(name, thinking)
    ended = ids[-1] in ends
    expected = plain(
        dovetail.fold(stream_ids(name, [ids[:-1] if ended else ids], tokenizer_in(folder), thinking=open_))
    )
    for groups in ([ids], [group for group in cut(ids, places) if group], [[token] for token in ids]):
        job_fields = job(name, folder, groups, open_, ended=ended)
        assert nameless(inside.ask("streamed", **job_fields)) == expected
    assert nameless(inside.ask("whole", **job_fields)) == expected


@families_all
@few
@given(st.data(), st.booleans(), families.cuts)
def test_any_output_reads_the_same_in_any_groups_of_tokens(
    inside: Inside, folders: dict[str, Path], name: str, data: st.DataObject, thinking: bool, places: list[int]
) -> None:
    """Outputs gone wrong, cut off by a limit."""
    folder = folders[name]
    fmt = families.format_of(name)
    ends = fmt.end_of_turn
    # In some families no control token opens a block.
    thinking = fmt.left_open(Prompt(Detokenizer(tokenizer_in(folder)).feed(prompt_of(name, thinking, folder))))
    text = data.draw(families.outputs(name).filter(lambda t: "\ufffd" not in t and not any(e in t for e in ends)))
    ids = ids_of(name, text, folder)
    if not ids:
        return
    reader = fmt.reader(TOOLS, tokenizer=tokenizer_in(folder), thinking=thinking)
    expected = plain(dovetail.fold([*reader.feed("", ids), *reader.finish("length")]))
    for groups in ([ids], [group for group in cut(ids, places) if group], [[token] for token in ids]):
        job_fields = job(name, folder, groups, thinking)
        assert nameless(inside.ask("streamed", **job_fields)) == expected
    assert nameless(inside.ask("whole", **job_fields)) == expected


# -- what the request says ---------------------------------------------------------------------------------------------

KIMI = "functions.get_weather:0"
CALLED = Message("Let me look.", "They ask of Paris.", (Call(KIMI, "get_weather", '{"city": "Paris"}'),))


def ids_written(name: str, folder: Path, message: Message = CALLED) -> list[int]:
    return families.format_of(name).write(message, thinking=True).ids(tokenizer_in(folder))


def test_ids_of_calls_are_the_models_own(inside: Inside, folders: dict[str, Path]) -> None:
    folder = folders["kimi_k25"]
    answer = inside.ask("streamed", **job("kimi_k25", folder, [ids_written("kimi_k25", folder)], True, ended=True))
    assert answer["calls"] == [{"id": KIMI, "name": "get_weather", "arguments": '{"city": "Paris"}'}]


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}], ids=["required", "named"]
)
def test_a_forced_call_is_read_like_any_other(inside: Inside, folders: dict[str, Path], choice: Any) -> None:
    folder = folders["kimi_k25"]
    job_fields = job("kimi_k25", folder, [[t] for t in ids_written("kimi_k25", folder)], True, ended=True)
    for do in ("streamed", "whole"):
        read = inside.ask(do, **job_fields, fields={"tool_choice": choice})
        assert nameless(read) == plain(CALLED)


@families_all
def test_without_a_choice_of_tools_a_call_is_content(inside: Inside, folders: dict[str, Path], name: str) -> None:
    folder, fmt = folders[name], families.format_of(name)
    ids = ids_written(name, folder)
    reader = fmt.reader(TOOLS, thinking=opened(name, True), tool_choice="none", tokenizer=tokenizer_in(folder))
    expected = plain(dovetail.fold([*reader.feed("", ids[:-1]), *reader.finish()]))
    job_fields = job(name, folder, [[t] for t in ids], opened(name, True), ended=True, fields={"tool_choice": "none"})
    assert expected["calls"] == [] and nameless(inside.ask("streamed", **job_fields)) == expected
    assert nameless(inside.ask("whole", **job_fields)) == expected


def test_one_flag_is_enough_for_what_it_names(inside: Inside, folders: dict[str, Path]) -> None:
    """The tool parser's alone reads reasoning too; to the reasoning parser's alone a call is content, as it is."""
    folder = folders["kimi_k25"]
    job_fields = job("kimi_k25", folder, [[t] for t in ids_written("kimi_k25", folder)], True, ended=True)
    assert nameless(inside.ask("streamed", **job_fields | {"reasoning_parser": None})) == plain(CALLED)
    alone = inside.ask("streamed", **job_fields | {"tool_parser": None})
    assert (alone["reasoning"], alone["calls"]) == (CALLED.reasoning, [])
    written = families.format_of("kimi_k25").write(CALLED, thinking=True).text
    assert alone["content"] == written[written.index("Let me look.") :].removesuffix("<|im_end|>")


def test_reasoning_that_is_not_wanted_is_left_out(inside: Inside, folders: dict[str, Path]) -> None:
    folder = folders["kimi_k25"]
    job_fields = job("kimi_k25", folder, [ids_written("kimi_k25", folder)], True, ended=True)
    read = inside.ask("streamed", **job_fields, fields={"include_reasoning": False})
    assert nameless(read) == plain(CALLED) | {"reasoning": ""}


def test_a_stop_string_ends_the_text_and_not_the_ids(inside: Inside, folders: dict[str, Path]) -> None:
    """vLLM holds back what may become one, so its text lags behind its ids, and ends before them."""
    folder = folders["kimi_k25"]
    job_fields = job("kimi_k25", folder, [], True, ended=True)
    for stop, expected in (("look", "Let me "), ("never said", CALLED.content)):
        for groups in ([[t] for t in ids_written("kimi_k25", folder)], [ids_written("kimi_k25", folder)]):
            for do in ("streamed", "whole"):
                read = inside.ask(do, **job_fields | {"groups": groups}, stop=[stop])
                assert (read["reasoning"], read["content"]) == (CALLED.reasoning, expected)
                assert bool(read["calls"]) == (stop != "look")


def test_a_call_that_a_limit_cut_is_the_same_streamed_and_not(inside: Inside, folders: dict[str, Path]) -> None:
    folder = folders["kimi_k25"]
    ids = ids_written("kimi_k25", folder)
    for length in range(len(ids)):
        job_fields = job("kimi_k25", folder, [[t] for t in ids[: length + 1]], True)
        streamed, whole = inside.ask("streamed", **job_fields), inside.ask("whole", **job_fields)
        assert nameless(streamed) == nameless(whole)


@families_all
def test_each_parser_by_itself_reads_what_it_is_for(inside: Inside, folders: dict[str, Path], name: str) -> None:
    fmt, folder = families.format_of(name), folders[name]
    if fmt.reasoning != "none" and fmt.reasoning_tags is None:
        pytest.skip("its reasoning is a message of its own, which only both parsers together read")
    message = CALLED if reasons(name, True) else Message(CALLED.content, "", CALLED.calls)
    text = fmt.write(message, thinking=True).text
    for end in fmt.end_of_turn:
        text = text.removesuffix(end)
    read = inside.ask("apart", **job(name, folder, [], opened(name, True), text=text))
    assert "error" not in read, read
    assert read["reasoning"] == message.reasoning
    assert [call["name"] for call in read["calls"]] == ["get_weather"] and "Let me look." in read["content"]


# -- where reasoning ends, to the engine -------------------------------------------------------------------------------


@families_all
def test_the_engine_learns_where_reasoning_ends(inside: Inside, folders: dict[str, Path], name: str) -> None:
    """As vLLM gates other constraints than calls: none in reasoning, all behind it."""
    if not reasons(name, True) or families.format_of(name).reasoning_tags is None:
        pytest.skip("no reasoning between tags")
    folder, tokenizer = folders[name], tokenizer_in(folders[name])
    ids = ids_written(name, folder)
    answer = inside.ask("engine", **job(name, folder, [ids], opened(name, True)))
    at = answer["ended"].index(True)
    reasoning = tokenizer.decode(ids[:at])
    assert CALLED.reasoning in reasoning and CALLED.content not in reasoning
    closed = inside.ask("engine", **job(name, folder, [], True) | {"prompt": ids[:-1]})
    assert closed["ended"] == [True]
    if families.format_of(name).reader_type.think_end.strip() in tokenizer.control:
        spelled = len(tokenizer.encode(CALLED.reasoning))
        assert spelled <= answer["reasoning_tokens"] <= spelled + 2  # and what breaks the lines around it


# -- constraints -------------------------------------------------------------------------------------------------------

ONE = [{"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}]


def strict(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**tool, "function": {**tool["function"], "strict": True}} for tool in tools]


@families_all
@pytest.mark.parametrize("known", [True, False], ids=["prompt known", "prompt unknown"])
def test_a_call_that_is_asked_for_is_held_to_by_a_structural_tag(
    inside: Inside, folders: dict[str, Path], name: str, known: bool
) -> None:
    job_fields = job(name, folders[name], [], opened(name, True), tools=ONE, prompt_unknown=not known)
    answer = inside.ask("adjusted", **job_fields, fields={"tool_choice": "required"})
    assert "error" not in answer, answer
    tag = json.loads(answer["tag"])
    assert tag["type"] == "structural_tag" and "ping" in answer["tag"]
    assert answer["skip_special_tokens"] is answer["spaces_between_special_tokens"] is False
    assert answer["whole"] and answer["reasoning_ended"]  # one grammar over all of the answer


def test_auto_is_left_free_unless_a_tool_or_the_server_is_strict(inside: Inside, folders: dict[str, Path]) -> None:
    job_fields = job("kimi_k25", folders["kimi_k25"], [], True, tools=TOOLS)
    assert inside.ask("adjusted", **job_fields)["tag"] is None
    assert inside.ask("adjusted", **job_fields, fields={"tool_choice": "none"})["tag"] is None
    pinned = inside.ask("adjusted", **job_fields | {"tools": [*TOOLS[:1], *strict(TOOLS[2:3])]})["tag"]
    assert "celsius" not in pinned and "lines" in pinned  # the schema of the one that is strict
    single = inside.ask("adjusted", **job_fields, fields={"parallel_tool_calls": False})["tag"]
    assert single is not None and "celsius" not in single
    for level, registered in (("function", False), ("parameter", True)):
        tag = inside.ask("adjusted", **job_fields, level=level)["tag"]
        assert ("celsius" in tag) is registered
    inside.ask("adjusted", **job_fields, level="auto")


def test_a_response_format_is_not_overruled_by_auto(inside: Inside, folders: dict[str, Path]) -> None:
    job_fields = job("kimi_k25", folders["kimi_k25"], [], True, tools=strict(ONE))
    answer = inside.ask("adjusted", **job_fields, fields={"response_format": {"type": "json_object"}})
    assert answer["tag"] is None and answer["whole"] is False


# -- histories ---------------------------------------------------------------------------------------------------------

HISTORY = [
    {"role": "user", "content": [{"type": "text", "text": "Weather?"}]},
    {
        "role": "assistant",
        "content": None,
        "reasoning": "Paris.",
        "tool_calls": [
            {"id": "call_abc", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Paris"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "call_abc", "content": "sunny"},
]


def test_histories_are_repaired_for_the_parsers_that_are_served(inside: Inside, folders: dict[str, Path]) -> None:
    job_fields = job("kimi_k25", folders["kimi_k25"], [], True, messages=HISTORY)
    user, assistant, tool = inside.ask("rendered", **job_fields)["messages"]
    assert assistant["tool_calls"][0]["id"] == tool["tool_call_id"] == "functions.get_weather:0"
    assert assistant["reasoning"] == "Paris."  # under the name that vLLM reads
    assert user["content"] in ("Weather?", HISTORY[0]["content"])


def test_histories_that_cannot_be_repaired_are_left_to_vllm(inside: Inside, folders: dict[str, Path]) -> None:
    orphan = [HISTORY[0], {"role": "tool", "tool_call_id": "call_x", "content": "sunny"}]
    answer = inside.ask("rendered", **job("kimi_k25", folders["kimi_k25"], [], True, messages=orphan))
    assert answer["messages"][1]["tool_call_id"] == "call_x"
    bad = [{"role": "assistant", "tool_calls": [{"id": 3}]}]
    answer = inside.ask("rendered", **job("kimi_k25", folders["kimi_k25"], [], True, messages=bad))
    assert answer["error"].startswith("VLLMValidationError: messages[0]")


# -- names -------------------------------------------------------------------------------------------------------------


def test_every_format_is_registered_and_nothing_else_is_touched(inside: Inside) -> None:
    registered = inside.ask("named", names=["dovetail_kimi_k2", "llama3_json", "hermes"])
    assert set(names.OWN) <= {*registered["tool_parsers"]} & {*registered["reasoning_parsers"]}
    modules = registered["modules"]
    assert modules["dovetail_kimi_k2"].startswith("dovetail.")
    assert modules["llama3_json"].startswith("vllm.") and modules["hermes"].startswith("vllm.")
    assert registered["renderers"] == {"hf": "RepairingHfRenderer", "deepseek_v32": "RepairingDeepseekV32Renderer"}


def test_parsers_that_do_not_belong_together_are_refused_at_the_start(inside: Inside, folders: dict[str, Path]) -> None:
    folder = folders["kimi_k25"]
    for tools, reasoning, complaint in (
        ("dovetail_kimi_k25", "dovetail_qwen3", "parsers of different formats"),
        ("hermes", "dovetail_kimi_k25", "cannot be combined with Hermes2ProToolParser"),
    ):
        job_fields = job("kimi_k25", folder, [[1]], True, tool_parser=tools, reasoning_parser=reasoning)
        answer = inside.ask("streamed", **job_fields)
        assert complaint in answer["error"] + answer["cause"]


def test_a_format_of_a_checkpoint_needs_a_checkpoint(inside: Inside, folders: dict[str, Path]) -> None:
    job_fields = job("kimi_k25", folders["kimi_k25"], [[1]], True, tool_parser="dovetail_jinja", reasoning_parser=None)
    assert "dovetail_jinja is made from a checkpoint's chat template" in inside.ask("streamed", **job_fields)["error"]


OVERRIDDEN = (
    ("kimi_k2", "kimi_k2", "kimi_k25"),
    ("hermes", "qwen3", "qwen3"),
    ("deepseek_v32", "deepseek_v3", "deepseek_v32"),
)


def test_built_in_names_can_be_overridden(python: str, folders: dict[str, Path]) -> None:
    asked_for = {name for tools, reasoning, _ in OVERRIDDEN for name in (tools, reasoning)}
    worker = Inside(python, **{names.OVERRIDE: ",".join(asked_for)})
    try:
        for tools, reasoning, name in OVERRIDDEN:
            folder = folders[name]
            job_fields = job(name, folder, [[t] for t in ids_written(name, folder)], opened(name, True), ended=True)
            read = worker.ask("streamed", **job_fields | {"tool_parser": tools, "reasoning_parser": reasoning})
            assert nameless(read) == plain(CALLED)
            registered = worker.ask("named", names=[tools, "pythonic"])["modules"]
            assert registered[tools].startswith("dovetail.") and registered["pythonic"].startswith("vllm.")
    finally:
        worker.close()


def test_a_call_that_cannot_be_read_and_one_without_markup_are_what_the_variables_say(
    inside: Inside, python: str, folders: dict[str, Path]
) -> None:
    name, folder = "kimi_k25", folders["kimi_k25"]
    markup = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        "rainy Oslo<|tool_call_end|><|tool_calls_section_end|>"
    )
    unmarked = json.dumps({"name": "get_weather", "arguments": {"city": "Oslo", "days": 1}})

    def read(worker: Inside, text: str) -> Message_:
        ids = raw_prompt(f"{text}<|im_end|>", tokenizer_in(folder), prefix=False, controls=True)
        groups = [[token] for token in ids.ids(tokenizer_in(folder))]
        job_fields = job(name, folder, groups, False, ended=True)
        streamed = nameless(worker.ask("streamed", **job_fields))
        assert nameless(worker.ask("whole", **job_fields)) == streamed
        return streamed

    malformed = {"name": "get_weather", "arguments": json.dumps({MALFORMED: "rainy Oslo"})}
    assert read(inside, f"Look. {markup}") == {"content": "Look. ", "reasoning": "", "calls": [malformed]}
    (call,) = read(inside, unmarked)["calls"]
    assert json.loads(call["arguments"]) == {"city": "Oslo", "days": 1}
    worker = Inside(python, **{names.ON_MALFORMED_CALL: "text", names.NO_REPAIR: "unmarked_call"})
    try:
        for text in (f"Look. {markup}", unmarked):
            assert read(worker, text) == {"content": text, "reasoning": "", "calls": []}
    finally:
        worker.close()
