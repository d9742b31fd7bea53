"""One server behind HTTP: what it is, whether it is well, and completions on it."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress

import msgspec

from dovetail.backends.remote.counters import labelled, translated
from dovetail.backends.remote.dialect import Dialect, Drafts, Limits, Models, Reader
from dovetail.backends.remote.faults import UNREADABLE, ServerLost, refusal
from dovetail.backends.remote.http import Http, split_address
from dovetail.backends.remote.llama_cpp import LlamaCpp
from dovetail.backends.remote.sglang import SGLang
from dovetail.backends.remote.vllm import VLLM
from dovetail.backends.remote.vocabulary import Vocabulary
from dovetail.completion import Completion, EngineInfo, TokenBatch
from dovetail.errors import DovetailError, EngineBusy, EngineError, InvalidRequest

_log = logging.getLogger(__name__)

#: How long to wait for what follows the last tokens: the usage, and the stream's end.
_REST_S = 1.0
_METRICS_S = 2.0
#: Until a server that is well, and not to be used, is looked at again.
_WRONG_S = 10.0
#: Events without a token, one after another, after which none will come.
_MOST_EMPTY = 4096
#: Who /v1/models says its models are owned by.
_OWNERS: dict[str, Dialect] = {"vllm": VLLM(), "sglang": SGLang(), "llamacpp": LlamaCpp()}


class Server:
    """`address` is an engine's URL, `key` what it wants as bearer token; `silence_s` and `path` as in `Http`.

    `check` is done whenever the server is found well, before it is `up`; it raises `EngineError` for one that is not to
    be used. What it is (vLLM, SGLang, llama.cpp) it is asked. Stop strings are not sent: they are matched in text,
    of which each has a detokenizer of its own, and closing the completion ends it as well.
    """

    def __init__(
        self,
        address: str,
        vocabulary: Vocabulary,
        *,
        key: str | None = None,
        silence_s: float = 30.0,
        path: str | None = None,
        check: Callable[[Server], Awaitable[None]] | None = None,
    ) -> None:
        self._base, self.name = split_address(address)
        self.vocabulary = vocabulary
        self._key, self._silence_s, self._path = key, silence_s, path
        self._check = check
        self._http_or_none: Http | None = None
        self._dialect: Dialect | None = None
        self.limits: Limits | None = None
        #: Requests are admitted by this context: with a smaller one it is left out.
        self.least_context = 0
        self.up = False
        self._left_out, self._again = "", 0.0
        self.running = self.sent = 0
        self._numbers = itertools.count()
        self._polled: dict[str, float] = {}
        self._drafts = Drafts(0, 0)

    async def open(self) -> None:
        """Find out what it is. Raises `ServerLost` where nobody answers, `EngineError` for what is no engine."""
        if self._http_or_none is None:
            self._http_or_none = Http(self._base, self.name, self._key, self._silence_s, self._path)
        if not await self.healthy():
            await self._http.page("/health")  # raises where nobody answers
            raise ServerLost(f"{self.name} is not well: its /health says so")
        await self._try()

    async def _try(self) -> None:
        """Find out what it is, which is well, and check it. Raises as `open` does."""
        before = self.limits
        try:
            self._dialect, self.limits = await self._look(before)
            if self._check is not None:
                await self._check(self)
            self.up, self._left_out = True, ""
        except (EngineBusy, ServerLost) as error:
            raise ServerLost(f"{self.name} cannot be tried out: {error.message}") from error
        except Exception:
            self._again = asyncio.get_running_loop().time() + _WRONG_S
            raise
        finally:
            if not self.up:
                self.limits = before  # a server that was never used has promised no limits

    async def _look(self, before: Limits | None) -> tuple[Dialect, Limits]:
        dialect = await self._ask_what_it_is()
        self._http.keeps = dialect.keeps
        limits = await dialect.limits(self.name, self._http.page)
        if before is not None and limits.model != before.model:
            raise EngineError(f"{self.name} came back with {limits.model!r:.80}, where it had {before.model!r:.80}")
        if limits.context < self.least_context:
            raise EngineError(
                f"{self.name} has a context of {limits.context} tokens, and {self.least_context} are promised"
            )
        return dialect, limits

    @property
    def info(self) -> EngineInfo:
        """What it allows, once it was found well."""
        if self.limits is None:
            raise ServerLost(f"{self.name} was not found well yet", sent=False)
        limits, vocabulary = self.limits, self.vocabulary
        return EngineInfo(limits.context, vocabulary.size, vocabulary.eos_ids, limits.draft_tokens or 0, limits.grammar)

    async def page(self, path: str, body: object = None) -> tuple[int, bytes]:
        """As `Http.page`."""
        return await self._http.page(path, body)

    async def close(self) -> None:
        """End what runs on it, and the connections."""
        self.up = False
        if self._http_or_none is not None:
            await self._http_or_none.close()
            self._http_or_none = None

    async def healthy(self) -> bool:
        try:
            return (await self._http.page("/health"))[0] == 200
        except EngineError:
            return False

    async def poll(self) -> None:
        """See whether it is well. A server that is not is not `up`."""
        try:
            if self.up:
                if not await self.healthy():
                    self.lost()
            elif asyncio.get_running_loop().time() >= self._again and await self.healthy():
                await self._try()
                _log.info("%s is up", self.name)
        except DovetailError as error:
            self.lost(error.message)

    async def measure(self) -> None:
        """Read its metrics, if it is up. What cannot be read is not known, and says nothing of its health."""
        polled: dict[str, float] = {}
        with suppress(EngineError, TimeoutError):
            if self.up and self._dialect is not None:
                async with asyncio.timeout(_METRICS_S):
                    status, page = await self._http.page("/metrics")
                if status == 200:
                    polled = translated(page, self._dialect.table)
        self._polled = polled

    def lost(self, why: str = "") -> None:
        """Not to be used until it is found well again. `why`, where it answers, is said when it changes."""
        if why and why != self._left_out:
            _log.error("%s is left out: %s", self.name, why)
            self._left_out = why
        elif self.up:
            _log.warning("%s does not answer, and is left out until it does", self.name)
        self.up = False
        self._polled = {}

    async def complete(self, completion: Completion) -> AsyncGenerator[TokenBatch]:
        """Stream the continuation. Closing the generator closes the HTTP request, at which servers end theirs.

        Raises `ServerLost` (after which it may be tried elsewhere, as long as nothing came), `InvalidRequest`,
        `ContextExceeded`, `EngineBusy` or `EngineError`.
        """
        dialect, limits = self._dialect, self.limits
        if dialect is None or limits is None:
            raise ServerLost(f"{self.name} was not found well yet", sent=False)
        if completion.constraint is not None and completion.grammar is None:
            raise InvalidRequest("an engine behind HTTP takes a grammar, and this constraint came without")
        if completion.grammar is not None and limits.no_grammar is not None:
            raise InvalidRequest(f"this cannot be constrained on this engine: {limits.no_grammar}")
        request_id = f"{completion.request_id or 'dovetail'}-{next(self._numbers)}"
        words = completion, self.vocabulary, limits, request_id
        left, empty = completion.max_tokens, 0
        drafted = 0 if limits.draft_tokens == 0 else None
        self.running += 1
        self.sent += 1
        try:
            # In a thread: the largest grammars that are within bounds take half a second to be written.
            body = dialect.body(*words) if completion.grammar is None else await asyncio.to_thread(dialect.body, *words)
            reader = dialect.reader(completion, self.name, self._http.page)
            async with aclosing(self._http.events(dialect.path, body, self.healthy)) as events:
                async for data in events:
                    batch = await self._fed(reader, data)
                    if batch is None:
                        empty += 1
                        if empty > _MOST_EMPTY:
                            raise EngineError(f"{self.name} sent {empty} events without a token")
                        continue
                    empty = 0
                    ended = batch.finish is not None
                    batch = self._checked(batch, completion, left)
                    left -= len(batch.ids)
                    batch = msgspec.structs.replace(batch, drafted=drafted, cached=None)
                    if batch.finish is None:
                        yield batch
                        continue
                    await self._rest(events, reader, ended)
                    yield self._last(batch, reader)
                    return
        finally:
            self.running -= 1
        raise ServerLost(f"{self.name} ended its answer in the middle")

    def gauges(self) -> dict[str, float]:
        """Its metrics, as they were last read; what was drafted, by its answers where its metrics do not say."""
        counted = dict(self._polled)
        if self.up and "drafted_total" not in counted:
            counted |= {"drafted_total": self._drafts.drafted, "accepted_total": self._drafts.accepted}
            for place, accepted in enumerate(self._drafts.by_position):
                counted[labelled("accepted_per_position_total", position=str(place))] = accepted
        return counted

    @property
    def _http(self) -> Http:
        if self._http_or_none is None:
            raise ServerLost(f"{self.name} is closed", sent=False)
        return self._http_or_none

    async def _ask_what_it_is(self) -> Dialect:
        status, body = await self._http.page("/v1/models")
        if status in (401, 403):
            raise refusal(self.name, status, body)
        with suppress(*UNREADABLE):
            models = msgspec.json.decode(body, type=Models).data
            if models and models[0].owned_by in _OWNERS:
                return _OWNERS[models[0].owned_by]
        raise EngineError(
            f"{self.name} is neither vLLM nor SGLang nor llama.cpp: its /v1/models (HTTP status {status}) names none "
            "of them as owner"
        )

    async def _fed(self, reader: Reader, data: bytes) -> TokenBatch | None:
        if data == b"[DONE]":
            return None
        try:
            return await reader.feed(data)
        except UNREADABLE as error:
            raise EngineError(f"{self.name} sent what is no event of a completion: {error}") from error

    async def _rest(self, events: AsyncGenerator[bytes], reader: Reader, ended: bool) -> None:
        """Read to the stream's end, which leaves the connection to the next. Nothing there is worth an answer.

        A server that has sent the turn's last token and not `ended` may do so with its next event, or go on.
        """
        with suppress(DovetailError, TimeoutError):
            async with asyncio.timeout(_REST_S):
                async for data in events:
                    batch = await self._fed(reader, data)
                    ended = ended or (batch is not None and batch.finish is not None)
                    if not ended:
                        return

    def _checked(self, batch: TokenBatch, completion: Completion, left: int) -> TokenBatch:
        """`batch` up to the end of the turn. Raises `EngineError` for what cannot be an answer."""
        ids = batch.ids
        if any(not 0 <= token < self.vocabulary.size for token in ids):
            raise EngineError(
                f"{self.name} sent a token id beyond the vocabulary of {self.vocabulary.size}: is this its model?"
            )
        if len(ids) > left:
            raise EngineError(f"{self.name} sent more than the {completion.max_tokens} tokens that were asked for")
        end = next((place + 1 for place, token in enumerate(ids) if token in self.vocabulary.eos_ids), None)
        if end is None:
            return batch
        return msgspec.structs.replace(batch, ids=ids[:end], finish="stop", logprobs=batch.logprobs[:end])

    def _last(self, batch: TokenBatch, reader: Reader) -> TokenBatch:
        """`batch` with what is known of the whole answer."""
        drafts = reader.drafts
        if drafts is None:
            return msgspec.structs.replace(batch, cached=reader.cached)
        places = itertools.zip_longest(self._drafts.by_position, drafts.by_position, fillvalue=0)
        self._drafts = Drafts(
            self._drafts.drafted + drafts.drafted,
            self._drafts.accepted + drafts.accepted,
            tuple(before + now for before, now in places),
        )
        return msgspec.structs.replace(batch, cached=reader.cached, drafted=drafts.drafted, accepted=drafts.accepted)
