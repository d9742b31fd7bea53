"""How often vLLM's parsers and Dovetail's inside it read an output wrong: python -m tests.plugins.vllm.beside PYTHON…

Both through vLLM's own detokenizer and endpoint code, on the same outputs in the same groups of tokens. Outputs are
what the model writes: small messages with a call or two, and the same ones saying something about the model's own
markers.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dovetail
from bench.reading.measure import fault
from bench.reading.texts import TOOLS, sample
from dovetail.conversation import Call, Message
from dovetail.errors import DovetailError
from dovetail.formats.registry import FAMILIES
from dovetail.plan.emit.vllm import PARSERS
from tests.plugins.vllm.conftest import Inside, checkpoint, prompt_of, tokenizer_in
from tests.reading import families

#: Tokens in a delta, on average; None: all in one.
MEANS = (1, 4, 8, None)


def messages(name: str, count: int, about: bool) -> Iterator[Message]:
    thinks = families.reasons(name, True)
    for seed in range(count):
        made = sample(seed, reasoning=thinks, content=True, parallel=True)
        said = f" It is spelled {families.controls(name)[seed % len(families.controls(name))]} there." if about else ""
        calls = (
            Call(f"functions.{tool}:{i}", tool, spelled(arguments)) for i, (tool, arguments) in enumerate(made.calls)
        )
        yield Message(made.content + said, made.reasoning, tuple(calls))


def spelled(arguments: Any) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def cut(ids: list[int], mean: int | None, seed: int) -> list[list[int]]:
    choose = random.Random(seed)
    groups: list[list[int]] = []
    while ids:
        size = len(ids) if mean is None else choose.randint(1, 2 * mean - 1)
        groups.append(ids[:size])
        ids = ids[size:]
    return groups


def wrong(worker: Inside, name: str, folder: Path, parsers: tuple[str, str | None], count: int, about: bool) -> Any:
    """Mean -> how many of `count` outputs were read wrong, and how."""
    fmt, tokenizer = families.format_of(name), tokenizer_in(folder)
    open_ = families.opened(name, True)
    found: dict[Any, Counter[str]] = {}
    for mean in MEANS:
        faults: Counter[str] = Counter()
        for seed, message in enumerate(messages(name, count, about)):
            try:
                ids = fmt.write(message, thinking=True).ids(tokenizer)
            except DovetailError as error:
                return str(error)
            answer = worker.ask(
                "streamed",
                tool_parser=parsers[0],
                reasoning_parser=parsers[1],
                folder=str(folder),
                harmony=name == "harmony" and not parsers[0].startswith("dovetail"),
                tools=TOOLS,
                prompt=prompt_of(name, open_, folder),
                groups=cut(ids, mean, seed),
                ended=True,
                options={"thinking": True, "enable_thinking": True} if families.reasons(name, True) else {},
            )
            faults[why(answer, message) or ""] += 1
        del faults[""]
        found[mean] = faults
    return found


def why(answer: dict[str, Any], message: Message) -> str | None:
    if "error" in answer:
        return "error"
    pieces = [("content", 0, answer["content"]), ("reasoning", 0, answer["reasoning"])]
    for index, call in enumerate(answer["calls"]):
        pieces += [("name", index, call["name"]), ("arguments", index, call["arguments"])]
    calls = [{"name": call.name, "arguments": json.loads(call.arguments)} for call in message.calls]
    return fault(pieces, {"calls": calls, "content": message.content, "reasoning": message.reasoning})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pythons", nargs="+")
    parser.add_argument("--outputs", type=int, default=50)
    parser.add_argument("--only", nargs="*", default=[*FAMILIES])
    options = parser.parse_args()
    print(f"dovetail {dovetail.__version__}, {options.outputs} outputs; wrong at {MEANS} tokens a delta (None: all)")
    for python in options.pythons:
        worker = Inside(python)
        for name in options.only:
            with tempfile.TemporaryDirectory() as folder:
                place = checkpoint(name, Path(folder))
                for about in (False, True):
                    for parsers in (PARSERS[name], (f"dovetail_{name}",) * 2):
                        found = wrong(worker, name, place, parsers, options.outputs, about)
                        told = (
                            found
                            if isinstance(found, str)
                            else " ".join(f"{sum(c.values()):3}" for c in found.values())
                        )
                        kinds = "" if isinstance(found, str) else dict(sum(found.values(), Counter()))
                        kind = "about markers" if about else "plain"
                        print(f"{worker.version:8} {name:18} {kind:14} {parsers[0]:24} {told}  {kinds}", flush=True)
        worker.close()


if __name__ == "__main__":
    main()
