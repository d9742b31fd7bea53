"""Laws 7 and 10 for DeepSeek: its prompts equal the fixtures of its encoders, and its templates."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library

import dovetail
from dovetail.errors import InvalidRequest, RenderError
from dovetail.tokens import Tokenizer
from tests.formats.conversations import SHAPES, TOOLS, assistant, calling, result, system, user

ALL = ("deepseek_v3", "deepseek_v31", "deepseek_v32", "deepseek_v4", "deepseek_v41")
DSML = ALL[2:]
V4S = ALL[3:]
TASKS = ("action", "query", "authority", "domain", "title", "read_url")
CONTROLS = (
    *("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜System｜>"),
    *("<think>", "</think>", "｜DSML｜", "<｜latest_reminder｜>", "<｜deepseek_image｜>"),
    *(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
    ),
    *("<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
    *(f"<｜{task}｜>" for task in TASKS),
)
THINK, THINK_END = "<｜Assistant｜><think>", "<｜Assistant｜></think>"


def developer(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "developer", "content": text, **more}


def render(name: str, messages: list[dict[str, Any]], **options: Any) -> str:
    return dovetail.format(name).render(messages, **options).text


def body(name: str, messages: list[dict[str, Any]], **options: Any) -> str:
    """A prompt without its begin token and without V4.1's reasoning effort."""
    text = render(name, messages, **options).removeprefix(CONTROLS[0])
    return text.rpartition("reasoning)\n\n")[2] if name == "deepseek_v41" else text


