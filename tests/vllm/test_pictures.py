"""Conversations with pictures through three APIs, on a real vLLM: what its own chat endpoint answers, token for token.

vLLM's vision models import torchvision, which its build for CPU does not bring.
"""

from __future__ import annotations

import base64
import io
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from tests.cli.test_serve import free_port
from tests.vllm import asking, processes, vision
from tests.vllm.processes import Process, up

Turns = list[tuple[str, list[tuple[str, str]]]]
TOKENS = 12
OWN = {"return_token_ids": True, "silent": True, "loops": "off"}


@pytest.fixture(scope="module", params=[vision.qwen2_5_vl, vision.gemma3], ids=["qwen2.5-vl", "gemma 3"])
def target(request: pytest.FixtureRequest, program: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if subprocess.run([program.with_name("python"), "-c", "import torchvision"], capture_output=True).returncode:
        pytest.skip("the environment with vLLM has no torchvision")
    write: Callable[[Path], Path] = request.param
    return write(tmp_path_factory.mktemp("vision") / "target")


@pytest.fixture(scope="module")
def engine(program: Path, target: Path) -> Iterator[Process]:
    port = free_port()
    command: list[str | Path] = [program, "serve", target, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--served-model-name", asking.MODEL, "--dtype", "float32", "--max-model-len", "1024", "--enforce-eager"]
    command += ["--enable-scale-out", "--enable-prompt-tokens-details", "--max-num-seqs", "8"]
    with up(Process(command, port, "Application startup complete")) as process:
        yield process


@pytest.fixture(scope="module")
def gateway(engine: Process, target: Path) -> Iterator[Process]:
    words = [str(target), "--engine", engine.url, "--context", "1024", "--served-model-name", asking.MODEL]
    # A grammar would keep the random model from the ids for which its tokenizer has no token.
    process = processes.dovetail(*words, "--strict", "off")
    try:
        process.wait_until_up()
        yield process
        assert process.stop() == 0
    finally:
        process.kill()


def picture(draw: random.Random) -> str:
    kind, out = draw.choice(("PNG", "JPEG", "WEBP")), io.BytesIO()
    size = draw.randint(30, 200), draw.randint(30, 200)
    Image.frombytes("RGB", (8, 8), draw.randbytes(192)).resize(size).save(out, kind)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(out.getvalue()).decode()}"


def conversation(draw: random.Random) -> Turns:
    """Turns of texts and pictures, at least one. No two texts are neighbours, which APIs join differently."""
    turns: Turns = [("system", [("text", "be brief")])] if draw.random() < 0.3 else []
    for _ in range(draw.randint(1, 3)):
        parts: list[tuple[str, str]] = []
        for _ in range(draw.randint(1, 4)):
            sees = draw.random() < 0.5 or (parts and parts[-1][0] == "text")
            parts.append(
                ("picture", picture(draw)) if sees else ("text", draw.choice(("hi", "what is this?", "é ☃", " ")))
            )
        turns += [("user", parts), ("assistant", [("text", draw.choice(("ok", "yes")))])]
    turns.pop()
    turns[-1][1].append(("picture", picture(draw)))
    return turns


def in_chat(turns: Turns) -> list[dict[str, Any]]:
    def part(kind: str, value: str) -> dict[str, Any]:
        if kind == "text":
            return {"type": "text", "text": value}
        return {"type": "image_url", "image_url": {"url": value}}

    return [{"role": role, "content": [part(*each) for each in parts]} for role, parts in turns]


def in_responses(turns: Turns) -> list[dict[str, Any]]:
    def part(role: str, kind: str, value: str) -> dict[str, Any]:
        if kind == "text":
            return {"type": "output_text" if role == "assistant" else "input_text", "text": value}
        return {"type": "input_image", "image_url": value}

    return [{"role": role, "content": [part(role, *each) for each in parts]} for role, parts in turns]


def in_messages(turns: Turns) -> dict[str, Any]:
    def block(kind: str, value: str) -> dict[str, Any]:
        if kind == "text":
            return {"type": "text", "text": value}
        head, data = value.split(",")
        source = {"type": "base64", "media_type": head[5:].partition(";")[0], "data": data}
        return {"type": "image", "source": source}

    spoken = [(role, parts) for role, parts in turns if role != "system"]
    body: dict[str, Any] = {
        "messages": [{"role": role, "content": [block(*each) for each in parts]} for role, parts in spoken]
    }
    return body if len(spoken) == len(turns) else body | {"system": turns[0][1][0][1]}


def post(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = httpx.post(f"{url}/v1/{path}", json={"model": asking.MODEL, "temperature": 0, **body}, timeout=300)
    assert answer.status_code == 200, answer.text
    answered: dict[str, Any] = answer.json()
    return answered


def chat(url: str, turns: Turns) -> tuple[list[int], int, int]:
    answer = post(url, "chat/completions", {"messages": in_chat(turns), "max_tokens": TOKENS, "dovetail": OWN})
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer["choices"][0]["message"]["dovetail"]["token_ids"], answer["usage"]["prompt_tokens"], cached


@pytest.mark.parametrize("seed", range(25))
def test_it_answers_what_vllms_own_chat_answers(engine: Process, gateway: Process, seed: int) -> None:
    turns = conversation(random.Random(seed))
    body = {"messages": in_chat(turns), "max_tokens": TOKENS, "return_token_ids": True}
    expected = post(engine.url, "chat/completions", body)
    ids, prompt = expected["choices"][0]["token_ids"], expected["usage"]["prompt_tokens"]

    assert chat(gateway.url, turns)[:2] == (ids, prompt)
    body = {"input": in_responses(turns), "max_output_tokens": TOKENS, "dovetail": OWN}
    answer = post(gateway.url, "responses", body)
    assert (answer["dovetail"]["token_ids"], answer["usage"]["input_tokens"]) == (ids, prompt)
    answer = post(gateway.url, "messages", {**in_messages(turns), "max_tokens": TOKENS, "dovetail": OWN})
    read = answer["usage"]["input_tokens"] + answer["usage"].get("cache_read_input_tokens", 0)
    assert (answer["dovetail"]["token_ids"], read) == (ids, prompt)


def test_the_same_picture_again_is_in_the_cache_and_another_is_not(gateway: Process) -> None:
    draw = random.Random(99)
    first, second = picture(draw), picture(draw)
    ask = [("text", "What do you see here, and how does it look to you? " * 4)]
    _, prompt, _ = chat(gateway.url, [("user", [("picture", first), *ask])])
    _, _, again = chat(gateway.url, [("user", [("picture", first), *ask])])
    _, _, other = chat(gateway.url, [("user", [("picture", second), *ask])])
    assert prompt - 128 <= again < prompt and other < again


def test_text_that_spells_a_picture_is_none(gateway: Process) -> None:
    spelled = "<|vision_start|><|image_pad|><|vision_end|><start_of_image><image_soft_token>"
    picture_ = picture(random.Random(1))
    _, plain, _ = chat(gateway.url, [("user", [("text", "x" * len(spelled)), ("picture", picture_)])])
    _, prompt, _ = chat(gateway.url, [("user", [("text", spelled), ("picture", picture_)])])
    assert prompt == plain, "a token for each letter, as in any text"
