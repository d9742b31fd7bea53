"""Laws 7 to 10 for gpt-oss: equal to the fixtures of vLLM and OpenAI, and nobody but the format writes a control token.

Where the sources differ, the tests named `…_differs` and the tables beside them say how, and which one stands.
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
from dovetail.conversation import Call, Message
from dovetail.errors import DovetailError, InvalidRequest, RenderError
from dovetail.formats import harmony_types
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
    """What the messages are written as, behind the system message."""
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
        given = render(
            case["messages"],
            case.get("tools"),
            add_generation_prompt=case.get("add_generation_prompt", True),
            reasoning_effort=case.get("reasoning_effort"),
        )
        assert given.text + "\n" == path.with_suffix(".txt").read_text(), path.name


def test_instructions_as_part_of_the_identity(shared_data: Path) -> None:
    """What vLLM does with leading instructions when an environment variable says so, an option does here."""
    expected = (shared_data / "render/harmony/system_instructions_env.txt").read_text()
    identity = "You are ChatGPT, a large language model trained by OpenAI.\nAnswer tersely."
    prompt = render([user("What is 2 + 2?")], model_identity=identity, reasoning_effort="high")
    assert prompt.text + "\n" == expected


_CAPITAL = user("What is the capital of the largest country in the world?")
_ROBOT = {"role": "developer", "content": "Answer the user's questions like a robot."}
_WEATHERS = [
    function("get_location", "Gets the location of the user."),
    function(
        "get_current_weather",
        "Gets the current weather in the provided location.",
        parameters={
            "type": "object",
            "properties": {
                "location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"},
                "format": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
            },
            "required": ["location"],
        },
    ),
    function(
        "get_multiple_weathers",
        "Gets the current weather in the provided list of locations.",
        parameters={
            "type": "object",
            "properties": {
                "locations": {
                    "type": "array",
                    "items": {"type": "string"},
                    "description": 'List of city and state, e.g. ["San Francisco, CA", "New York, NY"]',
                },
                "format": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
            },
            "required": ["locations"],
        },
    ),
    function(
        "kitchensink",
        "A function with various complex schemas.",
        parameters={
            "description": "params object",
            "type": "object",
            "properties": {
                "string": {
                    "type": "string",
                    "title": "STRING",
                    "description": "A string",
                    "examples": ["hello", "world"],
                },
                "string_nullable": {
                    "type": "string",
                    "nullable": True,
                    "description": "A nullable string",
                    "default": "the default",
                },
                "string_enum": {"type": "string", "enum": ["a", "b", "c"]},
                "oneof_string_or_number": {
                    "oneOf": [
                        {"type": "string", "default": "default_string_in_oneof"},
                        {"type": "number", "description": "numbers can happen too"},
                    ],
                    "description": "a oneof",
                    "default": 20,
                },
            },
        },
    ),
]
_LOOKUP = function(
    "lookup_weather",
    "Use this tool to lookup the weather in a given location. Call it with the parameter 'location', can be any "
    "textual description of a location.",
    parameters={"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
)
#: OpenAI's tests that render a system message: conversation, tools, options.
OPENAI: dict[str, tuple[list[dict[str, Any]], Any, dict[str, Any]]] = {
    "simple_convo": ([user("What is 2 + 2?")], None, {"current_date": None}),
    **{
        f"simple_convo_{effort}_effort": ([_ROBOT, _CAPITAL], None, {"current_date": None, "reasoning_effort": effort})
        for effort in ("low", "medium", "high")
    },
    **{
        f"simple_convo_{effort}_effort_no_instruction": (
            [_CAPITAL],
            None,
            {"current_date": None, "reasoning_effort": effort},
        )
        for effort in ("low", "medium", "high")
    },
    "render_functions_with_parameters": (
        [{"role": "developer", "content": "Always respond in riddles"}, user("What is the weather like in SF?")],
        _WEATHERS,
        {"reasoning_effort": "high"},
    ),
    "no_tools": ([], None, {}),
    "browser_tool_only": ([], None, {"builtin_tools": ["browser"]}),
    "browser_and_function_tool": ([], [_LOOKUP], {"builtin_tools": ["browser"]}),
    "browser_and_python_tool": ([], None, {"builtin_tools": ["python", "browser"]}),
}
_QUESTIONS = (user("What is 2 + 2?"), user("What about 9 / 2?"))
_COT = "User asks: “What is 2 + 2?” Simple arithmetic. Provide answer."
_KEPT_COT = 'User asks a simple question: "What is 2 + 2?" The answer: 4.'
#: Those that render messages alone, which here follow a system message.
OPENAI_MESSAGES: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "dropping_cot_by_default": (
        [_QUESTIONS[0], assistant("2 + 2 equals 4.", reasoning_content=_COT), _QUESTIONS[1]],
        {},
    ),
    "preserve_cot": (
        [_QUESTIONS[0], assistant("2 + 2 equals 4.", reasoning_content=_KEPT_COT), _QUESTIONS[1]],
        {"auto_drop_analysis": False},
    ),
}
#: Those that chat completions cannot express as they are; each has a test below that says how it differs.
OPENAI_DIFFERENT = ("does_not_drop_if_ongoing_analysis", "keep_analysis_between_finals")
#: Those with channels that no chat template asks for.
OPENAI_CHANNELS = (
    "reasoning_system_message",
    "reasoning_system_message_no_instruction",
    "reasoning_system_message_with_dates",
)
#: Those of outputs, which are read and not rendered.
OPENAI_OUTPUTS = ("simple_reasoning_response", "simple_tool_call", "streamable_parser", "tool_response_parsing")


def openai(shared_data: Path, name: str) -> str:
    return (shared_data / f"render/harmony/openai_test-data/test-data/test_{name}.txt").read_text().rstrip()


def test_all_of_openais_test_data_is_accounted_for(shared_data: Path) -> None:
    names = {path.stem.removeprefix("test_") for path in shared_data.glob("render/harmony/openai_test-data/*/*.txt")}
    known = (*OPENAI, *OPENAI_MESSAGES, *OPENAI_DIFFERENT, *OPENAI_CHANNELS, *OPENAI_OUTPUTS)
    assert names == set(known)
    assert len(known) == 23


@pytest.mark.parametrize("name", OPENAI)
def test_openais_test_data_is_equal(shared_data: Path, name: str) -> None:
    messages, tools, options = OPENAI[name]
    assert render(messages, tools, **options).text == openai(shared_data, name)


@pytest.mark.parametrize("name", OPENAI_MESSAGES)
def test_openais_messages_are_equal(shared_data: Path, name: str) -> None:
    messages, options = OPENAI_MESSAGES[name]
    assert history(messages, **options) == openai(shared_data, name)


def test_the_place_of_a_recipient_differs(shared_data: Path) -> None:
    """openai-harmony and the template write it behind the role; oss-harmony and vLLM's fixtures, behind the channel."""
    call = calling("lookup_weather", arguments='{"location": "San Francisco"}')
    call["reasoning_content"] = "User asks: “What is the weather in SF?” We need to use lookup_weather tool."
    messages = [user("What is the weather in SF?"), call, result(content='{"temperature": 20, "description": "sunny"}')]
    expected = openai(shared_data, "does_not_drop_if_ongoing_analysis")
    to = " to=functions.lookup_weather"
    expected = expected.replace(f"{to}<|channel|>commentary", f"<|channel|>commentary{to}")
    # There a result came without channel and recipient, which its description and the fixtures give it.
    result_header = "<|start|>functions.lookup_weather"
    expected = expected.replace(
        f"{result_header}<|message|>", f"{result_header}<|channel|>commentary to=assistant<|message|>"
    )
    assert history(messages) == expected


