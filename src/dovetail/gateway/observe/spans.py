"""Traces of requests as OpenTelemetry spans: one for the request, and one below it for each of its stages.

The attributes follow the semantic conventions for HTTP servers and for generative AI; `dovetail.…` is for what they do
not have. No attribute has text of a prompt, of an answer or of an error message, and none has a key.

https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/
https://opentelemetry.io/docs/specs/semconv/http/http-spans/

This is the only file of the gateway that imports opentelemetry, and it is imported only where traces are wanted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dovetail.completion import Sampling
from dovetail.gateway.observe.request_report import RequestReport
from dovetail.gateway.turn.trace import Stage, StageName, Trace

_W3C = TraceContextTextMapPropagator()


class SpanTrace(Trace):
    """A trace with the span of its request. A trace that is not sampled has a span too, which records nothing."""

    def __init__(self, span: Span) -> None:
        self.span = span
        context: dict[str, str] = {}
        _W3C.inject(context, set_span_in_context(span))
        # The same four fields as in `traceparent`: https://w3c.github.io/trace-context/#traceresponse-header
        super().__init__(context, traceresponse=context.get("traceparent"), detailed=span.is_recording())


class SpanTracer:
    """Makes spans with `tracer`. They are finished when their request ends, with the times of its report.

    `close` sends the spans that wait.
    """

    def __init__(self, tracer: Tracer, close: Callable[[], None]) -> None:
        self._tracer = tracer
        self.close = close

    def begin(self, headers: Mapping[str, str]) -> SpanTrace:
        """The trace of a request: a part of the trace that its `traceparent` names, or a new one."""
        return SpanTrace(self._tracer.start_span("request", _W3C.extract(headers), SpanKind.SERVER))

    def end(self, report: RequestReport) -> None:
        """Finish the spans of `report`."""
        assert isinstance(report.trace, SpanTrace)
        span, at = report.trace.span, _Clock(report)
        if span.is_recording():
            span.update_name(_name(report))
            span.set_attributes({name: value for name, value in _attributes(report).items() if value is not None})
            # A server's span is in error if the server is at fault, and not its client.
            if report.outcome == "failed" or (report.status or 0) >= 500:
                span.set_status(Status(StatusCode.ERROR))
            for name, stage in stages(report):
                self._end_stage(name, stage, report, at)
        span.end(at(report.ended or report.arrived))

    def _end_stage(self, name: StageName, stage: Stage, report: RequestReport, at: _Clock) -> None:
        assert isinstance(report.trace, SpanTrace)
        attributes = {key: value for key, value in _stage_attributes(name, stage, report).items() if value is not None}
        parent = set_span_in_context(report.trace.span)
        span = self._tracer.start_span(name, parent, SpanKind.INTERNAL, attributes, start_time=at(stage.begin))
        if stage.error is not None and report.outcome == "failed":
            span.set_status(Status(StatusCode.ERROR))
        span.end(at(stage.end))


class _Clock:
    """Turns a report's times into nanoseconds since the epoch."""

    def __init__(self, report: RequestReport) -> None:
        self._began, self._arrived = round(report.began * 1e9), report.arrived

    def __call__(self, time: float) -> int:
        return self._began + round((time - self._arrived) * 1e9)


def stages(report: RequestReport) -> Iterator[tuple[StageName, Stage]]:
    """The stages of a request that has ended. An error belongs to the last of those that follow on each other."""
    ended = report.ended or report.arrived
    followed: list[tuple[StageName, float | None, float | None]] = [
        ("queue", report.prepared, report.admitted),
        ("prefill", report.admitted, report.first),
        ("decode", report.first, report.last if _is_whole(report) else None),
    ]
    yield from report.trace.stages.items()
    for name, begin, end in followed:
        if begin is not None:
            yield name, Stage(begin, end or ended, (end or ended) - begin, report.error if end is None else None)


def _is_whole(report: RequestReport) -> bool:
    return report.error is None and len(report.finish) == report.choices


def _name(report: RequestReport) -> str:
    """`chat MODEL` for a turn. A model that is not served here is not part of a name: there are too many."""
    if report.api is None:
        return report.method
    return f"{_operation(report)} {report.model}" if report.prepared is not None else _operation(report)


def _operation(report: RequestReport) -> str:
    return "text_completion" if report.api == "completions" else "chat"


def _attributes(report: RequestReport) -> dict[str, Any]:
    return {
        "http.request.method": report.method,
        "http.response.status_code": report.status,
        "url.path": report.path,
        "url.scheme": report.scheme,
        "client.address": report.peer or None,
        "error.type": report.error,
        "dovetail.request_id": report.id,
        "dovetail.key": report.key,
        **(_turn_attributes(report) if report.api is not None else {}),
    }


def _turn_attributes(report: RequestReport) -> dict[str, Any]:
    return {
        "http.route": report.path,
        "dovetail.api": report.api,
        "dovetail.outcome": report.outcome,
        "gen_ai.operation.name": _operation(report),
        "gen_ai.provider.name": "dovetail",
        "gen_ai.request.model": report.model,
        "gen_ai.request.stream": report.streams,
        "gen_ai.response.model": report.model if report.first is not None else None,
        "gen_ai.response.id": report.response_id,
        "gen_ai.response.finish_reasons": report.finish_reasons or None,
        "gen_ai.response.time_to_first_chunk": report.first_token_s if report.streams else None,
        "gen_ai.usage.input_tokens": report.prompt_tokens,
        "gen_ai.usage.output_tokens": report.completion_tokens,
        "gen_ai.usage.reasoning.output_tokens": report.reasoning_tokens,
        "gen_ai.usage.cache_read.input_tokens": report.cached,
        **(_sampling_attributes(report.sampling, report) if report.sampling is not None else {}),
    }


def _sampling_attributes(sampling: Sampling, report: RequestReport) -> dict[str, Any]:
    return {
        "gen_ai.request.max_tokens": report.max_tokens,
        "gen_ai.request.choice.count": report.choices if report.choices != 1 else None,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k,
        "gen_ai.request.seed": sampling.seed,
        "gen_ai.request.presence_penalty": sampling.presence_penalty or None,
        "gen_ai.request.frequency_penalty": sampling.frequency_penalty or None,
    }


def _stage_attributes(name: StageName, stage: Stage, report: RequestReport) -> dict[str, Any]:
    attributes: dict[str, Any] = {"error.type": stage.error}
    match name:
        case "prefill":
            attributes |= {
                "gen_ai.usage.input_tokens": report.prompt_tokens,
                "gen_ai.usage.cache_read.input_tokens": report.cached,
            }
        case "decode":
            attributes |= {
                "gen_ai.usage.output_tokens": report.completion_tokens,
                "dovetail.steps": report.steps,
                "dovetail.drafted": report.drafted,
                "dovetail.accepted": None if report.drafted is None else report.accepted,
                "dovetail.forced": None if report.drafted is None else report.forced,
            }
        case "parse" | "check":
            # They run between the steps of `decode`, so the span is longer than the work.
            attributes["dovetail.busy"] = stage.busy_s
        case _:
            pass
    return attributes
