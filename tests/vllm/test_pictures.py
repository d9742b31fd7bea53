"""Conversations with pictures through the four APIs, on a real vLLM: what its own chat endpoint answers, id for id.

vLLM tokenizes a rendered text, so a text that spells a control token is one to it. Such conversations are compared with
the prompt that vLLM makes of other letters, and with what transformers answers to it.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import jsonschema
import pytest

from tests.cli.test_serve import free_port
from tests.vllm import asking, processes, sights, vision
from tests.vllm.processes import Process, up
from tests.vllm.sights import Conversation

TOKENS = 12
CONTEXT = 4096
OWN = {"return_token_ids": True, "silent": True, "loops": "off"}
ROOT = Path(__file__).parents[2]


class Model(NamedTuple):
    """A checkpoint. `template`: a published chat template, else it has ours. `parser`: vLLM's for its calls."""

    write: Callable[[Path, str | None], Path]
    parser: str
    template: str | None = None


MODELS = {
    "qwen2.5-vl": Model(vision.qwen2_5_vl, "hermes"),
    "gemma 3": Model(vision.gemma3, "hermes"),
    "qwen2.5-vl, Qwen3.5's template": Model(vision.qwen2_5_vl, "qwen3_coder", "qwen35"),
    "gemma 3, vLLM's template": Model(vision.gemma3, "pythonic", "tool_chat_template_gemma3_pythonic"),
}


class Tried(NamedTuple):
    """A checkpoint with vLLM, Dovetail before it, and transformers."""

    engine: str
    gateway: str
    oracle: Oracle
    has_own_template: bool


class Oracle:
    """tests/vllm/oracle.py as a process."""

    def __init__(self, python: Path, target: Path) -> None:
        command = [python, "-m", "tests.vllm.oracle", target, str(TOKENS)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ids(self, prompt: list[int], pictures: list[str]) -> list[int]:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps({"prompt": prompt, "pictures": pictures}), file=self._process.stdin, flush=True)
        ids: list[int] = json.loads(self._process.stdout.readline())
        return ids

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def python(program: Path) -> Path:
    """The Python beside vLLM."""
    found = program.with_name("python")
    if subprocess.run([found, "-c", "import torchvision"], capture_output=True).returncode:
        pytest.skip("the environment with vLLM has no torchvision: setup.sh adds it")
    return found


@pytest.fixture(scope="module", params=MODELS)
def tried(
    request: pytest.FixtureRequest, program: Path, python: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tried]:
    model = MODELS[request.param]
    template = None
    if model.template is not None:
        shared_data: Path = request.getfixturevalue("shared_data")
        template = (shared_data / "templates" / "vllm" / f"{model.template}.jinja").read_text(encoding="utf-8")
    target = model.write(tmp_path_factory.mktemp("vision") / "target", template)
    port = free_port()
    command: list[str | Path] = [program, "serve", target, "--host", "127.0.0.1", "--port", str(port)]
    command += ["--served-model-name", asking.MODEL, "--dtype", "float32", "--max-model-len", str(CONTEXT)]
    command += ["--enforce-eager", "--max-num-seqs", "8", "--enable-scale-out", "--enable-prompt-tokens-details"]
    command += ["--enable-auto-tool-choice", "--tool-call-parser", model.parser]
    with up(Process(command, port, "Application startup complete")) as engine:
        oracle = Oracle(python, target)
        words = [str(target), "--engine", engine.url, "--context", str(CONTEXT), "--served-model-name", asking.MODEL]
        # A grammar would keep the random model from the ids for which its tokenizer has no token.
        gateway = processes.dovetail(*words, "--strict", "off")
        try:
            gateway.wait_until_up()
            yield Tried(engine.url, gateway.url, oracle, template is None)
            assert gateway.stop() == 0
        finally:
            gateway.kill()
            oracle.close()


