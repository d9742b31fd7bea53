"""The scripted models: a wire format each, with a tokenizer that has the format's control tokens.

The tokenizer is the demo model's, which is bundled, with more control tokens; so nothing has to be downloaded.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import NamedTuple

from tokenizers import AddedToken, Tokenizer

import dovetail
from dovetail.formats.base import Format
from dovetail.tokens import Tokenizer as DovetailTokenizer

_DEMO = Path(dovetail.__file__).parent / "data" / "demo" / "target" / "tokenizer.json"


class Wire(NamedTuple):
    """A wire format: how its prompts show tool results and calls, and its control tokens beyond the demo model's.

    `result`: finds a tool's result in a prompt; the first group is its text.
    `call`: finds an earlier call.
    `end`: ends an answer. `user_end`: what follows a user's message.
    """

    result: re.Pattern[str]
    call: re.Pattern[str]
    end: str
    user_end: str
    controls: tuple[str, ...] = ()
    template: Path | None = None

    def results(self, prompt: str) -> list[str]:
        """The tools' results in a part of a prompt; a client may also tell them as a user's text (smolagents does)."""
        observations = re.findall(rf"Observation:\n(.*?){re.escape(self.user_end)}", prompt, re.DOTALL)
        return self.result.findall(prompt) + observations


WIRES = {
    "kimi_k25": Wire(
        re.compile(r"## Return of [^\n]*\n(.*?)<\|im_end\|>", re.DOTALL),
        re.compile(r"<\|tool_call_begin\|>"),
        "<|im_end|>",
        "<|im_end|>",
    ),
    "deepseek_v32": Wire(
        re.compile(r"<result>(.*?)</result>", re.DOTALL),
        re.compile(r'<｜DSML｜invoke name="(?!\$)'),
        "<｜end▁of▁sentence｜>",
        "<｜Assistant｜>",
        ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "｜DSML｜"),
    ),
    "qwen3_coder": Wire(
        re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL),
        re.compile(r"<tool_call>\n<function=(?!NAME>)"),
        "<|im_end|>",
        "<|im_end|>",
        ("<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"),
        Path(__file__).with_name("qwen3_coder.jinja"),
    ),
}


class Model(NamedTuple):
    """A scripted model: its wire format, and what the gateway and the engine need of it.

    `writer`: the format that writes answers; that of `format` comes from a chat template where there is one.
    """

    wire: Wire
    format: Format
    writer: Format
    tokenizer: DovetailTokenizer
    end_id: int


def load(name: str, folder: Path) -> Model:
    """The scripted model of a wire format. Its tokenizer's files are written into `folder`."""
    wire = WIRES[name]
    tokenizer = Tokenizer.from_file(str(_DEMO))
    tokenizer.add_tokens([AddedToken(literal, special=False, normalized=False) for literal in wire.controls])
    tokenizer.save(str(folder / "tokenizer.json"))
    own = dovetail.tokenizer(folder)
    writer = fmt = dovetail.format(name)
    if wire.template is not None:
        shutil.copy(wire.template, folder / "chat_template.jinja")
        (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": wire.end}))
        fmt = dovetail.format(folder)
    return Model(wire, fmt, writer, own, own.control[wire.end])
