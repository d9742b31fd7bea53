"""Requests to one endpoint: bounded in number, repeated when the endpoint asks for it.

Whatever keeps an answer from being judged (no connection, a limit, an error of the server) is raised as `NotTested`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from dovetail.client.answer import Answer, from_body
from dovetail.client.not_tested import NotTested
from dovetail.client.stream import from_events
from dovetail.client.transport import Reply, Transport

#: Statuses after which the same request may be answered.
_TRY_AGAIN = (429, 502, 503, 504, 529)
_FIRST_WAIT_S = 1.0
_ERROR_CHARACTERS = 200


class Limits(msgspec.Struct, frozen=True):
    """`max_requests`: the most requests of a run. `max_wait_s`: the most seconds that one request waits because the
    endpoint is busy. `max_tokens`: the limit of each answer."""

    max_requests: int = 2000
    max_wait_s: float = 120.0
    max_tokens: int = 1024


class Features(msgspec.Struct, frozen=True):
    """What the endpoint can do, as `probe` has found out.

    `fields`: the request fields that make answers repeatable, as far as it accepts them.
    `ids`: the request fields with which it returns token ids; None if it has none.
    `undrafted`: the request fields that turn drafting off; None if it has none.
    `acceptance`: the request fields with which an answer counts its drafts; None if it has none.
    `counters`: whether its /metrics counts the drafts of all answers.
    """

    streaming: bool = True
    tools: bool = True
    fields: Mapping[str, Any] = MappingProxyType({})
    ids: Mapping[str, Any] | None = None
    undrafted: Mapping[str, Any] | None = None
    acceptance: Mapping[str, Any] | None = None
    counters: bool = False
    detokenizes: bool = False
    tokenizes: bool = False
    context: int | None = None
    because: Mapping[str, str] = MappingProxyType({})


class Exchange(msgspec.Struct, frozen=True):
    """A request for a chat completion, its answer, and the URL of the endpoint."""

    request: Mapping[str, Any]
    answer: Answer
    url: str


class Endpoint:
    """One endpoint and one of its models.

    `url`: its name in reports. `model`: the name of the model in requests; `probe` sets it if it is None.
    """

    def __init__(
        self,
        transport: Transport,
        url: str,
        *,
        model: str | None = None,
        limits: Limits | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.url, self.model = url, model
        self.limits = limits or Limits()
        self.features = Features()
        self.sent = 0
        self._transport, self._sleep = transport, sleep

    async def close(self) -> None:
        await self._transport.close()

    async def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Reply:
        """The reply to one request, repeated as long as the endpoint is busy. Raises `NotTested`."""
        data = None if body is None else msgspec.json.encode(body)
        waited, pause = 0.0, _FIRST_WAIT_S
        while True:
            reply = await self._counted(method, path, data)
            if reply.status not in _TRY_AGAIN:
                return reply
            wait = pause if reply.retry_after is None else reply.retry_after
            if waited + wait > self.limits.max_wait_s:
                raise NotTested(
                    f"it answered {reply.status} and is to be asked again in {wait:g} seconds, after {waited:g} of "
                    f"waiting; {self.limits.max_wait_s:g} is the most (--max-wait)"
                )
            await self._sleep(wait)
            waited, pause = waited + wait, pause * 2

    async def _counted(self, method: str, path: str, data: bytes | None) -> Reply:
        self.count()
        return await self._transport.send(method, path, data)

    def count(self) -> None:
        """Count one request. Raises `NotTested` if there were too many."""
        if self.sent >= self.limits.max_requests:
            raise NotTested(f"{self.limits.max_requests} requests are sent (--max-requests)")
        self.sent += 1

    def chat_body(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """A request's body: `fields`, with the model, a limit on tokens, and what makes answers repeatable."""
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": self.limits.max_tokens,
            **self.features.fields,
            **(self.features.ids or {}),
        }
        return merged(body, fields)

    async def chat(self, fields: Mapping[str, Any], *, as_it_is: bool = False) -> Exchange:
        """Ask for a chat completion, streamed if `fields` say so. Raises `NotTested` for an error of the server.

        `as_it_is`: only the model is added to `fields`, and what makes the endpoint return token ids.
        """
        body = merged(self.features.ids or {}, {**fields, "model": self.model}) if as_it_is else self.chat_body(fields)
        reply = await self.send("POST", "/v1/chat/completions", body)
        if reply.status >= 500:
            raise NotTested(f"it answered {reply.status}: {error_text(reply)}")
        if reply.status in (401, 403):
            raise NotTested(f"it answered {reply.status}: a key is needed, or another one (--api-key-file)")
        if reply.status == 200 and body.get("stream"):
            return Exchange(body, from_events(reply.body), self.url)
        return Exchange(body, from_body(reply.status, reply.body), self.url)


