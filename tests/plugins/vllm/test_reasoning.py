"""Where reasoning ends in token ids, for tags of ordinary text and for tags with a control token."""

from __future__ import annotations

import pytest

from dovetail.events import Message
from dovetail.plugins.vllm.reasoning import ReasoningSpans
from tests.reading import families

ANSWER = Message("Let me look.", "They ask of Paris.")


@pytest.mark.parametrize("name", ["granite", "hunyuan", "gemma4", "qwen3"])
def test_reasoning_ends_with_the_token_that_ends_the_closing_tag(name: str) -> None:
    fmt, tokenizer = families.format_of(name), families.tokenizer_of(name)
    spans = ReasoningSpans(fmt, tokenizer)
    assert fmt.reasoning_tags is not None
    ids = fmt.write(ANSWER, thinking=True).ids(tokenizer)
    spelled = [tokenizer.decode(ids[:count]) for count in range(len(ids) + 1)]
    closed = next(count for count, text in enumerate(spelled) if fmt.reasoning_tags[1] in text)
    for count in range(1, len(ids)):
        assert spans.ended(ids[:count]) == (count >= closed)
        assert spans.after(ids[:count]) == ids[closed:count]
    ends = [count for count in range(1, closed + 1) if spans.ends_in(ids[:count], ids[count - 1 : count])]
    assert ends == [closed]
    assert spans.ends_in(ids[:closed], ids[:closed])


def test_a_reasoning_block_that_was_cut_has_the_tokens_that_are_there() -> None:
    fmt, tokenizer = families.format_of("gemma4"), families.tokenizer_of("gemma4")
    spans = ReasoningSpans(fmt, tokenizer)
    ids = fmt.write(ANSWER, thinking=True).ids(tokenizer)
    counts = [spans.count(ids[:count], False) for count in range(len(ids) + 1)]
    reasoning = len(tokenizer.encode(ANSWER.reasoning))
    assert counts == sorted(counts) and counts[2] == 0 and reasoning <= counts[-1] <= reasoning + 2
