"""No command needs a standard stream, and neither does a server."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.cli.test_serve import free_port

BODY = {"model": "target", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "temperature": 0}


def fill(sink: int) -> int:
    """Write into a pipe until it is full. Returns how many bytes it took."""
    written = 0
    os.set_blocking(sink, False)
    for size in (4096, 1):
        with contextlib.suppress(BlockingIOError):
            while True:
                written += os.write(sink, b"x" * size)
    os.set_blocking(sink, True)
    return written


def ready(child: subprocess.Popen[bytes], port: int) -> None:
    """Wait until the server answers."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        assert child.poll() is None
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"http://127.0.0.1:{port}/health", timeout=60).status_code == 200:
                break
        time.sleep(0.05)


@pytest.mark.slow
def test_a_server_serves_without_standard_streams(pair: Path) -> None:
    port = free_port()
    command = 'exec "$@" <&- >&- 2>&-'
    words = [sys.executable, "-m", "dovetail", "serve", str(pair / "drafter"), "--port", str(port), "--context", "256"]
    with subprocess.Popen(["sh", "-c", command, "sh", *words]) as child:
        try:
            ready(child, port)
            answer = httpx.post(f"http://127.0.0.1:{port}/v1/chat/completions", json=BODY, timeout=60)
            child.send_signal(signal.SIGTERM)
            assert child.wait(60) == 0
        finally:
            child.kill()
    assert answer.status_code == 200


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("command", "code"), [("recipes", 0), ("recipes none", 2)])
def test_a_command_needs_no_standard_stream(closed: str, command: str, code: int) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "dovetail", *command.split()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert closed != "<&-" or (done.stderr if code else done.stdout)