def test_what_is_dropped_differs(shared_data: Path) -> None:
    """OpenAI's renderer drops what stands before the first answer; its description, the template and vLLM, the last."""
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
def test_channels_and_knowledge_are_the_models(
    shared_data: Path, name: str, question: str, effort: str, date: str | None
) -> None:
    """OpenAI's renderer can be asked for other channels and another cutoff; the template cannot, nor can this."""
    expected = openai(shared_data, f"reasoning_system_message{name}").replace("2021-01\n", "2024-06\n")
    expected = expected.replace("analysis, final.", "analysis, commentary, final.")
    assert render([user(question)], reasoning_effort=effort, current_date=date).text == expected


# -- the model's template ---------------------------------------------------------------------------------------------

#: How the model's template differs from the fixtures, as what makes fixtures of its prompts.
DIFFERENCES: tuple[tuple[str, Any], ...] = (
    # A recipient stands behind the role, and the content's type is no control token.
    (
        r"assistant to=(\S+?)<\|channel\|>commentary json<\|message\|>",
        r"assistant<|channel|>commentary to=\1 <|constrain|>json<|message|>",
    ),
    # Results are JSON strings.
    (
        r'<\|start\|>(functions\.\S+?) to=assistant<\|channel\|>commentary<\|message\|>(".*?")<\|end\|>',
        lambda m: f"<|start|>{m[1]}<|channel|>commentary to=assistant<|message|>{json.loads(m[2])}<|end|>",
    ),
    # Behind instructions without tools stands an empty line.
    (r"(developer<\|message\|># Instructions\n\n[^<]*)\n\n<\|end\|>", r"\1<|end|>"),
    # An answer at the very end is what training ends in.
    (r"<\|return\|>\Z", "<|end|>"),
    # Defaults are JSON with spaces, and a comma follows that is part of the comment.
    (r"// default: \[1, 2\],", "// default: [1,2]"),
    # Where calls follow, the text before them is a thought.
    (r"analysis<\|message\|>Let me look", "commentary<|message|>Let me look"),
)
#: Shapes that are written differently altogether.
OTHERWISE = {
    "two calls": "the template takes each message to make one call, and names every result after it",
    "arguments as a string": "the template writes a JSON string of JSON",
    "result in parts": "the template writes the parts as JSON",
    "call with text": "the template drops the text, as a thought, when an answer follows",
    "reasoning last": "the template keeps the thought, as training does",
}


