"""Random agent conversations of several turns, with a scripted engine that writes as models do: in odd spellings.

Each answer goes to the client and comes back in the next request. `Pair` says whether the next prompt begins with the
prompt and the output of the turn before, id for id, with the answer's record and without it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import dovetail
from dovetail.completion import Completion, EngineInfo, MetricSample, TokenBatch
from dovetail.errors import DovetailError
from dovetail.events import Call, Message, fold
from dovetail.formats.base import Format
from dovetail.formats.derived import generic
from dovetail.formats.registry import FAMILIES
from dovetail.gateway import Settings
from dovetail.gateway.http.endpoint import Exchange
from dovetail.gateway.turn.output import Step
from dovetail.gateway.turn.runner import TurnRunner
from dovetail.gateway.turn.tools import shows_tools
from dovetail.gateway.turn.turn import PreparedTurn
from dovetail.tokens import Prompt, Tokenizer
from tests.formats import chat_templates
from tests.formats.test_render_laws import RENDERING, all_controls
from tests.gateway.dialogues import APIS, Dialogue
from tests.gateway.scripted import MODEL
from tests.reading.families import TOOLS, PieceTokenizer

SETTINGS = Settings(served_model_name=MODEL, strict="off", record_key=b"k" * 32)
_REAL = {"kimi": "kimi_k25", "deepseek": "deepseek_v3"}
_PIECES = ("ing", " the", '": "', "}\n", "\n\n", " a", "er", '", "', "tion", "think", "assistant", '{"')


@dataclass(frozen=True)
class Model:
    """A format and the tokenizer of its model."""

    name: str
    format: Format
    tokenizer: Tokenizer


@functools.cache
def native(name: str, shared_data: Path | None = None) -> Model:
    """A format that renders by itself, with the real tokenizer if `shared_data` has it."""
    literals = (*all_controls(name), *all_controls("kimi_k25"))
    folder = next((folder for family, folder in _REAL.items() if name.startswith(family) and shared_data), None)
    if folder is not None and shared_data is not None:
        tokenizer = dovetail.tokenizer(shared_data / "tokenizers" / folder)
        if all(literal in tokenizer.control for literal in all_controls(name)):
            return Model(name, dovetail.format(name), tokenizer)
    return Model(name, dovetail.format(name), PieceTokenizer(dict.fromkeys(literals), _PIECES))


@functools.cache
def templated(path: Path) -> Model:
    """The format of a published chat template."""
    controls = chat_templates.controls(path.read_text(encoding="utf-8"))
    return Model(f"{path.parent.name}/{path.stem}", chat_templates.of(path), PieceTokenizer(controls, _PIECES))


def natives(shared_data: Path | None = None) -> list[Model]:
    return [native(name, shared_data) for name in RENDERING]


def templates(shared_data: Path) -> list[Model]:
    """The published templates that a family reads."""
    models = (templated(path) for path in chat_templates.paths(shared_data))
    families = (*FAMILIES, generic.NAME)
    return [model for model in models if getattr(model.format, "family_name", "plain") in families]


class Replaying:
    """An engine that generates `ids` up to `max_tokens`, in batches of any size. `before`: how long prompts were."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.info = EngineInfo(1 << 20, tokenizer.vocab_size, (), 0)
        self.scripts: list[tuple[int, ...]] = []

    async def start(self) -> None: ...

    async def stop(self) -> None: ...

    def gauges(self) -> list[MetricSample]:
        return []

    async def complete(self, completion: Completion) -> AsyncIterator[TokenBatch]:
        ids = self.scripts.pop(0)[: completion.max_tokens]
        for at in range(0, len(ids), 7):
            yield TokenBatch(ids[at : at + 7], "length" if at + 7 >= len(ids) else None)


# -- what a model writes ----------------------------------------------------------------------------------------------

_WORDS = 'the file lists Überblick 東京 🙂 x=1 a<b {braces} [1, 2] it\'s "quoted" new\nline tab\there https://a.b/c?d=e'.split(
    " "
)
_VALUES: dict[str, Any] = {
    "city": ["Paris", "Zürich", 'a "b" \\c', "two\nlines", "", " padded ", "東京🙂", "</x> & <y>", "caf\u00e9\u2028"],
    "unit": ["celsius", "fahrenheit"],
    "days": [0, 3, -7, 10**12],
    "alerts": [True, False],
    "path": ["src/a.py", "/tmp/x y"],
    "text": ["def f():\n    return 1\n", None, "x" * 50],
    "lines": [[], [1, 2, 3]],
    "mode": ["w", 5],
    "zoom": [1.5, 2.0, 1e30],
    "weight": [None, 0.25],
}
_ARGUMENTS = {
    "get_weather": ("city", "unit", "days", "alerts"),
    "edit_file": ("path", "text", "lines", "mode"),
    "pin-it": ("zoom", "weight"),
    "ping": (),
}


def words(rng: Random, most: int = 12) -> str:
    return " ".join(rng.choice(_WORDS) for _ in range(rng.randint(1, most)))


