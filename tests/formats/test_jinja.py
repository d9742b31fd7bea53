"""The format of a chat template: its prompts equal those of transformers, and its family reads what it writes."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import random
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dovetail
from dovetail.errors import DovetailError, InvalidRequest, RenderError
from dovetail.events import Call, Message
from dovetail.formats.base import Format, as_sent
from dovetail.formats.derived.jinja import JinjaFormat, jinja
from dovetail.formats.derived.limits import Limits
from dovetail.formats.derived.template import Template, pattern
from dovetail.formats.families.hermes import Hermes
from dovetail.formats.prompts.history import REASONING_FIELDS, HistoryRules, repaired
from dovetail.formats.registry import FAMILIES
from dovetail.grammar.matcher import compile
from dovetail.tokens import Prompt, Tokenizer
from tests.examples import seeds
from tests.formats import chat_templates
from tests.formats.chat_templates import SPECIAL
from tests.formats.conversations import SHAPES, TOOLS, assistant, system, user
from tests.grammar.test_matcher import allows
from tests.reading.families import ONE_CALL, PieceTokenizer, cut, cuts

CHATML = """{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""


# -- the templates of well-known models -------------------------------------------------------------------------------

#: Checked by eye: the family, who begins reasoning, the field of reasoning, the first end of a turn, and the rules for
#: content, arguments and the developer role.
KNOWN = {
    "Qwen-Qwen3-0.6B": ("qwen3", "written", "reasoning_content", "<|im_end|>", "text", "any", False),
    "Qwen-Qwen2.5-7B-Instruct": ("hermes", "none", "reasoning_content", "<|im_end|>", "text", "object", False),
    "Qwen-QwQ-32B": ("hermes", "opened", "reasoning_content", "<|im_end|>", "text", "object", False),
    "Qwen3-Coder": ("qwen3_coder", "none", "reasoning_content", "<|im_end|>", "text", "object", False),
    "Qwen3.5-4B": ("qwen3_coder", "opened", "reasoning_content", "<|im_end|>", "any", "object", False),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": (
        *("hermes", "none", "reasoning_content", "<|im_end|>"),
        *("text", "any", False),
    ),
    "GLM-4.6": ("glm45", "written", "reasoning_content", "<|user|>", "text", "object", False),
    "GLM-4.7-Flash": ("glm47", "opened", "reasoning_content", "<|user|>", "text", "object", False),
    "MiniMax-M2": ("minimax_m2", "opened", "reasoning_content", "[e~[", "any", "object", False),
    "openai-gpt-oss-120b": ("harmony", "written", "thinking", "<|return|>", "text", "object", True),
    "meta-llama-Llama-3.1-8B-Instruct": (
        *("llama3_json", "none", "reasoning_content", "<|eot_id|>"),
        *("text", "object", False),
    ),
    "tool_chat_template_llama4_pythonic": ("pythonic", "none", "reasoning_content", "<|eot|>", "text", "object", False),
    "mistralai-Mistral-Nemo-Instruct-2407": ("mistral", "none", "reasoning_content", "</s>", "text", "object", False),
    "Kimi-K3": ("kimi_k3", "opened", "reasoning_content", "<|end_of_msg|>", "any", "any", False),
    "moonshotai-Kimi-K2": ("kimi_k2", "none", "reasoning_content", "<|im_end|>", "text", "object", False),
    "deepseek-ai-DeepSeek-V3.1": (
        *("deepseek_v31", "opened", "reasoning_content", "<｜end▁of▁sentence｜>"),
        *("text", "object", False),
    ),
    "deepseek-ai-DeepSeek-V3.2": (
        *("deepseek_v32", "opened", "reasoning_content", "<｜end▁of▁sentence｜>"),
        *("text", "object", False),
    ),
    "deepseek-ai-DeepSeek-V4": (
        *("deepseek_v4", "opened", "reasoning_content", "<｜end▁of▁sentence｜>"),
        *("text", "object", True),
    ),
    "llama-cpp-deepseek-r1": (
        *("deepseek_v3", "opened", "reasoning_content", "<｜end▁of▁sentence｜>"),
        *("text", "object", False),
    ),
    "ByteDance-Seed-OSS": ("seed_oss", "written", "reasoning_content", "<seed:eos>", "text", "object", False),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": (
        *("nemotron_v3", "opened", "reasoning_content", "<|im_end|>"),
        *("text", "object", False),
    ),
    "StepFun3.5-Flash": ("step3p5", "opened", "reasoning_content", "<|im_end|>", "any", "object", False),
    "LFM2.5-8B-A1B": ("lfm2", "written", "thinking", "<|im_end|>", "any", "object", False),
    "MiniMax-M3": ("minimax_m3", "written", "reasoning_content", "[e~[", "any", "object", True),
    "google-gemma-4-31B-it": ("gemma4", "written", "reasoning_content", "<turn|>", "text", "object", True),
    "google-gemma-4-31B-it-interleaved": ("gemma4", "written", "reasoning_content", "<turn|>", "text", "object", True),
    "tool_chat_template_gemma4": ("gemma4", "written", "reasoning_content", "<turn|>", "any", "object", True),
    "tool_chat_template_functiongemma": (
        *("functiongemma", "none", "reasoning_content", "<end_of_turn>"),
        *("text", "object", True),
    ),
    "Cohere2MoE": ("command_4", "opened", "reasoning_content", "<|END_OF_TURN_TOKEN|>", "any", "object", False),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": (
        *("command_a", "written", "reasoning_content", "<|END_OF_TURN_TOKEN|>"),
        *("text", "object", False),
    ),
    "ibm-granite-granite-3.3-2B-Instruct": (
        *("granite", "written", "reasoning_content", "<|end_of_text|>"),
        *("text", "any", False),
    ),
    "tool_chat_template_hunyuan_a13b": ("hunyuan", "written", "reasoning_content", "<|eos|>", "text", "any", False),
    "tool_chat_template_granite": ("granite", "none", "reasoning_content", "<|end_of_text|>", "text", "object", False),
    "tool_chat_template_phi4_mini": ("phi4_mini", "none", "reasoning_content", "<|end|>", "text", "any", False),
    "tool_chat_template_xlam_llama": ("xlam", "none", "reasoning_content", "<|eot_id|>", "text", "object", False),
    "tool_chat_template_xlam_qwen": ("xlam", "none", "reasoning_content", "<|im_end|>", "text", "object", False),
    "tool_chat_template_internlm2_tool": (
        *("internlm", "none", "reasoning_content", "<|im_end|>"),
        *("text", "object", False),
    ),
    "google-gemma-2-2b-it": ("generic", "none", "reasoning_content", "<end_of_turn>", "text", "any", False),
    "microsoft-Phi-3.5-mini-instruct": ("plain", "none", "reasoning_content", "</s>", "text", "any", False),
}


