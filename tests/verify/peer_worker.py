"""`python -m tests.verify.peer_worker ENGINE`: another engine's own streaming parsers, asked in lines of JSON.

Runs inside that engine's environment (benchmarks/reading/setup.sh). A line opens a stream, feeds it, or ends it; the
answer is what the parser returned, as pieces (benchmarks/reading/measure.py).
"""

from __future__ import annotations

import importlib
import json
import sys

from benchmarks.reading.measure import Stream


def main(engine: str) -> None:
    _, open_family = importlib.import_module(f"benchmarks.reading.worker_{engine}").load()
    streams: dict[int, Stream] = {}
    for line in sys.stdin:
        asked = json.loads(line)
        number = asked["stream"]
        if "job" in asked:
            streams[number] = open_family(asked["job"])()
            pieces = []
        elif asked["last"]:
            stream = streams.pop(number)
            pieces = list(stream.read(stream.last(asked["text"], asked["ids"])))
        else:
            pieces = list(streams[number].read(streams[number].feed(asked["text"], asked["ids"])))
        sys.stdout.write(json.dumps(pieces) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