def test_equal_to_the_models_template_but_for_what_is_known(shared_data: Path) -> None:
    rendering = pytest.importorskip("transformers.utils.chat_template_utils")
    source = (shared_data / "templates/llama.cpp/openai-gpt-oss-120b.jinja").read_text()
    today = datetime.date.today().isoformat()
    compared, different = 0, set()
    more = {"text before a call": ([user(), calling("get_weather", content="Let me look.")], TOOLS)}
    for name, (messages, tools) in {**SHAPES, **more}.items():
        for open_turn in (True, False):
            given = copy.deepcopy(messages)
            for message in given:
                if "reasoning_content" in message:
                    message["thinking"] = message.pop("reasoning_content")
            try:
                (expected,), _ = rendering.render_jinja_template(
                    [given], tools=tools, chat_template=source, add_generation_prompt=open_turn
                )
            except Exception:  # parts, null: whatever the template or the library raises for them
                render(messages, tools, add_generation_prompt=open_turn)
                continue
            for found, instead in DIFFERENCES:
                expected = re.sub(found, instead, expected, flags=re.DOTALL)
            for spelling in (messages, given):  # the template's name for reasoning is read as well
                prompt = render(spelling, tools, add_generation_prompt=open_turn, current_date=today)
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
    assert FMT.render([user()], TOOLS[1:], **options).text == expected  # today's date, unless another is given
    assert render([user()], TOOLS[1:], **options).text == expected.replace(today, DATE)


# -- messages ---------------------------------------------------------------------------------------------------------


def said(channel: str, text: str) -> str:
    return f"<|start|>assistant<|channel|>{channel}<|message|>{text}<|end|>"


def called(name: str = "get_weather", arguments: str = "{}") -> str:
    header = f"<|start|>assistant<|channel|>commentary to=functions.{name} <|constrain|>json"
    return f"{header}<|message|>{arguments}<|call|>"