@pytest.mark.parametrize(
    ("opening", "closing"),
    [("<think>", "</think>"), ("<|START_THINKING|>", "<|END_THINKING|>"), ("<think>", "")],
)
def test_a_block_that_the_generation_prompt_opens(opening: str, closing: str) -> None:
    """The template need not show the closing tag: it may drop the reasoning of earlier answers."""
    source = CHATML.replace("assistant\\n' }}", f"assistant\\n{opening}' }}}}")
    if closing:
        source = source.replace("message.content", f"message.content.split('{closing}')[-1]")
    closing = closing or "</think>"
    fmt = chat_templates.of_source(source, ("<|im_start|>", "<|im_end|>", opening, closing))
    assert fmt.reasoning == "opened"
    answer = fmt.parse(f"hm{closing}Hello.", thinking=True)
    assert (answer.reasoning, answer.content) == ("hm", "Hello.")


@pytest.mark.slow
def test_probes_of_well_known_templates(shared_data: Path) -> None:
    formats = {path.stem: chat_templates.of(path) for path in chat_templates.paths(shared_data)}
    for name, expected in KNOWN.items():
        fmt = formats[name]
        rules = fmt.history_rules
        answers = (fmt.family_name, fmt.reasoning, rules.reasoning_field, fmt.end_of_turn[0])
        assert (*answers, rules.parts, rules.arguments, rules.developer) == expected, name
    # A call that is JSON alone is a near-miss in other families.
    assert formats["tool_chat_template_llama4_json"].family_name == "llama3_json"
    # Two templates refuse to render calls, but name the markers of a family.
    assert formats["Kimi-K2-Instruct"].family_name == "kimi_k2"
    assert formats["tool_chat_template_glm4"].family_name == "glm45"
    assert sum(fmt.family_name != "plain" for fmt in formats.values()) >= 65


def test_call_ids_that_a_template_requires(shared_data: Path) -> None:
    for name, made in (
        ("mistralai-Mistral-Nemo-Instruct-2407", "000000007"),
        ("moonshotai-Kimi-K2", "functions.now:7"),
    ):
        rules = chat_templates.of(shared_data / f"templates/llama.cpp/{name}.jinja").history_rules
        assert rules.call_id is not None
        assert rules.call_id("now", 7) == made
    assert chat_templates.of(shared_data / "templates/llama.cpp/Qwen3-Coder.jinja").history_rules.call_id is None


@pytest.mark.slow
def test_a_family_reads_what_it_writes_for_a_template(shared_data: Path) -> None:
    """Also if the reasoning tags and the end of a turn are the template's and not the family's."""
    for path in chat_templates.paths(shared_data):
        fmt = chat_templates.of(path)
        for calls, thinking in itertools.product((0, 2), (True, False)):
            made = tuple(Call(f"functions.now:{i}", "now", '{"a": "b c"}') for i in range(calls))
            reasoning = "Hm.\n\nSo." if thinking and fmt.reasoning != "none" else ""
            message = Message("Say.", reasoning, made if fmt.family_name != "plain" else ())
            read = fmt.parse(fmt.write(message, thinking=thinking).text, TOOLS, thinking=None if thinking else False)
            read_calls = [(call.name, json.loads(call.arguments)) for call in read.calls]
            assert (read.content, read.reasoning, read.defects) == ("Say.", reasoning, ()), path.name
            assert read_calls == [("now", {"a": "b c"})] * len(message.calls), path.name
            tokenizer = PieceTokenizer(chat_templates.controls(path.read_text()), ("ing",))
            ids = fmt.write(message, thinking=thinking).ids(tokenizer)
            reader = fmt.reader(TOOLS, thinking=None if thinking else False, tokenizer=tokenizer)
            assert dovetail.fold([*reader.feed("", ids), *reader.finish()]) == read, path.name


