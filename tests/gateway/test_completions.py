"""Completions of raw prompts: what the official client gets, whole and streamed, and what lm-eval reads."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
from hypothesis import HealthCheck, Phase, given
from hypothesis import strategies as st

from dovetail.completion import EngineInfo
from dovetail.errors import EngineError
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings, create_app
from dovetail.tokens import Tokenizer
from tests.demo_server import demo_server
from tests.examples import examples
from tests.gateway.scripted import MODEL, ScriptedEngine, events_of, in_process

pytestmark = pytest.mark.anyio

END = "<|im_end|>"
NO_SHRINK = (Phase.explicit, Phase.reuse, Phase.generate)


@asynccontextmanager
async def official(engine: ScriptedEngine, tok: Tokenizer) -> AsyncIterator[openai.AsyncOpenAI]:
    """The official client in front of the app, without a network."""
    app = create_app(engine, KimiK25(), tok, Settings(served_model_name=MODEL))
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app, raise_app_exceptions=False))
    async with openai.AsyncOpenAI(base_url="http://dovetail/v1", api_key="any", http_client=http, max_retries=0) as it:
        yield it


def folded(chunks: list[Any]) -> tuple[dict[int, dict[str, Any]], Any]:
    """The choices of a stream by index, with texts and columns added up, and its usage."""
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            whole = choices.setdefault(choice["index"], choice | {"text": "", "logprobs": None, "finish_reason": None})
            assert whole["finish_reason"] is None, "a choice goes on after its end"
            whole["text"] += choice["text"]
            whole["finish_reason"] = choice["finish_reason"]
            whole |= {"dovetail": choice["dovetail"]} if "dovetail" in choice else {}
            if choice["logprobs"]:
                columns = whole["logprobs"] or {name: [] for name in choice["logprobs"]}
                whole["logprobs"] = {name: columns[name] + column for name, column in choice["logprobs"].items()}
    return choices, usage


def expected_text(tok: Tokenizer, ids: tuple[int, ...]) -> str:
    return tok.decode(ids[:-1] if ids and ids[-1] == tok.control[END] else ids)


TEXTS = st.text("ab 🌧ü<|im_end|>", min_size=1, max_size=12)
IDS = st.lists(st.integers(0, 300), min_size=1, max_size=8)


@pytest.mark.parametrize("sizes", [(1,), (3, 1, 2), (10_000,)], ids=str)
@examples(25, phases=NO_SHRINK, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_turn_is_the_same_streamed_and_whole(tok: Tokenizer, sizes: tuple[int, ...], data: Any) -> None:
    prompt = data.draw(TEXTS | IDS | st.lists(TEXTS, min_size=1, max_size=3) | st.lists(IDS, min_size=1, max_size=3))
    prompts = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
    n, echo = data.draw(st.integers(1, 2)), data.draw(st.booleans())
    logprobs = data.draw(st.none() | st.integers(0, 5))
    max_tokens = data.draw(st.integers(0 if echo else 1, 6))
    end = [tok.control[END]]
    scripts = [
        tuple(data.draw(st.lists(st.integers(0, 300), min_size=1, max_size=8)) + data.draw(st.just([]) | st.just(end)))
        for _ in range(len(prompts) * n)
    ]
    extra: dict[str, Any] = {"dovetail": {"return_token_ids": data.draw(st.booleans())}}
    request: dict[str, Any] = {"model": MODEL, "prompt": prompt, "n": n, "echo": echo, "max_tokens": max_tokens}
    request |= {"logprobs": logprobs, "seed": 1, "user": "somebody", "extra_body": extra}
    engine = ScriptedEngine(tok)
    engine.sizes = sizes

    async def both() -> tuple[Any, list[Any]]:
        async with official(engine, tok) as client:
            engine.scripts = list(scripts)
            whole = (await client.completions.create(**request)).model_dump(exclude_unset=True)
            engine.scripts = list(scripts)
            stream = await client.completions.create(**request, stream=True, stream_options={"include_usage": True})
            return whole, [chunk.model_dump(exclude_unset=True) async for chunk in stream]

    whole, chunks = asyncio.run(both())
    choices, usage = folded(chunks)
    assert [choices[i] for i in range(len(scripts))] == whole["choices"]
    assert usage == whole["usage"] and len({chunk["id"] for chunk in chunks}) == 1
    assert engine.running == 0
    sequences = engine.seen[: len(scripts)]
    for index, (choice, script) in enumerate(zip(whole["choices"], scripts, strict=True)):
        own = prompts[index // n]
        ids = script[:max_tokens]
        given = tuple(tok.encode(own)) if isinstance(own, str) else tuple(own)
        assert sequences[index].prompt == given
        text = (own if isinstance(own, str) else tok.decode(own)) if echo else ""
        assert choice["index"] == index and choice["text"] == text + expected_text(tok, ids)
        ended = ids[-1:] == (tok.control[END],)
        assert choice["finish_reason"] == ("stop" if ended else "length")
        shown = (*given, *ids) if echo else ids
        if logprobs is None:
            assert choice["logprobs"] is None
        else:
            columns = choice["logprobs"]
            assert len(columns["tokens"]) == len(shown)
            raw = b"".join(
                bytes.fromhex(name[6:].replace("\\x", "")) if name.startswith("bytes:") else name.encode()
                for name in columns["tokens"]
            )
            assert raw == b"".join(map(tok.token_bytes, shown)), "no byte is lost"
            first = 1 if echo else 0
            assert columns["token_logprobs"][first:] == [-token / 64 for token in shown[first:]]
            assert columns["token_logprobs"][:first] == columns["top_logprobs"][:first] == [None] * first
            for name, own_logprob, top in zip(
                columns["tokens"][first:],
                columns["token_logprobs"][first:],
                columns["top_logprobs"][first:],
                strict=True,
            ):
                assert name in top and max(1, logprobs) <= len(top) + 1 <= logprobs + 2
                assert own_logprob in top.values() or -0.0 in top.values()
            offsets = columns["text_offset"]
            assert offsets == sorted(offsets) and all(0 <= offset <= len(choice["text"]) for offset in offsets)
        if extra["dovetail"]["return_token_ids"]:
            assert choice["dovetail"]["prompt_token_ids"] == list(given)
            assert choice["dovetail"]["token_ids"] == list(ids)
        else:
            assert "dovetail" not in choice
    counted = sum(len(sequence.prompt) for sequence in sequences[::n])
    assert whole["usage"]["prompt_tokens"] == counted
    assert whole["usage"]["completion_tokens"] == sum(len(script[:max_tokens]) for script in scripts)


async def test_offsets_are_where_tokens_begin(engine: ScriptedEngine, tok: Tokenizer) -> None:
    prompt, answer = "ü🌧 user", "asks ü<|im_middle|>end"
    special = [*tok.encode("asks ü"), tok.control["<|im_middle|>"], *tok.encode("end")]
    engine.ids = tuple(special)
    async with official(engine, tok) as client:
        whole = await client.completions.create(model=MODEL, prompt=prompt, echo=True, logprobs=0, max_tokens=50)
    (choice,) = whole.choices
    assert choice.text == prompt + answer
    assert choice.logprobs is not None and choice.logprobs.text_offset and choice.logprobs.tokens
    for token, offset in zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True):
        if not token.startswith("bytes:"):
            assert choice.text[offset:].startswith(token)
    assert any(token.startswith("bytes:") for token in choice.logprobs.tokens)


async def test_a_stop_string_ends_the_text(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = tuple(tok.encode("one two three"))
    async with official(engine, tok) as client:
        whole = await client.completions.create(model=MODEL, prompt="x", stop=["tw", "nothing"], max_tokens=50)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("one ", "stop")


async def test_control_tokens_in_a_prompt_are_text_unless_the_client_says_otherwise(
    engine: ScriptedEngine, tok: Tokenizer
) -> None:
    engine.ids = tuple(tok.encode("ok"))
    prompt = "<|im_user|>hi<|im_end|>"
    async with official(engine, tok) as client:
        await client.completions.create(model=MODEL, prompt=prompt)
        await client.completions.create(model=MODEL, prompt=prompt, extra_body={"dovetail": {"control_tokens": True}})
    plain, special = (completion.prompt for completion in engine.seen)
    assert plain == tuple(tok.encode(prompt)) and not set(plain) & set(tok.control_literals)
    assert special == (tok.control["<|im_user|>"], *tok.encode("hi"), tok.control[END])
    header = "x-dovetail-spelled-controls"  # so that a prompt that was rendered elsewhere is not a silent mistake
    async with in_process(engine, tok) as client:
        body = {"model": MODEL, "prompt": [prompt, "and <|im_end|>"]}
        reported = (await client.post("/v1/completions", json=body)).headers[header]
        assert reported == "%3C%7Cim_user%7C%3E, %3C%7Cim_end%7C%3E"
        for other in (
            body | {"dovetail": {"control_tokens": True}},
            body | {"prompt": "plain"},
            body | {"prompt": [5]},
        ):
            assert header not in (await client.post("/v1/completions", json=other)).headers


async def test_a_failure_ends_a_stream_with_its_error(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = (5, 6, 7)

    async def fail(batch: int) -> None:
        if batch == 2:
            raise EngineError("out of memory")

    engine.before = fail
    async with in_process(engine, tok) as client:
        streamed = await client.post("/v1/completions", json={"model": MODEL, "prompt": "a", "stream": True})
    *pieces, last = events_of(streamed.text)
    assert [piece["choices"][0]["text"] for piece in pieces] == [tok.decode([5]), tok.decode([6])]
    assert last["error"]["message"] == "out of memory" and engine.running == 0


async def test_a_failure_before_the_first_text_is_a_status(engine: ScriptedEngine, tok: Tokenizer) -> None:
    """The first token shows nothing yet: it is half of a character. So nothing was sent before the failure."""
    half, *_ = tok.encode("\U00010348")
    assert tok.decode([half]) == "\ufffd"
    engine.ids = (half, 6)

    async def fail(batch: int) -> None:
        if batch == 1:
            raise EngineError("out of memory")

    engine.before = fail
    async with in_process(engine, tok) as client:
        streamed = await client.post("/v1/completions", json={"model": MODEL, "prompt": "a", "stream": True})
    assert streamed.status_code == 500 and streamed.json()["error"]["message"] == "out of memory"


async def test_without_max_tokens_there_are_sixteen_or_what_fits(tok: Tokenizer) -> None:
    engine = ScriptedEngine(tok, context=32)
    engine.ids = (5,) * 40
    async with official(engine, tok) as client:
        for prompt, count in [([7], 16), ([7] * 20, 12), ([7] * 31, 1)]:
            whole = await client.completions.create(model=MODEL, prompt=prompt)
            assert whole.usage is not None and whole.usage.completion_tokens == count
        unlimited = await client.completions.create(model=MODEL, prompt=[7], max_tokens=-1)
        assert unlimited.usage is not None and unlimited.usage.completion_tokens == 31


async def test_fields_reach_the_engine(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = (5, 6, 7)
    body = {
        "model": MODEL,
        "prompt": ["a", "b"],
        "n": 2,
        "seed": 10,
        "temperature": 0.5,
        "top_k": 3,
        "logit_bias": {"5": 1},
        "min_tokens": 2,
        "ignore_eos": True,
        "stop_token_ids": [9],
        "max_tokens": 3,
        "best_of": 1,
        "suffix": "",
        "stream": True,
        "stream_options": {"continuous_usage_stats": True},
    }
    async with in_process(engine, tok) as client:
        response = await client.post("/v1/completions", json=body)
        metrics = (await client.get("/metrics")).text
    events = [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n\n")[:-2]]
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts) and counts[-1] == 12
    assert sorted((c.prompt, c.sampling.seed) for c in engine.seen) == sorted(
        (tuple(tok.encode(text)), seed) for text in "ab" for seed in (10, 11)
    )
    assert len({completion.request_id for completion in engine.seen}) == 4
    for completion in engine.seen:
        assert (completion.sampling.temperature, completion.sampling.top_k) == (0.5, 3)
        assert (completion.sampling.logit_bias, completion.min_tokens) == ({5: 1.0}, 2)
        assert (completion.ignore_eos, completion.stop_token_ids, completion.grammar) == (True, (9,), None)
        assert completion.constraint is None and completion.prompt_logprobs is None
    assert f'dovetail_prompt_tokens_total{{model="{MODEL}"}} 2.0' in metrics


# (fields added to a good request, the field that the error has to name)
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"prompt": None}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": 3}, "prompt"),
    ({"prompt": {"text": "a"}}, "prompt"),
    ({"prompt": [[]]}, "prompt[0]"),
    ({"prompt": ["a", ""]}, "prompt[1]"),
    ({"prompt": ["a", 3]}, "prompt[1]"),
    ({"prompt": [3, "a"]}, "prompt[1]"),
    ({"prompt": [3, -1]}, "prompt[1]"),
    ({"prompt": [3, 10**9]}, "prompt[1]"),
    ({"prompt": [3, 10**30]}, "prompt[1]"),
    ({"prompt": [True]}, "prompt[0]"),
    ({"prompt": [[1], [2, 1.5]]}, "prompt[1][1]"),
    ({"prompt": [[1], [2, 10**6]]}, "prompt[1][1]"),
    ({"prompt": [None]}, "prompt[0]"),
    ({"prompt": ["a"] * 129}, "prompt"),
    ({"prompt": ["a"] * 65, "n": 2}, "prompt"),
    ({"prompt": "a " * 5000}, "prompt"),
    ({"prompt": ["a", [5] * 4096]}, "prompt[1]"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -2}, "max_tokens"),
    ({"logprobs": 6}, "logprobs"),
    ({"logprobs": -1}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"echo": "yes"}, "echo"),
    ({"n": 17}, "n"),
    ({"best_of": 2}, "best_of"),
    ({"suffix": "end"}, "suffix"),
    ({"stop": ["a"] * 5}, "stop"),
    ({"temperature": 3}, "temperature"),
    ({"min_tokens": 90, "max_tokens": 3}, "min_tokens"),
    ({"stop_token_ids": [10**6]}, "stop_token_ids"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"structured_outputs": {"regex": "a"}}, "structured_outputs"),
    ({"guided_json": {}}, "guided_json"),
    ({"skip_special_tokens": True}, "skip_special_tokens"),
    ({"prompt_logprobs": 1}, "prompt_logprobs"),
    ({"prompt_embeds": "AA"}, "prompt_embeds"),
    ({"return_tokens_as_token_ids": True}, "return_tokens_as_token_ids"),
    ({"truncate_prompt_tokens": 3}, "truncate_prompt_tokens"),
    ({"add_special_tokens": 1}, "add_special_tokens"),
    ({"dovetail": {"control_token": True}}, "dovetail.control_token"),
    ({"dovetail": {"record": True}}, "dovetail.record"),
    ({"dovetail": {"reasoning_budget": 9}}, "dovetail.reasoning_budget"),
    ({"dovetail": {"repair": {"nothing": False}}}, "dovetail.repair.nothing"),
    ({"stream_options": {"include_usage": 3}}, "stream_options.include_usage"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED, ids=[str(fields)[:50] for fields, _ in REFUSED])
async def test_a_wrong_field_is_named(
    engine: ScriptedEngine, tok: Tokenizer, fields: dict[str, Any], param: str
) -> None:
    async with official(engine, tok) as client:
        body = {"model": MODEL, "prompt": "hi"} | fields
        with pytest.raises(openai.BadRequestError) as refused:
            await client.post("/completions", body=body, cast_to=object)
    assert refused.value.param == param
    assert len(refused.value.message) < 600
    assert not engine.seen


async def test_a_lone_surrogate_and_another_model_are_refused(engine: ScriptedEngine, tok: Tokenizer) -> None:
    async with in_process(engine, tok) as client:
        bad = b'{"model": "scripted", "prompt": "\\ud83d"}'
        response = await client.post("/v1/completions", content=bad, headers={"content-type": "application/json"})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "prompt")
        other = await client.post("/v1/completions", json={"model": "other", "prompt": "a"})
        assert (other.status_code, other.json()["error"]["param"]) == (404, "model")


async def test_an_engine_that_cannot_score_prompts_says_so(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = (5,)
    info = engine.info
    engine.info = EngineInfo(info.context, info.vocab_size, info.eos_ids, 0)
    async with official(engine, tok) as client:
        with pytest.raises(openai.BadRequestError, match="log probabilities of prompts") as refused:
            await client.completions.create(model=MODEL, prompt="hi", echo=True, logprobs=1)
        assert refused.value.param == "echo"
        for fields in ({"echo": True}, {"logprobs": 1}):
            assert (await client.completions.create(model=MODEL, prompt="hi", **fields)).choices  # type: ignore[call-overload]


async def test_an_engine_that_forgets_the_scores_fails(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = (5,)
    engine._scores = lambda completion: ()  # type: ignore[method-assign]
    async with official(engine, tok) as client:
        with pytest.raises(openai.InternalServerError):
            await client.completions.create(model=MODEL, prompt="hi", echo=True, logprobs=1)


async def test_scored_prompts_are_limited_in_total(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = (5,)
    prompts = [[7] * 4000] * 17
    async with official(engine, tok) as client:
        with pytest.raises(openai.BadRequestError, match="65536 tokens") as refused:
            await client.completions.create(model=MODEL, prompt=prompts, echo=True, logprobs=1, max_tokens=0)
        assert refused.value.param == "prompt"
        assert (await client.completions.create(model=MODEL, prompt=prompts, echo=True, max_tokens=0)).choices


def lm_eval_loglikelihoods(response: Any, context_lengths: list[int]) -> list[tuple[float, bool]]:
    """What lm-eval 0.4 reads of an answer to `echo`, `logprobs: 1`, `max_tokens: 1` (lm_eval/models)."""
    results = []
    for choice, start in zip(sorted(response["choices"], key=lambda c: c["index"]), context_lengths, strict=True):
        own = choice["logprobs"]["token_logprobs"][start:-1]
        likeliest = choice["logprobs"]["top_logprobs"][start:-1]
        results.append((sum(own), all(max(top.values()) == each for each, top in zip(own, likeliest, strict=True))))
    return results


def test_lm_evals_loglikelihood_on_the_demo_is_the_models_own() -> None:
    """Scoring a greedy answer as a prompt gives the log probabilities that the model had when it wrote it."""
    with demo_server() as url, httpx.Client(base_url=url, timeout=60) as client:

        def complete(**fields: Any) -> Any:
            body = {"model": "demo", "temperature": 0, **fields}
            answer = client.post("/v1/completions", json=body)
            assert answer.status_code == 200, answer.text
            return answer.json()

        extension = {"dovetail": {"return_token_ids": True}}
        prompts = ["Please get the weather for city Paris.", "The user asks", "Please book"]
        written = complete(prompt=prompts, max_tokens=12, logprobs=0, **extension)["choices"]
        contexts = [choice["dovetail"]["prompt_token_ids"] for choice in written]
        wholes = [choice["dovetail"]["prompt_token_ids"] + choice["dovetail"]["token_ids"] for choice in written]
        scored = complete(prompt=wholes, max_tokens=1, echo=True, logprobs=1)
        again = complete(prompt=wholes, max_tokens=1, echo=True, logprobs=1)  # with a warm cache
        for response in (scored, again):
            results = lm_eval_loglikelihoods(response, [len(context) for context in contexts])
            for (total, greedy), choice in zip(results, written, strict=True):
                assert total == pytest.approx(sum(choice["logprobs"]["token_logprobs"]), abs=1e-3)
                assert greedy
        # Another continuation is less likely.
        worse = [
            [*context, *((token + 1) % 500 for token in whole[len(context) :])]
            for context, whole in zip(contexts, wholes, strict=True)
        ]
        others = lm_eval_loglikelihoods(
            complete(prompt=worse, max_tokens=1, echo=True, logprobs=1), [len(context) for context in contexts]
        )
        for (total, greedy), (other, other_greedy) in zip(results, others, strict=True):
            assert other < total and greedy and not other_greedy


def test_a_chat_by_hand_is_the_chat() -> None:
    """Rendering a conversation, completing its prompt as token ids, and a chat completion give the same tokens."""
    with demo_server() as url, httpx.Client(base_url=url, timeout=60) as client:
        body: dict[str, Any] = {"model": "demo", "temperature": 0, "max_tokens": 60}
        body["dovetail"] = {"return_token_ids": True, "strict": "off"}
        chat = {"messages": [{"role": "user", "content": "Please get the weather for city Paris."}]}
        answer = client.post("/v1/chat/completions", json=body | chat).json()
        prompt = client.post("/v1/chat/completions/render", json=body | chat).json()
        by_hand = client.post("/v1/completions", json=body | {"prompt": prompt["token_ids"]}).json()
        as_text = {"prompt": prompt["prompt"], "add_special_tokens": False}
        as_text["dovetail"] = body["dovetail"] | {"control_tokens": True}
        from_text = client.post("/v1/completions", json=body | as_text).json()
    own = answer["choices"][0]["message"]["dovetail"]
    for other in (by_hand, from_text):
        assert other["choices"][0]["dovetail"]["prompt_token_ids"] == own["prompt_token_ids"]
        assert other["choices"][0]["dovetail"]["token_ids"] == own["token_ids"]
    assert len(own["token_ids"]) > 5
