"""Response templates of checkpoints, in the form that transformers 5.24 documents and serves them."""

from __future__ import annotations

from typing import Any

NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
CALL = {"type": "function", "function": "{content}"}
CHATML = "<|im_start|>assistant\n"
_BLANK = r"\s*"


def spec(anchor: Any = CHATML, **fields: Any) -> dict[str, Any]:
    return {"defaults": {"role": "assistant"}, "start_anchor": anchor, "fields": fields}


def around(opener: str, closer: str, **more: Any) -> dict[str, Any]:
    return {"open": opener, "close": closer, "content": "text", **more}


def each(content: str, transform: Any, **more: Any) -> dict[str, Any]:
    return {"repeats": True, "content": content, "transform": transform, **more}


def tags(pattern: str, **more: Any) -> dict[str, Any]:
    return {"tag_pattern": pattern, **more}


THINK = around("<think>", "</think>")
_PARAMETER = r"<parameter=(?P<key>{0})>\s*(?P<value>.*?)\s*</parameter>"
_GEMMA = {"unquoted_keys": True, "string_delims": [['<|"|>'] * 2]}

COHERE_CONTROLS = tuple(f"<|{at}_{what}|>" for what in ("ACTION", "RESPONSE", "THINKING") for at in ("START", "END"))
COHERE = spec(
    "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    content=around("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    thinking=around("<|START_THINKING|>", "<|END_THINKING|>"),
    tool_calls=around(
        "<|START_ACTION|>",
        "<|END_ACTION|>",
        content="json",
        transform_each=True,
        transform={"type": "function", "function": {"name": "{tool_name}", "arguments": "{parameters}"}},
    ),
)
ERNIE = spec(
    "Assistant:",
    thinking={"open_pattern": rf"(?:^|<think>{_BLANK})", "close": "</think>", "content": "text"},
    content={"open": "<response>\n", "close_pattern": r"\n?</response>", "content": "text"},
    tool_calls=each("json", CALL, open="<tool_call>", close="</tool_call>"),
)
GPT_OSS = spec(
    "<|start|>assistant",
    thinking=around("<|channel|>analysis<|message|>", "<|end|>"),
    content=around("<|channel|>final<|message|>", "<|end|>"),
    tool_calls=each(
        "json",
        NAMED,
        open_pattern=r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>",
        close="<|call|>",
    ),
)
SMOLLM = spec(
    thinking=THINK,
    tool_calls=each("json", CALL, open="<tool_call>", close="</tool_call>"),
    content={"close": "<|im_end|>", "content": "text"},
)
QWEN3_CODER = spec(
    thinking=THINK,
    tool_calls=each(
        "xml-inline",
        NAMED,
        open_pattern=rf"<tool_call>{_BLANK}<function=(?P<name>\w+)>",
        close="</tool_call>",
        content_args=tags(_PARAMETER.format(r"\w+"), value_parser={"name": "json", "args": {"allow_non_json": True}}),
    ),
)
GEMMA4 = spec(
    ["<|turn>model\n", "<tool_response|>"],
    thinking=around("<|channel>thought\n", "<channel|>"),
    tool_calls=each(
        "json", NAMED, open_pattern=r"<\|tool_call>call:(?P<name>\w+)", close="<tool_call|>", content_args=_GEMMA
    ),
    content={"close": ["<turn|>", "<|tool_response>", "<eos>"], "content": "text"},
)
_HEADER = r"(?:<\|message_model\|>)?[^<]*<\|content_{}\|>"
_JOINED = {"close": "<|end_message|>", "repeats": True, "join": "", "content_args": {"strip": False}}
INKLING = spec(
    "<|message_model|>",
    thinking={"open_pattern": _HEADER.format("thinking"), **_JOINED},
    content={"open_pattern": _HEADER.format("text"), **_JOINED},
    tool_calls=each(
        "json",
        {"type": "function", "function": {"name": "{content.name}", "arguments": "{content.args}"}},
        open_pattern=_HEADER.format("invoke_tool_json"),
        close="<|end_message|>",
    ),
)
#: What transformers serves Qwen's models with that have none.
QWEN = spec(
    reasoning_content=THINK,
    tool_calls=each("json", CALL, open_pattern=rf"{_BLANK}<tool_call>", close="</tool_call>"),
    content={"close_pattern": rf"{_BLANK}(?:<\|im_end\|>|<\|endoftext\|>|<\|eot_id\|>)", "content": "text"},
)
QWEN35 = spec(
    reasoning_content=THINK,
    tool_calls=each(
        "xml-inline",
        NAMED,
        open_pattern=rf"{_BLANK}<tool_call>{_BLANK}<function=(?P<name>[^>\n]+)>",
        close_pattern=rf"</function>{_BLANK}</tool_call>",
        content_args=tags(_PARAMETER.format(r"[^>\n]+")),
    ),
    content={"close_pattern": rf"{_BLANK}(?:<\|im_end\|>|<\|endoftext\|>)", "content": "text"},
)
#: The standard's kind for lists of Python calls.
LFM2 = spec(
    tool_calls=around(
        "<|tool_call_start|>",
        "<|tool_call_end|>",
        content="python-call-list",
        transform_each=True,
        transform={"type": "function", "function": {"name": "{name}", "arguments": "{arguments}"}},
    ),
    content={"close": "<|im_end|>", "content": "text"},
)

#: Published chat template -> the response template of its model.
PUBLISHED = {
    "llama.cpp/CohereForAI-c4ai-command-r7b-12-2024-tool_use": COHERE,
    "llama.cpp/Qwen-Qwen2.5-7B-Instruct": QWEN,
    "llama.cpp/Qwen-Qwen3-0.6B": QWEN,
    "vllm/qwen3": SMOLLM,
    "llama.cpp/Qwen3-Coder": QWEN3_CODER,
    "llama.cpp/Qwen3.5-4B": QWEN35,
    "vllm/qwen35": QWEN35,
    "llama.cpp/google-gemma-4-31B-it": GEMMA4,
    "vllm/tool_chat_template_gemma4": GEMMA4,
}
