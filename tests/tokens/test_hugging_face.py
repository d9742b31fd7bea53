"""Ids and texts of a tokenizer.json equal those of the library, and text is never a control token."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library

import dovetail
from dovetail.errors import CheckpointError
from dovetail.tokens import Detokenizer, Prompt, Segment, Tokenizer
from tests.tokens import sentencepiece

Pair = tuple[Tokenizer, Library]

_SCRAPS = [
    "Hello",
    " ",
    "  ",
    "   ",
    "\n",
    "\n\n",
    "é",
    "fox",
    "▁",
    " <b>",
    "中",
    "\u0301",
    "x",
    "\ufdd0",
    "\ufdd1",
    "<",
    "0x41",
    ">",
    "[",
]
texts = st.lists(st.sampled_from(_SCRAPS) | st.characters(codec="utf-8"), max_size=5).map("".join)


@pytest.fixture(scope="module", params=list(sentencepiece.KINDS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(json.dumps(sentencepiece.KINDS[request.param]()))
    return dovetail.tokenizer(path), Library.from_file(str(path))


def prompts(tokenizer: Tokenizer) -> st.SearchStrategy[Prompt]:
    control = st.sampled_from(sorted(markers(tokenizer))).map(lambda literal: Segment(literal, True))
    return st.lists(control | texts.map(lambda text: Segment(text, False)), max_size=8).map(Prompt)


def markers(tokenizer: Tokenizer) -> dict[str, int]:
    """All control tokens except the one for unknown text."""
    return {literal: token for literal, token in tokenizer.control.items() if literal != "<unk>"}


def clean(tokenizer: Tokenizer, text: str) -> bool:
    return not any(literal in text for literal in tokenizer.control)


def spelled(tokenizer: Tokenizer, ids: list[int]) -> str:
    return b"".join(map(tokenizer.token_bytes, ids)).decode()


@given(st.data())
def test_ids_of_a_prompt_are_those_of_its_whole_text(pair: Pair, data: st.DataObject) -> None:
    ours, library = pair
    prompt = data.draw(prompts(ours))
    assume(all(clean(ours, segment.text) for segment in prompt.segments if not segment.control))
    expected = library.encode(prompt.text, add_special_tokens=False).ids
    # With `normalized`, the library finds a control token only after a space.
    shown = [token for token in expected if token in markers(ours).values()]
    assume(shown == [ours.control[literal] for literal in prompt.pieces[1::2]])
    assert prompt.ids(ours) == expected
    assert prompt.ids(ours) == expected  # from the cache


@given(texts)
def test_a_text_alone_has_the_ids_of_the_librarys_plain_call(pair: Pair, text: str) -> None:
    ours, library = pair
    assume(clean(ours, text))
    assert Prompt([Segment(text, False)]).ids(ours) == library.encode(text, add_special_tokens=False).ids


@given(st.data())
def test_text_is_spelled_and_is_never_a_control_token(pair: Pair, data: st.DataObject) -> None:
    ours, _ = pair
    literals = st.sampled_from(sorted(ours.control))
    text = data.draw(st.lists(literals | texts, max_size=6).map("".join))
    ids = ours.encode(text)
    assert not set(ids) & set(markers(ours).values())
    around = sorted(markers(ours))[0]
    for pieces in (["", around, text, around], [text]):
        shown = [token for token in ours.prompt_ids(pieces) if token in markers(ours).values()]
        assert shown == [ours.control[literal] for literal in pieces[1::2]]
    if ours.control.get("<unk>") not in ids:
        alike = {text, unicodedata.normalize("NFC", text), unicodedata.normalize("NFKC", text)}  # as normalizers do
        assert spelled(ours, ids).replace("▁", " ") in {one.replace("▁", " ") for one in alike}


@given(st.data())
def test_decoding_is_the_librarys(pair: Pair, data: st.DataObject) -> None:
    ours, library = pair
    text = data.draw(texts)
    assume(clean(ours, text))
    ids = library.encode(text, add_special_tokens=False).ids
    assert ours.decode(ids) == library.decode(ids, skip_special_tokens=False)


@given(st.data())
def test_streaming_goes_on_where_the_prompt_ended(pair: Pair, data: st.DataObject) -> None:
    """No space is removed, and no character comes in two parts."""
    ours, _ = pair
    text = data.draw(texts)
    ids = ours.prompt_ids([text])
    detokenizer = Detokenizer(ours)
    steps = ["".join(segment.text for segment in detokenizer.feed([token])) for token in ids]
    assert "".join(steps) == spelled(ours, ids)
    assert not detokenizer.finish()


def test_an_invalid_byte_does_not_stop_the_stream(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(sentencepiece.llama2()))
    tokenizer = dovetail.tokenizer(tmp_path)
    byte = {tokenizer.token_bytes(token): token for token in range(tokenizer.vocab_size)}
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.feed([byte[b"\xc3"]]) == []
    assert detokenizer.feed([byte[b"\xa9"]]) == [Segment("é", False)]
    assert detokenizer.feed([byte[b"\xff"]]) == [Segment("\ufffd", False)]
    assert detokenizer.feed([byte[b"\xe4"]]) == [] and detokenizer.finish() == [Segment("\ufffd", False)]


def test_text_never_becomes_a_control_token_with_the_best_score(tmp_path: Path) -> None:
    """In Unigram models, a control token's score is higher than that of every real piece."""
    spec = sentencepiece.unigram("always")
    library = Library.from_str(json.dumps(spec | {"added_tokens": []}))
    assert library.token_to_id("<s>") in library.encode("<s>").ids
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    tokenizer = dovetail.tokenizer(tmp_path)
    assert tokenizer.control["<s>"] not in tokenizer.encode("a <s> b")