def developer(text: str) -> str:
    return f"<|start|>developer<|message|>{text}<|end|>"


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        # Instructions, wherever they stand; those that say nothing are not written.
        ([system("a"), system("b")], [developer("# Instructions\n\na"), developer("# Instructions\n\nb")]),
        ([system(""), {"role": "developer", "content": "b"}], [developer("# Instructions\n\nb")]),
        ([user("a"), system(""), user("b")], ["<|start|>user<|message|>a<|end|>", "<|start|>user<|message|>b<|end|>"]),
        # Names of people are not shown.
        ([{**user("a"), "name": "ann"}], ["<|start|>user<|message|>a<|end|>"]),
        # Everything that a turn may hold, in the order in which it is said.
        (
            [calling("f", "g", content="Look:", arguments="{}", reasoning_content="Hm.")],
            [said("analysis", "Hm."), said("commentary", "Look:"), called("f"), called("g")],
        ),
        ([calling("f", arguments={"é": [1, None]})], [called("f", '{"é": [1, null]}')]),
        ([calling("f", arguments="not json")], [called("f", "not json")]),
        ([assistant("")], [said("final", "")]),
        ([assistant(None, reasoning_content="Hm.")], [said("analysis", "Hm.")]),
        ([assistant("a", reasoning_content="Hm.")], [said("final", "a")]),
        # Reasoning goes when an answer has come of it.
        (
            [calling("f", arguments="{}", reasoning_content="Hm."), assistant("", reasoning_content="So."), user("?")],
            [said("analysis", "Hm."), called("f"), said("analysis", "So."), "<|start|>user<|message|>?<|end|>"],
        ),
        (
            [calling("f", arguments="{}", thinking="Hm."), assistant("", reasoning_content="So."), assistant("a")],
            [called("f"), said("final", "a")],
        ),
        (
            [assistant("a", reasoning_content="Hm."), calling("f", arguments="{}", thinking="So.")],
            [said("final", "a"), said("analysis", "So."), called("f")],
        ),
    ],
)  # fmt: skip
def test_what_messages_become(messages: list[dict[str, Any]], expected: list[str]) -> None:
    assert history(messages, add_generation_prompt=False) == "".join(expected)


@pytest.mark.parametrize("empty", ["", None, [], [{"type": "text", "text": ""}]])
def test_empty_content_is_written_alike(empty: Any) -> None:
    messages = [system(empty), user(empty), calling("f", content=empty), result(content=empty), assistant(empty)]
    clean = [system(""), user(""), calling("f", content=""), result(content=""), assistant("")]
    assert render(messages).text == render(clean).text


def test_results_are_named_after_the_calls_they_answer() -> None:
    calls = calling("f", "g", arguments="{}")
    messages = [calls, result(1, "1"), result(0, "0"), calling("h", arguments="{}"), result(0, "2")]
    names = re.findall(
        r"<\|start\|>functions\.(\w)<\|channel\|>commentary to=assistant<\|message\|>(\d)", history(messages)
    )
    assert names == [("g", "1"), ("f", "0"), ("h", "2")]  # an id that comes again is the later call's
    stray = {"role": "tool", "tool_call_id": "unheard", "name": "k", "content": "3"}
    assert "<|start|>functions.k<|channel|>" in history([stray])


def test_tools_of_the_request_and_of_the_developer() -> None:
    """Leading ones share a declaration; the model is told of calls wherever there are tools."""
    one, two, three = (function(name) for name in ("one", "two", "three"))
    text = render([{"role": "developer", "content": "a", "tools": [two]}, user("b")], [one]).text
    assert re.findall(r"type (\w+) =", text.partition("namespace")[2]) == ["one", "two"]
    assert text.count("# Tools") == 1
    later = render([user("b"), {"role": "developer", "content": "", "tools": [three]}]).text
    assert later.partition("<|start|>user")[0].endswith("commentary channel: 'functions'.<|end|>")
    assert "<|end|><|start|>developer<|message|># Tools\n\n## functions" in later
    assert render([{**user("a"), "tools": [one]}]).text == render([user("a")]).text  # not a user's to declare


def test_without_thinking_it_is_told_to_reason_little() -> None:
    assert "Reasoning: low\n" in render([], thinking=False).text
    assert "Reasoning: high\n" in render([], thinking=False, reasoning_effort="high").text
    assert "Reasoning: medium\n" in render([], reasoning_effort=None).text


