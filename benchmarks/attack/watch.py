"""Asks a server for its /health again and again, from a process of its own, until standard input ends.

Prints the latencies in milliseconds as JSON; a failure counts as a minute. Run: python -m benchmarks.attack.watch PORT
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time

_EVERY_S = 0.01
_FAILED_MS = 60_000.0
_ASK = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"


def main() -> None:
    port, latencies = int(sys.argv[1]), []
    while not select.select([sys.stdin], [], [], _EVERY_S)[0]:
        latencies.append(_latency(port))
    print(json.dumps(latencies))


def _latency(port: int) -> float:
    began = time.perf_counter()
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(_ASK)
            healthy = connection.recv(64).startswith(b"HTTP/1.1 200")
    except OSError:
        healthy = False
    return (time.perf_counter() - began) * 1e3 if healthy else _FAILED_MS


if __name__ == "__main__":
    main()
