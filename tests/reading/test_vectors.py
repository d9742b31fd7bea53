"""Outputs from the tests of other engines (`../shared/data/vectors`), and every way to cut them once or twice.

A case says what one parser made of an output. `tools_only`: it did not look for reasoning. `reasoning_only`: it split
off the reasoning and left the calls as text in its content, so that content is read here as what follows. `stream`
cases come in chunks and may stop in the middle. Where our reading differs, `DIFFERS` says by which rule.
"""

from __future__ import annotations

import functools
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import pytest

import dovetail
from dovetail.events import Message
from dovetail.formats.registry import FAMILIES
from tests.conftest import SHARED
from tests.examples import FUZZ
from tests.reading import families

#: Which of our formats reads a file's cases. (Files of other families are not read.)
READ_BY = {
    "deepseek_r1": "deepseek_v3",
    "deepseek_v3": "deepseek_v3",
    "deepseek_v31": "deepseek_v31",
    "deepseek_v32": "deepseek_v32",
    "deepseek_v4": "deepseek_v4",
    "deepseekr1": "deepseek_v3",
    "gemma4": "gemma4",
    "gigachat3": "gigachat3",
    "glm45": "glm45",
    "glm47": "glm47",
    "gpt_oss": "harmony",
    "harmony": "harmony",
    "hermes": "hermes",
    "jamba": "jamba",
    "kimi_k2": "kimi_k2_thinking",
    "kimi_k25": "kimi_k25",
    "lfm2": "lfm2",
    "llama3_json": "llama3_json",
    "minicpm5": "minicpm5",
    "minimax_append_think": "minimax_m2",
    "minimax_m2": "minimax_m2",
    "minimax_m3": "minimax_m3",
    "minimaxm3": "minimax_m3",
    "mistral": "mistral",
    "nemotron3": "nemotron_v3",
    "phi4": "phi4_mini",
    "pythonic": "pythonic",
    "qwen25": "hermes",
    "qwen3": "qwen3",
    "qwen3_coder": "qwen3_coder",
}
#: Files whose reasoning parsers take an output to begin inside a reasoning block.
BEGINS_IN_REASONING = ("deepseek_r1", "deepseek_v3", "deepseekr1", "kimi_k25", "minimax_append_think", "mistral")

