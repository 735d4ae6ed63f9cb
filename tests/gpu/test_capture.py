"""Graphs take their inputs from pinned memory and copy their results there, while the host is a step ahead."""

from __future__ import annotations

from collections import deque
from functools import partial

import numpy as np
import torch

from draftline.engine.runner.capture import GraphRecorder, InputGraph, ResultStages
from draftline.engine.runner.transfer import Arrival, EventPool

WORDS, SAMPLES, ROWS = 1537, 700, 130


@torch.inference_mode()
def test_work_is_captured_again_once_its_kernels_are_settled() -> None:
    cuda = torch.device("cuda")
    settled = iter([True, False])
    recorder = GraphRecorder(cuda, lambda: next(settled))
    out = torch.zeros(1, device=cuda)
    kept: list[torch.Tensor] = []

    def work() -> int:
        kept.append(out + 1)  # as the vendor's library keeps its workspace
        out.fill_(len(kept))
        return len(kept)

    graph, result = recorder.record(work)
    assert result == 2
    assert out.item() == 0, "a capture runs nothing"
    graph.replay()
    assert out.item() == 2


@torch.inference_mode()
def test_each_launch_has_its_inputs_and_results() -> None:
    cuda = torch.device("cuda")
    recorder, events = GraphRecorder(cuda, lambda: False), EventPool()
    graph, results = InputGraph(WORDS, cuda), ResultStages(SAMPLES, ROWS, 2, cuda)
    graph.record(recorder, lambda: None)

    def capture(more: int) -> torch.cuda.CUDAGraph:
        def sample() -> None:
            counts = graph.tensor[-ROWS:].int()
            results.deliver(graph.tensor[:SAMPLES].cumsum(0) + more, counts, graph.tensor[:2])

        sampling, _ = recorder.record(sample)
        return sampling

    in_flight: deque[tuple[int, int, torch.Tensor, torch.Tensor, torch.Tensor, Arrival]] = deque()
    sampling, more = capture(0), 0
    for step in range(200):
        if step % 50 == 49:  # as for a request with other sampling: a step is in flight
            more = step
            sampling = capture(more)
        graph.launch(partial(np.copyto, src=np.arange(step, step + WORDS)))
        sampling.replay()
        in_flight.append((step, more, *results.take(SAMPLES - 1, ROWS - 1), Arrival(cuda, events)))
        if len(in_flight) == 2:
            earlier, added, tokens, counts, moments, arrival = in_flight.popleft()
            arrival.wait()
            assert torch.equal(tokens, (torch.arange(SAMPLES) + earlier).cumsum(0)[:-1] + added)
            assert torch.equal(counts, torch.arange(WORDS)[-ROWS:-1] + earlier)
            assert moments[0] == earlier
            assert moments[1] > 0, "the device's clock"