# -- prompts ----------------------------------------------------------------------------------------------------------


#: Shapes without text that spells a control token.
CLEAN = ("system", "two turns", "tools", "one call", "call with text", "two rounds", "reasoning last")


#: Some templates write the time, which goes on between two prompts.
_CLOCK = re.compile(r"\d\d:\d\d:\d\d")


@pytest.mark.slow
def test_prompts_equal_those_of_transformers(shared_data: Path) -> None:
    """A prompt that transformers refuses may be anything but a crash."""
    rendering = pytest.importorskip("transformers.utils.chat_template_utils")
    compared = 0
    for path in chat_templates.paths(shared_data):
        source = path.read_text(encoding="utf-8")
        # Generic tools are for templates that do not show them.
        fmt = chat_templates.of_source(source, chat_templates.controls(source), generic_tools=False)
        literals = pattern(chat_templates.controls(source))
        switched = (True, False) if fmt.switches else (True,)
        for name, thinking, open_turn in itertools.product(SHAPES, switched, (True, False)):
            shape, tools = SHAPES[name]
            messages = copy.deepcopy(shape)
            for message in messages:  # transformers copies it for gpt-oss; here `repair` does
                message |= {"thinking": message["reasoning_content"]} if "reasoning_content" in message else {}
            options = {"add_generation_prompt": open_turn, **SPECIAL, **dict.fromkeys(fmt.switches, thinking)}
            try:
                (expected,), _ = rendering.render_jinja_template(
                    [copy.deepcopy(messages)], tools=tools, chat_template=source, **options
                )
            except Exception:  # any error of the template or the library
                with contextlib.suppress(DovetailError):
                    fmt.render(messages, tools, thinking=thinking, add_generation_prompt=open_turn)
                continue
            prompt = fmt.render(messages, tools, thinking=thinking, add_generation_prompt=open_turn)
            assert _CLOCK.sub("", prompt.text) == _CLOCK.sub("", expected), f"{path.name}: {name}"
            if name in CLEAN:
                assert prompt.pieces[1::2] == literals.findall(expected), f"{path.name}: {name}"
            compared += 1
    assert compared > 3000


def _part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _calls(arguments: str) -> dict[str, Any]:
    call = {"id": "chatcmpl-tool-0a1b2c3d", "type": "function"}
    return assistant(None, tool_calls=[{**call, "function": {"name": "get_weather", "arguments": arguments}}])


_ANSWERED = {"role": "tool", "tool_call_id": "chatcmpl-tool-0a1b2c3d", "name": "get_weather"}
#: A text -> a conversation, as clients send it, that contains the text.
SENT = {
    "Wasked": [user([_part("One "), _part("Wasked")])],
    "Wsystem": [system([_part("Wsystem")]), user()],  # type: ignore[arg-type]
    "Wdeveloper": [{"role": "developer", "content": [_part("Wdeveloper")]}, user()],
    "Wsaid": [user(), assistant([_part("Wsaid")]), user()],
    "Wcity": [user(), _calls('{"city": "Wcity"}'), {**_ANSWERED, "content": "Sunny."}],
    "Wresult": [user(), _calls("{}"), {**_ANSWERED, "content": [_part("Wresult")]}],
    "Wthought": [user(), assistant("Said.", reasoning_content="Wthought")],
}


def shown(fmt: JinjaFormat, messages: list[dict[str, Any]]) -> str:
    """The prompt for messages, with tools or without; "" if the template refuses both."""
    for tools in (TOOLS, None):
        with contextlib.suppress(DovetailError):
            return fmt.render(messages, tools).text
    return ""


@pytest.mark.slow
def test_a_repaired_history_shows_all_that_the_template_can_show(shared_data: Path) -> None:
    """No other rules for the client's messages would show more."""
    others = [
        HistoryRules(call_id, parts, arguments, developer, field)
        for call_id in (None, lambda name, number: f"abcdef{number:03}")
        for parts in ("text", "parts", "any")
        for arguments in ("object", "any")
        for developer in (False, True)
        for field in REASONING_FIELDS
    ]
    missed = []
    for path in chat_templates.paths(shared_data):
        fmt = chat_templates.of(path)
        for text, messages in SENT.items():
            ours, _ = fmt.repair(messages)
            prompt = shown(fmt, ours)
            assert not re.search(r"""['"]type['"]: ['"]text|\\\\"city""", prompt), f"{path.name}: {text}"
            if text not in prompt:
                for rules in others:
                    history = repaired(messages, rules).messages
                    if text in shown(fmt, history):
                        missed.append((path.name, text, rules))
                        break
    assert missed == []


