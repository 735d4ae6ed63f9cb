"""Workloads of a server: conversations of one or more turns with their arrival times, drawn from a fixed seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from draftline.engine.bench.batches import Span


@dataclass(frozen=True, slots=True)
class Conversation:
    """Consecutive turns. The prompt of a turn is the conversation so far, and new tokens.

    Attributes:
        arrives_s: its arrival time in seconds.
        turns: the new token ids and the output length of each turn.
        think_s: seconds between an answer and the next turn.
    """

    arrives_s: float
    turns: tuple[tuple[tuple[int, ...], int], ...]
    think_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ServingWorkload:
    """A pattern of conversations.

    Attributes:
        name: as given to --workloads.
        conversations: the number of conversations.
        new: new tokens of a turn; of a short turn, if ``long`` is given.
        output: tokens to generate in each turn.
        rate: conversations a second, as a Poisson process; 0: all arrive at once.
        concurrency: the most conversations in flight; 0 is no limit.
        turns: turns of each conversation.
        shared: tokens of a prefix that all conversations share.
        long: new tokens of a long turn, and the share of long turns.
        think_s: seconds between an answer and the next turn.
    """

    name: str
    conversations: int
    new: Span
    output: Span
    rate: float = 0.0
    concurrency: int = 0
    turns: int = 1
    shared: int = 0
    long: tuple[Span, float] | None = None
    think_s: float = 0.0

    @property
    def max_model_len(self) -> int:
        """The longest context of any turn, in tokens."""
        new = max(self.new[1], self.long[0][1] if self.long else 0)
        return self.shared + self.turns * (new + self.output[1])

    def draw(self, vocab_size: int) -> list[Conversation]:
        """The conversations, the same in every call."""
        rng = random.Random(0)
        shared = tuple(rng.choices(range(vocab_size), k=self.shared))
        clock, made = 0.0, []
        for _ in range(self.conversations):
            turns = []
            for turn in range(self.turns):
                span = self.long[0] if self.long and rng.random() < self.long[1] else self.new
                new = tuple(rng.choices(range(vocab_size), k=rng.randint(*span)))
                turns.append(((*shared, *new) if not turn else new, rng.randint(*self.output)))
            made.append(Conversation(clock, tuple(turns), self.think_s))
            clock += rng.expovariate(self.rate) if self.rate else 0.0
        return made


def load(clients: int) -> ServingWorkload:
    """Clients that each send the next request as soon as they have the answer."""
    return ServingWorkload(f"load{clients}", 4 * clients, (128, 512), (128, 128), concurrency=clients)


SERVING_WORKLOADS: Sequence[ServingWorkload] = (
    ServingWorkload("baseline", 10, (128, 128), (128, 128), concurrency=1),
    ServingWorkload("continuous_batching", 32, (64, 512), (64, 256), rate=4),
    ServingWorkload("paged_attention", 48, (64, 1024), (64, 256)),
    ServingWorkload("chunked_prefill", 48, (64, 128), (64, 128), rate=6, long=((1536, 2048), 0.75)),
    ServingWorkload("prefix_caching", 48, (32, 128), (64, 64), rate=8, shared=1024),
    ServingWorkload("agent_session", 8, (128, 256), (64, 64), rate=2, turns=6, shared=512),
    ServingWorkload("chat_serving", 24, (32, 128), (64, 192), rate=4, turns=3, shared=64, think_s=0.5),
    *(load(2**power) for power in range(8)),
)
