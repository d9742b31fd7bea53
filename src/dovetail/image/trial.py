"""The trial inside a sandbox: starts an image's server, waits for its health, asks it for a call, and stops it.

It runs with the image's own Python, so that the sandbox needs no port to the outside.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence

from dovetail.image.health import healthy
from dovetail.image.probe import probe

_POLL_S = 0.2
_END_S = 60.0


def trial(command: Sequence[str], port: int, *, drafts: bool, patience_s: float) -> dict[str, object]:
    """What came of it: `problem`, None if all is well, `start_s`, and what the probe counted."""
    began = time.monotonic()
    server = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        while not healthy(port):
            if server.poll() is not None:
                last = (server.communicate()[1] or "").strip().splitlines()[-1:]
                return {"problem": f"the server ended with exit code {server.returncode}: {' '.join(last)}"}
            if time.monotonic() - began > patience_s:
                return {"problem": f"the server was not healthy after {patience_s:.0f} s"}
            time.sleep(_POLL_S)
        start = time.monotonic() - began
        return {**probe(port, drafts=drafts)._asdict(), "start_s": round(start, 1)}
    finally:
        server.terminate()
        try:
            server.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.communicate()


if __name__ == "__main__":
    wish = json.loads(sys.argv[1])
    result = trial(wish["command"], wish["port"], drafts=wish["drafts"], patience_s=wish["patience_s"])
    print(json.dumps(result))
    sys.exit(result["problem"] is not None)
