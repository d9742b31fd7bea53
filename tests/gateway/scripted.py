"""An engine that replays token ids, and the gateway around it as a server, a client or a turn."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
import openai
import uvicorn
from starlette.applications import Starlette

from dovetail.completion import Completion, EngineInfo, Finish, MetricSample, TokenBatch, TokenLogprob
from dovetail.events import Message
from dovetail.formats.base import Format
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings, create_app
from dovetail.gateway.apis import chat
from dovetail.gateway.apis.chat_request import decode
from dovetail.gateway.turn.runner import TurnRunner
from dovetail.gateway.turn.turn import PreparedTurn
from dovetail.gateway.turn.turn_request import TurnRequest
from dovetail.tokens import Tokenizer
from tests.brief_server import BriefServer

MODEL = "scripted"


class ScriptedEngine:
    """Generates `ids`, or for each sequence the next of `scripts`, to their end or to max_tokens.

    `sizes`: the sizes of the batches, over and over. It takes every token through the request's constraint first, so a
    script that the grammar forbids fails the test. It reports `cached` tokens for each prompt, and one forced draft
    token for each batch; log probabilities are those of `logprob_of`. `refused`: the drafts of each batch that do not
    stand, after those that do (None: the engine does not report the ids of drafts). `before` is awaited before each
    batch, with its number, and may wait or raise.

    `seen`: the completions that it got. `running` and `freed`: how many sequences run, and the ids of those that ended.
    `sent`: how many batches were taken.
    """

    def __init__(self, tokenizer: Tokenizer, *, context: int = 4096, draft_tokens: int = 3) -> None:
        self.info = EngineInfo(
            context,
            tokenizer.vocab_size,
            (tokenizer.control["<|im_end|>"],),
            draft_tokens,
            prompt_logprobs=True,
            reports_steps=True,
        )
        self.ids: tuple[int, ...] = ()
        self.scripts: list[tuple[int, ...]] = []
        self.sizes: Sequence[int] = (1,)
        self.cached = 0
        self.refused: tuple[int, ...] | None = None
        self.before: Callable[[int], Awaitable[None]] | None = None
        self.seen: list[Completion] = []
        self.freed: list[str] = []
        self.running = 0
        self.sent = 0
        self.started = 0

    async def start(self) -> None:
        self.started += 1

    async def stop(self) -> None:
        self.started -= 1

    def gauges(self) -> list[MetricSample]:
        numbers = {"running": self.running, "free_blocks": 10 - self.running, "steps_total": self.sent}
        return [MetricSample(name, {}, number) for name, number in numbers.items()]

    async def complete(self, completion: Completion) -> AsyncIterator[TokenBatch]:
        self.seen.append(completion)
        self.running += 1
        try:
            ids = self.scripts.pop(0) if self.scripts else self.ids
            for number, batch in enumerate(self._batches(completion, ids)):
                if self.before is not None:
                    await self.before(number)
                for token in batch.ids:
                    if completion.constraint is not None and token not in self.info.eos_ids:
                        assert completion.constraint.advance(token), f"the grammar forbids token {token}"
                self.sent += 1
                yield batch
        finally:
            self.running -= 1
            self.freed.append(completion.request_id)

    def _batches(self, completion: Completion, ids: tuple[int, ...]) -> Iterator[TokenBatch]:
        ids = ids[: completion.max_tokens]
        finish: Finish = "stop" if ids and ids[-1] in self.info.eos_ids else "length"
        at = number = 0
        while at < len(ids):
            size = self.sizes[number % len(self.sizes)]
            piece = ids[at : at + size]
            at, number = at + size, number + 1
            logprobs = tuple(self.logprob_of(token, completion.logprobs) for token in piece)
            yield TokenBatch(
                piece,
                finish if at >= len(ids) else None,
                drafted=3,
                accepted=len(piece) - 1,
                logprobs=() if completion.logprobs is None else logprobs,
                cached=self.cached if number == 1 else 0,
                forced=1,
                prompt_logprobs=self._scores(completion) if number == 1 else (),
                drafts=self._drafts(completion, piece),
            )

    def _drafts(self, completion: Completion, piece: tuple[int, ...]) -> tuple[int, ...] | None:
        if self.refused is None or not completion.report_drafts:
            return None
        return (*piece[:-1], *self.refused)

    def _scores(self, completion: Completion) -> tuple[TokenLogprob, ...]:
        if completion.prompt_logprobs is None:
            return ()
        return tuple(self.logprob_of(token, completion.prompt_logprobs) for token in completion.prompt[1:])

    def logprob_of(self, token: int, top: int | None) -> TokenLogprob:
        """An arbitrary log probability, always the same for one token."""
        likeliest = tuple(((token + i) % self.info.vocab_size, -0.5 * i) for i in range(top or 0))
        return TokenLogprob(token, -token / 64, likeliest)


def turn_request(body: dict[str, Any], **changes: Any) -> TurnRequest:
    """The turn that a chat completion with this body asks for, with `changes`."""
    request = chat.turn_request(decode(json.dumps({"model": MODEL, **body}).encode()))
    return msgspec.structs.replace(request, **changes)


def prepared(
    tokenizer: Tokenizer, fmt: Format | None = None, settings: Settings | None = None, **body: Any
) -> PreparedTurn:
    """The turn of a request with the fields in `body`, ready to run."""
    engine = ScriptedEngine(tokenizer)
    runner = TurnRunner(engine, fmt or KimiK25(), tokenizer, settings or Settings(served_model_name=MODEL))
    return runner.prepare(turn_request({"messages": [{"role": "user", "content": "hi"}], **body}))


def folded(events: Iterable[Any]) -> list[dict[str, Any]]:
    """The choices of a stream: its deltas added up, as `message`, `finish_reason` and `logprobs`."""
    choices: dict[int, dict[str, Any]] = {}
    for event in events:
        for choice in event["choices"]:
            whole = choices.setdefault(choice["index"], {"index": choice["index"], "logprobs": [], "message": {}})
            assert "finish_reason" not in whole, "a choice goes on after its end"
            if choice["finish_reason"] is not None:
                whole["finish_reason"] = choice["finish_reason"]
            whole["logprobs"] += (choice["logprobs"] or {"content": []})["content"]
            message = whole["message"]
            for field, value in choice["delta"].items():
                if field == "tool_calls":
                    (piece,) = value
                    calls = message.setdefault(field, [])
                    if "id" in piece:
                        assert piece["index"] == len(calls)
                        calls.append({key: piece[key] for key in ("function", "id", "type")})
                    else:
                        calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
                elif isinstance(value, str):
                    message[field] = message.get(field, "") + value
                else:
                    message[field] = value
    return [choices[index] for index in sorted(choices)]


def ids_of(message: Message, tokenizer: Tokenizer, *, thinking: bool = True) -> tuple[int, ...]:
    """The token ids that a model would generate for `message`."""
    return tuple(KimiK25().write(message, thinking=thinking).ids(tokenizer))


@asynccontextmanager
async def serving(engine: ScriptedEngine, tokenizer: Tokenizer, settings: Settings | None = None) -> AsyncIterator[str]:
    """A real server on a free loopback port; yields its address."""
    async with serving_app(
        create_app(engine, KimiK25(), tokenizer, settings or Settings(served_model_name=MODEL))
    ) as url:
        yield url


@asynccontextmanager
async def serving_app(app: Starlette) -> AsyncIterator[str]:
    """A real server of any app; yields its address."""
    # With a timeout, so that a request that hangs fails its test and not the whole run.
    server = BriefServer(
        uvicorn.Config(app, port=0, log_level="warning", access_log=False, ws="none", timeout_graceful_shutdown=1)
    )
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.002)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def openai_client(
    engine: ScriptedEngine, tokenizer: Tokenizer, settings: Settings | None = None
) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        serving(engine, tokenizer, settings) as url,
        # Without TLS: to read the certificates for each test would take longer than most of them.
        openai.DefaultAsyncHttpxClient(verify=False) as http,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0, http_client=http) as client,
    ):
        yield client


@asynccontextmanager
async def in_process(
    engine: ScriptedEngine, tokenizer: Tokenizer, settings: Settings | None = None, fmt: Format | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    """The same app without a network, for responses that are read whole."""
    app = create_app(
        engine, fmt or KimiK25(), tokenizer, settings or Settings(served_model_name=MODEL, metrics_tools=True)
    )
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://dovetail", headers={"content-type": "application/json"}
    ) as client:
        yield client


def events_of(body: str) -> list[Any]:
    """The data of each server-sent event, decoded except for [DONE]."""
    events: list[Any] = []
    for block in body.split("\n\n"):
        if block:
            data = block.removeprefix("data: ")
            events.append(data if data == "[DONE]" else json.loads(data))
    return events
