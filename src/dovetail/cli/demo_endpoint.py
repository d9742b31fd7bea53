"""The bundled demo model, served for as long as a command needs it."""

from __future__ import annotations

import contextlib
import http.client
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from dovetail.errors import InvalidRequest

_START_S, _END_S = 300.0, 30.0


@contextlib.contextmanager
def demo_endpoint() -> Iterator[str]:
    """The URL of `dovetail serve` in a process of its own. Raises `InvalidRequest` if it does not start."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    command = [sys.executable, "-m", "dovetail", "serve", "--port", str(port)]
    with tempfile.TemporaryFile() as complaints:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=complaints)
        try:
            deadline = time.monotonic() + _START_S
            while not _serves(port):
                if (code := child.poll()) is not None or time.monotonic() > deadline:
                    complaints.seek(0)
                    last = complaints.read().decode(errors="replace").strip().rpartition("\n")[2]
                    reason = last or (f"nothing after {_START_S:.0f} s" if code is None else f"exit code {code}")
                    raise InvalidRequest(f"the demo model does not start: {reason}")
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            child.terminate()
            try:
                child.wait(_END_S)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _serves(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
