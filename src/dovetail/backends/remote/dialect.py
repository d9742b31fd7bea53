"""The interface to one kind of server: vLLM, SGLang or llama.cpp each implement `Dialect` and `Reader`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, Protocol

import msgspec

from dovetail.backends.remote.counters import Table
from dovetail.backends.remote.errors import UNREADABLE
from dovetail.backends.remote.vocabulary import Vocabulary
from dovetail.completion import Completion, Finish, TokenBatch
from dovetail.errors import EngineError, InvalidRequest
from dovetail.grammar import Choice, Concat, FreeText, Grammar, Loosened, Node, VisibleText
from dovetail.grammar.grammar import Writer

#: The finish reasons of vLLM and SGLang that are no errors.
FINISHES: Mapping[str, Finish] = {"stop": "stop", "length": "length"}

#: A count that a server reports.
Count = Annotated[int, msgspec.Meta(ge=0)]

#: Requests a page of the server: (path, body for a POST) -> (status, content).
Page = Callable[..., Awaitable[tuple[int, bytes]]]


class Limits(msgspec.Struct, frozen=True):
    """What a server reports about itself.

    `model`: its name. `draft_tokens`: tokens drafted in a step, None if unknown. `no_grammar`: why it accepts no
    grammar, None if it accepts one. `grammar`: the notation in which it accepts a grammar. `bounds_reasoning`: whether
    it keeps to a budget of reasoning. `pictures`: whether it takes them.
    """

    model: str
    context: int
    draft_tokens: int | None
    no_grammar: str | None = None
    grammar: Writer = "structural_tag"
    bounds_reasoning: bool = False
    pictures: bool = False


class Drafts(msgspec.Struct, frozen=True):
    """Draft tokens of one answer: how many were proposed and accepted, and how many accepted at each position."""

    drafted: int
    accepted: int
    by_position: tuple[int, ...] = ()


class Reader(Protocol):
    """Turns the events of one answer into token batches with ids, finish reason and log probabilities.

    After the last event, `cached` is how many of the prompt's tokens were in the server's cache, and `drafts` counts
    the draft tokens, if the server reports them.
    """

    cached: int
    drafts: Drafts | None

    async def feed(self, data: bytes) -> TokenBatch | None:
        """Read one event's data. Raises the error that it contains, or one of `UNREADABLE`."""


class Dialect(Protocol):
    """The requests and answers of one kind of server."""

    name: ClassVar[str]
    path: ClassVar[str]
    table: ClassVar[Table]
    #: Whether a connection can be used for several requests.
    keeps: ClassVar[bool]
    #: Whether the server reports the log probabilities of prompts.
    scores_prompts: ClassVar[bool]
    #: Whether a request can set the least number of tokens before the end.
    delays_ends: ClassVar[bool]
    #: Whether the server keeps cached prompts with different salts apart.
    salts_cache: ClassVar[bool]
    #: Whether the server takes requests with a priority.
    priorities: ClassVar[bool]
    #: Whether the server may have LoRA adapters, which are models of their own there.
    adapters: ClassVar[bool]
    #: Whether the server may read the text of a prompt with pictures again, in place of its ids (`sglang_pictures`).
    rereads: ClassVar[bool]

    async def limits(self, server: str, page: Page) -> Limits:
        """Ask the server for its limits. Raises `EngineError`."""

    def path_of(self, completion: Completion) -> str:
        """Where the request for `completion` goes."""

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
    """Read a page of JSON as `kind`. Raises `EngineError`."""
    status, body = await page(path)
    if status != 200:
        raise EngineError(f"{server}{path} answers with HTTP status {status}")
    try:
        return msgspec.json.decode(body, type=kind)
    except UNREADABLE as error:
        raise EngineError(f"{server}{path} cannot be read: {error}") from error


def least_tokens(completion: Completion) -> int:
    """How many tokens a server that can delay the end of an answer has to generate before it.

    Raises `InvalidRequest` if a grammar may end the answer before: servers apply both, so that no token is left.
    """
    least = completion.max_tokens if completion.ignore_eos else completion.min_tokens
    if least and completion.grammar is not None and not _goes_on(completion.grammar.root):
        field = "ignore_eos" if completion.ignore_eos else "min_tokens"
        raise InvalidRequest(f"this engine does not support {field} with tools or a response_format", param=field)
    return least


def stop_token_ids(completion: Completion, vocabulary: Vocabulary) -> tuple[int, ...]:
    """The tokens at which a server ends an answer, and which it does not choose before the least number of tokens.

    With `ignore_eos`, only the model's own: the caller ends the stream at the others.
    """
    return vocabulary.eos_ids if completion.ignore_eos else (*vocabulary.eos_ids, *completion.stop_token_ids)


def _goes_on(node: Node) -> bool:
    """Whether `node` may go on after any text that it derives."""
    match node:
        case FreeText() | VisibleText(()):
            return True
        case Concat(items):
            return bool(items) and _goes_on(items[-1])
        case Choice(options):
            return all(map(_goes_on, options))
        case Loosened(item):
            return _goes_on(item)
    return False


def structural_tag(grammar: Grammar, vocabulary: Vocabulary) -> str:
    """The grammar as xgrammar's structural tag, in JSON. Raises `InvalidRequest` if it cannot be written."""
    with _constrained():
        return msgspec.json.encode(grammar.structural_tag(vocabulary.control, vocabulary.blanks)).decode()


def lark(grammar: Grammar, control: Mapping[str, int]) -> str:
    """The grammar in llguidance's Lark. Raises `InvalidRequest` if it cannot be written."""
    with _constrained():
        return grammar.lark(control)


def gbnf(grammar: Grammar, control: Mapping[str, int], ends: Iterable[str]) -> str:
    """The grammar in llama.cpp's GBNF. Raises `InvalidRequest` if it cannot be written."""
    with _constrained():
        return grammar.gbnf(control, ends)


@contextmanager
def _constrained() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise InvalidRequest(f"this engine cannot constrain an answer: {error}") from error
