"""The deadlines of a plan reach the engine that it configures."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import dovetail
from dovetail.cli.external_engines import external_engine
from dovetail.cli.serve import plan_format
from dovetail.cli.startup_progress import StartupProgress
from dovetail.completion import Engine
from dovetail.errors import EngineError
from dovetail.plan import resolve
from tests.backends.remote.fake import Answer, Fake, completion, run, sse, vllm_chunk


async def silent(body: dict[str, Any]) -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


async def stalling(body: dict[str, Any]) -> AsyncIterator[bytes]:
    yield sse(vllm_chunk([5]))
    await asyncio.Event().wait()


def engine_of(pair: Path, url: str, **settings: float) -> Engine:
    console = Console(file=io.StringIO())
    plan = resolve(str(pair / "target"), {"engine": url, "strict": "off", "drafter": "none", **settings})
    tokenizer = dovetail.tokenizer(pair / "target")
    return external_engine(plan, plan_format(plan), tokenizer, StartupProgress(console, "vLLM"), console)


@pytest.mark.parametrize(
    ("setting", "answer", "message"),
    [
        ("first_token_timeout", silent, "sent no token for 0.1 seconds"),
        ("engine_idle_timeout", stalling, "sent no further token for 0.1 seconds"),
        ("engine_down_timeout", None, "no engine answered for 0.1 seconds"),
    ],
)
def test_a_deadline(pair: Path, setting: str, answer: Answer | None, message: str) -> None:
    async def main() -> None:
        async with Fake() as fake:
            engine = engine_of(pair, fake.url, **{setting: 0.1})
            await engine.start()
            if answer is None:
                await fake.stop()
            else:
                fake.answer = answer
            with pytest.raises(EngineError, match=message):
                async for _ in engine.complete(completion()):
                    pass
            await engine.stop()

    run(main)
