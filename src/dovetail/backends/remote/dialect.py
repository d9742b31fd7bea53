"""What the three servers do each in its own way, and everybody else need not know."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, Literal, Protocol

import msgspec

from dovetail.backends.remote.counters import Table
from dovetail.backends.remote.errors import UNREADABLE
from dovetail.backends.remote.vocabulary import Vocabulary
from dovetail.completion import Completion, Finish, TokenBatch
from dovetail.errors import EngineError, InvalidRequest
from dovetail.grammar import Grammar

#: Why an answer ended, in words that vLLM and SGLang have in common with us; all others are errors.
FINISHES: Mapping[str, Finish] = {"stop": "stop", "length": "length"}

#: What a server says of how many there were.
Count = Annotated[int, msgspec.Meta(ge=0)]

#: A page of the server: its path, and a body where it is to be a POST -> status and what came back.
Page = Callable[..., Awaitable[tuple[int, bytes]]]


class Limits(msgspec.Struct, frozen=True):
    """What a server says of itself: its model's name, its context, how many tokens it drafts a step (None: it does not
    say), why it takes no grammar, None where it may take one, and as what it takes one."""

    model: str
    context: int
    draft_tokens: int | None
    no_grammar: str | None = None
    grammar: Literal["lark", "structural_tag"] = "structural_tag"


class Drafts(msgspec.Struct, frozen=True):
    """Draft tokens proposed and accepted for one answer, and the accepted by their place among a step's drafts."""

    drafted: int
    accepted: int
    by_position: tuple[int, ...] = ()


class Reader(Protocol):
    """The events of one answer -> token batches.

    Batches have ids, finish and log probabilities; the rest is known after the last event, `drafts` where the server
    tells: how many of the prompt's tokens were `cached`, and what was drafted.
    """

    cached: int
    drafts: Drafts | None

    async def feed(self, data: bytes) -> TokenBatch | None:
        """One event's data. Raises what an error in it says, and one of `UNREADABLE` for what is no event."""


class Dialect(Protocol):
    """How one kind of server is asked and read."""

    name: ClassVar[str]
    path: ClassVar[str]
    table: ClassVar[Table]
    #: Whether connections are kept for the next request.
    keeps: ClassVar[bool]

    async def limits(self, server: str, page: Page) -> Limits:
        """What the server says of itself. Raises `EngineError`."""

    def body(
        self, completion: Completion, vocabulary: Vocabulary, limits: Limits, request_id: str
    ) -> Mapping[str, object]: ...

    def reader(self, completion: Completion, server: str, page: Page) -> Reader: ...


class Model(msgspec.Struct, frozen=True):
    """An entry of /v1/models."""

    id: str
    owned_by: str = ""
    max_model_len: int | None = None
    parent: str | None = None


class Models(msgspec.Struct, frozen=True):
    data: list[Model] = []


async def read(server: str, page: Page, path: str, kind: type[Any]) -> Any:
    """A page of JSON. Raises `EngineError`."""
    status, body = await page(path)
    if status != 200:
        raise EngineError(f"{server}{path} answers with HTTP status {status}")
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE as error:
        raise EngineError(f"{server}{path} is not what it should be: {error}") from error


def structural_tag(grammar: Grammar, vocabulary: Vocabulary) -> str:
    """The grammar as xgrammar's structural tag, in JSON. Raises `InvalidRequest` where it has none."""
    with _constrained():
        return msgspec.json.encode(grammar.structural_tag(vocabulary.control)).decode()


def lark(grammar: Grammar, control: Mapping[str, int]) -> str:
    """The grammar in llguidance's Lark. Raises `InvalidRequest` where it cannot be written."""
    with _constrained():
        return grammar.lark(control)


@contextmanager
def _constrained() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise InvalidRequest(f"this engine cannot constrain an answer: {error}") from error
