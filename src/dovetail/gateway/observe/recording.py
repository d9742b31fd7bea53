"""The recording of a request: what `serve --record` writes to one file, and `dovetail explain` shows.

docs/inspector.md describes every field. `VERSION` changes when a field changes its meaning or goes; a field that is
added does not change it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from dovetail.errors import InvalidRequest
from dovetail.events import Call, CallArguments, Content, Event, Reasoning
from dovetail.gateway.turn.output import GuardKind
from dovetail.gateway.turn.prefix import Prefix

KIND = "dovetail recording"
VERSION = 1
#: A request that is not recorded.
NOTHING = msgspec.Raw(b"null")
#: The most bytes of a recording.
MOST_BYTES = 16 * 1024 * 1024
#: What is left out of a larger one, in this order.
_LEAVE_OUT: tuple[tuple[str, Any], ...] = (
    ("grammar", None),
    ("request", NOTHING),
    ("prompt", None),
    ("steps", ()),
    ("events", ()),
)


class Token(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A token of an answer: its id, the text that it completes, and whether it is a control token.

    The text of a token that ends inside a character is "". `id` is None where texts are redacted.
    """

    id: int | None
    text: str
    control: bool = False


class PromptSegment(msgspec.Struct, frozen=True, gc=False):
    """A control token, or a run of other tokens: its text and the number of tokens."""

    text: str
    control: bool
    tokens: int


class RecordedPrompt(msgspec.Struct, frozen=True):
    """The prompt. `ids` is None where texts are redacted, or for lack of room. `in_reasoning`: the prompt ends inside
    reasoning."""

    tokens: int
    in_reasoning: bool = False
    segments: tuple[PromptSegment, ...] | None = None
    ids: tuple[int, ...] | None = None


class RecordedLanes(msgspec.Struct, frozen=True):
    """Where a prompt leaves the last one of its conversation.

    `shared`: the tokens before that place. `last`: what the last prompt and its answer have there. `this`: what this
    prompt has there.
    """

    shared: tuple[Token, ...]
    last: tuple[Token, ...]
    this: tuple[Token, ...]


class RecordedPicture(msgspec.Struct, frozen=True):
    """A picture that the model saw. `sha256`: the digest of its file, which has `size` bytes. `data`: the file, if
    files are recorded and there is room."""

    sha256: str
    media_type: str
    size: int
    data: bytes | None = None


class RecordedRepair(msgspec.Struct, frozen=True):
    """A repair of the history. `new`: no earlier turn of the conversation had it."""

    kind: str
    where: str
    detail: str
    new: bool


class RecordedCall(msgspec.Struct, frozen=True):
    """The check of one call. `tool` and `fault` as in `ValidatedCall`."""

    tool: str | None
    fault: str | None