def test_a_template_that_shows_calls_only_beside_null_content() -> None:
    source = """{%- for message in messages %}{% if message.tool_calls and message.content is none %}
{%- for call in message.tool_calls %}<tool_call>{{ call.function.name + call.function.arguments }}{% endfor %}
{%- else %}<|im_start|>{{ message.role + message.content }}<|im_end|>{% endif %}{% endfor %}"""
    fmt = chat_templates.of_source(source)
    messages = [user(), _calls("{}"), {**_ANSWERED, "content": ""}]
    repaired, _ = fmt.repair(messages)
    assert [message["content"] for message in repaired] == ["What is the weather?", None, ""]
    assert "<tool_call>get_weather{}" in fmt.render(repaired, TOOLS).text
    unchanged, _ = fmt.repair([user(), {**_calls("{}"), "content": ""}, messages[2]], off=["empty_content"])
    assert unchanged[1]["content"] == ""


NO_CALLS = """{%- for message in messages -%}
<|im_start|>{{ message.role + '\n' + message.content }}<|im_end|>{% endfor %}"""


def test_a_template_that_shows_no_calls_reports_those_that_it_drops() -> None:
    """The prompt is the template's, and the client reads in the response what is not in it."""
    messages = [user(), {**_calls('{"city": "Paris"}'), "content": ""}, {**_ANSWERED, "content": "18 C"}]
    fmt = chat_templates.of_source(NO_CALLS, generic_tools=False)
    repaired, repairs = fmt.repair(messages)
    assert [(each.kind, each.where) for each in repairs] == [("hidden_call", "messages[1].tool_calls")]
    assert "Paris" not in fmt.render(repaired).text and "18 C" in fmt.render(repaired).text
    without_results = NO_CALLS.replace("in messages", "in messages if message.role != 'tool'")
    kinds = [each.kind for each in chat_templates.of_source(without_results, generic_tools=False).repair(messages)[1]]
    assert kinds == ["hidden_call", "hidden_result"]
    refusing = NO_CALLS.replace("{%- for", "{{ raise_exception('no') if 'tool_calls' in messages[1] }}{%- for")
    assert not chat_templates.of_source(refusing).history_rules.hides_calls  # a refusal is an error


@pytest.mark.slow
def test_published_templates_that_show_no_calls_or_no_results(shared_data: Path) -> None:
    hiding = {}
    for path in chat_templates.paths(shared_data):
        rules = chat_templates.of(path).history_rules
        if rules.hides_calls or rules.hides_results:
            hiding[path.stem] = (rules.hides_calls, rules.hides_results)
    assert hiding == {
        "LFM2-8B-A1B": (True, False),
        "LFM2.5-Instruct": (True, False),
        "ibm-granite-granite-3.3-2B-Instruct": (True, False),
        "microsoft-Phi-3.5-mini-instruct": (True, True),
        "tool_chat_template_glm4": (True, True),
    }


def test_a_template_that_takes_content_only_in_parts() -> None:
    source = "{% for message in messages %}{% for part in message.content %}{{ part.text }}{% endfor %}{% endfor %}"
    fmt = chat_templates.of_source(source)
    assert fmt.history_rules.parts == "parts"
    assert fmt.render(fmt.repair([user("Hi."), assistant("Ho.")])[0]).text == "Hi.Ho."


# -- control tokens ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_tokenizers(
    shared_data: Path, published_tokenizer: Callable[[str], Tokenizer]
) -> list[tuple[JinjaFormat, Tokenizer, Path, str]]:
    """Templates with a tokenizer that fits."""
    loaded = []
    for name, file in (
        ("Qwen-Qwen2.5-7B-Instruct", "qwen2.tokenizer.json"),
        ("Qwen-Qwen3-0.6B", "qwen2.tokenizer.json"),
        ("deepseek-ai-DeepSeek-V3.1", "deepseek_v3/tokenizer.json"),
        ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek_v3/tokenizer.json"),
    ):
        source = (shared_data / f"templates/llama.cpp/{name}.jinja").read_text(encoding="utf-8")
        path = shared_data / "tokenizers" / file
        tokenizer = published_tokenizer(file)
        families = [family() for family in FAMILIES.values()]
        fmt = jinja(Template(source, DEEPSEEK if "deepseek" in name else {}), tokenizer.control, families)
        loaded.append((fmt, tokenizer, path, source))
    return loaded


DEEPSEEK = {"bos_token": "<｜begin▁of▁sentence｜>", "eos_token": "<｜end▁of▁sentence｜>"}


