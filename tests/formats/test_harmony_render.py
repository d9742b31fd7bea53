"""Laws 7, 9 and 10 for gpt-oss: its prompts equal the fixtures of vLLM and OpenAI.

The tests named `…_differs` and their tables show where the sources differ and which of them the format follows.
"""

from __future__ import annotations

import copy
import datetime
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import dovetail
from dovetail.errors import DovetailError, InvalidRequest, RenderError
from dovetail.formats.families.harmony_prompt import declared_types
from dovetail.tokens import Prompt
from tests.formats.conversations import SHAPES, TOOLS, assistant, calling, result, system, user
from tests.reading.families import controls, tokenizer_of

FMT = dovetail.format("harmony")
CONTROLS = controls("harmony")
DATE = "2025-06-28"


def render(messages: list[dict[str, Any]], tools: Any = None, **options: Any) -> Prompt:
    return FMT.render(messages, tools, **{"current_date": DATE, **options})


PREAMBLE = render([], add_generation_prompt=False).text


def history(messages: list[dict[str, Any]], **options: Any) -> str:
    """The prompt of messages without the system message."""
    return render(messages, **options).text.removeprefix(PREAMBLE)


def function(name: str = "f", description: str = "D", **parameters: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, **parameters}}


# -- fixtures ---------------------------------------------------------------------------------------------------------


def test_every_fixture_of_vllm_is_equal(shared_data: Path) -> None:
    folder = shared_data / "render/harmony"
    inputs = sorted(folder.glob("*.json"))
    assert len(inputs) == 7
    for path in inputs:
        case = json.loads(path.read_text())
        case = case if isinstance(case, dict) else {"messages": case}
        prompt = render(
            case["messages"],
            case.get("tools"),
            add_generation_prompt=case.get("add_generation_prompt", True),
            reasoning_effort=case.get("reasoning_effort"),
        )
        assert prompt.text + "\n" == path.with_suffix(".txt").read_text(), path.name


def test_instructions_as_part_of_the_identity(shared_data: Path) -> None:
    """vLLM adds leading instructions to the identity if an environment variable is set; here it is an option."""
    expected = (shared_data / "render/harmony/system_instructions_env.txt").read_text()
    identity = "You are ChatGPT, a large language model trained by OpenAI.\nAnswer tersely."
    prompt = render([user("What is 2 + 2?")], model_identity=identity, reasoning_effort="high")
    assert prompt.text + "\n" == expected


#: The inputs of OpenAI's tests that chat completions can express. Those with `without_system` render messages alone.
OPENAI: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("goldens").joinpath("harmony_openai_inputs.json").read_text()
)
#: Tests that chat completions cannot express exactly. Each has a test below that shows how it differs.
OPENAI_DIFFERENT = ("does_not_drop_if_ongoing_analysis", "keep_analysis_between_finals")
#: Tests with channels that no chat template uses.
OPENAI_CHANNELS = (
    "reasoning_system_message",
    "reasoning_system_message_no_instruction",
    "reasoning_system_message_with_dates",
)
#: Tests of outputs, which are read and not rendered.
OPENAI_OUTPUTS = ("simple_reasoning_response", "simple_tool_call", "streamable_parser", "tool_response_parsing")


def openai(shared_data: Path, name: str) -> str:
    return (shared_data / f"render/harmony/openai_test-data/test-data/test_{name}.txt").read_text().rstrip()


def test_all_of_openais_test_data_is_accounted_for(shared_data: Path) -> None:
    names = {path.stem.removeprefix("test_") for path in shared_data.glob("render/harmony/openai_test-data/*/*.txt")}
    known = (*OPENAI, *OPENAI_DIFFERENT, *OPENAI_CHANNELS, *OPENAI_OUTPUTS)
    assert names == set(known)
    assert len(known) == 23


