"""Named keys: limits, what clients learn of them, and that no key sees or delays what belongs to another."""

from __future__ import annotations

import asyncio
import logging
import re
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import anthropic
import httpx
import msgspec
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dovetail.errors import EngineError
from dovetail.events import Message
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings, create_app
from dovetail.gateway.limits.keys import PREFIX, Keyring, digest_of, new_key
from dovetail.gateway.limits.queue import QueueLimits
from dovetail.tokens import Tokenizer
from tests.gateway.named_keys import Clock, bearer, keyed, named, secret
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of, in_process, serving

pytestmark = pytest.mark.anyio

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
HI: list[Any] = [{"role": "user", "content": "hi"}]
BODY: dict[str, Any] = {"model": MODEL, "messages": HI}
QUEUED = f'dovetail_queued_requests{{model="{MODEL}"}}'


@pytest.fixture(autouse=True)
def answer(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message("ok"), tok)


async def test_the_official_clients_raise_their_rate_limit_errors(engine: ScriptedEngine, tok: Tokenizer) -> None:
    clock = Clock()
    settings = keyed(named("a", requests_per_minute=2), clock=clock)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving(engine, tok, settings))
        theirs = await stack.enter_async_context(
            openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=secret("a"), max_retries=0)
        )
        others = await stack.enter_async_context(
            anthropic.AsyncAnthropic(base_url=url, api_key=secret("a"), max_retries=0)
        )
        await theirs.chat.completions.create(model=MODEL, messages=HI)
        await others.messages.create(model=MODEL, messages=HI, max_tokens=5)
        for stream in (False, True):
            with pytest.raises(openai.RateLimitError) as chat:
                await theirs.chat.completions.create(model=MODEL, messages=HI, stream=stream)
            with pytest.raises(openai.RateLimitError) as responses:
                await theirs.responses.create(model=MODEL, input="hi", stream=stream)
            with pytest.raises(anthropic.RateLimitError) as messages:
                await others.messages.create(model=MODEL, messages=HI, max_tokens=5, stream=stream)
            for refused in (chat.value, responses.value):
                assert (refused.code, refused.type, refused.param) == ("rate_limit_exceeded", "rate_limit_error", None)
                text = "the limit of the key 'a' is reached: 2 requests a minute; try again in 30 s"
                assert text in refused.message
            assert isinstance(messages.value.body, dict)
            assert messages.value.body["error"]["type"] == "rate_limit_error"
            for each in (chat.value, responses.value, messages.value):
                assert each.response.headers["retry-after"] == "30" and secret("a") not in each.response.text
        clock.now += 30
        await theirs.chat.completions.create(model=MODEL, messages=HI)
    assert len(engine.seen) == 3


async def test_every_answer_has_what_remains_in_openais_form(engine: ScriptedEngine, tok: Tokenizer) -> None:
    clock = Clock()
    settings = keyed(named("a", requests_per_minute=60, tokens_per_minute=6000), named("free"), clock=clock)
    async with in_process(engine, tok, settings) as client:
        whole = await client.post(CHAT, json=BODY | {"max_tokens": 500}, headers=bearer("a"))
        used = whole.json()["usage"]["total_tokens"]
        streamed = await client.post(CHAT, json=BODY | {"max_tokens": 500, "stream": True}, headers=bearer("a"))
        refused = await client.post(CHAT, json=BODY | {"temperature": 9}, headers=bearer("a"))
        models = await client.get("/v1/models", headers=bearer("a"))
        free = await client.post(CHAT, json=BODY, headers=bearer("free"))
    assert [each.status_code for each in (whole, streamed, refused, models, free)] == [200, 200, 400, 200, 200]
    assert {name: value for name, value in whole.headers.items() if "ratelimit" in name} == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "59",
        "x-ratelimit-reset-requests": "1s",
        "x-ratelimit-limit-tokens": "6000",
        "x-ratelimit-remaining-tokens": f"{6000 - used}",
        "x-ratelimit-reset-tokens": f"{used * 10}ms",
    }
    # The headers of a stream come before its tokens: what it may use is reserved.
    prompt = len(engine.seen[0].prompt)
    assert int(streamed.headers["x-ratelimit-remaining-tokens"]) == 6000 - used - prompt - 500
    for each, requests in ((refused, "57"), (models, "57")):
        assert each.headers["x-ratelimit-remaining-requests"] == requests
        assert each.headers["x-ratelimit-remaining-tokens"] == f"{6000 - 2 * used}"
    assert not [name for name in free.headers if "ratelimit" in name]


