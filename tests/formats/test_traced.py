"""`Traced` behaves like a string and knows which of its characters the template wrote."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.formats.derived.traced import Mixture, Traced, alternating, joined

texts = st.text(alphabet="ab <|>\n", max_size=8)
runs = st.lists(st.tuples(texts, st.booleans()), max_size=5)


def mixture(pieces: list[tuple[str, bool]]) -> tuple[Traced, str]:
    """A mixture, and its origins: for each character "d" (data of the request) or "t" (template)."""
    made = joined(Traced(text) if ours else text for text, ours in pieces)
    return made, "".join(("d" if ours else "t") * len(text) for text, ours in pieces)


def origins(text: str) -> str:
    if isinstance(text, Mixture):
        return "".join(map(origins, text.pieces))
    return ("d" if isinstance(text, Traced) else "t") * len(text)


def cut(start: int, stop: int) -> Callable[[Any], Any]:
    return lambda text: text[start:stop]


@given(runs, st.integers(-6, 20), st.integers(-6, 20))
def test_slices(pieces: list[tuple[str, bool]], start: int, stop: int) -> None:
    text, origin = mixture(pieces)
    plain = str.__str__("".join(piece for piece, _ in pieces))
    assert (text, origins(text)) == (plain, origin)
    assert (text[start:stop], origins(text[start:stop])) == (plain[start:stop], origin[start:stop])
    assert [origins(c) for c in text] == list(origin)
    for method in ("strip", "lstrip", "rstrip"):
        for chars in (None, "a ", "<"):
            stripped = getattr(text, method)(chars)
            assert stripped == getattr(plain, method)(chars)
            left = len(plain) - len(plain.lstrip(chars)) if method != "rstrip" else 0
            assert origins(stripped) == origin[left : left + len(stripped)]


def test_slices_with_a_step_and_characters_belong_to_the_request() -> None:
    text = Traced("abcd")[::-2]
    assert (text, origins(text)) == ("db", "dd")
    assert (text[1], origins(text[1]), origins(text[-1])) == ("b", "d", "d")


@given(runs, st.sampled_from((None, "a", "<|", "aa", "\n", " ")), st.integers(-1, 3))
def test_splits(pieces: list[tuple[str, bool]], separator: str | None, most: int) -> None:
    text, origin = mixture(pieces)
    plain = "".join(piece for piece, _ in pieces)
    results = [(text.split(separator, most), plain.split(separator, most))]
    results.append((text.rsplit(separator, most), plain.rsplit(separator, most)))
    results += [(text.splitlines(keep), plain.splitlines(keep)) for keep in (True, False)]
    if separator:
        results.append((list(text.partition(separator)), list(plain.partition(separator))))
        results.append((list(text.rpartition(separator)), list(plain.rpartition(separator))))
        assert "".join(origins(p) for p in text.partition(separator)) == origin
        replaced = text.replace(separator, "[x]", most)
        assert replaced == plain.replace(separator, "[x]", most)
        assert origins(replaced) == "ttt".join(map(origins, text.split(separator, most)))
    for traced, expected in results:
        assert traced == expected
        at = 0
        for piece in traced:  # the origins of each piece are those of a possible place in the text, in order
            places = [m.start() for m in re.finditer(f"(?={re.escape(piece)})", plain) if m.start() >= at]
            assert any(origin[p : p + len(piece)] == origins(piece) for p in places)


@given(texts, st.sampled_from("upper lower title capitalize swapcase casefold".split()))
def test_results_of_other_methods_are_the_requests(text: str, method: str) -> None:
    mixed = joined(("ab", Traced(text)))
    result = getattr(mixed, method)()
    assert result == getattr("ab" + text, method)()
    assert set(origins(result)) <= {"d"}


def test_sums_and_joins() -> None:
    data = Traced("<|x|>")
    assert origins("ab" + data + "c") == "ttdddddt"
    assert origins(Traced("d").join(["a", data])) == "tdddddd"
    assert origins(data.removeprefix("<|")) == "ddd"
    assert origins(data.removesuffix("|>")) == "ddd"
    assert origins(data * 2) == "d" * 10
    assert origins("%s" % data) == "d" * 5  # noqa: UP031  # templates do
    assert str(data) is data
    assert data.replace("", "-") == "-<-|-x-|->-"
    assert data[::-1] == ">|x|<"
    with pytest.raises(TypeError):
        data["x"]  # type: ignore[index]
    with pytest.raises(IndexError):
        data[9]


def test_a_sum_of_very_many_parts_keeps_their_origins() -> None:
    text, origin = joined(("",)), ""
    for i in range(20_000):
        text, origin = (text + Traced("d"), origin + "d") if i % 3 else ("t" + text + "t", f"t{origin}t")
    assert origins(text) == origin
    assert origins(text[5:-5] + "t") == origin[5:-5] + "t"
    nothing = joined(("", Traced()))
    for _ in range(100):
        nothing += nothing
    assert (nothing, isinstance(nothing, Mixture)) == ("", True)


def test_only_the_template_writes_control_tokens() -> None:
    text = joined(("<|x|>", Traced("<|x|>"), "<", Traced("|x|>"), "<|", "x|>"))
    assert alternating(text, re.compile(r"(<\|x\|>)")) == ["", "<|x|>", "<|x|><|x|>", "<|x|>", ""]
    assert alternating("a<|x|>b", re.compile(r"(<\|x\|>)")) == ["a", "<|x|>", "b"]
    assert alternating(Traced("a<|x|>b"), re.compile(r"(<\|x\|>)")) == ["a<|x|>b"]


@given(runs)
def test_splitting_at_control_tokens_keeps_the_text(pieces: list[tuple[str, bool]]) -> None:
    text, origin = mixture(pieces)
    cut = alternating(text, re.compile("(<|b)"))
    assert "".join(cut) == text
    at = 0
    for i, piece in enumerate(cut):
        template = "".join(c if o == "t" else "." for c, o in zip(piece, origin[at:], strict=False))
        assert (piece in "<b" and template == piece) if i % 2 else not set(template) & {"<", "b"}
        at += len(piece)
