"""A server behind HTTP gets the trace context of each request, and Dovetail's own requests to it have none."""

from __future__ import annotations

import httpx
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from dovetail.backends.remote import RemoteEngine, Server, Vocabulary
from dovetail.formats.families.kimi_k2 import KimiK25
from dovetail.gateway import Settings, create_app
from dovetail.gateway.http.middleware import Telemetry
from dovetail.gateway.observe.spans import SpanTracer
from dovetail.tokens import Tokenizer
from tests.backends.remote.fake import Fake, completion, run, whole
from tests.gateway.scripted import MODEL

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_server_gets_the_trace_context() -> None:
    async def main() -> None:
        async with Fake() as fake:
            server = fake.server(key="sk-of-the-server")
            await server.open()
            await whole(server, completion(trace_context={"traceparent": TRACEPARENT, "tracestate": "a=1"}))
            await whole(server, completion())
            await server.close()
            (head,) = [head for head in fake.headers if "traceparent" in head.lower()]
            assert head.startswith("POST ")
            assert {f"traceparent: {TRACEPARENT}", "tracestate: a=1"} <= set(head.splitlines())
            assert "authorization: bearer sk-of-the-server" in head.lower()

    run(main)


def test_through_the_gateway_the_span_of_the_request_is_the_servers_parent(small_tokenizer: Tokenizer) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry = Telemetry(tracer=SpanTracer(provider.get_tracer("test"), provider.shutdown))

    async def main() -> None:
        async with Fake(context=4096) as fake:
            end = (small_tokenizer.control["<|im_end|>"],)
            vocabulary = Vocabulary(small_tokenizer.vocab_size, end, small_tokenizer.control)
            engine = RemoteEngine([Server(fake.url, vocabulary)])
            app = create_app(engine, KimiK25(), small_tokenizer, Settings(served_model_name=MODEL), telemetry)
            async with (
                app.router.lifespan_context(app),
                httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://dovetail") as client,
            ):
                body = {"model": MODEL, "prompt": "hello", "max_tokens": 4}
                headers = {"traceparent": TRACEPARENT}
                answer = await client.post("/v1/completions", json=body, headers=headers)
            assert answer.status_code == 200
            (head,) = [head for head in fake.headers if "traceparent" in head.lower()]
            fields = dict(line.split(": ", 1) for line in head.splitlines()[1:] if line)
        (span,) = (span for span in exporter.get_finished_spans() if span.kind is SpanKind.SERVER)
        assert span.context is not None
        trace_id, span_id = TRACEPARENT[3:35], f"{span.context.span_id:016x}"
        assert fields["traceparent"] == f"00-{trace_id}-{span_id}-01"
        assert answer.headers["traceresponse"] == fields["traceparent"]

    run(main)
