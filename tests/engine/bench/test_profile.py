"""Profiles: sums over a trace, prefill and decode of an engine, memory up to where the cache is full, and the command."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny_core
from typer.testing import CliRunner

from draftline.engine.bench.lines import result_lines
from draftline.engine.bench.load.config import LoadConfig
from draftline.engine.bench.measure import LoadBench
from draftline.engine.bench.profile.limits import device_peak
from draftline.engine.bench.profile.memory import batch_sizes, boundary, memory_by_batch
from draftline.engine.bench.profile.remote import phase_of_server
from draftline.engine.bench.profile.steps import BatchRunner, limit_s, profile_batch
from draftline.engine.bench.profile.trace import OTHER, KernelTime, PartTime, TraceSummary
from draftline.engine.bench.targets.offline import OfflineTarget
from draftline.engine.cli import app
from draftline.engine.config import EngineConfig
from draftline.engine.core import Core
from draftline.engine.errors import UsageError
from draftline.engine.stats import DevicePeak, MemoryUse, WorkCounts
from draftline.engine.threaded_engine import ThreadedEngine


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: object) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "args": args}


def mark(name: str, ts: float, dur: float) -> dict[str, Any]:
    return event("user_annotation", f"draftline.{name}", ts, dur)


GPU_TRACE = [
    mark("plan", 0, 10),
    mark("forward", 10, 20),
    event("cuda_runtime", "cudaGraphLaunch", 15, 5, correlation=7),
    mark("sample", 30, 10),
    event("cuda_driver", "cuLaunchKernel", 31, 2, correlation=8),
    event("kernel", "gemm", 20, 30, tid=99, correlation=7),
    event("kernel", "gemm", 52, 30, tid=99, correlation=7),
    event("kernel", "sample", 90, 10, tid=99, correlation=8),
    event("gpu_memcpy", "copy", 95, 10, tid=98, correlation=1234),
    event("cpu_op", "aten::mm", 12, 3),
    {"ph": "M", "name": "process_name", "args": {}},
]


def test_steps_in_parts_and_whole_ones_count() -> None:
    marks = [
        mark("forward", 0, 10),
        mark("sample", 10, 10),
        mark("plan", 20, 5),
        mark("step", 30, 10),
        mark("step", 50, 10),
    ]
    assert TraceSummary.of(marks).steps == 3


def test_a_gpus_kernels_belong_to_the_part_that_launched_them(tmp_path: Path) -> None:
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": GPU_TRACE}).encode()))
    summary = TraceSummary.read(path)
    assert summary.steps == 1
    assert summary.span_us == 105  # to the end of the copy
    assert summary.busy_us == 30 + 30 + 15  # the copy overlaps the sampling
    assert summary.parts == [
        PartTime("plan", 10, 0, 0), PartTime("forward", 20, 60, 2), PartTime("sample", 10, 10, 1), PartTime(OTHER, 0, 10, 1),
    ]  # fmt: skip
    assert summary.kernels == [
        KernelTime("gemm", "forward", 2, 60), KernelTime("sample", "sample", 1, 10), KernelTime("copy", OTHER, 1, 10),
    ]  # fmt: skip


def test_a_cpus_operations_have_their_own_time() -> None:
    summary = TraceSummary.of(
        [
            mark("forward", 0, 100),
            event("cpu_op", "aten::linear", 10, 50),
            event("cpu_op", "aten::mm", 20, 30),
            event("cpu_op", "aten::add", 60, 5),
            event("cpu_op", "aten::elsewhere", 200, 5),
            event("cpu_op", "aten::mm", 20, 500, tid=2),
            mark("sample", 100, 10),
        ]
    )
    assert summary.kernels == [
        KernelTime("aten::mm", "forward", 1, 30),
        KernelTime("aten::linear", "forward", 1, 20),
        KernelTime("aten::add", "forward", 1, 5),
    ]
    assert summary.busy_us == 55
    assert summary.span_us == 110


def test_a_trace_without_steps_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no step ran while it was recorded"):
        TraceSummary.of([event("cpu_op", "aten::mm", 0, 1)])
    path = tmp_path / "no.json"
    path.write_text("[1, 2]")
    with pytest.raises(UsageError, match=r"no\.json: is no Chrome trace"):
        TraceSummary.read(path)


def test_prefill_and_decode_of_a_batch(tmp_path: Path) -> None:
    runner = BatchRunner(tiny_core(token_budget=32, prefix_caching=False), EngineConfig())
    prefill, decode = profile_batch(runner, 3, 20, 5, tmp_path)
    assert (prefill.name, decode.name) == ("prefill", "decode")
    assert decode.work.steps == decode.summary.steps == 5
    assert prefill.work.steps == prefill.summary.steps == 2  # 60 prompt tokens and a decode, 32 a step
    assert prefill.work.flops > decode.work.flops
    for phase in (prefill, decode):
        parts = {part.name: part for part in phase.summary.parts}
        assert {"plan", "upload", "draft", "forward", "sample", "wait", "results", "deliver"} <= parts.keys()
        assert parts["forward"].kernels > parts["sample"].kernels > 0
        assert min(parts["forward"].device_us, parts["sample"].device_us) > 0
        fields = phase.fields(DevicePeak(1e12, 1e10))
        assert fields["limit_share"] == pytest.approx(limit_s(phase.work, DevicePeak(1e12, 1e10)) / phase.work.seconds)
        assert 0 < fields["busy_share"] <= 1
        json.dumps(fields)
    assert not runner.core.has_work
    assert runner.core.stats().free_blocks == 64


def test_batches_that_cannot_run_at_once_are_refused(tmp_path: Path) -> None:
    runner = BatchRunner(tiny_core(num_slots=4, num_blocks=16), EngineConfig())
    for rows, prompt_len, problem in (
        (5, 8, "--rows: 5 sequences, but at most 4 run at once"),
        (1, 1000, "--prompt-len: 1000 tokens"),
        (4, 60, "--rows: 4 sequences, but the cache has room for 1"),
    ):
        with pytest.raises(UsageError, match=problem):
            profile_batch(runner, rows, prompt_len, 2, tmp_path)


def test_memory_grows_with_the_batch_until_the_cache_is_full() -> None:
    core = tiny_core(num_slots=8, num_blocks=16, token_budget=32)
    core.info = replace(core.info, memory=MemoryUse(weights=1000, cache=16 * 512, graphs=7))
    runner = BatchRunner(core, EngineConfig())
    measured = list(memory_by_batch(runner, prompt_len=8))
    # A sequence has 8 + 16 tokens, of which all but the last are cached: 3 blocks of 8.
    assert boundary(runner, 8) == 5
    *within, beyond = measured
    assert [(each.rows, each.running) for each in within] == [(1, 1), (2, 2), (4, 4), (5, 5)]
    assert all(each.preemptions == 0 for each in within)
    assert [each.cache // 512 for each in within] == [3, 6, 12, 15]
    assert beyond.rows == 6
    assert beyond.running < 6 or beyond.preemptions  # it waits, or it begins and another must give its blocks back
    assert beyond.cache // 512 in (15, 16)
    for each in measured:
        assert each.weights == 1000
        assert each.cache + each.cache_free == 16 * 512
        assert each.activations > 0
        assert each.total == 1000 + each.cache + each.activations + 7
    assert measured[2].activations > measured[0].activations


def test_all_sequences_run_at_once_though_their_prompts_take_many_steps() -> None:
    core = tiny_core(num_slots=8, num_blocks=64, token_budget=16)
    core.info = replace(core.info, memory=MemoryUse(cache=64 * 512))
    runner = BatchRunner(core, EngineConfig())
    # Each prompt takes five steps: without the cache, the first sequence would end before the fourth begins.
    two, full, beyond = memory_by_batch(runner, prompt_len=80, rows=[2])
    assert [(each.rows, each.running, each.preemptions) for each in (two, full)] == [(2, 2, 0), (5, 5, 0)]
    assert [each.cache // 512 for each in (two, full)] == [2 * 12, 5 * 12]
    assert beyond.running < 6 or beyond.preemptions


def test_memory_by_batch_needs_the_prefix_cache() -> None:
    runner = BatchRunner(tiny_core(prefix_caching=False), EngineConfig(prefix_caching=False))
    with pytest.raises(UsageError, match="needs the prefix cache"):
        next(memory_by_batch(runner, 8))


def test_the_sizes_end_at_the_boundary_and_one_more() -> None:
    assert batch_sizes(6, 100) == [1, 2, 4, 6, 7]
    assert batch_sizes(8, 100) == [1, 2, 4, 8, 9]
    assert batch_sizes(6, 5) == [1, 2, 4]
    assert batch_sizes(6, 100, [3, 1, 6, 50]) == [1, 3, 6, 7]


def test_a_servers_profile_has_the_work_between_two_looks(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"traceEvents": GPU_TRACE}))
    before = {"steps": 10.0, "step_seconds": 1.0, "model_flops": 0.0, "model_bytes": 0.0}
    after = {"steps": 20.0, "step_seconds": 3.0, "model_flops": 4e12, "model_bytes": 1e9, "running_sequences": 5.0}
    after |= {"peak_flops_per_second": 1e13, "peak_bytes_per_second": 1e9}
    fields = phase_of_server(path, lambda name: before.get(name, 0.0), lambda name: after.get(name, 0.0))
    assert (fields["rows"], fields["steps"], fields["step_ms"]) == (5, 10, 200.0)
    assert (fields["mfu"], fields["bandwidth"], fields["limit_ms"]) == (0.2, 0.5, 100.0)
    del after["peak_flops_per_second"]
    assert phase_of_server(path, lambda name: 0.0, lambda name: after.get(name, 0.0))["mfu"] is None


def test_the_peaks_of_other_devices_are_measured() -> None:
    known = DevicePeak(1.0, 2.0)
    cpu = torch.device("cpu")
    assert device_peak(known, cpu) == (known, "data sheet")
    peak, origin = device_peak(None, cpu)
    assert origin == "measured"
    assert peak.flops_per_s > 1e8
    assert peak.bytes_per_s > 1e7
    assert limit_s(WorkCounts(1, 1.0, 6.0, 10.0), DevicePeak(2.0, 10.0)) == 3.0


SHAPE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 300, "hidden_size": 32,
    "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": True,
    "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
}  # fmt: skip


def run(*arguments: str) -> Any:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["profile", *arguments])


def test_the_command_profiles_a_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Core] = []
    close = Core.close
    monkeypatch.setattr(Core, "close", lambda core: (close(core), closed.append(core)))
    shape = tmp_path / "config.json"
    shape.write_text(json.dumps(SHAPE))
    common = ("--shape", str(shape), "--device", "cpu", "--dtype", "float32", "--kv-cache-memory-gib", "0.002")
    done = run(*common, "--rows", "2", "--prompt-len", "8", "--steps", "3", "--traces", str(tmp_path / "traces"))
    assert done.exit_code == 0, done.stderr
    prefill, decode = map(json.loads, done.stdout.splitlines())
    assert (prefill["phase"], decode["phase"], decode["rows"], decode["steps"]) == ("prefill", "decode", 2, 3)
    assert prefill["peak_from"] == "measured"
    assert Path(decode["trace"]).is_file()
    assert "by kernel" in done.stderr
    assert len(closed) == 1

    done = run(
        *common,
        "--memory",
        "--prompt-len",
        "100",
        "--max-num-seqs",
        "3",
        "--rows",
        "2,1",
        "--plot",
        str(tmp_path / "m.svg"),
    )
    assert done.exit_code == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["rows"] for line in lines] == [1, 2]
    assert all(line["weights"] > 0 and line["cache"] > 0 for line in lines)
    assert "memory by batch size" in done.stderr
    assert "sequences of 100 tokens" in (tmp_path / "m.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--rows", "1,x"), "--rows: 'x' is no whole number of at least 1"),
        (("--shape", "nosuch"), "no such file, and none of the shapes known by name"),
        (("--shape", "qwen3-0.6b", "--model", "smollm2"), "--model and --shape: set one of them"),
        (("--server", "localhost:1", "--memory"), "--memory: needs an engine of its own"),
        (("--server", "localhost:1", "--rows", "1"), "--rows: needs an engine of its own"),
        (("--server", "localhost:1", "--prompt-len", "1"), "--prompt-len: needs an engine of its own"),
        (("--server", "localhost:1", "--steps", "1"), "--steps: needs an engine of its own"),
        (("--seconds", "1"), "--seconds: is for --server"),
        (("--memory", "--steps", "1"), "--steps: has no part in --memory"),
        (("--memory", "--traces", "x"), "--traces: has no part in --memory"),
        (("--traces", "/dev/null/x"), "--traces: /dev/null/x: Not a directory"),
        (("--token", "x"), "need --server"),
        (("--plot", "x.svg"), "--plot: shows the memory by batch size"),
    ],
)
def test_options_that_do_not_go_together_are_refused(arguments: tuple[str, ...], problem: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert problem in " ".join(done.stderr.split())


async def test_a_load_on_an_engine_in_this_process_has_its_utilization(capsys: pytest.CaptureFixture[str]) -> None:
    core = tiny_core()
    core.info = replace(core.info, peak=DevicePeak(1e12, 1e9))
    engine = ThreadedEngine(core, max_waiting=64, max_waiting_tokens=4096, ageing_s=5.0)
    target = OfflineTarget(engine, EngineConfig())
    load = LoadConfig(conversations=3, prompt_len="8", output_len="4", warm_up=1)
    with result_lines(None, {}) as lines:
        [line] = await LoadBench(target, load, lines).measure(load.resolved(), {}, lambda answer: None)
    await target.close()
    use = line["utilization"]
    assert use["steps"] >= 10  # one request after the other; the last steps may be counted after the end
    assert use["step_s"] > 0
    assert 0 < use["mfu"] < 1
    assert use["bandwidth"] > 0
