"""Traces reach a real OTLP receiver, and one that is gone or silent stops nobody; with --log-format json, standard
output is JSON lines."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from dovetail.errors import PlanError
from dovetail.events import Message
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings, create_app
from dovetail.plan import resolve
from dovetail.server.telemetry import telemetry, traces_endpoint
from dovetail.tokens import Tokenizer
from tests.cli.test_serve import free_port, serving
from tests.gateway.scripted import MODEL, ScriptedEngine, ids_of


class Receiver:
    """An OTLP/HTTP receiver. `silent`: it never answers, until the end."""

    def __init__(self, *, silent: bool = False) -> None:
        self.requests: list[tuple[str, dict[str, str], ExportTraceServiceRequest]] = []
        self.asked, self.ended = threading.Event(), threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                message = ExportTraceServiceRequest()
                message.ParseFromString(self.rfile.read(int(self.headers["content-length"])))
                headers = {name.lower(): value for name, value in self.headers.items()}
                receiver.requests.append((self.path, headers, message))
                receiver.asked.set()
                if silent:
                    receiver.ended.wait()
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Receiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def spans(self) -> list[Span]:
        return [
            span
            for _, _, message in self.requests
            for resource in message.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def resource(self) -> dict[str, str]:
        (resource, *_) = self.requests[0][2].resource_spans
        return {each.key: each.value.string_value for each in resource.resource.attributes}


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    """Waits for the exporter's threads: between two tries they draw from `random`, which fails a property that runs
    meanwhile. The threads that prepare requests stay idle."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("dovetail-prepare"):
            continue
        thread.join(60)
        assert not thread.is_alive(), thread


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED", "OTEL_SERVICE_NAME"):
        monkeypatch.delenv(name, raising=False)


def served(
    tok: Tokenizer, pair: Path, requests: int, after: Callable[[], object] = lambda: None, **settings: Any
) -> list[int]:
    """The statuses of so many chat completions, with the telemetry of a plan with `settings`. `after` is called when
    they are answered, and before the server ends."""
    engine = ScriptedEngine(tok)
    engine.ids = ids_of(Message(content="ok"), tok)
    plan = resolve(str(pair / "target"), settings)
    app = create_app(engine, KimiK25(), tok, Settings(served_model_name=MODEL), telemetry(plan))
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "dovetail": {"strict": "off"}}

    async def main() -> list[int]:
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://dovetail") as client,
        ):
            statuses = [(await client.post("/v1/chat/completions", json=body)).status_code for _ in range(requests)]
            await asyncio.to_thread(after)
            return statuses

    return asyncio.run(main())


