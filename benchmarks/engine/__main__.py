"""The embedded engine, transformers and vLLM on the same token ids: greedy, as many tokens from each, one run.

Each engine is a process of its own with as many threads as the others. They take turns on the same prompts, which are
others in each turn; all prompts of a set are there at once. Shown are medians over turns: `decode` while every sequence
has its first token and not its last, `whole` from the prompts to the end. GB/s are the bytes that a step has to read
(weights that it uses, keys and values) by the time it takes, and the share is that of what as many threads read from
memory.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from benchmarks import tables
from benchmarks.engine import groups, report
from benchmarks.engine.cases import NAMES
from benchmarks.engine.workers import PEERS


def main() -> None:
    """Measure and print."""
    options = _options()
    errors = Console(stderr=True)
    results = {"machine": tables.machine(), "options": tables.plain(options), **groups.measured(options, errors)}
    if options.json:
        print(json.dumps(results, indent=2, ensure_ascii=False))
        return
    tables.show(report.sheets(results), report.notes(results), as_markdown=options.markdown, words=report.WORDS)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine", description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=NAMES, default=["demo", "demo-drafting", "llama"])
    dtypes = ["float32", "bfloat16", "int8"]
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="its weights in place of the cases, with llama.cpp")
    parser.add_argument("--dtypes", nargs="+", choices=dtypes, default=dtypes, help="int8: weights only, Dovetail only")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16], help="sequences at once")
    parser.add_argument("--draft-tokens", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt to the Llama")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of each sequence; 90 at most for demo")
    parser.add_argument("--turns", type=int, default=3)
    titles = [peer.title for peer in PEERS]
    parser.add_argument("--only", nargs="+", choices=titles, default=titles, help="rows to measure")
    parser.add_argument("--peers", type=Path, default=Path(".peers"), help="folder with the engines' environments")
    parser.add_argument("--vllm", type=Path, help="vLLM's environment, if it is not PEERS/vllm-cpu")
    parser.add_argument("--llama-cpp", type=Path, metavar="PROGRAM", help="if not PEERS/llama_cpp/llama-batched-bench")
    parser.add_argument("--json", action="store_true", help="print figures, not tables")
    parser.add_argument("--markdown", action="store_true", help="print tables as Markdown")
    options = parser.parse_args()
    options.llama_cpp = options.llama_cpp or options.peers / "llama_cpp" / "llama-batched-bench"
    options.vllm = options.vllm or options.peers / "vllm-cpu"
    return options


if __name__ == "__main__":
    main()
