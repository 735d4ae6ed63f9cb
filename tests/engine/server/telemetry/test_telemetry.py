"""The observability of a server: metrics over HTTP and gRPC, logs, traces and channelz, all without prompts."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import json
import logging
import math
import re
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from fake_engine import FakeEngine
from google.protobuf.duration_pb2 import Duration
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc
from grpc_client import AsyncStub, SessionClient, connect, text_request, violations
from http_client import http_client
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from patience import DEADLINE_S, PATIENCE_S, until
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError
from rich.console import Console
from stepped_engine import SteppedEngine

from draftline import __version__
from draftline.engine.cli.views import top as top_view
from draftline.engine.cli.views.top import Snapshot
from draftline.engine.process.log_format import JsonFormatter, TextFormatter
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.grpc.listener import SERVICE
from draftline.engine.server.server import Server
from draftline.engine.server.telemetry import tracing
from draftline.engine.server.telemetry.metrics import ENGINE_METRICS
from draftline.engine.stats import DrafterStats, EngineStats, Histogram, StepTimes
from draftline.structured.compiler import ConstraintCompiler
from draftline.structured.vocabulary import ByteVocabulary
from draftline.v1 import admin_pb2
from draftline.v1 import engine_pb2 as pb
from draftline.v1.admin_pb2_grpc import AdminServiceStub
from draftline.v1.engine_pb2_grpc import InferenceServiceStub

SECRET = "the secret of the prompt"
DEPLOY = Path(__file__).parents[4] / "docs" / "deploy.md"


async def busy(stub: AsyncStub, engine: FakeEngine) -> None:
    """Make requests: two that end, one that is cancelled, one that is refused, one that fails."""
    client = SessionClient(stub)
    engine.hold()
    for name in ("one", "two"):
        await client.submit(name, text_request(SECRET, max_tokens=6))
    await client.submit("bad", text_request(SECRET, top_p=2.0))
    await client.submit("failing", text_request("FAIL"))
    await client.submit("cancelled", text_request("x", max_tokens=4000))
    await client.cancel("cancelled")
    while not engine.cancelled:
        await asyncio.sleep(0.001)
    engine.release()
    async for _ in client.rest():
        pass
    async for _ in stub.Generate(text_request(SECRET, n=2), metadata=(("x-request-id", "mine"),)):
        pass


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def scrape(server: Server) -> str:
    endpoint = server._metrics_endpoint
    assert endpoint is not None
    url = f"http://127.0.0.1:{endpoint.port}/metrics"
    return str(await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=PATIENCE_S).read().decode()))


@pytest.mark.parametrize(
    "endpoint", ["http://localhost:4317", "https://[::1]:4317", "https://collector.example", "collector:4317"]
)
def test_a_collector_has_a_url_or_a_port(endpoint: str) -> None:
    assert ServerConfig(otlp_endpoint=endpoint).otlp_endpoint == endpoint


@pytest.mark.parametrize(
    "endpoint", ["nonsense", "", "ftp://collector:21", "http://", "localhost:grpc", "http://[::1", "/traces"]
)
def test_other_collectors_are_refused_before_the_server_starts(endpoint: str) -> None:
    with pytest.raises(ValidationError, match="otlp_endpoint") as caught:
        ServerConfig(otlp_endpoint=endpoint)
    assert repr(endpoint) in str(caught.value)


async def test_the_metrics_port_answers_no_probe(serve: Callable[..., Any], engine: FakeEngine) -> None:
    """Else a probe at the wrong port would find a server ready that loads its model."""
    server = await serve(engine, metrics_port=0)
    port = server._metrics_endpoint.port
    for path in ("/ready", "/health", "/"):
        url = f"http://127.0.0.1:{port}{path}"
        with pytest.raises(urllib.error.HTTPError, match="404") as caught:
            await asyncio.to_thread(urllib.request.urlopen, url, timeout=PATIENCE_S)
        assert f"{path}: this port has /metrics only" in caught.value.read().decode()


async def test_prometheus_metrics_count_requests(serve: Callable[..., Any], engine: FakeEngine) -> None:
    server = await serve(engine, metrics_port=0)
    async with connect(server.address) as channel:
        await busy(InferenceServiceStub(channel), engine)
        text = await scrape(server)
        assert SECRET not in text
        whole = samples(text)
        assert {dict(labels)["model"] for _, labels in whole} == {"fake"}
        found = {
            (name, tuple(label for label in labels if label[0] != "model")): value
            for (name, labels), value in whole.items()
        }
        codes = {
            (dict(labels)["call"], dict(labels)["code"]): value
            for (name, labels), value in found.items()
            if name == "draftline_requests_total"
        }
        assert codes == {
            ("Session", "OK"): 2,
            ("Session", "INVALID_ARGUMENT"): 1,
            ("Session", "INTERNAL"): 1,
            ("Session", "CANCELLED"): 1,
            ("Generate", "OK"): 1,
        }
        # Of all but the refused one, also of those that did not finish.
        assert found["draftline_request_seconds_count", ()] == 5
        assert found["draftline_time_to_first_token_seconds_count", ()] >= 4
        assert found["draftline_outputs_total", (("finish", "length"),)] == 4
        assert found["draftline_tokens_total", (("caller", ""), ("kind", "completion"))] >= 2 * 6 + 2 * 4
        assert found["draftline_steps_total", ()] > 0
        # Lengths and speeds by output, and the process.
        assert found["draftline_prompt_length_tokens_sum", ()] >= 3 * len(SECRET)
        assert found["draftline_output_length_tokens_count", ()] >= 4
        assert found["draftline_time_per_output_token_seconds_count", ()] >= 4
        assert found["process_resident_memory_bytes", ()] > 1 << 20
        [version] = [dict(labels)["version"] for name, labels in found if name == "draftline_build_info"]
        assert version == __version__
        assert found["draftline_open_connections", ()] >= 1
        assert found["draftline_open_sessions", ()] == 0
        answer = await AdminServiceStub(channel).GetStatistics(admin_pb2.GetStatisticsRequest())
    # The same metrics over gRPC, where a histogram is one sample.
    shown = {metric.name: metric for metric in answer.metrics}
    assert shown["draftline_requests"].kind == admin_pb2.METRIC_KIND_COUNTER
    over_grpc = {
        (sample.labels["call"], sample.labels["code"]): sample.number for sample in shown["draftline_requests"].samples
    }
    assert over_grpc == codes
    [first_token] = shown["draftline_time_to_first_token_seconds"].samples
    assert first_token.histogram.buckets[-1].upper_bound == math.inf
    assert (
        first_token.histogram.buckets[-1].cumulative_count == found["draftline_time_to_first_token_seconds_count", ()]
    )


async def test_names_of_metrics_follow_prometheus_rules(serve: Callable[..., Any], engine: FakeEngine) -> None:
    """Those of ``promtool check metrics``: of a counter alone, the name ends with ``_total``, which the parser removes."""
    server = await serve(engine, metrics_port=0)
    families = list(text_string_to_metric_families(await scrape(server)))
    reserved = ("_total", "_count", "_sum", "_bucket", "_info")
    wrong = {family.name for family in families if family.name.endswith(reserved)}
    assert wrong == {"draftline_build_info"}
    assert all(family.documentation for family in families if not family.name.endswith("_created"))


async def test_open_sessions_and_compilations_are_counted(serve: Callable[..., Any], engine: FakeEngine) -> None:
    words = (*(bytes([byte]) for byte in range(255)), b"")
    compiler = ConstraintCompiler(ByteVocabulary(words, frozenset({255}), frozenset({255}), lambda text: []))
    engine.compile_with(compiler)
    server = await serve(engine, metrics_port=0)
    async with connect(server.address) as channel:
        stub = InferenceServiceStub(channel)
        session = SessionClient(stub)
        await session.submit("one", text_request("a", max_tokens=1))
        assert (await session.next()).HasField("delta")
        for grammar in ('start: "a"', 'start: "a"', "start: nope"):
            with contextlib.suppress(grpc.RpcError):
                await stub.CheckConstraint(pb.CheckConstraintRequest(constraint=pb.Constraint(grammar=grammar)))
        found = samples(await scrape(server))
    compiler.close()
    model = ("model", "fake")
    assert found["draftline_open_sessions", (model,)] == 1
    assert found["draftline_constraints_compiling", (model,)] == 0
    for result in ("grammar", "error"):
        assert found["draftline_constraint_compile_seconds_count", (model, ("result", result))] == 1
    calls = [dict(labels) for name, labels in found if name == "draftline_requests_total"]
    assert {call["code"] for call in calls if call["call"] == "CheckConstraint"} == {"OK", "INVALID_ARGUMENT"}


async def test_refused_tokens_are_counted_and_logged(
    serve: Callable[..., Any], engine: FakeEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text("tokens: [{name: me, token: a-long-enough-token}]")
    server = await serve(engine, metrics_port=0, tokens=str(tokens))
    async with connect(server.address) as channel:
        stub = InferenceServiceStub(channel)
        for token in ("none of yours", "a-long-enough-token"):
            metadata = (("authorization", f"Bearer {token}"),)
            with contextlib.suppress(grpc.RpcError):
                await stub.GetModel(pb.GetModelRequest(), metadata=metadata)
                await AdminServiceStub(channel).GetStatistics(admin_pb2.GetStatisticsRequest(), metadata=metadata)
        found = samples(await scrape(server))
    for code in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
        assert found["draftline_authentication_failures_total", (("code", code), ("model", "fake"))] == 1
    unknown, not_admin = [record.fields for record in caplog.records if record.name == "draftline.access"]  # type: ignore[attr-defined]
    assert unknown["reason"] == "this token is not known"
    assert unknown["call"] == "/draftline.v1.InferenceService/GetModel"
    assert unknown["peer"].startswith("ipv4:127.0.0.1:")
    assert not_admin["reason"] == "this needs a token with admin rights"
    assert "none of yours" not in caplog.text


def test_lines_that_libraries_write_are_json_records_too() -> None:
    """As gRPC's own, and as those of a child process that runs out of memory."""
    code = """if True:
        import logging, os, subprocess, sys
        from draftline.engine.process.log_format import start_logging
        start_logging("info", "json")
        logging.getLogger("mine").info("hello")
        os.write(2, b"E0000 00:00:00 ssl_transport_security.cc:1857] Handshake failed\\n")
        child = "import sys; print('memory allocation of 5 bytes failed', file=sys.stderr)"
        subprocess.run([sys.executable, "-c", child])
        logs = "from draftline.engine.process.log_format import *; start_logging('info', 'json'); logging.info('own')"
        subprocess.run([sys.executable, "-c", logs])
        print("to stderr", file=sys.stderr)
        raise SystemExit("the last line")
    """
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    records = [json.loads(line) for line in result.stderr.splitlines()]
    assert {(record["logger"], record["message"]) for record in records} == {
        ("mine", "hello"),
        ("root", "own"),
        ("stderr", "E0000 00:00:00 ssl_transport_security.cc:1857] Handshake failed"),
        ("stderr", "memory allocation of 5 bytes failed"),
        ("stderr", "to stderr"),
        ("stderr", "the last line"),
    }


