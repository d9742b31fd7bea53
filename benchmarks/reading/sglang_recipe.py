"""How SGLang reads DeepSeek-V4 and V4.1: not by its detectors but by DeepSeek's own library, from ids.

The library wants a tokenizer.json; it gets one that spells the ids the parent cut the output into. Imported by the
SGLang worker once the packages can be entered.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from benchmarks.reading.measure import Open, Piece, Stream

_VERSIONS = {"deepseek_v4": "dsv4", "deepseek_v41": "dsv41"}
# The characters that stand for bytes in byte-level vocabularies: themselves where they can be seen, else from 256 on.
_SEEN = [*range(33, 127), *range(161, 173), *range(174, 256)]
_VISIBLE = {byte: chr(256 + number) for number, byte in enumerate(b for b in range(256) if b not in _SEEN)}


def _tokenizer(job: dict[str, Any]) -> Any:
    """A byte-level vocabulary in which every id of the table is one word."""
    from tokenizers import Tokenizer

    control = {token: literal for literal, token in job["control"].items()}
    # The library numbers an added token by itself unless the vocabulary has it.
    words = {literal: token for token, literal in control.items()}
    for number, spelled in job["table"].items():
        if int(number) not in control:
            words[spelled.translate(_VISIBLE)] = int(number)
    added = [
        {"id": token, "content": literal, "special": literal == job["end"]}
        | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        for token, literal in sorted(control.items())
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    spec = {
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "WordLevel", "vocab": words, "unk_token": ""},
    }
    return Tokenizer.from_str(json.dumps(spec))


def read(delta: Any) -> Iterable[Piece]:
    """An output delta as pieces."""
    if delta.reasoning:
        yield "reasoning", 0, delta.reasoning
    if delta.content:
        yield "content", 0, delta.content
    for call in delta.tool_calls:
        if call.name:
            yield "name", call.index, call.name
        if call.arguments:
            yield "arguments", call.index, call.arguments


def open_recipe(job: dict[str, Any]) -> Open:
    """As the endpoint's adapter for these models makes and feeds its parser."""
    from sglang.srt.parser.deepseek_recipe_output import DeepSeekRecipeOutputParser
    from sglang.srt.parser.deepseek_recipe_renderer import DeepSeekRecipe

    recipe = DeepSeekRecipe(_VERSIONS[job["family"]], _tokenizer(job))
    end: int = job["control"][job["end"]]
    cut_off = job.get("cut_off", False)
    reason = {"type": "length", "length": 0} if cut_off else {"type": "stop", "matched": end}
    last = [] if cut_off else [end]

    def start() -> Stream:
        parser = DeepSeekRecipeOutputParser(
            recipe,
            thinking_stage=recipe.parse_start(thinking=job.get("force_reasoning", True)),
            parse_tool_calls=bool(job["tools"]),
        )
        return Stream(
            feed=lambda text, ids: parser.feed(ids),
            last=lambda text, ids: parser.finish([*ids, *last], reason),
            read=read,
        )

    start()
    return start
