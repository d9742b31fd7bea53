"""The ids of whole conversations equal SpecForge's, computed with the real tokenizers (`specforge_references`)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dovetail
from benchmarks.rendering import injection
from dovetail.tokens import Detokenizer, Prompt, Tokenizer

#: The beginning of a reference's name -> its tokenizer. Five references are not compared, because the tokenizers of
#: Qwen3.5, Ling and gpt-oss are missing here.
TOKENIZERS = {"kimi-k2": "kimi_k25", "deepseek": "deepseek_v3", "qwen": "qwen3", "repo-wiki": "qwen3"}
NAMES = (
    "deepseek-v32_standard deepseek-v3_standard kimi-k2-instruct_reasoning-multi-turn kimi-k2-instruct_standard "
    "kimi-k2-thinking_reasoning-multi-turn kimi-k2-thinking_standard "
    "qwen3-instruct_multi-turn-tool-calls-with-reasoning qwen3-instruct_standard qwen3-instruct_tool-use-multi-turn "
    "qwen3-instruct_tool-use qwen3-next-thinking_multi-turn-tool-calls-with-reasoning "
    "qwen3-next-thinking_reasoning-multi-turn qwen3-next-thinking_standard qwen3-thinking_reasoning-multi-turn "
    "qwen3-thinking_standard qwen_standard qwen_tool-use repo-wiki_standard"
).split()


@pytest.fixture(scope="module")
def tokenizers(
    shared_data: Path, published_tokenizer: Callable[[str], Tokenizer], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Tokenizer]:
    qwen3 = tmp_path_factory.mktemp("qwen3") / "tokenizer.json"
    qwen3.write_text(json.dumps(injection.qwen3(shared_data / "tokenizers" / "qwen2.tokenizer.json")))
    return {"qwen3": dovetail.tokenizer(qwen3)} | {
        name: published_tokenizer(name) for name in ("kimi_k25", "deepseek_v3")
    }


@pytest.mark.parametrize("name", NAMES)
def test_ids_equal_the_reference(shared_data: Path, tokenizers: dict[str, Tokenizer], name: str) -> None:
    reference = json.loads((shared_data / "render" / "specforge_references" / f"{name}_ref.json").read_text())
    expected = flat(reference["input_ids"])
    tokenizer = next(tokenizers[which] for start, which in TOKENIZERS.items() if name.startswith(start))
    detokenizer = Detokenizer(tokenizer)
    prompt = Prompt([*detokenizer.feed(expected), *detokenizer.finish()])
    assert "\ufffd" not in prompt.text
    assert prompt.ids(tokenizer) == expected


def flat(ids: Any) -> list[int]:
    while isinstance(ids[0], list):
        (ids,) = ids
    return list(ids)