def post(url: str, path: str, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
    answer = httpx.post(f"{url}/{path}", json={"model": asking.MODEL, "temperature": 0, **body}, timeout=300)
    assert answer.status_code == status, answer.text
    assert "x-dovetail-omitted" not in answer.headers
    answered: dict[str, Any] = answer.json()
    return answered


def own_chat(url: str, talk: Conversation) -> tuple[list[int], list[int]]:
    """The prompt and the answer of vLLM's own chat endpoint."""
    answer = post(url, "v1/chat/completions", sights.in_chat(talk) | {"max_tokens": TOKENS, "return_token_ids": True})
    return answer["prompt_token_ids"], answer["choices"][0]["token_ids"]


def expanded(url: str, prompt: list[int], pictures: list[str]) -> list[int]:
    """The prompt that vLLM makes of ids and pictures."""
    parts = [{"type": "image_url", "url": picture} for picture in pictures]
    body = {"token_ids": prompt, "content_parts": parts, "sampling_params": {"max_tokens": 1}}
    ids: list[int] = post(url, "inference/v1/generate", body | {"return_token_ids": True})["prompt_token_ids"]
    return ids


class Answered(NamedTuple):
    """An answer of Dovetail. `prompt`: the ids that it sent, with one for each picture. `tokens`: how many vLLM made of
    them, and `cached` how many of these it had."""

    prompt: list[int]
    tokens: int
    cached: int
    ids: list[int]


def chat(url: str, talk: Conversation) -> Answered:
    answer = post(url, "v1/chat/completions", sights.in_chat(talk) | {"max_tokens": TOKENS, "dovetail": OWN})
    record, usage = answer["choices"][0]["message"]["dovetail"], answer["usage"]
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return Answered(record["prompt_token_ids"], usage["prompt_tokens"], cached, record["token_ids"])


def responses(url: str, talk: Conversation) -> Answered:
    answer = post(url, "v1/responses", sights.in_responses(talk) | {"max_output_tokens": TOKENS, "dovetail": OWN})
    record, usage = answer["dovetail"], answer["usage"]
    cached = usage["input_tokens_details"]["cached_tokens"]
    return Answered(record["prompt_token_ids"], usage["input_tokens"], cached, record["token_ids"])


def messages(url: str, talk: Conversation) -> Answered:
    answer = post(url, "v1/messages", sights.in_messages(talk) | {"max_tokens": TOKENS, "dovetail": OWN})
    record, usage = answer["dovetail"], answer["usage"]
    cached = usage["cache_read_input_tokens"]
    return Answered(record["prompt_token_ids"], usage["input_tokens"] + cached, cached, record["token_ids"])


def rendered(url: str, talk: Conversation) -> list[int]:
    ids: list[int] = post(url, "v1/chat/completions/render", sights.in_chat(talk))["token_ids"]
    return ids


@pytest.mark.parametrize("seed", range(50))
def test_every_api_answers_what_vllms_own_chat_answers(tried: Tried, seed: int) -> None:
    engine, gateway = tried.engine, tried.gateway
    talk = sights.conversation(random.Random(seed), system_pictures=tried.has_own_template)
    prompt, ids = own_chat(engine, talk.filled())
    if talk.spelled:
        [filler], spelled = vision.letters().encode(sights.FILLER).ids, iter(vision.letters().encode(talk.spelled).ids)
        prompt = [next(spelled) if token == filler else token for token in prompt]
        ids = tried.oracle.ids(prompt, talk.pictures)
    else:
        assert tried.oracle.ids(prompt, talk.pictures) == ids
    for api in [chat, responses] if talk.has_system_pictures else [chat, responses, messages]:
        answered = api(gateway, talk)
        assert expanded(engine, answered.prompt, talk.pictures) == prompt, api.__name__
        assert (answered.ids, answered.tokens) == (ids, len(prompt)), api.__name__

    # A raw prompt has no pictures: the same ids are refused, and those of the texts alone are answered.
    refused = post(gateway, "v1/completions", {"prompt": rendered(gateway, talk)}, status=400)
    assert refused["error"]["param"] == "prompt" and "picture" in refused["error"]["message"]
    texts = talk.filled().blind()
    prompt, ids = own_chat(engine, texts)
    assert rendered(gateway, texts) == prompt
    own = {"prompt": prompt, "max_tokens": TOKENS, "dovetail": {"return_token_ids": True, "loops": "off"}}
    assert post(gateway, "v1/completions", own)["choices"][0]["dovetail"]["token_ids"] == ids


def asking_about(*pictures: str, text: str = "What do you see here, and how does it look to you? " * 4) -> Conversation:
    parts: list[sights.Part] = [("picture", picture) for picture in pictures]
    return Conversation([sights.Turn("user", [*parts, ("text", text)])], ())


def test_the_models_answer_by_what_they_see(tried: Tried) -> None:
    """Otherwise equal answers would prove nothing."""
    draw = random.Random(9)
    same_size = [sights.picture(draw, size=(112, 112)) for _ in range(10)]
    answers = [own_chat(tried.engine, asking_about(picture, text="What is it?")) for picture in same_size]
    assert len({tuple(prompt) for prompt, _ in answers}) == 1 and len({tuple(ids) for _, ids in answers}) > 5


@pytest.mark.parametrize("api", [chat, responses, messages])
def test_the_same_picture_again_is_in_the_cache_and_another_is_not(
    tried: Tried, api: Callable[[str, Conversation], Answered]
) -> None:
    draw = random.Random(api.__name__)
    first, second = sights.picture(draw), sights.picture(draw)
    prompt = api(tried.gateway, asking_about(first)).tokens
    again, other = (api(tried.gateway, asking_about(each)).cached for each in (first, second))
    assert prompt - 128 <= again < prompt and other < again


def test_a_turn_over_pictures_is_token_exact_and_cached(tried: Tried) -> None:
    draw = random.Random(5)
    talk = asking_about(sights.picture(draw), sights.picture(draw))
    history = sights.in_chat(talk)
    body = history | {"max_tokens": TOKENS, "dovetail": OWN | {"record": True}}
    message = post(tried.gateway, "v1/chat/completions", body)["choices"][0]["message"]
    before = message["dovetail"]
    more = sights.in_chat(asking_about(sights.picture(draw), text="And this?"))["messages"]
    body["messages"] = [*history["messages"], message, *more]
    answer = post(tried.gateway, "v1/chat/completions", body)
    after = answer["choices"][0]["message"]["dovetail"]
    shown = [*before["prompt_token_ids"], *before["token_ids"]]
    # Qwen3.5's template drops the reasoning of older turns, which is empty here, by training.
    assert after["prompt_token_ids"][: len(shown)] == shown or not tried.has_own_template
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


CALLING = {"tool_choice": "required", "tools": list(sights.TOOLS)}
ARGUMENTS = sights.TOOLS[0]["function"]["parameters"]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("strict", ["names", "schema"])
def test_required_calls_beside_pictures_are_valid(tried: Tried, strict: str, seed: int) -> None:
    """Greedy and sampled."""
    draw = random.Random(seed)
    talk = asking_about(*(sights.picture(draw) for _ in range(1 + seed % 3)))
    body = sights.in_chat(talk) | CALLING | {"temperature": seed % 2, "seed": seed, "max_tokens": 400}
    answer = post(tried.gateway, "v1/chat/completions", body | {"dovetail": {"strict": strict}})
    [call, *_] = answer["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "look"
    if strict == "schema":
        jsonschema.validate(json.loads(call["function"]["arguments"]), ARGUMENTS)


@pytest.mark.parametrize("seed", range(4))
def test_answers_beside_pictures_obey_a_schema(tried: Tried, seed: int) -> None:
    schema = {"name": "seen", "schema": ARGUMENTS, "strict": True}
    body = sights.in_chat(asking_about(sights.picture(random.Random(seed)))) | {
        "response_format": {"type": "json_schema", "json_schema": schema},
        "temperature": seed % 2,
        "seed": seed,
        "max_tokens": 400,
    }
    answer = post(tried.gateway, "v1/chat/completions", body)
    jsonschema.validate(json.loads(answer["choices"][0]["message"]["content"]), ARGUMENTS)


def test_log_probabilities_beside_pictures_are_vllms_own(tried: Tried) -> None:
    body = sights.in_chat(asking_about(sights.picture(random.Random(3))))
    body |= {"max_tokens": TOKENS, "logprobs": True, "top_logprobs": 2}
    ours, theirs = (
        post(url, "v1/chat/completions", asked)["choices"][0]["logprobs"]["content"]
        for url, asked in ((tried.gateway, body | {"dovetail": OWN}), (tried.engine, body))
    )
    assert [each["logprob"] for each in ours] == pytest.approx([each["logprob"] for each in theirs], abs=1e-4)
    likeliest = [[it["logprob"] for each in answer for it in each["top_logprobs"]] for answer in (ours, theirs)]
    assert likeliest[0] == pytest.approx(likeliest[1], abs=1e-4)


def test_pictures_count_against_the_context(tried: Tried) -> None:
    """The prompt fits with one token for each picture, and does not with all that vLLM makes of them."""
    draw = random.Random(4)
    wide = [sights.picture(draw) for _ in range(40)]
    fitting = asking_about(*wide)
    room = CONTEXT - len(rendered(tried.gateway, fitting)) - TOKENS
    asked = asking_about(*wide, text=fitting.turns[0].parts[-1][1] + "x" * room)
    refused = post(tried.gateway, "v1/chat/completions", sights.in_chat(asked) | {"max_tokens": TOKENS}, status=400)
    assert refused["error"]["code"] == "context_length_exceeded"


def test_an_answer_ends_where_the_context_does(tried: Tried) -> None:
    draw = random.Random(6)
    asked = asking_about(*(sights.picture(draw) for _ in range(20)), text="x" * (CONTEXT - 1000))
    body = sights.in_chat(asked) | {"dovetail": OWN, "ignore_eos": True}
    answer = post(tried.gateway, "v1/chat/completions", body)
    assert answer["choices"][0]["finish_reason"] in ("length", "stop")
    assert answer["usage"]["total_tokens"] <= CONTEXT


def test_a_picture_that_vllm_does_not_find_again_is_a_400(tried: Tried) -> None:
    """vLLM's own chat fails for Gemma 3 with status 500 if a line break is behind a picture."""
    asked = sights.in_chat(asking_about(sights.picture(random.Random(7)), text="\nWhat is it?")) | {"max_tokens": 4}
    own = httpx.post(f"{tried.engine}/v1/chat/completions", json={"model": asking.MODEL, **asked}, timeout=300)
    answer = post(tried.gateway, "v1/chat/completions", asked, status={500: 400}.get(own.status_code, 200))
    if own.status_code == 500:
        assert "placeholders" in answer["error"]["message"]


def test_a_vllm_that_dovetail_starts_sees(program: Path, python: Path, tmp_path: Path) -> None:
    target = vision.qwen2_5_vl(tmp_path / "target")
    engine = ("--engine", "vllm", "--vllm", program, "--engine-log", tmp_path / "vllm.log")
    options = ("--engine-args=--enforce-eager", "--context", "1024", "--dtype", "float32", "--max-batch", "2")
    named = ("--served-model-name", asking.MODEL, "--strict", "off")
    with up(processes.dovetail(str(target), *engine, *options, *named)) as server:
        shown = sights.picture(random.Random(8))
        answered = chat(server.url, asking_about(shown))
    [place] = [i for i, token in enumerate(answered.prompt) if token == vision.QWEN_PICTURE]
    took = 1 + answered.tokens - len(answered.prompt)
    prompt = [*answered.prompt[:place], *[vision.QWEN_PICTURE] * took, *answered.prompt[place + 1 :]]
    oracle = Oracle(python, target)
    try:
        assert took > 1 and oracle.ids(prompt, [shown]) == answered.ids
    finally:
        oracle.close()