@pytest.fixture(scope="module")
def tokenizer_file(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real tokenizer, with V4.1's additional control tokens on ids that V3 reserves."""
    spec = json.loads((shared_data / "tokenizers/deepseek_v3/tokenizer.json").read_text())
    missing = [literal for literal in CONTROLS if literal not in {token["content"] for token in spec["added_tokens"]}]
    free = [token for token in spec["added_tokens"] if "place▁holder▁no" in token["content"]]
    for literal, token in zip(missing, free, strict=False):
        token["content"] = literal
    assert missing == ["<｜System｜>", "<｜deepseek_image｜>"]
    path = tmp_path_factory.mktemp("deepseek") / "tokenizer.json"
    path.write_text(json.dumps(spec))
    return path


@pytest.fixture(scope="module")
def real(tokenizer_file: Path) -> tuple[Tokenizer, Library]:
    """The tokenizer as Dovetail and as the library read it."""
    return dovetail.tokenizer(tokenizer_file), Library.from_file(str(tokenizer_file))


FIXTURES = [
    *(("deepseek_v32", f"_{case}", True) for case in ("developer_tools", "search_w_date", "search_wo_date")),
    # The first three are in thinking mode. The fifth requests it, but its output was made without.
    *(("deepseek_v4", f"_{case}", case < 4) for case in range(1, 6)),
    *(("deepseek_v41", f"_{case}", case in (1, 5)) for case in range(1, 6)),
]


@pytest.mark.parametrize(("name", "case", "thinking"), FIXTURES)
def test_every_fixture_is_equal_in_text_and_ids(
    name: str, case: str, thinking: bool, shared_data: Path, real: tuple[Tokenizer, Library]
) -> None:
    folder = shared_data / "render" / name
    case_input = json.loads((folder / f"test_input{case}.json").read_text())
    if isinstance(case_input, list):
        case_input = {"messages": case_input}
    options = {option: case_input[option] for option in ("reasoning_effort",) if option in case_input}
    prompt = dovetail.format(name).render(case_input["messages"], case_input.get("tools"), thinking=thinking, **options)
    expected = (folder / f"test_output{case}.txt").read_text()
    assert prompt.text == expected
    tokenizer, library = real
    assert prompt.ids(tokenizer) == library.encode(expected, add_special_tokens=False).ids


@pytest.mark.parametrize(("name", "reference"), [("deepseek_v3", "deepseek-v3"), ("deepseek_v32", "deepseek-v32")])
def test_ids_equal_a_trainer_s_references(
    name: str, reference: str, shared_data: Path, real: tuple[Tokenizer, Library]
) -> None:
    """SpecForge's references. They lack the `</think>` that V3.2's encoder writes after every `<｜Assistant｜>`."""
    folder = shared_data / "render/specforge_references"
    ids: list[int] = json.loads((folder / f"{reference}_standard_ref.json").read_text())["input_ids"]
    tokenizer, _ = real
    instructions, *turns = tokenizer.decode(ids).removeprefix(CONTROLS[0]).split("<｜User｜>")
    messages = [system(instructions)] if instructions else []
    for question, answer in (turn.removesuffix(CONTROLS[1]).split("<｜Assistant｜>") for turn in turns):
        messages += [user(question), assistant(answer)]
    prompt = dovetail.format(name).render(messages, thinking=False, add_generation_prompt=False)
    closed = tokenizer.control["</think>"] if name == "deepseek_v32" else None
    assert [token for token in prompt.ids(tokenizer) if token != closed] == ids


def with_arguments_as_text(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages with the arguments of calls as JSON text, because DeepSeek's own template cannot show objects."""

    def with_text(call: dict[str, Any]) -> dict[str, Any]:
        arguments = call["function"]["arguments"]
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        return {**call, "function": {**call["function"], "arguments": arguments}}

    return [{**m, "tool_calls": [with_text(c) for c in m["tool_calls"]]} if "tool_calls" in m else m for m in messages]


def templates(shared_data: Path, name: str) -> list[tuple[str, bool]]:
    """DeepSeek's own template of V3 or V3.1, restored from ports, and whether it declares tools.

    llama.cpp's copy for V3.1 has `<think></think>` instead of `</think>`, which the model's card and all other copies
    have, and encodes arguments as JSON twice. SGLang's port for V3 has an additional sentence; its port for V3.1
    declares tools like the model's card. Both ports print the line breaks between their tags.
    """
    folder = shared_data / "templates"

    def port(version: str) -> str:
        template = (folder / f"sglang/tool_chat_template_deepseek{version}.jinja").read_text()
        return re.sub(r"(?<=[%}#]\})\s+(?=\{[%{#])", "", template)

    if name == "deepseek_v3":
        return [(re.sub(r"\{\{- 'Use the results below.*?\}\}", "", port("v3")), False)]
    copy = (folder / "llama.cpp/deepseek-ai-DeepSeek-V3.1.jinja").read_text()
    return [(copy.replace("<think></think>", "</think>").replace(" | tojson", ""), False), (port("v31"), True)]


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("name", ALL[:2])
def test_every_shape_equals_the_model_s_own_template(name: str, thinking: bool, shared_data: Path) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    refused = set()
    for template, shows_tools in templates(shared_data, name):
        for shape, (messages, tools) in SHAPES.items():
            messages, tools = with_arguments_as_text(messages), tools if shows_tools else None
            for open_turn in (True, False):
                try:
                    [expected], _ = render_jinja_template(
                        [messages],
                        tools=tools,
                        chat_template=template,
                        add_generation_prompt=open_turn,
                        thinking=thinking,
                        bos_token=CONTROLS[0],
                    )
                except TypeError:
                    refused.add(shape)
                    continue
                options = {"thinking": thinking, "add_generation_prompt": open_turn}
                assert render(name, messages, tools=tools, **options) == expected, (shape, open_turn)
    assert refused == {"parts", "result in parts"}


def test_calls_and_results_of_all_orders_equal_the_template(shared_data: Path) -> None:
    """Turns that the shapes lack: answers after answers, results after a user message, several system messages."""
    from transformers.utils.chat_template_utils import render_jinja_template

    calls = with_arguments_as_text([calling("f", "g", content="c")])
    turns = (user("u"), assistant("a</think>b"), *calls, result(), system("s"))
    for name in ALL[:2]:
        [(template, _), *_] = templates(shared_data, name)
        for first in turns:
            for second in turns:
                for third in turns:
                    messages = [first, second, third, assistant("d", prefix=True)]
                    [expected], _ = render_jinja_template(
                        [messages], chat_template=template, thinking=True, bos_token=CONTROLS[0]
                    )
                    assert render(name, messages, add_generation_prompt=False) == expected, (name, messages)


def test_v3_s_template_declares_no_tools() -> None:
    assert render("deepseek_v3", [user()], tools=TOOLS) == render("deepseek_v3", [user()])


def test_v31_omits_a_missing_description() -> None:
    text = render("deepseek_v31", [user()], tools=[{"type": "function", "function": {"name": "now"}}])
    assert "\n### now\n\nParameters: null\n" in text


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("name", ALL[1:])
@pytest.mark.parametrize("shape", ["one question", "system", "two turns", "two calls", "a turn after results", "parts"])
def test_a_generation_prompt_is_explicit(name: str, shape: str, thinking: bool) -> None:
    """Except for V3, whose template writes `<｜Assistant｜>` after every user message."""
    messages, tools = SHAPES[shape]
    fmt = dovetail.format(name)
    closed = fmt.render(messages, tools, thinking=thinking, add_generation_prompt=False)
    opened = fmt.render(messages, tools, thinking=thinking)
    added = opened.text.removeprefix(closed.text)
    think = "<think>" if thinking else "</think>"
    after_results = {"deepseek_v31": "", "deepseek_v32": f"\n\n{think}"}
    results_last = messages[-1]["role"] == "tool"
    assert added == (after_results if results_last else {}).get(name, f"<｜Assistant｜>{think}")
    assert fmt.left_open(opened) is (thinking and added != "")


@pytest.mark.parametrize("name", ALL)
def test_the_last_message_can_be_continued(name: str) -> None:
    messages = [user("a"), assistant("The answer ", reasoning_content="because")]
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert render(name, messages, thinking=False, **options).endswith("The answer ")
    thinking = [user("a"), assistant("", reasoning_content="first, ")]
    if name in DSML:
        assert render(name, messages, **options).endswith(THINK + "because</think>The answer ")
        assert render(name, thinking, **options).endswith(THINK + "first, ")
    else:
        with pytest.raises(RenderError, match="does not show"):
            render(name, thinking, **options)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=5), json_values, max_size=4), st.sampled_from(DSML))