class Target:
    """An endpoint as one case sees it. It keeps the exchanges of the case, and adds `extra` fields to each request."""

    def __init__(self, endpoint: Endpoint, extra: Mapping[str, Any] = MappingProxyType({})) -> None:
        self.endpoint = endpoint
        self.exchanges: list[Exchange] = []
        self._extra = extra

    @property
    def features(self) -> Features:
        return self.endpoint.features

    async def chat(self, fields: Mapping[str, Any], *, as_it_is: bool = False) -> Exchange:
        exchange = await self.endpoint.chat(merged(fields, self._extra), as_it_is=as_it_is)
        self.exchanges.append(exchange)
        return exchange

    def at(self, other: Endpoint) -> Target:
        """Another endpoint, whose exchanges are kept here too."""
        target = Target(other)
        target.exchanges = self.exchanges
        return target

    async def answer(self, fields: Mapping[str, Any]) -> Exchange:
        """As `chat`, for a request that every endpoint has to answer. Raises `NotTested` if it refuses."""
        exchange = await self.chat(fields)
        if exchange.answer.error is not None:
            raise NotTested(f"it refused a request: {exchange.answer.error}", blocking=False)
        return exchange


async def choose_model(endpoint: Endpoint) -> int | None:
    """The model's context, if the endpoint lists it. Sets the endpoint's model if it lists exactly one."""
    reply = await endpoint.send("GET", "/v1/models")
    if reply.status in (401, 403):
        raise NotTested(f"it answered {reply.status}: a key is needed, or another one (--api-key-file)")
    listed = _listed(reply.body) if reply.status == 200 else {}
    if endpoint.model is None:
        if len(listed) != 1:
            answered = "" if reply.status == 200 else f" (/v1/models answered {reply.status})"
            names = ", ".join(sorted(listed)[:10]) or f"no model{answered}"
            raise NotTested(f"it lists {names}: choose one with --model-name")
        endpoint.model = next(iter(listed))
    elif listed and endpoint.model not in listed:
        raise NotTested(f"it does not serve {endpoint.model!r}, but {', '.join(sorted(listed)[:10])}")
    context = listed.get(endpoint.model, {}).get("max_model_len")
    return context if isinstance(context, int) else None


def _listed(body: bytes) -> dict[str, Mapping[str, Any]]:
    try:
        return {model["id"]: model for model in json.loads(body)["data"] if isinstance(model["id"], str)}
    except (ValueError, LookupError, TypeError):
        return {}


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the fields of `over`. The field `dovetail` is merged too."""
    both = {**base, **over}
    if isinstance(base.get("dovetail"), Mapping) and isinstance(over.get("dovetail"), Mapping):
        both["dovetail"] = {**base["dovetail"], **over["dovetail"]}
    return both


def error_text(reply: Reply) -> str:
    """The message of an error reply, cut short."""
    try:
        error = json.loads(reply.body)["error"]
        text = error["message"] if isinstance(error, Mapping) else str(error)
    except (ValueError, LookupError, TypeError):
        text = reply.body.decode(errors="replace")
    return f"{text:.{_ERROR_CHARACTERS}}".strip()