class RecordedLogprob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The log probability of a token, and the likeliest tokens at its place as pairs of text and log probability."""

    logprob: float
    top: tuple[tuple[str, float], ...] = ()


#: What refused the first draft that did not stand. "end": nothing, because the answer ended before it.
RefusedBy = Literal["model", "grammar", "end"]


class RecordedStep(msgspec.Struct, frozen=True):
    """A step of one choice. `at` is in seconds since the request arrived.

    The first `accepted` of `tokens` are drafts that stood. `drafted`, `forced`, `cached` as in `TokenBatch`.
    `refused`: the drafts that did not stand, in order; None if the engine does not report them. `refused_by`: what
    refused the first of them; the others continue it. `allowed`: for each of `tokens`, how many tokens the grammar
    allowed in its place (None: not known); None without a grammar. `logprobs`: one for each of `tokens`, if the request
    asks for them. `guards`, `inserted`: as in the step of a turn.
    """

    choice: int
    at: float
    tokens: tuple[Token, ...]
    drafted: int | None
    accepted: int
    forced: int
    cached: int | None
    events: tuple[Event, ...]
    checks: tuple[RecordedCall, ...] = ()
    finish: str | None = None
    stop_string: str | None = None
    refused: tuple[Token, ...] | None = None
    refused_by: RefusedBy | None = None
    allowed: tuple[int | None, ...] | None = None
    logprobs: tuple[RecordedLogprob, ...] | None = None
    guards: tuple[GuardKind, ...] = ()
    inserted: int = 0


class RecordedMessage(msgspec.Struct, frozen=True):
    """The message of one choice."""

    choice: int
    content: str
    reasoning: str
    calls: tuple[Call, ...]


class RecordedOptions(msgspec.Struct, frozen=True):
    """How the answer was asked for, after the defaults of the API and of the server.

    `max_tokens`: the most new tokens. `unenforced`: the fields of the request that no grammar enforces. `most_drafts`:
    how many tokens the engine drafts in a step; None if it does not report single steps.
    """

    max_tokens: int
    sampling: dict[str, Any]
    stop: tuple[str, ...]
    tools: int
    structured: bool
    add_generation_prompt: bool
    continue_final_message: bool
    unenforced: tuple[str, ...]
    omitted: tuple[str, ...]
    most_drafts: int | None


class RecordedTokenizer(msgspec.Struct, frozen=True):
    """The tokenizer of a recording's ids. `digest`: of the bytes of all tokens, and of the control tokens, as
    hexadecimal digits."""

    digest: str
    vocab_size: int


class RecordedError(msgspec.Struct, frozen=True):
    """What ended the request early: the type of the error, and its message."""

    type: str
    message: str


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """One request from its body to its messages.

    Fields are None where the request did not come that far. `events` and `message` belong to the first choice: what
    the reader told in all steps (see `joined`), and the first of `messages`. `left_out` names what did not fit.
    `grammar` is in llguidance's Lark dialect. `format` is the name of the model's format. `times` are in seconds:
    points since the request arrived, and `stages`. `pictures`: what the model saw, in the order of the prompt; in
    `request`, the digest of its file stands for each. `prefix`: how the prompt goes on from the last one of its
    conversation, where the server remembers it; `lanes`: where it leaves that one, if it does.
    """

    kind: str = KIND
    version: int = VERSION
    id: str
    request_id: str
    api: str
    model: str | None
    began: str
    redacted: bool = False
    request: msgspec.Raw = NOTHING
    repairs: tuple[RecordedRepair, ...] = ()
    options: RecordedOptions | None = None
    prompt: RecordedPrompt | None = None
    grammar: str | None = None
    steps: tuple[RecordedStep, ...] = ()
    events: tuple[Event, ...] = ()
    message: RecordedMessage | None = None
    messages: tuple[RecordedMessage, ...] = ()
    error: RecordedError | None = None
    times: dict[str, float] = {}
    stages: dict[str, float] = {}
    left_out: tuple[str, ...] = ()
    tokenizer: RecordedTokenizer | None = None
    format: str | None = None
    pictures: tuple[RecordedPicture, ...] = ()
    prefix: Prefix | None = None
    lanes: RecordedLanes | None = None


def joined(events: Iterable[Event]) -> tuple[Event, ...]:
    """`events` with the pieces of each text in one event."""
    whole: list[Event] = []
    pieces: list[str] = []
    for event in events:
        if not whole or _kind(event) is None or _kind(event) != _kind(whole[-1]):
            _close(whole, pieces)
            whole.append(event)
        match event:
            case Content(text) | Reasoning(text) | CallArguments(_, text):
                pieces.append(text)
            case _:
                pass
    _close(whole, pieces)
    return tuple(whole)


def _kind(event: Event) -> tuple[type[Event], int] | None:
    """Events of equal kinds are pieces of one text; None: the event is no text."""
    match event:
        case Content() | Reasoning():
            return type(event), 0
        case CallArguments(index):
            return CallArguments, index
        case _:
            return None


def _close(whole: list[Event], pieces: list[str]) -> None:
    """Put the pieces of a text into the event with the first of them."""
    if len(pieces) > 1:
        field = "fragment" if isinstance(whole[-1], CallArguments) else "text"
        whole[-1] = msgspec.structs.replace(whole[-1], **{field: "".join(pieces)})
    pieces.clear()


def encode(recording: Recording, most_bytes: int) -> bytes:
    """`recording` as JSON of at most `most_bytes`, without what does not fit."""
    data = msgspec.json.encode(recording)
    digests = tuple(msgspec.structs.replace(picture, data=None) for picture in recording.pictures)
    for field, nothing in (("pictures", digests), *_LEAVE_OUT) if digests != recording.pictures else _LEAVE_OUT:
        if len(data) <= most_bytes:
            return data
        left_out = (*recording.left_out, field)
        recording = msgspec.structs.replace(recording, left_out=left_out, **{field: nothing})
        data = msgspec.json.encode(recording)
    return data


class _Head(msgspec.Struct):
    kind: str = ""
    version: int = 0


def decode(data: bytes, name: str) -> Recording:
    """The recording in `data`. Raises `InvalidRequest` for a file `name` that is cut off, of another version, or none.

    Fields that it does not know are ignored.
    """
    try:
        head = msgspec.json.decode(data, type=_Head)
        if head.kind == KIND and head.version == VERSION:
            return msgspec.json.decode(data, type=Recording)
    except msgspec.ValidationError as error:
        raise InvalidRequest(f"{name} is no recording of `serve --record`: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{name} is no whole JSON file, perhaps cut off: {error}") from error
    except RecursionError as error:
        raise InvalidRequest(f"{name} is no recording of `serve --record`: it is nested too deeply") from error
    if head.kind != KIND:
        raise InvalidRequest(f'{name} is no recording of `serve --record`: its `kind` is not "{KIND}"')
    raise InvalidRequest(
        f"{name} is a recording of version {head.version}, and this is Dovetail for version {VERSION}: read it with "
        "the Dovetail that wrote it"
    )
