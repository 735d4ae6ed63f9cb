"""The dashboard, the alerts and vLLM's names in deploy/ give the right figures on the metrics of a server."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
import yaml
from fake_engine import FakeEngine
from fake_nvml import GIB, FakeNvml
from grpc_client import connect, text_request
from patience import PATIENCE_S

from draftline.engine.server.config import ServerConfig
from draftline.engine.server.server import Server
from draftline.engine.server.telemetry.gpu import GpuMetrics
from draftline.engine.stats import TOKEN_GAP_BOUNDS_S, DevicePeak, EngineStats, Histogram, MemoryUse, WorkCounts
from draftline.v1.engine_pb2_grpc import InferenceServiceStub

pytest.importorskip("promql_parser", reason="needs promql-parser (make setup-dev)")
from promql import Series, Vector, metric_names

DEPLOY = Path(__file__).parents[4] / "deploy"

MINUTES = 5
REQUESTS = 2
"""Requests in each minute, with a prompt and an output of three tokens."""

TARGET = {"job": "draftline", "instance": "localhost:9090"}
END = 60.0 * MINUTES


def only(vector: Vector) -> float:
    [value] = vector.values()
    return value


def by(vector: Vector, label: str) -> dict[str, float]:
    return {dict(labels)[label]: value for labels, value in vector.items()}


COUNT = MINUTES * REQUESTS

VLLM_QUERIES: dict[str, Callable[[Vector], bool]] = {
    'histogram_quantile(0.99, sum by(le) (rate(vllm:e2e_request_latency_seconds_bucket{model_name="fake"}[5m])))': (
        lambda found: 0 < only(found) < 60
    ),
    'rate(vllm:prompt_tokens_total{model_name="fake"}[5m])': lambda found: only(found) == 3 * COUNT / END,
    'rate(vllm:generation_tokens_total{model_name="fake"}[5m])': lambda found: only(found) == 3 * COUNT / END,
    'histogram_quantile(0.95, sum by(le) (rate(vllm:inter_token_latency_seconds_bucket{model_name="fake"}[5m])))': (
        lambda found: 0.01 < only(found) <= 0.05
    ),
    'vllm:num_requests_running{model_name="fake"}': lambda found: only(found) == 0,
    'vllm:num_requests_waiting{model_name="fake"}': lambda found: only(found) == 0,
    'histogram_quantile(0.5, sum by(le) (rate(vllm:time_to_first_token_seconds_bucket{model_name="fake"}[5m])))': (
        lambda found: 0 < only(found) < 60
    ),
    'vllm:kv_cache_usage_perc{model_name="fake"}': lambda found: 0 <= only(found) <= 1,
    'sum by(finished_reason) (increase(vllm:request_success_total{model_name="fake"}[5m]))': (
        lambda found: by(found, "finished_reason") == {"length": COUNT}
    ),
    'sum by(le) (increase(vllm:request_prompt_tokens_bucket{model_name="fake"}[5m]))': (
        lambda found: {by(found, "le")["1.0"], by(found, "le")["+Inf"]} == {0, COUNT}
    ),
    'sum by(le) (increase(vllm:request_generation_tokens_bucket{model_name="fake"}[5m]))': (
        lambda found: {by(found, "le")["1.0"], by(found, "le")["+Inf"]} == {0, COUNT}
    ),
    'rate(vllm:request_queue_time_seconds_sum{model_name="fake"}[5m])': lambda found: 0 <= only(found) < 60,
    'rate(vllm:request_prefill_time_seconds_sum{model_name="fake"}[5m])': lambda found: 0 <= only(found) < 60,
    "rate(vllm:prefix_cache_hits_total[5m]) / rate(vllm:prefix_cache_queries_total[5m])": (
        lambda found: only(found) == 0.25
    ),
}
"""Of vLLM's examples/online_serving/dashboards, with the variable set, and what they give on `series`."""


