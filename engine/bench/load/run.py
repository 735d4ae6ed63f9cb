"""``run_load``: send a load to a target, and collect the answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from draftline.engine.bench.load.answers import Answer
from draftline.engine.bench.load.history import HISTORIES, Form
from draftline.engine.bench.load.workloads import Conversation, Turn
from draftline.engine.bench.targets.target import Question, RequestError, Target


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the answers of a load are sampled."""

    ignore_eos: bool
    temperature: float
    seed: int


@dataclass(frozen=True, slots=True)
class LoadRun:
    """A load that has run.

    Attributes:
        answers: every request that was sent, in no certain order.
        seconds: from the first arrival to the last end.
        client_cpu_s: the processor time that this process spent meanwhile.
    """

    answers: Sequence[Answer]
    seconds: float
    client_cpu_s: float


class LoadInterrupted(asyncio.CancelledError):
    """A load was cancelled, as by Ctrl-C. ``run`` has the requests that had ended."""

    def __init__(self, run: LoadRun) -> None:
        super().__init__()
        self.run = run


async def warm_up(
    target: Target, conversations: Sequence[Conversation], form: Form, sampling: Sampling, requests: int
) -> None:
    """Send the first turns of some conversations, one after the other, for a few tokens each.

    The prompts are others than those measured: their words are in reverse, so that no cache knows the beginnings.

    Raises:
        RequestError: one failed.
    """
    for conversation in conversations[:requests]:
        first = conversation.turns[0]
        turn = Turn(first.new[::-1], min(first.output_len, 8), first.text[::-1])
        history = HISTORIES[form](conversation.shared[::-1])
        history.add(turn)
        question = Question(history.prompt(), turn.output_len, sampling.ignore_eos, sampling.temperature, sampling.seed)
        await target.ask(question, Answer(-1, 0))


async def run_load(
    target: Target,
    conversations: Sequence[Conversation],
    form: Form,
    sampling: Sampling,
    max_concurrent: int | None,
    progress: Callable[[Answer], object] = lambda answer: None,
) -> LoadRun:
    """Run the conversations. A failed request ends its conversation, and counts as an answer with an error.

    Args:
        target: answers.
        conversations: what to ask, and when.
        form: of the prompts.
        sampling: of the answers.
        max_concurrent: the most conversations in flight; None for no limit.
        progress: called with every answer.

    Raises:
        LoadInterrupted: it was cancelled.
    """
    answers: list[Answer] = []
    limit = None if max_concurrent is None else asyncio.Semaphore(max_concurrent)
    start, cpu = time.perf_counter(), time.process_time()

    async def converse(index: int, conversation: Conversation) -> None:
        due = start + conversation.arrives_s
        await asyncio.sleep(due - time.perf_counter())
        async with AsyncExitStack() as stack:
            if limit is not None:
                await stack.enter_async_context(limit)
            history = HISTORIES[form](conversation.shared)
            for number, turn in enumerate(conversation.turns):
                if number:
                    due = time.perf_counter() + conversation.think_s
                    await asyncio.sleep(conversation.think_s)
                history.add(turn)
                answer = Answer(index, number, due)
                seed = sampling.seed + index * 1009 + number
                question = Question(history.prompt(), turn.output_len, sampling.ignore_eos, sampling.temperature, seed)
                await _ask(target, question, answer)
                answers.append(answer)
                progress(answer)
                if answer.error:
                    return
                history.answer(answer.token_ids, answer.text)

    def so_far() -> LoadRun:
        return LoadRun(answers, time.perf_counter() - start, time.process_time() - cpu)

    try:
        async with asyncio.TaskGroup() as group:
            for index, conversation in enumerate(conversations):
                group.create_task(converse(index, conversation))
    except asyncio.CancelledError as error:
        raise LoadInterrupted(so_far()) from error
    return so_far()


async def _ask(target: Target, question: Question, answer: Answer) -> None:
    answer.sent_at = time.perf_counter()
    try:
        await target.ask(question, answer)
        if not answer.arrivals:
            raise RequestError("EMPTY", "the answer has no token")
    except RequestError as error:
        answer.error, answer.message = error.code, str(error)
    answer.ended_at = time.perf_counter()
