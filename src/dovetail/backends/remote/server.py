"""One server behind HTTP: which program it is, whether it is healthy, and completions on it."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from typing import NamedTuple

import msgspec

from dovetail.backends.remote.counters import translated
from dovetail.backends.remote.dialect import Dialect, Drafts, Limits, Models, Reader
from dovetail.backends.remote.errors import UNREADABLE, NotThere, ServerLost, refusal
from dovetail.backends.remote.http import Http, Turns, split_address
from dovetail.backends.remote.least_tokens import in_requests
from dovetail.backends.remote.llama_cpp import LlamaCpp
from dovetail.backends.remote.sglang import SGLang
from dovetail.backends.remote.sglang_pictures import after_a_look
from dovetail.backends.remote.vllm import VLLM
from dovetail.backends.remote.vocabulary import Vocabulary
from dovetail.completion import Completion, EngineInfo, MetricSample, TokenBatch, total
from dovetail.errors import DovetailError, EngineBusy, EngineError, EngineTimeout, InvalidRequest, UnknownModel

_log = logging.getLogger(__name__)

#: Draft tokens for each token of an answer; no server drafts more in a step.
_MOST_DRAFTS = 256
#: Seconds to wait for the events after the last tokens: the usage, and the end of the stream.
_TAIL_S = 1.0
METRICS_S = 2.0
#: Seconds until a healthy server that must not be used is checked again.
RECHECK_S = 10.0
#: The most consecutive events without a token before the answer is given up.
_MOST_EMPTY = 4096
#: The dialect by the field `owned_by` of the server's /v1/models.
_OWNERS: dict[str, Dialect] = {"vllm": VLLM(), "sglang": SGLang(), "llamacpp": LlamaCpp()}


class Deadlines(msgspec.Struct, frozen=True, kw_only=True):
    """How many seconds a server may take for the first token of an answer, and between two batches of tokens."""

    first_token_s: float = 300.0
    idle_s: float = 120.0


DEADLINES = Deadlines()


class _Read(NamedTuple):
    """What events that arrived together add up to.

    `batch`: their tokens, None if they have none. `empty`: how many events without a token came last. `error`: what
    the event after them failed with. `rest`: the events behind the last that was read.
    """

    batch: TokenBatch | None
    empty: int
    error: DovetailError | None
    rest: Sequence[bytes]


class Server:
    """A vLLM, SGLang or llama.cpp server at the URL `address`.

    `key`: the bearer token that the server expects. `silence_s`, `path`: as in `Http`. `deadlines`: of an answer.
    `check`: called each time the server becomes healthy, before it is `up`; raises `EngineError` if the server must not
    be used.

    Stop strings are not sent, because each server would match them in the text of its own detokenizer. The gateway
    matches them and closes the completion.
    """

    def __init__(
        self,
        address: str,
        vocabulary: Vocabulary,
        *,
        key: str | None = None,
        silence_s: float = 30.0,
        deadlines: Deadlines = DEADLINES,
        path: str | None = None,
        check: Callable[[Server], Awaitable[None]] | None = None,
    ) -> None:
        self._base, self.name = split_address(address)
        self.vocabulary = vocabulary
        self._key, self._silence_s, self._path = key, silence_s, path
        self._deadlines = deadlines
        self._check = check
        self._http_or_none: Http | None = None
        self._dialect: Dialect | None = None
        self.limits: Limits | None = None
        #: The context that the engine has promised to its clients. A server with less is left out.
        self.least_context = 0
        self.up = False
        #: Whether it gets no new requests, because it is about to end.
        self.leaving = False
        self._starts = 0
        self._reason, self._recheck_at = "", 0.0  # why it is left out, and when to check again
        self.running = 0
        self._others = 0.0  # requests of others that it ran or kept waiting, when its metrics were read last
        self._numbers = itertools.count()
        self._polled: list[MetricSample] = []
        self._drafts = Drafts(0, 0)
        self._turns = Turns()

    def connect(self) -> None:
        """Make the connections' pool, so that the server can be polled until it answers."""
        if self._http_or_none is None:
            self._http_or_none = Http(self._base, self.name, self._key, self._silence_s, self._path)

    async def open(self) -> None:
        """Connect and ask which program it is. Raises `ServerLost` if nothing answers, `EngineError` for a server that
        is not an engine or must not be used."""
        self.connect()
        if not await self.healthy():
            await self._http.page("/health")  # raises if nothing answers
            raise ServerLost(f"{self.name} is not healthy: its /health says so")
        await self._try()

    async def _try(self) -> None:
        """Ask a healthy server which program it is, and check it. Raises as `open` does."""
        before = self.limits
        try:
            self._dialect, self.limits = await self._look(before)
            if self._check is not None:
                await self._check(self)
            self.up, self._reason = True, ""
            self._starts += 1
        except (EngineBusy, ServerLost) as error:
            raise ServerLost(f"{self.name} cannot be tried out: {error.message}") from error
        except Exception:
            self._recheck_at = asyncio.get_running_loop().time() + RECHECK_S
            raise
        finally:
            if not self.up:
                self.limits = before  # a server that was never used has promised no limits

    async def _look(self, before: Limits | None) -> tuple[Dialect, Limits]:
        dialect = await self._identify()
        self._http.keeps = dialect.keeps
        limits = await dialect.limits(self.name, self._http.page)
        if before is not None and limits.model != before.model:
            raise EngineError(f"{self.name} came back with {limits.model!r:.80}, where it had {before.model!r:.80}")
        if limits.context < self.least_context:
            raise EngineError(
                f"{self.name} has a context of {limits.context} tokens, but clients were promised {self.least_context}"
            )
        return dialect, limits

    @property
    def info(self) -> EngineInfo:
        """The server's limits. Raises `ServerLost` before it was healthy for the first time."""
        if self.limits is None:
            raise ServerLost(f"{self.name} was never healthy yet", sent=False)
        limits, vocabulary = self.limits, self.vocabulary
        return EngineInfo(
            limits.context,
            vocabulary.size,
            vocabulary.eos_ids,
            limits.draft_tokens or 0,
            limits.grammar if limits.no_grammar is None else "nothing",
            prompt_logprobs=self._dialect is not None and self._dialect.scores_prompts,
            bounds_reasoning=limits.bounds_reasoning,
            salts_cache=self._dialect is not None and self._dialect.salts_cache,
            pictures=limits.pictures,
            priorities=self._dialect is not None and self._dialect.priorities,
            adapters=self._dialect is not None and self._dialect.adapters,
        )

    @property
    def life(self) -> tuple[str, int]:
        """Identifies this run of the server: its name, and how often it has come up."""
        return self.name, self._starts

    async def page(self, path: str, body: object = None) -> tuple[int, bytes]:
        """As `Http.page`."""
        return await self._http.page(path, body)

    async def close(self) -> None:
        """End running completions and close the connections."""
        self.up = False
        if self._http_or_none is not None:
            await self._http_or_none.close()
            self._http_or_none = None

    async def healthy(self) -> bool:
        """Whether /health answers with status 200."""
        return self._http_or_none is not None and await self._http_or_none.healthy()

    async def poll(self) -> None:
        """Update `up` by the server's health."""
        try:
            if self.up:
                if not await self.healthy():
                    self.lost()
            elif asyncio.get_running_loop().time() >= self._recheck_at and await self.healthy():
                await self._try()
                _log.info("%s is up", self.name)
        except DovetailError as error:
            self.lost(error.message)

    async def measure(self) -> None:
        """Read the server's metrics. If they cannot be read, there are none; that says nothing about its health."""
        polled: list[MetricSample] = []
        running = self.running
        with suppress(EngineError, TimeoutError):
            if self.up and self._dialect is not None:
                async with asyncio.timeout(METRICS_S):
                    status, page = await self._http.page("/metrics")
                if status == 200:
                    polled = translated(page, self._dialect.table)
        self._polled = polled
        self._others = max(0.0, total(polled, "running") + total(polled, "waiting") - running)

    @property
    def load(self) -> float:
        """How many requests it runs or keeps waiting, of all its clients, as far as that is known."""
        return self.running + self._others

    def lost(self, why: str = "") -> None:
        """Leave the server out until it is healthy again. `why` is logged when it changes."""
        if why and why != self._reason:
            _log.error("%s is left out: %s", self.name, why)
            self._reason = why
        elif self.up:
            _log.warning("%s does not answer, and is left out until it does", self.name)
        self.up = False
        self._polled = []

    async def complete(self, completion: Completion) -> AsyncGenerator[TokenBatch]:
        """Stream the continuation. Closing the generator closes the HTTP request, and the server ends its answer.

        Raises `ServerLost`, `InvalidRequest`, `ContextExceeded`, `EngineBusy`, `EngineTimeout` or `EngineError`.
        """
        seconds, what = self._deadlines.first_token_s, "sent no token"
        async with aclosing(self._in_requests(completion)) as batches:
            while True:
                try:
                    async with asyncio.timeout(seconds):
                        batch = await anext(batches, None)
                except TimeoutError:
                    raise EngineTimeout(f"{self.name} {what} for {seconds:g} seconds") from None
                if batch is None:
                    return
                yield batch
                seconds, what = self._deadlines.idle_s, "sent no further token"

    def _in_requests(self, completion: Completion) -> AsyncGenerator[TokenBatch]:
        if completion.pictures and self._dialect is not None and self._dialect.rereads and self.limits is not None:
            return after_a_look(self._complete, completion, self.limits.context)
        if self._dialect is None or self._dialect.delays_ends or not completion.min_tokens or completion.ignore_eos:
            return self._complete(completion)
        return in_requests(self._complete, completion)

    async def _complete(self, completion: Completion) -> AsyncGenerator[TokenBatch]:
        dialect, limits = self._dialect, self.limits
        if dialect is None or limits is None:
            raise ServerLost(f"{self.name} was never healthy yet", sent=False)
        if completion.constraint is not None and completion.grammar is None:
            raise InvalidRequest("an engine behind HTTP needs the constraint as a grammar too")
        if completion.grammar is not None and limits.no_grammar is not None:
            if completion.grammar_required:
                raise InvalidRequest(f"this engine cannot constrain an answer: {limits.no_grammar}")
            completion = msgspec.structs.replace(completion, grammar=None)
        request_id = f"{completion.request_id or 'dovetail'}-{next(self._numbers)}"
        arguments = completion, self.vocabulary, limits, request_id
        remaining, empty, prompt = completion.max_tokens, 0, len(completion.prompt)
        drafted = 0 if limits.draft_tokens == 0 else None
        self.running += 1
        try:
            if completion.grammar is None and not completion.pictures:
                body = dialect.body(*arguments)
            else:  # in a thread, because the largest grammar that is allowed takes half a second
                body = await asyncio.to_thread(dialect.body, *arguments)
            reader = dialect.reader(completion, self.name, self._http.page)
            session = {"X-Session-ID": completion.session} if completion.session else {}
            headers = {**completion.trace_context, **session}
            async with aclosing(self._http.events(dialect.path_of(completion), body, self.healthy, headers)) as events:
                async for arrived in events:
                    await self._turns.take()
                    read = await self._feed(reader, arrived)
                    batch, empty = read.batch, empty + read.empty if read.batch is None else read.empty
                    if empty > _MOST_EMPTY:
                        raise EngineError(f"{self.name} sent {empty} events without a token")
                    if batch is not None:
                        ended = batch.finish is not None
                        batch = self._checked(batch, completion, remaining)
                        remaining -= len(batch.ids)
                        batch = msgspec.structs.replace(batch, drafted=drafted, cached=None)
                        if batch.prompt_tokens is not None:
                            prompt = min(max(prompt, batch.prompt_tokens), limits.context)
                            batch = msgspec.structs.replace(batch, prompt_tokens=prompt)
                        if batch.finish is not None:
                            await self._read_tail(read.rest, events, reader, ended)
                            yield self._with_totals(batch, reader, prompt, completion.max_tokens - remaining)
                            return
                        yield batch
                    if read.error is not None:
                        try:
                            raise read.error
                        finally:
                            del read  # as in `_feed`
        except NotThere as error:
            if not completion.adapter:
                raise
            raise UnknownModel(f"{completion.adapter!r:.80} is not loaded in its engine now", param="model") from error
        finally:
            self.running -= 1
        raise ServerLost(f"{self.name} ended its answer before the last token")

    def gauges(self) -> list[MetricSample]:
        """The server's metrics as last read. Draft tokens that it does not count are counted from its answers."""
        if not self.up or any(sample.name == "drafted_total" for sample in self._polled):
            return [*self._polled]
        drafts = self._drafts
        return [
            *self._polled,
            MetricSample("drafted_total", {}, drafts.drafted),
            MetricSample("accepted_total", {}, drafts.accepted),
            *(
                MetricSample("accepted_per_position_total", {"position": str(position)}, accepted)
                for position, accepted in enumerate(drafts.by_position)
            ),
        ]

    @property
    def _http(self) -> Http:
        if self._http_or_none is None:
            raise ServerLost(f"{self.name} is closed", sent=False)
        return self._http_or_none

    async def _identify(self) -> Dialect:
        status, body = await self._http.page("/v1/models")
        if status in (401, 403):
            raise refusal(self.name, status, body)
        with suppress(*UNREADABLE):
            models = msgspec.json.decode(body, type=Models).data
            if models and models[0].owned_by in _OWNERS:
                return _OWNERS[models[0].owned_by]
        raise EngineError(
            f"{self.name} is neither vLLM nor SGLang nor llama.cpp: its /v1/models (HTTP status {status}) "
            "names none of them as owned_by"
        )

    async def _feed(self, reader: Reader, arrived: Sequence[bytes]) -> _Read:
        """Read events that have arrived, up to one with a finish reason or an error."""
        batches: list[TokenBatch] = []
        read = empty = 0
        error: DovetailError | None = None
        for data in arrived:
            read += 1
            try:
                batch = None if data == b"[DONE]" else await reader.feed(data)
            except UNREADABLE as fault:
                error = EngineError(f"{self.name} sent an event that cannot be read: {fault}")
                error.__cause__ = fault
                break
            except DovetailError as fault:
                error = fault
                break
            empty = empty + 1 if batch is None else 0
            if batch is not None:
                batches.append(batch)
                if batch.finish is not None:
                    break
        try:
            return _Read(_joined(batches), empty, error, arrived[read:])
        finally:
            del error  # its traceback has this frame: a cycle that would keep all of this

    async def _read_tail(
        self, arrived: Sequence[bytes], events: AsyncGenerator[list[bytes]], reader: Reader, ended: bool
    ) -> None:
        """Read to the end of the stream, so that the connection can be used again. Errors there change no answer.

        `arrived`: the events after the last tokens that are there already. `ended`: the server sent its finish reason.
        A server that sent an end-of-turn token without one may still go on; then reading stops at once.
        """
        with suppress(DovetailError, TimeoutError):
            async with asyncio.timeout(_TAIL_S), aclosing(_from(arrived, events)) as rest:
                async for data in rest:
                    read = await self._feed(reader, [data])
                    ended = ended or (read.batch is not None and read.batch.finish is not None)
                    if not ended or read.error is not None:
                        return

    def _checked(self, batch: TokenBatch, completion: Completion, remaining: int) -> TokenBatch:
        """`batch` up to the end of the turn. Raises `EngineError` for impossible or too many tokens."""
        ids = batch.ids
        end = next((position + 1 for position, token in enumerate(ids) if token in self.vocabulary.eos_ids), None)
        if end is not None:
            batch = msgspec.structs.replace(batch, ids=ids[:end], finish="stop", logprobs=batch.logprobs[:end])
            ids = batch.ids
        if ids and not 0 <= min(ids) <= max(ids) < self.vocabulary.size:
            raise EngineError(
                f"{self.name} sent a token id beyond the vocabulary of {self.vocabulary.size}: is this its model?"
            )
        if len(ids) > remaining:
            raise EngineError(f"{self.name} sent more than the {completion.max_tokens} tokens of the request")
        return batch

    def _with_totals(self, batch: TokenBatch, reader: Reader, prompt: int, tokens: int) -> TokenBatch:
        """`batch`, the last one, with the counts of the whole answer, which has `tokens` tokens after `prompt`.

        Counts that cannot be are left out, because they are added up for metrics and bills.
        """
        cached, drafts = reader.cached if reader.cached <= prompt else 0, reader.drafts
        if drafts is None or not drafts.accepted <= drafts.drafted <= _MOST_DRAFTS * (tokens + 1):
            return msgspec.structs.replace(batch, cached=cached)
        by_position = itertools.zip_longest(self._drafts.by_position, drafts.by_position, fillvalue=0)
        self._drafts = Drafts(
            self._drafts.drafted + drafts.drafted,
            self._drafts.accepted + drafts.accepted,
            tuple(before + now for before, now in by_position),
        )
        return msgspec.structs.replace(batch, cached=cached, drafted=drafts.drafted, accepted=drafts.accepted)


def _joined(batches: Sequence[TokenBatch]) -> TokenBatch | None:
    """The batches of one answer as one."""
    if len(batches) < 2:
        return batches[0] if batches else None
    return TokenBatch(
        tuple(itertools.chain.from_iterable([batch.ids for batch in batches])),
        batches[-1].finish,
        logprobs=tuple(itertools.chain.from_iterable([batch.logprobs for batch in batches])),
        prompt_logprobs=batches[0].prompt_logprobs,
        prompt_tokens=batches[0].prompt_tokens,
    )


async def _from(arrived: Sequence[bytes], events: AsyncGenerator[list[bytes]]) -> AsyncGenerator[bytes]:
    """What has `arrived`, then `events`."""
    for data in arrived:
        yield data
    async for more in events:
        for data in more:
            yield data