def test_values_are_written_as_by_json_dumps(arguments: dict[str, Any], name: str) -> None:
    def prompt_with(value: Any) -> str:
        return render(name, [user(), calling("f", arguments=value)], thinking=False, add_generation_prompt=False)

    tag = "<｜DSML｜ parameter" if name == "deepseek_v41" else "<｜DSML｜parameter"
    lines = [
        f'{tag} name="{key}" string="{"true" if isinstance(value, str) else "false"}">'
        f"{value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}</{tag[1:]}>"
        for key, value in arguments.items()
    ]
    expected = prompt_with(arguments)
    assert ">\n" + "\n".join(lines) + "\n</" in expected
    for spelling in (
        json.dumps(arguments),
        json.dumps(arguments, ensure_ascii=False),
        json.dumps(json.dumps(arguments)),
    ):
        assert prompt_with(spelling) == expected
    assert prompt_with(MappingProxyType(arguments)) == expected


@pytest.mark.parametrize(
    ("spelling", "shown"),
    [
        ('{"a": 1e5}', "100000.0"),
        ('{"a": -0}', "0"),
        ('{"a": 123456789012345678901234567890}', "123456789012345678901234567890"),
        ('{"a": 1e999}', "Infinity"),
        ('{"a": [NaN,1]}', "[NaN, 1]"),
        ('{"a": 0, "a": 2}', "2"),
    ],
)
def test_numbers_are_written_as_by_deepseek_s_encoders(spelling: str, shown: str) -> None:
    text = render("deepseek_v32", [user(), calling("f", arguments=spelling)], add_generation_prompt=False)
    assert f'name="a" string="false">{shown}</' in text


