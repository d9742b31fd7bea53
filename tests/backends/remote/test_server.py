"""Detecting a server's kind, model and health, and the files of a checkpoint that a connection to it needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.backends.remote import Server, read_vocabulary
from dovetail.backends.remote.dialect import Limits
from dovetail.backends.remote.errors import ServerLost
from dovetail.backends.remote.http import split_address
from dovetail.completion import total
from dovetail.errors import CheckpointError, EngineError, PlanError
from dovetail.tokens import Tokenizer
from tests.backends.remote.fake import VOCABULARY, Fake, run

_PLACES = b"".join(
    b'vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="%d"} 1.0\n' % place for place in range(3)
)


@pytest.mark.parametrize(
    ("owner", "pages", "limits"),
    [
        ("vllm", {}, Limits("m", 512, 0)),
        ("vllm", {"metrics": (200, _PLACES)}, Limits("m", 512, 3)),
        ("sglang", {}, Limits("m", 512, 0)),
        (
            "sglang",
            {"server_info": {"speculative_algorithm": "EAGLE3", "speculative_num_draft_tokens": 4}},
            Limits("m", 512, 3),
        ),
        ("vllm", {"metrics": (404, b"")}, Limits("m", 512, None)),
        ("vllm", {"metrics": (200, b"x" * (5 << 20))}, Limits("m", 512, None)),
        ("llamacpp", {}, Limits("m", 512, None, grammar="lark")),
    ],
)
def test_it_says_what_it_is(owner: str, pages: dict[str, Any], limits: Limits) -> None:
    async def main() -> None:
        async with Fake(owner, **pages) as fake:
            server = fake.server()
            await server.open()
            assert server.limits == limits and server.up
            await server.close()

    run(main)


@pytest.mark.parametrize(
    ("pages", "kind", "message"),
    [
        ({"v1/models": {"data": [{"id": "gpt-5", "owned_by": "openai"}]}}, EngineError, "neither vLLM nor SGLang"),
        ({"v1/models": {"data": []}}, EngineError, "neither vLLM nor SGLang"),
        ({"v1/models": (200, b"<html>")}, EngineError, "neither vLLM nor SGLang"),
        ({"v1/models": (404, b"")}, EngineError, "neither vLLM nor SGLang .* status 404"),
        ({"v1/models": (403, b"")}, EngineError, "does not accept the API key"),
        ({"v1/models": {"data": [{"id": "m", "owned_by": "vllm"}]}}, EngineError, "max_model_len"),
        ({"v1/models": {"data": [{"id": "m", "owned_by": "sglang"}]}}, EngineError, "max_model_len"),
        (
            {"v1/models": {"data": [{"id": "m", "owned_by": "llamacpp"}]}, "props": {}},
            EngineError,
            "/props cannot be read",
        ),
        (
            {"v1/models": {"data": [{"id": "m", "owned_by": "llamacpp"}]}, "props": (501, b"")},
            EngineError,
            "/props answers with HTTP status 501",
        ),
        ({"v1/models": (200, b'{"data":' + b"[" * 100_000)}, EngineError, "neither vLLM nor SGLang"),
        ({"health": (503, b"")}, ServerLost, "not healthy"),
    ],
)
def test_a_server_that_is_no_engine_is_an_error(pages: dict[str, Any], kind: type[Exception], message: str) -> None:
    async def main() -> None:
        async with Fake(**pages) as fake:
            server = fake.server()
            with pytest.raises(kind, match=message):
                await server.open()
            assert not server.up
            await server.close()

    run(main)


def test_it_is_left_out_while_it_is_not_well() -> None:
    async def main() -> None:
        async with Fake(metrics=(200, b"vllm:num_requests_running 2\n")) as fake:
            server = fake.server()
            await server.open()
            await server.poll()
            await server.measure()
            assert [sample.name for sample in server.gauges()] == ["running", "drafted_total", "accepted_total"]
            fake.pages["/health"] = (503, b"")
            await server.poll()
            assert not server.up and server.gauges() == []
            fake.pages["/health"] = {}
            await server.poll()
            assert server.up
            await fake.stop()
            await server.poll()
            assert not server.up
            await server.close()

    run(main)


def test_metrics_say_nothing_of_its_health(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dovetail.backends.remote.server.METRICS_S", 0.1)
    requested: list[object] = []

    async def main() -> None:
        async with Fake() as fake:
            server = fake.server()
            await server.open()
            for page in ((200, b"x" * (5 << 20)), (404, b""), (200, b'vllm:num_requests_running{a="b 1\n'), "late"):
                fake.pages["/metrics"] = (200, b"vllm:num_requests_running 2\n")
                await server.measure()
                assert total(server.gauges(), "running") == 2
                if page == "late":
                    fake.late.add("/metrics")
                fake.pages["/metrics"] = page
                await server.poll()
                await server.measure()
                assert server.up and all(sample.name != "running" for sample in server.gauges())
                requested.append(page)
            await server.close()

    run(main)
    assert len(requested) == 4


@pytest.mark.parametrize(
    ("model", "message"),
    [({"id": "other", "max_model_len": 512}, "came back with 'other'"), ({"id": "m", "max_model_len": 255}, "context")],
)
def test_a_server_that_returns_with_another_model_is_left_out_and_logged_once(
    model: dict[str, Any], message: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.backends.remote.server.RECHECK_S", 0.0)

    async def main() -> None:
        async with Fake() as fake:
            server = fake.server()
            await server.open()
            server.least_context = 256
            usual = fake.pages["/v1/models"]
            server.lost()
            fake.pages["/v1/models"] = {"data": [{"owned_by": "vllm", **model}]}
            for _ in range(3):
                await server.poll()
                assert not server.up
            assert [message in record.message for record in caplog.records].count(True) == 1
            fake.pages["/v1/models"] = usual
            await server.poll()
            assert server.up
            # A smaller context than it had, which is as much as was promised.
            server.lost()
            fake.pages["/v1/models"] = {"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 256}]}
            await server.poll()
            assert server.up
            await server.close()

    run(main)


def test_a_server_that_returned_with_another_model_is_checked_rarely() -> None:
    async def main() -> None:
        async with Fake() as fake:
            server = fake.server()
            await server.open()
            server.lost()
            fake.pages["/v1/models"] = {"data": [{"id": "other", "owned_by": "vllm", "max_model_len": 512}]}
            await server.poll()
            requested = len(fake.headers)
            for _ in range(3):
                await server.poll()
            assert not server.up and len(fake.headers) == requested
            await server.close()

    run(main)


def test_addresses() -> None:
    assert split_address("http://127.0.0.1:8000/v1/") == ("http://127.0.0.1:8000", "127.0.0.1:8000")
    assert split_address(" https://Example.org/vllm ") == ("https://example.org/vllm", "example.org/vllm")
    assert split_address("http://[::1]:8000") == ("http://[::1]:8000", "[::1]:8000")
    for address in ("127.0.0.1:8000", "ftp://a", "http://", "http://a:b", "http://a?x=1", "http://a:99999"):
        with pytest.raises(PlanError, match="must be a URL"):
            split_address(address)
    for address in ("http://me:s3cret@a", "http://me:s3cret@a:b", "me:s3cret@a:1", "http://[me:s3cret@a"):
        with pytest.raises(PlanError, match="--engine-api-key-file") as caught:
            Server(address, VOCABULARY)
        assert "s3cret" not in str(caught.value)
    with pytest.raises(PlanError) as caught:
        Server("http://a:1?key=s3cret", VOCABULARY)
    assert "s3cret" not in str(caught.value)


def test_the_vocabulary_is_the_checkpoints(tmp_path: Path, small_tokenizer: Tokenizer) -> None:
    size = small_tokenizer.vocab_size + 3

    def declare(generation: object = None, **config: object) -> None:
        (tmp_path / "config.json").write_text(json.dumps(config))
        (tmp_path / "generation_config.json").unlink(missing_ok=True)
        if generation is not None:
            (tmp_path / "generation_config.json").write_text(json.dumps(generation))

    declare(vocab_size=size, eos_token_id=1)
    vocabulary = read_vocabulary(tmp_path, small_tokenizer)
    assert (vocabulary.size, vocabulary.eos_ids, vocabulary.control) == (size, (1,), small_tokenizer.control)
    declare({"eos_token_id": [1, 2]}, vocab_size=size, eos_token_id=1)
    assert read_vocabulary(tmp_path, small_tokenizer).eos_ids == (1, 2)
    declare(text_config={"vocab_size": size, "eos_token_id": 3})
    assert read_vocabulary(tmp_path, small_tokenizer).eos_ids == (3,)
    for wrong in ({"vocab_size": 1, "eos_token_id": 0}, {"eos_token_id": 0}, {"vocab_size": size}):
        declare(**wrong)
        with pytest.raises(CheckpointError, match=r"vocab_size|eos_token_id"):
            read_vocabulary(tmp_path, small_tokenizer)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="must hold a JSON object"):
        read_vocabulary(tmp_path, small_tokenizer)
