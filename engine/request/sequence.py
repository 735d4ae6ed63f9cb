"""A running output: its tokens, and how many of them have been computed.

There is no prefill phase and no decode phase. A sequence has known tokens (prompt and output) and computed tokens
(those whose keys and values are in the cache); a step lets computed catch up with known. The host may be a step behind
the device: then some known tokens are unread, their values being on the device alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from draftline.engine.params import SamplingParams

if TYPE_CHECKING:
    from draftline.engine.request.constraints import OutputConstraint  # loads what compiles constraints


@dataclass(slots=True, eq=False)
class Sequence:
    """One of a request's ``n`` outputs, as the scheduler sees it.

    Attributes:
        request_id: the request it belongs to.
        index: which of the request's outputs it is.
        tokens: prompt and output ids known so far.
        prompt_len: how many of them are prompt.
        sampling: how it is sampled.
        seed: the seed of its draws.
        max_len: the length at which it must end (prompt plus max_tokens).
        draft_tokens: the drafts a step that its request asks for, 0 where the server has no drafter; None leaves it to that.
        order: its place in the queue, smaller first: arrival time minus the head start that its priority buys.
        leader: the request's first output, whose prompt the others wait for (to share its blocks); None for itself.
        constraint: what its output must match, and how far it has come in it; None for anything.
        computed: leading tokens whose keys and values are in the cache once all launched steps have run, at most.
        launched: steps with a row of it that were planned but not committed.
        unread: the most tokens that those steps decide, which the host will learn at their commits.
        blocks: the cache blocks that hold them, in order.
        cached_prompt: prompt tokens that came from the prefix cache when it was first admitted.
        slot: its row of the slot table while it runs, else None.
        registered: leading full blocks that were offered to the prefix tree.
        arrival: its rank among equals in ``order``; the scheduler counts it when the sequence is added.
        preemptions: how often it lost its place and had to recompute.
        cancelled: set by anyone, at any time; the next plan ends the sequence.
        finished: it has ended and holds nothing.
    """

    request_id: str
    index: int
    tokens: list[int]
    prompt_len: int
    sampling: SamplingParams
    seed: int
    max_len: int
    order: float
    leader: Sequence | None = None
    draft_tokens: int | None = None
    constraint: OutputConstraint | None = None
    computed: int = 0
    launched: int = 0
    unread: int = 0
    blocks: list[int] = field(default_factory=list)
    cached_prompt: int = 0
    slot: int | None = None
    registered: int = 0
    arrival: int = -1
    preemptions: int = 0
    cancelled: bool = False
    finished: bool = False

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self.request_id}[{self.index}]"

    @property
    def output_len(self) -> int:
        """Output tokens that the host knows."""
        return len(self.tokens) - self.prompt_len

    @property
    def waits_for_host(self) -> bool:
        """Whether no step can be planned for it until those under way are read: the host knows what is forced only then."""
        if not self.unread or self.draft_tokens == 0 or self.constraint is None:
            return False
        return self.constraint.on_host

    @property
    def known(self) -> int:
        """The most tokens that the device knows once all launched steps have run; all, if none is unread."""
        return len(self.tokens) + self.unread


@dataclass(slots=True)
class Row:
    """One sequence's part in a step. Read-only, but not frozen: a frozen one takes five times as long to make.

    Attributes:
        sequence: whose.
        slot: its slot.
        start: its computed tokens before the step, at most.
        count: known tokens that the step computes.
        known: its known tokens before the step, at most.
        drafts: drafted tokens that the step verifies after them (only where ``start + count`` reaches the last known).
        samples: how many positions are sampled: one after the last known token, if the step reaches it, and one after
            each draft.
    """

    sequence: Sequence
    slot: int
    start: int
    count: int
    known: int
    drafts: int
    samples: int

    @property
    def known_predictions(self) -> int:
        """How many computed prompt tokens have their successor's log-probability asked for, in the prompt as well."""
        sequence = self.sequence
        if sequence.sampling.prompt_logprobs is None or self.known > sequence.prompt_len:
            return 0
        return min(self.count, sequence.prompt_len - 1 - self.start)

    @property
    def logits_count(self) -> int:
        """How many of the row's last query tokens want logits."""
        return self.count + self.drafts if self.known_predictions else self.samples


@dataclass(frozen=True, slots=True)
class Plan:
    """What one step does. The order of ``rows`` is the only order: batch, masks, samples and results all follow it.

    Attributes:
        rows: the sequences that run.
        admitted: those of ``rows``, the last ones, whose sequences enter their slots, which must therefore be filled.
        new_blocks: (slot, index, block) of each block table entry that the device does not know and the rows need.
        cancelled: sequences that the plan ended because they were cancelled; they hold nothing any more.
    """

    rows: tuple[Row, ...] = ()
    admitted: tuple[Row, ...] = ()
    new_blocks: tuple[tuple[int, int, int], ...] = ()
    cancelled: tuple[Sequence, ...] = ()
