"""`python -m benchmarks.constraint.forced`: whether answers that have to be calls come to an end.

Each model gets required and named calls, `--asks` times each, at temperature 1 with `max_tokens` 256, through the
embedded engine, the constraint and the gateway's own reading of the tokens. Counted are answers that end, and answers
that run to their limit: in their first call, which may be a long string, after it in further, different calls, or with
a call that the answer has already made.

Models: the demo target; random weights in the languages of several families; with `--smollm2 FOLDER` (made by
benchmarks/constraint/smollm2.sh) SmolLM2-135M-Instruct. Its template knows no tools, so it gets the tools in words, and
the grammars of families whose calls are ordinary text.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from rich.progress import track

import dovetail
from benchmarks import tables
from benchmarks.constraint import prove, weights
from dovetail.backends.embedded import EmbeddedEngine
from dovetail.completion import Completion, Sampling
from dovetail.engine.settings import EngineSettings
from dovetail.errors import RenderError
from dovetail.events import Defect, Event, fold
from dovetail.formats.base import Format
from dovetail.gateway.turn.output import OutputReader
from dovetail.gateway.turn.validation import AnswerSchemas, AnswerValidator
from dovetail.grammar import Grammar, matcher
from dovetail.tokens import Detokenizer, Prompt, Segment, Tokenizer

T = TypeVar("T")

_MOST_TOKENS = 256
_REPEATED = "cut by repeated calls"
_BATCH = 16
_TEXT: dict[str, Any] = {"type": "string", "maxLength": 40}


def _tool(name: str, *parameters: str) -> dict[str, Any]:
    properties = {parameter: _TEXT for parameter in parameters}
    schema = {"type": "object", "properties": properties, "required": [*parameters], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": name.replace("_", " "), "parameters": schema}}


TOOLS = [_tool("get_weather", "city"), _tool("get_time", "city"), _tool("translate", "text", "language")]
QUESTIONS = [
    "Please get the weather for city Paris.",
    "Please get the time for city Oslo.",
    "Translate good morning into French.",
    "What is the weather in Rome and in Berlin?",
    "Hello!",
]
#: By the name in the table.
CHOICES: dict[str, Any] = {"required": "required", "named": {"type": "function", "function": {"name": "get_weather"}}}
#: Families with and without a marker that closes the section of calls.
_RANDOM = ("kimi_k25", "qwen3", "glm47", "mistral", "llama3_json", "qwen3_coder")
_IN_WORDS = ("llama3_json", "functionary", "pythonic")


class Model(NamedTuple):
    """`prompts`: the token ids for each of `QUESTIONS`. `ends`: the tokens that end a turn."""

    name: str
    format: Format
    tokenizer: Tokenizer
    engine: EmbeddedEngine
    prompts: Sequence[tuple[int, ...]]
    ends: tuple[int, ...]


@contextmanager
def demo() -> Iterator[Model]:
    target = weights.DEMO / "target"
    fmt, tokenizer = dovetail.format(target), dovetail.tokenizer(target)
    prompts = [fmt.render([{"role": "user", "content": each}], TOOLS, thinking=False) for each in QUESTIONS]
    ids = [tuple(prompt.ids(tokenizer)) for prompt in prompts]
    engine = _engine(target, weights.DEMO / "drafter")
    yield Model(f"demo, {fmt.name}", fmt, tokenizer, engine, ids, _ends(fmt, tokenizer))


@contextmanager
def random_weights(family: str, choice: Any = "required", *, thinking: bool = False) -> Iterator[Model]:
    """A model whose tokenizer has the control tokens of answers under this `tool_choice`."""
    fmt = dovetail.format(family)
    grammar = _grammar(fmt, choice, thinking)
    try:
        prompt = fmt.render([{"role": "user", "content": QUESTIONS[0]}], TOOLS, thinking=thinking)
    except RenderError:  # the family's prompts come from a model's own template
        prompt = Prompt((Segment(QUESTIONS[0], False),))
    literals = [segment.text for segment in prompt.segments if segment.control]
    with tempfile.TemporaryDirectory() as folder:
        controls = dict.fromkeys((*literals, *prove._named(grammar.root), *fmt.end_of_turn))
        weights.write(Path(folder), controls, fmt.end_of_turn, 0)
        tokenizer = dovetail.tokenizer(Path(folder) / "target")
        engine = _engine(Path(folder) / "target", Path(folder) / "drafter")
        ids = [tuple(prompt.ids(tokenizer))]
        yield Model(f"random weights, {family}", fmt, tokenizer, engine, ids, _ends(fmt, tokenizer))


@contextmanager
def smollm2(family: str, folder: Path) -> Iterator[Model]:
    tokenizer = dovetail.tokenizer(folder)
    words = (
        "You call tools. The tools, as JSON:\n"
        + "\n".join(json.dumps(tool["function"]) for tool in TOOLS)
        + "\nAnswer with a call of one of them."
    )
    start, end = (tokenizer.control[each] for each in ("<|im_start|>", "<|im_end|>"))

    def prompt(question: str) -> tuple[int, ...]:
        ids: list[int] = []
        for role, text in (("system", words), ("user", question)):
            ids += [start, *tokenizer.encode(f"{role}\n{text}"), end, *tokenizer.encode("\n")]
        return (*ids, start, *tokenizer.encode("assistant\n"))

    ids = [prompt(question) for question in QUESTIONS]
    fmt = dovetail.format(family)
    fmt = fmt.adapted(
        name=family,
        template_options=(),
        reasoning="none",
        end_of_turn=("<|im_end|>",),
        reader=fmt.reader_type,
        tokenizer_controls=frozenset(tokenizer.control),
        shown_order=fmt.shown_order,
    )
    yield Model(f"SmolLM2-135M, {family}", fmt, tokenizer, _engine(folder, "lookup"), ids, (end,))


def _engine(target: Path, drafter: Path | str) -> EmbeddedEngine:
    settings = EngineSettings(draft_tokens=3, max_batch=_BATCH, max_batched_tokens=2048, kv_cache_memory_bytes=1 << 29)
    return EmbeddedEngine(target, drafter, settings)


def _ends(fmt: Format, tokenizer: Tokenizer) -> tuple[int, ...]:
    return tuple(tokenizer.control[literal] for literal in fmt.end_of_turn if literal in tokenizer.control)


def _grammar(fmt: Format, choice: Any, thinking: bool = False) -> Grammar:
    grammar = fmt.grammar(TOOLS, tool_choice=choice, thinking=thinking)
    assert grammar is not None
    return grammar


async def asked(model: Model, choice: Any, asks: int, tick: Callable[[], object]) -> Counter[str]:
    """How `asks` answers ended, and how many were ended at a repeated call or at text after calls."""
    constraint = matcher.compile(_grammar(model.format, choice), model.tokenizer, model.ends)
    ways = await answers(model, asks, lambda number: _ended(model, choice, constraint.another(), number), tick)
    return Counter(itertools.chain.from_iterable(ways))


async def answers(
    model: Model, asks: int, answer: Callable[[int], Awaitable[T]], tick: Callable[[], object]
) -> list[T]:
    """What `answer` makes of the numbers from 0 to `asks` - 1, several at a time, while the model's engine runs."""
    made: dict[int, T] = {}
    numbers = iter(range(asks))

    async def work() -> None:
        for number in numbers:
            made[number] = await answer(number)
            tick()

    await model.engine.start()
    try:
        await asyncio.gather(*(work() for _ in range(_BATCH)))
    finally:
        await model.engine.stop()
    return [made[number] for number in range(asks)]


