"""Versions of the tables, passwords, and TLS."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dovetail.gateway.records.memory import TABLE
from dovetail.gateway.store.interface import DEFAULT_LIMITS, StoreError
from dovetail.gateway.store.opened import opened_store
from tests.gateway.store.servers import Server, running
from tests.server.test_tls import CERTIFICATE, KEY

SECRET = "s3cr3t"


@pytest.fixture
def postgresql() -> Iterator[Server]:
    with running("postgresql") as server:
        yield server


def test_gateways_may_begin_at_once_and_a_newer_version_is_refused(postgresql: Server) -> None:
    store = postgresql.store()
    execute(store, "DROP TABLE dovetail_answers, dovetail_responses, dovetail_use, dovetail_shares, dovetail_schema")
    execute(store, "DROP FUNCTION dovetail_count")
    with ThreadPoolExecutor(4) as threads:
        for other in threads.map(lambda _: postgresql.store(10), range(4)):
            other.close()
    entries = store.entries(TABLE, DEFAULT_LIMITS)
    assert entries.find(("turn",), "turn", {b"t"}) == []
    execute(store, "UPDATE dovetail_schema SET version = 99")
    with pytest.raises(StoreError, match="have version 99, and this Dovetail knows those up to 1: update it, or"):
        postgresql.store()
    store.close()
    old = opened_store(postgresql.url, 1)
    with contextlib.closing(old), pytest.raises(StoreError, match="version 99"):
        old.entries(TABLE, DEFAULT_LIMITS).find(("turn",), "turn", {b"t"})


def execute(store: Any, query: str) -> None:
    async def run(connection: Any) -> None:
        await connection.execute(query)

    store.run(lambda: store._with(run))


def test_redis_over_tls_with_a_password() -> None:
    options = ["--tls-port", "{}", "--port", "0", "--tls-auth-clients", "no", "--requirepass", SECRET]
    files = ["--tls-cert-file", CERTIFICATE, "--tls-key-file", KEY, "--tls-ca-cert-file", CERTIFICATE]
    url = f"rediss://127.0.0.1:{{}}?ssl_ca_certs={CERTIFICATE}"
    with running("redis", *options, *files, url=url, password=SECRET) as own:
        good = own.url
        with contextlib.closing(opened_store(good, 1, SECRET)) as store:
            store.check()
        for url, password, reason in (
            (good, "wrong", "password|WRONGPASS"),
            (good, None, "[Aa]uthentication"),
            (f"rediss://127.0.0.1:{own.port}", SECRET, "certificate"),
        ):
            with contextlib.closing(opened_store(url, 1, password)) as store, pytest.raises(StoreError, match=reason):
                store.check()