@pytest.mark.parametrize("name", OPENAI)
def test_openais_test_data_is_equal(shared_data: Path, name: str) -> None:
    case = OPENAI[name]
    text = render(case["messages"], case["tools"], **case["options"]).text
    assert text.removeprefix(PREAMBLE if "without_system" in case else "") == openai(shared_data, name)


def test_the_place_of_a_recipient_differs(shared_data: Path) -> None:
    """openai-harmony and the template write it after the role; oss-harmony and vLLM's fixtures after the channel."""
    call = calling("lookup_weather", arguments='{"location": "San Francisco"}')
    call["reasoning_content"] = "User asks: “What is the weather in SF?” We need to use lookup_weather tool."
    messages = [user("What is the weather in SF?"), call, result(content='{"temperature": 20, "description": "sunny"}')]
    expected = openai(shared_data, "does_not_drop_if_ongoing_analysis")
    to = " to=functions.lookup_weather"
    expected = expected.replace(f"{to}<|channel|>commentary", f"<|channel|>commentary{to}")
    # That result has no channel and recipient, which the description of the format and the fixtures require.
    result_header = "<|start|>functions.lookup_weather"
    expected = expected.replace(
        f"{result_header}<|message|>", f"{result_header}<|channel|>commentary to=assistant<|message|>"
    )
    assert history(messages) == expected


def test_the_references_drop_different_reasoning(shared_data: Path) -> None:
    """OpenAI's renderer drops reasoning before the first answer; its description, the template and vLLM the last."""
    messages = [
        user("What is 2 + 2?"),
        assistant("4", reasoning_content="thinking 2+2"),
        user("What is 3 + 5?"),
        assistant("8", reasoning_content="thinking 3+5"),
    ]
    expected = openai(shared_data, "keep_analysis_between_finals")
    thought = "<|start|>assistant<|channel|>analysis<|message|>thinking 3+5<|end|>"
    assert history(messages, add_generation_prompt=False) == expected.replace(thought, "")
    del messages[1]["reasoning_content"]
    assert history(messages, add_generation_prompt=False, auto_drop_analysis=False) == expected


@pytest.mark.parametrize(
    ("name", "question", "effort", "date"),
    [
        ("", "What is 2 + 2?", "medium", None),
        ("_no_instruction", "What is the best place to eat candy in the world?", "high", None),
        ("_with_dates", "What is 42 * pi?", "medium", "2021-01-01"),
    ],
)
def test_channels_and_cutoff_are_fixed(
    shared_data: Path, name: str, question: str, effort: str, date: str | None
) -> None:
    """OpenAI's renderer has options for channels and the cutoff; neither the template nor this format has them."""
    expected = openai(shared_data, f"reasoning_system_message{name}").replace("2021-01\n", "2024-06\n")
    expected = expected.replace("analysis, final.", "analysis, commentary, final.")
    assert render([user(question)], reasoning_effort=effort, current_date=date).text == expected


# -- the model's template ---------------------------------------------------------------------------------------------

#: The differences between the model's template and the fixtures: replacements that turn its prompts into ours.
DIFFERENCES: tuple[tuple[str, Any], ...] = (
    # The recipient comes after the role, and the content's type is not a control token.
    (
        r"assistant to=(\S+?)<\|channel\|>commentary json<\|message\|>",
        r"assistant<|channel|>commentary to=\1 <|constrain|>json<|message|>",
    ),
    # Results are JSON strings.
    (
        r'<\|start\|>(functions\.\S+?) to=assistant<\|channel\|>commentary<\|message\|>(".*?")<\|end\|>',
        lambda m: f"<|start|>{m[1]}<|channel|>commentary to=assistant<|message|>{json.loads(m[2])}<|end|>",
    ),
    # An empty line follows instructions without tools.
    (r"(developer<\|message\|># Instructions\n\n[^<]*)\n\n<\|end\|>", r"\1<|end|>"),
    # The last answer ends as in training.
    (r"<\|return\|>\Z", "<|end|>"),
    # Defaults are JSON with spaces, and the comma after them is part of the comment.
    (r"// default: \[1, 2\],", "// default: [1,2]"),
    # Text before calls is on the analysis channel.
    (r"analysis<\|message\|>Let me look", "commentary<|message|>Let me look"),
)
#: Shapes with larger differences.
OTHERWISE = {
    "two calls": "the template expects one call per message, and names every result after that call",
    "arguments as a string": "the template writes a JSON string of JSON",
    "result in parts": "the template writes the parts as JSON",
    "call with text": "the template drops the text, as reasoning, if an answer follows",
    "reasoning last": "the template keeps the reasoning, as in training",
}


