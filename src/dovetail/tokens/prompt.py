"""`Prompt`: a prompt before tokenizing, as texts and the control tokens between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from dovetail.tokens.tokenizer import Tokenizer


class Segment(NamedTuple):
    """A piece of a prompt or an output: the literal of a control token, or ordinary text."""

    text: str
    control: bool


class TokenSpan(str):
    """A text of a prompt whose token ids are given, so that it is not encoded.

    `ids`: its tokens, none of them a control token. They may spell the text otherwise than the tokenizer would, and
    begin or end inside a character.
    """

    __slots__ = ("ids",)
    ids: tuple[int, ...]

    def __new__(cls, text: str, ids: tuple[int, ...]) -> TokenSpan:
        span = super().__new__(cls, text)
        span.ids = ids
        return span


class PicturePlace(str):
    """A control token of a prompt that stands for a picture.

    `part`: the part of the message that is the picture.
    """

    __slots__ = ("part",)
    part: Mapping[str, Any]

    def __new__(cls, control: str, part: Mapping[str, Any]) -> PicturePlace:
        place = super().__new__(cls, control)
        place.part = part
        return place


#: Takes the place of a control token where there is none, to encode the texts on both sides separately.
CUT = ""


class Prompt:
    """What a model is shown, before tokenizing.

    `pieces`: alternately a text, which may be empty or a `TokenSpan`, and the control token (or `CUT`) after it.
    `text`: the whole prompt as one string with the literals of the control tokens.
    """

    __slots__ = ("pieces", "text")

    def __init__(self, segments: Iterable[Segment]) -> None:
        pieces: list[str] = []
        texts: list[str] = []
        for text, control in segments:
            if control:
                pieces += ("".join(texts), text)
                texts.clear()
            else:
                texts.append(text)
        self._set([*pieces, "".join(texts)])

    @classmethod
    def alternating(cls, pieces: list[str]) -> Prompt:
        """The prompt with these `pieces`. It keeps the list itself. Raises `TypeError` if a piece is not a string."""
        prompt = cls.__new__(cls)
        prompt._set(pieces)
        return prompt

    def _set(self, pieces: list[str]) -> None:
        if len(pieces) % 2 and not pieces[-1]:
            pieces.pop()
        self.pieces = pieces
        self.text = "".join(pieces)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The pieces as segments, without empty ones."""
        return tuple(Segment(piece, bool(i % 2)) for i, piece in enumerate(self.pieces) if piece)

    @property
    def pictures(self) -> list[Mapping[str, Any]]:
        """The parts of the messages that are pictures, in the order of their places."""
        return [piece.part for piece in self.pieces[1::2] if isinstance(piece, PicturePlace)]

    def ids(self, tokenizer: Tokenizer) -> list[int]:
        """The token ids.

        Raises `RenderError` for a control token that the tokenizer lacks and for text that is not valid Unicode.
        """
        return tokenizer.prompt_ids(self.pieces)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Prompt) and self.pieces == other.pieces

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"Prompt({self.text!r})"
