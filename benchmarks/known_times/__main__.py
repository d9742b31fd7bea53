"""Measures the server with known times, and fails where a median is more than 2 % off what the server wrote."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request

from benchmarks.known_times.server import BURST, FIRST_S, TOKEN_S

TOKENS = 121
MOST_OFF = 0.02


def _known(first: float, token: float) -> dict[str, float]:
    """The figures of a server that writes first after `first` seconds, and then each token in `token` seconds."""
    return {
        "ttft_ms": 1000 * first,
        "tpot_ms": 1000 * token,
        "decode_tokens_per_second": 1 / token,
        "gap_ms": 1000 * token * BURST,
        "end_to_end_ms": 1000 * (first + token * (TOKENS - BURST)),
    }


def main() -> int:
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.known_times.server"], stdout=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            return max([_measured(port, concurrency) for concurrency in (1, 20, 64)])
        finally:
            server.terminate()


def _measured(port: int, concurrency: int) -> int:
    """Print each figure beside the known one; 1 if one is off."""
    words = ["bench", f"http://127.0.0.1:{port}", "--matrix", f"500 x {concurrency}", "--kinds", "prose", "--json"]
    command = [sys.executable, "-m", "dovetail", *words, "--tokens", str(TOKENS), "--requests", "4"]
    result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    (cell,) = result["cells"]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/times") as reply:
        first, token = json.load(reply)
    late = f"the server's own times are {first / FIRST_S - 1:+.1%} and {token / TOKEN_S - 1:+.1%} off its script"
    print(f"{concurrency} at once; {late}; the client took {result['client']['cpu_share']:.0%} of a core")
    code = 0
    for name, known in _known(first, token).items():
        off = cell[name]["p50"] / known - 1
        code |= abs(off) > MOST_OFF
        print(f"  {name:26}{cell[name]['p50']:10.3f}  known {known:8.2f}  {off:+.2%}")
    return code


if __name__ == "__main__":
    sys.exit(main())
