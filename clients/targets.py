"""What the clients talk to: the demo pair behind `dovetail serve`, and the scripted model in each wire format."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from clients.catalogue import DEMO
from clients.features import Target

_START_S = 120.0


class Server(NamedTuple):
    """A running target. `log`: the file in which the scripted engine records its completions."""

    name: str
    url: str
    log: Path | None

    def target(self, since: int = 0) -> Target:
        """The target, with what its engine recorded after the first `since` completions."""
        if self.log is None:
            return Target(self.name, self.url, "demo", reasons=True, scripted=False)
        lines = [json.loads(line) for line in self.log.read_text().splitlines()]
        reasons = self.name != "qwen3_coder"
        return Target(self.name, self.url, "scripted", reasons=reasons, scripted=True, completions=lines[since:])


@contextlib.contextmanager
def serving(name: str, folder: Path) -> Iterator[Server]:
    """The target of this name on a free port of loopback. Its log and what it printed are in `folder`."""
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    log = None if name == DEMO else folder / f"{name}.jsonl"
    if log is None:
        command = [sys.executable, "-m", "dovetail", "serve", "--port", str(port), "--served-model-name", "demo"]
    else:
        command = [sys.executable, "-m", "clients.scripted", name, "--port", str(port), "--log", str(log)]
    with (folder / f"{name}.out").open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            _wait(server, url)
            yield Server(name, url, log)
        finally:
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()


def _wait(server: subprocess.Popen[bytes], url: str) -> None:
    """Wait until the server answers. Raises `RuntimeError` if it ends, or takes too long."""
    deadline = time.monotonic() + _START_S
    while server.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            if answer.status == 200:
                return
        time.sleep(0.2)
    raise RuntimeError(f"the server did not start: {' '.join(map(str, server.args))}")  # type: ignore[union-attr]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