@pytest.mark.parametrize("name", DSML)
@pytest.mark.parametrize(
    "arguments", ["nonsense {", "", "[1]", "null", '"x"', '"{', "1" * 5000, "[" * 100_000, r'{"a": "\ud83d"}']
)
def test_arguments_that_are_not_an_object_are_one_argument(name: str, arguments: str) -> None:
    text = render(name, [user(), calling("f", arguments=arguments)], add_generation_prompt=False)
    assert f'name="arguments" string="true">{arguments}</｜DSML｜' in text


def test_v32_opens_a_turn_after_every_user_and_the_last_result() -> None:
    calls = calling("f", "g", reasoning_content="why", arguments={})
    answered = [user("a"), calls, result(0, "x"), result(1, "y")]
    results = "\n\n<function_results>\n<result>x</result>\n<result>y</result>\n</function_results>"
    assert render("deepseek_v32", answered).endswith(f"{results}\n\n<think>")
    assert f"{results}\n\n</think>fine" in render("deepseek_v32", [*answered, assistant("fine"), user("b")])
    assert render("deepseek_v32", [*answered[:3], user("b")]).endswith(f"<result>x</result><｜User｜>b{THINK}")
    assert body("deepseek_v32", [user("a"), user("b")]) == f"<｜User｜>a{THINK_END}<｜User｜>b{THINK}"


def test_v32_writes_a_developer_s_tools_and_format_in_a_user_turn() -> None:
    text = body("deepseek_v32", [developer("d", tools=TOOLS, response_format={"type": "object"}), user("u")])
    head, _, schema = text.partition("\n</functions>\n")
    assert head.startswith("<｜User｜>\n\n## Tools\n\n")
    assert schema == (
        "\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
        f'{{"type": "object"}}\n\n# The user\'s message is: d{THINK_END}<｜User｜>u{THINK}'
    )


@pytest.mark.parametrize("name", DSML)
def test_tools_and_format_of_the_request_go_to_the_first_system_message(name: str) -> None:
    schema = {"type": "object", "description": "é"}
    by_request = render(name, [system("s"), user("u")], tools=TOOLS, response_format=schema)
    assert by_request == render(name, [{**system("s"), "tools": TOOLS, "response_format": schema}, user("u")])
    assert by_request == render(
        name, [{**system("s"), "tools": TOOLS[1:]}, user("u")], tools=TOOLS[:1], response_format=schema
    )
    without = render(name, [user("u")], tools=TOOLS)
    assert without == render(name, [system(""), user("u")], tools=TOOLS)
    assert without == render(name, [{"role": "system", "content": None}, user("u")], tools=TOOLS)
    assert render(name, [user("u")], response_format=None) == render(name, [user("u")])
    if name != "deepseek_v41":
        by_request = render(name, [developer("d"), user("u")], tools=TOOLS)
        assert by_request == render(name, [developer("d", tools=TOOLS), user("u")])


@pytest.mark.parametrize("name", V4S)
def test_v4_drops_reasoning_before_the_last_user_unless_there_are_tools(name: str) -> None:
    thought = [user("a"), assistant("b", reasoning_content="r"), user("c"), assistant("d", reasoning="s")]
    dropped, shown = f"<｜User｜>a{THINK_END}b<｜end", f"<｜User｜>a{THINK}r</think>b<｜end"
    assert body(name, thought).startswith(dropped)
    assert body(name, thought).endswith(f"<｜User｜>c{THINK}s</think>d<｜end▁of▁sentence｜>")
    assert shown in body(name, thought, drop_thinking=False)
    assert shown in body(name, thought, tools=TOOLS)
    assert dropped in body(name, thought, thinking=False, drop_thinking=False)
    # A result counts as a user turn.
    called = [user("a"), calling("f", reasoning_content="r"), result()]
    assert body(name, called).startswith(f"<｜User｜>a{THINK_END}\n\n<｜DSML｜")


