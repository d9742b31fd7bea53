"""Run in a network namespace of its own: starts images in sandboxes and asks the last by OpenAI's client.

usage: python -m tests.image.sandboxed_call SERVERS   a JSON array of `Server`
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from openai import OpenAI

from dovetail.image.health import healthy
from dovetail.image.layout import read_layout
from dovetail.image.probe import TOOL
from dovetail.image.sandbox import sandboxed

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_PATIENCE_S = 900.0


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """An image's layout and what to run in it. `words`: after its entrypoint; `program`: in place of that.

    `mounts`: a folder here -> its path there.
    """

    layout: str
    port: int
    words: list[str] = []
    program: list[str] | None = None
    mounts: dict[str, str] = {}


def main(wish: str) -> None:
    assert [name for _, name in socket.if_nameindex()] == ["lo"], "there is a network"
    _start_loopback()
    servers = msgspec.json.decode(wish, type=list[Server])
    with contextlib.ExitStack() as stack:
        starts = [stack.enter_context(serving(server)) for server in servers]
        print(json.dumps({"start_s": starts} | asked(servers[-1].port)))


def _start_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh", b"lo", 0)
        flags = struct.unpack("16sh", fcntl.ioctl(control, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags | _IFF_UP))


@contextlib.contextmanager
def serving(wish: Server) -> Iterator[float]:
    """An image that serves in a sandbox, and the seconds until it was healthy."""
    layout = read_layout(Path(wish.layout))
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile("w+") as log:
        root = Path(scratch) / "root"
        layout.unpack(root)
        for there in wish.mounts.values():
            (root / there.strip("/")).mkdir(parents=True, exist_ok=True)
        Path(scratch).chmod(0o755)
        program = wish.program or [*(layout.config.entrypoint or ()), *wish.words]
        mounts = {Path(here): there for here, there in wish.mounts.items()}
        command = sandboxed(layout.config, root, mounts, program)
        command.insert(command.index("--unshare-all") + 1, "--share-net")  # this namespace has nothing but loopback
        began = time.monotonic()
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

        def ended() -> str:
            log.seek(0)
            return log.read()[-4000:]

        try:
            while not healthy(wish.port):
                assert server.poll() is None, f"the server ended with {server.returncode}: {ended()}"
                assert time.monotonic() - began < _PATIENCE_S, f"not healthy after {_PATIENCE_S:.0f} s: {ended()}"
                time.sleep(0.1)
            yield round(time.monotonic() - began, 1)
        finally:
            server.terminate()
            server.wait()


def asked(port: int) -> dict[str, object]:
    client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
    answer = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": "Please get the weather for city Paris."}],
        tools=[TOOL],  # type: ignore[list-item]
        temperature=0,
    )
    call = (answer.choices[0].message.tool_calls or [])[0]
    function = call.function  # type: ignore[union-attr]
    speculation = answer.usage.speculation if answer.usage else {}  # type: ignore[attr-defined]
    return {"name": function.name, "arguments": json.loads(function.arguments), "speculation": speculation}


if __name__ == "__main__":
    main(sys.argv[1])
