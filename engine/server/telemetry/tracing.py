"""Traces of requests for an OpenTelemetry collector: one span for each request, made from its report when it has ended.

A span continues the trace of the client's ``traceparent``, and is recorded if that trace is. Its events are the
request's first step and first token. Attributes have the names of OpenTelemetry's conventions for RPCs, HTTP and
generative AI (https://opentelemetry.io/docs/specs/semconv/), where these have one. docs/deploy.md lists them. Needs the
extra ``draftline[tracing]``.
"""

from __future__ import annotations

from threading import Thread
from urllib.parse import urlsplit

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from draftline import __version__
from draftline.engine.server.telemetry.reports import RequestReport

_SERVICES = {"": "draftline.v1.InferenceService", "VllmEngine": "vllm.grpc.engine.VllmEngine"}
"""The full names of gRPC services, by what precedes the dot in a report's call."""

_FAULTS = {"INTERNAL", "UNAVAILABLE", "UNKNOWN", "UNIMPLEMENTED", "DEADLINE_EXCEEDED", "DATA_LOSS"}
"""The codes that mark a server's span as an error, by OpenTelemetry's conventions for RPCs."""


CLOSE_S = 3.0
"""Seconds for the last spans. The exporter itself waits half a minute, longer than a supervisor does after a drain."""


class Tracing:
    """Sends spans in batches, from a thread of its own."""

    def __init__(self, endpoint: str) -> None:
        """``endpoint`` is the URL of an OTLP collector, such as ``http://localhost:4317``. ``https`` uses TLS."""
        resource = Resource.create({"service.name": "draftline", "service.version": __version__})
        self._provider = TracerProvider(resource=resource)
        insecure = urlsplit(endpoint).scheme != "https"
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint, insecure=insecure)))
        self._tracer = self._provider.get_tracer("draftline")
        self._propagator = TraceContextTextMapPropagator()
        self._model = ""

    def serve(self, model: str) -> None:
        """Put the name of the model in the spans from now on."""
        self._model = model

    def observe(self, report: RequestReport) -> None:
        """Send the span of a request that has ended."""
        start = report.started_ns
        span = self._tracer.start_span(
            span_name(report.origin.call),
            context=self._propagator.extract(report.origin.trace),
            kind=SpanKind.SERVER,
            attributes=self._attributes(report),
            start_time=start,
        )
        if report.outputs:
            timing = report.outputs[0].timing
            first_step = timing.constraint_compile_s + timing.queued_s
            span.add_event("first step", timestamp=start + round(first_step * 1e9))
            span.add_event("first token", timestamp=start + round(timing.first_token_s * 1e9))
        if report.code in _FAULTS:
            span.set_status(Status(StatusCode.ERROR, report.code))
        span.end(start + round(report.seconds * 1e9))

    def close(self) -> None:
        """Send the remaining spans. Those that a collector does not take in time are lost."""
        sending = Thread(target=self._provider.shutdown, name="draftline-spans", daemon=True)
        sending.start()
        sending.join(CLOSE_S)

    def _attributes(self, report: RequestReport) -> dict[str, AttributeValue]:
        attributes: dict[str, AttributeValue] = {
            **_transport(report),
            "gen_ai.provider.name": "draftline",
            "gen_ai.request.model": self._model,
            "draftline.request_id": report.request_id,
        }
        if report.operation:
            attributes["gen_ai.operation.name"] = report.operation
        if report.client_id:
            attributes["draftline.client_request_id"] = report.client_id
        if report.code in _FAULTS:
            attributes["error.type"] = report.code
        if report.outputs:
            first = report.outputs[0]
            attributes |= {
                "gen_ai.usage.input_tokens": first.usage.prompt_tokens,
                "gen_ai.usage.output_tokens": sum(output.usage.completion_tokens for output in report.outputs),
                "gen_ai.response.finish_reasons": [output.finish_reason.name.lower() for output in report.outputs],
                "gen_ai.usage.cache_read.input_tokens": first.usage.cached_tokens,
                "gen_ai.usage.reasoning.output_tokens": sum(output.reasoning_tokens for output in report.outputs),
                "draftline.drafted_tokens": sum(output.speculation.drafted for output in report.outputs),
                "draftline.accepted_tokens": sum(output.speculation.accepted for output in report.outputs),
            }
        return attributes


def span_name(call: str) -> str:
    """A span's name: a gRPC method with its service, or an HTTP path."""
    if call.startswith("/"):
        return f"POST {call}"
    service, _, method = call.rpartition(".")
    return f"{_SERVICES[service]}/{method}"


def _transport(report: RequestReport) -> dict[str, AttributeValue]:
    call = report.origin.call
    if call.startswith("/"):
        return {"http.request.method": "POST", "http.route": call, "url.path": call, "draftline.code": report.code}
    return {"rpc.system.name": "grpc", "rpc.method": span_name(call), "rpc.response.status_code": report.code}
