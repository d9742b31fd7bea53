"""Run in a network namespace of its own: starts an image in a sandbox and asks it by OpenAI's client.

usage: python -m tests.image.sandboxed_call LAYOUT
"""

from __future__ import annotations

import fcntl
import json
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from openai import OpenAI

from dovetail.image.health import healthy
from dovetail.image.layout import read_layout
from dovetail.image.probe import TOOL
from dovetail.image.sandbox import sandboxed

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


def main(layout: str) -> None:
    assert [name for _, name in socket.if_nameindex()] == ["lo"], "there is a network"
    _start_loopback()
    with serving(layout, 8000, "--port", "8000") as start_s:
        print(json.dumps({"start_s": start_s} | asked(8000)))


def _start_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh", b"lo", 0)
        flags = struct.unpack("16sh", fcntl.ioctl(control, _SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh", b"lo", flags | _IFF_UP))


@contextmanager
def serving(folder: str, port: int, *words: str) -> Iterator[float]:
    """An image that serves in a sandbox, and the seconds until it was healthy."""
    layout = read_layout(Path(folder))
    with tempfile.TemporaryDirectory() as scratch:
        layout.unpack(Path(scratch) / "root")
        Path(scratch).chmod(0o755)
        command = sandboxed(layout.config, Path(scratch) / "root", {}, [*(layout.config.entrypoint or ()), *words])
        command.insert(command.index("--unshare-all") + 1, "--share-net")  # this namespace has nothing but loopback
        began = time.monotonic()
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            while not healthy(port):
                assert server.poll() is None, f"the server ended with {server.returncode}"
                assert time.monotonic() - began < 300, "the server was not healthy after 300 s"
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