async def test_messages_have_anthropics_headers(engine: ScriptedEngine, tok: Tokenizer) -> None:
    settings = keyed(named("a", requests_per_minute=2, tokens_per_minute=100))
    before = datetime.now(UTC)
    async with in_process(engine, tok, settings) as client:
        body = BODY | {"max_tokens": 5}
        answer = await client.post(MESSAGES, json=body, headers={"x-api-key": secret("a")})
        count = await client.post(f"{MESSAGES}/count_tokens", json=BODY, headers={"x-api-key": secret("a")})
    used = sum(answer.json()["usage"][which] for which in ("input_tokens", "output_tokens"))
    headers = {name: value for name, value in answer.headers.items() if "ratelimit" in name}
    resets = [headers.pop(f"anthropic-ratelimit-{unit}-reset") for unit in ("requests", "tokens")]
    assert headers == {
        "anthropic-ratelimit-requests-limit": "2",
        "anthropic-ratelimit-requests-remaining": "1",
        "anthropic-ratelimit-tokens-limit": "100",
        "anthropic-ratelimit-tokens-remaining": f"{100 - used}",
    }
    earliest = before + timedelta(seconds=29)
    assert all(datetime.fromisoformat(reset) >= earliest for reset in resets[:1])
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", reset) for reset in resets)
    assert count.headers["anthropic-ratelimit-requests-remaining"] == "0"


async def test_concurrent_requests_are_counted_until_their_answers_end(engine: ScriptedEngine, tok: Tokenizer) -> None:
    settings = keyed(named("a", concurrent_requests=1), named("b"))
    assert settings.keys is not None
    go = asyncio.Event()

    async def before(number: int) -> None:
        await go.wait()

    engine.before = before
    async with in_process(engine, tok, settings) as client:
        running = asyncio.create_task(client.post(CHAT, json=BODY | {"stream": True}, headers=bearer("a")))
        while not engine.seen:
            await asyncio.sleep(0)
        refused = await client.post(CHAT, json=BODY, headers=bearer("a"))
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert "1 requests run at a time" in refused.json()["error"]["message"]
        assert (await client.get("/v1/models", headers=bearer("a"))).status_code == 200
        assert 'dovetail_key_running_requests{key="a"} 1.0' in (await client.get("/metrics")).text
        go.set()
        assert (await running).status_code == 200
        assert (await client.post(CHAT, json=BODY, headers=bearer("a"))).status_code == 200
    assert [account.running for account in settings.keys.accounts] == [0, 0]


async def test_tokens_that_are_asked_for_are_reserved_and_those_not_used_given_back(
    engine: ScriptedEngine, tok: Tokenizer
) -> None:
    settings = keyed(named("a", tokens_per_minute=1000))
    go = asyncio.Event()

    async def before(number: int) -> None:
        await go.wait()

    engine.before = before
    async with in_process(engine, tok, settings) as client:
        running = asyncio.create_task(client.post(CHAT, json=BODY | {"max_tokens": 900}, headers=bearer("a")))
        while not engine.seen:
            await asyncio.sleep(0)
        refused = await client.post(CHAT, json=BODY | {"max_tokens": 200}, headers=bearer("a"))
        prompt = len(engine.seen[0].prompt)
        assert refused.status_code == 429
        assert f"1000 tokens a minute, and this request asks for up to {prompt + 200}" in refused.text
        assert refused.headers["x-ratelimit-remaining-tokens"] == f"{100 - prompt}"
        go.set()
        used = (await running).json()["usage"]["total_tokens"]
        answer = await client.post(CHAT, json=BODY | {"max_tokens": 200, "n": 2}, headers=bearer("a"))
    assert answer.status_code == 200
    more = answer.json()["usage"]["total_tokens"]
    assert answer.headers["x-ratelimit-remaining-tokens"] == f"{1000 - used - more}"


