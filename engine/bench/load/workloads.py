"""``Workload``: conversations of one or more turns with lengths and arrivals, and the named ones in three sizes."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from draftline.engine.bench.load.arrivals import Pattern, arrival_times
from draftline.engine.bench.load.lengths import Lengths

Size = Literal["small", "medium", "large"]


@dataclass(frozen=True, slots=True)
class Turn:
    """What a user, or a tool, adds to a conversation, and the answer that is wanted.

    Attributes:
        new: the new tokens as numbers below the vocabulary size; empty where ``text`` is given.
        output_len: the most tokens of the answer.
        text: the new text, of a dataset.
    """

    new: tuple[int, ...]
    output_len: int
    text: str = ""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Consecutive turns. The prompt of a turn is the conversation so far, and what the turn adds.

    Attributes:
        arrives_s: its arrival in seconds after the start.
        shared: tokens that come first in every conversation, such as a system prompt.
        turns: its turns.
        think_s: seconds between an answer and the next turn.
    """

    arrives_s: float
    shared: tuple[int, ...]
    turns: tuple[Turn, ...]
    think_s: float = 0.0

    @property
    def tokens(self) -> int:
        """The tokens of its last context, with the answer."""
        return len(self.shared) + sum(len(turn.new) + turn.output_len for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Workload:
    """A pattern of conversations.

    Attributes:
        name: its name.
        conversations: the number of conversations.
        prompt: new tokens of a turn.
        output: tokens of an answer.
        arrivals: when conversations begin.
        rate: conversations a second, unless the loop is closed.
        max_concurrent: the most conversations in flight; None for no limit.
        turns: turns of a conversation.
        shared_prefix: tokens that all conversations begin with.
        later: new tokens of the turns after the first, such as a tool's output; as ``prompt`` where None.
        long: the new tokens of a long turn, and the share of long turns.
        think_s: seconds between an answer and the next turn.
    """

    name: str
    conversations: int
    prompt: Lengths
    output: Lengths
    arrivals: Pattern = "closed"
    rate: float = 1.0
    max_concurrent: int | None = None
    turns: int = 1
    shared_prefix: int = 0
    later: Lengths | None = None
    long: tuple[Lengths, float] | None = None
    think_s: float = 0.0

    @property
    def max_model_len(self) -> int:
        """The longest context that any turn can have, in tokens."""
        first = max(self.prompt.high, self.long[0].high if self.long else 0)
        later = max(self.later.high if self.later else first, self.long[0].high if self.long else 0)
        return self.shared_prefix + first + (self.turns - 1) * later + self.turns * self.output.high

    def draw(self, vocab_size: int, seed: int) -> list[Conversation]:
        """The conversations: the same in every call with the same seed."""
        rng = random.Random(seed)
        shared = tuple(rng.choices(range(vocab_size), k=self.shared_prefix))
        times = arrival_times(self.arrivals, self.rate, self.conversations, random.Random(seed + 1))
        return [
            Conversation(
                arrives_s,
                shared,
                tuple(self._turn(index, vocab_size, rng) for index in range(self.turns)),
                self.think_s,
            )
            for arrives_s in times
        ]

    def _turn(self, index: int, vocab_size: int, rng: random.Random) -> Turn:
        lengths = self.later if self.later is not None and index else self.prompt
        if self.long is not None and rng.random() < self.long[1]:
            lengths = self.long[0]
        return Turn(tuple(rng.choices(range(vocab_size), k=lengths.draw(rng))), self.output.draw(rng))


def _span(low: int, high: int) -> Lengths:
    return Lengths(low, high)


def _named(small: Workload, medium: Workload, large: Workload) -> Mapping[Size, Workload]:
    return {"small": small, "medium": medium, "large": large}


def _baseline(requests: int, prompt: int, output: int) -> Workload:
    """One request after the other: the latency of an idle server."""
    return Workload("baseline", requests, Lengths(prompt, prompt), Lengths(output, output), max_concurrent=1)


def _agents(
    sessions: int, turns: int, shared: int, task: Lengths, tool: Lengths, output: Lengths, rate: float
) -> Workload:
    """Agents: a long system prompt with tools, a task, and in each turn a short call and a tool's output."""
    return Workload(
        "agent-session", sessions, task, output, "poisson", rate, turns=turns, shared_prefix=shared, later=tool
    )  # fmt: skip


WORKLOADS: Mapping[str, Mapping[Size, Workload]] = {
    "baseline": _named(_baseline(8, 128, 32), _baseline(10, 128, 128), _baseline(20, 512, 256)),
    "continuous_batching": _named(
        Workload("continuous_batching", 12, _span(16, 128), _span(16, 48), "poisson", 2),
        Workload("continuous_batching", 32, _span(64, 512), _span(64, 256), "poisson", 4),
        Workload("continuous_batching", 512, _span(64, 1024), _span(64, 512), "poisson", 32),
    ),
    "paged_attention": _named(
        Workload("paged_attention", 12, _span(16, 256), _span(16, 48)),
        Workload("paged_attention", 48, _span(64, 1024), _span(64, 256)),
        Workload("paged_attention", 256, _span(64, 4096), _span(64, 512)),
    ),
    "chunked_prefill": _named(
        Workload("chunked_prefill", 12, _span(16, 32), _span(16, 32), "poisson", 2, long=(_span(384, 512), 0.75)),
        Workload("chunked_prefill", 48, _span(64, 128), _span(64, 128), "poisson", 6, long=(_span(1536, 2048), 0.75)),
        Workload("chunked_prefill", 128, _span(64, 128), _span(64, 128), "poisson", 12, long=(_span(6144, 8192), 0.75)),
    ),
    "prefix_caching": _named(
        Workload("prefix_caching", 12, _span(8, 32), _span(16, 16), "poisson", 2, shared_prefix=384),
        Workload("prefix_caching", 48, _span(32, 128), _span(64, 64), "poisson", 8, shared_prefix=1024),
        Workload("prefix_caching", 256, _span(32, 256), _span(64, 64), "poisson", 32, shared_prefix=4096),
    ),
    "agent-session": _named(
        _agents(6, 5, 512, _span(32, 64), _span(32, 96), _span(16, 16), rate=0.5),
        _agents(16, 8, 2048, _span(64, 256), Lengths.parse("lognormal:192,0.5"), _span(32, 96), rate=2),
        _agents(64, 12, 4096, _span(64, 512), Lengths.parse("lognormal:256,0.75"), _span(32, 128), rate=4),
    ),
    "chat-serving": _named(
        Workload("chat-serving", 6, _span(16, 48), _span(16, 48), "poisson", 1, turns=3, shared_prefix=64, think_s=0.5),
        Workload("chat-serving", 24, _span(32, 128), _span(64, 192), "poisson", 4, turns=3, shared_prefix=64, think_s=0.5),
        Workload("chat-serving", 256, _span(32, 256), _span(64, 384), "poisson", 16, turns=5, shared_prefix=256, think_s=1),
    ),
}  # fmt: skip
"""By name and size. ``small`` is for a few CPU cores, ``medium`` for a small model on a GPU, ``large`` for a full
GPU."""


def find_workload(name: str, size: Size) -> Workload:
    """A workload by its name, with hyphens or underscores.

    Raises:
        ValueError: there is none.
    """
    for known, sizes in WORKLOADS.items():
        if known.replace("_", "-") == name.strip().replace("_", "-"):
            return sizes[size]
    raise ValueError(f"{name!r} is not one of {', '.join(WORKLOADS)}")


def dataset_workload(conversations: Sequence[tuple[Turn, ...]], like: Workload) -> list[Conversation]:
    """The conversations of a dataset, which arrive as ``like`` says."""
    times = arrival_times(like.arrivals, like.rate, len(conversations), random.Random(1))
    return [Conversation(at, (), turns, like.think_s) for at, turns in zip(times, conversations, strict=True)]
