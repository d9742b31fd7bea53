"""An endpoint that is measured: what it accepts, how it counts, and one timed request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dovetail.bench import prompts
from dovetail.bench.plan import Kind, Speculation
from dovetail.bench.prompts import Shape
from dovetail.bench.timing import Sample, sample
from dovetail.client.answer import Answer, from_body, mapping
from dovetail.client.draft_counters import Reading, reading
from dovetail.client.endpoint import Endpoint, choose_model, error_text, merged
from dovetail.client.not_tested import NotTested
from dovetail.client.probe import TOOL
from dovetail.client.stream import from_events
from dovetail.client.transport import Arrival, TimedTransport

_USAGE: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
_EVERY_USAGE: dict[str, Any] = {
    "stream": True,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}
_OFF, _FIXED = {"dovetail": {"draft_tokens": 0}}, {"dovetail": {"gate": False}}
_CHAT = "/v1/chat/completions"
_PROBE = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}


class Target:
    """`name`: the endpoint in reports. `variants`: how its drafting can be set, with the fields that do it.

    `shared_prefix`: all prompts of a length have the same beginning.
    """

    def __init__(self, endpoint: Endpoint, transport: TimedTransport, *, shared_prefix: bool = False) -> None:
        self.name = endpoint.url
        self.variants: dict[Speculation, Mapping[str, Any]] = {"unknown": {}}
        self._refuses_calls: str | None = None
        self._endpoint, self._transport = endpoint, transport
        self._fields: Mapping[str, Any] = {}
        self._ignore_eos: Mapping[str, Any] = {}
        self._context: int | None = None
        self._tokenizes = False
        self._counts = False
        self._empty = Shape(0, 0, shared_prefix)
        self._shapes: dict[tuple[Kind, int], Shape] = {}
        self._own: dict[int, list[Mapping[str, Any]]] = {}

    @property
    def model(self) -> str | None:
        return self._endpoint.model

    @property
    def ignores_eos(self) -> bool:
        """Whether it takes `ignore_eos`, so that answers have their length."""
        return bool(self._ignore_eos)

    async def prepare(self) -> None:
        """Find out what the endpoint accepts. Raises `NotTested` if nothing can be measured."""
        self._context = await choose_model(self._endpoint)
        fields: Mapping[str, Any] = {"temperature": 0}
        if await self._refusal(fields) is not None:
            fields = {}
        if (refused := await self._refusal(fields)) is not None:
            raise NotTested(f"it refuses a plain request: {refused}")
        usage = _EVERY_USAGE if await self._refusal({**fields, **_EVERY_USAGE}) is None else _USAGE
        self._fields = {**fields, **usage}
        if await self._refusal({**self._fields, "ignore_eos": True}) is None:
            self._ignore_eos = {"ignore_eos": True}
        if await self._refusal(merged(self._fields, _OFF)) is None and await self._drafts():
            self.variants = {"off": _OFF, "fixed": _FIXED, "gated": {}}
        self._tokenizes = await self._tokenized(_PROBE) is not None
        self._counts = await reading(self._endpoint) is not None

    async def _drafts(self) -> bool:
        """Whether usage has `speculation`, as Dovetail's has."""
        reply = await self._endpoint.send("POST", _CHAT, {**_PROBE, "model": self.model})
        return "speculation" in (from_body(reply.status, reply.body).usage or {})

    async def _refusal(self, fields: Mapping[str, Any]) -> str | None:
        """Why the endpoint refuses these fields; None if it does not."""
        reply = await self._endpoint.send("POST", _CHAT, {**_PROBE, **fields, "model": self.model})
        return None if reply.status == 200 else f"{reply.status}: {error_text(reply)}"

    def check_context(self, context: int, tokens: int) -> None:
        """Raises `NotTested` if the endpoint's context has no room."""
        if self._context is not None and context + tokens > self._context:
            raise NotTested(
                f"its context of {self._context} tokens has no room for {context} and {tokens} of the answer",
                blocking=False,
            )

    async def prompt(self, kind: Kind, context: int, own: str) -> dict[str, Any]:
        """A request whose prompt has `context` tokens. Raises `NotTested`.

        With `/tokenize` each prompt is counted. Without, one prompt that is not timed is counted by its usage, and
        `timed` checks the others.
        """
        known = self._shapes.get((kind, context))
        if known is None and kind == "calls":
            await self._check_calls()
        if known is None:
            known = await prompts.fitted(kind, context, f"{own} counted", self._count, self._empty)
            self._shapes[kind, context] = known
        if self._tokenizes:
            known = await prompts.fitted(kind, context, own, self._count, known)
        return prompts.request(kind, known, own)

    async def _check_calls(self) -> None:
        """Raises `NotTested` if the endpoint refuses a request that requires a call."""
        if self._refuses_calls is None:
            refused = await self._refusal({"tools": [TOOL], "tool_choice": "required"})
            if refused is None:
                return
            self._refuses_calls = f"it refuses a request that requires a call of a tool: {refused}"
        raise NotTested(self._refuses_calls, blocking=False)

    async def take(self, own: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
        """Count the tokens of the user's prompts, and put together those between the same powers of two.

        Returns the tokens of the longest prompt of each class, in order. Raises `NotTested`.
        """
        classes: dict[int, list[tuple[int, Mapping[str, Any]]]] = {}
        for request in own:
            count = await self._count(request)
            classes.setdefault(count.bit_length(), []).append((count, request))
        of = [classes[size] for size in sorted(classes)]
        self._own = {max(count for count, _ in each): [request for _, request in each] for each in of}
        return tuple(self._own)

    def own_prompt(self, context: int, number: int) -> Mapping[str, Any]:
        """The prompts of a class in turns. `context`: the tokens of its longest one."""
        return self._own[context][number % len(self._own[context])]

    async def counters(self) -> Reading | None:
        """vLLM's counters of draft tokens now; None if the endpoint has none."""
        return await reading(self._endpoint) if self._counts else None

    async def _count(self, request: Mapping[str, Any]) -> int:
        if self._tokenizes:
            count = await self._tokenized(request)
            if count is None:
                raise NotTested("/tokenize does not count a prompt with these tools")
            return count
        reply = await self._endpoint.send("POST", _CHAT, {**request, "model": self.model, "max_tokens": 1})
        answer = from_body(reply.status, reply.body)
        if answer.error is not None:
            raise NotTested(f"it refuses a prompt: {answer.error}", blocking=False)
        count = (answer.usage or {}).get("prompt_tokens")
        if not isinstance(count, int):
            raise NotTested("its answers have no usage")
        return count

    async def _tokenized(self, request: Mapping[str, Any]) -> int | None:
        body = {name: request[name] for name in ("messages", "tools") if name in request}
        reply = await self._endpoint.send("POST", "/tokenize", {**body, "model": self.model})
        if reply.status != 200:
            return None
        try:
            count = mapping(msgspec.json.decode(reply.body)).get("count")
        except msgspec.DecodeError:
            return None
        return count if isinstance(count, int) else None

    async def arrival(self, request: Mapping[str, Any], kind: Kind, tokens: int, extra: Mapping[str, Any]) -> Arrival:
        """The stream of one timed request of at most `tokens` tokens. Raises `NotTested` if it is not answered.

        The stream is not read here: that takes a millisecond and more, during which no other request could be timed.
        """
        fields = {**request, **self._fields, **(self._ignore_eos if kind == "prose" else {}), "max_tokens": tokens}
        body = msgspec.json.encode(merged({**fields, "model": self.model}, extra))
        self._endpoint.count()
        arrival = await self._transport.timed("POST", _CHAT, body)
        if arrival.reply.status == 429:
            raise NotTested("it limits rates (429)")
        if arrival.reply.status != 200:
            raise NotTested(f"it answered {arrival.reply.status}: {error_text(arrival.reply)}")
        return arrival


class Timed(msgspec.Struct, frozen=True):
    """A timed request with its answer."""

    sample: Sample
    answer: Answer


def timed(arrival: Arrival) -> Timed:
    """The times and the answer of a stream. Raises `NotTested` if there is nothing to be timed."""
    answer = from_events(arrival.reply.body)
    if answer.error is not None:
        raise NotTested(f"its stream has an error: {answer.error}")
    return Timed(sample(arrival), answer)
