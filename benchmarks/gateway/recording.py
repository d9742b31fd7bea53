"""What a recording takes of decoding: `python -m benchmarks.gateway.recording [--json]`.

The demo pair behind the gateway, in this process. Blocks of the same requests alternate, with and without
`"dovetail": {"recording": true}`; a block ends when its recordings are on the disk. So the ratio has all that recording
takes: gathering steps, and the thread that spells tokens, computes masks, writes JSON and files, which shares the cores
with the engine. On a busy machine ratios of time say little; the CPU time of that thread, beside that of the whole
process, is what it takes there. The demo model is so small that this is the worst case.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import httpx

import dovetail
from benchmarks.engine.cases import DEMO
from dovetail.backends.embedded import EmbeddedEngine
from dovetail.engine.settings import EngineSettings
from dovetail.gateway import Settings, app, create_app
from dovetail.gateway.observe.capture import Captured, Captures
from dovetail.gateway.observe.recording_folder import SUFFIX, RecordingLimits, RecordingOptions

_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_MODEL = "demo"
#: The goal: what a recording may take of decoding.
GOAL = 0.03


class Block(NamedTuple):
    """One block: its seconds, the CPU seconds of all threads and of the one that writes, and the tokens of its
    answers."""

    seconds: float
    cpu_seconds: float
    writing: float
    tokens: int


class Result(NamedTuple):
    """Tokens per second without and with recordings; medians and quartiles of the ratios of neighbouring blocks, of
    tokens per second and of tokens per CPU second; microseconds of CPU time that the thread which writes takes for a
    token, and which part of the process's CPU time that is."""

    case: str
    plain: float
    recorded: float
    ratio: tuple[float, ...]
    cpu_ratio: tuple[float, ...]
    writing: float
    share: float


class Timed(Captures):
    """Captures that count the CPU seconds of making recordings."""

    seconds = 0.0

    def _made(self, captured: Captured, name: str) -> bytes | None:
        began = time.thread_time()
        try:
            return super()._made(captured, name)
        finally:
            Timed.seconds += time.thread_time() - began


def body(case: str, recorded: bool, tokens: int) -> dict[str, Any]:
    """One request: a call, which a grammar constrains, or text that goes on for `tokens`."""
    fields: dict[str, Any] = {"model": _MODEL, "temperature": 0, "max_tokens": tokens}
    fields["messages"] = [{"role": "user", "content": "Please get the weather for city Paris."}]
    fields |= {"tools": [_TOOL]} if case == "calls" else {"ignore_eos": True}
    return fields | ({"dovetail": {"recording": True}} if recorded else {})


async def block(
    client: httpx.AsyncClient, folder: Path, case: str, recorded: bool, requests: int, concurrency: int, tokens: int
) -> Block:
    """Answer `requests` requests, `concurrency` at a time, and wait for their recordings."""
    limit = asyncio.Semaphore(concurrency)
    data = body(case, recorded, tokens)

    async def one() -> int:
        async with limit:
            response = await client.post("/v1/chat/completions", json=data)
        assert response.status_code == 200, response.text
        return int(response.json()["usage"]["completion_tokens"])

    began, cpu, writing = time.perf_counter(), time.process_time(), Timed.seconds
    made = sum(await asyncio.gather(*(one() for _ in range(requests))))
    while recorded and len(list(folder.glob(f"*{SUFFIX}"))) < requests:
        await asyncio.sleep(0.001)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    for file in folder.glob(f"*{SUFFIX}"):
        file.unlink()
    return Block(seconds, cpu_seconds, Timed.seconds - writing, made)


async def measure(case: str, *, blocks: int, requests: int, concurrency: int, tokens: int) -> Result:
    """The figures of one case."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "recordings"
        engine = EmbeddedEngine(DEMO / "target", DEMO / "drafter", EngineSettings(draft_tokens=3, max_batch=16))
        options = RecordingOptions(folder, RecordingLimits(), when="requested")
        settings = Settings(served_model_name=_MODEL, recordings=options)
        app = create_app(engine, dovetail.format(DEMO / "target"), dovetail.tokenizer(DEMO / "target"), settings)
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://dovetail", timeout=120)
        async with app.router.lifespan_context(app), client:
            size = (requests, concurrency, tokens)
            for recorded in (False, True):  # the first ones are warm-up
                await block(client, folder, case, recorded, *size)
            pairs = []
            for number in range(blocks):
                first = bool(number % 2)
                pair = {each: await block(client, folder, case, each, *size) for each in (first, not first)}
                pairs.append(pair)
    return _result(case, pairs)


def _result(case: str, pairs: list[dict[bool, Block]]) -> Result:
    speeds = {each: [pair[each].tokens / pair[each].seconds for pair in pairs] for each in (False, True)}
    cpu = {each: [pair[each].tokens / pair[each].cpu_seconds for pair in pairs] for each in (False, True)}
    plain, recorded = (statistics.median(speeds[each]) for each in (False, True))
    with_them = [pair[True] for pair in pairs]
    writing = sum(each.writing for each in with_them)
    per_token = writing / sum(each.tokens for each in with_them) * 1e6
    share = writing / sum(each.cpu_seconds for each in with_them)
    return Result(case, plain, recorded, _ratio(speeds), _ratio(cpu), per_token, share)


def _ratio(speeds: dict[bool, list[float]]) -> tuple[float, ...]:
    """The lower quartile, the median and the upper quartile of the ratios of recorded to plain."""
    ratios = [recorded / plain for plain, recorded in zip(speeds[False], speeds[True], strict=True)]
    return tuple(statistics.quantiles(ratios, n=4))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway.recording", description=__doc__)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--requests", type=int, default=8, help="requests of a block")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=100, help="the most tokens of an answer")
    parser.add_argument("--json", action="store_true", help="print figures, not lines")
    options = parser.parse_args()
    app.Captures = Timed  # type: ignore[misc]
    size = {"requests": options.requests, "concurrency": options.concurrency, "tokens": options.tokens}
    results = [asyncio.run(measure(case, blocks=options.blocks, **size)) for case in ("calls", "text")]
    if options.json:
        print(json.dumps([result._asdict() for result in results], indent=2))
        return
    for it in results:
        (low, ratio, high), (cpu_low, cpu, cpu_high) = it.ratio, it.cpu_ratio
        print(f"{it.case}: {it.plain:,.0f} tokens/s, recorded {it.recorded:,.0f}")
        print(f"  {ratio:.3f} times ({low:.3f} to {high:.3f}); the goal is {1 - GOAL:.2f}")
        print(f"  {cpu:.3f} times per CPU second ({cpu_low:.3f} to {cpu_high:.3f})")
        print(f"  writing takes {it.writing:.0f} us a token, {it.share:.1%} of the CPU time")


if __name__ == "__main__":
    main()
