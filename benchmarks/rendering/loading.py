"""How long it takes to make the format of a chat template: to compile, probe and prove it, in CPU time.

`python -m benchmarks.rendering.loading SHARED_DATA`: the fastest of five rounds over all published templates, each as
its family reads it, and those that have one by their `response_template` alone. Printed are the median and the slowest.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import tables
from dovetail.formats.derived import jinja
from tests.formats import chat_templates, response_templates

ROUNDS, SHOWN = 5, 10


def main() -> None:
    data = Path(sys.argv[1])
    sources = {
        f"{path.parent.name}/{path.stem}": path.read_text(encoding="utf-8") for path in chat_templates.paths(data)
    }
    jobs: list[tuple[str, Any]] = [(name, None) for name in sources]
    jobs += response_templates.PUBLISHED.items()
    fastest: dict[str, float] = {}
    for _ in range(ROUNDS):
        for name, spec in jobs:
            jinja._jinja.cache_clear()
            literals = chat_templates.controls(sources[name])
            started = time.process_time()
            fmt = chat_templates.of_source(
                sources[name], literals, response_template=spec, native=spec is None, generic_tools=spec is None
            )
            took = time.process_time() - started
            row = f"{name} by {fmt.family_name}"
            fastest[row] = min(fastest.get(row, took), took)
    print(f"{tables.machine()}; {len(fastest)} formats, median {1000 * statistics.median(fastest.values()):.0f} ms")
    for row, took in sorted(fastest.items(), key=lambda each: -each[1])[:SHOWN]:
        print(f"{1000 * took:5.0f} ms  {row}")


if __name__ == "__main__":
    main()