def test_equal_to_the_models_template_except_known_differences(shared_data: Path) -> None:
    rendering = pytest.importorskip("transformers.utils.chat_template_utils")
    source = (shared_data / "templates/llama.cpp/openai-gpt-oss-120b.jinja").read_text()
    today = datetime.date.today().isoformat()
    compared, different = 0, set()
    more = {"text before a call": ([user(), calling("get_weather", content="Let me look.")], TOOLS)}
    for name, (messages, tools) in {**SHAPES, **more}.items():
        for open_turn in (True, False):
            renamed = copy.deepcopy(messages)
            for message in renamed:
                if "reasoning_content" in message:
                    message["thinking"] = message.pop("reasoning_content")
            try:
                (expected,), _ = rendering.render_jinja_template(
                    [renamed], tools=tools, chat_template=source, add_generation_prompt=open_turn
                )
            except Exception:  # the template or the library raises all kinds of errors for parts and null
                render(messages, tools, add_generation_prompt=open_turn)
                continue
            for theirs, ours in DIFFERENCES:
                expected = re.sub(theirs, ours, expected, flags=re.DOTALL)
            for field in (messages, renamed):  # the template's name for reasoning is read too
                prompt = render(field, tools, add_generation_prompt=open_turn, current_date=today)
                compared += 1
                if prompt.text != expected:
                    different.add(name)
    assert different == set(OTHERWISE)
    assert compared >= 80


@pytest.mark.parametrize("options", [{"reasoning_effort": "low"}, {"model_identity": "You are a robot."}])
@pytest.mark.parametrize("builtin", [["browser"], ["python"], ["browser", "python"], []])
def test_options_are_the_templates(shared_data: Path, options: dict[str, Any], builtin: list[str]) -> None:
    rendering = pytest.importorskip("transformers.utils.chat_template_utils")
    source = (shared_data / "templates/llama.cpp/openai-gpt-oss-120b.jinja").read_text()
    options["builtin_tools"] = builtin
    (expected,), _ = rendering.render_jinja_template(
        [[user()]], tools=TOOLS[1:], chat_template=source, add_generation_prompt=True, **options
    )
    today = datetime.date.today().isoformat()
    assert FMT.render([user()], TOOLS[1:], **options).text == expected  # today's date is the default
    assert render([user()], TOOLS[1:], **options).text == expected.replace(today, DATE)


# -- messages ---------------------------------------------------------------------------------------------------------


def message(channel: str, text: str) -> str:
    return f"<|start|>assistant<|channel|>{channel}<|message|>{text}<|end|>"


def called(name: str = "get_weather", arguments: str = "{}") -> str:
    header = f"<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json"
    return f"{header}<|message|>{arguments}<|call|>"