#: The rules by which our reading differs from an engine's expectation. docs/reading.md has them with their counts.
RULES = {
    "after": "Text after a section, and between sections, is content.",
    "outside": "Text outside of every message is content, with a Defect.",
    "mention": "A marker that begins no call is text, verbatim, in content and in reasoning.",
    "in-section": "Text in a section that cannot be read as a call is content, with a Defect.",
    "no-opener": "Without an opener there is no call, unless a tool's name and a marker begin one: text is content.",
    "no-name": "A call that names no tool is content, with a Defect.",
    "only-tool": "A call that names no tool is a call of the only tool that the request has, with a Defect.",
    "unknown-name": "A name that is not among the tools is passed on as it is, with a Defect.",
    "unchecked": "Parameters that the tool does not have, or that come twice, are passed on.",
    "bare-counter": "A call gets its name as soon as its header is read. The name is not guessed from later arguments.",
    "no-arguments": "A call that ends without arguments has none, with a Defect.",
    "malformed": "Arguments that cannot be read are their text under `malformed_arguments`, with a Defect.",
    "mended": "What is no JSON and can only mean one thing is mended, with a Defect.",
    "escapes": "A backslash and an n between tags are these two characters, because the format has no escapes there.",
    "missing-end": "A call with complete arguments and no end is a call, with a Defect.",
    "dropped-end": "A call with complete arguments needs no end if that would also end the turn: engines drop it.",
    "truncated": "A call that was cut off has the arguments that came, without a CallEnd and with a Defect.",
    "prompt": "The prompt decides whether an output begins inside a reasoning block, not the output.",
    "whitespace": "Whitespace that no template writes is content.",
    "layout": "Whitespace between the parts of a call does not matter.",
    "whitespace-markup": "Newlines that a template writes around a marker, and whitespace between calls, are markup.",
    "unfinished": "The engine's test reads a stream that has not ended, or makes its parser fail.",
    "quoted": "A string where the tool's schema has another type is the value that it spells, with a Defect.",
    "reasoning-only": "Reasoning stays reasoning if nothing follows it.",
    "garbled": "The engine loses or garbles an output that is read here.",
}
DIFFERS: dict[str, dict[str, str]] = {
    "deepseek_r1": {
        "whitespace": "REASONING.batch.6.a",
    },
    "deepseek_v3": {
        "after": "TOOLCALLING.batch.2.c TOOLCALLING.batch.8.b TOOLCALLING.batch.8.c TOOLCALLING.batch.8.d",
        "mention": "TOOLCALLING.batch.4.a TOOLCALLING.batch.4.c",
        "no-arguments": "TOOLCALLING.batch.6.c",
        "missing-end": "TOOLCALLING.batch.4.d TOOLCALLING.batch.5.a TOOLCALLING.batch.5.d TOOLCALLING.stream.4.a",
        "truncated": "TOOLCALLING.batch.5.c TOOLCALLING.batch.5.e TOOLCALLING.stream.4.b",
        "whitespace": "REASONING.batch.6.a",
        "quoted": "TOOLCALLING.batch.7.c",
        "malformed": "TOOLCALLING.batch.4.b",
    },
    "deepseek_v31": {
        "after": "TOOLCALLING.batch.2.c TOOLCALLING.batch.8.b TOOLCALLING.batch.8.c TOOLCALLING.batch.8.d",
        "mention": "TOOLCALLING.batch.4.a TOOLCALLING.batch.4.c",
        "no-arguments": "TOOLCALLING.batch.6.c",
        "missing-end": "TOOLCALLING.batch.4.d TOOLCALLING.batch.5.d",
        "truncated": "TOOLCALLING.batch.5.c TOOLCALLING.batch.5.e TOOLCALLING.stream.4.b",
        "quoted": "TOOLCALLING.batch.7.c",
        "malformed": "TOOLCALLING.batch.4.b",
    },
    "deepseek_v32": {
        "after": "TOOLCALLING.batch.2.c TOOLCALLING.batch.8.b TOOLCALLING.batch.8.c TOOLCALLING.batch.8.d",
        "mention": "TOOLCALLING.batch.4.a",
        "only-tool": "TOOLCALLING.batch.4.c",
        "missing-end": "TOOLCALLING.batch.4.d",
        "truncated": "TOOLCALLING.batch.5.c TOOLCALLING.batch.5.e TOOLCALLING.stream.4.b",
    },
    "deepseek_v4": {
        "after": "TOOLCALLING.batch.2.c TOOLCALLING.batch.8.b TOOLCALLING.batch.8.c TOOLCALLING.batch.8.d",
        "mention": "TOOLCALLING.batch.4.a",
        "only-tool": "TOOLCALLING.batch.4.c",
        "missing-end": "TOOLCALLING.batch.4.d",
        "truncated": "TOOLCALLING.batch.5.c TOOLCALLING.batch.5.e TOOLCALLING.stream.4.b",
        "prompt": "REASONING.batch.4",
        "whitespace": "TOOLCALLING.batch.5.g REASONING.batch.6.a",
    },
    "gemma4": {
        "after": "detect_and_parse_multiple_calls TOOLCALLING.batch.2.c TOOLCALLING.batch.8.b TOOLCALLING.batch.8.c"
        " TOOLCALLING.batch.8.d",
        "mention": "TOOLCALLING.batch.4.a TOOLCALLING.batch.4.c",
        "no-opener": "TOOLCALLING.batch.5.g",
        "no-arguments": "TOOLCALLING.batch.6.c",
        "missing-end": "TOOLCALLING.batch.4.b TOOLCALLING.batch.4.d",
        "truncated": "TOOLCALLING.batch.5.c TOOLCALLING.batch.5.e TOOLCALLING.stream.4.b",
        "prompt": "REASONING.batch.4",
        "quoted": "TOOLCALLING.batch.7.c",
        "whitespace": "TOOLCALLING.batch.8.a",
        "whitespace-markup": "streaming_multiple_tool_calls",
    },
    "glm45": {
        "mention": "detect_and_parse_multiple_tool_calls_find forced_reasoning_mode#2"
        " streaming_empty_reasoning_with_tool glm45_tool_interruption glm45_tool_interruption#2",
        "unknown-name": "invalid_tool_call",
        "escapes": "array_argument_with_escaped_json#2 array_argument_with_escaped_json#4"
        " array_argument_with_escaped_json#6",
    },
    "glm47": {
        "after": "TOOLCALLING.batch.2.c TOOLCALLING.batch.8.b TOOLCALLING.batch.8.c TOOLCALLING.batch.8.d",
        "only-tool": "TOOLCALLING.batch.4.a",
        "unknown-name": "invalid_tool_call TOOLCALLING.batch.13",
        "missing-end": "TOOLCALLING.batch.4.d TOOLCALLING.batch.5.a TOOLCALLING.batch.5.d TOOLCALLING.stream.4.a",
        "truncated": "TOOLCALLING.batch.5.c TOOLCALLING.batch.5.e TOOLCALLING.stream.4.b",
    },
    "gpt_oss": {
        "outside": "REASONING.batch.1.b REASONING.stream.3.c REASONING.stream.1.b",
    },
    "harmony": {
        "outside": "TOOLCALLING.batch.3",
        "no-name": "TOOLCALLING.batch.4.c",
        "dropped-end": "TOOLCALLING.batch.5.a TOOLCALLING.batch.5.d TOOLCALLING.stream.1.a TOOLCALLING.stream.1.b "
        "TOOLCALLING.stream.4.a",
        "truncated": "TOOLCALLING.batch.5.c TOOLCALLING.batch.5.e TOOLCALLING.stream.4.b",
        "whitespace": "TOOLCALLING.batch.8.a",
        "whitespace-markup": "TOOLCALLING.batch.2.c TOOLCALLING.batch.8.c TOOLCALLING.batch.8.d",
        "quoted": "TOOLCALLING.batch.7.c",
        "malformed": "TOOLCALLING.batch.4.a TOOLCALLING.batch.4.b",
    },
    "hermes": {
        "after": "TOOLCALLING.batch.2.c TOOLCALLING.batch.8.b TOOLCALLING.batch.8.c TOOLCALLING.batch.8.d",
        "no-opener": "TOOLCALLING.batch.5.b TOOLCALLING.stream.4.c",
        "no-arguments": "TOOLCALLING.batch.6.c",
        "missing-end": "TOOLCALLING.batch.5.d",
        "truncated": "TOOLCALLING.batch.5.c TOOLCALLING.batch.5.e TOOLCALLING.stream.4.b",
        "whitespace": "tool_call_with_leading_text TOOLCALLING.batch.8.a",
        "quoted": "TOOLCALLING.batch.7.c",
    },
    "jamba": {
        "after": "TOOLCALLING.batch.2.c TOOLCALLING.batch.8.b TOOLCALLING.batch.8.c TOOLCALLING.batch.8.d",
        "mention": "TOOLCALLING.batch.4.c",
        "no-opener": "TOOLCALLING.batch.5.b TOOLCALLING.stream.4.c",
        "no-arguments": "TOOLCALLING.batch.6.c",
        "truncated": "TOOLCALLING.batch.5.c TOOLCALLING.batch.5.e TOOLCALLING.stream.4.b",
        "whitespace": "TOOLCALLING.batch.8.a",
        "quoted": "TOOLCALLING.batch.7.c",
        "malformed": "TOOLCALLING.batch.4.b",
    },
    "kimi_k2": {
        "after": "TOOLCALLING.batch.2.c TOOLCALLING.batch.8.b TOOLCALLING.batch.8.c TOOLCALLING.batch.8.d",
        "mention": "no_leak_of_argument_begin_token streaming_partial_marker_buffering TOOLCALLING.batch.4.a "
        "TOOLCALLING.batch.4.c",
        "unknown-name": "e2e_unparsable_tool_id_does_not_wedge_stream",
        "bare-counter": "detect_and_parse_bare_counter_skips_unknown",
        "no-arguments": "TOOLCALLING.batch.6.c",
        "missing-end": "TOOLCALLING.batch.4.d TOOLCALLING.batch.5.d TOOLCALLING.stream.4.a",
        "truncated": "TOOLCALLING.batch.5.c TOOLCALLING.batch.5.e TOOLCALLING.stream.4.b",
        "whitespace": "TOOLCALLING.batch.5.g",
        "unfinished": "e2e_chunk_split_invariance e2e_chunk_split_invariance#3 e2e_chunk_split_invariance#4 "
        "e2e_exception_mid_drain_preserves_accumulated_calls",
        "quoted": "TOOLCALLING.batch.7.c",
        "mended": "partial_tool_call e2e_malformed_json_args_passes_through_to_client "
        "e2e_malformed_json_args_passes_through_to_client#2 "
        "e2e_malformed_json_args_passes_through_to_client#3 TOOLCALLING.batch.4.b",
    },
    "gigachat3": {
        "no-opener": "detect_and_parse_function_call_marker_simple_tool_call "
        "streaming_function_call_marker_simple_tool_call",
        "no-name": "detect_and_parse_missing_name",
        "no-arguments": "detect_and_parse_missing_arguments",
        "malformed": "detect_and_parse_arguments_not_dict detect_and_parse_invalid_json",
        "mended": "streaming_incomplete_json",
    },
    "kimi_k25": {
        "whitespace": "REASONING.batch.6.a",
    },
    "lfm2": {
        "after": "detect_and_parse_multiple_blocks",
        "unknown-name": "detect_and_parse_unknown_function",
        "whitespace": "detect_and_parse_with_normal_text_before",
    },
    "llama3_json": {
        "after": "TOOLCALLING.batch.2.c TOOLCALLING.batch.8.b TOOLCALLING.batch.8.c TOOLCALLING.batch.8.d "
        "TOOLCALLING.stream.4.c",
        "mention": "TOOLCALLING.batch.4.a TOOLCALLING.batch.4.c",
        "no-arguments": "TOOLCALLING.batch.6.c",
        "missing-end": "TOOLCALLING.batch.5.a TOOLCALLING.batch.5.d TOOLCALLING.stream.4.a",
        "truncated": "invalid_then_valid_json TOOLCALLING.batch.4.b TOOLCALLING.batch.4.e TOOLCALLING.batch.5.c "
        "TOOLCALLING.batch.5.e TOOLCALLING.stream.4.b",
        "whitespace": "json_with_trailing_text TOOLCALLING.batch.8.a",
        "quoted": "TOOLCALLING.batch.7.c",
        "garbled": "TOOLCALLING.stream.2",
    },
    "minicpm5": {
        "unknown-name": "unknown_tool_block_preserved_v3",
        "unchecked": "duplicate_param_names_invalid_v3 case_sensitive_param_name_invalid_v3",
        "missing-end": "incomplete_missing_function_end_v3",
        "whitespace-markup": "detect_and_parse_single_call_v3 detect_and_parse_cdata_multiline_v3"
        " non_string_types_v3 multiple_calls_interleaved_text_v3 no_required_and_zero_param_valid_v3"
        " streaming_increment_v3",
    },
    "minimax_m2": {
        "after": "TOOLCALLING.batch.2.c TOOLCALLING.batch.8.b TOOLCALLING.batch.8.c TOOLCALLING.batch.8.d",
        "mention": "TOOLCALLING.batch.4.a TOOLCALLING.batch.13",
        "only-tool": "TOOLCALLING.batch.4.c",
        "missing-end": "TOOLCALLING.batch.4.d",
        "truncated": "TOOLCALLING.batch.5.c TOOLCALLING.batch.5.e TOOLCALLING.stream.4.b",
        "whitespace-markup": "TOOLCALLING.batch.5.d",
    },
    "minimax_m3": {
        "in-section": "mismatched_closing_tag",
        "truncated": "truncated_no_closing_tags",
    },
    "minimaxm3": {
        "whitespace": "drops_leading_stray_close_stream_after_whitespace drops_leading_stray_close_with_whitespace",
        "reasoning-only": "force_nonempty_content_swaps_when_no_content",
    },
    "mistral": {
        "after": "TOOLCALLING.batch.2.c TOOLCALLING.batch.8.b TOOLCALLING.batch.8.c TOOLCALLING.batch.8.d",
        "mention": "json_array_with_invalid_json TOOLCALLING.batch.4.c",
        "no-arguments": "TOOLCALLING.batch.6.c",
        "truncated": "TOOLCALLING.batch.5.c TOOLCALLING.batch.5.e TOOLCALLING.stream.4.b",
        "whitespace": "detect_and_parse_with_text_before_tool_call compact_format_with_leading_text "
        "json_array_with_leading_text REASONING.batch.6.a",
        "quoted": "TOOLCALLING.batch.7.c",
        "malformed": "TOOLCALLING.batch.4.b",
    },
    "pythonic": {
        "after": "TOOLCALLING.batch.2.c TOOLCALLING.batch.8.b TOOLCALLING.batch.8.c TOOLCALLING.batch.8.d",
        "missing-end": "TOOLCALLING.batch.4.d TOOLCALLING.batch.5.a TOOLCALLING.batch.5.d TOOLCALLING.stream.4.a",
        "truncated": "TOOLCALLING.batch.4.b TOOLCALLING.batch.5.c TOOLCALLING.stream.4.b",
        "whitespace": "TOOLCALLING.batch.8.a",
        "layout": "TOOLCALLING.batch.6.b",
        "unfinished": "parse_streaming_opening_bracket_only",
        "quoted": "TOOLCALLING.batch.7.c",
        "garbled": "parse_streaming_multiple_tool_calls parse_streaming_with_python_start_and_end_token",
    },
    "qwen25": {
        "after": "TOOLCALLING.batch.2.c TOOLCALLING.batch.8.b TOOLCALLING.batch.8.c TOOLCALLING.batch.8.d",
        "no-opener": "TOOLCALLING.batch.5.b TOOLCALLING.stream.4.c",
        "no-arguments": "TOOLCALLING.batch.6.c",
        "missing-end": "TOOLCALLING.batch.4.b TOOLCALLING.batch.4.d TOOLCALLING.batch.5.a TOOLCALLING.batch.5.d "
        "TOOLCALLING.stream.4.a",
        "truncated": "TOOLCALLING.batch.5.c TOOLCALLING.batch.5.e TOOLCALLING.stream.4.b",
        "whitespace": "TOOLCALLING.batch.8.a",
        "quoted": "TOOLCALLING.batch.7.c",
    },
    "nemotron3": {
        "mention": "streaming_tool_start_ends_reasoning_and_noops_finish",
        "reasoning-only": "force_nonempty_content_swaps_when_no_normal_text force_nonempty_content_truncated_reasoning"
        " streaming_truncated_no_stream_reasoning_strips_think_start"
        " streaming_truncated_reasoning_reclassified_on_finish",
    },
    "qwen3": {
        "prompt": "REASONING.batch.4",
        "whitespace": "REASONING.batch.6.a",
        "whitespace-markup": "with_parser_separates_reasoning parse_non_stream_preserves_payload_whitespace"
        " parse_stream_chunk_preserves_payload_whitespace",
    },
    "phi4": {
        "after": "TOOLCALLING.batch.2.c TOOLCALLING.batch.8.b TOOLCALLING.batch.8.c TOOLCALLING.batch.8.d",
        "mention": "TOOLCALLING.batch.4.a TOOLCALLING.batch.4.c",
        "no-opener": "TOOLCALLING.batch.5.b",
        "no-arguments": "TOOLCALLING.batch.6.c",
        "missing-end": "TOOLCALLING.batch.4.d TOOLCALLING.batch.5.a TOOLCALLING.batch.5.d TOOLCALLING.stream.4.a",
        "truncated": "TOOLCALLING.batch.5.c TOOLCALLING.batch.5.e TOOLCALLING.stream.4.b",
        "whitespace": "TOOLCALLING.batch.8.a",
        "quoted": "TOOLCALLING.batch.7.c",
        "garbled": "TOOLCALLING.stream.4.c",
        "malformed": "TOOLCALLING.batch.4.b",
    },
    "qwen3_coder": {
        "after": "TOOLCALLING.batch.2.c TOOLCALLING.batch.8.b TOOLCALLING.batch.8.c TOOLCALLING.batch.8.d",
        "mention": "TOOLCALLING.batch.4.a TOOLCALLING.batch.4.f",
        "truncated": "incomplete_tool_call TOOLCALLING.batch.5.c TOOLCALLING.batch.5.e TOOLCALLING.stream.4.b",
        "whitespace-markup": "single_tool_call_with_text_prefix streaming_with_text_and_tool TOOLCALLING.stream.2",
    },
}

