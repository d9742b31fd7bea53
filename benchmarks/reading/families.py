"""The model languages: how each spells a message, and which of the engines' parsers are meant for it.

One `Family` says how a model writes reasoning, content and calls, which literals are one token each in its own
tokenizer, and which parsers the engines' documentation names. Nothing here knows a reader.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import dovetail
from benchmarks.reading.texts import Message
from dovetail import events


@dataclass(frozen=True)
class Parsers:
    """An engine's parsers for a family, as its options name them, and whether they go by ids alone."""

    tools: str
    reasoning: str | None = None
    ids: bool = False


@dataclass(frozen=True)
class Family:
    """One model language. `write` spells a message as the model would after the generation prompt, less `end`."""

    name: str
    write: Callable[[Message], str]
    control: tuple[str, ...]
    end: str
    vllm: Parsers
    sglang: Parsers
    #: How the long argument is spelled inside a call: for finding its characters in the output.
    escape: Callable[[str], str]
    #: What the generation prompt ends in, where that opens a reasoning block.
    opening: str = ""
    #: Whether the model reasons at all, in a block that it opens itself or that the prompt has opened.
    thinks: bool = False
    #: Whether one message may hold content and calls, and more than one call.
    mixes: bool = True
    parallel: bool = True
    #: Whether values stand between tags, where an angle bracket in one may be mistaken for the start of a tag.
    tags: bool = False
    #: Literals of more than one token that a parser may ask a tokenizer for.
    blocks: tuple[str, ...] = ()
    #: The folder of its own, or the nearest, tokenizer below the folder given with --tokenizers.
    tokenizer: str = "qwen2.tokenizer.json"


def _json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False)


def _json_escape(text: str) -> str:
    return _json(text)[1:-1]


def _python_escape(text: str) -> str:
    return repr(text)[1:-1]


def _raw(text: str) -> str:
    return text


def _scalar(data: Any) -> str:
    """A value between tags: text as it is, anything else as JSON."""
    return data if isinstance(data, str) else _json(data)


def _kimi(message: Message) -> str:
    calls = "".join(
        f"<|tool_call_begin|>functions.{name}:{index}<|tool_call_argument_begin|>{_json(arguments)}<|tool_call_end|>"
        for index, (name, arguments) in enumerate(message.calls)
    )
    return f"{message.content}<|tool_calls_section_begin|>{calls}<|tool_calls_section_end|>"


def _kimi_k3(message: Message) -> str:
    kinds = {str: "string", bool: "boolean", int: "number", list: "array", dict: "object"}
    calls = "".join(
        f'<|open|>call tool="{name}" index="{index}"<|sep|>'
        + "".join(
            f'<|open|>argument key="{key}" type="{kinds[type(data)]}"<|sep|>{_scalar(data)}<|close|>argument<|sep|>'
            for key, data in arguments.items()
        )
        + "<|close|>call<|sep|>"
        for index, (name, arguments) in enumerate(message.calls, 1)
    )
    return (
        f"{message.reasoning}<|close|>think<|sep|><|open|>response<|sep|>{message.content}<|close|>response<|sep|>"
        f"<|open|>tools<|sep|>{calls}<|close|>tools<|sep|><|close|>message<|sep|>"
    )