def odd_json(value: Any, rng: Random) -> str:
    """`value` as JSON in one of the ways in which models write it: spaces, line breaks, escapes."""
    if isinstance(value, dict) and rng.random() < 0.5:
        space, gap = rng.choice(("", " ", "\n  ", "  ")), rng.choice(("", " "))
        members = (f"{odd_json(k, rng)}{gap}: {odd_json(v, rng)}" for k, v in value.items())
        return "{" + space + f",{space}".join(members) + rng.choice(("", " ", "\n")) + "}"
    if isinstance(value, str) and rng.random() < 0.3:
        return (
            '"'
            + "".join(
                f"\\u{ord(c):04x}"
                if c.isalpha() and ord(c) < 65536 and rng.random() < 0.2
                else json.dumps(c, ensure_ascii=ord(c) > 65535)[1:-1]
                for c in value
            )
            + '"'
        )
    indent = rng.choice((None, None, 1))
    separators = rng.choice(((",", ":"), (", ", ": "), (" , ", " : "))) if indent is None else None
    return json.dumps(value, ensure_ascii=rng.random() < 0.5, separators=separators, indent=indent)


def call(rng: Random, number: int) -> Call:
    name = rng.choice([*_ARGUMENTS])
    keys = [key for key in _ARGUMENTS[name] if rng.random() < 0.7]
    rng.shuffle(keys)
    return Call(f"functions.{name}:{number}", name, odd_json({key: rng.choice(_VALUES[key]) for key in keys}, rng))


def respelled(prompt: Prompt, tokenizer: Tokenizer, rng: Random) -> list[int]:
    """The ids of a text that the model wrote, often not as the tokenizer would split it."""
    ids: list[int] = []
    for text, control in prompt.segments:
        if control:
            ids.append(tokenizer.control[text])
            continue
        cuts = sorted(rng.randint(0, len(text)) for _ in range(rng.choice((0, 0, 1, 3, len(text)))))
        for begin, end in zip((0, *cuts), (*cuts, len(text)), strict=True):
            ids += tokenizer.encode(text[begin:end])
    return ids


def answer(model: Model, rng: Random, *, thinking: bool, left_open: bool, calls: bool, number: int) -> Prompt:
    """What the model writes for a random message, after a prompt that leaves reasoning open or not."""
    fmt = model.format
    reasons = left_open or (thinking and fmt.reasoning == "written")
    made = tuple(call(rng, number + i) for i in range(rng.choice((1, 1, 2, 3)))) if calls else ()
    content = "" if calls and rng.random() < 0.6 else words(rng)
    reasoning = f"R{rng.random()} {words(rng, 30)}" if reasons and (left_open or rng.random() < 0.8) else ""
    message = Message(content, reasoning, made)
    forms = list(fmt.forms(message, thinking=reasons))
    return rng.choice(forms[:1] * 3 + forms)


# -- a conversation ---------------------------------------------------------------------------------------------------


@dataclass
class Pair:
    """Two consecutive prompts. `exact`, `without`: whether the second begins with the first and the output, id for id,
    with records and without. `why`: how an inexact one came about. `cut`: the output was cut off. `same_loop`: no user
    message is between them. `recorded`: the answer came back with a record. `repairs`: what was reported of the second
    request's history.
    """

    model: str
    exact: bool
    without: bool
    why: str
    cut: bool
    same_loop: bool
    recorded: bool
    repairs: tuple[str, ...]


@dataclass
class RequestTurn:
    """A turn with records, the same without, and its output."""

    turn: PreparedTurn
    plain: PreparedTurn
    ids: tuple[int, ...] = ()
    message: Message = field(default_factory=Message)
    cut: bool = False


