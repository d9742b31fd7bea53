"""vLLM as a child on a leash: its output in a log file and in memory, its end a future."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO

from dovetail.backends.vllm import leash

#: Between SIGTERM and SIGKILL. vLLM itself takes one to three seconds, tensor parallelism over many GPUs longer.
GRACE_S = 15.0
_REMEMBERED = 600  # lines; a start that failed in every process of eight wrote fewer after its first error
_LONGEST = 4000  # characters of a line
_CHUNK = 1 << 16


class Child:
    """`log` gets its output, and `heard` every line of it. Both live longer than one child."""

    def __init__(
        self, argv: Sequence[str], environment: Mapping[str, str], log: BinaryIO, heard: Callable[[str], None]
    ) -> None:
        self._argv = argv
        self._environment = environment
        self._log = log
        self._heard = heard
        self._leash: asyncio.subprocess.Process | None = None
        self._life: asyncio.Task[int] | None = None
        self.lines: collections.deque[str] = collections.deque(maxlen=_REMEMBERED)
        self.last_heard = time.monotonic()

    async def start(self) -> None:
        self._leash = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-I", "-S", leash.__file__, str(GRACE_S)),
            *self._argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self._environment,
            # The terminal's Ctrl-C is for us alone, who then end the child in order.
            start_new_session=True,
        )
        self._life = asyncio.create_task(self._live())

    @property
    def ended(self) -> bool:
        return self._life is not None and self._life.done()

    async def end(self) -> int:
        """Its exit code, 128 + N for signal N, when it and all it started have ended and everything is read."""
        assert self._life is not None, "start() comes first"
        return await asyncio.shield(self._life)

    async def stop(self) -> None:
        """End it and all it started, and wait for that."""
        if self._leash is None or self._leash.stdin is None:
            return
        self._leash.stdin.close()
        await self.end()

    async def _live(self) -> int:
        assert self._leash is not None and self._leash.stdout is not None
        rest = b""
        while chunk := await self._leash.stdout.read(_CHUNK):
            # Progress bars go back to the beginning of their line, and its formatter ends lines as DOS did.
            *lines, rest = (rest + chunk).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
            if len(rest) > _CHUNK:
                lines, rest = [*lines, rest], b""
            self._hear(lines)
        self._hear([rest] if rest else [])
        return await self._leash.wait()

    def _hear(self, lines: Sequence[bytes]) -> None:
        with contextlib.suppress(OSError):  # a disk that is full is no reason to end what serves
            self._log.write(b"".join(line + b"\n" for line in lines))
            self._log.flush()
        self.last_heard = time.monotonic()
        for line in lines:
            text = line.decode(errors="replace")[:_LONGEST]
            self.lines.append(text)
            self._heard(text)
