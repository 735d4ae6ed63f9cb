"""Servers whose model has two ranks: when one dies or hangs, clients get UNAVAILABLE and the server ends with one error."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from exact_models import write_model
from patience import PATIENCE_S, wait_until
from rank_servers import Servers, follower_of, gone, last_words

from draftline import LLM, Client, EngineStoppedError, ModelLoadError, RetryPolicy, SamplingParams


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """Servers of a small model on two ranks."""
    write_model(tmp_path, "llama-64")
    options = ("--device", "cpu", "--dtype", "float32", "--tensor-parallel-size", "2", "--kv-cache-memory-gib", "0.05")
    running = Servers(tmp_path, *options)
    yield running
    running.close()


@pytest.mark.parametrize(
    ("number", "reason", "options"),
    [
        # By default, a rank that hangs ends a server in a sum, and one that is killed a server that waits for its device.
        pytest.param(signal.SIGKILL, "rank 1 ended with -9", (), marks=pytest.mark.slow),
        pytest.param(signal.SIGSTOP, "rank 1 hangs", (), marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, "rank 1 ended with -9", ("--engine-process",), marks=pytest.mark.slow),
    ],
)
def test_a_lost_rank_ends_the_server(
    number: signal.Signals, reason: str, options: tuple[str, ...], servers: Servers
) -> None:
    server, address = servers.start("--max-num-seqs", "1", *options)
    rank = follower_of(server.pid)
    with Client(address, retry=RetryPolicy(attempts=1)) as client:
        # One after the other: the server is faster than a test that has to wait for a processor.
        *_, last = streams = [client.submit("abc", SamplingParams(max_tokens=700, ignore_eos=True)) for _ in range(50)]
        next(iter(streams[0]))
        os.kill(rank, number)
        with pytest.raises(EngineStoppedError, match="the engine stopped after a fault"):
            for _ in last:
                pass
    _, err = server.communicate(timeout=PATIENCE_S)
    assert server.returncode == 1
    assert reason in last_words(err)
    wait_until(lambda: gone(rank))


def test_without_a_folder_for_temporary_files_ranks_cannot_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model(tmp_path, "llama-64")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(ModelLoadError, match=r"tensor_parallel_size: .*set TMPDIR.*: No such file or directory"):
        LLM(str(tmp_path), tensor_parallel_size=2, device="cpu")


_HANGING = """
import sys

if "draftline.engine.parallel.follower" in sys.orig_argv:
    from pathlib import Path

    from draftline.engine.parallel.plan_codec import PlanDecoder

    decode = PlanDecoder.decode

    def hang(self, words):
        if Path({flag!r}).exists():
            {how}
        return decode(self, words)

    PlanDecoder.decode = hang
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["__import__('time').sleep(10_000)", "while True: pass"])
def test_a_rank_that_hangs_in_a_step_ends_the_server(
    how: str, tmp_path: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its process is alive, and says so."""
    site, flag = tmp_path / "site", tmp_path / "hang"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_HANGING.format(flag=str(flag), how=how))
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    server, address = servers.start()
    rank = follower_of(server.pid)
    with Client(address, retry=RetryPolicy(attempts=1)) as client:
        assert client.generate("abc", SamplingParams(max_tokens=5, ignore_eos=True))[0].outputs[0].token_ids
        flag.touch()
        with pytest.raises(EngineStoppedError, match="the engine stopped after a fault"):
            client.generate("abc", SamplingParams(max_tokens=5, ignore_eos=True))
    _, err = server.communicate(timeout=PATIENCE_S)
    assert server.returncode == 1
    assert "rank 1 hangs: the others wait for it" in last_words(err)
    wait_until(lambda: gone(rank))


_WAITING = """
import sys

if "serve" in sys.orig_argv:
    import atexit
    import os
    import time
    from pathlib import Path

    from draftline.engine.runner.transfer import Arrival

    def wait(self):
        while Path({flag!r}).exists():
            Path({waits!r}).touch()
            time.sleep(1)

    Arrival.wait = wait
    # As a thread may do that comes back from a library's code to an interpreter that has ended.
    atexit.register(os.abort)
"""


@pytest.mark.slow
def test_a_lost_rank_ends_a_server_that_waits_for_its_device(
    tmp_path: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU waits for the others' parts of a sum, and the step thread for the GPU: nothing ends that."""
    site, flag, waits = tmp_path / "site", tmp_path / "wait", tmp_path / "waits"
    site.mkdir()
    (site / "sitecustomize.py").write_text(_WAITING.format(flag=str(flag), waits=str(waits)))
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    server, address = servers.start()
    rank = follower_of(server.pid)
    with Client(address, retry=RetryPolicy(attempts=1)) as client:
        flag.touch()
        stream = client.submit("abc", SamplingParams(max_tokens=5, ignore_eos=True))
        wait_until(waits.exists)
        os.kill(rank, signal.SIGKILL)
        with pytest.raises(EngineStoppedError, match="the engine stopped after a fault"):
            for _ in stream:
                pass
    _, err = server.communicate(timeout=PATIENCE_S)
    assert server.returncode == 1
    assert "rank 1 ended with -9" in last_words(err)


@pytest.mark.slow
def test_an_idle_server_ends_too(servers: Servers) -> None:
    server, _ = servers.start()
    os.kill(follower_of(server.pid), signal.SIGKILL)
    _, err = server.communicate(timeout=PATIENCE_S)
    assert server.returncode == 1
    assert "rank 1 ended with -9" in last_words(err)


@pytest.mark.slow
def test_ranks_end_with_their_server(servers: Servers) -> None:
    """However it ends. Two servers on one host have nothing in common."""
    (killed, _), (stopped, address) = servers.start(), servers.start()
    orphan, other = follower_of(killed.pid), follower_of(stopped.pid)
    killed.kill()
    wait_until(lambda: gone(orphan))
    with Client(address) as client:
        assert (
            client.generate("abc", SamplingParams(max_tokens=5, ignore_eos=True))[0].outputs[0].finish_reason
            == "length"
        )
    stopped.send_signal(signal.SIGTERM)
    assert stopped.wait(PATIENCE_S) == 0
    wait_until(lambda: gone(other))