# -- declarations -----------------------------------------------------------------------------------------------------

#: A property's schema, and what the renderers of OpenAI write for it.
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
def test_how_properties_are_declared(schema: Any, expected: str) -> None:
    declared = harmony_types.declare([function(parameters={"type": "object", "properties": {"a": schema}})])
    assert f"\n// D\ntype f = (_: {{\n{expected}\n}}) => any;\n" in declared


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        (function(description="one\r\ntwo\n"), "// one\n// two\ntype f = () => any;"),
        (function(description=""), "\n\ntype f = () => any;"),
        (function(parameters=None), "type f = () => any;"),
        # OpenAI's renderer declares an empty object; its description and the template, no argument.
        (function(parameters={"type": "object", "properties": {}}), "type f = () => any;"),
        (function(parameters={"properties": {"a": {}}}), "type f = (_: {\na?: any,\n}) => any;"),
        (function(parameters={"oneOf": [{"type": "object"}]}), "type f = (_: \n | {\n   }) => any;"),
    ],
)
def test_how_functions_are_declared(tool: dict[str, Any], expected: str) -> None:
    assert expected in harmony_types.declare([tool])


def test_the_golden_prompt() -> None:
    """Checked against the ids that oss-harmony 0.0.11 makes of the same conversation."""
    trip = {
        "type": "object",
        "properties": {
            "legs": {
                "type": "array",
                "description": "One after the other",
                "items": {
                    "type": "object",
                    "properties": {
                        "to": {"type": "string", "description": "Where to"},
                        "by": {"type": "string", "enum": ["train", "ferry"], "default": "train"},
                        "seats": {"type": ["integer", "null"]},
                    },
                    "required": ["to"],
                },
            },
            "class": {"oneOf": [{"type": "integer"}, {"type": "string", "description": "by name"}], "default": 2},
        },
        "required": ["legs"],
    }
    messages = [
        system("Plan trips.\n\nBe brief."),
        user("Hello 🙂"),
        assistant("Hello!", reasoning_content="A greeting."),
        user([{"type": "text", "text": "To Oslo, "}, {"type": "text", "text": "please."}]),
        calling("book", "now", content="Booking.", arguments={"legs": [{"to": "Oslo"}]}, reasoning_content="Tools."),
        result(0, "booked", "book"),
        result(1, "12:00", "now"),
    ]
    tools = [function("book", "Books a trip.\nOnly once.", parameters=trip), function("now", "The time.")]
    golden = Path(__file__).with_name("harmony_golden.txt").read_text()
    assert render(messages, tools).text + "\n" == golden


# -- both ends --------------------------------------------------------------------------------------------------------

texts = st.text(max_size=12) | st.sampled_from(("{}", "<|end|>", " a\n", "analysis"))
names = st.sampled_from(("get_weather", "now", "a-b.c"))


