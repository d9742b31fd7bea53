"""An engine as a child process under a supervisor process: its output goes to a log file and to memory."""

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

from dovetail.backends.supervised import supervisor

_log = logging.getLogger(__name__)

#: Seconds between SIGTERM and SIGKILL. vLLM takes one to three; tensor parallelism over many GPUs takes longer.
GRACE_S = 15.0
_KEPT_LINES = 600  # a failed start of eight processes wrote fewer after its first error
_LINE_LENGTH = 4000
_CHUNK = 1 << 16
#: The environment variable by which descendants are found if the supervisor was killed.
_MARK = "DOVETAIL_SUPERVISOR"
_ORPHANS_OUTPUT_S = 1.0  # how long to read on after the supervisor was killed
_ORPHANS_GRACE_S = 2.0


class Child:
    """One run of the engine, which listens on the Unix socket `path`.

    Its output is appended to `log`, and each line is passed to `heard`. The supervisor waits `pause` seconds before it
    starts it, and removes `path` when Dovetail has gone. `path`, `log` and `heard` are shared by all runs.
    """

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
        self._mark = secrets.token_hex(16)
        self._environment = {**environment, _MARK: self._mark}
        self._log = log
        self._heard = heard
        self._supervisor: asyncio.subprocess.Process | None = None
        self._life: asyncio.Task[int] | None = None
        self._orphaned_at: float | None = None
        self.lines: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        self.last_output = time.monotonic()

    async def start(self) -> None:
        """Start the supervisor. Raises `OSError` if no process can be created."""
        starting = asyncio.ensure_future(
            asyncio.create_subprocess_exec(
                sys.executable,
                *("-I", "-S", supervisor.__file__, str(self._pause), str(GRACE_S), self._path),
                *self._argv,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=self._environment,
                # Ctrl-C in the terminal reaches Dovetail alone, which then ends the child in order.
                start_new_session=True,
            )
        )
        try:
            await asyncio.shield(starting)
        finally:
            # A cancelled start has started the process all the same.
            self._supervisor = await starting
            self._life = asyncio.create_task(self._run())

    @property
    def ended(self) -> bool:
        return self._life is not None and self._life.done()

    async def end(self) -> int:
        """Wait until all of its processes have exited and the output is read.

        Returns the exit code, or 128 + N for signal N.
        """
        assert self._life is not None, "start() comes first"
        return await asyncio.shield(self._life)

    async def stop(self) -> None:
        """End the engine and all of its processes, and wait for that."""
        if self._supervisor is None or self._supervisor.stdin is None:
            return
        self._supervisor.stdin.close()
        await self.end()

    async def _run(self) -> int:
        assert self._supervisor is not None and self._supervisor.stdout is not None
        rest = b""
        while chunk := await self._read(self._supervisor.stdout):
            # Progress bars write a carriage return instead of a newline.
            *lines, rest = (rest + chunk).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
            if len(rest) > _CHUNK:
                lines, rest = [*lines, rest], b""
            self._hear(lines)
        self._hear([rest] if rest else [])
        code = await self._supervisor.wait()
        if code >= 0:
            return code
        # The supervisor itself was killed.
        mark = f"{_MARK}={self._mark}".encode()
        await asyncio.to_thread(supervisor.end_orphans, self._supervisor.pid, mark, _ORPHANS_GRACE_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ORPHANS_OUTPUT_S):
                await self._supervisor.stdout.read()  # closes the pipe
        return 128 - code

    async def _read(self, output: asyncio.StreamReader) -> bytes:
        """The next output, b"" at its end. Processes that outlive the supervisor hold the pipe open, so reading stops
        `_ORPHANS_OUTPUT_S` seconds after the supervisor has gone."""
        assert self._supervisor is not None
        while True:
            if self._supervisor.returncode is not None:
                self._orphaned_at = self._orphaned_at or time.monotonic()
                if time.monotonic() > self._orphaned_at + _ORPHANS_OUTPUT_S:
                    return b""
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ORPHANS_OUTPUT_S):
                    return await output.read(_CHUNK)

    def _hear(self, lines: Sequence[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError):  # a full disk must not end a server that works
            self._log.write(b"".join(line + b"\n" for line in lines))
            self._log.flush()
        self.last_output = time.monotonic()
        for line in lines:
            text = line.decode(errors="replace")[:_LINE_LENGTH]
            self.lines.append(text)
            try:
                self._heard(text)
            except Exception:  # the engine would block for ever if its output were no longer read
                _log.exception("a line of the log was lost")
