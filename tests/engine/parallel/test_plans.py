"""Plans on their way to other ranks."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest

from draftline.engine.errors import DeviceLostError
from draftline.engine.parallel.plan_codec import PlanDecoder, encode
from draftline.engine.parallel.plan_ring import PlanReceiver, PlanSender
from draftline.engine.params import SamplingParams
from draftline.engine.request.sequence import Plan, Row, Sequence
from draftline.spec.drafter import DraftChunk


def sequence(tokens: list[int], **sampling: object) -> Sequence:
    params = SamplingParams(**sampling)  # type: ignore[arg-type]
    return Sequence("r", 0, tokens, len(tokens), params, seed=7, max_len=99, order=0.0)


def fields(row: Row) -> tuple[int, ...]:
    return row.slot, row.start, row.count, row.known, row.drafts, row.samples, row.logits_count, row.known_predictions


def test_a_plan_survives_the_way() -> None:
    asks = sequence([5, 6, 7, 8], prompt_logprobs=1, temperature=0.3)
    plain = sequence([1, 2])
    first = Plan(
        rows=(Row(plain, 3, 0, 2, 2, 0, 1), Row(asks, 0, 0, 3, 4, 0, 0)),
        admitted=(Row(plain, 3, 0, 2, 2, 0, 1), Row(asks, 0, 0, 3, 4, 0, 0)),
        new_blocks=((3, 0, 17), (0, 0, 4), (0, 1, 5)),
    )
    second = Plan(rows=(Row(plain, 3, 2, 1, 3, 2, 3), Row(asks, 0, 3, 1, 4, 0, 1)))
    decoder = PlanDecoder()
    chunks = (DraftChunk(3, 0, 2), DraftChunk(0, 7, 300))
    for plan, catch_up in ((first, ()), (second, chunks), (Plan(admitted=first.admitted), chunks[:1])):
        got, caught_up = decoder.decode(encode(plan, catch_up))
        assert caught_up == catch_up
        assert list(map(fields, got.rows)) == list(map(fields, plan.rows))
        assert got.new_blocks == plan.new_blocks
        assert [(row.slot, row.sequence.tokens, row.sequence.prompt_len) for row in got.admitted] == [
            (row.slot, row.sequence.tokens, row.sequence.prompt_len) for row in plan.admitted
        ]


def test_messages_of_any_size_reach_every_receiver() -> None:
    sender = PlanSender(2, lambda: None)
    receivers = [PlanReceiver(os.dup(sender.memory), wake, index) for index, wake in enumerate(sender.wakes)]
    draw = np.random.default_rng(1)
    # The longest are several times as long as the ring.
    messages = [
        draw.integers(0, 1 << 30, size, np.int32) for size in (0, 1, 5, 1 << 19, 3, 1 << 20, 3_000_000, 7, 700_000)
    ]
    got: list[list[np.ndarray]] = [[], []]

    def receive(index: int) -> None:
        for _ in messages:
            got[index].append(receivers[index].receive())

    threads = [threading.Thread(target=receive, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for message in messages:
        sender.send(message)
    for thread in threads:
        thread.join()
    for of_receiver in got:
        assert all(np.array_equal(one, other) for one, other in zip(of_receiver, messages, strict=True))
    sender.close()


def test_a_sender_does_not_wait_for_a_receiver_that_has_ended() -> None:
    ended = time.monotonic() + 0.05

    def check() -> None:
        if time.monotonic() > ended:
            raise DeviceLostError("rank 1 ended")

    sender = PlanSender(1, check)
    with pytest.raises(DeviceLostError, match="rank 1 ended"):
        sender.send(np.zeros(2_000_000, np.int32))
    sender.close()