def test_the_reason_why_a_server_ends_is_a_record_of_an_error(tmp_path: Path) -> None:
    options = ("--log-format", "json", "--tokens", str(tmp_path / "none"))
    result = subprocess.run(
        [sys.executable, "-m", "draftline", "serve", *options], capture_output=True, text=True, check=False
    )
    [record] = map(json.loads, result.stderr.splitlines())
    assert record["message"] == f"draftline: error: {tmp_path}/none: No such file or directory"
    assert record["level"] == "error"


def test_a_log_goes_on_once_its_disk_has_room() -> None:
    """Lines of libraries and of child processes too, which one thread writes."""
    code = """if True:
        import logging, os, sys
        from draftline.engine.process.log_format import start_logging
        start_logging("info", "json")
        [handler] = logging.getLogger().handlers
        written, room = handler.stream.write, False
        def write(text):
            global room
            if not room:
                room = True
                raise OSError(28, "No space left on device")
            return written(text)
        handler.stream.write = write
        os.write(2, b"no room\\nof a library\\n")
    """
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    [record] = map(json.loads, result.stderr.splitlines())
    assert record["message"] == "of a library"


async def test_a_taken_metrics_port_is_one_clear_error(serve: Callable[..., Any], engine: FakeEngine) -> None:
    server = await serve(engine, metrics_port=0)
    port = server._metrics_endpoint.port
    with pytest.raises(Exception, match=rf"cannot listen on 127\.0\.0\.1:{port} for metrics: .*in use"):
        await Server(ServerConfig(port=0, metrics_port=port)).start()


