"""What is rendered with what: formats, the templates that write the same, and where other people's data has them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dovetail

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Template:
    """A chat template. `objects`: it wants the arguments of calls as objects, not as strings."""

    title: str
    path: str
    objects: bool = False


@dataclass(frozen=True)
class Family:
    """One row for each renderer of each template, and one for each of `encoders` (see `worker.RENDERERS`)."""

    name: str
    tokenizer: str
    templates: tuple[Template, ...]
    encoders: tuple[str, ...] = ("native",)
    options: dict[str, Any] = field(default_factory=dict)
    bos: str = ""

    def template_options(self, tools: Any) -> dict[str, Any]:
        """What a template is given. Kimi's wants the declaration of the tools, which Kimi's own tokenizer writes."""
        if self.name != "kimi_k25":
            return self.options
        prompt = dovetail.format(self.name).render([], tools)
        return self.options | {"tools_ts_str": next(piece for piece in prompt.pieces if piece.startswith("# Tools"))}


FAMILIES = (
    Family(
        "kimi_k25",
        "tokenizers/kimi_k25",
        (Template("the model's own", "render/kimi_k25/chat_template.jinja"),),
        options={"thinking": True},
    ),
    Family(
        "deepseek_v32",
        "tokenizers/deepseek_v3",
        (
            Template("llama.cpp's", "templates/llama.cpp/deepseek-ai-DeepSeek-V3.2.jinja", objects=True),
            Template("SGLang's", "templates/sglang/tool_chat_template_deepseekv32.jinja"),
        ),
        encoders=("native", "vllm"),
        options={"thinking": True},
        bos="<｜begin▁of▁sentence｜>",
    ),
)


def with_objects(messages: Messages) -> Messages:
    """The arguments of calls as objects."""

    def read(call: Mapping[str, Any]) -> dict[str, Any]:
        function = call["function"]
        return {**call, "function": {**function, "arguments": json.loads(function["arguments"])}}

    return [
        {**message, "tool_calls": list(map(read, message["tool_calls"]))} if "tool_calls" in message else message
        for message in messages
    ]
