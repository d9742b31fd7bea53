"""A GGUF file served by a real llama-server that Dovetail starts: its ids are ours, and it ends with us.

Skipped unless DOVETAIL_LLAMA_SERVER names the program that tests/llama_cpp/setup.sh makes.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from rich.console import Console

import dovetail
from dovetail.backends.remote import Server
from dovetail.backends.remote.llama_cpp import ends_of
from dovetail.backends.supervised import SupervisedEngine
from dovetail.checkpoints.gguf.folder import gguf_folder
from dovetail.cli.external_engines import external_engine
from dovetail.cli.serve import plan_format
from dovetail.cli.startup_progress import StartupProgress
from dovetail.completion import Completion, Sampling
from dovetail.engine.core import LLMCore
from dovetail.engine.loading import load_models
from dovetail.engine.settings import EngineSettings
from dovetail.errors import EngineError
from dovetail.grammar import Grammar, JsonSchema
from dovetail.grammar.gbnf_json import spell
from dovetail.plan import resolve
from tests.engine.checkpoints import run as run_core
from tests.gguf_files import CONTROLS, vocabulary, write
from tests.grammar import test_lark_schema, test_tag_schema
from tests.grammar.gbnf import GbnfMatcher, accepts
from tests.grammar.test_matcher import TOOLS
from tests.reading import families

PROGRAM = os.environ.get("DOVETAIL_LLAMA_SERVER")
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="DOVETAIL_LLAMA_SERVER names no build of llama.cpp")
TEXTS = (
    "the  12 \n\n weather's <|im_end|>",
    "Überraschung 日本語 🙂",
    "x" * 300,
    " \t\r\n ",
    "def f(a):\n    return a",
)


@pytest.fixture(autouse=True)
def _folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr("dovetail.backends.supervised.engine.FIRST_DELAY_S", 0.01)


def engine_of(file: Path, **settings: object) -> SupervisedEngine:
    fields = {"engine": "llama.cpp", "llama_server": PROGRAM, "threads": 1, "context": 64, **settings}
    plan = resolve(str(file), fields)
    console = Console(quiet=True)
    progress = StartupProgress(console, "llama.cpp")
    engine = external_engine(plan, plan_format(plan), dovetail.tokenizer(file), progress, console)
    assert isinstance(engine, SupervisedEngine)
    return engine


def run(engine: SupervisedEngine, test: Callable[[Server], Awaitable[None]]) -> None:
    async def main() -> None:
        await engine.start()
        try:
            await test(engine._client.servers[0])
        finally:
            await engine.stop()

    asyncio.run(main())


def test_greedy_ids_are_the_embedded_engines_and_texts_have_the_same_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its own default is float16, in which a model of random weights soon takes another token.
    for name, value in (("CACHE_TYPE_K", "f32"), ("CACHE_TYPE_V", "f32"), ("FLASH_ATTN", "off")):
        monkeypatch.setenv(f"LLAMA_ARG_{name}", value)
    file = tmp_path / "tiny.gguf"
    write(file, metadata={"tokenizer.ggml.add_bos_token": False})
    tokenizer, prompt = dovetail.tokenizer(file), (1, 40, 50, 60)
    completion = Completion(prompt, 24, Sampling(temperature=0), ignore_eos=True)
    settings = EngineSettings(draft_tokens=0, threads=1)
    core = LLMCore(load_models(Path(gguf_folder(file)), None, tokenizer, settings), tokenizer, settings)
    expected = run_core(core, {"a": completion})["a"]
    core.close()
    engine = engine_of(file)

    async def test(server: Server) -> None:
        # Not streamed: a stream has no ids for bytes that are no character, of which random weights write many.
        body = {"prompt": prompt, "n_predict": 24, "temperature": 0, "samplers": ["temperature"], "return_tokens": True}
        status, answer = await server.page("/completion", body | {"stream": False, "ignore_eos": True})
        assert status == 200 and msgspec.json.decode(answer)["tokens"] == expected
        for text in TEXTS:
            asked = {"content": text, "add_special": False, "parse_special": False}
            status, answer = await server.page("/tokenize", asked)
            assert status == 200 and msgspec.json.decode(answer)["tokens"] == list(tokenizer.encode(text)), text

    run(engine, test)


def test_it_is_started_again_and_ends_with_us(tmp_path: Path) -> None:
    write(tmp_path / "tiny.gguf")
    engine = engine_of(tmp_path / "tiny.gguf", method="ngram", draft_tokens=4)
    socket = Path(engine._socket.path)

    def servers() -> list[int]:
        mark = str(socket).encode()
        pids = (int(each) for each in os.listdir("/proc") if each.isdigit())
        lines = {pid: Path(f"/proc/{pid}/cmdline") for pid in pids}
        return [pid for pid, line in lines.items() if mark in _read(line) and b"supervisor.py" not in _read(line)]

    async def test(server: Server) -> None:
        (pid,) = servers()
        os.kill(pid, signal.SIGKILL)
        completion = Completion((1, 40, 50), 4, Sampling(temperature=0), ignore_eos=True)
        while servers() in ([], [pid]) or not server.up:
            await asyncio.sleep(0.05)
        assert len([token async for batch in engine.complete(completion) for token in batch.ids]) == 4

    run(engine, test)
    assert not servers() and not socket.parent.exists()


def test_a_start_that_fails_says_why(tmp_path: Path) -> None:
    write(tmp_path / "odd.gguf", "olmo9")
    engine = engine_of(tmp_path / "odd.gguf")
    with pytest.raises(EngineError, match=r"unknown model architecture: 'olmo9'\. This llama\.cpp does not know the"):
        asyncio.run(engine.start())


#: Made for tests: its calls begin with a token at which llama.cpp ends an answer.
_ENDS_EARLY = ("acme", "named_calls")


@pytest.mark.parametrize("name", sorted({*families.NAMES} - {*_ENDS_EARLY}))
def test_what_it_writes_under_a_grammar_is_allowed(name: str, tmp_path: Path) -> None:
    """Random weights, constrained with GBNF by llama.cpp itself: every token, up to the end. ASCII, because llama.cpp
    also takes bytes that are no character."""
    fmt, controls = families.format_of(name), [*dict.fromkeys((*CONTROLS, *families.tokenizer_of(name).control))]
    tokens = [*controls, *vocabulary()[len(CONTROLS) :]]
    kinds = {"tokenizer.ggml.token_type": [3 if token in controls else 1 for token in tokens]}
    write(tmp_path / "tiny.gguf", tokens=tokens, metadata=kinds)
    tokenizer = dovetail.tokenizer(tmp_path / "tiny.gguf")
    engine = engine_of(tmp_path / "tiny.gguf", context=128, max_batch=1)
    spelled = {token: tokenizer.token_bytes(token) for token in range(len(tokens)) if tokens[token] not in controls}
    no_bytes = {token: -100.0 for token, text in spelled.items() if not text.isascii()}

    async def test(server: Server) -> None:
        assert server.limits is not None and server.limits.grammar == "gbnf"
        ends = {tokenizer.control[name] for name in ends_of(server.vocabulary)} | {*server.info.eos_ids}
        for seed in range(6):
            choice, thinking = ("auto", "required", "none")[seed % 3], seed < 3
            grammar = fmt.grammar(TOOLS, tool_choice=choice, thinking=thinking)
            assert grammar is not None
            sampling = Sampling(seed=seed, temperature=1.5, logit_bias=no_bytes)
            completion = Completion((1, 40), 100, sampling, grammar=grammar)
            body = {**server._dialect.body(completion, server.vocabulary, server.limits, ""), "stream": False}
            status, answer = await server.page("/completion", body)
            assert status == 200, answer
            ids = msgspec.json.decode(answer)["tokens"]
            matcher = GbnfMatcher(grammar, tokenizer, ends)
            assert ids and accepts(matcher, ids), tokenizer.decode(ids)

    run(engine, test)


def test_it_takes_the_grammar_of_any_schema(tmp_path: Path) -> None:
    write(tmp_path / "tiny.gguf")
    engine = engine_of(tmp_path / "tiny.gguf", max_batch=1)
    schemas = [schema for schema, *_ in (*test_lark_schema.SCHEMAS, *test_tag_schema.SCHEMAS)]
    drawn: list[dict[str, Any]] = []

    @settings(max_examples=200, database=None)
    @given(test_lark_schema.schemas)
    def draw(schema: dict[str, Any]) -> None:
        drawn.append(schema)

    draw()

    async def test(server: Server) -> None:
        refused = []
        for schema in (*schemas, *drawn):
            if spell(schema).schema is False:
                continue
            body = {"prompt": [1], "n_predict": 4, "grammar": Grammar(JsonSchema(schema, "x")).gbnf({})}
            status, answer = await server.page("/completion", body)
            if status != 200:
                refused.append((schema, answer))
        assert not refused

    run(engine, test)


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""