def test_every_field_of_the_engines_stats_has_a_metric() -> None:
    assert set(ENGINE_METRICS) == {field.name for field in dataclasses.fields(EngineStats)} | {"getting_ready"}


async def test_a_real_engine_counts_its_token_gaps(serve: Callable[..., Any]) -> None:
    engine = SteppedEngine()
    engine.release()
    server = await serve(engine)
    async with connect(server.address) as channel:
        client = SessionClient(InferenceServiceStub(channel))
        for name in ("a", "b"):
            await client.submit(name, text_request("abc", max_tokens=5, ignore_eos=True))
        await client.outcomes()
    await asyncio.to_thread(engine.close)
    counts = engine._core.stats().token_gaps
    assert sum(counts.counts) == 2 * 4
    assert counts.total > 0


def test_a_histogram_counts_by_bounds_and_weights() -> None:
    histogram = Histogram((1.0, 2.0))
    for value, weight in ((0.5, 3), (1.0, 1), (1.5, 2), (9.0, 1)):
        histogram.add(value, weight)
    assert histogram.counts().counts == (4, 2, 1)
    assert histogram.counts().total == 0.5 * 3 + 1.0 + 1.5 * 2 + 9.0


async def test_each_request_is_one_line_of_log_without_its_text(
    serve: Callable[..., Any], engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "draftline.requests")
    server = await serve(engine)
    async with connect(server.address) as channel:
        await busy(InferenceServiceStub(channel), engine)
    lines = [json.loads(JsonFormatter().format(r)) for r in caplog.records if r.name == "draftline.requests"]
    assert SECRET not in caplog.text
    assert SECRET not in json.dumps(lines)
    by_client = {line["client_id"]: line for line in lines}
    assert set(by_client) == {"one", "two", "bad", "failing", "cancelled", "mine"}
    assert by_client["one"] | {"time": 0, "seconds": 0, "peer": ""} == {
        "time": 0,
        "level": "info",
        "logger": "draftline.requests",
        "message": "ended",
        "request": by_client["one"]["request"],
        "client_id": "one",
        "call": "Session",
        "peer": "",
        "code": "OK",
        "seconds": 0,
        "finish": "length",
        "prompt_tokens": len(SECRET),
        "cached_tokens": 0,
        "completion_tokens": 6,
        "queued_s": 0.001,
        "first_token_s": 0.003,
        "drafted": 0,
        "accepted": 0,
    }
    assert by_client["bad"]["message"] == "refused"
    assert by_client["bad"]["reason"] == "sampling.top_p: Input should be less than or equal to 1, not 2"
    assert by_client["failing"]["code"] == "INTERNAL"
    assert by_client["cancelled"]["code"] == "CANCELLED"
    assert len({line["request"] for line in lines}) == len(lines)


