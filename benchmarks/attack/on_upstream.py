"""Attacks from behind: servers of `--engine URL` that are silent, down, busy, or say what clients should not read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import dovetail
from benchmarks.attack import wire
from benchmarks.attack.on_payloads import chat
from benchmarks.attack.rows import Row, attack
from benchmarks.attack.served import serving
from benchmarks.attack.wire import CHAT
from tests.backends.remote.fake import Fake, sse, vllm_chunk

TARGET = Path(dovetail.__file__).parent / "data" / "demo" / "target"
_OPTIONS = ("--strict", "off", "--served-model-name", "dovetail-demo", "--drafter", "none")
_DEADLINES = ("--first-token-timeout", "1", "--engine-idle-timeout", "1", "--engine-down-timeout", "1")
_PRIVATE = "at /srv/models/kimi on gpu-17.internal:8000 Traceback (most recent call last): secret"


async def _silent(body: dict[str, Any]) -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


async def _stalls(body: dict[str, Any]) -> AsyncIterator[bytes]:
    yield sse(vllm_chunk([72]))
    yield sse(vllm_chunk([73]))
    await asyncio.Event().wait()


async def _endless_line(body: dict[str, Any]) -> AsyncIterator[bytes]:
    while True:
        yield b"data: " if not body.pop("begun", False) else b"a" * 65536
        body["begun"] = True


@attack
async def upstream() -> AsyncIterator[Row]:
    async with Fake(context=4096) as fake:
        options = (str(TARGET), "--engine", fake.url, *_OPTIONS, *_DEADLINES)
        async with serving(*options) as served:
            port, usual = served.port, fake.answer

            fake.answer = _silent
            began = time.monotonic()
            answer = await wire.ask(port, CHAT, chat())
            took = time.monotonic() - began
            yield Row(
                "a silent server", "504", f"{answer.status} after {took:.1f} s", answer.status == 504 and took < 20
            )

            fake.answer = _stalls
            answer = await wire.ask(port, CHAT, chat(stream=True))
            reported = b"engine_timeout" in answer.body and answer.status == 200
            yield Row(
                "a server that stalls in a stream", "an error event", "it comes" if reported else "none", reported
            )

            fake.answer, memory = _endless_line, served.memory
            answer = await wire.ask(port, CHAT, chat())
            grown = served.memory - memory
            yield Row(
                "an event without end", "an error; memory bounded", f"{answer.status}, {grown:+.0f} MB",
                answer.status in (500, 502, 504) and grown < 100,
            )  # fmt: skip

            fake.answer = usual
            for status in (429, 503):
                fake.pages["/v1/completions"] = (status, b"full", [("Retry-After", "17")])
                answer = await wire.ask(port, CHAT, chat())
                after = answer.header("retry-after")
                yield Row(
                    f"{status} with Retry-After: 17", "passed on", f"{answer.status}, {after}",
                    (answer.status, after) == (status, "17"),
                )  # fmt: skip

            shown = []
            for status in (400, 500):
                fake.pages["/v1/completions"] = (status, _PRIVATE.encode())
                answer = await wire.ask(port, CHAT, chat())
                shown += [word for word in ("/srv", "gpu-17", "secret", fake.name) if word in answer.error]
            yield Row(
                "paths, hosts and tracebacks in its texts", "not shown", ", ".join(shown) or "none shown", not shown
            )

            await fake.stop()
            answer = await wire.ask(port, CHAT, chat())
            yield Row("a server that is down", "502", f"{answer.status}: {answer.error[:60]}…", answer.status == 502)