@pytest.fixture
async def series(make_engine: Callable[..., FakeEngine], monkeypatch: pytest.MonkeyPatch) -> Series:
    """A scrape a minute of a server that serves requests, with the recording rules.

    The fake engine counts nothing, so the figures that a real one counts are set: three tokens of a request, 20 ms apart.
    """
    monkeypatch.setattr(GpuMetrics, "_library", lambda metrics: FakeNvml())
    rules = yaml.safe_load((DEPLOY / "vllm-names.rules.yaml").read_text())["groups"][0]["rules"]
    server = Server(ServerConfig(port=0, metrics_port=0))
    await server.start()
    engine, served = make_engine(), 0
    memory = MemoryUse(weights=5, cache=4, activations=3, graphs=2)
    engine.info = replace(engine.info, peak=DevicePeak(1000.0, 100.0), memory=memory, device_uuids=("GPU-a",))
    idle = engine.stats()
    gaps = Histogram(TOKEN_GAP_BOUNDS_S)

    def stats() -> EngineStats:
        return replace(
            idle,
            generated_tokens=3 * served,
            steps=4 * served,
            # A quarter of the device's arithmetic, and half of its memory traffic, in steps of half a second.
            work=WorkCounts(4 * served, 2.0 * served, 500.0 * served, 100.0 * served),
            token_gaps=gaps.counts(),
            prefix_query_tokens=8 * served,
            prefix_hit_tokens=2 * served,
        )

    monkeypatch.setattr(engine, "stats", stats)
    await server.serve(engine)
    assert server._metrics_endpoint is not None
    url = f"http://127.0.0.1:{server._metrics_endpoint.port}/metrics"
    series = Series()
    async with connect(server.address) as channel:
        for minute in range(MINUTES + 1):
            for _ in range(REQUESTS):
                async for _ in InferenceServiceStub(channel).Generate(text_request("abc", max_tokens=3)):
                    pass
                served += 1
                gaps.add(0.02, 2)
            text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=PATIENCE_S).read().decode())
            series.scrape(60.0 * minute, text, **TARGET)
            for rule in rules:
                series.record(60.0 * minute, rule["record"], rule["expr"])
    await server.abort()
    return series


async def test_queries_of_vllms_dashboards_give_the_right_figures(series: Series) -> None:
    found = {query: series.evaluate(query, END) for query in VLLM_QUERIES}
    assert {
        query: found[query] for query, right in VLLM_QUERIES.items() if not (found[query] and right(found[query]))
    } == {}


