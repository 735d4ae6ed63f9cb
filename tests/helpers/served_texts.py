"""A server under load, simulated: texts whose drafts are right or wrong from the outset, and the time of each step.

A fixed number of drafts and a policy serve the same texts, so their speeds differ by their choices only.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Protocol

from draftline.engine.drafting.policy import DraftPolicy
from draftline.engine.params import SamplingParams
from draftline.engine.request import sequence as requests
from draftline.spec.step_costs import NO_CATCH_UP, CatchUpCost, CostTable, RaggedCostTable

MAX_DRAFTS = 6
DRAFT_LENS = (0, 1, 2, 3, 4, 6)


@dataclass(frozen=True, slots=True)
class Text:
    """One request.

    Attributes:
        prompt: its tokens.
        runs: for each output token, how many drafts from there on are right.
        temperature: with which its tokens are chosen.
    """

    prompt: int
    runs: tuple[int, ...]
    temperature: float


Chances = Callable[[random.Random, float], Iterator[Sequence[float]]]
"""For one request at a share of the whole run: at each output token, the chance of each draft, if those before it are right."""


def texts(
    chances: Chances,
    count: int,
    seed: int,
    lengths: tuple[int, int] = (40, 128),
    temperature: float = 1.0,
    prompts: tuple[int, int] = (30, 300),
) -> list[Text]:
    """``count`` requests, the same in every call, with outputs and prompts of these lengths."""
    draw = random.Random(seed)

    def run(each: Sequence[float]) -> int:
        right = 0
        while right < MAX_DRAFTS and draw.random() < each[right]:
            right += 1
        return right

    def text(index: int) -> Text:
        steps = chances(draw, index / count)
        prompt = draw.randint(*prompts)
        return Text(prompt, tuple(run(next(steps)) for _ in range(draw.randint(*lengths))), temperature)

    return [text(index) for index in range(count)]


def always(*each: float) -> Chances:
    """The same chances everywhere; the last one holds for all further drafts."""
    padded = (*each, *each[-1:] * (MAX_DRAFTS - len(each)))
    return lambda draw, share: cycle([padded])


def bursts(length: int, right: float, gap: int, wrong: float) -> Chances:
    """Stretches in which drafts are right, of about ``length`` tokens, and gaps between them."""

    def steps(draw: random.Random, share: float) -> Iterator[Sequence[float]]:
        copying = draw.random() < length / (length + gap)
        while True:
            yield ((right if copying else wrong),) * MAX_DRAFTS
            copying ^= draw.random() < 1 / (length if copying else gap)

    return steps


def categories(*kinds: float) -> Chances:
    """Requests of several kinds, in random order."""
    return lambda draw, share: cycle([(draw.choice(kinds),) * MAX_DRAFTS])


def changes(*phases: Chances) -> Chances:
    """One kind of text after another, all at once."""
    return lambda draw, share: phases[int(share * len(phases))](draw, share)


@dataclass(frozen=True, slots=True)
class Host:
    """Microseconds that a host takes for a step, beside the device; the longer of both is what the step takes.

    Attributes:
        step: for any.
        row: of each row.
        drafts: of each row with drafts.
        request: of each new request.
        slower: by how much longer all of that takes in every third stretch of 0.35 s: other programs share the processor.
    """

    step: float = 0.0
    row: float = 0.0
    drafts: float = 0.0
    request: float = 0.0
    slower: float = 1.0

    def seconds(self, rows: int, drafting: int, requests: int, at: float) -> float:
        """Seconds of a step that begins at a time in seconds."""
        taken = (self.step + self.row * rows + self.drafts * drafting + self.request * requests) * 1e-6
        return taken * (self.slower if int(at / 0.35) % 3 == 1 else 1.0)


@dataclass(frozen=True, slots=True)
class Machine:
    """What steps take.

    Attributes:
        course: microseconds of a pass by its tokens; between them a line.
        ragged: whether a step has only the tokens that it needs; else every row is padded to the longest.
        first: microseconds of a round of drafts, whatever its length.
        each: of each draft of the longest row.
        catch_up: of the drafter.
        late: by how much longer steps with drafts take than was measured.
        prompt_token: microseconds of a prompt's token.
        history: by how much longer a step takes, as a share, for each token of context that a row has on average.
        host: what the host takes.
    """

    course: dict[int, float]
    ragged: bool = False
    first: float = 0.0
    each: float = 0.0
    catch_up: CatchUpCost = NO_CATCH_UP
    late: float = 1.0
    prompt_token: float = 0.0
    history: float = 0.0
    host: Host = Host()

    def with_drafter(self, first: float, each: float, base: float = 0.0, a_token: float = 0.0) -> Machine:
        """The machine with a drafter, whose microseconds are relative to those of a step of one token."""
        unit = self.course[1]
        catch_up = CatchUpCost(base * unit * 1e-6, a_token * unit * 1e-6)
        return replace(self, first=first * unit, each=each * unit, catch_up=catch_up)

    def seconds(self, budgets: Sequence[int]) -> float:
        """Seconds of a step with these drafts, as measured."""
        rows, longest = len(budgets), max(budgets)
        tokens = rows + sum(budgets) if self.ragged else rows * (1 + longest)
        known = sorted(self.course)
        right = min(max(1, bisect_left(known, tokens)), len(known) - 1)
        low, high = known[right - 1], known[right]
        verify = self.course[low] + (self.course[high] - self.course[low]) * (tokens - low) / (high - low)
        return (verify + (self.first + self.each * longest) * (longest > 0)) * 1e-6

    def table(self, rows: int) -> CostTable:
        """What was measured."""
        kind = RaggedCostTable if self.ragged else CostTable
        return kind({(rows, drafts): self.seconds([drafts] * rows) for drafts in DRAFT_LENS})


@dataclass(slots=True)
class _Slot:
    """A request that runs."""

    text: Text
    sequence: requests.Sequence
    lacking: int
    fresh: bool = True
    decided: int = 0


@dataclass(slots=True)
class Served:
    """What a run took.

    Attributes:
        tokens: decided.
        seconds: of all steps.
        drafted: drafts that were verified.
    """

    tokens: int = 0
    seconds: float = 0.0
    drafted: int = 0
    by_length: list[int] = field(default_factory=lambda: [0] * (MAX_DRAFTS + 1))

    @property
    def rate(self) -> float:
        """tokens/s."""
        return self.tokens / self.seconds


class ObserveStep(Protocol):
    """As `DraftBudgets.observe_step`."""

    def __call__(
        self, rows: int, drafts: int, longest: int, seconds: float, *, prompt_tokens: int, caught_up: int
    ) -> None: ...


def ignore_step(rows: int, drafts: int, longest: int, seconds: float, *, prompt_tokens: int, caught_up: int) -> None:
    """Learn nothing."""


def serve(
    machine: Machine,
    waiting: Sequence[Text],
    rows: int,
    policy: DraftPolicy,
    observe_step: ObserveStep = ignore_step,
) -> Served:
    """Serve the texts, ``rows`` at a time, until no more wait."""
    queue, found = iter(waiting), Served()
    costs: dict[tuple[int, int], float] = {}

    def admit(text: Text) -> _Slot:
        sampling, most = SamplingParams(temperature=text.temperature), text.prompt + 128
        sequence = requests.Sequence(
            "text", 0, [0] * text.prompt, text.prompt, sampling, seed=0, max_len=most, order=0.0
        )
        return _Slot(text, sequence, text.prompt)

    slots = [admit(next(queue)) for _ in range(rows)]
    lacking: dict[requests.Sequence, int] = {}
    host = 0.0
    while True:
        running = [slot for slot in slots if not slot.fresh]
        lacking = {slot.sequence: slot.lacking for slot in running}
        policy.begin_step([slot.sequence for slot in running], lacking.__getitem__)
        budgets = [0 if slot.fresh else policy.draft_len(slot.sequence) for slot in slots]
        late = sum(slot.lacking for slot, budget in zip(slots, budgets, strict=True) if budget)
        longest, drafts = max(budgets), sum(budgets)
        shape = (drafts if machine.ragged else 0, longest)
        if shape not in costs:
            costs[shape] = machine.seconds(budgets)
        prompt_tokens = sum([slot.text.prompt for slot in slots if slot.fresh])
        context = sum([len(slot.sequence.tokens) for slot in slots]) / rows
        taken = costs[shape] * (machine.late if longest else 1.0) * (1 + machine.history * context)
        taken += machine.catch_up.seconds(late) + machine.prompt_token * prompt_tokens * 1e-6
        # The host launches a step and takes the results of the one before.
        drafting = sum([budget > 0 for budget in budgets])
        before, host = host, machine.host.seconds(rows, drafting, rows - len(running), found.seconds)
        taken = max(taken, (before + host) / 2)
        found.seconds += taken
        found.drafted += drafts
        found.by_length[longest] += 1
        if running:
            observe_step(len(running), drafts, longest, taken, prompt_tokens=prompt_tokens, caught_up=late)
        policy.observe(
            [
                (slot.sequence, budget, min(budget, slot.text.runs[slot.decided]))
                for slot, budget in zip(slots, budgets, strict=True)
                if budget
            ]
        )
        for index, (slot, budget) in enumerate(zip(slots, budgets, strict=True)):
            left = len(slot.text.runs) - slot.decided
            accepted = min(budget, slot.text.runs[slot.decided])
            decided = min(accepted + 1, left)
            slot.lacking = 0 if budget else slot.lacking + 1
            slot.decided += decided
            slot.fresh = False
            slot.sequence.tokens += [0] * decided
            found.tokens += decided
            if decided == left:
                policy.forget(slot.sequence)
                following = next(queue, None)
                if following is None:
                    return found
                slots[index] = admit(following)


class Fixed(DraftPolicy):
    """As many drafts for every row."""

    def __init__(self, drafts: int) -> None:
        self._drafts = drafts

    def draft_len(self, sequence: requests.Sequence) -> int:
        return self._drafts
