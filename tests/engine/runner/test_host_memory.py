"""What does not fit into the host's memory is rejected at start, with the numbers, before any of it is taken."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from draftline import LLM
from draftline.engine.runner import memory
from draftline.engine.runner.host_memory import HostMemory, host_memory
from draftline.engine.runner.memory import GIB, OutOfMemoryAtStartError, cache_blocks, memory_explained, weight_bytes
from draftline.models.loader import open_checkpoint

MEMINFO = "MemTotal:       16777216 kB\nMemFree:  1 kB\nMemAvailable:   12582912 kB\n"
STATUS = "Name:\tpython\nVmRSS:\t 1048576 kB\n"


def files(root: Path, contents: Mapping[str, str]) -> Path:
    for name, content in {"proc/meminfo": MEMINFO, "proc/self/status": STATUS, **contents}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_without_cgroups_the_machine_is_the_limit(tmp_path: Path) -> None:
    assert host_memory(files(tmp_path, {})) == HostMemory("the machine", 16 * GIB, 12 * GIB, GIB)
    assert host_memory(tmp_path / "elsewhere") is None


def test_a_cgroup_of_version_2_limits_with_its_parents(tmp_path: Path) -> None:
    root = files(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/server\n",
            "sys/fs/cgroup/pod/memory.max": str(8 * GIB),
            "sys/fs/cgroup/pod/memory.current": str(5 * GIB),
            "sys/fs/cgroup/pod/memory.stat": f"anon 1\ninactive_file {2 * GIB}\n",
            "sys/fs/cgroup/pod/server/memory.max": "max\n",
            "sys/fs/cgroup/pod/server/memory.current": "7",
        },
    )
    assert host_memory(root) == HostMemory("cgroup /pod", 8 * GIB, 5 * GIB, GIB)


def test_a_container_sees_its_cgroup_of_version_1_at_the_mount_point(tmp_path: Path) -> None:
    root = files(
        tmp_path,
        {
            "proc/self/cgroup": "9:name=systemd:/\n4:memory:/docker/8d1\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": str(2 * GIB),
            "sys/fs/cgroup/memory/memory.usage_in_bytes": str(3 * GIB),
            "sys/fs/cgroup/memory/memory.stat": f"total_inactive_file {GIB // 2}\n",
        },
    )
    assert host_memory(root) == HostMemory("cgroup /", 2 * GIB, 0, GIB)
    (root / "sys/fs/cgroup/memory/memory.limit_in_bytes").write_text("9223372036854771712")
    limit = host_memory(root)
    assert limit is not None
    assert limit.whose == "the machine"


@pytest.mark.parametrize(
    ("soft", "limit"),
    [
        ("unlimited", HostMemory("the machine", 16 * GIB, 12 * GIB, GIB)),
        (str(15 * GIB), HostMemory("the machine", 16 * GIB, 12 * GIB, GIB)),
        (str(4 * GIB), HostMemory("its address space (ulimit -v)", 4 * GIB, 2 * GIB, 2 * GIB)),
        (str(GIB), HostMemory("its address space (ulimit -v)", GIB, 0, 2 * GIB)),
    ],
)
def test_the_address_space_is_a_limit(tmp_path: Path, soft: str, limit: HostMemory) -> None:
    limits = (
        f"Limit                     Soft Limit Hard Limit Units\nMax address space         {soft} unlimited bytes\n"
    )
    status = f"{STATUS}VmSize:\t {2 << 20} kB\n"
    assert host_memory(files(tmp_path, {"proc/self/limits": limits, "proc/self/status": status})) == limit


def test_the_numbers_are_in_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "host_memory", lambda: HostMemory("cgroup /pod", 8 * GIB, 3 * GIB, GIB))
    with memory_explained(torch.device("cpu"), "a cache", 3 * GIB):
        pass
    with (
        pytest.raises(OutOfMemoryAtStartError) as error,
        memory_explained(torch.device("cpu"), "a cache", 4 * GIB),
    ):
        raise AssertionError("nothing may be allocated")
    assert str(error.value) == (
        "cpu has no room for a cache, which needs 4.0 GiB: of the 8.0 GiB of cgroup /pod, this process has taken 1.0, "
        "others take 4.0, and 3.0 are free."
    )
    with (
        pytest.raises(OutOfMemoryAtStartError, match=r" and 3\.0 are free\. Lower max_num_seqs\.$"),
        memory_explained(torch.device("cpu"), "a cache", 4 * GIB, helps="Lower max_num_seqs."),
    ):
        raise AssertionError("nothing may be allocated")


def test_weights_are_estimated_by_their_format() -> None:
    checkpoint = open_checkpoint("smollm2")
    size = weight_bytes(checkpoint, torch.float16)
    numbers = 134_515_008  # of the model, by its card
    assert 0.5 < size / numbers < 1.1  # 4 and 8 bits with scales
    dummy = open_checkpoint("smollm2", load_format="dummy")
    assert abs(weight_bytes(dummy, torch.float32) / 4 - numbers) < 0.001 * numbers


@pytest.mark.usefixtures("few_layers")
def test_a_cache_that_does_not_fit_is_not_taken() -> None:
    with pytest.raises(OutOfMemoryAtStartError, match=r"a cache of 40\d{4}\.\d\d GiB \(kv_cache_memory_gib\)"):
        LLM("smollm2", device="cpu", kv_cache_memory_gib=400_000.0)


_A_TOKEN = r"at 49920 bytes a token\), but one sequence of"


@pytest.mark.parametrize(
    ("budget", "max_model_len", "message"),
    [
        (GIB // 10000, None, rf"0 blocks of 16 tokens \(0\.10 MiB {_A_TOKEN} 16 tokens needs 1 \(0\.76 MiB\)"),
        (
            GIB // 10000,
            9,
            rf"{_A_TOKEN} 9 tokens needs 1 \(0\.76 MiB\)\. Raise kv_cache_memory_gib, or lower block_size\.$",
        ),
        (
            GIB // 2,
            65536,
            rf"\(0\.50 GiB {_A_TOKEN} 65536 tokens needs 4096 \(3\.05 GiB\)\. .*, or lower max_model_len\.$",
        ),
    ],
)
def test_a_cache_that_is_too_small_shows_how_small(budget: int, max_model_len: int | None, message: str) -> None:
    with pytest.raises(OutOfMemoryAtStartError, match=message):
        cache_blocks(budget, 16 * 49920, 16, max_model_len, option="kv_cache_memory_gib")


WHAT = [
    "the weights of smollm2 in",
    "the weights of the draft model smollm2-draft",
    r"the constraint tables of 64 sequences \(max_num_seqs\)",
    r"the tables of 64 sequences \(max_num_seqs\) of 8196 tokens \(max_model_len\)",
]


@pytest.mark.usefixtures("few_layers")
@pytest.mark.parametrize(
    "index", [0, 1, 2, pytest.param(3, marks=pytest.mark.slow)], ids=["weights", "draft model", "constraints", "slots"]
)
def test_each_part_is_compared_with_what_is_left(index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    small = HostMemory("the machine", GIB, GIB // 1000, 0)
    enough = HostMemory("the machine", 100 * GIB, 100 * GIB, 0)
    found = iter([*[enough] * index, small])
    monkeypatch.setattr(memory, "host_memory", lambda: next(found))
    with pytest.raises(OutOfMemoryAtStartError, match=f"no room for {WHAT[index]}"):
        LLM("smollm2", device="cpu", draft_model="smollm2-draft", max_num_seqs=64)