async def test_a_request_without_a_limit_reserves_its_prompt_and_pays_for_what_it_uses(
    engine: ScriptedEngine, tok: Tokenizer
) -> None:
    prompt = 0
    async with in_process(engine, tok) as client:
        prompt = (await client.post(CHAT, json=BODY)).json()["usage"]["prompt_tokens"]
    clock = Clock()
    settings = keyed(named("a", tokens_per_minute=prompt), clock=clock)
    async with in_process(engine, tok, settings) as client:
        assert (await client.post(CHAT, json=BODY, headers=bearer("a"))).status_code == 200
        clock.now += 60
        late = await client.post(CHAT, json=BODY, headers=bearer("a"))
    # The answer's tokens were not reserved, and delay the next request by so much.
    seconds = -(-60 * len(engine.ids) // prompt)
    assert (late.status_code, late.headers["retry-after"]) == (429, f"{seconds}")


async def test_a_client_that_leaves_pays_for_its_prompt_and_a_failing_engine_costs_nothing(
    engine: ScriptedEngine, tok: Tokenizer
) -> None:
    settings = keyed(named("a", tokens_per_minute=1000))
    assert settings.keys is not None
    (account,) = settings.keys.accounts

    async def fail(number: int) -> None:
        raise EngineError("broken")

    engine.before = fail
    async with in_process(engine, tok, settings) as client:
        assert (await client.post(CHAT, json=BODY, headers=bearer("a"))).status_code == 500
    assert account.prompt_tokens == account.completion_tokens == 0

    async def never(number: int) -> None:
        await asyncio.Event().wait()

    engine.before = never
    async with serving(engine, tok, settings) as url, httpx.AsyncClient(base_url=url) as client:
        sent = len(engine.seen)
        task = asyncio.create_task(client.post(CHAT, json=BODY, headers=bearer("a")))
        while len(engine.seen) == sent:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        while account.running:
            await asyncio.sleep(0.001)
    assert (account.prompt_tokens, account.completion_tokens) == (len(engine.seen[-1].prompt), 0)
    assert [left for _, _, left, _ in account.meters()] == [1000 - account.prompt_tokens]


async def test_models_answers_and_new_tokens_of_a_key(engine: ScriptedEngine, tok: Tokenizer) -> None:
    settings = keyed(
        named("other", models=frozenset({"another"})),
        named("this", models=frozenset({MODEL}), n=2, max_tokens=2),
    )
    raw = {"model": MODEL, "prompt": ["a", "b", "c"]}
    async with in_process(engine, tok, settings) as client:

        async def post(path: str, key: str = "this", **fields: Any) -> httpx.Response:
            return await client.post(path, json=fields, headers=bearer(key))

        for path, fields in ((CHAT, BODY), (MESSAGES, BODY | {"max_tokens": 1}), ("/tokenize", {"prompt": "a"})):
            refused = await post(path, "other", **fields)
            assert refused.status_code == 404 and "there is no model for this key" in refused.text
        assert (await client.get("/v1/models", headers=bearer("other"))).json()["data"] == []
        assert (await client.get(f"/v1/models/{MODEL}", headers=bearer("other"))).status_code == 404
        assert (await client.get(f"/v1/models/{MODEL}", headers=bearer("this"))).status_code == 200
        assert not engine.seen
        for path, fields, param in (
            (CHAT, BODY | {"n": 3}, "n"),
            ("/v1/completions", raw | {"max_tokens": 1}, "n"),
        ):
            refused = await post(path, **fields)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text
        assert not engine.seen
        answers = [
            await post(CHAT, **BODY, n=2),
            await post(CHAT, **BODY, max_tokens=2),
            await post(CHAT, **BODY, max_completion_tokens=3),
            await post(MESSAGES, **BODY, max_tokens=100),
            await post(RESPONSES, model=MODEL, input="hi"),
            await post(RESPONSES, model=MODEL, input="hi", max_output_tokens=100),
            await post("/v1/completions", **raw | {"prompt": "a"}),
        ]
    assert [each.status_code for each in answers] == [200] * 7
    assert {each.max_tokens for each in engine.seen} == {2}
    shown = [each.headers.get("x-dovetail-max-tokens") for each in answers]
    assert shown == [None, None, "2", "2", None, "2", "2"]
    strict = msgspec.structs.replace(settings, strict_max_tokens=True)
    async with in_process(engine, tok, strict) as client:
        for path, fields, param in (
            (CHAT, BODY | {"max_tokens": 3}, "max_tokens"),
            (CHAT, BODY | {"max_completion_tokens": 3}, "max_completion_tokens"),
            ("/v1/completions", raw | {"prompt": "a", "max_tokens": 3}, "max_tokens"),
            (RESPONSES, {"model": MODEL, "input": "hi", "max_output_tokens": 3}, "max_output_tokens"),
        ):
            refused = await client.post(path, json=fields, headers=bearer("this"))
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), refused.text
        # A completion's default of 16 is not the client's.
        default = await client.post("/v1/completions", json=raw | {"prompt": "a"}, headers=bearer("this"))
        assert default.status_code == 200


