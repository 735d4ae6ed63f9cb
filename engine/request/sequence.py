"""One output of a request as the scheduler and the runner see it, its row in a step, and the plan of a step.

There is no prefill phase and no decode phase. A sequence has known tokens (prompt and output) and computed tokens
(those whose keys and values are in the cache); a step lets computed catch up with known. The host may be some steps
behind the device: then the device knows tokens that the host has not read yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from draftline.engine.params import SamplingParams

if TYPE_CHECKING:
    from draftline.engine.request.constraints import OutputConstraint  # imports the compiler


@dataclass(slots=True, eq=False)
class Sequence:
    """One of a request's ``n`` outputs.

    Attributes:
        request_id: the request it belongs to.
        index: its index among the request's outputs.
        tokens: prompt and output ids that the host knows.
        prompt_len: tokens of the prompt.
        sampling: its sampling parameters.
        seed: the seed of its random draws.
        max_len: the length at which it must end: prompt plus ``max_tokens``.
        order: its sort key in the queue, smaller first; see `draftline.engine.scheduling.ordering`. The core sets it
            before it adds the sequence to the scheduler.
        leader: the request's first output, if this is another one. It waits for the leader's prompt, to share its
            blocks.
        draft_tokens: drafts per step that the request asks for; None for the server's choice, 0 without a drafter.
        constraint: the constraint of its output, with the output's progress in it; None without one.
        bad_words: the token ids of each spelling of its bad words.
        computed: upper bound of the leading tokens that are in the cache once all launched steps have run.
        in_flight: planned steps with a row of it that are not committed yet.
        unread: upper bound of the tokens that those steps decide. The host learns them at the commits.
        blocks: the cache blocks that hold its tokens, in order.
        cached_prompt: prompt tokens found in the prefix cache when it was first admitted.
        slot: its row of the slot table while it runs, else None.
        registered: leading full blocks that were added to the prefix tree.
        arrival: its serial number in the scheduler, which breaks ties of ``order``; -1 until it is added.
        preemptions: how often it was preempted, and had to recompute.
        finished: it has ended and holds no slot or blocks.
    """

    request_id: str
    index: int
    tokens: list[int]
    prompt_len: int
    sampling: SamplingParams
    seed: int
    max_len: int
    order: float = 0.0
    leader: Sequence | None = None
    draft_tokens: int | None = None
    constraint: OutputConstraint | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    computed: int = 0
    in_flight: int = 0
    unread: int = 0
    blocks: list[int] = field(default_factory=list)
    cached_prompt: int = 0
    slot: int | None = None
    registered: int = 0
    arrival: int = -1
    preemptions: int = 0
    finished: bool = False

    @property
    def name(self) -> str:
        """Its name in messages."""
        return f"{self.request_id}[{self.index}]"

    @property
    def output_len(self) -> int:
        """The number of output tokens that the host knows."""
        return len(self.tokens) - self.prompt_len

    @property
    def waits_for_host(self) -> bool:
        """Whether no further step can be planned before the steps in flight are read.

        This is so if the host writes the sequence's masks and the sequence may be drafted for: only the tokens that are
        read tell which drafts the constraint forces.
        """
        if not self.unread or self.draft_tokens == 0 or self.constraint is None:
            return False
        return self.constraint.on_host

    @property
    def wants_prompt_logits(self) -> bool:
        """Whether all its tokens need logits, for the prompt's log-probabilities: until its first output."""
        return self.sampling.prompt_logprobs is not None and self.known <= self.prompt_len

    @property
    def known(self) -> int:
        """Upper bound of the tokens that the device knows once all launched steps have run. Exact if none is unread."""
        return len(self.tokens) + self.unread


@dataclass(slots=True)
class Row:
    """One sequence's part in a step. Read-only, but not frozen: a frozen dataclass takes five times as long to make.

    The row's query tokens are ``count`` known tokens and then ``drafts`` drafts. While steps are in flight, the host
    knows upper bounds of ``start`` and ``known``; the device has the true values.

    Attributes:
        sequence: the sequence.
        slot: the sequence's row of the slot table.
        start: the sequence's computed tokens before the step.
        count: known tokens that the step computes, at least one.
        known: the sequence's known tokens before the step.
        drafts: drafts that the step verifies; 0 unless ``start + count`` reaches ``known``.
        samples: positions that the step samples: the next token after the last known one, and one after each draft; 0
            unless ``start + count`` reaches ``known``.
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
        """The number of positions whose next token is a prompt token with a log-probability to return.

        This is 0 unless the request asks for the prompt's log-probabilities, and from the first output token on.
        """
        sequence = self.sequence
        if sequence.sampling.prompt_logprobs is None or self.known > sequence.prompt_len:
            return 0
        return min(self.count, sequence.prompt_len - 1 - self.start)

    @property
    def logits_count(self) -> int:
        """The number of query tokens that need logits, counted from the end of the row.

        These are the sampled positions, or all positions if the row has known predictions.
        """
        return self.count + self.drafts if self.known_predictions else self.samples


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of one step. Batch, masks, samples and results all follow the order of ``rows``.

    Attributes:
        rows: the rows of all sequences that run.
        admitted: the last of ``rows``, whose sequences enter their slots. The device needs their tokens and parameters.
        new_blocks: (slot, index, block) of each block table entry of the rows that is new to the device.
        cancelled: sequences that the plan ended because they were cancelled. They hold no slot or blocks any more.
    """

    rows: tuple[Row, ...] = ()
    admitted: tuple[Row, ...] = ()
    new_blocks: tuple[tuple[int, int, int], ...] = ()
    cancelled: tuple[Sequence, ...] = ()
