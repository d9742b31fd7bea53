"""Asks a server again and again, from a process and an address of its own, until standard input ends.

Prints the latencies in milliseconds as JSON; a failure counts as a minute. Asks for /health, or with a BODY for a chat
completion. Run: python -m benchmarks.attack.watch PORT [BODY]
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time

from benchmarks.attack import wire

_EVERY_S = 0.01
_FAILED_MS = 60_000.0
_ASK = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
_SOURCE = ("127.0.0.2", 0)


def main() -> None:
    port, latencies = int(sys.argv[1]), []
    ask = wire.post(wire.CHAT, sys.argv[2].encode()) if len(sys.argv) > 2 else _ASK
    while not select.select([sys.stdin], [], [], _EVERY_S)[0]:
        latencies.append(_latency(port, ask))
    print(json.dumps(latencies))


def _latency(port: int, ask: bytes) -> float:
    began = time.perf_counter()
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=60, source_address=_SOURCE) as connection:
            connection.sendall(ask)
            healthy = connection.recv(64).startswith(b"HTTP/1.1 200")
    except OSError:
        healthy = False
    return (time.perf_counter() - began) * 1e3 if healthy else _FAILED_MS


if __name__ == "__main__":
    main()
