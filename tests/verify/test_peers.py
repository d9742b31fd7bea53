"""Endpoints whose reader is another engine's own parser: where it loses calls in big deltas, the reader is blamed.

DOVETAIL_PEERS names the folder in which benchmarks/reading/setup.sh makes the engines' environments.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from dovetail.completion import Completion
from dovetail.events import Call, CallArguments, CallEnd, CallStart, Content, Event, Message, Reasoning
from dovetail.formats.base import Format
from dovetail.formats.families.deepseek_v3 import DeepSeekV31
from dovetail.tokens import Tokenizer
from dovetail.verify.language import Language
from dovetail.verify.suites import Protocol
from tests.reading.families import PieceTokenizer, controls
from tests.verify.harness import AppTransport, Only, endpoint, gateway, verified
from tests.verify.model import Model

ROOT = Path(__file__).parents[2]
PEERS = os.environ.get("DOVETAIL_PEERS")
#: Tokens of a delta: as without drafts, as with drafts, and a whole answer.
SIZES = (1, 4, 32, 4096)
CASES = ("call/auto", "call/two", "stream-equals-whole/call")
_USER = re.compile(r"<｜User｜>(.*?)(?=<｜Assistant｜>)", re.DOTALL)
_CITY = re.compile(r"get the weather for city (\w+)")


class DeepSeek(Model):
    """Calls get_weather for each city that the last user names, in DeepSeek V3.1's language."""

    format: Format = DeepSeekV31()
    end_of_turn = "<｜end▁of▁sentence｜>"

    def __init__(self) -> None:
        prompt = self.format.render([{"role": "user", "content": "Hello"}])
        literals = (*controls("deepseek_v31"), *(segment.text for segment in prompt.segments if segment.control))
        super().__init__(tokens=PieceTokenizer(dict.fromkeys(literals), ("ing", " the")))

    def wish(self, prompt: str, completion: Completion) -> Message:
        cities = _CITY.findall(_USER.findall(prompt)[-1])
        calls = (Call("", "get_weather", json.dumps({"city": city})) for city in cities if "### get_weather" in prompt)
        return Message("", "The user wants to know.", tuple(calls)) if cities else Message("Hello there.", "I greet.")