@pytest.mark.parametrize("first", seeds(10, quick=1))
def test_no_text_becomes_a_control_token_in_any_template(shared_data: Path, first: int) -> None:
    """Control tokens, halves of them and brackets in every field of a client."""

    def prompt(fmt: JinjaFormat, words: list[str]) -> Prompt | None:
        a, b, c, d, e, f = words
        call = {"id": "call00000", "type": "function", "function": {"name": "n" + b, "arguments": json.dumps({c: d})}}
        answered = {"role": "tool", "tool_call_id": "call00000", "name": "n" + b, "content": d}
        messages = [system(a), user(b), assistant("x", tool_calls=[call]), answered, assistant("y"), user(e)]
        function = {"name": "n" + f, "description": a, "parameters": {"type": "object", "properties": {b: {"type": c}}}}
        for tools in ([{"type": "function", "function": function}], None):
            with contextlib.suppress(DovetailError):
                return fmt.render(fmt.repair(messages, tools)[0], tools)
        return None

    compared = 0
    for path in chat_templates.paths(shared_data)[first::10]:
        fmt, choose = chat_templates.of(path), random.Random(path.name)
        literals = chat_templates.controls(path.read_text(encoding="utf-8"))
        halves = [half for word in literals for half in (word[: len(word) // 2], word[len(word) // 2 :])]
        clean = prompt(fmt, ["one", "two", "three", "four", "five", "six"])
        for _ in range(5 if clean is not None else 0):
            words = ["".join(choose.choices((*literals, *halves, "<", "|>", "\n"), k=3)) for _ in range(6)]
            hostile = prompt(fmt, words)
            assert hostile is not None, path.name
            assert hostile.pieces[1::2] == clean.pieces[1::2], f"{path.name}: {words}"
            compared += 1
    assert compared >= 30


@pytest.mark.slow
def test_ids_equal_those_of_transformers(with_tokenizers: Any) -> None:
    transformers = pytest.importorskip("transformers")
    compared = 0
    for fmt, tokenizer, path, source in with_tokenizers:
        special = DEEPSEEK if "deepseek" in str(path) else {}
        theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path), **special)
        for name, (messages, tools) in SHAPES.items():
            if name == "inline reasoning":  # its text spells control tokens
                continue
            messages, _ = fmt.repair(messages, tools, off=["orphan_result", "unanswered_call"])
            for thinking in (True, False):
                prompt = fmt.render(messages, tools, thinking=thinking)
                switched = dict.fromkeys(fmt.switches, thinking)
                expected = theirs.apply_chat_template(
                    messages, tools=tools, chat_template=source, add_generation_prompt=True, **switched
                )
                assert prompt.ids(tokenizer) == list(expected["input_ids"]), f"{fmt.family_name}: {name}"
                compared += 1
    assert compared > 150


# -- options ----------------------------------------------------------------------------------------------------------


def test_thinking_is_the_template_s_own_switch(shared_data: Path) -> None:
    fmt = chat_templates.of(shared_data / "templates/llama.cpp/Qwen-Qwen3-0.6B.jinja")
    on, off = (fmt.render([user()], thinking=thinking).text for thinking in (True, False))
    assert off == on + "<think>\n\n</think>\n\n"
    assert fmt.render([user()], thinking=True, enable_thinking=False).text == off
    assert fmt.template_options == ("enable_thinking",)
    with pytest.raises(InvalidRequest, match="no template option 'thinkking'; it has thinking, enable_thinking"):
        fmt.render([user()], thinkking=True)


def test_unset_switches_follow_the_one_that_is_set() -> None:
    fmt = chat_templates.of_source("{{ thinking }} {{ enable_thinking }} {{ reasoning }}")
    assert fmt.render([user()], thinking=False).text == "False False False"
    assert fmt.render([user()], enable_thinking=False).text == "False False False"
    assert fmt.render([user()], thinking=False, reasoning="yes").text == "yes yes yes"


def test_a_template_without_a_switch_ignores_thinking() -> None:
    fmt = chat_templates.of_source(CHATML)
    assert fmt.template_options == ()
    assert fmt.render([user()], thinking=False) == fmt.render([user()], thinking=True)


def test_a_second_template_for_tools() -> None:
    templates = [Template("{{ style }}plain " + CHATML), Template("{{ voice }}tools " + CHATML)]
    fmt = jinja(templates[0], ("<|im_end|>",), (), with_tools=templates[1])
    assert fmt.render([user()], [], style="a").text.startswith("aplain<|im_start|>")
    assert fmt.render([user()], TOOLS, voice="b").text.startswith("btools<|im_start|>")
    assert fmt.template_options == ("style", "voice")


@pytest.mark.slow
def test_a_continued_message_equals_that_of_transformers(shared_data: Path) -> None:
    rendering = pytest.importorskip("transformers.utils.chat_template_utils")
    messages = [user(), assistant("It is going to be")]
    compared = 0
    for path in chat_templates.paths(shared_data):
        fmt, source = chat_templates.of(path), path.read_text(encoding="utf-8")
        try:
            (expected,), _ = rendering.render_jinja_template(
                [copy.deepcopy(messages)],
                chat_template=source,
                continue_final_message=True,
                **SPECIAL,
                **dict.fromkeys(fmt.switches, True),
            )
        except Exception:  # it does not find the text in the prompt, or the template refuses
            continue
        prompt = fmt.render(messages, add_generation_prompt=False, continue_final_message=True)
        assert prompt.text == expected, path.name
        compared += 1
    assert compared > 90


# -- answers ----------------------------------------------------------------------------------------------------------


@given(
    st.lists(st.sampled_from(("<think>", "</think>", "<|im_end|>", "</s>", "<tool_call>", "a", "\n", "<")), max_size=8),
    cuts,
)
def test_a_plain_reader_loses_nothing_and_ignores_the_splits(pieces: list[str], places: list[int]) -> None:
    fmt, text = chat_templates.of_source(CHATML, generic_tools=False), "".join(pieces)
    whole = fmt.parse(text, TOOLS)
    reader = fmt.reader(TOOLS)
    events = [event for piece in cut(text, places) for event in reader.feed(piece)]
    assert dovetail.fold([*events, *reader.finish()]) == whole
    assert not whole.calls
    markup = "|".join(map(re.escape, ("<think>", "</think>", "<|im_end|>", "</s>")))
    # What stands in a line like a word is text.
    assert sorted(re.sub(markup, "", whole.content + whole.reasoning)) == sorted(re.sub(markup, "", text))


def test_a_plain_model_makes_no_calls() -> None:
    fmt = chat_templates.of_source(CHATML, generic_tools=False)
    assert (fmt.name, fmt.family_name, fmt.reasoning, fmt.call_opening) == ("jinja", "plain", "none", "")
    assert fmt.end_of_turn == ("<|im_end|>", "</s>")
    with pytest.raises(InvalidRequest, match="jinja cannot be constrained yet"):
        fmt.grammar(TOOLS)
    assert fmt.grammar(TOOLS, tool_choice="none") is not None
    with pytest.raises(RenderError, match="how the model makes calls is not known"):
        fmt.write(Message(calls=(Call("a", "now", "{}"),)))
    assert fmt.write(Message("Hi.")).text == "Hi.<|im_end|>"
    assert fmt.write(Message("</s>")).pieces == ["</s>", "<|im_end|>"]


def test_a_grammar_is_the_family_s_with_the_template_s_reasoning(shared_data: Path) -> None:
    fmt = chat_templates.of(shared_data / "templates/llama.cpp/Qwen-QwQ-32B.jinja")
    tokenizer = PieceTokenizer(("<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>"), ("ing",))
    grammar = fmt.grammar(TOOLS)
    assert grammar is not None
    ends = [tokenizer.control["<|im_end|>"]]
    call = Call("", "get_weather", '{"city": "Paris"}')
    answer = fmt.write(Message("", "Hm.", (call,)))
    assert answer.text.startswith("Hm.\n</think>\n\n<tool_call>")
    assert allows(compile(grammar, tokenizer, ends), answer.ids(tokenizer))
    wrong = fmt.write(Message("", "Hm.", (Call("", "get_weather", "{}"),)))
    assert not allows(compile(grammar, tokenizer, ends), wrong.ids(tokenizer))


@pytest.mark.slow
@pytest.mark.untraced  # three times as slow with it
@pytest.mark.parametrize("first", range(4))
def test_a_grammar_takes_what_is_written_for_every_template(shared_data: Path, first: int) -> None:
    constrained = 0
    for path in chat_templates.paths(shared_data)[first::4]:
        fmt = chat_templates.of(path)
        tokenizer = PieceTokenizer(chat_templates.controls(path.read_text()), ("ing",))
        ends = [tokenizer.control[end] for end in fmt.end_of_turn if end in tokenizer.control]
        calls = tuple(
            Call(f"functions.now:{i}", "now", '{"a": "b c"}') for i in range(1 + (fmt.family_name not in ONE_CALL))
        )
        for thinking in (True, False):
            try:
                grammar = fmt.grammar(TOOLS, thinking=thinking, strict="names")
            except InvalidRequest as error:
                assert "cannot be constrained yet" in str(error), path.name
                continue
            assert grammar is not None
            compiled = compile(grammar, tokenizer, ends)
            reasoning = "Hm.\n\nSo." if thinking and fmt.reasoning != "none" else ""
            for message in (Message("Say.", reasoning, calls), Message("", reasoning, calls), Message("Say.")):
                ids = fmt.write(message, thinking=thinking).ids(tokenizer)
                assert allows(compiled.another(), ids), (path.name, message)
            constrained += thinking
    assert constrained >= 15


def test_a_family_may_have_private_methods_of_any_name(shared_data: Path) -> None:
    """`JinjaFormat` holds its family, so that no method of one hides a method of the other."""
    source = (shared_data / "templates/llama.cpp/Qwen-QwQ-32B.jinja").read_text(encoding="utf-8")
    controls = chat_templates.controls(source)
    plain = jinja(Template(source, SPECIAL), controls, [Hermes()])
    names = {name for name in dir(plain) if re.match("_[a-z]", name)} - {*dir(Format), *Format.__annotations__}

    class Own(Hermes):
        def write(self, message: Message, *, thinking: bool = True) -> Prompt:
            assert all(getattr(self, name)() == name for name in names)
            return super().write(message, thinking=thinking)

    for name in names:
        setattr(Own, name, lambda self, name=name: name)
    fmt = jinja(Template(source, SPECIAL), controls, [Own()])
    message = Message("Say.", "Hm.", (Call("", "now", "{}"),))
    assert fmt.write(message) == plain.write(message)
    assert fmt.grammar(TOOLS, strict="names") == plain.grammar(TOOLS, strict="names")
    assert fmt.parse(fmt.write(message).text, TOOLS).reasoning == "Hm."
    assert names


def test_models_write_their_own_variant_of_a_family(shared_data: Path) -> None:
    message = Message("", "", (Call("", "now", "{}"),) * 2)
    lfm = chat_templates.of(shared_data / "templates/llama.cpp/LFM2.5-8B-A1B.jinja")
    assert lfm.write(message).text == "<|tool_call_start|>[now(), now()]<|tool_call_end|><|im_end|>"
    assert not lfm.parse(lfm.write(message).text, TOOLS, thinking=False).defects
    nemo = chat_templates.of(shared_data / "templates/llama.cpp/mistralai-Mistral-Nemo-Instruct-2407.jinja")
    one = '{"name": "now", "arguments": {}}'
    assert nemo.write(message).text == f"[TOOL_CALLS][{one}, {one}]</s>"
    tokenizer = PieceTokenizer(("[TOOL_CALLS]", "</s>"), ("ing",))
    grammar = nemo.grammar(TOOLS, strict="names")
    assert grammar is not None
    for text, taken in ((f"[{one}]", True), (f"[{one}, {one}]", True), (f"[, {one}]", False), (f"[{one}{one}]", False)):
        ids = [tokenizer.control["[TOOL_CALLS]"], *tokenizer.encode(text), tokenizer.control["</s>"]]
        assert allows(compile(grammar, tokenizer, [tokenizer.control["</s>"]]), ids) is taken, text


def test_markers_that_the_tokenizer_lacks_are_text() -> None:
    call = (
        "'<tool_call>\\n' ~ message.tool_calls[0].function | tojson ~ '\\n</tool_call>' if message.tool_calls else ''"
    )
    source = CHATML.replace("message.content +", f"message.content + ({call}) +")
    fmt = chat_templates.of_source(source)
    assert fmt.family_name == "hermes"  # which reads; what was derived writes text, to which the grammar can hold
    message = Message("", "", (Call("", "now", "{}"),))
    assert [s.text for s in fmt.write(message).segments if s.control] == ["<|im_end|>"]
    assert fmt.grammar(TOOLS) is not None
    known, family = frozenset(("<|im_end|>",)), Hermes()
    adapted = family.adapted(
        name="",
        template_options=(),
        reasoning="none",
        end_of_turn=("<|im_end|>",),
        reader=family.reader_type,
        tokenizer_controls=known,
        shown_order=as_sent,
    )
    assert [s.text for s in adapted.in_known_tokens(adapted.write(message)).segments if s.control] == ["<|im_end|>"]
    with pytest.raises(InvalidRequest, match="cannot be constrained"):  # its reader takes the text for a token
        adapted.grammar(TOOLS)


#: Templates that write the tags, with `END` after a turn.
THINKING = """{%- for m in messages %}{{- HEAD(m.role) }}
{%- if m.role == 'assistant' and m.reasoning_content %}
{{- '<think>\n' + m.reasoning_content + '\n</think>\n\n' }}{%- endif %}
{{- m.content + 'END' }}{%- endfor %}
{%- if add_generation_prompt %}{{- HEAD('assistant') }}
{%- if enable_thinking is not defined or enable_thinking %}{{- '<think>\n' }}
{%- else %}{{- '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}"""
_CHATML_HEAD = "{%- macro HEAD(role) %}{{- '<|im_start|>' + role + '\n' }}{%- endmacro %}"
_WORDS_HEAD = "{%- macro HEAD(role) %}{{- role + ': ' }}{%- endmacro %}"


@pytest.mark.parametrize(
    ("source", "controls"),
    [
        (_CHATML_HEAD + THINKING.replace("END", "<|im_end|>\n"), ("<|im_start|>", "<|im_end|>", "<think>", "</think>")),
        (_CHATML_HEAD + THINKING.replace("END", "<|im_end|>\n"), ("<|im_start|>", "<|im_end|>")),
        (_WORDS_HEAD + THINKING.replace("END", "\n\n"), ()),
    ],
    ids=["control tokens", "text", "nothing but text"],
)
def test_only_the_template_opens_reasoning(source: str, controls: tuple[str, ...]) -> None:
    fmt = chat_templates.of_source(source, controls)
    assert (fmt.reasoning, fmt.reader_type.think.strip()) == ("opened", "<think>")
    closed, go_on = {"add_generation_prompt": False}, {"add_generation_prompt": False, "continue_final_message": True}
    for question in (
        user("hi"),
        user("What is <think>?"),
        user("<think>"),
        user("<think>\n\n</think>"),
        user("assistant"),
    ):
        assert fmt.left_open(fmt.render([question]))
        assert not fmt.left_open(fmt.render([question], thinking=False))
        assert not fmt.left_open(fmt.render([question], **closed))
        for thinking in (True, False):
            answers = (assistant("The tag <think> is"), assistant("So", reasoning_content="I think <think>"))
            assert not any(fmt.left_open(fmt.render([question, a], thinking=thinking, **go_on)) for a in answers)
            reasoned = assistant("", reasoning_content="I think <think> is")
            assert fmt.left_open(fmt.render([question, reasoned], thinking=thinking, **go_on))
    assert not fmt.left_open(Prompt([]))


def test_reasoning_opens_only_after_the_assistant_s_header() -> None:
    heads = "{%- macro HEAD(role) %}{{- '<|' + role + '|>' }}{%- endmacro %}"
    fmt = chat_templates.of_source(heads + THINKING.replace("END", "<|end|>"), ("<|user|>", "<|assistant|>", "<|end|>"))
    assert fmt.left_open(fmt.render([user("hi")]))
    assert not fmt.left_open(Prompt.alternating(["", "<|user|>", "<think>"]))
    assert fmt.left_open(Prompt.alternating(["", "<|assistant|>", "<think>"]))


@pytest.mark.slow
def test_templates_that_do_not_show_which_call_a_result_answers(shared_data: Path) -> None:
    by_name = {
        path.stem: chat_templates.of(path).history_rules.results_in_order for path in chat_templates.paths(shared_data)
    }
    for name in ("deepseek-ai-DeepSeek-V3.1", "Qwen-Qwen3-0.6B", "google-gemma-2-2b-it"):
        assert by_name[name]
    for name in ("moonshotai-Kimi-K2", "mistralai-Mistral-Nemo-Instruct-2407"):
        assert not by_name[name]


def test_an_end_of_turn_of_the_template_ends_the_output(shared_data: Path) -> None:
    fmt = chat_templates.of(shared_data / "templates/llama.cpp/ibm-granite-granite-4.0.jinja")
    assert fmt.family_name == "hermes"
    read = fmt.parse('<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call><|end_of_text|>', TOOLS)
    assert (read.content, len(read.calls), read.defects) == ("", 1, ())
    assert fmt.left_open(fmt.render([user()])) is False


# -- wrong use and bad input ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "where"),
    [
        ([{"role": "user", "content": object()}], r"messages\[0\].content"),
        ([user(), {"role": "user", "content": b"bytes"}], r"messages\[1\].content"),
        ([{"role": "robot", "content": {"a": {1, 2}}}], r"messages\[0\].role"),
        (["hello"], r"messages\[0\]"),
    ],
)
def test_a_message_of_a_wrong_shape_is_named(messages: Any, where: str) -> None:
    with pytest.raises(InvalidRequest, match=where):
        chat_templates.of_source(CHATML).render(messages)


