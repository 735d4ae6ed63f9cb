"""Several engines behind one client: their outputs, their shares of the requests, and what the death of one leaves."""

from __future__ import annotations

import gzip
import json
import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patience import PATIENCE_S, wait_until
from remote_engines import ENDLESS, Inbox, living_engine, tiny_engine_config

from draftline.engine.config import EngineConfig
from draftline.engine.errors import DuplicateRequestError, EngineStoppedError
from draftline.engine.outputs import Delta, Failed
from draftline.engine.params import SamplingParams
from draftline.engine.process.placement import Load
from draftline.engine.process.remote_engine import RemoteEngine
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.telemetry.metrics import Metrics
from draftline.engine.threaded_engine import start_engine


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    return tiny_engine_config(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def living(config: EngineConfig) -> Iterator[Callable[[], RemoteEngine]]:
    with living_engine(config, 2) as engine:
        yield engine


@pytest.fixture
def engine(living: Callable[[], RemoteEngine]) -> RemoteEngine:
    return living()


def steps(engine: RemoteEngine) -> list[int]:
    return [stats.steps for stats in engine.stats_by_replica()]


def test_outputs_are_those_of_one_engine_and_both_work(config: EngineConfig, engine: RemoteEngine) -> None:
    prompts = {str(n): list(range(3 + n, 30 + 2 * n)) for n in range(6)}
    before = steps(engine)
    found = []
    with start_engine(config) as alone:
        for one in (engine, alone):
            inbox = Inbox(one)
            tokens = {}
            for pair in (("0", "1"), ("2", "3"), ("4", "5")):
                for name in pair:
                    inbox.submit(name, prompts[name], SamplingParams(max_tokens=12, seed=int(name)))
                tokens.update(inbox.tokens(2))
            found.append(tokens)
    assert found[0] == found[1]
    # An engine reports from time to time.
    wait_until(lambda: all(now > then for now, then in zip(steps(engine), before, strict=True)))
    wait_until(lambda: engine.stats().steps == sum(steps(engine)))
    assert all(replica.load == Load(0, 0) for replica in engine.replicas)


def test_a_common_prefix_meets_in_one_engine(engine: RemoteEngine) -> None:
    engine.flush_prefix_cache().result(PATIENCE_S)
    wait_until(lambda: not any(stats.cached_blocks or stats.running for stats in engine.stats_by_replica()))
    hits = [stats.prefix_hit_tokens for stats in engine.stats_by_replica()]
    inbox = Inbox(engine)
    for number in range(6):
        inbox.submit(str(number), [*range(100, 164), number], SamplingParams(max_tokens=1))
        inbox.tokens(1)

    def grown() -> list[int]:
        return [now.prefix_hit_tokens - then for now, then in zip(engine.stats_by_replica(), hits, strict=True)]

    wait_until(lambda: sum(grown()) >= 5 * 64)
    assert sorted(grown()) == [0, 5 * 64]


def test_an_id_is_unique_in_all_of_them(engine: RemoteEngine) -> None:
    inbox = Inbox(engine)
    inbox.submit("same", [5], ENDLESS)
    with pytest.raises(DuplicateRequestError):
        inbox.submit("same", [6], ENDLESS)
    assert engine.cancel("same")
    inbox.tokens(1)
    assert not engine.cancel("same")


def test_metrics_are_those_of_each(engine: RemoteEngine) -> None:
    metrics = Metrics()
    metrics.watch(engine)
    reported, samples = None, {}
    while reported != (reported := engine.stats_by_replica()):  # another report may come meanwhile
        samples = {
            (sample.name, sample.labels.get("replica")): sample.value
            for family in metrics.registry.collect()
            for sample in family.samples
        }
    for index, stats in enumerate(reported):
        assert samples["draftline_cache_blocks", str(index)] == stats.total_blocks > 0
        assert samples["draftline_steps_total", str(index)] == stats.steps
        assert samples["draftline_replica_up", str(index)] == 1
    assert ("draftline_steps_total", None) not in samples


def test_a_profile_has_a_trace_of_each(engine: RemoteEngine, tmp_path: Path) -> None:
    """The first one's has the name that the caller reads."""
    engine.start_profile().result(PATIENCE_S)
    engine.stop_profile(tmp_path / "trace.json.gz").result(PATIENCE_S)
    traces = {path.name: json.loads(gzip.decompress(path.read_bytes())) for path in tmp_path.iterdir()}
    assert traces.keys() == {"trace.json.gz", "trace-1.json.gz"}
    assert all("traceEvents" in trace for trace in traces.values())


def test_the_others_go_on_where_one_dies_and_the_last_ends_with_its_connection(engine: RemoteEngine) -> None:
    inbox = Inbox(engine)
    inbox.submit("one", [5, 3], ENDLESS)
    inbox.submit("two", [5, 3], SamplingParams(temperature=0, max_tokens=400, ignore_eos=True))
    begun = set()
    while begun != {"one", "two"}:
        begun.add(inbox.updates.get(timeout=PATIENCE_S)[0])
    lost = next(index for index, replica in enumerate(engine.replicas) if replica.has("one"))
    assert not engine.replicas[lost].has("two")
    engine.replicas[lost].process.send_signal(signal.SIGKILL)
    assert isinstance(engine.replicas[lost].stopped.result(PATIENCE_S), EngineStoppedError)
    ends, tokens = {}, 0
    while ends.keys() != {"one", "two"}:
        name, update = inbox.updates.get(timeout=PATIENCE_S)
        if isinstance(update, Delta):
            tokens += len(update.token_ids)
        elif isinstance(update, Failed):
            ends[name] = type(update.error)
        else:
            ends[name] = type(None)
    assert ends == {"one": EngineStoppedError, "two": type(None)}
    assert not engine.stopped.done()
    assert engine.replicas_running() == [index != lost for index in range(2)]
    for _ in range(3):
        inbox.submit("later", [5, 9], SamplingParams(max_tokens=4))
        assert len(inbox.tokens(1)["later"]) <= 4
    assert engine.stats_by_replica()[lost].total_blocks == 0
    # The last one ends in order where its connection does, as it does with the server's process.
    last = engine.replicas[1 - lost]
    with socket.socket(fileno=os.dup(last.connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)
    assert isinstance(engine.stopped.result(PATIENCE_S), EngineStoppedError)
    assert last.process.wait(PATIENCE_S) == 0
    with pytest.raises(EngineStoppedError):
        inbox.submit("last", [5], ENDLESS)
    engine.close()


def test_options_that_contradict_one_another_are_refused() -> None:
    with pytest.raises(ValueError, match="data_parallel_size: engines that share the requests need engine_process"):
        ServerConfig(data_parallel_size=2, engine_process=False)
    with pytest.raises(ValueError, match="data_parallel_size: a gateway places requests itself"):
        ServerConfig(data_parallel_size=2, gateway=True)