@pytest.mark.parametrize("name", V4S)
def test_v4_shows_results_in_the_order_of_their_calls(name: str) -> None:
    called = calling("f", "g", "h", first=5)
    foreign = {"role": "tool", "content": "none"}
    messages = [user("a"), called, result(7, "H"), foreign, user("b"), result(6, "G"), result(5, "F"), user("c")]
    shown = ("none", "F", "b", "G", "H", "c")
    expected = "\n\n".join(word if word in "bc" else f"<tool_result>{word}</tool_result>" for word in shown)
    assert body(name, messages).endswith(f"<｜User｜>{expected}{THINK}")


@pytest.mark.parametrize("name", V4S)
def test_v4_writes_parts_as_paragraphs_and_images_as_control_tokens(name: str) -> None:
    parts = [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": "x"}},
        {"type": "image"},
        {"type": "text", "text": "!"},
    ]
    image = "<｜deepseek_image｜>"
    shown = f"see\n\n{image}\n\n{image}\n\n!"
    for role in ("system", "user", "assistant", "tool"):
        messages = [user("a"), {"role": role, "content": parts, "tool_call_id": "x"}]
        prompt = dovetail.format(name).render(messages, thinking=False, add_generation_prompt=False)
        assert (f"<tool_result>{shown}</tool_result>" if role == "tool" else shown) in prompt.text
        assert prompt.pieces[1::2].count(image) == 2


@pytest.mark.parametrize("name", V4S)
def test_v4_tasks(name: str) -> None:
    for task in TASKS:
        messages = [user("a") | {"task": task}, assistant("Search", reasoning_content="no")]
        token = f"<｜{task}｜>"
        opened = (THINK if task == "action" else "") + token
        assert body(name, messages) == f"<｜User｜>a{opened}Search<｜end▁of▁sentence｜>"
        assert body(name, messages[:1]) == f"<｜User｜>a{opened}"
        assert body(name, messages[:1], add_generation_prompt=False) == "<｜User｜>a"
        # A result joins a turn with a task; the next user message does not.
        assert body(name, [messages[0], result(0, "r"), user("b")]).startswith(
            "<｜User｜>a\n\n<tool_result>r</tool_result><"
        )


@pytest.mark.parametrize("name", V4S)
def test_v4_writes_a_reminder_in_its_place(name: str) -> None:
    reminder = {"role": "latest_reminder", "content": "today"}
    assert body(name, [reminder, user("a")]).endswith(f"<｜latest_reminder｜>today<｜User｜>a{THINK}")
    assert body(name, [user("a"), reminder, assistant("b")], thinking=False) == (
        f"<｜User｜>a{THINK_END}<｜latest_reminder｜>todayb<｜end▁of▁sentence｜>"
    )


def test_v4_drops_developer_messages_before_the_last_user() -> None:
    messages = [developer("old"), user("a"), developer("new"), assistant("b", reasoning_content="r")]
    assert body("deepseek_v4", messages).startswith("<｜User｜>a<｜User｜>new" + THINK + "r")
    assert body("deepseek_v4", messages, thinking=False).startswith("<｜User｜>old<｜User｜>a<｜User｜>new" + THINK_END)
    assert body("deepseek_v4", messages, drop_thinking=False).startswith("<｜User｜>old<｜User｜>a")
    assert "old" in body("deepseek_v4", [developer("old", tools=TOOLS), *messages[1:]])


def test_v41_takes_later_system_messages_as_turns() -> None:
    messages = [system("s"), user("a"), assistant("b", reasoning_content="r"), system("t")]
    assert render("deepseek_v41", messages, thinking=False) == (
        f"<｜begin▁of▁sentence｜><｜System｜>s<｜User｜>a{THINK_END}b<｜end▁of▁sentence｜><｜System｜>t{THINK_END}"
    )
    assert body("deepseek_v41", messages).endswith(f"a{THINK_END}b<｜end▁of▁sentence｜><｜System｜>t{THINK}")