def test_a_cycle_and_a_lone_surrogate_are_named() -> None:
    fmt = chat_templates.of_source("{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}" + CHATML)
    cycle: dict[str, Any] = {"type": "object"}
    cycle["properties"] = {"again": cycle}
    tools = [{"type": "function", "function": {"name": "now", "parameters": cycle}}]
    with pytest.raises(InvalidRequest, match=r"parameters.*cannot be JSON"):
        fmt.render([user()], tools)
    with pytest.raises(InvalidRequest, match="lone surrogate"):
        fmt.render([user("\ud800")])
    assert "\x00" in fmt.render([user("\x00")]).text


def test_a_template_s_refusal_has_its_own_message(shared_data: Path) -> None:
    fmt = chat_templates.of(shared_data / "templates/llama.cpp/google-gemma-2-2b-it.jinja")
    with pytest.raises(RenderError, match="System role not supported"):
        fmt.render([system(), user()])


def test_a_template_that_refuses_everything_is_still_a_format() -> None:
    fmt = chat_templates.of_source("{{ raise_exception('never') }}")
    assert (fmt.family_name, fmt.reasoning, fmt.end_of_turn) == ("plain", "none", ("</s>",))
    with pytest.raises(RenderError, match="never"):
        fmt.render([user()])
    unopened = "{{ raise_exception('no') if add_generation_prompt }}{{ messages[-1].reasoning_content }}"
    assert chat_templates.of_source(unopened).reasoning == "written"
    silent = chat_templates.of_source("", ())
    assert (silent.family_name, silent.end_of_turn) == ("plain", ("</s>",))
    assert silent.write(Message("Hi.")).text == "Hi.</s>"


def test_a_template_with_endless_loops_is_stopped() -> None:
    loop, end = "{% for i in range(99999) %}", "{% endfor %}"
    source = loop * 3 + end * 3
    with pytest.raises(RenderError, match="loops more than"):
        Template(source).render([user()], None, controls=pattern(()), add_generation_prompt=True, limits=Limits(10_000))


def test_threads_share_a_format(shared_data: Path) -> None:
    fmt = chat_templates.of(shared_data / "templates/llama.cpp/Qwen-Qwen3-0.6B.jinja")
    alone = [fmt.render([user(str(i))] * 20).text for i in range(8)]
    together: list[str] = [""] * 8

    def render(i: int) -> None:
        for _ in range(5):
            together[i] = fmt.render([user(str(i))] * 20).text

    threads = [threading.Thread(target=render, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone
