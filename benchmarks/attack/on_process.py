"""Attacks on the process: its files, its output and its end."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks.attack import wire
from benchmarks.attack.on_payloads import chat
from benchmarks.attack.on_upstream import TARGET
from benchmarks.attack.rows import Row, attack
from benchmarks.attack.served import serving
from benchmarks.attack.wire import CHAT

_LONG = {"max_tokens": 3000, "ignore_eos": True, "stream": True}


@attack
async def the_end() -> AsyncIterator[Row]:
    for signals, grace in (((signal.SIGINT, signal.SIGINT), "30"), ((signal.SIGTERM,), "1")):
        async with serving("--grace", grace, "--max-batch", "4") as served:
            await wire.ask(served.port, CHAT, chat())
            running = [asyncio.create_task(wire.ask(served.port, CHAT, chat(**_LONG))) for _ in range(12)]
            await asyncio.sleep(2)
            served.process.send_signal(signals[0])
            await asyncio.sleep(0.3)
            ready = (await wire.get(served.port, "/ready")).status
            late = await wire.ask(served.port, CHAT, chat())
            for number in signals[1:]:
                served.process.send_signal(number)
            answers = await asyncio.gather(*running)
            code = await asyncio.to_thread(served.process.wait, 60)
            kinds = Counter(_kind(answer) for answer in answers)
            traces = served.log.count("Traceback")
            yield Row(
                f"{' twice '.join(['Ctrl-C', '']) if len(signals) == 2 else 'SIGTERM '}with 12 requests".strip(),
                "clear errors only; 503 to whoever waits; exit code 0",
                f"{', '.join(f'{count} {kind}' for kind, count in kinds.items())}; then /ready {ready}, a request "
                f"{late.status}; {traces} tracebacks, exit code {code}",
                not traces and code == 0 and ready == 503 and late.status == 503 and "unclear" not in kinds,
            )


def _kind(answer: wire.Answer) -> str:
    if answer.status == 503 and answer.error and answer.header("retry-after"):
        return "503 with Retry-After"
    if answer.status == 200 and b"[DONE]" in answer.body:
        return "whole"
    last = [line for line in answer.body.split(b"\n") if line.startswith(b"data: {")]
    return "ended by an error event" if last and "error" in json.loads(last[-1][6:]) else "unclear"


@attack
async def a_garbage_header() -> AsyncIterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        broken = Path(folder) / "target"
        shutil.copytree(TARGET, broken)
        wrong = []
        headers = [
            b"\xff" * 64,
            b"{" * 64,
            b"[]",
            b"\0" * 64,
            b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,9]}}',
        ]
        weights = next(broken.glob("*.safetensors"))
        for header in headers:
            weights.write_bytes(len(header).to_bytes(8, "little") + header)
            command = [sys.executable, "-m", "dovetail", "serve", str(broken), "--drafter", "none", "--port", "1"]
            done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
            if done.returncode != 2 or done.stderr.count("\n") != 1 or not done.stderr.startswith("dovetail: "):
                wrong.append(done.stderr[-200:])
        yield Row(
            f"garbage in a safetensors header, {len(headers)} kinds", "one clear line",
            "one line each" if not wrong else "; ".join(wrong), not wrong,
        )  # fmt: skip


@attack
async def output() -> AsyncIterator[Row]:
    source, sink = os.pipe()
    try:
        async with serving(output=sink) as served:
            os.set_blocking(sink, False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.write(sink, b"x" * 4096)
            os.set_blocking(sink, True)
            size = fcntl.fcntl(sink, 1032)  # F_GETPIPE_SZ
            yield await _lives(served.port, f"stdout and stderr are a pipe ({size >> 10} KiB), which is full")
    finally:
        os.close(source)
        os.close(sink)
    source, sink = os.pipe()
    async with serving(output=sink) as served:
        os.close(source)
        yield await _lives(served.port, "stdout and stderr are a pipe whose reader leaves")
    os.close(sink)


async def _lives(port: int, name: str) -> Row:
    statuses = []
    for _ in range(20):
        await wire.send(port, b"\x16\x03\x01", seconds=1)  # is logged
        statuses.append((await wire.ask(port, CHAT, chat())).status)
    return Row(name, "serves on", f"{statuses.count(200)} of {len(statuses)} requests answered", set(statuses) == {200})
