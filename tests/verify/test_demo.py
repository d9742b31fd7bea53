"""The bundled demo pair on the embedded engine passes: a real model, a real drafter, real verification."""

from __future__ import annotations

import asyncio

import pytest

import dovetail
from dovetail.backends.embedded import EmbeddedEngine
from dovetail.client.endpoint import Limits
from dovetail.engine.settings import EngineSettings
from dovetail.gateway import Settings, create_app
from dovetail.verify.bundle import Bundles
from dovetail.verify.journal import Header, Journal
from dovetail.verify.language import Language
from dovetail.verify.outcome import Outcome
from dovetail.verify.runner import Plan, run
from dovetail.verify.suites import SUITES, Silent
from tests.verify.harness import AppTransport, endpoint
from tests.verify.model import TARGET

pytestmark = pytest.mark.slow


def test_the_demo_passes_every_suite() -> None:
    fmt, tokenizer = dovetail.format(TARGET), dovetail.tokenizer(TARGET)
    engine = EmbeddedEngine(TARGET, TARGET.parent / "drafter", EngineSettings(draft_tokens=3, max_batch=4, threads=1))
    app = create_app(engine, fmt, tokenizer, Settings(served_model_name="demo"))
    suites = [Silent(turns=6) if suite is Silent else suite() for suite in SUITES.values()]

    async def tested() -> list[Outcome]:
        await engine.start()
        try:
            return await run(
                [endpoint(AppTransport(app), limits=Limits(max_tokens=256))],
                Plan(suites),
                Language(fmt, tokenizer),
                journal=Journal(None, Header((), (), "")),
                bundles=Bundles(None),
            )
        finally:
            await engine.stop()

    outcomes = asyncio.run(tested())
    assert [failure for outcome in outcomes for failure in outcome.failures] == []
    tested_in = {outcome.suite for outcome in outcomes if outcome.passed}
    assert tested_in == set(SUITES) - {"long"}  # the demo model loses a needle after 500 tokens
    assert not any(outcome.untested.blocking for outcome in outcomes if outcome.untested)