class Conversation:
    """One random conversation with a model, by an API, or with a client of that API (`dialogue`).

    `records` has for each answer its number of tokens, its record, and the seconds that it took to make.
    """

    def __init__(self, model: Model, seed: int, api: str = "chat", dialogue: type[Dialogue] | None = None) -> None:
        self.rng = Random(f"{model.name} {seed}")
        self.model = model
        self.engine = Replaying(model.tokenizer)
        self.runner = TurnRunner(self.engine, model.format, model.tokenizer, SETTINGS)
        self.thinking = self.rng.random() < 0.8
        self.drops_reasoning = self.rng.random() < 0.3  # whether the client does
        self.reserialises = self.rng.random() < 0.3
        self.tools = TOOLS if shows_tools(model.format) else []
        system = words(self.rng) if self.rng.random() < 0.5 else ""
        self.dialogue = (dialogue or APIS[api])(system, self.tools, self.thinking)
        self.dialogue.user(words(self.rng))
        self.calls = 0
        self.reasonings: dict[int, str] = {}  # the reasoning of each message, which the client may drop
        self.records: list[tuple[int, str, float]] = []

    def pairs(self, turns: int) -> Iterator[Pair]:
        before: RequestTurn | None = None
        same_loop = True
        for _ in range(turns):
            exchange = self.dialogue.exchange(self.dialogue.history)
            plain = self.dialogue.exchange(self.dialogue.without_records())
            request_turn = RequestTurn(
                self.runner.prepare(exchange.turn_request), self.runner.prepare(plain.turn_request)
            )
            if before is not None:
                yield self.compared(before, request_turn, same_loop)
            calls = self.answered(request_turn, exchange)
            same_loop = self.goes_on(calls)
            before = request_turn

    def answered(self, request_turn: RequestTurn, exchange: Exchange) -> list[tuple[str, str]]:
        """Let the model answer, and the client take the answer into its history. Returns the calls."""
        rng, turn = self.rng, request_turn.turn
        prompt = answer(
            self.model,
            rng,
            thinking=self.thinking,
            left_open=turn.language.left_open,
            calls=bool(self.tools) and rng.random() < 0.65,
            number=self.calls if rng.random() < 0.8 else 0,
        )
        written = tuple(respelled(prompt, self.model.tokenizer, rng))
        request_turn.cut = rng.random() < 0.1
        self.engine.scripts = [written[: rng.randint(1, len(written))] if request_turn.cut else written]
        steps = asyncio.run(_steps(self.runner, turn))
        request_turn.ids = tuple(token for step in steps for token in step.ids)
        request_turn.message = fold(event for step in steps for event in step.events)
        self.reasonings[len(turn.request.messages)] = request_turn.message.reasoning
        started = time.process_time()
        record = turn.record(0, request_turn.ids)
        self.records.append((len(request_turn.ids), record, time.process_time() - started))
        exchange.conclude(turn, steps)
        return self.dialogue.answer(exchange.whole(turn, steps), self.reserialised, self.drops_reasoning)

    def reserialised(self, arguments: str) -> str:
        if self.reserialises:
            with contextlib.suppress(ValueError):
                return json.dumps(json.loads(arguments), sort_keys=True)
        return arguments

    def goes_on(self, calls: list[tuple[str, str]]) -> bool:
        """Add what follows an answer: results of its calls, or the user's next message."""
        self.calls += len(calls)
        for made in calls:
            self.dialogue.result(made, words(self.rng))
        if calls and self.rng.random() > 0.05:
            return True
        self.dialogue.user(words(self.rng))
        if self.rng.random() < 0.2:
            self.dialogue.system(words(self.rng))
        return False

    def compared(self, before: RequestTurn, request_turn: RequestTurn, same_loop: bool) -> Pair:
        whole = before.turn.prompt + before.ids
        # Without records, the prompt of the turn before has none either.
        without = before.plain.prompt + before.ids
        exact = request_turn.turn.prompt[: len(whole)] == whole
        return Pair(
            self.model.name,
            exact,
            request_turn.plain.prompt[: len(without)] == without,
            why="" if exact else self.why(before, request_turn),
            cut=before.cut,
            same_loop=same_loop,
            recorded="dovetail" in request_turn.turn.request.messages[len(before.turn.request.messages)],
            repairs=tuple(repair.kind for repair in request_turn.turn.repairs),
        )

    def why(self, before: RequestTurn, request_turn: RequestTurn) -> str:
        """Why a prompt does not go on from the turn before: what the template does by training, or something else."""
        whole = before.turn.prompt + before.ids
        if request_turn.turn.prompt[: len(whole) - 1] == whole[:-1]:
            return "template ends the turn otherwise"
        text, following = self.text(before), self.text(request_turn)
        if text is None or following is None or not following.startswith(text):
            return "template changes what comes before"
        shown, names = following[len(text) :], [call.name for call in before.message.calls]
        if before.message.reasoning.strip() not in shown:
            return "template drops the reasoning"
        if before.message.content.strip() not in shown:
            return "template drops the content"
        if any(shown.count(name) < names.count(name) for name in names):
            return "template drops calls"
        if len(names) > 1 and self.model.format.history_rules.one_call:
            return "template knows one call a message"
        return "cut inside a call" if before.cut and names else "other"

    def text(self, request_turn: RequestTurn) -> str | None:
        """The prompt of a history without records, and with all of its reasoning."""
        fmt, request = self.model.format, request_turn.turn.request
        field = fmt.history_rules.reasoning_field
        messages = [
            {key: value for key, value in message.items() if key != "dovetail"}
            | ({field: reasoning} if (reasoning := self.reasonings.get(i)) else {})
            for i, message in enumerate(request.messages)
        ]
        try:
            repaired, _ = fmt.repair(messages, request.tools)
            return fmt.render(repaired, request.tools, thinking=self.thinking).text
        except DovetailError:
            return None


async def _steps(runner: TurnRunner, turn: PreparedTurn) -> list[Step]:
    return [step async for step in runner.steps(turn)]


def pairs(model: Model, conversations: int, turns: int, api: str = "chat", first: int = 0) -> Iterator[Pair]:
    """The pairs of some conversations. One that the model's template refuses ends there."""
    for seed in range(first, first + conversations):
        with contextlib.suppress(DovetailError):
            yield from Conversation(model, seed, api).pairs(turns)