def developer(text: str) -> str:
    return f"<|start|>developer<|message|>{text}<|end|>"


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        # Instructions anywhere; empty ones are not written.
        ([system("a"), system("b")], [developer("# Instructions\n\na"), developer("# Instructions\n\nb")]),
        ([system(""), {"role": "developer", "content": "b"}], [developer("# Instructions\n\nb")]),
        ([user("a"), system(""), user("b")], ["<|start|>user<|message|>a<|end|>", "<|start|>user<|message|>b<|end|>"]),
        # Names of people are not shown.
        ([{**user("a"), "name": "ann"}], ["<|start|>user<|message|>a<|end|>"]),
        # All parts of a turn in their order.
        (
            [calling("f", "g", content="Look:", arguments="{}", reasoning_content="Hm.")],
            [message("analysis", "Hm."), message("commentary", "Look:"), called("f"), called("g")],
        ),
        ([calling("f", arguments={"é": [1, None]})], [called("f", '{"é": [1, null]}')]),
        ([calling("f", arguments="not json")], [called("f", "not json")]),
        ([assistant("")], [message("final", "")]),
        ([assistant(None, reasoning_content="Hm.")], [message("analysis", "Hm.")]),
        ([assistant("a", reasoning_content="Hm.")], [message("final", "a")]),
        # Reasoning is dropped once there is an answer.
        (
            [calling("f", arguments="{}", reasoning_content="Hm."), assistant("", reasoning_content="So."), user("?")],
            [message("analysis", "Hm."), called("f"), message("analysis", "So."), "<|start|>user<|message|>?<|end|>"],
        ),
        (
            [calling("f", arguments="{}", thinking="Hm."), assistant("", reasoning_content="So."), assistant("a")],
            [called("f"), message("final", "a")],
        ),
        (
            [assistant("a", reasoning_content="Hm."), calling("f", arguments="{}", thinking="So.")],
            [message("final", "a"), message("analysis", "So."), called("f")],
        ),
    ],
)  # fmt: skip
def test_messages(messages: list[dict[str, Any]], expected: list[str]) -> None:
    assert history(messages, add_generation_prompt=False) == "".join(expected)


@pytest.mark.parametrize("empty", ["", None, [], [{"type": "text", "text": ""}]])
def test_all_kinds_of_empty_content_are_written_the_same(empty: Any) -> None:
    messages = [system(empty), user(empty), calling("f", content=empty), result(content=empty), assistant(empty)]
    clean = [system(""), user(""), calling("f", content=""), result(content=""), assistant("")]
    assert render(messages).text == render(clean).text


def test_results_are_named_after_the_calls_they_answer() -> None:
    calls = calling("f", "g", arguments="{}")
    messages = [calls, result(1, "1"), result(0, "0"), calling("h", arguments="{}"), result(0, "2")]
    names = re.findall(
        r"<\|start\|>functions\.(\w)<\|channel\|>commentary to=assistant<\|message\|>(\d)", history(messages)
    )
    assert names == [("g", "1"), ("f", "0"), ("h", "2")]  # a repeated id refers to the later call
    stray = {"role": "tool", "tool_call_id": "unheard", "name": "k", "content": "3"}
    assert "<|start|>functions.k<|channel|>" in history([stray])


def test_tools_of_the_request_and_of_the_developer() -> None:
    """Tools at the start share a declaration; the system message mentions calls if there are tools anywhere."""
    one, two, three = (function(name) for name in ("one", "two", "three"))
    text = render([{"role": "developer", "content": "a", "tools": [two]}, user("b")], [one]).text
    assert re.findall(r"type (\w+) =", text.partition("namespace")[2]) == ["one", "two"]
    assert text.count("# Tools") == 1
    later = render([user("b"), {"role": "developer", "content": "", "tools": [three]}]).text
    assert later.partition("<|start|>user")[0].endswith("commentary channel: 'functions'.<|end|>")
    assert "<|end|><|start|>developer<|message|># Tools\n\n## functions" in later
    assert render([{**user("a"), "tools": [one]}]).text == render([user("a")]).text  # ignored in a user message


def test_without_thinking_the_reasoning_effort_is_low() -> None:
    assert "Reasoning: low\n" in render([], thinking=False).text
    assert "Reasoning: high\n" in render([], thinking=False, reasoning_effort="high").text
    assert "Reasoning: medium\n" in render([], reasoning_effort=None).text


# -- declarations -----------------------------------------------------------------------------------------------------

