"""What a translation of an API may tell the turn, and how the response reports it."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from dovetail.errors import ContextExceeded
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings
from dovetail.gateway.apis.chat import ChatCompletion
from dovetail.gateway.http.endpoint import Endpoint, Serving
from dovetail.gateway.http.middleware import RequestMiddleware, Telemetry
from dovetail.gateway.http.picture_fetch import PictureFetcher
from dovetail.gateway.limits.bodies import Bodies
from dovetail.gateway.limits.keys import Account
from dovetail.gateway.limits.queue import Draining, FairThreads
from dovetail.gateway.models import Model, Models, Names
from dovetail.gateway.observe.metrics import Metrics
from dovetail.gateway.turn.runner import TurnRunner
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, turn_request

pytestmark = pytest.mark.anyio

SETTINGS = Settings(served_model_name=MODEL, allow_silent=True)
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 100_000}


class Omitting(ChatCompletion):
    """Chat completions that leave two fields out."""

    def __init__(self, body: bytes, _: Account | None = None) -> None:
        super().__init__(body)
        fields = json.loads(body)
        self.turn_request = turn_request(fields, omitted=("tools[0]", "système"))


async def test_headers_report_what_was_left_out_and_the_cut_limit(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = (tok.control["<|im_end|>"],)
    metrics = Metrics()
    models = Models(metrics)
    models.only = models.new(Names(MODEL))
    models.only.ready(Model(engine, KimiK25(), tok, SETTINGS))
    limits = Bodies(1000, 1000), Draining(), FairThreads(2, ""), FairThreads(2, "")
    endpoint = Endpoint(
        lambda body, account, _: Omitting(body),
        Serving(models, SETTINGS, *limits, None, PictureFetcher(()), ThreadPoolExecutor(1)),
        "chat",
    )
    app = RequestMiddleware(Starlette(routes=[Route("/", endpoint, methods=["POST"])]), metrics, Telemetry())
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
        cut = await client.post("/", json=BODY)
        whole = await client.post("/", json=BODY | {"max_tokens": 9})
    room = engine.info.context - len(engine.seen[0].prompt)
    assert cut.headers["x-dovetail-max-tokens"] == str(room) and engine.seen[0].max_tokens == room
    assert cut.headers["x-dovetail-omitted"] == "tools[0], syst%C3%A8me"
    assert "x-dovetail-max-tokens" not in whole.headers and engine.seen[1].max_tokens == 9


def test_a_prompt_that_leaves_no_room_is_refused_all_the_same(tok: Tokenizer) -> None:
    runner = TurnRunner(ScriptedEngine(tok, context=4), KimiK25(), tok, SETTINGS)
    with pytest.raises(ContextExceeded):
        runner.prepare(turn_request(BODY))
