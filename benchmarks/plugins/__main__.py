"""Dovetail's parsers inside vLLM beside vLLM's own: how often each reads an output wrong, and what a delta costs.

Both through vLLM's own composition of parsers, detokenizer and endpoint code (`tests/plugins/vllm/inside.py`), with the
same request, on the same outputs in the same groups of tokens, each by its own flags. Outputs are what the model
writes: small messages with a call or two, and the same ones with a sentence about one of the model's own markers. The
model's control tokens are added to a real tokenizer (--tokenizers), else to a small one that is trained on the spot.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import tables
from benchmarks.reading.families import FAMILIES
from benchmarks.reading.measure import fault
from benchmarks.reading.texts import TOOLS, long_call, sample, value
from benchmarks.reading.texts import Message as Said
from dovetail.errors import DovetailError
from dovetail.events import Call, Message
from dovetail.formats import registry
from tests.plugins.vllm.conftest import Inside, checkpoint, prompt_of, tokenizer_in
from tests.reading import families

#: Tokens in a delta, on average; None: all in one.
MEANS = (1, 4, 16, None)
#: Characters of the long argument, read a token at a time.
LONG = 10_000
#: vLLM reads gpt-oss itself, in that model's own vocabulary, and takes no parser for it.
NAMES = tuple(name for name, family in registry.FAMILIES.items() if family.vllm_parsers and name != "harmony")
#: Families whose tokenizers have all their markers as special tokens; in others only ends of turns are, the rest is
#: added and not special.
ALL_SPECIAL = ("mistral", "llama3_json", "pythonic")


@dataclass(frozen=True)
class Case:
    """One family in one environment, and a folder with its tokenizer."""

    worker: Inside
    name: str
    folder: Path

    def ask(self, do: str, dovetails: bool, groups: list[list[int]], **more: Any) -> Any:
        tools: str | None = f"dovetail_{self.name}"
        reasoning = tools
        if not dovetails:
            own = registry.FAMILIES[self.name].vllm_parsers
            tools, reasoning = (own.calls, own.reasoning) if own else (None, None)
        return self.worker.ask(
            do,
            tool_parser=tools,
            reasoning_parser=reasoning,
            folder=str(self.folder),
            tools=TOOLS,
            prompt=prompt_of(self.name, families.opened(self.name, True), self.folder),
            groups=groups,
            ended=True,
            # DeepSeek's parsers take reasoning to be off unless the request turned it on, as its template does.
            options={"thinking": True, "enable_thinking": True} if families.reasons(self.name, True) else {},
            **more,
        )

    def ids(self, message: Message) -> list[int]:
        written = families.format_of(self.name).write(message, thinking=True)
        return written.ids(tokenizer_in(self.folder))

    def wrong(self, dovetails: bool, count: int, about: bool) -> list[int]:
        """By mean: how many of `count` outputs were read wrong."""
        found = []
        for mean in MEANS:
            faults: Counter[str] = Counter()
            for seed, message in enumerate(messages(self.name, count, about)):
                groups = cut(self.ids(message), mean, seed)
                faults[why(self.ask("streamed", dovetails, groups), message) or ""] += 1
            found.append(count - faults[""])
        return found

    def microseconds(self, dovetails: bool) -> float:
        """A delta of one token in a long call."""
        message = spelled(long_call(value("code", LONG), reasoning=families.reasons(self.name, True)))
        took = self.ask("timed", dovetails, [[token] for token in self.ids(message)], runs=5)
        return 1e6 * float(took["seconds"]) / int(took["deltas"])


def spelled(sampled: Said, more: str = "") -> Message:
    calls = (
        Call(f"functions.{tool}:{index}", tool, json.dumps(arguments, ensure_ascii=False))
        for index, (tool, arguments) in enumerate(sampled.calls)
    )
    return Message(sampled.content + more, sampled.reasoning, tuple(calls))


def messages(name: str, count: int, about: bool) -> Iterator[Message]:
    thinks, may = families.reasons(name, True), FAMILIES[name]
    literals = families.controls(name)
    for seed in range(count):
        sampled = sample(seed, reasoning=thinks, content=may.mixes, parallel=may.parallel)
        yield spelled(sampled, f" It is spelled {literals[seed % len(literals)]} there." if about else "")


def cut(ids: list[int], mean: int | None, seed: int) -> list[list[int]]:
    choose = random.Random(seed)
    groups: list[list[int]] = []
    while ids:
        size = len(ids) if mean is None else choose.randint(1, 2 * mean - 1)
        groups.append(ids[:size])
        ids = ids[size:]
    return groups


def why(answer: dict[str, Any], message: Message) -> str | None:
    if "error" in answer:
        return "error"
    pieces = [("content", 0, answer["content"]), ("reasoning", 0, answer["reasoning"])]
    for index, call in enumerate(answer["calls"]):
        pieces += [("name", index, call["name"]), ("arguments", index, call["arguments"])]
    calls = [{"name": call.name, "arguments": json.loads(call.arguments)} for call in message.calls]
    return fault(pieces, {"calls": calls, "content": message.content, "reasoning": message.reasoning})


def real_tokenizer(name: str, folder: Path | None) -> Path | None:
    """The family's own tokenizer.json, or the nearest one, below `folder`."""
    if folder is None:
        return None
    own = folder / FAMILIES[name].tokenizer
    own = own / "tokenizer.json" if own.is_dir() else own
    return own if own.is_file() else folder / "qwen2.tokenizer.json"


