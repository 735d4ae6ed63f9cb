"""The use of the device by the steps: peaks, shares, and the log of each step's plan."""

from __future__ import annotations

import logging
import re

import pytest
import torch
from drafters import oracle
from random_checkpoint import RandomCheckpoint, llama
from tiny import CONFIG, Client, alone, tiny_core, tiny_model

from draftline import quant
from draftline.engine.params import SamplingParams
from draftline.engine.process.log_format import TextFormatter
from draftline.engine.runner.peaks import peak_of
from draftline.engine.scheduling.step_log import StepLog
from draftline.engine.stats import DevicePeak, Utilization, WorkCounts, WorkMeter
from draftline.kernels.reference.ops import ReferenceOps
from draftline.models.families import build_model
from draftline.models.work import ModelWork


class ScaledOps(ReferenceOps):
    """Runs eight-bit weights as stored, as a GPU does."""

    scripted = False
    runs_scaled = True


@pytest.mark.parametrize("conversion", quant.CONVERT)
def test_eight_bit_products_count_at_their_own_peak(conversion: str) -> None:
    config, cpu = llama(hidden_size=128, intermediate_size=256), torch.device("cpu")
    formats = []
    for weight_format in ("F32", conversion):
        weights = RandomCheckpoint(config, std=0.1, weight_format=weight_format)
        formats.append(build_model(weights, config, ScaledOps(), torch.bfloat16, cpu).quantization)
    dense, eight = (peak_of("NVIDIA H200", one) for one in formats)
    assert dense is not None
    assert eight is not None
    assert eight.flops_per_s == pytest.approx(2 * dense.flops_per_s, rel=1e-3)
    assert eight.bytes_per_s == dense.bytes_per_s == 4.8e12
    assert peak_of("some other device", formats[0]) is None


def test_shares_are_of_the_time_between_two_moments() -> None:
    meter = WorkMeter(DevicePeak(100.0, 50.0))
    meter.add(1.0, 30.0, 10.0)
    before = meter.counts
    meter.add(2.0, 60.0, 80.0)
    meter.add(2.0, 100.0, 80.0)
    assert meter.since(before) == Utilization(2, 2.0, 160 / 4 / 100, 160 / 4 / 50)
    assert meter.since(meter.counts) == Utilization(0, 0.0, None, None)
    assert Utilization.of(WorkCounts(1, 0.5, 1.0, 1.0), None) == Utilization(1, 0.5, None, None)


def test_a_core_counts_each_step_and_each_output_those_that_it_shared() -> None:
    work = ModelWork.of(tiny_model(CONFIG), torch.float32)
    core = tiny_core(token_budget=16)
    client = Client(core)
    client.submit("a", [1, 2, 3], SamplingParams(max_tokens=4, ignore_eos=True))
    client.submit("b", range(1, 21), SamplingParams(max_tokens=3, ignore_eos=True))
    outputs = client.run()
    # a's prompt and 13 tokens of b's; the rest of b's beside a's decode; then they decode, until a has its four tokens.
    steps = [([(0, 3), (0, 13)], 1), ([(3, 1), (13, 7)], 2), ([(4, 1), (20, 1)], 2), ([(5, 1), (21, 1)], 2)]
    counts = core.stats().work
    assert counts.steps == core.stats().steps == len(steps)
    assert counts.flops == sum(work.step(rows, logits).flops for rows, logits in steps)
    assert counts.num_bytes == sum(work.step(rows, logits).num_bytes for rows, logits in steps)
    assert counts.seconds > 0
    finished = {name: output.outputs[0].finished for name, output in outputs.items()}
    assert {name: end.utilization.steps for name, end in finished.items() if end is not None} == {"a": 4, "b": 4}


@pytest.mark.parametrize(("steps_ahead", "others"), [(0, 0), (1, 1)])
def test_an_output_counts_no_step_that_was_read_before_it_ran(steps_ahead: int, others: int) -> None:
    """It counts the one that is in flight when its own is launched, whose time they share."""
    client = Client(tiny_core(steps_ahead=steps_ahead))
    client.submit("long", [1, 2, 3], SamplingParams(max_tokens=20, ignore_eos=True))
    for _ in range(5):
        client.core.step()
    client.submit("short", [4, 5, 6], SamplingParams(max_tokens=3, ignore_eos=True))
    end = client.run()["short"].outputs[0].finished
    assert end is not None
    assert end.utilization.steps == others + 3


def test_the_log_has_each_steps_plan_and_time(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "draftline.steps")
    prompt = [1, 2, 3]
    text = alone(prompt, SamplingParams(max_tokens=6, ignore_eos=True)).outputs[0].token_ids
    client = Client(tiny_core(step_log=StepLog(), token_budget=16, drafter=oracle(2, [prompt + text])))
    client.submit("a", prompt, SamplingParams(max_tokens=4, ignore_eos=True))
    client.submit("b", range(1, 21), SamplingParams(max_tokens=1, ignore_eos=True))
    client.run()
    lines = [TextFormatter().format(record).split(": ", 1)[1] for record in caplog.records]
    # a's prompt may have drafts behind it, so b's chunk has what they leave; then a's rest is verified beside b's.
    planned, read, planned_next, read_next = lines[:4]
    assert re.fullmatch(
        r"planned step=1 rows=2 decoding=0 prompt_tokens=(1[0-6]) drafts=([0-2]) admitted=2 cancelled=0 running=2 waiting=0 "
        r"preemptions=0 free_blocks=60 cached_blocks=0 plan=\"?a\[0\]@0\+3(\+2)? b\[0\]@0\+(1[0-3])\"?",
        planned,
    ), planned
    assert re.fullmatch(r"read step=1 rows=2 ms=[\d.]+ host_ms=[\d.]+", read), read
    assert planned_next.startswith("planned step=2 rows=2 decoding=1 ")
    assert "drafts=" in planned_next
    assert read_next.startswith("read step=2 rows=2 ")
    assert len(lines) == 2 * client.core.stats().steps


def test_steps_are_not_logged_unless_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "draftline.steps")
    alone([1, 2, 3], SamplingParams(max_tokens=2, ignore_eos=True))
    assert not caplog.records
