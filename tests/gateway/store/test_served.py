"""`dovetail serve` with a store, in two processes: what it prints, what both know, and its end while that is paused."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import httpx
import pytest

from dovetail.gateway.limits.keys import digest_of
from tests.cli.conftest import cache, no_gpus, pair
from tests.cli.test_serve import free_port, serving
from tests.gateway.named_keys import bearer, secret
from tests.gateway.store.servers import running

__all__ = ["cache", "no_gpus", "pair"]
SECRET = "s3cr3t"


def test_two_servers_share_a_store(pair: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, record = tmp_path / "keys.yaml", tmp_path / "record.key"
    keys.write_text(f"a:\n  hash: sha256:{digest_of(secret('a')).hex()}\n  requests_per_minute: 3\n")
    record.write_bytes(b"k" * 32)
    monkeypatch.setenv("DOVETAIL_STORE_PASSWORD", SECRET)
    with running("redis", "--requirepass", SECRET, password=SECRET) as server, contextlib.ExitStack() as stack:
        options = "--context", "256", "--api-keys", keys, "--record-key-file", record, "--store", server.url
        ports = free_port(), free_port()
        children = [stack.enter_context(serving(port, pair / "target", *options)) for port in ports]
        urls = [f"http://127.0.0.1:{port}/v1/responses" for port in ports]
        body = {"model": "target", "input": "hi", "max_output_tokens": 4}
        first = httpx.post(urls[0], json=body, headers=bearer("a"), timeout=60).json()
        goes_on = body | {"previous_response_id": first["id"]}
        assert first["store"] is True
        assert httpx.post(urls[1], json=goes_on, headers=bearer("a"), timeout=60).status_code == 200
        statuses = [httpx.post(url, json=body, headers=bearer("a"), timeout=60).status_code for url in urls]
        assert statuses == [200, 429]
        server.signal(signal.SIGSTOP)
        assert httpx.get(f"{urls[0]}/{first['id']}", headers=bearer("a"), timeout=60).status_code == 503
        for child in children:
            child.send_signal(signal.SIGTERM)
            printed, complaints = child.communicate(timeout=30)
            assert child.returncode == 0 and SECRET not in printed + complaints
            assert f"state shared in {server.url}" in printed
        server.signal(signal.SIGCONT)
