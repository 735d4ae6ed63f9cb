"""An engine in a process of its own: its requests, commands and updates, and how it ends."""

from __future__ import annotations

import os
import pickle
import queue
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from patience import PATIENCE_S, wait_until
from remote_engines import ENDLESS, Inbox, living_engine, tiny_engine_config

from draftline import Client
from draftline.engine.cache_journal import BlockRemoved, BlockStored, Change
from draftline.engine.config import EngineConfig
from draftline.engine.errors import (
    DuplicateRequestError,
    EngineStoppedError,
    FieldViolation,
    InvalidRequestError,
    ProfilerError,
    QueueFullError,
)
from draftline.engine.outputs import Delta, Failed, Finished
from draftline.engine.params import Constraint, SamplingParams
from draftline.engine.process import engine_process
from draftline.engine.process.messages import portable
from draftline.engine.process.remote_engine import RemoteEngine
from draftline.engine.process.replicas import start_replicas
from draftline.engine.protocol import GenerateRequest
from draftline.engine.threaded_engine import start_engine
from draftline.models.errors import ModelLoadError


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EngineConfig:
    return tiny_engine_config(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def living(config: EngineConfig) -> Iterator[Callable[[], RemoteEngine]]:
    with living_engine(config) as engine:
        yield engine


@pytest.fixture
def engine(living: Callable[[], RemoteEngine]) -> RemoteEngine:
    return living()


def test_the_vendor_s_products_have_no_workspace(engine: RemoteEngine) -> None:
    """So they do not split sums, and more of them have the bits of our own."""
    if "CUBLAS_WORKSPACE_CONFIG" in os.environ:
        pytest.skip("this environment chooses the workspace")
    environment = Path(f"/proc/{engine.replicas[0].process.pid}/environ").read_bytes()
    assert b"CUBLAS_WORKSPACE_CONFIG=:0:0" in environment.split(b"\0")


def test_the_prefix_cache_s_contents_are_followed(engine: RemoteEngine) -> None:
    """The first reader gets what is in the cache already, and then what changes."""
    inbox = Inbox(engine)
    engine.flush_prefix_cache().result(PATIENCE_S)
    inbox.submit("before", range(5, 41), SamplingParams(max_tokens=1))
    inbox.tokens(1)
    woken: queue.SimpleQueue[None] = queue.SimpleQueue()
    with closing(engine.journal.follow(lambda: woken.put(None))) as reader:

        def changes(until: int) -> list[Change]:
            found: list[Change] = []
            while len(found) < until:
                woken.get(timeout=PATIENCE_S)
                found += reader.take()[1]
            return found

        first, second = changes(2)
        assert isinstance(second, BlockStored)
        assert (second.tokens, second.parent_hash) == (tuple(range(21, 37)), first.block_hash)
        inbox.submit("after", range(5, 57), SamplingParams(max_tokens=1))
        inbox.tokens(1)
        [third] = changes(1)
        assert third == BlockStored(third.block_hash, second.block_hash, tuple(range(37, 53)))
        engine.flush_prefix_cache().result(PATIENCE_S)
        assert set(changes(3)) == {BlockRemoved(stored.block_hash) for stored in (first, second, third)}


def test_outputs_are_those_of_an_engine_in_this_process(engine: RemoteEngine, config: EngineConfig) -> None:
    sampling = SamplingParams(temperature=0.8, seed=3, max_tokens=12)
    outputs = []
    local = start_engine(config)
    for one in (engine, local):
        inbox = Inbox(one)
        for name in range(3):
            inbox.submit(str(name), [5 + name, 9, 11], sampling)
        outputs.append(inbox.tokens(3))
    local.close()
    assert engine.info == local.info
    assert outputs[0] == outputs[1]


def test_an_invalid_request_is_refused_at_once(engine: RemoteEngine) -> None:
    inbox = Inbox(engine)
    with pytest.raises(InvalidRequestError, match="512 is not a token id"):
        inbox.submit("bad", [512], SamplingParams())
    inbox.submit("one", [5], ENDLESS)
    with pytest.raises(DuplicateRequestError, match="'one' is running"):
        inbox.submit("one", [5], ENDLESS)
    assert engine.cancel("one")
    assert len(inbox.tokens(1)) <= 1
    assert not engine.cancel("one")


def test_a_full_queue_is_reported(engine: RemoteEngine) -> None:
    inbox = Inbox(engine)
    names = [str(i) for i in range(8)]
    for name in names:
        inbox.submit(name, [5], ENDLESS)
    refused = set()
    while len(refused) < 3:
        name, update = inbox.updates.get(timeout=PATIENCE_S)
        if isinstance(update, Failed):
            assert isinstance(update.error, QueueFullError)
            assert update.error.retry_after_s > 0
            refused.add(name)
    for name in names:
        engine.cancel(name)
    ended = len(refused)
    while ended < len(names):
        ended += inbox.updates.get(timeout=PATIENCE_S)[1].ends_output


def test_constraints_are_compiled_on_both_sides(engine: RemoteEngine) -> None:
    inbox = Inbox(engine)
    constraint = Constraint(regex="[a-c]{3}")
    with pytest.raises(InvalidRequestError, match=r"constraint\.regex"):
        engine.submit("bad", GenerateRequest((5,), SamplingParams(), constraint=Constraint(regex="(")), inbox.sink)
    engine.submit("good", GenerateRequest((5,), SamplingParams(max_tokens=9), constraint=constraint), inbox.sink)
    text = ""
    while True:
        _, update = inbox.updates.get(timeout=PATIENCE_S)
        if isinstance(update, Delta):
            text += update.text
        if isinstance(update, Finished):
            break
    assert update.constraint_complete == bool(re.fullmatch("[a-c]{3}", text))


def test_a_request_is_cancelled_while_its_constraint_compiles(engine: RemoteEngine) -> None:
    inbox = Inbox(engine)
    wanted = GenerateRequest((5,), ENDLESS, constraint=Constraint(regex="[a-d]{1000,}"))
    engine.submit("one", wanted, inbox.sink)
    engine.cancel("one")
    assert len(inbox.tokens(1).get("one", ())) < 8000


def test_commands_are_answered(engine: RemoteEngine, tmp_path: Path) -> None:
    inbox = Inbox(engine)
    inbox.submit("one", range(5, 60), SamplingParams(max_tokens=3, ignore_eos=True))
    inbox.tokens(1)
    assert engine.flush_prefix_cache().result(PATIENCE_S) > 0
    wait_until(lambda: engine.stats().generated_tokens > 0)
    engine.start_profile().result(PATIENCE_S)
    with pytest.raises(ProfilerError):
        engine.start_profile().result(PATIENCE_S)
    engine.stop_profile(tmp_path / "trace.json").result(PATIENCE_S)
    assert (tmp_path / "trace.json").exists()


def test_a_fault_in_reading_messages_ends_all_requests(engine: RemoteEngine) -> None:
    """As one on the step thread does, where the engine runs in this process."""

    def broken() -> None:
        raise KeyError("a bug")

    inbox = Inbox(engine)
    engine.journal.follow(broken).take()  # the next change wakes it
    inbox.submit("a", tuple(range(5, 60)), ENDLESS)  # some blocks for the journal
    assert "KeyError('a bug')" in str(engine.stopped.result(PATIENCE_S))
    with pytest.raises(EngineStoppedError):
        inbox.tokens(1)
    engine.close()


def test_requests_fail_and_the_engine_has_stopped_where_its_process_dies(engine: RemoteEngine) -> None:
    """So do those who wait for an answer, whether or not others have given up waiting."""
    inbox = Inbox(engine)
    inbox.submit("one", [5], ENDLESS)
    inbox.updates.get(timeout=PATIENCE_S)
    engine.replicas[0].process.send_signal(signal.SIGSTOP)
    cancelled, waited_for = engine.flush_prefix_cache(), engine.flush_prefix_cache()
    assert cancelled.cancel()
    engine.replicas[0].process.send_signal(signal.SIGKILL)
    assert isinstance(engine.stopped.result(PATIENCE_S), EngineStoppedError)
    with pytest.raises(EngineStoppedError):
        inbox.tokens(1)
    with pytest.raises(EngineStoppedError):
        waited_for.result(PATIENCE_S)
    with pytest.raises(EngineStoppedError):
        inbox.submit("two", [5], ENDLESS)
    engine.close()


def test_requests_to_a_process_that_stalls_hold_up_nothing(engine: RemoteEngine) -> None:
    """The event loop submits them: it would answer no probe and no signal. They run once the process goes on."""
    (replica,) = engine.replicas
    inbox = Inbox(engine)
    replica.process.send_signal(signal.SIGSTOP)
    names = [str(number) for number in range(200)]
    for name in names:
        inbox.submit(name, [5] * 2000, SamplingParams(max_tokens=1))
    replica.process.send_signal(signal.SIGCONT)
    ends = set()
    while ends != set(names):
        name, update = inbox.updates.get(timeout=PATIENCE_S)
        if update.ends_request or update.ends_output:
            assert isinstance(update, Finished) or isinstance(update.error, QueueFullError)  # type: ignore[union-attr]
            ends.add(name)


def test_a_process_that_stalls_is_killed_when_it_is_closed(
    engine: RemoteEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (replica,) = engine.replicas
    monkeypatch.setattr(engine_process, "CLOSE_S", 0.5)
    replica.process.send_signal(signal.SIGSTOP)
    engine.close()
    assert replica.process.returncode == -signal.SIGKILL
    assert engine.stopped.result(PATIENCE_S) is None
    assert "did not end within 0.5 s and was killed" in caplog.text


def test_a_model_that_cannot_be_loaded_is_reported(config: EngineConfig) -> None:
    wrong = config.model_copy(update={"model": "/missing"})
    (replica,) = replicas = start_replicas(wrong)
    with pytest.raises(ModelLoadError, match="missing"):
        RemoteEngine(wrong, replicas)
    assert replica.process.poll() is not None


def test_a_server_drains_and_takes_its_engine_along(config: EngineConfig) -> None:
    """As supervisors do it: the signal goes to both processes."""
    command = (sys.executable, "-m", "draftline", "serve", "--engine-process", "--port", "0", "--model", config.model)
    options = ("--load-format", "dummy", "--device", "cpu", "--dtype", "float32", "--kv-cache-memory-gib", "0.05")
    with subprocess.Popen((*command, *options), stdout=subprocess.PIPE, text=True, start_new_session=True) as server:
        assert server.stdout is not None
        lines = iter(server.stdout)
        address = next(line for line in lines if "listening on" in line).split()[-1]
        assert any("ready" in line for line in lines)
        with Client(address) as client:
            running = client.submit([5, 6], SamplingParams(max_tokens=300, ignore_eos=True))
            outputs = iter(running)
            last = next(outputs)
            os.killpg(server.pid, signal.SIGTERM)
            *_, last = last, *outputs
            assert len(last.outputs[0].token_ids) == 300
        assert server.wait(PATIENCE_S) == 0


def test_a_server_that_cannot_listen_ends_the_process_that_it_has_begun(config: EngineConfig) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = (
            sys.executable,
            "-m",
            "draftline",
            "serve",
            "--engine-process",
            "--model",
            config.model,
            "--port",
            port,
        )
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as server:
            _, err = server.communicate(timeout=PATIENCE_S)
    assert server.returncode == 1
    assert "cannot listen" in err
    with pytest.raises(ProcessLookupError):  # none of its group is left
        os.killpg(server.pid, 0)


def test_errors_travel_whole() -> None:
    invalid = pickle.loads(pickle.dumps(InvalidRequestError(FieldViolation("a", "b"))))
    assert invalid.violations == (FieldViolation("a", "b"),)
    full = pickle.loads(pickle.dumps(QueueFullError("full", 2.5)))
    assert (str(full), full.retry_after_s) == ("full", 2.5)

    class Local(Exception):
        """Cannot be pickled."""

    assert isinstance(portable(Local("why")), EngineStoppedError)
    assert "why" in str(portable(Local("why")))
