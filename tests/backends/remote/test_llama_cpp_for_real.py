"""A real llama.cpp server: the same greedy ids as the embedded engine, and its own behaviour elsewhere.

DOVETAIL_LLAMA_SERVER names a `llama-server` (build 11312 was tried, made of the sources that PyPI's llama-cpp-python
0.3.36 brings: cmake -DLLAMA_OPENSSL=OFF -DLLAMA_USE_PREBUILT_UI=OFF).
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import dovetail
from dovetail.backends.remote import RemoteEngine, Server, read_vocabulary
from dovetail.completion import Completion, Sampling, TokenBatch, total
from dovetail.engine.core import LLMCore
from dovetail.engine.settings import EngineSettings
from dovetail.errors import ContextExceeded, EngineError, InvalidRequest
from dovetail.tokens import Tokenizer
from tests.backends.remote.fake import ids_of, run, until
from tests.backends.remote.gguf import write_gguf
from tests.engine.checkpoints import run as run_core
from tests.engine.checkpoints import write_llama

# llama.cpp ends a turn at these, whatever the checkpoint says, by their names.
_ENDS = ("<|im_end|>", "[EOS]", "[PAD]")
_SAID = "aé b😂c日d"  # no token twice, so that each can say which comes next


class Real:
    """A server on a free port, of which one slot has a context of 512 tokens."""

    def __init__(self, program: str, model: Path, *options: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = str(free.getsockname()[1])
        self.url = f"http://127.0.0.1:{port}"
        # Flash attention rounds to half precision.
        requested = "-c 1024 -np 2 -t 1 -tb 1 -fa off -ctk f32 -ctv f32 --no-warmup --metrics --host 127.0.0.1 --port"
        self.drafts = "-md" in options
        self._command = [program, "-m", str(model), *requested.split(), port, *options]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def well(self) -> bool:
        assert self._process is not None and self._process.poll() is None, "llama-server does not start"
        try:
            return bool(self.page("/health"))
        except OSError:
            return False

    def page(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path) as response:
            return json.load(response)


@pytest.fixture(scope="module")
def program() -> str:
    results = os.environ.get("DOVETAIL_LLAMA_SERVER")
    if not results:
        pytest.skip("DOVETAIL_LLAMA_SERVER does not name a llama-server")
    return results


@pytest.fixture(scope="module")
def folders(program: str, small_tokenizer_file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """`random` weights, which say ASCII only (a tokenizer would spell other bytes in another way), and a `script`."""
    root = tmp_path_factory.mktemp("llama")
    tokenizer = dovetail.tokenizer(small_tokenizer_file)
    end = tokenizer.control[_ENDS[0]]
    shape: dict[str, Any] = {"vocab_size": tokenizer.vocab_size, "hidden_size": 384, "eos_token_id": end}
    shape |= {"num_hidden_layers": 2, "max_position_embeddings": 2048}
    for name in ("random", "script"):
        folder = write_llama(root / name, 3, **shape)
        shutil.copy(small_tokenizer_file, folder / "tokenizer.json")
        ends = [tokenizer.control[literal] for literal in _ENDS]
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
        tensors = load_file(folder / "model.safetensors")
        if name == "random":
            _ascii_only(tensors["lm_head.weight"], tokenizer)
        else:
            _script(tensors, tokenizer.encode(_SAID))
        save_file(tensors, folder / "model.safetensors")
        write_gguf(folder, root / f"{name}.gguf")
    return {"random": root / "random", "script": root / "script"}


def _ascii_only(head: torch.Tensor, tokenizer: Tokenizer) -> None:
    for token in range(tokenizer.vocab_size):
        if not tokenizer.decode([token]).isascii():
            head[token] = 0


def _script(tensors: dict[str, torch.Tensor], answer_of: list[int]) -> None:
    """Each token of `answer_of` is followed by the next, and the last and all others by the first."""
    for name, tensor in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            tensor.zero_()
        elif "norm" in name:
            tensor.fill_(1)
    size, width = tensors["lm_head.weight"].shape
    embeddings = torch.eye(size, width)
    tensors["model.embed_tokens.weight"] = embeddings.clone()
    head = tensors["lm_head.weight"].zero_()
    follows = dict(zip(answer_of, [*answer_of[1:], answer_of[0]], strict=True))
    for token in range(size):
        head[follows.get(token, answer_of[0])] += embeddings[token]


@pytest.fixture(params=["alone", "with a draft model"])
def real(request: pytest.FixtureRequest, program: str, folders: dict[str, Path]) -> Iterator[Real]:
    model = folders["random"].with_suffix(".gguf")
    drafts = ("-md", str(model), "--spec-type", "draft-simple", "--spec-draft-n-max", "4", "--spec-draft-p-min", "0")
    server = Real(program, model, *(drafts if request.param != "alone" else ()))
    server.start()
    yield server
    server.kill()


@asynccontextmanager
async def attached(real: Real, folder: Path) -> AsyncIterator[RemoteEngine]:
    await until(real.well)
    engine = RemoteEngine([Server(real.url, read_vocabulary(folder, dovetail.tokenizer(folder)))])
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def answer_of(engine: RemoteEngine, completion: Completion) -> list[TokenBatch]:
    return [batch async for batch in engine.complete(completion)]


def embedded(folder: Path, completions: list[Completion]) -> list[list[int]]:
    core = LLMCore.load(folder, None, dovetail.tokenizer(folder), EngineSettings(draft_tokens=0, threads=1))
    results = run_core(core, {str(at): each for at, each in enumerate(completions)})
    return [results[str(at)] for at in range(len(completions))]


def test_greedy_ids_are_those_of_the_embedded_engine(real: Real, folders: dict[str, Path]) -> None:
    folder, rng = folders["random"], random.Random(0)
    prompts = [tuple(rng.randrange(300) for _ in range(rng.randrange(1, 40))) for _ in range(12)]
    requested = [
        Completion(prompt, 40, Sampling(0, repetition_penalty=penalty)) for prompt in prompts for penalty in (1.0, 1.3)
    ]

    async def main() -> None:
        async with attached(real, folder) as engine:
            results = await asyncio.gather(*(answer_of(engine, each) for each in requested))
            assert [ids_of(batches) for batches in results] == embedded(folder, requested)
            assert total(engine.gauges(), "resent_total") == 0
            drafted = sum(batch.drafted or 0 for batches in results for batch in batches)
            assert (drafted > 0) == real.drafts
            await until(lambda: total(engine.gauges(), "drafted_total") == drafted)

    run(main)


def test_log_probabilities(real: Real, folders: dict[str, Path]) -> None:
    folder = folders["random"]
    requested = Completion((5, 6, 7), 12, Sampling(temperature=0), logprobs=3)

    async def main() -> None:
        async with attached(real, folder) as engine:
            if real.drafts:
                with pytest.raises(InvalidRequest, match="does not report all log probabilities"):
                    await answer_of(engine, requested)
                return
            (batch,) = await answer_of(engine, requested)
            assert len(batch.ids) == 12
            core = LLMCore.load(folder, None, dovetail.tokenizer(folder), EngineSettings(draft_tokens=0, threads=1))
            core.add("", requested)
            expected = []
            while core.live:
                for _, step in core.step():
                    assert isinstance(step, TokenBatch)
                    expected += step.logprobs
            for ours, theirs in zip(expected, batch.logprobs, strict=True):
                assert [token for token, _ in ours.top] == [token for token, _ in theirs.top]
                assert theirs.logprob == pytest.approx(ours.logprob, abs=1e-4)

    run(main)


def test_the_rest(real: Real, folders: dict[str, Path]) -> None:
    prompt, greedy = (5, 6, 7), Sampling(temperature=0)

    async def main() -> None:
        async with attached(real, folders["random"]) as engine:
            seeded = Completion(prompt, 8, Sampling(1.0, seed=2**40))
            first, second = await answer_of(engine, seeded), await answer_of(engine, seeded)
            assert ids_of(first) == ids_of(second)
            with pytest.raises(ContextExceeded):
                await answer_of(engine, Completion(prompt * 400, 5, greedy))
            with pytest.raises(InvalidRequest, match="invalid tokens"):
                await answer_of(engine, Completion((100_000,), 5, greedy))
            async with aclosing(engine.complete(Completion(prompt, 400, Sampling(1.0)))) as stream:
                await anext(stream)
            await until(lambda: not any(slot["is_processing"] for slot in real.page("/slots")))

    run(main)


def test_characters_of_several_tokens(program: str, folders: dict[str, Path]) -> None:
    folder = folders["script"]
    real = Real(program, folder.with_suffix(".gguf"))
    tokenizer = dovetail.tokenizer(folder)
    script = tokenizer.encode(_SAID)

    async def main() -> None:
        async with attached(real, folder) as engine:
            for count in range(1, 2 * len(script)):
                batches = await answer_of(engine, Completion((script[-1],), count, Sampling(temperature=0)))
                ids, whole = ids_of(batches), (script * 2)[:count]
                # A character that the limit cuts is left out.
                assert ids == whole[: len(ids)] and len(ids) > count - 4
                assert tokenizer.decode(ids) == tokenizer.decode(whole).rstrip("\ufffd")
                assert batches[-1].finish == "length"

    real.start()
    try:
        run(main)
    finally:
        real.kill()


def test_a_server_that_is_killed_and_comes_back(program: str, folders: dict[str, Path]) -> None:
    folder = folders["script"]
    real = Real(program, folder.with_suffix(".gguf"))

    async def main() -> None:
        async with attached(real, folder) as engine:
            requested = Completion((5,), 400, Sampling(temperature=0))
            with pytest.raises(EngineError, match="after the answer had begun"):
                async for _ in engine.complete(requested):
                    real.kill()
            again = asyncio.ensure_future(answer_of(engine, requested))
            await until(lambda: not total(engine.gauges(), "up"))
            real.start()
            assert (await again)[-1].finish == "length"

    real.start()
    try:
        run(main)
    finally:
        real.kill()