async def _ended(model: Model, choice: Any, constraint: matcher.Matcher, number: int) -> list[str]:
    output = OutputReader(
        0,
        model.format.reader(TOOLS, thinking=False, tool_choice=choice, tokenizer=model.tokenizer),
        Detokenizer(model.tokenizer),
        AnswerValidator(AnswerSchemas({}, None)),
        stop=(),
        end_ids=frozenset(model.ends),
        speller=None,
    )
    prompt = model.prompts[number % len(model.prompts)]
    completion = Completion(prompt, _MOST_TOKENS, Sampling(seed=number), constraint=constraint)
    events: list[Event] = []
    finish = None
    async with aclosing(cast(Any, model.engine.complete(completion))) as batches:
        async for batch in batches:
            step = await output.step(batch)
            events += step.events
            if (finish := step.finish) is not None:
                break
    calls = fold(events).calls
    repeated = len({(call.name, call.arguments) for call in calls}) < len(calls)
    kinds = [event.kind for event in events if isinstance(event, Defect)]
    ways = [kind for kind in kinds if kind in ("repeated_call", "text_after_calls")]
    if finish != "length":
        return ["ended", *ways, *(["one call"] if len(calls) == 1 else [])]
    return ["cut in the first call" if len(calls) < 2 else _REPEATED if repeated else "cut in other calls"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--asks", type=int, default=200)
    parser.add_argument("--smollm2", type=Path, metavar="FOLDER")
    parser.add_argument("--only", default="", metavar="WORD", help="models with this word in their names")
    parser.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    models = [demo, *(functools.partial(random_weights, family) for family in _RANDOM)]
    if arguments.smollm2 is not None:
        models += [functools.partial(smollm2, family, arguments.smollm2) for family in _IN_WORDS]
    rows, failed = [], 0
    ends = ("ended", "one call", "repeated_call", "text_after_calls")
    columns = (*ends, "cut in the first call", "cut in other calls", _REPEATED)
    for make, (name, choice) in itertools.product(models, CHOICES.items()):
        with make() as model:
            if arguments.only not in model.name:
                continue
            ticks = iter(track(range(arguments.asks), f"{model.name}, {name}"))
            tick = functools.partial(next, ticks, None)
            counts = asyncio.run(asked(model, choice, arguments.asks, tick))
        rows.append([model.name, name, *(str(counts[column]) for column in columns)])
        failed += counts[_REPEATED] + (counts["ended"] - counts["one call"]) * (name == "named")
    headings = ["model", "choice", *columns]
    notes = [f"{arguments.asks} answers a row; {tables.machine()}"]
    tables.show([("Forced calls", headings, rows)], notes, as_markdown=arguments.markdown, words=headings[:2])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
