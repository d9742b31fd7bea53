"""The cache of encoded texts, and the errors of tokenizers."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dovetail
from dovetail.errors import CheckpointError, RenderError
from dovetail.tokens import CUT, Prompt, Segment, Tokenizer
from dovetail.tokens.tokenizer import IdCache


def encode(text: str) -> list[int]:
    """One token for each character."""
    return [ord(character) % 256 for character in text]


class Counting:
    """`encode`, which records the texts of its calls."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, text: str) -> list[int]:
        self.texts.append(text)
        return encode(text)


class WrappedTokenizer(Tokenizer):
    """The tokenizer `inner` with another function for encoding, and a cache of its own."""

    def __init__(self, inner: Tokenizer, encode: Callable[[str], list[int]]) -> None:
        self.control, self.vocab_size = inner.control, inner.vocab_size
        self._inner, self._encode_with = inner, encode

    def _encode(self, text: str) -> list[int]:
        return self._encode_with(text)

    def _bytes(self, token: int) -> bytes:
        return self._inner.token_bytes(token)


words = st.sampled_from([f"{letter}{'-' * length}" for letter in "abcdefgh" for length in (0, 1, 40, 90)])


@given(st.lists(st.lists(words, max_size=6), max_size=12), st.integers(0, 4000))
def test_the_cache_changes_no_ids_and_stays_within_its_bound(prompts: list[list[str]], max_bytes: int) -> None:
    cache = IdCache(256, max_bytes)
    for texts in prompts:
        assert list(map(list, cache.ids(texts, encode))) == list(map(encode, texts))
        assert cache.size <= max_bytes


def test_texts_of_every_turn_stay_in_the_cache() -> None:
    cache, counting = IdCache(256, 20_000), Counting()
    before = 0
    for turn in range(200):
        cache.ids(["the system prompt", f"turn {turn}"], counting)
        assert counting.texts[before:] == (["the system prompt"] if turn == 0 else []) + [f"turn {turn}"]
        before = len(counting.texts)
    cache.ids(["turn 0"], counting)
    assert counting.texts[before:] == ["turn 0"]  # it was dropped


def test_a_text_that_would_fill_the_cache_is_not_cached() -> None:
    cache, counting = IdCache(256, 10_000), Counting()
    for _ in range(2):
        cache.ids(["short", "x" * 10_000], counting)
    assert counting.texts == ["short", "x" * 10_000, "x" * 10_000]


@pytest.mark.slow
def test_the_bound_holds_for_allocated_memory() -> None:
    """Measured, and not counted by the cache. Texts outside Latin-1 take the most memory."""
    cache = IdCache(200_000, 1_000_000)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for turn in range(10_000):
            cache.ids([f"{turn} 東京 " + "é" * (turn % 200)], lambda text: [100_000 + ord(c) % 999 for c in text])
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < 1_000_000


def test_threads_share_the_cache() -> None:
    cache = IdCache(256, 40_000)
    prompts = [["same", f"{n} words " * (n % 7), f"{n} words " * (n % 7)] for n in range(60)]
    expected = [tuple(map(tuple, map(encode, texts))) for texts in prompts]
    with ThreadPoolExecutor(8) as threads:
        for ids in threads.map(lambda _: [tuple(cache.ids(texts, encode)) for texts in prompts], range(24)):
            assert ids == expected
    assert 0 < cache.size <= 40_000


def test_a_growing_conversation_is_tokenized_once(small_tokenizer: Tokenizer) -> None:
    texts: list[str] = []
    tokenizer = WrappedTokenizer(small_tokenizer, lambda text: texts.append(text) or small_tokenizer.encode(text))
    messages = [{"role": "user", "content": "What now?"}]
    fmt = dovetail.format("kimi_k25")
    for turn in range(20):
        before = len("".join(texts))
        ids = fmt.render(messages).ids(tokenizer)
        assert tokenizer.decode(ids) == fmt.render(messages).text
        assert len("".join(texts)) - before < 100
        messages += [{"role": "assistant", "content": f"Answer {turn}"}, {"role": "user", "content": f"Then {turn}?"}]


def test_a_caller_may_change_the_returned_list(small_tokenizer: Tokenizer) -> None:
    pieces = ["word " * 50, "<think>"]
    ids = small_tokenizer.prompt_ids(pieces)
    expected = list(ids)
    ids.clear()
    assert small_tokenizer.prompt_ids(pieces) == expected


@given(st.lists(st.text(max_size=5), max_size=6))
def test_texts_around_a_cut_are_encoded_separately(small_tokenizer: Tokenizer, texts: list[str]) -> None:
    pieces = [piece for text in texts for piece in (text, CUT)]
    assert small_tokenizer.prompt_ids(pieces) == [token for text in texts for token in small_tokenizer.encode(text)]


def test_an_unknown_control_token_is_an_error(small_tokenizer: Tokenizer) -> None:
    with pytest.raises(RenderError, match="no control token '<other>'"):
        Prompt([Segment("<think>", True), Segment("", False), Segment("<other>", True)]).ids(small_tokenizer)


@pytest.mark.parametrize("name", ["kimi_k25", "deepseek_v3"])
def test_text_that_is_not_unicode_is_an_error(published_tokenizer: Callable[[str], Tokenizer], name: str) -> None:
    tokenizer = published_tokenizer(name)
    with pytest.raises(RenderError, match="lone surrogate"):
        tokenizer.encode("\ud800")
    with pytest.raises(RenderError, match="lone surrogate"):
        tokenizer.prompt_ids(["a \udfff b"])


def test_a_panic_of_the_library_becomes_a_render_error(small_tokenizer: Tokenizer) -> None:
    """A panic in a Rust library is a BaseException, which no handler on the way up would catch."""
    panic = type("PanicException", (BaseException,), {})

    def encode(text: str) -> list[int]:
        raise panic("retry-limit-in-match over")

    with pytest.raises(RenderError, match="cannot split"):
        WrappedTokenizer(small_tokenizer, encode).encode("x")


def test_a_bad_tokenizer_file_is_a_checkpoint_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no tokenizer"):
        dovetail.tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="byte-level"):
        dovetail.tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("not json")
    with pytest.raises(CheckpointError, match="cannot be read"):
        dovetail.tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["kimi_k25", "deepseek_v3"])
def test_ids_outside_the_vocabulary_have_no_text(published_tokenizer: Callable[[str], Tokenizer], name: str) -> None:
    tokenizer = published_tokenizer(name)
    ids = [-1, tokenizer.vocab_size, 2**32, -(2**70), *tokenizer.encode("so"), 2**64]
    assert tokenizer.decode(ids) == "so"
    assert dovetail.tokens.Detokenizer(tokenizer).feed(ids) == [Segment("so", False)]
