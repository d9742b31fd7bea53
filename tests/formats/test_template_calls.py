"""Answers in the prompts of a model's own template are read by its family, and are what the family writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.events import Call, Message
from dovetail.formats.derived.jinja import JinjaFormat
from tests.formats import chat_templates
from tests.reading import families
from tests.reading.families import meaning

#: Some templates refuse tools without parameters.
TOOLS = [tool for tool in families.TOOLS if "parameters" in tool["function"]]

#: Each family's published templates.
TEMPLATES = {
    "llama.cpp/ByteDance-Seed-OSS": "seed_oss",
    "llama.cpp/openbmb-MiniCPM5-1B": "minicpm5",
    "llama.cpp/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": "nemotron_v3",
    "llama.cpp/StepFun3.5-Flash": "step3p5",
    "vllm/tool_chat_template_gemma4": "gemma4",
    "llama.cpp/LFM2.5-8B-A1B": "lfm2",
    "llama.cpp/MiniMax-M3": "minimax_m3",
}


def is_shown_otherwise(name: str, message: Message) -> bool:
    """Whether the template writes what no model would: content after calls, and strings without escapes."""
    return (name == "gemma4" and bool(message.content and message.calls)) or (name == "lfm2" and TWO in message.calls)


#: Xiaomi publishes its template with its checkpoints only. This is how it shows an answer.
MIMO = """{%- for message in messages %}{{ '<|im_start|>' + message.role + '\\n' }}
{%- if message.role == 'assistant' %}{{ '<think>' + (message.reasoning_content or '') + '</think>' }}{% endif %}
{{- message.content or '' }}
{%- for call in message.tool_calls or () %}{{ '<tool_call>\\n<function=' + call.function.name + '>\\n' }}
{%- for key, value in call.function.arguments | items %}
{{- '<parameter=' + key + '>' + (value if value is string else value | tojson) + '</parameter>\\n' }}
{%- endfor %}{{ '</function>\\n</tool_call>' }}
{%- endfor %}{{ '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}
{%- if not enable_thinking %}{{ '<think></think>' }}{% endif %}{% endif %}"""

ONE = Call("call00001", "get_weather", '{"city": "Paris", "days": 3}')
TWO = Call("call00002", "edit_file", '{"mode": "w", "path": "né <b> \\"漢\\"\\n\\n</x> 🙂"}')
NONE = Call("call00003", "ping", "{}")
MESSAGES = [
    Message("", "Hm.", (ONE,)),
    Message("", "Hm.\n\nSo.", (ONE, TWO)),
    Message("Let me see.", "Hm.", (NONE, TWO, ONE)),
    Message("Let me see.", "Hm.", (TWO,)),
    Message("It rains.", "Hm."),
]


def formats(shared_data: Path) -> list[tuple[str, JinjaFormat]]:
    published = [
        (name, chat_templates.of(shared_data / "templates" / f"{path}.jinja")) for path, name in TEMPLATES.items()
    ]
    return [*published, ("mimo", chat_templates.of_source(MIMO, chat_templates.controls(MIMO)))]


def shown(fmt: JinjaFormat, message: Message) -> str:
    """The answer in the template's prompt of a history, from the generation prompt to the end of the turn."""
    question = {"role": "user", "content": "Wquestion"}
    answer: dict[str, Any] = {"role": "assistant", "content": message.content}
    answer[fmt.history_rules.reasoning_field] = message.reasoning
    if message.calls:
        answer["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": json.loads(call.arguments)},
            }
            for call in message.calls
        ]
    opened = fmt.render([question], TOOLS, add_generation_prompt=True).text
    prompt = fmt.render([question, answer], TOOLS, add_generation_prompt=False).text
    assert prompt.startswith(opened)
    return prompt.removeprefix(opened).removesuffix("\n")


@pytest.mark.parametrize("message", MESSAGES)
def test_an_answer_in_a_prompt_is_read_and_written_exactly(shared_data: Path, message: Message) -> None:
    for name, fmt in formats(shared_data):
        assert fmt.family_name == name
        text = shown(fmt, message)
        read = fmt.parse(text, TOOLS)
        assert (meaning(read), read.defects) == (meaning(message), ()), name
        if not is_shown_otherwise(name, message):
            assert text == fmt.write(message).text, name


def test_function_gemma_is_shown_all_values_as_strings(shared_data: Path) -> None:
    """In vLLM's template, that is. It leaves out content beside calls, and reasoning."""
    fmt = chat_templates.of(shared_data / "templates/vllm/tool_chat_template_functiongemma.jinja")
    assert fmt.family_name == "functiongemma"
    message = Message("", "", (ONE, TWO, NONE))
    read = fmt.parse(shown(fmt, message), TOOLS)
    assert meaning(read) == meaning(message)
    assert [defect.kind for defect in read.defects] == ["mistyped_value"]


def test_minimax_m3_is_shown_objects_and_arrays_as_tags(shared_data: Path) -> None:
    """And an answer without reasoning begins with the tag that would close it."""
    fmt = chat_templates.of(shared_data / "templates/llama.cpp/MiniMax-M3.jinja")
    nested = Call("call00004", "pin-it", '{"where": {"lat": 1.5, "name": "x"}, "path": [{"lon": -2}, {"lon": 3}]}')
    for message in (Message("", "Hm.", (nested, nested)), Message("Here.", "", (nested,)), Message("Yes.")):
        text = shown(fmt, message)
        assert text.startswith("<mm:think>Hm.</mm:think>" if message.reasoning else "</mm:think>")
        read = fmt.parse(text, TOOLS)
        assert (meaning(read), read.defects) == (meaning(message), ())
        assert fmt.write(message).text == text
