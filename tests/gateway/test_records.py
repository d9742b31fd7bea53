"""Records of answers: what is sealed is opened, and nothing else is."""

from __future__ import annotations

import base64
import hashlib
import hmac
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.gateway.records import record as records
from dovetail.gateway.records.record import Record, RecordRefused, Sealer, model_digest
from dovetail.tokens import Tokenizer

KEY, MODEL, VOCAB = b"k" * 32, b"m" * 8, 163_842
SEALER = Sealer(KEY, MODEL, VOCAB)
TOKENS = st.lists(st.integers(0, VOCAB - 1), max_size=60).map(tuple)
DIGESTS = st.binary(min_size=8, max_size=8)
RECORDS = st.builds(
    Record,
    ids=TOKENS,
    ended=st.booleans(),
    open=st.sampled_from(("content", "reasoning", "markup")),
    opening=TOKENS,
    message=DIGESTS,
    reasoning=DIGESTS | st.just(b""),
    pictures=DIGESTS | st.just(b""),
)
ONE = Record((5, 70_000, 5), True, "content", (1, 2), b"12345678", b"")


@given(RECORDS)
def test_a_sealed_record_opens_as_it_was(record: Record) -> None:
    text = SEALER.seal(record)
    assert text.isascii() and text.isprintable()
    assert SEALER.open(text) == record


def refusal(text: str, sealer: Sealer = SEALER) -> str:
    with pytest.raises(RecordRefused) as refused:
        sealer.open(text)
    return refused.value.kind


@given(RECORDS, st.data())
def test_a_changed_record_is_refused(record: Record, data: st.DataObject) -> None:
    sealed = bytearray(base64.b64decode(SEALER.seal(record)))
    change = data.draw(st.sampled_from(("flip a bit", "cut the end", "cut the start", "append", "drop inside")))
    at = data.draw(st.integers(0, len(sealed) - 1))
    if change == "flip a bit":
        sealed[at] ^= 1 << data.draw(st.integers(0, 7))
    elif change == "append":
        sealed += data.draw(st.binary(min_size=1, max_size=9))
    elif change == "cut the start":
        del sealed[: at + 1]
    else:
        del sealed[at : None if change == "cut the end" else at + 1]
    assert refusal(base64.b64encode(sealed).decode()) == "record_invalid"


@given(st.text(max_size=80) | st.binary(max_size=80).map(lambda raw: base64.b64encode(raw).decode()))
def test_any_other_text_is_refused(text: str) -> None:
    assert refusal(text) == "record_invalid"


def test_another_key_and_another_model_are_told_apart() -> None:
    text = SEALER.seal(ONE)
    assert refusal(text, Sealer(b"x" * 32, MODEL, VOCAB)) == "record_invalid"
    assert refusal(text, Sealer(KEY, b"n" * 8, VOCAB)) == "record_foreign"
    assert refusal(text, Sealer(KEY, MODEL, 70_000)) == "record_invalid"  # a token that the vocabulary lacks
    assert Sealer(KEY, MODEL, 70_001).open(text) == ONE


def signed(body: bytes) -> str:
    """`body` with the tag that this key makes, as code of another version could have made it."""
    return base64.b64encode(body + hmac.digest(KEY, body, hashlib.sha256)[:16]).decode()


def test_authentic_texts_of_another_layout_are_refused() -> None:
    head = b"\x01" + MODEL + b"\x00" + b"12345678"
    deflate = zlib.compressobj(wbits=-15)
    three_openings_of_one = deflate.compress(b"\x03\x01") + deflate.flush()
    assert refusal(signed(b"\x02" + SEALER.seal(ONE).encode())) == "record_invalid"
    assert refusal(signed(head + b"not deflated")) == "record_invalid"
    assert refusal(signed(head + three_openings_of_one[:-1])) == "record_invalid"
    assert refusal(signed(head + three_openings_of_one)) == "record_invalid"
    assert refusal(signed(head)) == "record_invalid"
    assert refusal(signed(b"\x01")) == "record_invalid"


def test_sizes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MAX_TOKENS", 1000)
    monkeypatch.setattr(records, "_MAX_LENGTH", 4400)
    most = Record(tuple(range(70_000, 70_999)), True, "markup", (), b"12345678", b"12345678")
    assert SEALER.open(SEALER.seal(most)) == most
    assert SEALER.seal(Record((*most.ids, 1), True, "markup", (), b"12345678", b"")) == ""
    assert refusal("A" * 4401) == "record_invalid"
    # A small text that inflates to more than any record.
    deflate = zlib.compressobj(wbits=-15)
    bomb = deflate.compress(b"\x00" * 1_000_000) + deflate.flush()
    assert refusal(signed(b"\x01" + MODEL + b"\x00" + b"12345678" + bomb)) == "record_invalid"


def test_the_digest_of_a_model_depends_on_format_and_vocabulary(
    small_tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = model_digest("kimi_k25", small_tokenizer)
    assert len(digest) == 8
    assert model_digest("kimi_k25", small_tokenizer) == digest != model_digest("kimi_k2", small_tokenizer)
    spelled = small_tokenizer.token_bytes
    monkeypatch.setattr(small_tokenizer, "token_bytes", lambda token: b"!" if token == 3 else spelled(token))
    assert model_digest("kimi_k25", small_tokenizer) != digest