async def test_a_broken_call_reports_its_requests(
    serve: Callable[..., Any], engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "draftline.requests")
    server = await serve(engine)
    engine.hold()
    async with connect(server.address) as channel:
        stub = InferenceServiceStub(channel)
        late = stub.Generate(text_request("a"), timeout=DEADLINE_S, metadata=(("x-request-id", "late"),))
        session = SessionClient(stub)
        await session.submit("gone", text_request("b"))
        await asyncio.to_thread(engine.wait_running, 2)
        session.call.cancel()
        with pytest.raises(grpc.RpcError):
            await late.read()
        await server.wait_idle()
    engine.release()
    codes = {record.fields["client_id"]: record.fields["code"] for record in caplog.records}  # type: ignore[attr-defined]
    assert codes == {"late": "DEADLINE_EXCEEDED", "gone": "CANCELLED"}


def test_a_client_id_cannot_break_a_log_line() -> None:
    record = logging.LogRecord("draftline.requests", logging.INFO, "", 0, "ended", (), None)
    record.fields = {"client_id": "x\ny code=OK", "code": "CANCELLED", "seconds": 0.5}  # type: ignore[attr-defined]
    assert (
        TextFormatter()
        .format(record)
        .endswith('INFO draftline.requests: ended client_id="x\\ny code=OK" code=CANCELLED seconds=0.5')
    )
    assert "\n" not in JsonFormatter().format(record)


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """An OpenTelemetry collector."""

    url = ""

    def __init__(self) -> None:
        self.spans: list[Any] = []

    def Export(self, request: Any, context: Any) -> Any:
        return self.export(request, context)

    def export(self, request: Any, context: Any) -> Any:
        self.spans += [span for r in request.resource_spans for scope in r.scope_spans for span in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    collector = Collector()
    receiving = grpc.server(futures.ThreadPoolExecutor(1))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, receiving)
    port = receiving.add_insecure_port("127.0.0.1:0")
    collector.url = f"http://127.0.0.1:{port}"
    receiving.start()
    yield collector
    await asyncio.to_thread(lambda: receiving.stop(None).wait())