#: A property's schema and its declaration by OpenAI's renderers.
FIELDS: list[tuple[Any, str]] = [
    ({}, "a?: any,"),
    (True, "a?: any,"),
    ({"type": "integer"}, "a?: number,"),
    ({"type": "boolean", "nullable": True}, "a?: boolean | null,"),
    ({"type": "null"}, "a?: any,"),
    ({"type": 3}, "a?: any,"),
    ({"type": ["integer", "null"], "nullable": True}, "a?: number | null,"),
    ({"type": []}, "a?: any,"),
    ({"type": "array"}, "a?: Array<any>,"),
    ({"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}, "a?: number[][],"),
    ({"type": "array", "items": {"type": "string", "enum": ["p", "q"]}}, 'a?: "p" | "q"[],'),
    ({"type": "string", "enum": ["p", 1, None]}, 'a?: "p",'),
    ({"type": "string", "enum": []}, "a?: string,"),
    ({"type": "integer", "enum": [1, 2]}, "a?: number,"),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "a?: any,"),
    ({"$ref": "#/$defs/x"}, "a?: any,"),
    ({"type": "object"}, "a?: {\n    },"),
    ({"type": "object", "properties": [1], "required": "x"}, "a?: {\n    },"),
    ({"type": "array", "default": [1, "é"]}, 'a?: Array<any>, // default: [1,"é"]'),
    ({"type": "string", "default": 'q"'}, 'a?: string, // default: "q""'),
    ({"type": "string", "enum": ["x"], "default": "x"}, 'a?: "x", // default: x'),
    ({"type": "string", "default": None}, "a?: string, // default: null"),
    ({"type": "string", "description": "one\ntwo"}, "// one\ntwo\na?: string,"),
    ({"type": "string", "title": "T", "examples": []}, "// T\n//\na?: string,"),
    ({"type": "string", "examples": [1, "e"]}, '// Examples:\n// - "e"\na?: string,'),
    (
        {"type": "object", "description": "o", "properties": {"x": {"description": "d"}, "y": {}}, "required": ["y"]},
        "// o\na?:     // o\n{\n    // d\n    x?: any,\n    y: any,\n    },",
    ),
    ({"oneOf": []}, "a?:\n,"),
    (
        {"oneOf": [{"type": "string", "description": "s"}, {"type": "object", "nullable": True}], "description": "s"},
        "a?:\n | string\n | {\n   } | null\n,",
    ),
    (
        {"oneOf": [{"description": "first"}, {"description": "d"}, True], "description": "d", "default": "x"},
        '// d\n// default: "x"\na?:\n | any\n | any\n | any\n,',
    ),
    ({"oneOf": [{"type": "string", "description": "s", "default": 1}]}, "a?:\n | string // s default: 1\n,"),
    ({"type": "array", "items": {"oneOf": [{"type": "string"}]}}, "a?: \n     | string[],"),
]


@pytest.mark.parametrize(("schema", "expected"), FIELDS)
def test_declarations_of_properties(schema: Any, expected: str) -> None:
    declared = declared_types([function(parameters={"type": "object", "properties": {"a": schema}})])
    assert f"\n// D\ntype f = (_: {{\n{expected}\n}}) => any;\n" in declared


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        (function(description="one\r\ntwo\n"), "// one\n// two\ntype f = () => any;"),
        (function(description=""), "\n\ntype f = () => any;"),
        (function(parameters=None), "type f = () => any;"),
        # OpenAI's renderer declares an empty object; its description and the template declare no argument.
        (function(parameters={"type": "object", "properties": {}}), "type f = () => any;"),
        (function(parameters={"properties": {"a": {}}}), "type f = (_: {\na?: any,\n}) => any;"),
        (function(parameters={"oneOf": [{"type": "object"}]}), "type f = (_: \n | {\n   }) => any;"),
    ],
)
def test_declarations_of_functions(tool: dict[str, Any], expected: str) -> None:
    assert expected in declared_types([tool])