class Parser:
    """An engine's parser in a process of its own."""

    def __init__(self, engine: str, names: tuple[str, str], tokens: Tokenizer, end: str) -> None:
        python = Path(PEERS or "") / engine / "bin" / "python"
        if not (PEERS and python.exists()):
            pytest.skip(f"no {engine} in DOVETAIL_PEERS, a folder that benchmarks/reading/setup.sh fills")
        family, parser = names
        self._job = {
            "family": family,
            "parsers": {engine: {"tools": parser, "reasoning": None}},
            "thinks": False,
            "prompt": [tokens.control[end]],
            "encoded": {},
            "control": dict(tokens.control),
            "end": end,
            "table": {token: tokens.token_bytes(token).decode("latin-1") for token in range(tokens.vocab_size)},
        }
        self.tokenizer = tokens
        self._numbers = itertools.count()
        quiet = {"VLLM_TARGET_DEVICE": "cpu", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
        command = [python, "-m", "tests.verify.peer_worker", engine]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, cwd=ROOT, env=os.environ | quiet, text=True, **pipes)

    def open(self, tools: Sequence[str]) -> int:
        number = next(self._numbers)
        functions = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in tools]
        self._ask(stream=number, job=self._job | {"tools": functions})
        return number

    def feed(self, stream: int, text: str, *, last: bool = False) -> list[list[Any]]:
        ids = [token for part in re.split(self._controls, text) for token in self._ids(part)]
        return self._ask(stream=stream, text=text, ids=ids, last=last)

    @property
    def _controls(self) -> str:
        return f"({'|'.join(map(re.escape, self.tokenizer.control))})"

    def _ids(self, part: str) -> list[int]:
        control = self.tokenizer.control.get(part)
        return self.tokenizer.encode(part) if control is None else [control]

    def _ask(self, **asked: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the parser's process has ended"
        return json.loads(line)

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def read_by(parser: Parser, model: Model, size: int) -> AppTransport:
    """An endpoint of the model whose calls and content are read by the parser, in deltas of `size` tokens. Reasoning is
    read here."""
    family: Any = type(model.format)

    class Reader(family.reader_type):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.of_peer = parser.open([*self._options.tools]) if self._options.tools else None
            self.started = 0
            self.delta: list[str] = []

        def feed_segments(self, segments: Any) -> list[Event]:
            if self.of_peer is None:  # an answer without calls is read as it is
                return super().feed_segments(segments)  # type: ignore[no-any-return]
            events: list[Event] = []
            for segment in segments:
                if not self.in_reasoning:
                    events += self.add(segment.text)
                elif segment.control and segment.text == "</think>":
                    self.in_reasoning = False
                else:
                    events.append(Reasoning(segment.text))
            return events

        def add(self, text: str) -> list[Event]:
            """The events of the delta before `text`, if it is full: the parser is told which delta is the last one."""
            full, self.delta = (self.delta, [text]) if len(self.delta) == size else ([], [*self.delta, text])
            return self.events_of(parser.feed(self.of_peer, "".join(full))) if full else []

        def finish(self, reason: str = "stop") -> list[Event]:
            if self.of_peer is None:
                return super().finish(reason)  # type: ignore[no-any-return]
            events = self.events_of(parser.feed(self.of_peer, "".join(self.delta), last=True))
            return events + ([CallEnd(self.started - 1)] if self.started else [])

        def events_of(self, pieces: Any) -> list[Event]:
            events: list[Event] = []
            for kind, index, text in pieces:
                if kind == "content":
                    events.append(Content(text))
                elif kind == "name":
                    if self.started:
                        events.append(CallEnd(self.started - 1))
                    events.append(CallStart(self.started, self.call_id(text), text))
                    self.started += 1
                elif self.started == index + 1:
                    events.append(CallArguments(index, text))
            return events

        def call_id(self, name: str) -> str:
            rule = model.format.history_rules.call_id
            return rule(name, self.started) if rule else f"call_{self.started}"

    class Fmt(family):  # type: ignore[misc]
        reader_type = Reader

    return AppTransport(gateway(model, Fmt(), strict="off"))


@pytest.fixture(scope="module")
def parsers() -> Iterator[dict[tuple[str, str], Parser]]:
    started: dict[tuple[str, str], Parser] = {}
    yield started
    for parser in started.values():
        parser.close()


@pytest.mark.proof
@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("engine", "model", "name", "loses"),
    [
        ("vllm", Model, "kimi_k2", ()),
        ("sglang", Model, "kimi_k2", ()),
        ("vllm", DeepSeek, "deepseek_v31", (4, 32, 4096)),
        ("sglang", DeepSeek, "deepseekv31", (32, 4096)),
    ],
)
def test_a_parser_that_loses_calls_in_big_deltas_is_a_fault_of_the_reader(
    engine: str,
    model: type[Model],
    name: str,
    loses: tuple[int, ...],
    size: int,
    parsers: dict[tuple[str, str], Parser],
) -> None:
    served = model()
    family = served.format.name
    if (engine, family) not in parsers:
        parsers[engine, family] = Parser(engine, (family, name), served.tokenizer, served.end_of_turn)
    tested = endpoint(read_by(parsers[engine, family], served, size))
    language = Language(served.format, served.tokenizer)
    outcomes = verified(tested, suites=[Only(Protocol(), *CASES)], language=language, concurrency=1)
    failures = [failure for outcome in outcomes for failure in outcome.failures]
    assert {failure.step for failure in failures} == ({"reader"} if size in loses else set()), failures
    assert all(outcome.untested is None for outcome in outcomes), outcomes


def test_the_model_behind_them_is_sound() -> None:
    model = DeepSeek()
    language = Language(model.format, model.tokenizer)
    tested = endpoint(AppTransport(gateway(model, strict="off")))
    outcomes = verified(tested, suites=[Only(Protocol(), *CASES)], language=language)
    assert [outcome for outcome in outcomes if not outcome.passed] == []
