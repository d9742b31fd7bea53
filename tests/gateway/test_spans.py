"""A traced request has a span, and spans of its stages below it, by OpenTelemetry's conventions and without texts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.semconv._incubating.attributes import client_attributes, gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes, http_attributes, url_attributes
from opentelemetry.trace import SpanKind, StatusCode

from dovetail.errors import EngineBusy, EngineError
from dovetail.events import Message
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings, create_app
from dovetail.gateway.http.middleware import Telemetry
from dovetail.gateway.observe.request_report import APIS
from dovetail.gateway.observe.spans import SpanTracer
from dovetail.tokens import Tokenizer
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of
from tests.gateway.test_access_log import REQUESTS, SECRET, TRACEPARENT, WORDS
from tests.tools import taking, tool

pytestmark = pytest.mark.anyio

STAGES = ["repair", "render", "compile", "queue", "prefill", "decode", "parse", "check"]
CONVENTIONS = {
    value
    for module in (client_attributes, gen_ai_attributes, error_attributes, http_attributes, url_attributes)
    for value in vars(module).values()
    if isinstance(value, str)
}
TOOL = tool("look_up", taking({"secret_field": {}}))


class Traced:
    """The gateway with an exporter in memory. `closed`: how often the tracer was closed."""

    def __init__(self, client: httpx.AsyncClient, exporter: InMemorySpanExporter) -> None:
        self.client = client
        self._exporter = exporter

    def spans(self) -> list[ReadableSpan]:
        """The spans so far, by when they began."""
        return sorted(self._exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def request(self) -> ReadableSpan:
        """The span of the only request."""
        (span,) = (span for span in self.spans() if span.kind is SpanKind.SERVER)
        return span

    def stages(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self.spans() if span.kind is SpanKind.INTERNAL}


@asynccontextmanager
async def traced(
    engine: ScriptedEngine, tok: Tokenizer, provider: TracerProvider | None = None, **settings: Any
) -> AsyncIterator[Traced]:
    exporter = InMemorySpanExporter()
    provider = provider or TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = Telemetry(tracer=SpanTracer(provider.get_tracer("test"), provider.shutdown))
    app = create_app(engine, KimiK25(), tok, Settings(served_model_name=MODEL, **settings), telemetry)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=("192.0.2.7", 5))
    async with httpx.AsyncClient(transport=transport, base_url="http://dovetail") as client:
        yield Traced(client, exporter)
    provider.shutdown()


def texts(spans: list[ReadableSpan]) -> Iterator[str]:
    """Everything in spans that could have text of a request."""
    for span in spans:
        yield span.to_json()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
async def test_a_turn_is_a_span_with_its_stages(engine: ScriptedEngine, tok: Tokenizer, api: str, stream: bool) -> None:
    engine.ids = ids_of(Message(content="ok", reasoning="hm" if api != "completions" else ""), tok)
    engine.sizes, engine.cached = (3,), 2
    path, body = REQUESTS[api]
    async with traced(engine, tok, api_key=SECRET) as it:
        response = await it.client.post(
            path,
            json=body | {"model": MODEL, "stream": stream, "temperature": 0.5},
            headers={"authorization": f"Bearer {SECRET}", "x-request-id": "mine"},
        )
    span, stages = it.request(), it.stages()
    assert span.name == f"{'text_completion' if api == 'completions' else 'chat'} {MODEL}"
    attributes = dict(span.attributes or {})
    steps = -(-len(engine.ids) // 3)
    expected = {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": path,
        "gen_ai.request.model": MODEL,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.stream": stream,
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": len(engine.seen[0].prompt),
        "gen_ai.usage.output_tokens": len(engine.ids),
        "gen_ai.usage.cache_read.input_tokens": 2,
        "dovetail.api": api,
        "dovetail.request_id": "mine",
    }
    assert {name: attributes.get(name) for name in expected} == expected
    assert {name for name in attributes if not name.startswith("dovetail.")} <= CONVENTIONS
    assert ("gen_ai.response.time_to_first_chunk" in attributes) == stream
    assert span.status.status_code is StatusCode.UNSET and not span.events

    raw = {"repair", "render", "compile"} if api == "completions" else set()
    assert set(stages) == set(STAGES) - raw
    drafting = {"dovetail.drafted": 3 * steps, "dovetail.accepted": len(engine.ids) - steps, "dovetail.steps": steps}
    assert drafting.items() <= dict(stages["decode"].attributes or {}).items()
    for stage in stages.values():
        assert stage.parent is not None and span.context is not None
        assert (stage.parent.span_id, stage.parent.trace_id) == (span.context.span_id, span.context.trace_id)
        assert span.start_time is not None and span.end_time is not None
        assert stage.start_time is not None and stage.end_time is not None
        assert span.start_time <= stage.start_time <= stage.end_time <= span.end_time
    follow_each_other = [stages[name] for name in STAGES[3:6]]
    ends = [time for stage in follow_each_other for time in (stage.start_time, stage.end_time)]
    assert ends == sorted(ends, key=lambda time: time or 0)
    assert response.headers["traceresponse"].split("-")[1:3] == [
        f"{span.context.trace_id:032x}",
        f"{span.context.span_id:016x}",
    ]


async def test_the_trace_goes_on_from_the_client_to_the_engine(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message(content="ok"), tok)
    path, body = REQUESTS["chat"]
    async with traced(engine, tok) as it:
        headers = {"traceparent": TRACEPARENT, "tracestate": "vendor=1"}
        await it.client.post(path, json=body | {"model": MODEL}, headers=headers)
    span = it.request()
    assert span.context is not None and span.parent is not None
    assert f"{span.context.trace_id:032x}" == TRACEPARENT[3:35] and f"{span.parent.span_id:016x}" == TRACEPARENT[36:52]
    context = dict(engine.seen[0].trace_context)
    assert context == {
        "traceparent": f"00-{TRACEPARENT[3:35]}-{span.context.span_id:016x}-01",
        "tracestate": "vendor=1",
    }


async def test_without_traces_the_clients_context_goes_on_unchanged(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message(content="ok"), tok)
    path, body = REQUESTS["chat"]
    app = create_app(engine, KimiK25(), tok, Settings(served_model_name=MODEL))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://dovetail") as client:
        response = await client.post(path, json=body | {"model": MODEL}, headers={"traceparent": TRACEPARENT})
        await client.post(path, json=body | {"model": MODEL})
    assert [dict(seen.trace_context) for seen in engine.seen] == [{"traceparent": TRACEPARENT}, {}]
    assert "traceresponse" not in response.headers


async def test_what_is_not_sampled_costs_no_spans(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message(content="ok"), tok)
    path, body = REQUESTS["chat"]
    provider = TracerProvider(sampler=ParentBased(ALWAYS_OFF), shutdown_on_exit=False)
    async with traced(engine, tok, provider) as it:
        response = await it.client.post(path, json=body | {"model": MODEL})
        assert response.status_code == 200 and not int(response.headers["traceresponse"][-2:], 16) & 1
        assert it.spans() == []
        # The client decides that its own trace is sampled.
        await it.client.post(path, json=body | {"model": MODEL}, headers={"traceparent": TRACEPARENT})
        assert it.request().name == f"chat {MODEL}"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(EngineError(f"broken at {WORDS}"), 500, StatusCode.ERROR), (EngineBusy("full"), 503, StatusCode.ERROR)],
)
@pytest.mark.parametrize(("number", "stage"), [(0, "prefill"), (2, "decode")])
async def test_an_error_is_recorded_where_it_happened(
    engine: ScriptedEngine, tok: Tokenizer, error: Exception, status: int, code: StatusCode, number: int, stage: str
) -> None:
    async def fail(batch: int) -> None:
        if batch == number:
            raise error

    engine.ids, engine.before = ids_of(Message(content="ok", reasoning="hm"), tok), fail
    path, body = REQUESTS["chat"]
    async with traced(engine, tok) as it:
        await it.client.post(path, json=body | {"model": MODEL})
    span = it.request()
    assert span.status.status_code is code
    attributes = dict(span.attributes or {})
    assert attributes["error.type"] == type(error).__name__ and attributes["http.response.status_code"] == status
    failed = {name for name, each in it.stages().items() if "error.type" in (each.attributes or {})}
    assert failed == {stage}
    assert not any(WORDS in text for text in texts(it.spans()))


async def test_a_bad_request_is_the_clients_fault(engine: ScriptedEngine, tok: Tokenizer) -> None:
    path, body = REQUESTS["chat"]
    async with traced(engine, tok) as it:
        await it.client.post(path, json=body | {"model": "of nobody"})
    span = it.request()
    assert span.name == "chat" and span.status.status_code is StatusCode.UNSET
    assert (span.attributes or {})["error.type"] == "UnknownModel" and it.stages() == {}


async def test_an_error_in_the_history_is_one_of_repair(engine: ScriptedEngine, tok: Tokenizer) -> None:
    path, body = REQUESTS["chat"]
    orphan = [*body["messages"], {"role": "tool", "tool_call_id": "x", "content": WORDS}]
    async with traced(engine, tok) as it:
        assert (await it.client.post(path, json=body | {"model": MODEL, "messages": orphan})).status_code == 400
    assert {name: (span.attributes or {}).get("error.type") for name, span in it.stages().items()} == {
        "repair": "InvalidRequest"
    }


async def test_no_attribute_has_a_text_or_a_key(engine: ScriptedEngine, tok: Tokenizer) -> None:
    engine.ids = ids_of(Message(content="an answer", reasoning="a thought"), tok)
    path, body = REQUESTS["chat"]
    body = body | {"model": MODEL, "tools": [TOOL], "stop": ["a stop string"], "user": "somebody"}
    async with traced(engine, tok, api_key=SECRET) as it:
        await it.client.post(f"{path}?key={SECRET}", json=body, headers={"authorization": f"Bearer {SECRET}"})
        await it.client.post(path, json=body, headers={"authorization": "Bearer another-key"})
    everything = "".join(texts(it.spans()))
    assert len(it.spans()) > 9
    for text in (
        SECRET,
        "another-key",
        WORDS,
        "answer",
        "thought",
        "look_up",
        "secret_field",
        "a stop string",
        "somebody",
    ):
        assert text not in everything


async def test_other_paths_have_a_span_and_probes_have_none(engine: ScriptedEngine, tok: Tokenizer) -> None:
    async with traced(engine, tok) as it:
        for path in ("/health", "/ready", "/metrics", "/v1/models"):
            await it.client.get(path)
    span = it.request()
    assert span.name == "GET" and (span.attributes or {})["url.path"] == "/v1/models" and it.stages() == {}


def test_nothing_of_opentelemetry_is_imported_without_traces() -> None:
    script = """
import sys
import dovetail.gateway.app, dovetail.cli.serve, dovetail.server.telemetry
assert "dovetail.gateway.turn.trace" in sys.modules
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert ended.stdout == "[]\n", ended.stderr
