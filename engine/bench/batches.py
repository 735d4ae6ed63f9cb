"""Offline workloads: the number and the lengths of requests, for any engine.

Prompts are token ids drawn uniformly from the vocabulary. Outputs have a fixed length: end-of-sequence is ignored. The
seed is fixed, so two engines, or two versions of one, get exactly the same work.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from draftline.engine.bench.numbers import names

Span = tuple[int, int]
"""The shortest and the longest length, both included."""

_SEED = 0


@dataclass(frozen=True, slots=True)
class BenchmarkRequest:
    """One request: its prompt's token ids, and the number of tokens to generate."""

    prompt: tuple[int, ...]
    output_len: int


@dataclass(frozen=True, slots=True)
class OfflineWorkload:
    """A batch of requests that all arrive at once.

    Attributes:
        name: as given to --workloads.
        requests: the number of requests.
        prompt_len: tokens of a prompt.
        output_len: tokens to generate for a request.
        temperature: 0 is greedy.
        longest: tokens of the first prompt and of its output, where they are more than the others.
    """

    name: str
    requests: int
    prompt_len: Span
    output_len: Span
    temperature: float = 0.0
    longest: Span = (0, 0)

    @property
    def max_model_len(self) -> int:
        """The longest context of any request, in tokens."""
        return max(self.prompt_len[1] + self.output_len[1], sum(self.longest))

    def draw(self, vocab_size: int) -> list[BenchmarkRequest]:
        """The requests, the same in every call."""
        rng = random.Random(_SEED)
        lengths = [(rng.randint(*self.prompt_len), rng.randint(*self.output_len)) for _ in range(self.requests)]
        if any(self.longest):
            lengths[0] = self.longest
        return [BenchmarkRequest(tuple(rng.choices(range(vocab_size), k=prompt)), out) for prompt, out in lengths]

    def __str__(self) -> str:
        sampling = f", T {self.temperature:g}" if self.temperature else ""
        longest = f", one {self.longest[0]}/{self.longest[1]}" if any(self.longest) else ""
        return f"{self.requests} × {_span(self.prompt_len)}/{_span(self.output_len)}{longest}{sampling}"


def _span(lengths: Span) -> str:
    return str(lengths[0]) if lengths[0] == lengths[1] else f"{lengths[0]}–{lengths[1]}"


GPU_WORKLOADS = (
    OfflineWorkload("nano", 256, (100, 1024), (100, 1024), temperature=0.6),
    OfflineWorkload("bs1", 1, (128, 128), (512, 512)),
    OfflineWorkload("bs8", 8, (128, 128), (256, 256)),
    OfflineWorkload("bs64", 64, (512, 512), (256, 256)),
    OfflineWorkload("bs256", 256, (512, 512), (256, 256)),
    OfflineWorkload("prefill", 32, (2048, 2048), (1, 1)),
    OfflineWorkload("long1", 1, (3500, 3500), (256, 256)),
    OfflineWorkload("long32", 32, (3500, 3500), (256, 256)),
)
"""Workloads that compare engines on GPUs; ``nano`` is nano-vLLM's own benchmark."""

CPU_WORKLOADS = (
    OfflineWorkload("cpu1", 1, (128, 128), (128, 128)),
    OfflineWorkload("cpu8", 8, (128, 128), (128, 128)),
    OfflineWorkload("cpu32", 32, (128, 128), (128, 128)),
)
"""Workloads for a few CPU cores."""

LARGE_MODEL_WORKLOADS = (OfflineWorkload("bs32", 32, (512, 512), (256, 256)),)
"""For models that do not fit into one GPU. Run by name only."""

UNEVEN_WORKLOADS = (
    OfflineWorkload("uneven64", 64, (300, 300), (256, 256), longest=(3500, 256)),
    OfflineWorkload("uneven600", 600, (100, 400), (40, 120), longest=(6000, 700)),
)
"""One prompt is much longer than the others, in a batch, and while others come and go. Run by name only, ``uneven600``
with 64 at a time."""

WORKLOADS = {
    workload.name: workload for workload in (*GPU_WORKLOADS, *LARGE_MODEL_WORKLOADS, *UNEVEN_WORKLOADS, *CPU_WORKLOADS)
}


def find_workloads(listed: str) -> tuple[OfflineWorkload, ...]:
    """The workloads of a comma-separated list.

    Raises:
        ValueError: a workload is unknown, or the list is empty.
    """
    wanted = names(listed)
    unknown = [name for name in wanted if name not in WORKLOADS]
    if unknown or not wanted:
        raise ValueError(f"workload {(unknown or [listed])[0]!r} is not one of {', '.join(WORKLOADS)}")
    return tuple(WORKLOADS[name] for name in wanted)