@given(texts, texts, st.lists(st.tuples(names, texts), max_size=3))
def test_what_the_model_says_is_how_it_is_shown_again(
    reasoning: str, content: str, called: list[tuple[str, str]]
) -> None:
    """Law 7 between the two ends: the same pieces, but for the end of the turn."""
    calls = tuple(Call(f"c{i}", name, arguments) for i, (name, arguments) in enumerate(called))
    kept = {"auto_drop_analysis": False}
    shown = [{"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}} for c in calls]
    answer = assistant(content, reasoning_content=reasoning, **({"tool_calls": shown} if shown else {}))
    if reasoning and not content and not calls:
        return  # without an answer, a turn that ended has an empty one, and a history has none
    opened, closed = render([user()], **kept), render([user(), answer], add_generation_prompt=False, **kept)
    written = FMT.write(Message(content, reasoning, calls))
    pieces = ["<|end|>" if piece == "<|return|>" and i % 2 else piece for i, piece in enumerate(written.pieces)]
    assert [*opened.pieces, *pieces[1:]] == closed.pieces


@pytest.mark.parametrize("ids", [False, True])
@given(before=st.text(max_size=8), after=st.text(max_size=8), reasons=st.booleans())
@example(before="", after="to=", reasons=False)
@example(before="0", after="to=", reasons=True)
def test_a_continued_message_reads_on(ids: bool, before: str, after: str, reasons: bool) -> None:
    """What was said and what then is said make one text, wherever the message was cut."""
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
    # That an answer was left open a reader is not told, and what begins like a recipient is a header to it.
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
        ("analysis<|message|>Hm.<|end|>", False, "", "analysis\nHm.",
         ["text_outside_message", "missing_start", "missing_channel"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("step", [1, 100])
def test_what_comes_before_any_header(
    output: str, thinking: bool, reasoning: str, content: str, defects: list[str], step: int
) -> None:
    reader = FMT.reader(thinking=thinking)
    events = [event for i in range(0, len(output), step) for event in reader.feed(output[i : i + step])]
    message = dovetail.fold([*events, *reader.finish()])
    assert (message.reasoning, message.content) == (reasoning, content)
    assert [defect.kind for defect in message.defects] == defects


# -- what the request may not do --------------------------------------------------------------------------------------

hostile = st.lists(st.sampled_from((*CONTROLS, "<|", "|>", "analysis", " to=", "a", "\n")), max_size=4).map("".join)


@given(st.lists(hostile, min_size=6, max_size=6))
def test_user_text_never_becomes_a_control_token(fields: list[str]) -> None:
    """The control tokens of a conversation are those of the same conversation with harmless words."""
    tokenizer = tokenizer_of("harmony")

    def control_ids(said: str, name: str, call: str, note: str, data: str, date: str) -> list[int]:
        schema = {
            "description": note,
            "title": note,
            "enum": [note],
            "default": note,
            "examples": [note],
            "type": [note],
        }
        properties = {note: {**schema, "type": "string"}, "n": schema, "o": {"oneOf": [schema]}}
        tools = [function(name, note, parameters={"type": "object", "properties": properties, "required": [note]})]
        messages = [
            {"role": "developer", "content": said, "name": name, "tools": tools},
            {"role": "user", "name": name, "content": [{"type": "text", "text": said}]},
            {
                **assistant(said, reasoning_content=said),
                "tool_calls": [{"id": call, "type": "function", "function": {"name": name, "arguments": data}}],
            },
            {"role": "tool", "tool_call_id": call, "content": said},
            {"role": "tool", "tool_call_id": "", "name": name, "content": said},
            system(said),
            assistant(said, thinking=data),
        ]
        ids = render(messages, tools, model_identity=date, current_date=date).ids(tokenizer)
        return [token for token in ids if token in tokenizer.control_literals]

    harmless = "abcdef"
    assert control_ids(*(field or word for field, word in zip(fields, harmless, strict=True))) == control_ids(*harmless)


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
def test_options_that_are_refused_by_name(option: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=option) as caught:
        FMT.render([user()], **{option: value})
    assert caught.value.param == f"chat_template_kwargs.{option}"


def test_a_schema_is_shown_at_the_end_of_the_developers_message() -> None:
    """As OpenAI's description of the format has it (docs/format.md, Structured output)."""
    schema = {"properties": {"items": {"type": "array", "items": {"type": "string"}}}, "type": "object"}
    said = {"name": "shopping_list", "description": "What to buy.\nAll of it.", "schema": schema}
    wanted = {"type": "json_schema", "json_schema": said}
    section = (
        "# Response Formats\n\n## shopping_list\n\n// What to buy.\n// All of it.\n"
        '{"properties":{"items":{"type":"array","items":{"type":"string"}}},"type":"object"}<|end|>'
    )
    for messages, tools in (([user()], None), ([system("Shop."), user()], None), ([system("Shop."), user()], TOOLS)):
        plain = history(messages, tools=tools)
        before, opener, developer = plain.partition("<|start|>developer<|message|>")
        if opener:
            said_before, _, rest = developer.partition("<|end|>")
            expected = f"{before}{opener}{said_before}\n\n{section}{rest}"
        else:
            expected = f"<|start|>developer<|message|>{section}{plain}"
        assert history(messages, tools=tools, response_format=wanted) == expected
        without = {"type": "json_schema", "json_schema": {"name": "shopping_list"}}
        for nothing in (None, {"type": "text"}, {"type": "json_object"}, without):
            assert history(messages, tools=tools, response_format=nothing) == plain
    with pytest.raises(InvalidRequest) as refused:
        render([user()], response_format={"type": "xml"})
    assert refused.value.param == "response_format.type"


_CALLED = {"name": "f", "arguments": "{}"}
_DEEP: dict[str, Any] = {"type": "string"}
for _ in range(2000):
    _DEEP = {"type": "array", "items": _DEEP}
_CYCLE: dict[str, Any] = {"type": "object"}
_CYCLE["properties"] = {"self": _CYCLE}


@pytest.mark.parametrize(
    ("messages", "tools", "param"),
    [
        ([{"role": "tool", "tool_call_id": "a", "content": ""}], None, "messages[0].tool_call_id"),
        ([user(), calling("f"), {**result(7), "name": None}], None, "messages[2].tool_call_id"),
        ([user(), {**result(), "name": 3}], None, "messages[1].name"),
        ([user([{"type": "image_url", "image_url": {"url": "x"}}])], None, "messages[0].content[0]"),
        ([user([{"type": "text"}])], None, "messages[0].content[0].text"),
        ([user(3)], None, "messages[0].content"),
        ([user({"type": "text", "text": "a"})], None, "messages[0].content"),
        ([{"role": "narrator", "content": "a"}], None, "messages[0].role"),
        ([{"content": "a"}], None, "messages[0].role"),
        (["a"], None, "messages[0]"),
        (None, None, "messages"),
        ([user("\ud800")], None, "messages[0].content"),
        ([assistant("a", tool_calls=[{"id": "a"}])], None, "messages[0].tool_calls[0].function"),
        ([assistant("", tool_calls=[{"function": _CALLED}])], None, "messages[0].tool_calls[0].id"),
        ([calling(3)], None, "messages[0].tool_calls[0].function.name"),  # type: ignore[arg-type]
        ([assistant("", reasoning_content=3)], None, "messages[0].reasoning_content"),
        ([user()], [{"type": "browser"}], "tools[0].function.name"),
        ([user()], [function(""), function("b")], "tools[0].function.name"),
        ([user()], [function(parameters=["x"])], "tools[0].function.parameters"),
        ([user()], [function("a"), "b"], "tools[1]"),
        ([user()], "tools", "tools"),
        ([user()], [function(parameters={"properties": {"a": _CYCLE}})], "tools[0].function.parameters"),
        ([user()], [function(parameters={"properties": {"a": _DEEP}})], "tools[0].function.parameters"),
    ],
)  # fmt: skip
def test_bad_input_is_an_error_that_names_the_field(messages: Any, tools: Any, param: str) -> None:
    with pytest.raises(DovetailError) as caught:
        render(messages, tools)
    assert isinstance(caught.value, InvalidRequest | RenderError)
    assert (caught.value.param or "").startswith(param)


def test_a_long_message_with_anything_in_it_is_written_as_it_is() -> None:
    text = "\0\ufffe漢" * 100_000
    assert render([user(text)]).pieces[-5:-3] == [text, "<|end|>"]


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
def test_wrong_tools_of_a_message_are_named_there(at: int, tools: Any, field: str | None) -> None:
    messages = [*([user()] * at), {**system("Be brief."), "tools": tools}]
    with pytest.raises(DovetailError) as caught:
        render(messages, TOOLS)
    field = "[0].function.parameters" if field is None else field
    assert caught.value.param == f"messages[{at}].tools{field}"


@pytest.mark.parametrize("option", ["model_identity", "current_date", "reasoning_effort"])
def test_options_that_cannot_be_written_are_named(option: str) -> None:
    for wrong in ("\ud800", 10**5000):
        with pytest.raises(InvalidRequest) as caught:
            render([user()], **{option: wrong})
        assert caught.value.param == f"chat_template_kwargs.{option}"