# -- continued messages -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ids", [False, True])
@given(before=st.text(max_size=8), after=st.text(max_size=8), reasons=st.booleans())
@example(before="", after="to=", reasons=False)
@example(before="0", after="to=", reasons=True)
def test_a_continued_message_is_read_to_its_end(ids: bool, before: str, after: str, reasons: bool) -> None:
    """The text before and after the cut is one text of the message, at any place of the cut."""
    if not ids and any(control[0] in after for control in CONTROLS):
        return
    fields = {"reasoning_content": before, "content": None} if reasons and before else {"content": before}
    prompt = FMT.render(
        [user(), {"role": "assistant", **fields}], add_generation_prompt=False, continue_final_message=True
    )
    reasons = "reasoning_content" in fields
    channel = "analysis" if reasons else "final"
    assert prompt.text.endswith(f"<|start|>assistant<|channel|>{channel}<|message|>{before}")
    assert FMT.left_open(prompt) == reasons
    tokenizer = tokenizer_of("harmony") if ids else None
    reader = FMT.reader(thinking=FMT.left_open(prompt), tokenizer=tokenizer)
    end = "<|end|>" if reasons else "<|return|>"
    if tokenizer is not None:
        events = reader.feed("", [*tokenizer.encode(after), tokenizer.control[end]])
    else:
        events = reader.feed(after + end)
    message = dovetail.fold([*events, *reader.finish()])
    text, other = (message.reasoning, message.content) if reasons else (message.content, message.reasoning)
    # The reader does not know that an answer is open, so text that begins like a recipient is a header to it.
    if after.startswith(("to=", " to=")):
        return
    if after.strip(" \n"):
        assert (text, other, message.calls) == (after, "", ())
    assert {d.kind for d in message.defects} <= (set() if reasons else {"text_outside_message"})


def test_a_prompt_that_opens_a_turn_leaves_nothing_open() -> None:
    assert not FMT.left_open(render([user("<|channel|>analysis<|message|>")]))
    assert not FMT.left_open(render([assistant(None, reasoning_content="Hm.")], add_generation_prompt=False))


