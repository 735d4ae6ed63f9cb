"""Engines of several ranks on GPUs: within a number of ranks, batches, graphs, drafts and formats change no bit; lost ranks.

Ranks that share a GPU wait for each other's turn, so that is for correctness alone: two ranks on one GPU, four on two.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import crowd_on_ranks
import pytest
import torch
from crowd_on_ranks import Done, Job
from exact_mixes import Case, assert_adverse, assert_cancelled, assert_mix, crowd
from exact_models import write_model
from patience import PATIENCE_S, wait_until
from rank_servers import Servers, follower_of, gone, last_words
from several_and_one import check_several_against_one

from draftline import Client, EngineStoppedError, RetryPolicy, SamplingParams

DEVICE = "cuda"

needs_two = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")

CASES = {
    "drafts-2": Case("llama-1024", "bfloat16", drafter="alternating", ranks=2, draft_ranks=2),
    "int8-2": Case("qwen3-256", "bfloat16", drafter="ngram", quantization="int8", kv_cache_dtype="int8", ranks=2),
    "head-4": Case("llama-1024", "bfloat16", drafter="eagle3", quantization="fp8", ranks=4),
    "fp8-2": Case("llama-576", "bfloat16", "draft_model", quantization="fp8", kv_cache_dtype="fp8", ranks=2),
    "operations-2": Case("gemma3-128", "float16", drafter="wrong", enforce_eager=True, ranks=2),
    "drafts-4": Case("qwen3-256", "bfloat16", drafter="alternating", ranks=4),
}
MARKS = {
    "drafts-2": [],
    "int8-2": [needs_two],
    "head-4": [needs_two],
    "fp8-2": [needs_two, pytest.mark.slow],
    "operations-2": [needs_two, pytest.mark.slow],
    "drafts-4": [needs_two, pytest.mark.slow],
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.xdist_group(f"ranks-{name}"), *MARKS[name]]) for name in CASES]
)
def test_a_crowd_equals_solo_runs(name: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    case = CASES[name]
    write_model(tmp_path, case.shape)
    turn = tmp_path_factory.getbasetemp().parent / "draftline-turn"
    # One after the other: the second finds the kernels that the first has compiled.
    mixed, alone = (_done(Job(tmp_path, case, DEVICE, mixed, turn), tmp_path / "job") for mixed in (True, False))
    for outputs in mixed.outputs:
        assert_mix(outputs, alone.outputs[0], crowd())
        assert_cancelled(outputs)
    assert_adverse(mixed.stats, case)


def _done(job: Job, file: Path) -> Done:
    file.write_bytes(pickle.dumps(job))
    with subprocess.Popen([sys.executable, crowd_on_ranks.__file__, str(file)]) as process:
        try:
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
    done: Done = pickle.loads(file.read_bytes())
    return done


@needs_two
@pytest.mark.xdist_group("ranks-against-one")
def test_tokens_equal_those_of_one_gpu(tmp_path: Path) -> None:
    write_model(tmp_path, "llama-576")
    check_several_against_one(tmp_path, "llama-576", 2, DEVICE)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    """Servers of a small model on two ranks."""
    write_model(tmp_path, "llama-64")
    options = (
        "--device",
        DEVICE,
        "--tensor-parallel-size",
        "2",
        "--kv-cache-memory-gib",
        "0.05",
        "--max-num-seqs",
        "8",
    )
    running = Servers(tmp_path, *options)
    yield running
    running.close()


@needs_two
@pytest.mark.xdist_group("ranks-lost")
@pytest.mark.parametrize(
    ("number", "reason"), [(signal.SIGKILL, "rank 1 ended with -9"), (signal.SIGSTOP, "rank 1 hangs")]
)
def test_a_lost_rank_ends_the_server(number: signal.Signals, reason: str, servers: Servers) -> None:
    server, address = servers.start()
    rank = follower_of(server.pid)
    with Client(address, retry=RetryPolicy(attempts=1)) as client:
        *_, last = streams = [client.submit("abc", SamplingParams(max_tokens=700, ignore_eos=True)) for _ in range(200)]
        next(iter(streams[0]))
        os.kill(rank, number)
        lost = time.monotonic()
        with pytest.raises(EngineStoppedError, match="the engine stopped after a fault"):
            for _ in last:
                pass
    _, err = server.communicate(timeout=PATIENCE_S)
    print(f"{number.name}: the server ended {time.monotonic() - lost:.1f} s later")
    assert server.returncode == 1
    assert reason in last_words(err)
    wait_until(lambda: gone(rank))