def _deepseek_v3(message: Message) -> str:
    calls = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{_json(arguments)}\n```<｜tool▁call▁end｜>"
        for name, arguments in message.calls
    )
    return f"{message.content}<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>"


def _deepseek_v31(message: Message) -> str:
    calls = "".join(
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{_json(arguments)}<｜tool▁call▁end｜>"
        for name, arguments in message.calls
    )
    return f"{message.content}<｜tool▁calls▁begin｜>{calls}<｜tool▁calls▁end｜>"


def _dsml(block: str, space: str = "") -> Callable[[Message], str]:
    mark = f"｜DSML｜{space}"

    def write(message: Message) -> str:
        calls = "".join(
            f'<{mark}invoke name="{name}">\n'
            + "".join(
                f'<{mark}parameter name="{key}" string="{"true" if isinstance(data, str) else "false"}">'
                f"{_scalar(data)}</{mark}parameter>\n"
                for key, data in arguments.items()
            )
            + f"</{mark}invoke>\n"
            for name, arguments in message.calls
        )
        return f"{message.content}\n\n<{mark}{block}>\n{calls}</{mark}{block}>"

    return write


def _hermes(message: Message) -> str:
    calls = "\n".join(
        f'<tool_call>\n{{"name": {_json(name)}, "arguments": {_json(arguments)}}}\n</tool_call>'
        for name, arguments in message.calls
    )
    return (message.content and message.content + "\n") + calls


def _qwen3_coder(message: Message) -> str:
    calls = "\n".join(
        f"<tool_call>\n<function={name}>\n"
        + "".join(f"<parameter={key}>\n{_scalar(data)}\n</parameter>\n" for key, data in arguments.items())
        + "</function>\n</tool_call>"
        for name, arguments in message.calls
    )
    return (message.content and message.content + "\n\n") + calls


def _glm(newline: str) -> Callable[[Message], str]:
    def write(message: Message) -> str:
        calls = "".join(
            f"{newline}<tool_call>{name}{newline}"
            + "".join(
                f"<arg_key>{key}</arg_key>{newline}<arg_value>{_scalar(data)}</arg_value>{newline}"
                for key, data in arguments.items()
            )
            + "</tool_call>"
            for name, arguments in message.calls
        )
        return f"{newline}{message.content}{calls}"

    return write


def _minimax_m2(message: Message) -> str:
    calls = "".join(
        f'<invoke name="{name}">\n'
        + "".join(f'<parameter name="{key}">{_scalar(data)}</parameter>\n' for key, data in arguments.items())
        + "</invoke>\n"
        for name, arguments in message.calls
    )
    return (message.content and message.content + "\n") + f"<minimax:tool_call>\n{calls}</minimax:tool_call>"


def _harmony(message: Message) -> str:
    content = message.content and f"<|channel|>commentary<|message|>{message.content}<|end|><|start|>assistant"
    calls = "".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{_json(arguments)}<|call|>"
        for name, arguments in message.calls
    )
    return f"<|channel|>analysis<|message|>{message.reasoning}<|end|><|start|>assistant{content}{calls}"


def _llama3_json(message: Message) -> str:
    return "; ".join(
        f'{{"name": {_json(name)}, "parameters": {_json(arguments)}}}' for name, arguments in message.calls
    )


def _mistral(message: Message) -> str:
    return message.content + "".join(f"[TOOL_CALLS]{name}[ARGS]{_json(arguments)}" for name, arguments in message.calls)


def _pythonic(message: Message) -> str:
    calls = ", ".join(
        f"{name}({', '.join(f'{key}={data!r}' for key, data in arguments.items())})"
        for name, arguments in message.calls
    )
    return f"[{calls}]"


def _after(opening: str, closing: str, write: Callable[[Message], str]) -> Callable[[Message], str]:
    """The same with reasoning before it."""
    return lambda message: f"{opening}{message.reasoning}{closing}{write(message)}"


_THINK = ("<think>", "</think>")
_KIMI = (
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
)
_DEEPSEEK = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
)
_QWEN = ("<tool_call>", "</tool_call>")
_GLM = (*_QWEN, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", *_THINK)
_DSML = (*_THINK, "｜DSML｜")
# Not a parser one can name: SGLang takes this path by itself for these models.
_RECIPE = Parsers("deepseek-recipe", ids=True)
_HARMONY = ("<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>")


def _kimi_family(name: str, *, opens: str = "", writes: str = "", thinks: bool = True) -> Family:
    return Family(
        name,
        _after(writes, "</think>", _kimi) if thinks else _kimi,
        (*_KIMI, *_THINK),
        "<|im_end|>",
        Parsers("kimi_k2", "kimi_k2" if thinks else None),
        Parsers("kimi_k2", "kimi_k2" if thinks else None),
        _json_escape,
        opening=opens,
        thinks=thinks,
        tokenizer="kimi_k25",
    )


def _deepseek_family(name: str, write: Callable[[Message], str], vllm: Parsers, sglang: Parsers) -> Family:
    dsml = vllm.reasoning is not None
    return Family(
        name,
        _after("", "</think>", write) if dsml else write,
        _DSML if dsml else _DEEPSEEK,
        "<｜end▁of▁sentence｜>",
        vllm,
        sglang,
        _raw if dsml else _json_escape,
        opening="<think>" if dsml else "",
        thinks=dsml,
        tags=dsml,
        tokenizer="deepseek_v3",
    )


def _qwen_family(name: str, write: Callable[[Message], str], vllm: Parsers, sglang: Parsers, **more: Any) -> Family:
    return Family(name, write, (*_QWEN, *_THINK), "<|im_end|>", vllm, sglang, **more)


_ALL = (
    _kimi_family("kimi_k2", thinks=False),
    _kimi_family("kimi_k2_thinking", writes="<think>"),
    _kimi_family("kimi_k25", opens="<think>"),
    Family(
        "kimi_k3",
        _kimi_k3,
        ("<|open|>", "<|close|>", "<|sep|>"),
        "<|end_of_msg|>",
        Parsers("kimi_k3", "kimi_k3"),
        Parsers("kimi_k3", "kimi_k3"),
        _raw,
        opening="<|open|>think<|sep|>",
        blocks=("<|open|>think<|sep|>", "<|close|>think<|sep|>", "<|open|>response<|sep|>"),
        thinks=True,
        tags=True,
        tokenizer="kimi_k25",
    ),
    _deepseek_family("deepseek_v3", _deepseek_v3, Parsers("deepseek_v3"), Parsers("deepseekv3")),
    _deepseek_family("deepseek_v31", _deepseek_v31, Parsers("deepseek_v31"), Parsers("deepseekv31")),
    _deepseek_family(
        "deepseek_v32",
        _dsml("function_calls"),
        Parsers("deepseek_v32", "deepseek_v3"),
        Parsers("deepseekv32", "deepseek-v3"),
    ),
    _deepseek_family(
        "deepseek_v4",
        _dsml("tool_calls"),
        Parsers("deepseek_v4", "deepseek_v4"),
        _RECIPE,
    ),
    _deepseek_family(
        "deepseek_v41",
        _dsml("calls", " "),
        Parsers("deepseek_v41", "deepseek_v41"),
        _RECIPE,
    ),
    _qwen_family("hermes", _hermes, Parsers("hermes"), Parsers("hermes"), escape=_json_escape),
    _qwen_family(
        "qwen3",
        _after("<think>\n", "\n</think>\n\n", _hermes),
        Parsers("qwen3_json", "qwen3"),
        Parsers("qwen25", "qwen3"),
        escape=_json_escape,
        thinks=True,
    ),
    _qwen_family("qwen3_coder", _qwen3_coder, Parsers("qwen3_coder"), Parsers("qwen3_coder"), escape=_raw, tags=True),
    Family(
        "glm45",
        _after("\n<think>", "</think>", _glm("\n")),
        _GLM,
        "<|user|>",
        Parsers("glm45", "glm45"),
        Parsers("glm45", "glm45"),
        _raw,
        thinks=True,
        tags=True,
    ),
    Family(
        "glm47",
        _after("", "</think>", _glm("")),
        _GLM,
        "<|user|>",
        Parsers("glm47", "glm47"),
        Parsers("glm47", "glm45"),
        _raw,
        opening="<think>",
        thinks=True,
        tags=True,
    ),
    Family(
        "minimax_m2",
        _after("", "\n</think>\n\n", _minimax_m2),
        ("<minimax:tool_call>", "</minimax:tool_call>", *_THINK),
        "[e~[",
        Parsers("minimax_m2", "minimax_m2"),
        Parsers("minimax-m2", "minimax"),
        _raw,
        opening="<think>\n",
        thinks=True,
        tags=True,
    ),
    Family(
        "harmony",
        _harmony,
        _HARMONY,
        "<|return|>",
        Parsers("openai", "openai_gptoss"),
        Parsers("gpt-oss", "gpt-oss"),
        _json_escape,
        thinks=True,
        parallel=False,
        tokenizer="gpt-2.tokenizer.json",
    ),
    Family(
        "llama3_json",
        _llama3_json,
        ("<|python_tag|>",),
        "<|eot_id|>",
        Parsers("llama3_json"),
        Parsers("llama3"),
        _json_escape,
        mixes=False,
        tokenizer="gpt-2.tokenizer.json",
    ),
    Family(
        "mistral",
        _mistral,
        ("[TOOL_CALLS]", "[ARGS]"),
        "</s>",
        Parsers("mistral"),
        Parsers("mistral"),
        _json_escape,
        tokenizer="gpt-2.tokenizer.json",
    ),
    Family(
        "pythonic",
        _pythonic,
        (),
        "<|eot|>",
        Parsers("pythonic"),
        Parsers("pythonic"),
        _python_escape,
        mixes=False,
        tokenizer="gpt-2.tokenizer.json",
    ),
)
FAMILIES: Mapping[str, Family] = {family.name: family for family in _ALL}


def as_written(name: str) -> Family:
    """A family that is read by Dovetail alone: its outputs are those that the format writes."""
    fmt = dovetail.format(name)
    controls, end = fmt.reader_type.controls, fmt.end_of_turn[0]

    def write(message: Message) -> str:
        calls = [events.Call(f"c{i}", called, _json(arguments)) for i, (called, arguments) in enumerate(message.calls)]
        text = fmt.write(events.Message(message.content, "", tuple(calls)), thinking=False).text
        return next((text.removesuffix(end) for end in fmt.end_of_turn if text.endswith(end)), text)

    value = 'it\'s "it"\n'
    written = write(Message((("f", {"x": value}),)))
    escape = next(spelled for spelled in (_raw, _json_escape, _python_escape) if spelled(value) in written)
    return Family(name, write, tuple({*controls} - {end}), end, Parsers(""), Parsers(""), escape)