@pytest.mark.parametrize(
    ("output", "thinking", "reasoning", "content", "defects"),
    [
        (" and so.<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>", True, " and so.", "Yes.", []),
        ("<|end|><|start|>assistant<|channel|>final<|message|>Yes.<|return|>", True, "", "Yes.", []),
        ("Hm.<|end|><|start|>assistant<|channel|>analysis<|message|>So.<|end|>", True, "Hm.\nSo.", "", []),
        ("Hm.<|start|>assistant<|channel|>final<|message|>Yes.", True, "Hm.", "Yes.", ["missing_message_end"]),
        ("<|channel|>analysis<|message|>Hm.<|end|>", True, "Hm.", "", []),
        ("\n<|channel|>analysis<|message|>Hm.<|end|>", True, "Hm.", "", []),
        ("assistant<|channel|>analysis<|message|>Hm.<|end|>", True, "Hm.", "", []),
        (" yes.<|return|>", False, "", " yes.", ["text_outside_message"]),
        ("<|return|>", False, "", "", []),
        ("yes.<|call|>", False, "", "yes.", ["text_outside_message", "missing_name"]),
        ("analysis<|message|>Hm.<|end|>", False, "Hm.", "", ["missing_separator"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("step", [1, 100])
def test_output_before_any_header(
    output: str, thinking: bool, reasoning: str, content: str, defects: list[str], step: int
) -> None:
    reader = FMT.reader(thinking=thinking)
    events = [event for i in range(0, len(output), step) for event in reader.feed(output[i : i + step])]
    message = dovetail.fold([*events, *reader.finish()])
    assert (message.reasoning, message.content) == (reasoning, content)
    assert [defect.kind for defect in message.defects] == defects


# -- options and bad input --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("enable_thinking", True),
        ("conversation_start_date", DATE),
        ("reasoning_effort", "none"),
        ("reasoning_effort", 3),
        ("model_identity", None),
        ("current_date", 20250628),
        ("builtin_tools", "browser"),
        ("builtin_tools", ["shell"]),
        ("builtin_tools", [["browser"]]),
        ("auto_drop_analysis", "no"),
    ],
)
def test_bad_options_are_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=option) as caught:
        FMT.render([user()], **{option: value})
    assert caught.value.param == f"chat_template_kwargs.{option}"


def test_a_response_format_ends_the_developer_message() -> None:
    """As in OpenAI's description of the format (docs/format.md, Structured output)."""
    schema = {"properties": {"items": {"type": "array", "items": {"type": "string"}}}, "type": "object"}
    declared = {"name": "shopping_list", "description": "What to buy.\nAll of it.", "schema": schema}
    requested = {"type": "json_schema", "json_schema": declared}
    section = (
        "# Response Formats\n\n## shopping_list\n\n// What to buy.\n// All of it.\n"
        '{"properties":{"items":{"type":"array","items":{"type":"string"}}},"type":"object"}<|end|>'
    )
    for messages, tools in (([user()], None), ([system("Shop."), user()], None), ([system("Shop."), user()], TOOLS)):
        plain = history(messages, tools=tools)
        before, opener, developer = plain.partition("<|start|>developer<|message|>")
        if opener:
            instructions, _, rest = developer.partition("<|end|>")
            expected = f"{before}{opener}{instructions}\n\n{section}{rest}"
        else:
            expected = f"<|start|>developer<|message|>{section}{plain}"
        assert history(messages, tools=tools, response_format=requested) == expected
        for nothing in (None, {"type": "text"}, {"type": "json_object"}):
            assert history(messages, tools=tools, response_format=nothing) == plain
    with pytest.raises(InvalidRequest) as refused:
        render([user()], response_format={"type": "xml"})
    assert refused.value.param == "response_format.type"


@pytest.mark.parametrize(
    ("messages", "tools", "param"),
    [
        ([{"role": "tool", "tool_call_id": "a", "content": ""}], None, "messages[0].tool_call_id"),
        ([user(), calling("f"), {**result(7), "name": None}], None, "messages[2].tool_call_id"),
        ([user([{"type": "image_url", "image_url": {"url": "x"}}])], None, "messages[0].content[0]"),
        ([user()], [{"type": "browser"}], "tools[0].function.name"),
        ([user()], [function(""), function("b")], "tools[0].function.name"),
    ],
)  # fmt: skip
def test_bad_input_is_an_error_that_names_the_field(messages: Any, tools: Any, param: str) -> None:
    with pytest.raises(DovetailError) as caught:
        render(messages, tools)
    assert isinstance(caught.value, InvalidRequest | RenderError)
    assert (caught.value.param or "").startswith(param)


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize(
    ("tools", "field"),
    [
        (5, ""),
        (float("nan"), ""),
        ([5], "[0]"),
        ([function(), function(name="")], "[1].function.name"),
        ([function(parameters={"type": "object", "properties": {"a": {"description": "a" * 5_000_000}}})], None),
    ],
)
def test_wrong_tools_of_a_message_are_named(at: int, tools: Any, field: str | None) -> None:
    messages = [*([user()] * at), {**system("Be brief."), "tools": tools}]
    with pytest.raises(DovetailError) as caught:
        render(messages, TOOLS)
    field = "[0].function.parameters" if field is None else field
    assert caught.value.param == f"messages[{at}].tools{field}"


@pytest.mark.parametrize("option", ["model_identity", "current_date", "reasoning_effort"])
def test_options_that_cannot_be_serialised_are_named(option: str) -> None:
    for wrong in ("\ud800", 10**5000):
        with pytest.raises(InvalidRequest) as caught:
            render([user()], **{option: wrong})
        assert caught.value.param == f"chat_template_kwargs.{option}"