async def test_sixty_six_requests_of_sixteen_answers_do_not_keep_another_key_waiting(
    engine: ScriptedEngine, tok: Tokenizer
) -> None:
    """Both come from one address, as behind a proxy."""
    settings = keyed(named("greedy"), named("other"), queue=QueueLimits(running=16))
    assert settings.keys is not None
    greedy, other = settings.keys.accounts
    go = asyncio.Event()

    async def before(number: int) -> None:
        await go.wait()

    engine.before = before
    async with in_process(engine, tok, settings) as client:
        many = [
            asyncio.create_task(client.post(CHAT, json=BODY | {"n": 16, "stream": True}, headers=bearer("greedy")))
            for _ in range(66)
        ]
        while len(engine.seen) < 16 or f"{QUEUED} 65.0" not in (await client.get("/metrics")).text:
            await asyncio.sleep(0.001)
        assert len(engine.seen) == 16
        one = asyncio.create_task(client.post(CHAT, json=BODY | {"stream": True}, headers=bearer("other")))
        while f"{QUEUED} 66.0" not in (await client.get("/metrics")).text:
            await asyncio.sleep(0.001)
        go.set()
        answered = await one
        assert answered.status_code == 200 and answered.text.endswith("data: [DONE]\n\n")
        place = [completion.request_id for completion in engine.seen].index(
            next(each.request_id for each in engine.seen if answered.text.split('"id":"')[1][:41] in each.request_id)
        )
        assert 16 <= place <= 32 and greedy.running > 0 == other.running, "in the second round, not the 67th"
        for each in await asyncio.gather(*many):
            assert each.status_code == 200


async def test_every_prompt_of_a_completion_takes_a_place(engine: ScriptedEngine, tok: Tokenizer) -> None:
    """Each of up to 128 prompts is an answer that the engine works on."""
    settings = keyed(named("a"), queue=QueueLimits(running=2))
    go = asyncio.Event()

    async def before(number: int) -> None:
        await go.wait()

    engine.before = before
    body = {"model": MODEL, "prompt": ["a b", "c"], "max_tokens": 1}
    async with in_process(engine, tok, settings) as client:
        tasks = [asyncio.create_task(client.post("/v1/completions", json=body, headers=bearer("a"))) for _ in range(2)]
        while len(engine.seen) < 2 or f"{QUEUED} 1.0" not in (await client.get("/metrics")).text:
            await asyncio.sleep(0.001)
        prompts = sum(len(each.prompt) for each in engine.seen)
        assert len(engine.seen) == 2
        assert f'dovetail_queued_tokens{{model="{MODEL}"}} {prompts:.1f}' in (await client.get("/metrics")).text
        go.set()
        assert [each.status_code for each in await asyncio.gather(*tasks)] == [200, 200]


