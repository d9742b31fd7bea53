"""Fixtures of the gateway's tests."""

from __future__ import annotations

import pytest

from dovetail.tokens import Tokenizer
from tests.gateway.scripted import ScriptedEngine


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def tok(small_tokenizer: Tokenizer) -> Tokenizer:
    return small_tokenizer


@pytest.fixture
def engine(tok: Tokenizer) -> ScriptedEngine:
    return ScriptedEngine(tok)