async def test_traces_name_what_was_asked_for(
    serve: Callable[..., Any], engine: FakeEngine, collector: Collector
) -> None:
    server = await serve(engine, otlp_endpoint=collector.url)
    async with connect(server.address) as channel:
        stub = InferenceServiceStub(channel)
        chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="abc")])
        for request in (text_request("abc"), pb.GenerateRequest(chat=chat), text_request("FAIL")):
            with contextlib.suppress(grpc.RpcError):
                async for _ in stub.Generate(request):
                    pass
        await stub.Tokenize(pb.TokenizeRequest(text="abc"))
        await server.abort()  # sends the spans
    found = [{each.key: each.value.string_value for each in span.attributes} for span in collector.spans]
    assert [
        (span["rpc.method"], span.get("gen_ai.operation.name"), span["rpc.response.status_code"]) for span in found
    ] == [
        (f"{SERVICE}/Generate", "text_completion", "OK"),
        (f"{SERVICE}/Generate", "chat", "OK"),
        (f"{SERVICE}/Generate", "text_completion", "INTERNAL"),
        (f"{SERVICE}/Tokenize", None, "OK"),
    ]
    assert [span.get("error.type") for span in found] == [None, None, "INTERNAL", None]


async def test_the_attributes_of_spans_are_those_that_are_documented(
    serve: Callable[..., Any], engine: FakeEngine, collector: Collector
) -> None:
    server = await serve(engine, http_port=0, otlp_endpoint=collector.url)
    async with connect(server.address) as channel, http_client(server) as http:
        for prompt in ("abc", "FAIL"):
            await http.post("/v1/completions", json={"prompt": prompt}, headers={"x-request-id": "mine"})
        await InferenceServiceStub(channel).Tokenize(pb.TokenizeRequest(text="abc"))
        await server.abort()
    names = {attribute.key for span in collector.spans for attribute in span.attributes}
    text = DEPLOY.read_text()
    table = text[text.index("| Attribute") : text.index("**The order of the queue**")].strip()
    documented = set()
    for line in table.splitlines()[2:]:
        first, *others = re.findall(r"`([\w.]+)`", line.split("|")[1])
        documented |= {first + name for name in others} if first.endswith(".") else {first, *others}
    assert names == documented


