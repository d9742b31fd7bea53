"""The URL of a store: what is refused, and that nothing shows its password."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from dovetail.cli import serve
from dovetail.errors import PlanError
from dovetail.gateway.store.opened import opened_store
from dovetail.plan import resolve
from dovetail.server.shared_store import STORE, shared_store

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (f"redis://:{SECRET}@127.0.0.1", "DOVETAIL_STORE_PASSWORD"),
        (f"postgresql://user:{SECRET}@127.0.0.1/db", "DOVETAIL_STORE_PASSWORD"),
        (f"postgresql://127.0.0.1/db?password={SECRET}", "DOVETAIL_STORE_PASSWORD"),
        ("mysql://127.0.0.1", "it must be redis://HOST"),
        ("redis://", "it must be redis://HOST"),
        ("/var/lib/store.db", "it must be redis://HOST"),
    ],
)
def test_urls_that_are_refused(pair: Path, url: str, reason: str) -> None:
    with pytest.raises(PlanError, match="command line: store is") as refused:
        resolve(str(pair / "target"), {"store": url})
    assert reason in refused.value.message and SECRET not in refused.value.message


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (f"redis://:{SECRET}@127.0.0.1:1/3", "redis://127.0.0.1:1/3: .*failed"),
        (f"redis://:{SECRET}@127.0.0.1:1?no_such={SECRET}", "redis://127.0.0.1:1"),
        (f"redis://:{SECRET}@127.0.0.1:nonsense", "redis://127.0.0.1:nonsense"),
        (f"postgresql://me:{SECRET}@127.0.0.1:1/db", "postgresql://127.0.0.1:1/db: .*refused"),
        (f"postgresql://me:{SECRET}@127.0.0.1:1/db?no_such={SECRET}", "postgresql://127.0.0.1:1/db: .*no_such"),
        (f"postgresql://me:{SECRET}%zz@127.0.0.1:1/db", "postgresql://127.0.0.1:1/db: .*the password of this URL"),
        (f"postgresql://me:{SECRET} x@127.0.0.1:1/db", "postgresql://127.0.0.1:1/db: .*the password of this URL"),
        (f"postgresql://me:{SECRET}/x@127.0.0.1:1/db", "postgresql://127.0.0.1:1/db: write / as %2F"),
        (f"redis://:{SECRET}/x@127.0.0.1", "redis://127.0.0.1: write / as %2F"),
        (f"redis://:{SECRET}?x@127.0.0.1", "redis://…: write / as %2F"),
        (f"https://:{SECRET}@127.0.0.1", "https://127.0.0.1 is not a store"),
    ],
)
def test_what_cannot_be_opened_is_named_without_its_password(
    pair: Path, url: str, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv(STORE, url)
    plan = resolve(str(pair / "target"), {})
    with pytest.raises(PlanError, match=f"the store cannot be used: {reason}") as refused:
        shared_store(plan)
    assert SECRET not in refused.value.message + caplog.text
    assert plan.value("store") is None
    monkeypatch.delenv(STORE)
    assert shared_store(plan) is None


def test_files_beside_a_store(pair: Path) -> None:
    store = opened_store("valkeys://127.0.0.1:1", 0.1)
    plan = resolve(str(pair / "target"), {"memory_store": "/a/m.db", "response_store": "none"})
    assert serve.stored_at(plan, "response_store", "responses.db", store) is None
    with pytest.raises(PlanError, match=r"memory_store is the file /a/m.db, but there is a store"):
        serve.memory_place(plan, store)
    assert serve.memory_place(resolve(str(pair / "target"), {}), store) is store
    store.close()
