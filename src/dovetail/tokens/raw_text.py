"""Prompts from text that no format has rendered: the `prompt` of a completion."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dovetail.checkpoints.tokenizer_files import read_tokenizer_config, text_of
from dovetail.tokens.prompt import Prompt, Segment
from dovetail.tokens.tokenizer import Tokenizer


def raw_prompt(text: str, tokenizer: Tokenizer, *, prefix: bool = True, controls: bool = False) -> Prompt:
    """The prompt that is `text`.

    `prefix`: whether it begins with the control tokens that the tokenizer writes before a text, such as the beginning
    of sequence.
    `controls`: whether literals of control tokens in the text are control tokens. Otherwise they are ordinary text.
    """
    before = [Segment(literal, True) for literal in tokenizer.text_prefix] if prefix else []
    return Prompt([*before, *(_split(text, tokenizer) if controls else [Segment(text, False)])])


def control_literals_in(text: str, tokenizer: Tokenizer) -> list[str]:
    """The literals of control tokens that `text` contains as ordinary text, in order of their first place."""
    return list(dict.fromkeys(segment.text for segment in _split(text, tokenizer) if segment.control))


def _split(text: str, tokenizer: Tokenizer) -> Iterable[Segment]:
    """The control tokens that `text` spells, and the texts between them."""
    parts = _literal_pattern(tokenizer).split(text)
    return (Segment(part, bool(i % 2)) for i, part in enumerate(parts) if part)


@functools.lru_cache(4)
def _literal_pattern(tokenizer: Tokenizer) -> re.Pattern[str]:
    """Finds the longest literal of a control token at the first place where there is one."""
    literals = filter(None, tokenizer.control)
    return re.compile(f"({_one_of(literals)})") if tokenizer.control else re.compile("((?!))")


def _one_of(words: Iterable[str]) -> str:
    """A pattern for the longest of `words` that matches.

    It branches on one character at a time, so that the time at one place in a text does not grow with the number of
    words: a tokenizer may have thousands of control tokens, and a text may consist of beginnings of them.
    """
    branches = []
    empty = False
    for first, group in itertools.groupby(sorted(words), lambda word: word[:1]):
        same = list(group)
        if not first:
            empty = True
            continue
        # The words are sorted, so what the first and the last begin with, all begin with.
        common = "".join(
            a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(same[0], same[-1], strict=False))
        )
        rest = [word[len(common) :] for word in same]
        branches.append(re.escape(common) + (_one_of(rest) if len(rest) > 1 else ""))
    return f"(?:{'|'.join(branches)}){'?' if empty else ''}"


def text_prefix(tokenizer_file: Path, post_processor: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The literals of the control tokens that a checkpoint's own tokenizer writes before a text.

    `add_bos_token` in the tokenizer's configuration decides, as in transformers; without it, the template in
    `post_processor` of the tokenizer.json.
    """
    config = read_tokenizer_config(tokenizer_file.parent) if tokenizer_file.name == "tokenizer.json" else None
    if config is not None and config.add_bos_token is not None:
        return (text_of(config.bos_token),) if config.add_bos_token and config.bos_token else ()
    processors = (post_processor or {}).get("processors") or [post_processor or {}]
    templates = (each.get("single", ()) for each in processors if each.get("type") == "TemplateProcessing")
    before_text = itertools.takewhile(lambda piece: "SpecialToken" in piece, itertools.chain.from_iterable(templates))
    return tuple(piece["SpecialToken"]["id"] for piece in before_text)
