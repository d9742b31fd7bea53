"""A server with known times, and a clock that waits for nobody: times come out exact, and tests take no time."""

from __future__ import annotations

import asyncio
import json
import selectors
from collections.abc import Coroutine, Mapping
from typing import Any

from dovetail.client.transport import Arrival, Reply

#: Words and letters of a prompt are one token each, and so is the rest together.
REST = 10


class _Skip(selectors.DefaultSelector):
    """Instead of waiting, it lets the time pass."""

    passed = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is not None and timeout > 0:
            self.passed += timeout
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skip = _Skip()
        super().__init__(self._skip)

    def time(self) -> float:
        return self._skip.passed


def in_no_time(main: Coroutine[Any, Any, Any]) -> Any:
    """The result of `main`, whose sleeps take no time but move the clock."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(main)


class Scripted:
    """A transport to a server that prefills in `first` seconds and decodes a token in `token` seconds.

    `burst`: tokens of each delta. `stop`: the tokens of an answer, if it ends early. `usage`: every, end or none.
    `refuses`: fields of requests that are refused. `drafts`: it is Dovetail, and drafting makes a token take half as
    long. `arguments`: of each call. `slow`: seconds that the first request of all takes longer. `counters`: it counts
    drafts in /metrics as vLLM does, and not in its answers. `of_tools`: tokens that tools add to a prompt.
    """

    def __init__(self, **script: Any) -> None:
        self.first, self.token, self.burst = 0.05, 0.01, 1
        self.stop: int | None = None
        self.usage, self.refuses = "every", ("dovetail",)
        self.drafts, self.tokenizes, self.context = False, True, 100_000
        self.arguments, self.slow, self.status = '{"city": "Paris"}', 0.0, 200
        self.counters, self.of_tools = False, 0
        self.__dict__.update(script)
        self.prompts: list[str] = []
        self.bodies: list[Mapping[str, Any]] = []
        self.at_once = self.most_at_once = 0

    async def send(self, method: str, path: str, body: bytes | None) -> Reply:
        return (await self.timed(method, path, body)).reply

    async def close(self) -> None:
        pass

    async def timed(self, method: str, path: str, body: bytes | None) -> Arrival:
        now = asyncio.get_running_loop().time
        request = json.loads(body or b"null")
        if path == "/metrics":
            return _page(self._counters(), now()) if self.counters else _whole({}, now(), 404)
        if path == "/v1/models":
            return _whole({"data": [{"id": "m", "max_model_len": self.context}]}, now())
        tools = self.of_tools if "tools" in request else 0
        count = REST + tools + len(request["messages"][0]["content"].split())
        if path == "/tokenize":
            return _whole({"count": count}, now(), 200 if self.tokenizes else 404)
        refused = [name for name in self.refuses if name in json.dumps(request)]
        if refused:
            return _whole({"error": {"message": f"{refused[0]} is unknown"}}, now(), 400)
        if not request.get("stream"):
            return _whole(self._answer(count), now())
        if request["max_tokens"] > 4 and self.status != 200:
            return _whole({"error": {"message": "no"}}, now(), self.status)
        self.bodies.append(request)
        self.prompts.append(request["messages"][0]["content"])
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        sent = now()
        try:
            return await self._stream(request, count, now, sent)
        finally:
            self.at_once -= 1

    def _counters(self) -> str:
        """Of four steps an answer, of which three accepted one draft token, and two of these another."""
        name = "vllm:spec_decode_num"
        answers = len(self.bodies)
        lines = [f"# TYPE {name}_drafts counter", f'{name}_drafts_total{{engine="0"}} {4.0 * answers}']
        lines.append(f"# TYPE {name}_accepted_tokens_per_pos counter")
        for position, stood in enumerate((3.0, 2.0)):
            lines.append(f'{name}_accepted_tokens_per_pos_total{{engine="0",position="{position}"}} {stood * answers}')
        return "\n".join(lines) + "\n"

    def _answer(self, count: int) -> Any:
        usage = {"prompt_tokens": count, "completion_tokens": 1, "total_tokens": count + 1}
        if self.drafts:
            usage["speculation"] = {"steps": 1, "drafted": 0, "accepted": 0, "forced": 0}
        message = {"role": "assistant", "content": "x"}
        return {"choices": [{"message": message, "finish_reason": "length"}], "usage": usage}

    async def _stream(self, request: Mapping[str, Any], count: int, now: Any, sent: float) -> Arrival:
        pieces: list[tuple[float, int]] = []
        body = bytearray()

        def write(chunk: Any) -> None:
            data = chunk if isinstance(chunk, str) else json.dumps({"id": "c", **chunk})
            body.extend(f"data: {data}\n\n".encode())
            pieces.append((now(), len(body)))

        tokens = request["max_tokens"] if self.stop is None else self.stop
        drafting = self.drafts and request.get("dovetail", {}).get("draft_tokens") != 0
        token = self.token / 2 if drafting else self.token
        slow, self.slow = self.slow if request["max_tokens"] > 4 else 0.0, self.slow * (request["max_tokens"] <= 4)
        await asyncio.sleep(self.first + slow)
        for at in range(0, tokens, self.burst):
            if at:
                await asyncio.sleep(token * min(self.burst, tokens - at))
            until = min(at + self.burst, tokens)
            usage = {"prompt_tokens": count, "completion_tokens": until, "total_tokens": count + until}
            every = {"usage": usage} if self.usage == "every" else {}
            write({"choices": [{"index": 0, "delta": self._delta(request, at, until - at)}], **every})
        called = "tools" in request
        write({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if called else "length"}]})
        if self.usage != "none":
            final: dict[str, Any] = {**usage, "prompt_tokens_details": {"cached_tokens": 0}}
            if self.drafts:
                steps = tokens // 2 if drafting else tokens
                final["speculation"] = {"steps": steps, "drafted": tokens, "accepted": tokens - steps, "forced": 1}
            speculation = {"num_spec_steps": 4, "num_draft_tokens": 8, "num_accepted_draft_tokens": 5}
            metrics = {"speculative_decoding": {**speculation, "acceptance_histogram": [1, 1, 2]}}
            reported = self.usage == "every" and not self.counters and not self.drafts
            write({"choices": [], "usage": final, **({"metrics": metrics} if reported else {})})
        write("[DONE]")
        return Arrival(Reply(200, {}, bytes(body)), sent, tuple(pieces))

    def _delta(self, request: Mapping[str, Any], at: int, tokens: int) -> Any:
        if "tools" not in request:
            return {"content": "x " * tokens}
        if at:
            return {"content": None}
        function = {"name": "get_weather", "arguments": self.arguments}
        return {"tool_calls": [{"index": 0, "id": "call_0", "type": "function", "function": function}]}


def _page(text: str, now: float) -> Arrival:
    data = text.encode()
    return Arrival(Reply(200, {}, data), now, ((now, len(data)),))


def _whole(body: Any, now: float, status: int = 200) -> Arrival:
    data = json.dumps(body).encode()
    return Arrival(Reply(status, {}, data), now, ((now, len(data)),))
