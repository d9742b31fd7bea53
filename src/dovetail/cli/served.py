"""`dovetail serve` in a process of its own, for commands that measure it."""

from __future__ import annotations

import contextlib
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from dovetail.client.probe import healthy
from dovetail.errors import InvalidRequest

_END_S = 30.0
#: Below the ports that systems hand out by themselves, one of which another program could get before the child.
_PORTS = range(20_000, 32_000)


def _free_port() -> int:
    while True:
        port = random.choice(_PORTS)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@contextlib.contextmanager
def served(what: str, *words: str, within: float | None = None) -> Iterator[str]:
    """The URL of `dovetail serve WORDS`, once it is healthy.

    Raises `InvalidRequest`, which names `what` and the last line of its errors, if it ends instead, or is not healthy
    `within` these seconds.
    """
    port = _free_port()
    command = [sys.executable, "-m", "dovetail", "serve", *words, "--port", str(port)]
    with tempfile.TemporaryFile() as complaints:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=complaints)
        try:
            deadline = None if within is None else time.monotonic() + within
            while not healthy(port):
                if (code := child.poll()) is not None or (deadline is not None and time.monotonic() > deadline):
                    complaints.seek(0)
                    last = complaints.read().decode(errors="replace").strip().rpartition("\n")[2]
                    reason = last or (f"nothing after {within:.0f} s" if code is None else f"exit code {code}")
                    raise InvalidRequest(f"{what} does not start: {reason.removeprefix('dovetail: ')}")
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            child.terminate()
            try:
                child.wait(_END_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