def test_no_merge_makes_a_control_token(tmp_path: Path) -> None:
    spec = sentencepiece.llama2()
    model = spec["model"]
    model["vocab"] |= {"<": model["vocab"]["<"], "s>": len(model["vocab"])}
    for as_text in (False, True):
        merges = [["s", ">"], ["<", "s>"], ["</s>", "s"]]
        model["vocab"]["</s>s"] = max(model["vocab"].values()) + 1
        model["merges"] = [" ".join(merge) for merge in merges] if as_text else merges
        (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
        tokenizer = dovetail.tokenizer(tmp_path)
        assert (
            Library.from_str(json.dumps(spec | {"added_tokens": []})).encode("<s>").ids[-1] == tokenizer.control["<s>"]
        )
        ids = tokenizer.encode("<s>")
        assert tokenizer.control["<s>"] not in ids and tokenizer.decode(ids) == "<s>"


def test_added_tokens_of_whitespace_are_text(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(sentencepiece.gemma()))
    tokenizer = dovetail.tokenizer(tmp_path)
    assert tokenizer.control.keys() == {"<unk>", "<s>", "</s>", "<start_of_turn>"}
    assert tokenizer.decode(tokenizer.encode("a" + "\n" * 9)) == "a" + "\n" * 9
    assert len(tokenizer.encode("\n" * 9)) == 1


def test_truncation_and_padding_of_the_file_are_ignored(tmp_path: Path) -> None:
    library = Library.from_str(json.dumps(sentencepiece.llama2()))
    library.enable_truncation(2)
    library.enable_padding(length=50)
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = dovetail.tokenizer(tmp_path)
    assert tokenizer.decode(tokenizer.encode("Hello world, the quick")) == "Hello world, the quick"


def _decoder(**decoder: Any) -> Callable[[dict[str, Any]], None]:
    return lambda spec: spec.update(decoder=decoder)


def _model(kind: str) -> Callable[[dict[str, Any]], None]:
    return lambda spec: spec["model"].update(type=kind)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_model("WordPiece"), "WordPiece"),
        (_model("WordLevel"), "WordLevel"),
        (_decoder(type="WordPiece", prefix="##", cleanup=True), "WordPiece"),
        (_decoder(type="BPEDecoder", suffix="</w>"), "BPEDecoder"),
        (_decoder(type="CTC"), "CTC"),
        (_decoder(type="Replace", pattern={"Regex": "▁+"}, content=" "), "Replace"),
        (lambda spec: spec["decoder"]["decoders"][-1].update(stop=1), "Strip"),
        (lambda spec: spec["decoder"]["decoders"].reverse(), "Strip Fuse"),
        (lambda spec: spec.update(decoder=None), "none"),
    ],
)
def test_other_kinds_are_refused_by_name(tmp_path: Path, change: Callable[[dict[str, Any]], None], named: str) -> None:
    spec = sentencepiece.llama2()
    change(spec)
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    with pytest.raises(CheckpointError, match=f"not supported.*{named}"):
        dovetail.tokenizer(tmp_path)