def row(case: Case, count: int) -> list[str]:
    cells = [case.worker.version, case.name]
    for dovetails in (False, True):
        for about in (False, True):
            try:
                if about and not FAMILIES[case.name].mixes:
                    raise DovetailError("its calls stand alone")
                cells.append(shown(case.wrong(dovetails, count, about)))
            except DovetailError:
                cells.append("")
        cells.append(f"{case.microseconds(dovetails):.1f}")
    return cells


def shown(counts: Sequence[int]) -> str:
    return " / ".join(map(str, counts)) if any(counts) else "0"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plugins", description=__doc__)
    parser.add_argument("pythons", nargs="+", help="of environments with vLLM")
    parser.add_argument("--outputs", type=int, default=100)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--tokenizers", type=Path, help="folder with real tokenizers, as in benchmarks.reading")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    options = parser.parse_args()
    rows = []
    with tables.progress(Console(stderr=True)) as progress, tempfile.TemporaryDirectory() as folder:
        bar = progress.add_task("", total=len(options.pythons) * len(options.only))
        for python in options.pythons:
            worker = Inside(python)
            for name in options.only:
                progress.update(bar, description=f"vLLM {worker.version}: {name}")
                place = Path(folder) / name
                if not place.is_dir():
                    place.mkdir()
                    special = None if name in ALL_SPECIAL else families.format_of(name).end_of_turn
                    checkpoint(name, place, real_tokenizer(name, options.tokenizers), special)
                rows.append(row(Case(worker, name, place), options.outputs))
                progress.advance(bar)
            worker.close()
    kinds = ("wrong", "wrong, about markers", "µs/delta")
    headings = ["vLLM", "format", *(f"{whose}: {kind}" for whose in ("vLLM's parsers", "Dovetail's") for kind in kinds)]
    notes = [
        f"{tables.machine()}.",
        f"wrong: of {options.outputs} outputs, at {', '.join(map(str, MEANS[:-1]))} tokens a delta and all in one.",
        f"µs/delta: CPU time, one token a delta, an argument of {LONG:,} characters.",
    ]
    title = "Parsers inside vLLM"
    tables.show([(title, headings, rows)], notes, as_markdown=options.markdown, words=("vLLM", "format"), width=200)


if __name__ == "__main__":
    main()