async def test_names_and_never_keys_are_in_metrics_and_logs(
    engine: ScriptedEngine, tok: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    settings = keyed(named("alice", requests_per_minute=2), named("bob"))
    async with in_process(engine, tok, settings) as client:
        for _ in range(3):
            await client.post(CHAT, json=BODY, headers=bearer("alice"))

        async def fail(number: int) -> None:
            raise EngineError("broken")

        engine.before = fail
        await client.post(CHAT, json=BODY, headers=bearer("bob"))
        shown = (await client.get("/metrics")).text
    prompt, completion = sum(len(each.prompt) for each in engine.seen[:2]), 2 * len(engine.ids)
    samples = {
        (sample.name.removeprefix("dovetail_key_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(shown)
        for sample in family.samples
        if sample.name.startswith("dovetail_key_")
    }
    assert all(samples.pop(("prepare_seconds_total", name)) > 0 for name in ("alice", "bob"))
    assert samples == {
        ("responses_total", "alice", "200"): 2,
        ("responses_total", "alice", "429"): 1,
        ("responses_total", "bob", "500"): 1,
        ("tokens_total", "alice", "prompt"): prompt,
        ("tokens_total", "alice", "completion"): completion,
        ("tokens_total", "bob", "prompt"): 0,
        ("tokens_total", "bob", "completion"): 0,
        ("refusals_total", "alice", "requests"): 1,
        ("running_requests", "alice"): 0,
        ("running_requests", "bob"): 0,
    }
    assert re.search(r"request \w+ of the key bob: complete error: broken", caplog.text)
    assert "of the key alice: the limit of the key" in caplog.text
    for name in ("alice", "bob"):
        for text in (caplog.text, shown, repr(settings)):
            assert secret(name) not in text and digest_of(secret(name)).hex() not in text


async def test_a_key_that_is_removed_while_its_request_runs(engine: ScriptedEngine, tok: Tokenizer) -> None:
    """The request ends as it would have; the next one is refused, until the key is there again."""
    settings = keyed(named("a", requests_per_minute=9), named("b", requests_per_minute=9))
    assert settings.keys is not None
    go = asyncio.Event()

    async def before(number: int) -> None:
        await go.wait()

    engine.before = before
    async with in_process(engine, tok, settings) as client:
        for name in "ab":
            running = asyncio.create_task(client.post(CHAT, json=BODY | {"stream": True}, headers=bearer(name)))
            sent = len(engine.seen)
            while len(engine.seen) == sent:
                await asyncio.sleep(0)
            if name == "a":
                settings.keys.replace([named("b", requests_per_minute=5)])
                assert (await client.post(CHAT, json=BODY, headers=bearer("a"))).status_code == 401
                assert 'key="a"' not in (await client.get("/metrics")).text
            go.set()
            assert (await running).text.endswith("data: [DONE]\n\n")
            go.clear()
        go.set()
        settings.keys.replace([named("b", requests_per_minute=5), named("a", requests_per_minute=9)])
        left = [
            (await client.post(CHAT, json=BODY, headers=bearer(name))).headers["x-ratelimit-remaining-requests"]
            for name in "ab"
        ]
    assert left == ["8", "3"]  # a name that stays keeps what it has used


async def test_metrics_may_have_keys_of_their_own(engine: ScriptedEngine, tok: Tokenizer) -> None:
    settings = keyed(named("a"), named("watcher", scope="metrics"), api_key="sesame")
    assert settings.keys is not None

    async def statuses(path: str) -> list[int]:
        senders = [{}, bearer("a"), bearer("watcher"), {"x-api-key": "sesame"}, bearer("nobody")]
        return [(await client.get(path, headers=headers)).status_code for headers in senders]

    async with in_process(engine, tok, settings) as client:
        assert await statuses("/metrics") == [401, 403, 200, 403, 401]
        assert await statuses("/v1/models") == [401, 200, 403, 200, 401]
        assert await statuses("/health") == [200] * 5
        # Without the last such key, nobody gets in: the page does not open by an edit of the file.
        settings.keys.replace([named("a")])
        assert await statuses("/metrics") == [401, 403, 401, 403, 401]
    async with in_process(engine, tok, keyed(named("a"))) as client:
        assert await statuses("/metrics") == [200] * 5


@pytest.mark.parametrize("guarded", [False, True])
async def test_metrics_may_have_a_port_of_their_own(engine: ScriptedEngine, tok: Tokenizer, guarded: bool) -> None:
    keys = [named("a"), named("watcher", scope="metrics")] if guarded else [named("a")]
    app = create_app(engine, KimiK25(), tok, keyed(*keys, metrics_apart=True))
    apart = app.state.metrics_app

    async def get(which: Any, path: str, headers: dict[str, str]) -> httpx.Response:
        transport = httpx.ASGITransport(which)
        async with httpx.AsyncClient(transport=transport, base_url="http://dovetail") as client:
            return await client.get(path, headers=headers)

    watcher = bearer("watcher") if guarded else {}
    assert (await get(app, "/metrics", watcher)).status_code == 404
    assert "GET /metrics" not in (await get(app, "/", {})).json()["paths"]
    await get(app, "/v1/models", bearer("a"))
    shown = await get(apart, "/metrics", watcher)
    assert 'dovetail_key_responses_total{key="a",status="200"} 1.0' in shown.text
    assert (await get(apart, "/metrics", {})).status_code == (401 if guarded else 200)
    assert (await get(apart, "/v1/models", bearer("a"))).status_code == 404


async def test_the_key_without_a_name_has_no_limits(engine: ScriptedEngine, tok: Tokenizer) -> None:
    async with in_process(engine, tok, keyed(named("a", requests_per_minute=1), api_key="sesame")) as client:
        answers = [await client.post(CHAT, json=BODY, headers={"api-key": "sesame"}) for _ in range(3)]
    assert [each.status_code for each in answers] == [200] * 3
    assert not [name for each in answers for name in each.headers if "ratelimit" in name]


async def test_stored_responses_belong_to_the_name(engine: ScriptedEngine, tok: Tokenizer, tmp_path: Path) -> None:
    keys = [named("a"), named("b")]
    settings = keyed(*keys, api_key="sesame", response_store=tmp_path / "r.db")
    assert settings.keys is not None
    async with in_process(engine, tok, settings) as client:
        stored = (await client.post(RESPONSES, json={"model": MODEL, "input": "hi"}, headers=bearer("a"))).json()
        path = f"{RESPONSES}/{stored['id']}"
        go_on = {"model": MODEL, "input": "more", "previous_response_id": stored["id"]}
        for headers in (bearer("b"), {"x-api-key": "sesame"}):
            assert (await client.get(path, headers=headers)).status_code == 404
            assert (await client.get(f"{path}/input_items", headers=headers)).status_code == 404
            assert (await client.delete(path, headers=headers)).status_code == 404
            assert (await client.post(RESPONSES, json=go_on, headers=headers)).status_code == 400
        settings.keys.replace([named("b")])
        # A new key of the same name.
        renewed = keyed().keys
        assert renewed is not None
        settings.keys.replace([type(keys[0])(name="a", digest=digest_of("another"))])
        assert (await client.post(RESPONSES, json=go_on, headers={"api-key": "another"})).status_code == 200
        assert (await client.delete(path, headers={"api-key": "another"})).status_code == 200


async def test_few_of_many_keys_of_a_request_are_looked_at(engine: ScriptedEngine, tok: Tokenizer) -> None:
    async with in_process(engine, tok, keyed(named("a"))) as client:
        for before, status in ((7, 200), (8, 401)):
            headers = [*[("x-api-key", f"wrong-{i}") for i in range(before)], ("x-api-key", secret("a"))]
            assert (await client.get("/v1/models", headers=headers)).status_code == status


def test_keys_are_found_by_their_digest_alone() -> None:
    keyring = Keyring([named("a"), named("b")])
    assert [account.name for account in keyring.accounts] == ["a", "b"]
    for presented, name in [
        ([secret("b")], "b"),
        (["", "x", secret("a"), secret("b")], "a"),
        ([secret("a") + "0"], None),
        ([digest_of(secret("a")).hex()], None),
        ([f"sha256:{digest_of(secret('a')).hex()}"], None),
        (["ü"], None),
        ([], None),
    ]:
        found = keyring.find(presented)
        assert (found.name if found else None) == name
    empty = Keyring([type(named("a"))(name="nobody", digest=digest_of(""))])
    assert empty.find([""]) is None


def test_new_keys_are_long_and_different() -> None:
    made = {new_key() for _ in range(100)}
    assert len(made) == 100
    assert all(key.startswith(PREFIX) and len(key) >= len(PREFIX) + 43 and key.isascii() for key in made)


def test_settings_do_not_show_keys() -> None:
    assert "sesame" not in repr(Settings(served_model_name=MODEL, api_key="sesame", keys=Keyring([named("a")])))
