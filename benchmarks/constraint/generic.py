"""`python -m benchmarks.constraint.generic`: calls of models whose chat template shows no tools (`derived.generic`).

Random weights get required and named calls, at temperature 1. With `--smollm2 FOLDER` (made by
benchmarks/constraint/smollm2.sh), SmolLM2-135M-Instruct gets questions whose calls are known, greedily, without a
constraint and with it. Tokens go through the embedded engine and the format's own reader. With `--gguf FILE` a
`llama-server` answers them too (`--llama-server`, or on the PATH), under the grammar in GBNF if it has no llguidance.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import jsonschema
from rich.console import Console
from rich.progress import track

import dovetail
from benchmarks import tables
from benchmarks.constraint import weights
from benchmarks.constraint.forced import Model, answers
from dovetail.backends.embedded import EmbeddedEngine
from dovetail.cli.external_engines import external_engine
from dovetail.cli.serve import plan_format
from dovetail.cli.startup_progress import StartupProgress
from dovetail.completion import Completion, Sampling
from dovetail.engine.settings import EngineSettings
from dovetail.events import Message, fold
from dovetail.formats.turn import Turn
from dovetail.grammar import matcher
from dovetail.plan import resolve

_MOST_TOKENS = 192
_TEMPLATE = """{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
_TEXT, _NUMBER = {"type": "string", "maxLength": 40}, {"type": "integer", "minimum": -999, "maximum": 999}


def _tool(name: str, description: str, **parameters: Any) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": parameters,
        "required": [*parameters],
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [
    _tool("get_weather", "Get the current weather in a city", city=_TEXT),
    _tool("get_time", "Get the current time in a city", city=_TEXT),
    _tool("translate", "Translate a text into a language", text=_TEXT, language=_TEXT),
    _tool("add", "Add two numbers", a=_NUMBER, b=_NUMBER),
    _tool("send_email", "Send an email", to=_TEXT, subject=_TEXT),
]
_CITIES = ("Paris", "Oslo", "Rome", "Berlin", "Tokyo", "Madrid")
_PHRASES = (("good morning", "French"), ("thank you", "German"), ("hello", "Spanish"), ("good night", "Italian"))
_SUMS = ((2, 3), (17, 25), (40, 2), (100, 250))
_MAILS = (("anna@example.com", "Lunch"), ("bob@example.com", "Invoice"), ("eve@example.com", "Holiday"))
#: Each question, and the call that answers it.
QUESTIONS: list[tuple[str, str, dict[str, Any]]] = [
    *((f"What is the weather in {city}?", "get_weather", {"city": city}) for city in _CITIES),
    *((f"What time is it in {city}?", "get_time", {"city": city}) for city in _CITIES),
    *((f'Translate "{t}" into {lang}.', "translate", {"text": t, "language": lang}) for t, lang in _PHRASES),
    *((f"Add {a} and {b}.", "add", {"a": a, "b": b}) for a, b in _SUMS),
    *((f"Send an email to {to} with the subject {s}.", "send_email", {"to": to, "subject": s}) for to, s in _MAILS),
]


class Asked(NamedTuple):
    """A turn with the call that answers it, and whether its grammar is the constraint."""

    turn: Turn
    name: str
    arguments: Mapping[str, Any]
    constrained: bool
    sampling: Sampling


@contextmanager
def _model(folder: Path, drafter: Path | str) -> Iterator[Model]:
    fmt, tokenizer = dovetail.format(folder), dovetail.tokenizer(folder)
    settings = EngineSettings(draft_tokens=3, max_batch=16, max_batched_tokens=2048, kv_cache_memory_bytes=1 << 29)
    ends = tuple(tokenizer.control[literal] for literal in fmt.end_of_turn if literal in tokenizer.control)
    yield Model("", fmt, tokenizer, EmbeddedEngine(folder, drafter, settings), (), ends)


@contextmanager
def _llama_cpp(file: Path, program: str | None) -> Iterator[Model]:
    plan = resolve(str(file), {"engine": "llama.cpp", "context": 2048} | ({"llama_server": program} if program else {}))
    fmt, tokenizer, console = plan_format(plan), dovetail.tokenizer(file), Console(quiet=True)
    engine = external_engine(plan, fmt, tokenizer, StartupProgress(console, "llama.cpp"), console)
    ends = tuple(tokenizer.control[literal] for literal in fmt.end_of_turn if literal in tokenizer.control)
    yield Model("", fmt, tokenizer, engine, (), ends)


@contextmanager
def random_weights() -> Iterator[Model]:
    """A small model of random weights, whose template shows no tools."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        weights.write(folder, ("<|im_start|>", "<|im_end|>"), ("<|im_end|>",), 0)
        (folder / "target" / "chat_template.jinja").write_text(_TEMPLATE)
        with _model(folder / "target", folder / "drafter") as model:
            yield model


def asked(model: Model, choice: str, *, constrained: bool, temperature: float, asks: int) -> list[Asked]:
    """`asks` turns with the questions over and over. `choice`: auto, required or named."""
    turns = []
    for number in range(asks):
        question, name, arguments = QUESTIONS[number % len(QUESTIONS)]
        named: Any = {"type": "function", "function": {"name": name}} if choice == "named" else choice
        messages = [{"role": "user", "content": question}]
        turn = model.format.turn(messages, TOOLS, tool_choice=named)
        turns.append(Asked(turn, name, arguments, constrained, Sampling(temperature=temperature, seed=number)))
    return turns


async def _answer(model: Model, asked: Asked) -> tuple[Message, bool]:
    """The answer, and whether it came to an end."""
    grammar = asked.turn.grammar() if asked.constrained else None
    constraint = None if grammar is None else matcher.compile(grammar, model.tokenizer, model.ends)
    prompt = tuple(asked.turn.prompt.ids(model.tokenizer))
    completion = Completion(prompt, _MOST_TOKENS, asked.sampling, constraint=constraint, grammar=grammar)
    ids: list[int] = []
    finish = None
    async with aclosing(cast(Any, model.engine.complete(completion))) as batches:
        async for batch in batches:
            ids += batch.ids
            finish = batch.finish or finish
    reader = asked.turn.reader(model.tokenizer)
    return fold([*reader.feed("", ids), *reader.finish(finish or "stop")]), finish == "stop"


def judged(asked: Asked, answer: Message) -> list[str]:
    """What is true of an answer: it has a call, its calls are valid, the first has the right tool, it is all right."""
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    if not answer.calls:
        return []
    read = [(call.name, _json(call.arguments)) for call in answer.calls]
    valid = all(name in schemas and jsonschema.Draft202012Validator(schemas[name]).is_valid(a) for name, a in read)
    facts = ["a call", *(["valid"] if valid else []), *(["right tool"] if read[0][0] == asked.name else [])]
    return [*facts, *(["right"] if read == [(asked.name, asked.arguments)] else [])]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def counted(model: Model, turns: Sequence[Asked], tick: Callable[[], object]) -> Counter[str]:
    """How many answers ended, and of how many each fact of `judged` is true. A cut answer's calls do not count."""

    async def facts(number: int) -> list[str]:
        answer, ended = await _answer(model, turns[number])
        return ["ended", *judged(turns[number], answer)] if ended else []

    made = asyncio.run(answers(model, len(turns), facts, tick))
    return Counter(fact for each in made for fact in each)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--asks", type=int, default=100, help="calls of random weights")
    parser.add_argument("--smollm2", type=Path, metavar="FOLDER")
    parser.add_argument("--gguf", type=Path, metavar="FILE")
    parser.add_argument("--llama-server", metavar="PROGRAM")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    made: list[tuple[str, Callable[[], Any], str, bool, float, int]] = [
        ("random weights", random_weights, choice, True, 1.0, options.asks) for choice in ("required", "named")
    ]
    if options.smollm2 is not None:
        smollm2 = functools.partial(_model, options.smollm2, "lookup")
        for choice, constrained in (("auto", False), ("auto", True), ("required", True), ("named", True)):
            made.append(("SmolLM2-135M", smollm2, choice, constrained, 0.0, len(QUESTIONS)))
    if options.gguf is not None:
        served = functools.partial(_llama_cpp, options.gguf, options.llama_server)
        for choice, constrained in (("auto", False), ("auto", True), ("required", True), ("named", True)):
            made.append((f"{options.gguf.stem}, llama.cpp", served, choice, constrained, 0.0, len(QUESTIONS)))
    facts = ("ended", "a call", "valid", "right tool", "right")
    rows = []
    for name, make, choice, constrained, temperature, asks in made:
        with make() as model:
            turns = asked(model, choice, constrained=constrained, temperature=temperature, asks=asks)
            tick = functools.partial(next, iter(track(range(asks), f"{name}, {choice}")), None)
            counts = counted(model, turns, tick)
        shown = (str(counts[fact]) for fact in facts)
        rows.append([name, choice, "yes" if constrained else "no", str(asks), *shown])
    headings = ["model", "choice", "constraint", "asked", *facts]
    sheet = ("Generic tools", headings, rows)
    tables.show([sheet], [tables.machine()], as_markdown=options.markdown, words=headings[:3])
    return 0


if __name__ == "__main__":
    sys.exit(main())