files = pytest.mark.parametrize("file", [file for file, name in READ_BY.items() if name in FAMILIES])


class Case:
    """One vector, named within its file: the last part of its name, numbered where there are several."""

    def __init__(self, file: str, name: str, data: dict[str, Any]) -> None:
        self.format = families.format_of(READ_BY[file])
        self.name, self.text, self.tools = name, data["model_text"], data["tools"]
        self.chunks = data.get("chunks") or [self.text]
        self.scope, self.expected = data["scope"], data["expected"]
        state = {**(data.get("options") or {}), **(data.get("extra") or {})}
        begins = state.get("force_reasoning", file in BEGINS_IN_REASONING) or state.get("_in_reasoning", False)
        self.thinking = self.scope == "reasoning_only" and begins

    def read(self, pieces: list[str]) -> Message:
        reader = self.format.reader(self.tools, thinking=self.thinking)
        events = [event for piece in pieces for event in reader.feed(piece)]
        return dovetail.fold(events + reader.finish())

    def agrees(self, message: Message) -> bool:
        """Whether `message` is what the case expects, as far as its parser looked."""
        content, reasoning, calls = self.expected["content"], self.expected["reasoning"] or "", []
        if self.scope == "reasoning_only":
            rest = self.format.parse(content, self.tools, thinking=False)
            content, reasoning = rest.content, reasoning + rest.reasoning
            calls = [{"name": call.name, "arguments": call.arguments} for call in rest.calls]
        else:
            calls = self.expected["tool_calls"]
            reasoning = message.reasoning
        return (message.content, message.reasoning) == (content, reasoning) and (
            [(call.name, _value(call.arguments)) for call in message.calls]
            == [(call["name"], _value(call["arguments"])) for call in calls]
        )


