"""Raw prompts: their text is text, unless the caller says that it spells control tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dovetail
from dovetail.tokens import Segment, Tokenizer, control_literals_in, raw_prompt
from dovetail.tokens.raw_text import _one_of


class Literals(Tokenizer):
    """Each character of a text is a token."""

    def __init__(self, literals: list[str]) -> None:
        self.control = {literal: 0x110000 + i for i, literal in enumerate(literals)}
        self.vocab_size = 0x110000 + len(literals)

    def _encode(self, text: str) -> list[int]:
        return list(map(ord, text))

    def _bytes(self, token: int) -> bytes:
        return chr(token).encode()


def naive(text: str, literals: list[str]) -> list[Segment]:
    """The longest literal at each place, tried one after the other."""
    segments: list[Segment] = []
    at = 0
    while at < len(text):
        found = max((literal for literal in literals if text.startswith(literal, at)), key=len, default="")
        if found:
            segments.append(Segment(found, True))
        elif segments and not segments[-1].control:
            segments[-1] = Segment(segments[-1].text + text[at], False)
        else:
            segments.append(Segment(text[at], False))
        at += len(found) or 1
    return segments


@given(st.lists(st.text("<a.|", min_size=1, max_size=4), max_size=8, unique=True), st.text("<a.|b", max_size=40))
def test_literals_become_control_tokens_only_on_request(literals: list[str], text: str) -> None:
    tokenizer = Literals(literals)
    assert list(raw_prompt(text, tokenizer, controls=True).segments) == naive(text, literals)
    assert raw_prompt(text, tokenizer).segments == ((Segment(text, False),) if text else ())
    spelled = [segment.text for segment in naive(text, literals) if segment.control]
    assert control_literals_in(text, tokenizer) == list(dict.fromkeys(spelled))


def test_the_pattern_branches_on_one_character_at_a_time() -> None:
    # Otherwise the time at one place would grow with the number of control tokens.
    assert _one_of(["<|a|>", "<|b|>", "<|b", "c.*"]) == r"(?:<\|(?:a\|>|b(?:\|>)?)|c\.\*)"


PREFIX = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}]}
SUFFIX = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "<s>"}}]}


@pytest.mark.parametrize(
    ("post_processor", "config", "prefix"),
    [
        (None, None, ()),
        (PREFIX, None, ("<s>",)),
        (SUFFIX, None, ()),
        ({"type": "Sequence", "processors": [{"type": "ByteLevel"}, PREFIX]}, None, ("<s>",)),
        (PREFIX, {"add_bos_token": None, "bos_token": "<t>"}, ("<s>",)),
        (PREFIX, {"add_bos_token": False, "bos_token": "<s>"}, ()),
        (None, {"add_bos_token": True, "bos_token": {"content": "<s>"}}, ("<s>",)),
        (None, {"add_bos_token": True}, ()),
    ],
)
def test_the_text_that_a_tokenizer_writes_before_a_text(
    tmp_path: Path, small_tokenizer_file: Path, post_processor: Any, config: Any, prefix: tuple[str, ...]
) -> None:
    spec = json.loads(small_tokenizer_file.read_text())
    spec["added_tokens"].append({**spec["added_tokens"][0], "id": 999, "content": "<s>"})
    (tmp_path / "tokenizer.json").write_text(json.dumps({**spec, "post_processor": post_processor}))
    if config is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = dovetail.tokenizer(tmp_path)
    assert tuple(tokenizer.text_prefix) == prefix
    begin = tokenizer.control["<s>"]
    ids = raw_prompt("tool <s>", tokenizer).ids(tokenizer)
    assert ids == [begin] * len(prefix) + tokenizer.encode("tool <s>")
    assert raw_prompt("tool <s>", tokenizer, prefix=False).ids(tokenizer) == tokenizer.encode("tool <s>")
    assert raw_prompt("tool <s>", tokenizer, prefix=False, controls=True).ids(tokenizer) == [
        *tokenizer.encode("tool "),
        begin,
    ]
