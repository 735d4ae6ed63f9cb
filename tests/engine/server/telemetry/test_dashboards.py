"""The dashboard, the alerts and vLLM's names in deploy/ use metrics and labels that a server has."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc.aio
import pytest
import yaml
from fake_engine import FakeEngine
from grpc_client import text_request
from prometheus_client.parser import text_string_to_metric_families

from draftline.engine.server.config import ServerConfig
from draftline.engine.server.server import Server
from draftline.v1.engine_pb2_grpc import InferenceServiceStub

DEPLOY = Path(__file__).parents[4] / "deploy"

Samples = list[tuple[str, dict[str, str]]]
"""Names and labels."""

FOREIGN = {"up", "process_resident_memory_bytes"}
ADDED = {"job", "instance"}
"""Labels that Prometheus adds."""

VLLM_QUERIES = [
    'histogram_quantile(0.99, sum by(le) (rate(vllm:e2e_request_latency_seconds_bucket{model_name="$model_name"}[5m])))',
    'rate(vllm:prompt_tokens_total{model_name="$model_name"}[5m])',
    'rate(vllm:generation_tokens_total{model_name="$model_name"}[5m])',
    'histogram_quantile(0.95, sum by(le) (rate(vllm:inter_token_latency_seconds_bucket{model_name="$model_name"}[5m])))',
    'vllm:num_requests_running{model_name="$model_name"}',
    'vllm:num_requests_waiting{model_name="$model_name"}',
    'histogram_quantile(0.5, sum by(le) (rate(vllm:time_to_first_token_seconds_bucket{model_name="$model_name"}[5m])))',
    'vllm:kv_cache_usage_perc{model_name="$model_name"}',
    'sum by(finished_reason) (increase(vllm:request_success_total{model_name="$model_name"}[5m]))',
    'sum by(le) (increase(vllm:request_prompt_tokens_bucket{model_name="$model_name"}[5m]))',
    'sum by(le) (increase(vllm:request_generation_tokens_bucket{model_name="$model_name"}[5m]))',
    'rate(vllm:request_queue_time_seconds_sum{model_name="$model_name"}[5m])',
    'rate(vllm:request_prefill_time_seconds_sum{model_name="$model_name"}[5m])',
    "rate(vllm:prefix_cache_hits_total[5m]) / rate(vllm:prefix_cache_queries_total[5m])",
]
"""Of vLLM's examples/online_serving/dashboards."""


@pytest.fixture
async def scraped(make_engine: Callable[..., FakeEngine]) -> Samples:
    """What a server shows that has served a request."""
    server = Server(ServerConfig(port=0, metrics_port=0))
    await server.start()
    await server.serve(make_engine())
    async with grpc.aio.insecure_channel(server.address) as channel:
        async for _ in InferenceServiceStub(channel).Generate(text_request("abc", max_tokens=4)):
            pass
    assert server._metrics_endpoint is not None
    url = f"http://127.0.0.1:{server._metrics_endpoint.port}/metrics"
    text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=30).read().decode())
    await server.abort()
    return [(s.name, s.labels) for family in text_string_to_metric_families(text) for s in family.samples]


def recorded(samples: Samples) -> Samples:
    """The samples that the recording rules make: they copy, sum and rename labels."""
    rules = yaml.safe_load((DEPLOY / "vllm-names.rules.yaml").read_text())["groups"][0]["rules"]
    made: Samples = []
    for rule in rules:
        expression, renamed = rule["expr"], list[tuple[str, str]]()
        while match := re.fullmatch(r'label_replace\((.*), "(\w+)", "\$1", "(\w+)", "\(\.\*\)"\)', expression):
            expression, new, old = match.groups()
            renamed.insert(0, (new, old))
        summed = re.fullmatch(r"sum by \(([\w, ]+)\) \((.*)\)", expression)
        kept = None
        if summed is not None:
            kept, expression = set(summed[1].split(", ")), summed[2]
        for labels in select(samples, expression):
            shown = {name: value for name, value in labels.items() if kept is None or name in kept}
            made.append((rule["record"], shown | {new: shown[old] for new, old in renamed}))
    return made


def select(samples: Samples, selector: str) -> list[dict[str, str]]:
    match = re.fullmatch(r"([\w:]+)(?:\{(.*)\})?", selector)
    assert match is not None, selector
    matchers = re.findall(r'(\w+)(?:=|=~)"([^"]*)"', match[2] or "")
    return [
        labels
        for name, labels in samples
        if name == match[1] and all(key in ADDED | set(labels) for key, _ in matchers)
        and all(value.startswith("$") or labels.get(key) == value for key, value in matchers)
    ]  # fmt: skip


def selectors(expression: str) -> Iterator[str]:
    for name, matchers in re.findall(r"\b((?:draftline_|vllm:|up\b|process_)\w*)(\{[^}]*\})?", expression):
        yield name + matchers


def grouped_by(expression: str) -> set[str]:
    return {label for labels in re.findall(r"\bby ?\(([\w, ]+)\)", expression) for label in labels.split(", ")}


@pytest.mark.parametrize("query", VLLM_QUERIES)
def test_queries_of_vllms_dashboards_find_samples(query: str, scraped: Samples) -> None:
    made = recorded(scraped)
    assert list(selectors(query))
    for selector in selectors(query):
        found = select(made, selector)
        assert found, selector
        if "model_name" in query:
            assert {labels["model_name"] for labels in found} == {"fake"}
        assert all(label in labels for labels in found for label in grouped_by(query))


def expressions() -> Iterator[str]:
    for group in yaml.safe_load((DEPLOY / "alerts.rules.yaml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]
    for panel in json.loads((DEPLOY / "grafana.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


def test_the_dashboard_and_the_alerts_ask_for_metrics_that_there_are(scraped: Samples) -> None:
    # Families without samples yet have no labels to be seen; their names are known all the same.
    known = {name for name, _ in scraped} | FOREIGN
    unused = {
        "draftline_authentication_failures_total",
        "draftline_constraint_compile_seconds_bucket",
        "draftline_constraints_compiling",
        "draftline_drafted_tokens_total",
        "draftline_accepted_tokens_total",
    }
    asked = list(expressions())
    assert len(asked) > 20
    for expression in asked:
        for selector in selectors(expression):
            name = selector.partition("{")[0]
            assert name in known | unused, expression
            labels = {label for shown, of_sample in scraped if shown == name for label in of_sample}
            if labels:
                matched = set(re.findall(r"(\w+)=", selector.partition("{")[2]))
                assert matched - ADDED <= labels, expression
