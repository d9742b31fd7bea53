"""`--log-format json` and `--otlp-endpoint`: where access lines and traces go."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dovetail import __version__
from dovetail.errors import PlanError
from dovetail.gateway.http.middleware import Telemetry
from dovetail.plan import Plan
from dovetail.server.logs import logs_json, write_access_line

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from dovetail.gateway.observe.spans import SpanTracer

_TRACES_PATH = "/v1/traces"
_PROTOCOL = "http/protobuf"
#: How long the last spans may take to be sent when the server stops.
_LAST_SPANS_S = 3.0


def telemetry(plan: Plan) -> Telemetry:
    """What the gateway reports its requests to. Raises `PlanError`."""
    endpoint = traces_endpoint(plan.value("otlp_endpoint"), os.environ)
    tracer = None if endpoint is None else _tracer(endpoint)
    return Telemetry(write_access_line if logs_json(plan) else None, tracer)


def traces_endpoint(option: str | None, environment: Mapping[str, str]) -> str | None:
    """The URL to which traces are sent: the option's, else "" if OpenTelemetry's environment variables have one.

    None if there are no traces. Raises `PlanError` for what the variables ask for and Dovetail has not.
    https://opentelemetry.io/docs/specs/otel/protocol/exporter/
    """

    def variable(name: str) -> str:
        return environment.get(name, "").strip()

    if variable("OTEL_SDK_DISABLED").lower() == "true":
        return None
    exporter = variable("OTEL_TRACES_EXPORTER")
    named = variable("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or variable("OTEL_EXPORTER_OTLP_ENDPOINT")
    if option is None and (exporter == "none" or not (exporter or named)):
        return None
    if option is None and exporter not in ("", "otlp"):
        raise PlanError(f"OTEL_TRACES_EXPORTER is {exporter!r:.80}: it can be otlp or none")
    protocol = variable("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or variable("OTEL_EXPORTER_OTLP_PROTOCOL") or _PROTOCOL
    if protocol != _PROTOCOL:
        raise PlanError(f"traces are sent as {_PROTOCOL}, but OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r:.80}")
    if option is None:
        return ""
    url = option.rstrip("/")
    return url if url.endswith(_TRACES_PATH) else url + _TRACES_PATH


def _tracer(endpoint: str) -> SpanTracer:
    """A tracer that sends spans to `endpoint`; "" for the environment's."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from dovetail.gateway.observe.spans import SpanTracer
    except ImportError as error:
        raise PlanError("traces need OpenTelemetry: pip install 'dovetail[otel]'") from error

    # Its own name yields to OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES.
    resource = Resource.create({"service.version": __version__})
    if str(resource.attributes["service.name"]).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "dovetail"}))
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    # The processor sends from a thread of its own, and drops spans when more wait than OTEL_BSP_MAX_QUEUE_SIZE.
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint or None)))
    return SpanTracer(provider.get_tracer("dovetail", __version__), functools.partial(_shut_down, provider))


def _shut_down(provider: TracerProvider) -> None:
    """Send the last spans. A receiver that does not answer is left behind."""
    closing = threading.Thread(target=provider.shutdown, name="dovetail-traces", daemon=True)
    closing.start()
    closing.join(_LAST_SPANS_S)