def expressions() -> Iterator[str]:
    for group in yaml.safe_load((DEPLOY / "alerts.rules.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]
    for panel in json.loads((DEPLOY / "grafana.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


UNSEEN = {
    "draftline_authentication_failures_total",
    "draftline_constraint_compile_seconds_bucket",
    "draftline_drafted_tokens_total",
    "draftline_accepted_tokens_total",
}
"""Metrics without samples: no token was refused or drafted, and no constraint compiled."""


async def test_the_panels_of_the_device_show_its_use(series: Series) -> None:
    panels = {panel["title"]: panel["targets"] for panel in json.loads((DEPLOY / "grafana.json").read_text())["panels"]}

    def shown(title: str) -> dict[str, Vector]:
        queries = {target["legendFormat"]: ready(target["expr"]) for target in panels[title]}
        return {name: series.evaluate(query, END) for name, query in queries.items()}

    assert {name: round(only(vector), 6) for name, vector in shown("Use of the device's peak").items()} == {
        "MFU {{instance}}": 0.25,
        "bandwidth {{instance}}": 0.5,
    }
    assert only(shown("Mean step")["{{instance}}"]) == pytest.approx(0.5)
    [uses] = shown("Memory of the engine").values()
    assert by(uses, "use") == {"weights": 5, "cache": 4, "activations": 3, "graphs": 2}
    assert by(shown("GPU utilization")["{{gpu}}"], "gpu") == {"GPU-a": 0.87}
    assert by(shown("GPU power")["{{gpu}}"], "gpu") == {"GPU-a": 512}
    assert by(shown("GPU temperature")["{{gpu}}"], "gpu") == {"GPU-a": 61}
    assert [only(vector) for vector in shown("GPU memory").values()] == [100 * GIB, 140 * GIB]


def test_panels_do_not_overlap_and_have_names_of_their_own() -> None:
    panels = json.loads((DEPLOY / "grafana.json").read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)
    cells = [
        (panel["gridPos"]["x"] + column, panel["gridPos"]["y"] + row)
        for panel in panels
        for column in range(panel["gridPos"]["w"])
        for row in range(panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def ready(expression: str) -> str:
    """An expression of the dashboard with its variables set."""
    return expression.replace("$__rate_interval", "5m").replace("$model", "fake").replace("$instance", "local.*")


async def test_the_dashboard_and_the_alerts_find_samples(series: Series) -> None:
    asked = list(expressions())
    assert len(asked) > 20
    for expression in asked:
        expression = ready(expression)
        names = set(metric_names(expression))
        assert names
        for name in names - UNSEEN:
            assert series.evaluate(name, END) or name == "up", expression
        found = series.evaluate(expression, END)
        compares = any(sign in expression for sign in (" > ", " == "))
        assert bool(found) != (compares or bool(names & UNSEEN)), expression  # no alert fires


def test_alerts_fire_where_they_should() -> None:
    """On the metrics of a server in trouble."""
    troubled = Series()
    for minute in range(MINUTES + 1):
        page = "".join(f"{name}{labels} {value(minute)}\n" for name, labels, value in TROUBLE)
        troubled.scrape(60.0 * minute, page, **TARGET)
    for group in yaml.safe_load((DEPLOY / "alerts.rules.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            assert troubled.evaluate(rule["expr"], END), rule["alert"]


async def test_one_fault_fires_its_alert(serve: Callable[..., Any], engine: FakeEngine) -> None:
    """The first of its caller too: a series that begins with 1 has not grown."""
    server = await serve(engine, metrics_port=0)
    url = f"http://127.0.0.1:{server._metrics_endpoint.port}/metrics"
    series = Series()

    async def scrape(time: float) -> None:
        page = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=PATIENCE_S).read().decode())
        series.scrape(time, page, **TARGET)

    [group] = yaml.safe_load((DEPLOY / "alerts.rules.yaml").read_text())["groups"]
    [alert] = [rule["expr"] for rule in group["rules"] if rule["alert"] == "DraftlineFaults"]
    async with connect(server.address) as channel:
        await scrape(0)
        await scrape(60)
        assert not series.evaluate(alert, 60)
        with pytest.raises(grpc.RpcError, match="INTERNAL"):
            async for _ in InferenceServiceStub(channel).Generate(text_request("FAIL")):
                pass
        await scrape(120)
    assert series.evaluate(alert, 120)


TROUBLE: list[tuple[str, str, Callable[[int], float]]] = [
    ("up", "", lambda minute: 0),
    ("draftline_replica_up", '{model="m",replica="1"}', lambda minute: 0),
    ("draftline_queued_requests", '{model="m"}', lambda minute: 50),
    ("draftline_running_sequences", '{model="m"}', lambda minute: 8),
    ("draftline_steps_total", '{model="m"}', lambda minute: 70),
    ("draftline_constraints_compiling", '{model="m"}', lambda minute: 9),
    ("draftline_preemptions_total", '{model="m"}', lambda minute: 600 * minute),
    ("draftline_authentication_failures_total", '{model="m",code="UNAUTHENTICATED"}', lambda minute: 600 * minute),
    ("draftline_faults_total", '{model="m"}', lambda minute: minute),
    ("draftline_requests_total", '{model="m",code="RESOURCE_EXHAUSTED",caller="a"}', lambda minute: 600 * minute),
    *(
        (f"draftline_{name}_seconds_bucket", f'{{model="m",le="{bound}"}}', lambda minute, count=count: count * minute)
        for name in ("time_to_first_token", "inter_token")
        for bound, count in (("0.5", 0), ("10.0", 60), ("+Inf", 60))
    ),
]


def test_the_evaluator_computes_as_prometheus_does() -> None:
    series = Series()
    for second in range(15, 301, 15):  # one unit a second, and a restart
        restarted = second - 150 if second > 150 else second
        page = f'a_total{{k="x"}} {second}\nb_total{{k="x"}} {restarted}\n'
        page += (
            f'h_bucket{{le="1.0"}} {second}\nh_bucket{{le="2.0"}} {2 * second}\nh_bucket{{le="+Inf"}} {2 * second}\n'
        )
        series.scrape(float(second), page, job="j")
    assert only(series.evaluate("rate(a_total[5m])", END)) == pytest.approx(1)  # extrapolated to the whole range
    assert only(series.evaluate("increase(b_total[1m])", END)) == pytest.approx(60)
    assert only(series.evaluate("increase(b_total[5m])", END)) == pytest.approx(
        300, abs=15
    )  # a reset loses some growth
    assert only(series.evaluate("histogram_quantile(0.75, rate(h_bucket[5m]))", END)) == pytest.approx(1.5)
    assert only(series.evaluate("histogram_quantile(1, h_bucket)", END)) == 2
    assert series.evaluate('label_replace(a_total, "m", "<$1>", "k", "(.*)")', END).keys() == {
        frozenset({"__name__": "a_total", "job": "j", "k": "x", "m": "<x>"}.items())
    }
    assert only(series.evaluate("sum by (k) (a_total) / sum by (k) (b_total)", END)) == 2
    assert series.evaluate("a_total > 2 * b_total", END) == {}
    assert series.evaluate('a_total{k!~"x|y"}', END) == {}
    for unknown in ("a_total offset 5m", "topk(1, b_total)", "abs(a_total)"):
        with pytest.raises(NotImplementedError):
            series.evaluate(unknown, END)