def test_efforts() -> None:
    def effort(name: str, **options: Any) -> str:
        return render(name, [user("a")], **options).partition("<｜User｜>")[0].removeprefix(CONTROLS[0])

    assert effort("deepseek_v4") == effort("deepseek_v4", reasoning_effort="low") == ""
    high, most = (effort("deepseek_v4", reasoning_effort=word) for word in ("high", "max"))
    assert high.startswith("Reasoning Effort: Absolute maximum with no shortcuts permitted.\nYou MUST be very ")
    assert most.startswith("Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\nYou ")
    assert high.endswith("unchecked.\n\n")
    assert most.endswith("undiscovered.\n\n")
    numbers = {None: 75, "low": 50, "high": 75, "max": 100, 1: 1, 100: 100}
    for value, number in numbers.items():
        assert effort("deepseek_v41", reasoning_effort=value) == (
            f"<｜System｜>Reasoning Effort: {number} "
            "(range 1-100, the higher the value, the more thorough the reasoning)\n\n"
        )
        assert effort("deepseek_v41", reasoning_effort=value, thinking=False) == ""


@pytest.mark.parametrize("name", V4S)
@pytest.mark.parametrize("value", ["none", "", 0, 101, 1.5, True, [], "75"])
def test_an_unknown_effort_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match="low, high") as caught:
        render(name, [user()], reasoning_effort=value, thinking=False)
    assert caught.value.param == "chat_template_kwargs.reasoning_effort"


@pytest.mark.parametrize("name", V4S)
def test_an_option_of_the_wrong_type_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="drop_thinking must be true or false"):
        render(name, [user()], drop_thinking="no")


BAD: list[tuple[str, tuple[str, ...], list[dict[str, Any]], str]] = [
    ("a role", ALL, [user(), {"role": "critic", "content": "x"}], "messages[1].role"),
    ("a developer", ("deepseek_v3", "deepseek_v31", "deepseek_v41"), [developer("d"), user()], "messages[0].role"),
    ("a reminder", ALL[:3], [user(), {"role": "latest_reminder", "content": "x"}], "messages[1].role"),
    ("a silent developer", ("deepseek_v32", "deepseek_v4"), [user(), developer("")], "messages[1].content"),
    ("an image", ALL[:3], [user(), user([{"type": "image_url"}])], "messages[1].content[0].type"),
    ("audio", ALL, [user(), user([{"type": "text", "text": ""}, {"type": "audio"}])], "messages[1].content[1].type"),
    ("a task", V4S, [user() | {"task": "poem"}], "messages[0].task"),
    ("an early result", ("deepseek_v32",), [result()], "messages[0]"),
    ("a result too many", ("deepseek_v32",), [user(), calling("f"), result(), result()], "messages[3]"),
    ("a late result", ("deepseek_v32",), [user(), calling("f"), user(), result()], "messages[3]"),
    ("no reasoning", ("deepseek_v32",), [user(), assistant("a")], "messages[1].reasoning_content"),
]


@pytest.mark.parametrize(
    ("name", "messages", "param"),
    [
        pytest.param(name, messages, param, id=f"{what}-{name}")
        for what, names, messages, param in BAD
        for name in names
    ],
)
def test_messages_that_cannot_be_written_are_refused(name: str, messages: list[dict[str, Any]], param: str) -> None:
    """The field is the client's, also if the format adds a system message for tools before it."""
    for tools in (None, TOOLS):
        with pytest.raises((InvalidRequest, RenderError)) as caught:
            render(name, messages, tools=tools)
        assert caught.value.param == param


@pytest.mark.parametrize("name", ALL)
def test_repair_turns_developer_messages_into_system_messages(name: str) -> None:
    fmt = dovetail.format(name)
    repaired, _ = fmt.repair([developer("d"), user("a")])
    assert fmt.render(repaired) == fmt.render([system("d"), user("a")])


@pytest.mark.parametrize("name", ALL)
def test_empty_messages_add_nothing(name: str) -> None:
    assert render(name, [], add_generation_prompt=False) == CONTROLS[0]
    for nothing in (None, "", []):
        assert render(name, [system("s"), user(nothing)]) == render(name, [system("s"), user("")])
    assert render(name, [user("a"), assistant("b", tool_calls=[])], thinking=False) == (
        render(name, [user("a"), assistant("b")], thinking=False)
    )
