"""What an endpoint can do, found out with a few requests before the suites run.

A feature that it lacks makes cases "not tested", never failed. Raises `NotTested` if nothing can be tested at all.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from dovetail.client.draft_counters import reading
from dovetail.client.endpoint import Endpoint, Exchange, Features, choose_model, error_text
from dovetail.client.not_tested import NotTested
from dovetail.client.probe import TOOL
from dovetail.verify.acceptance import of_answer

STREAM: Mapping[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
_HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
#: Fields that make answers repeatable, best first. Some endpoints take no other temperature than their own.
_REPEATABLE: tuple[Mapping[str, Any], ...] = ({"temperature": 0, "seed": 1}, {"temperature": 0}, {"seed": 1}, {})
#: Fields with which endpoints return token ids: Dovetail's, then vLLM's.
_IDS: tuple[Mapping[str, Any], ...] = ({"dovetail": {"return_token_ids": True}}, {"return_token_ids": True})
#: Fields of a request that its prompt depends on.
_OF_PROMPTS = ("messages", "tools", "tool_choice", "chat_template_kwargs", "reasoning_effort", "thinking")
_UNDRAFTED: Mapping[str, Any] = {"dovetail": {"draft_tokens": 0}}
#: Fields with which SGLang's answers count their drafts; Dovetail's always do.
_COUNTED_BY_SGLANG: Mapping[str, Any] = {"return_spec_tokens_details": True}
_SHOWN = 200  # characters of an answer that is no chat completion
_SHORT = {"max_tokens": 16, "messages": _HELLO}


async def probe(endpoint: Endpoint) -> Features:
    """Set the endpoint's model and features, and return the features."""
    context = await choose_model(endpoint)
    fields, first = await _repeatable(endpoint)
    endpoint.features = Features(fields=fields, context=context)
    ids = await _ids(endpoint)
    because: dict[str, str] = {}
    tools = await _accepts(endpoint, {**_SHORT, "tools": [TOOL]}, "tools", because)
    streaming = await _streams(endpoint, because)
    native = "speculation" in (first.answer.usage or {})
    endpoint.features = msgspec.structs.replace(
        endpoint.features,
        ids=ids,
        tools=tools,
        streaming=streaming,
        undrafted=_UNDRAFTED if native else None,
        acceptance=None if native else await _counted(endpoint),
        counters=not native and await reading(endpoint) is not None,
        detokenizes=await _answers(endpoint, "/detokenize", {"model": endpoint.model, "tokens": [0]}),
        tokenizes=await _answers(endpoint, "/tokenize", {"model": endpoint.model, "messages": _HELLO}),
        because=because,
    )
    return endpoint.features


class Companion:
    """An endpoint that is asked beside the tested one. It is probed when it is first needed.

    `role`: what it is called where it keeps something from being tested.
    """

    def __init__(self, endpoint: Endpoint, role: str) -> None:
        self._endpoint, self._role = endpoint, role
        self._lock = asyncio.Lock()
        self._probed: NotTested | Features | None = None

    @asynccontextmanager
    async def asked(self) -> AsyncIterator[Endpoint]:
        """The endpoint, probed. A `NotTested` that is raised in the context names the companion."""
        try:
            async with self._lock:
                if self._probed is None:
                    self._probed = await _probed(self._endpoint)
            if isinstance(self._probed, NotTested):
                raise self._probed
            yield self._endpoint
        except NotTested as reason:
            raise NotTested(f"of the {self._role}: {reason.because}", blocking=reason.blocking) from None

    async def close(self) -> None:
        await self._endpoint.close()


async def _probed(endpoint: Endpoint) -> Features | NotTested:
    try:
        return await probe(endpoint)
    except NotTested as reason:
        return reason


async def _repeatable(endpoint: Endpoint) -> tuple[Mapping[str, Any], Exchange]:
    """The best of `_REPEATABLE` that the endpoint accepts, and the answer to it."""
    for fields in _REPEATABLE:
        exchange = await endpoint.chat({**_SHORT, **fields})
        if not exchange.answer.completion:
            raise NotTested(f"it answers a plain request with no chat completion: {exchange.answer.raw:.{_SHOWN}}")
        if exchange.answer.error is None:
            return fields, exchange
        if exchange.answer.status == 404:
            raise NotTested(f"it has no chat completions or no model {endpoint.model!r}: {exchange.answer.error}")
    raise NotTested(f"it refuses a plain request: {exchange.answer.error}")


async def _ids(endpoint: Endpoint) -> Mapping[str, Any] | None:
    for fields in _IDS:
        answer = (await endpoint.chat({**_SHORT, **fields})).answer
        if answer.ids is not None and answer.prompt_ids is not None:
            return fields
    return None


async def _counted(endpoint: Endpoint) -> Mapping[str, Any] | None:
    exchange = await endpoint.chat({**_SHORT, **_COUNTED_BY_SGLANG})
    return _COUNTED_BY_SGLANG if of_answer(exchange).steps else None


async def _accepts(endpoint: Endpoint, body: Mapping[str, Any], feature: str, because: dict[str, str]) -> bool:
    error = (await endpoint.chat(body)).answer.error
    if error is not None:
        because[feature] = f"it refuses a request with {feature}: {error}"
    return error is None


async def _streams(endpoint: Endpoint, because: dict[str, str]) -> bool:
    exchange = await endpoint.chat({**_SHORT, **STREAM})
    if exchange.answer.error is not None:
        because["streaming"] = f"it refuses to stream: {exchange.answer.error}"
        return False
    if "data:" not in exchange.answer.raw:
        because["streaming"] = "it answers a request for a stream with something else"
        return False
    return True


async def _answers(endpoint: Endpoint, path: str, body: Mapping[str, Any]) -> bool:
    try:
        return (await endpoint.send("POST", path, body)).status == 200
    except NotTested:
        return False


async def prompt_ids(endpoint: Endpoint, exchange: Exchange) -> tuple[int, ...] | None:
    """The token ids of an exchange's prompt; None if they cannot be had.

    They are in the answer, or else `/tokenize` returns them, which is believed if the answer counts as many tokens.
    """
    if exchange.answer.prompt_ids is not None or not endpoint.features.tokenizes:
        return exchange.answer.prompt_ids
    fields = {name: exchange.request[name] for name in _OF_PROMPTS if name in exchange.request}
    try:
        reply = await endpoint.send("POST", "/tokenize", {**fields, "model": endpoint.model})
        ids = json.loads(reply.body)["tokens"] if reply.status == 200 else ()
    except (NotTested, ValueError, LookupError, TypeError):
        return None
    counted = (exchange.answer.usage or {}).get("prompt_tokens")
    if not isinstance(ids, list) or len(ids) != counted or not all(isinstance(each, int) for each in ids):
        return None
    return tuple(ids)


async def detokenized(endpoint: Endpoint, ids: tuple[int, ...]) -> str:
    """The text of `ids`, with control tokens as their literals. Raises `NotTested`."""
    reply = await endpoint.send("POST", "/detokenize", {"model": endpoint.model, "tokens": list(ids)})
    if reply.status != 200:
        raise NotTested(f"/detokenize answered {reply.status}: {error_text(reply)}")
    text = json.loads(reply.body)["prompt"]
    if not isinstance(text, str):
        raise NotTested("/detokenize returned no text")
    return text