async def test_a_collector_that_does_not_answer_does_not_hold_up_the_end(
    serve: Callable[..., Any], engine: FakeEngine, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[grpc.ServicerContext] = []
    answer = threading.Event()

    def export(request: Any, context: grpc.ServicerContext) -> Any:
        calls.append(context)
        answer.wait(PATIENCE_S)
        return trace_service_pb2.ExportTraceServiceResponse()

    monkeypatch.setattr(collector, "export", export)
    monkeypatch.setattr(tracing, "CLOSE_S", 0.1)
    server = await serve(engine, otlp_endpoint=collector.url)
    async with connect(server.address) as channel:
        await InferenceServiceStub(channel).Tokenize(pb.TokenizeRequest(text="abc"))
    await server.abort()
    await until(lambda: bool(calls))
    assert calls[0].is_active()  # its deadline has not passed
    answer.set()


async def test_traces_continue_the_clients(serve: Callable[..., Any], engine: FakeEngine, collector: Collector) -> None:
    server = await serve(engine, otlp_endpoint=collector.url)
    of_call, of_request, unsampled = ("1" * 32, "2" * 16), ("3" * 32, "4" * 16), ("5" * 32, "6" * 16)
    async with connect(server.address) as channel:
        stub = InferenceServiceStub(channel)
        header = ("traceparent", f"00-{of_call[0]}-{of_call[1]}-01")
        async for _ in stub.Generate(text_request(SECRET, max_tokens=3), metadata=(header,)):
            pass
        client = SessionClient(stub)
        for name, (trace, span), flag in (("a", of_request, "01"), ("b", unsampled, "00")):
            request = text_request("abc")
            request.traceparent = f"00-{trace}-{span}-{flag}"
            await client.submit(name, request)
        await client.submit("failing", text_request("FAIL"))
        async for _ in client.rest():
            pass
        await server.abort()  # sends the remaining spans
    spans = {(span.trace_id.hex(), span.parent_span_id.hex()): span for span in collector.spans}
    assert len(collector.spans) == 3
    assert unsampled not in spans
    assert spans[of_request].name == "draftline.v1.InferenceService/Session"
    span = spans.pop(of_call)
    attributes = {a.key: a.value for a in span.attributes}
    assert attributes["gen_ai.usage.input_tokens"].int_value == len(SECRET)
    assert attributes["gen_ai.usage.output_tokens"].int_value == 3
    assert [event.name for event in span.events] == ["first step", "first token"]
    assert span.end_time_unix_nano > span.start_time_unix_nano
    assert SECRET not in str(collector.spans)
    [failed] = [span for key, span in spans.items() if key != of_request]
    assert failed.status.code == failed.status.STATUS_CODE_ERROR


async def test_channelz_shows_connections(stub: AsyncStub, channel: grpc.aio.Channel) -> None:
    async for _ in stub.Generate(text_request("abc")):
        pass
    channelz = channelz_pb2_grpc.ChannelzStub(channel)
    servers = (await channelz.GetServers(channelz_pb2.GetServersRequest())).server
    assert any(server.data.calls_succeeded for server in servers)


@pytest.fixture
async def stepped_admin(server: Server, channel: grpc.aio.Channel) -> AsyncIterator[tuple[Any, Any, SteppedEngine]]:
    """Stubs of AdminService and InferenceService, and a real engine."""
    engine = SteppedEngine()
    await server.serve(engine)
    yield AdminServiceStub(channel), InferenceServiceStub(channel), engine
    engine.release()
    engine.close()


async def test_abort_says_of_each_id_whether_it_was_running(stepped_admin: tuple[Any, Any, SteppedEngine]) -> None:
    admin, stub, engine = stepped_admin
    client = SessionClient(stub)
    await client.submit("mine", text_request("abc", max_tokens=100, ignore_eos=True))
    await engine.steps(2)
    results = (await admin.Abort(admin_pb2.AbortRequest(request_ids=["s0.0", "s0.1", "s0.0"]))).results
    assert [(result.request_id, result.was_running) for result in results] == [
        ("s0.0", True),
        ("s0.1", False),
        ("s0.0", True),
    ]
    engine.release()
    [outcome] = (await client.outcomes()).values()
    assert outcome.reason == "FINISH_REASON_CANCELLED"
    [result] = (await admin.Abort(admin_pb2.AbortRequest(request_ids=["s0.0"]))).results
    assert not result.was_running


async def test_the_prefix_cache_can_be_flushed(stepped_admin: tuple[Any, Any, SteppedEngine]) -> None:
    admin, stub, engine = stepped_admin
    engine.release()
    prompt = "abcdefgh" * 5

    async def cached_tokens() -> int:
        client = SessionClient(stub)
        await client.submit("a", text_request(prompt, max_tokens=2, ignore_eos=True))
        [outcome] = (await client.outcomes()).values()
        return int(outcome.finished.usage.cached_tokens)

    assert await cached_tokens() == 0
    assert await cached_tokens() == 32
    await engine.freed()
    assert (await admin.FlushPrefixCache(admin_pb2.FlushPrefixCacheRequest())).freed_blocks == 5
    assert await cached_tokens() == 0


async def test_steps_can_be_profiled(serve: Callable[..., Any], tmp_path: Any) -> None:
    engine = SteppedEngine()
    engine.release()
    server = await serve(engine, profile_dir=str(tmp_path / "traces"))
    async with connect(server.address) as channel:
        admin, stub = AdminServiceStub(channel), InferenceServiceStub(channel)
        request = admin_pb2.ProfileRequest(duration=Duration(nanos=300_000_000), include_trace=True)
        profiling, second = (asyncio.ensure_future(admin.Profile(request)) for _ in range(2))
        client = SessionClient(stub)
        await client.submit("a", text_request("abc", max_tokens=30, ignore_eos=True))
        await client.outcomes()
        done, failed = await asyncio.gather(profiling, second, return_exceptions=True)
    await asyncio.to_thread(engine.close)
    [answer] = [each for each in (done, failed) if isinstance(each, admin_pb2.ProfileResponse)]
    [error] = [each for each in (done, failed) if isinstance(each, grpc.RpcError)]
    assert error.code() is grpc.StatusCode.FAILED_PRECONDITION
    [trace] = (tmp_path / "traces").iterdir()
    assert str(trace) == answer.path
    import gzip

    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert any(event.get("name", "").startswith("aten::") for event in events)


async def test_profiles_need_a_folder_and_a_sensible_duration(stub: AsyncStub, channel: grpc.aio.Channel) -> None:
    from grpc_client import status_of

    admin = AdminServiceStub(channel)
    with pytest.raises(grpc.RpcError) as caught:
        await admin.Profile(admin_pb2.ProfileRequest(duration=Duration(seconds=1)))
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    for seconds in (0, -1, 61):
        with pytest.raises(grpc.RpcError) as caught:
            await admin.Profile(admin_pb2.ProfileRequest(duration=Duration(seconds=seconds)))
        assert list(violations(status_of(caught.value))) == ["duration"]


async def test_a_profile_starts_only_where_its_trace_can_be_written(
    serve: Callable[..., Any], engine: FakeEngine, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for folder, reason in (("file", "File exists"), ("file/traces", "Not a directory")):
        server = await serve(engine, profile_dir=str(tmp_path / folder))
        async with connect(server.address) as channel:
            with pytest.raises(grpc.RpcError) as caught:
                await AdminServiceStub(channel).Profile(admin_pb2.ProfileRequest(duration=Duration(seconds=1)))
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert caught.value.details() == f"--profile-dir {tmp_path / folder}: cannot write there: {reason}"


async def test_top_shows_the_difference_between_two_snapshots(serve: Callable[..., Any], engine: FakeEngine) -> None:
    server = await serve(engine)
    async with connect(server.address) as channel:
        admin = AdminServiceStub(channel)

        async def look(at: float) -> Snapshot:
            return Snapshot.of((await admin.GetStatistics(admin_pb2.GetStatisticsRequest())).metrics, at)

        before = await look(10.0)
        await busy(InferenceServiceStub(channel), engine)
        now = await look(12.0)
    out = io.StringIO()
    Console(file=out, width=150).print(top_view.view("here:1", before, now))
    text = out.getvalue()
    for part in ("here:1", "fake on cpu, float32", "INVALID_ARGUMENT", "requests/s", "3.00", "first token"):
        assert part in text


def test_quantiles_of_a_histogram() -> None:
    counts = {1.0: 50.0, 2.0: 90.0, math.inf: 100.0}
    assert top_view.quantile(counts, 0.5) == 1.0
    assert top_view.quantile(counts, 0.7) == pytest.approx(1.5)
    assert top_view.quantile(counts, 0.99) == 2.0
    assert top_view.quantile({}, 0.5) is None
    assert top_view.quantile({1.0: 0.0, math.inf: 0.0}, 0.5) is None


def test_drafts_are_counted_by_drafter_and_position() -> None:
    stats = DrafterStats("ngram", 4, (4, 2), (3, 1), StepTimes(draft_s=0.5))
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for metric in ENGINE_METRICS["drafter"](stats)
        for sample in metric.samples
    }
    assert found["draftline_drafted_tokens_total", "ngram", "1"] == 4
    assert found["draftline_accepted_tokens_total", "ngram", "2"] == 1
    assert found["draftline_acceptance_length", "ngram"] == 2.0
    assert found["draftline_drafted_step_seconds_total", "ngram", "draft"] == 0.5
