"""vLLM as a child on a leash: its output in a log file and in memory, its end a future."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO

from dovetail.backends.vllm import leash

_log = logging.getLogger(__name__)

#: Between SIGTERM and SIGKILL. vLLM itself takes one to three seconds, tensor parallelism over many GPUs longer.
GRACE_S = 15.0
_REMEMBERED = 600  # lines; a start that failed in every process of eight wrote fewer after its first error
_LONGEST = 4000  # characters of a line
_CHUNK = 1 << 16
_MARK = "DOVETAIL_LEASH"
_ORPHANED_S = 1.0  # for the output to end once the leash has
_ORPHANS_GRACE_S = 2.0  # of those whose leash was killed


class Child:
    """It listens on the Unix socket `path`. `log` gets its output, and `heard` every line of it. All of them live
    longer than one child. It is started `pause` seconds after its leash, which looks after `path` from then on."""

    def __init__(
        self,
        argv: Sequence[str],
        environment: Mapping[str, str],
        path: str,
        log: BinaryIO,
        heard: Callable[[str], None],
        pause: float = 0,
    ) -> None:
        self._argv, self._path, self._pause = argv, path, pause
        # By which those are found who have outlived their leash.
        self._mark = secrets.token_hex(16)
        self._environment = {**environment, _MARK: self._mark}
        self._log = log
        self._heard = heard
        self._leash: asyncio.subprocess.Process | None = None
        self._life: asyncio.Task[int] | None = None
        self._orphaned: float | None = None  # since when the leash is gone
        self.lines: collections.deque[str] = collections.deque(maxlen=_REMEMBERED)
        self.last_heard = time.monotonic()

    async def start(self) -> None:
        """Raises `OSError` where there can be no process."""
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                sys.executable,
                *("-I", "-S", leash.__file__, str(self._pause), str(GRACE_S), self._path),
                *self._argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=self._environment,
                # The terminal's Ctrl-C is for us alone, who then end the child in order.
                start_new_session=True,
            )
        )
        try:
            await asyncio.shield(starting)
        finally:
            # Whoever is cancelled here has started it all the same.
            self._leash = await starting
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
        while chunk := await self._read(self._leash.stdout):
            # Progress bars go back to the beginning of their line, and its formatter ends lines as DOS did.
            *lines, rest = (rest + chunk).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
            if len(rest) > _CHUNK:
                lines, rest = [*lines, rest], b""
            self._hear(lines)
        self._hear([rest] if rest else [])
        code = await self._leash.wait()
        if code >= 0:
            return code
        await asyncio.to_thread(
            leash.end_without_leash, self._leash.pid, f"{_MARK}={self._mark}".encode(), _ORPHANS_GRACE_S
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ORPHANED_S):
                await self._leash.stdout.read()  # to its end, which closes it
        return 128 - code

    async def _read(self, output: asyncio.StreamReader) -> bytes:
        """What is written next; b"" at its end, which those who have outlived their leash would put off for ever."""
        assert self._leash is not None
        while True:
            if self._leash.returncode is not None:
                self._orphaned = self._orphaned or time.monotonic()
                if time.monotonic() > self._orphaned + _ORPHANED_S:
                    return b""
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ORPHANED_S):
                    return await output.read(_CHUNK)

    def _hear(self, lines: Sequence[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError):  # a disk that is full is no reason to end what serves
            self._log.write(b"".join(line + b"\n" for line in lines))
            self._log.flush()
        self.last_heard = time.monotonic()
        for line in lines:
            text = line.decode(errors="replace")[:_LONGEST]
            self.lines.append(text)
            try:
                self._heard(text)
            except Exception:  # its output has to be read, whatever becomes of it: else it would wait for us for ever
                _log.exception("a line of the log was lost")