def _value(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


@functools.cache
def cases(file: str) -> tuple[Case, ...]:
    path = SHARED / "vectors" / f"{file}.json"
    if not path.is_file():
        pytest.skip(f"the vectors of other engines ({path}) are not beside this checkout")
    seen: Counter[str] = Counter()
    collected: list[Case] = []
    for data in json.loads(path.read_text(encoding="utf-8")):
        name = data["name"].replace("::", "/").rpartition("/")[2].removeprefix("test_")
        seen[name] += 1
        collected.append(Case(file, name if seen[name] == 1 else f"{name}#{seen[name]}", data))
    return tuple(collected)


@files
def test_vectors_read_as_expected_or_by_a_rule(file: str) -> None:
    """The table can neither miss a difference nor keep one that is gone."""
    differ = {case.name for case in cases(file) if not case.agrees(case.read(case.chunks))}
    explained = [name for rule, names in DIFFERS.get(file, {}).items() if RULES[rule] for name in names.split()]
    assert sorted(explained) == sorted(differ)


@pytest.mark.slow
@files
def test_cutting_a_vector_changes_nothing(file: str) -> None:
    """Every single cut of every vector; every pair of cuts of the shortest (profile `fuzz`: of all)."""
    distinct = {(case.text, json.dumps(case.tools), case.thinking): case for case in cases(file)}
    pairs_of = sorted(distinct.values(), key=lambda case: len(case.text))
    for case in distinct.values():
        whole = case.read([case.text])
        for at in range(1, len(case.text)):
            assert case.read([case.text[:at], case.text[at:]]) == whole, (case.name, at)
    for case in pairs_of if FUZZ else pairs_of[:1]:
        whole = case.read([case.text])
        for a, b in combinations(range(1, len(case.text)), 2):
            assert case.read([case.text[:a], case.text[a:b], case.text[b:]]) == whole, (case.name, a, b)


@pytest.mark.parametrize("splits", [100_000 if FUZZ else 1000])
def test_random_splits_change_nothing(splits: int) -> None:
    """Of every vector that is there and of written outputs of every format, whole and spoiled, with a fixed seed."""
    drawn = random.Random(3)
    texts = [*_vector_texts(), *(text for name in FAMILIES for text in _spoiled(name, drawn))]
    wholes: dict[int, Message] = {}
    for _ in range(splits):
        number = drawn.randrange(len(texts))
        read, text = texts[number]
        whole = wholes.get(number) or wholes.setdefault(number, read([text]))
        pieces = families.cut(text, [drawn.randrange(len(text) + 1) for _ in range(drawn.randrange(1, 24))])
        assert read(pieces) == whole, pieces


def _vector_texts() -> list[tuple[Callable[[list[str]], Message], str]]:
    """Nothing where the vectors are not beside this checkout: the written outputs are tried all the same."""
    if not SHARED.is_dir():
        return []
    return [(case.read, case.text) for file, name in READ_BY.items() if name in FAMILIES for case in cases(file)]


def _spoiled(name: str, drawn: random.Random) -> Iterator[tuple[Callable[[list[str]], Message], str]]:
    """A written output of two calls, and forty where markers or pieces of them were put in or characters taken out."""
    outputs = families.sample_outputs(name)
    scraps = [m[: drawn.randrange(1, len(m) + 1)] for m in families.markers(name)] + ['"', "\n", "{", "}", "é", "ping"]
    for number, changes in enumerate((*[0] * len(outputs), *[3] * 40)):
        text = outputs[number % len(outputs)]
        for _ in range(changes):
            at = drawn.randrange(len(text))
            text = text[:at] + drawn.choice(scraps) * drawn.randrange(3) + text[at + drawn.randrange(4) :]
        yield lambda pieces: dovetail.fold(families.stream(name, pieces)), text