def test_a_collector_gets_spans(small_tokenizer: Tokenizer, pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20of-the-collector")
    with Receiver() as receiver:
        assert served(small_tokenizer, pair, 3, otlp_endpoint=receiver.url) == [200] * 3
    assert {path for path, _, _ in receiver.requests} == {"/v1/traces"}
    _, headers, _ = receiver.requests[0]
    assert headers["content-type"] == "application/x-protobuf"
    assert headers["authorization"] == "Bearer of-the-collector"
    assert receiver.resource()["service.name"] == "dovetail"
    by_trace: dict[bytes, list[Span]] = {}
    for span in receiver.spans():
        by_trace.setdefault(span.trace_id, []).append(span)
    assert len(by_trace) == 3
    for spans in by_trace.values():
        (root,) = (span for span in spans if span.kind == Span.SPAN_KIND_SERVER)
        assert root.name == f"chat {MODEL}" and not root.parent_span_id
        stages = {span.name for span in spans if span.parent_span_id == root.span_id}
        assert stages == {"repair", "render", "compile", "queue", "prefill", "decode", "parse", "check"}


def test_the_standard_variables_are_enough(
    small_tokenizer: Tokenizer, pair: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Receiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
        served(small_tokenizer, pair, 1)
    assert receiver.requests[0][0] == "/v1/traces"
    assert {"service.name": "mine", "deployment.environment.name": "test"}.items() <= receiver.resource().items()


@pytest.mark.slow
def test_a_collector_that_never_answers_stops_nobody(
    small_tokenizer: Tokenizer, pair: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dovetail.server.telemetry._LAST_SPANS_S", 0.1)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "32")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "16")
    with Receiver(silent=True) as receiver:
        # Far more spans than wait: all of these are answered while the first batch is.
        assert (
            served(small_tokenizer, pair, 20, lambda: receiver.asked.wait(60), otlp_endpoint=receiver.url) == [200] * 20
        )
        assert len(receiver.requests) == 1


def test_a_collector_that_is_gone_stops_nobody(
    small_tokenizer: Tokenizer, pair: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("dovetail.server.telemetry._LAST_SPANS_S", 0.1)
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    tried = threading.Event()
    logging.getLogger("opentelemetry").addHandler(handler := _Sets(tried))
    try:
        url = f"http://127.0.0.1:{free_port()}"
        assert served(small_tokenizer, pair, 5, lambda: tried.wait(60), otlp_endpoint=url) == [200] * 5
    finally:
        logging.getLogger("opentelemetry").removeHandler(handler)


class _Sets(logging.Handler):
    """Sets `event` at the first record."""

    def __init__(self, event: threading.Event) -> None:
        super().__init__()
        self._event = event

    def emit(self, record: logging.LogRecord) -> None:
        self._event.set()


@pytest.mark.parametrize(
    ("option", "variables", "endpoint"),
    [
        (None, {}, None),
        ("http://c:4318", {}, "http://c:4318/v1/traces"),
        ("http://c:4318/", {}, "http://c:4318/v1/traces"),
        ("http://c/otlp/v1/traces", {}, "http://c/otlp/v1/traces"),
        ("http://c:4318", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://d"}, "http://c:4318/v1/traces"),
        ("http://c:4318", {"OTEL_TRACES_EXPORTER": "none"}, "http://c:4318/v1/traces"),
        ("http://c:4318", {"OTEL_SDK_DISABLED": "true"}, None),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://d"}, ""),
        (None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://d"}, ""),
        (None, {"OTEL_TRACES_EXPORTER": "otlp"}, ""),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://d", "OTEL_TRACES_EXPORTER": "none"}, None),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://d", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, ""),
        (None, {"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, None),
    ],
)
def test_where_traces_go(option: str | None, variables: dict[str, str], endpoint: str | None) -> None:
    assert traces_endpoint(option, variables) == endpoint


@pytest.mark.parametrize(
    ("option", "variables", "message"),
    [
        (None, {"OTEL_TRACES_EXPORTER": "zipkin"}, "can be otlp or none"),
        ("http://c", {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "traces are sent as http/protobuf"),
        (None, {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/json"}, "http/protobuf"),
    ],
)
def test_what_there_is_not(option: str | None, variables: dict[str, str], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        traces_endpoint(option, variables)


@pytest.mark.parametrize(
    "url", ["localhost:4318", "ftp://c", "http://", "http://key@c", "http://c?key=1", "http://c d", "grpc://c:4317"]
)
def test_a_url_that_is_none_is_refused(pair: Path, url: str) -> None:
    with pytest.raises(PlanError, match="otlp_endpoint"):
        resolve(str(pair / "target"), {"otlp_endpoint": url})


def test_without_the_packages_it_says_what_to_install(pair: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(PlanError, match=r"dovetail\[otel\]"):
        telemetry(resolve(str(pair / "target"), {"otlp_endpoint": "http://localhost:4318"}))


@pytest.mark.slow
def test_with_json_standard_output_has_nothing_else(pair: Path) -> None:
    """A whole server: its lines, and its last spans at its end."""
    port = free_port()
    with Receiver() as receiver:
        options = ("--log-format", "json", "--otlp-endpoint", receiver.url, "--context", "256")
        with serving(port, pair / "drafter", *options) as child:
            body = {"model": "target", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                answer = client.post("/v1/chat/completions", json=body, headers={"x-request-id": "mine"})
                client.get("/nowhere")
            child.send_signal(signal.SIGTERM)
            printed, complaints = child.communicate(timeout=60)
        assert answer.status_code == 200 and child.returncode == 0
        # A request's line is written when it has ended, which may be after the client's next request.
        one, two = sorted(map(json.loads, printed.splitlines()), key=lambda line: line["time"])
        assert (one["request_id"], one["status"], one["completion_tokens"], one["finish_reason"]) == (
            "mine",
            200,
            answer.json()["usage"]["completion_tokens"],
            answer.json()["choices"][0]["finish_reason"],
        )
        assert (two["path"], two["status"]) == ("/nowhere", 404)
        assert f"http://127.0.0.1:{port}" in complaints, "people read standard error"
        assert {span.trace_id.hex() for span in receiver.spans()} == {one["trace_id"], two["trace_id"]}
