"""Kimi's rank file is split as Kimi's own tokenizer splits it, and other rank files are refused."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dovetail
from dovetail.errors import CheckpointError
from dovetail.tokens import Tokenizer
from dovetail.tokens.tiktoken_ranks import split_long_text
from tests.examples import slow_but

KIMI = {"auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]}}


def write(folder: Path, **config: Any) -> Path:
    ranks = (f"{base64.b64encode(bytes([byte])).decode()} {byte}" for byte in range(256))
    (folder / "tiktoken.model").write_text("\n".join(ranks))
    added = {"256": {"content": "<|im_end|>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added} | config))
    return folder


def kimis_parts(text: str, most: int, longest: int) -> Iterator[str]:
    """The parts of a text as Kimi's tokenizer makes them, character by character."""
    for begin in range(0, len(text), most):
        chunk = text[begin : begin + most]
        start = length = 0
        for at, character in enumerate(chunk):
            same = at > 0 and chunk[at - 1].isspace() == character.isspace()
            length = length + 1 if same else 1
            if length > longest:
                yield chunk[start:at]
                start, length = at, 1
        yield chunk[start:]


@given(st.text(alphabet="ab \n\u3000中\x1c", max_size=60), st.integers(1, 9), st.integers(1, 5))
def test_long_texts_are_cut_where_kimis_own_tokenizer_cuts_them(text: str, most: int, longest: int) -> None:
    assert list(split_long_text(text, most, longest)) == list(kimis_parts(text, most, longest))


@pytest.mark.parametrize("run", slow_but([" ", "\n", "a", "!", "中", "a "], " ", "a "))
def test_a_run_of_any_length_is_tokenized(kimi_tokenizer: Tokenizer, run: str) -> None:
    """The library overflows its stack on a million spaces in one piece."""
    text = run * (1_000_000 // len(run))
    assert kimi_tokenizer.decode(kimi_tokenizer.encode(text)) == text


def test_text_that_spells_a_control_token(kimi_tokenizer: Tokenizer) -> None:
    ids = kimi_tokenizer.encode("<|im_end|>")
    assert kimi_tokenizer.control["<|im_end|>"] == 163586
    assert 163586 not in ids
    assert kimi_tokenizer.decode(ids) == "<|im_end|>"


def test_control_tokens_are_those_of_the_configuration(tmp_path: Path) -> None:
    tokenizer = dovetail.tokenizer(write(tmp_path, **KIMI))
    assert tokenizer.vocab_size == 512
    assert tokenizer.control["<|im_end|>"] == 256
    assert sorted(tokenizer.control.values()) == list(range(256, 512))
    assert tokenizer.decode([97, 256, 300]) == "a<|im_end|><|reserved_token_300|>"


@pytest.mark.parametrize(
    "config",
    [
        {"auto_map": {"AutoTokenizer": ["tokenization_qwen.QWenTokenizer", None]}},
        {"auto_map": {"AutoTokenizer": ["tokenization_kimia.TikTokenTokenizer", None]}},
        {"auto_map": {"AutoTokenizer": "tokenization_qwen.QWenTokenizer"}},
        {"auto_map": None, "tokenizer_class": "TikTokenTokenizer"},
        {"tokenizer_class": "QWenTokenizer"},
        {},
    ],
)
def test_a_rank_file_that_is_not_known_to_be_kimis_is_refused(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError, match=r"how the tokenizer class \S+ splits text is not known"):
        dovetail.tokenizer(write(tmp_path, **config))


@pytest.mark.parametrize("prefix", ["", "moonshotai/Kimi-K2.5--"])
def test_kimis_class_may_be_one_of_a_repository(tmp_path: Path, prefix: str) -> None:
    auto_map = {"AutoTokenizer": [f"{prefix}tokenization_kimi.TikTokenTokenizer", None]}
    assert dovetail.tokenizer(write(tmp_path, auto_map=auto_map)).encode("a") == [97]


def test_without_a_configuration_there_is_no_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tiktoken.model").write_text("")
    with pytest.raises(CheckpointError, match="tokenizer_config"):
        dovetail.tokenizer(tmp_path)
