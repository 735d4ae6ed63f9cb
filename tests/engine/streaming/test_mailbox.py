"""Updates on their way from the step thread to a stream's reader."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import until

from draftline.engine.outputs import Delta, Failed, Finished, FinishReason, SpeculationStats, Timing, Update, Usage
from draftline.engine.streaming.mailbox import _MAX_DELAY_S, Hub, Mailbox


def delta(*tokens: int, index: int = 0) -> Delta:
    return Delta(index, tokens, "".join(map(chr, tokens)))


def finished(index: int = 0) -> Finished:
    usage, timing = Usage(1, 0, 1), Timing(0, 0, 0, 0)
    return Finished(index, FinishReason.LENGTH, "", usage, SpeculationStats(), timing, None, 1)


async def read_all(mailbox: Mailbox) -> list[tuple[str, Update]]:
    mailbox.close()
    return [pair async for pair in mailbox]


async def test_unread_deltas_of_an_output_merge() -> None:
    mailbox = Mailbox(Hub(asyncio.get_running_loop()))
    for token in range(5):
        mailbox.put([("a", delta(token)), ("b", delta(token + 100)), ("a", delta(token + 200, index=1))])
    assert len(mailbox) == 3
    assert await read_all(mailbox) == [
        ("a", delta(0, 1, 2, 3, 4)),
        ("b", delta(100, 101, 102, 103, 104)),
        ("a", delta(200, 201, 202, 203, 204, index=1)),
    ]


async def test_an_end_comes_after_its_deltas_and_does_not_merge() -> None:
    mailbox = Mailbox(Hub(asyncio.get_running_loop()))
    failed = Failed(RuntimeError())
    mailbox.put([("a", delta(1)), ("a", finished()), ("b", delta(2)), ("b", failed)])
    assert await read_all(mailbox) == [("a", delta(1)), ("a", finished()), ("b", delta(2)), ("b", failed)]


async def test_read_updates_do_not_merge() -> None:
    mailbox = Mailbox(Hub(asyncio.get_running_loop()))
    reader = aiter(mailbox)
    mailbox.put([("a", delta(1))])
    assert await anext(reader) == ("a", delta(1))
    mailbox.put([("a", delta(2))])
    assert await anext(reader) == ("a", delta(2))


async def test_a_waiting_reader_is_woken_by_updates_and_by_closing() -> None:
    mailbox = Mailbox(Hub(asyncio.get_running_loop()))
    updates = aiter(mailbox)
    reader = asyncio.ensure_future(anext(updates))
    await asyncio.sleep(0)
    mailbox.put([("a", delta(1))])
    assert await reader == ("a", delta(1))
    rest = asyncio.create_task(read_all(mailbox))
    assert await rest == []


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 1), st.integers(0, 3), st.booleans()), max_size=40))
def test_every_output_arrives_whole_and_in_order_however_it_is_read(
    script: list[tuple[str, int, int, bool]],
) -> None:
    """Each entry puts one delta of some tokens, then perhaps reads one update."""

    async def run() -> None:
        mailbox = Mailbox(Hub(asyncio.get_running_loop()))
        reader = aiter(mailbox)
        sent: dict[tuple[str, int], list[int]] = defaultdict(list)
        got: dict[tuple[str, int], list[int]] = defaultdict(list)
        serial = 0
        for request_id, index, count, reads in script:
            tokens = range(serial, serial + count)
            serial += count
            sent[request_id, index] += tokens
            mailbox.put([(request_id, delta(*tokens, index=index))])
            assert len(mailbox) <= 4
            if reads:
                request_id, update = await anext(reader)
                assert isinstance(update, Delta)
                got[request_id, update.index] += update.token_ids
        mailbox.put([(request_id, finished(index)) for request_id, index in sent])
        mailbox.close()
        ended = set()
        async for request_id, update in reader:
            if isinstance(update, Delta):
                assert (request_id, update.index) not in ended
                assert update.text == "".join(map(chr, update.token_ids))
                got[request_id, update.index] += update.token_ids
            else:
                assert isinstance(update, Finished)
                ended.add((request_id, update.index))
        assert {key: tokens for key, tokens in got.items() if tokens} == {k: t for k, t in sent.items() if t}
        assert ended == set(sent)

    asyncio.run(run())


async def test_from_other_threads_everything_arrives_once_and_in_order() -> None:
    hub = Hub(asyncio.get_running_loop())
    mailboxes = [Mailbox(hub) for _ in range(8)]
    steps = 500

    def post(thread: int) -> None:
        for step in range(steps):
            for mailbox in mailboxes:
                mailbox.sink([(f"t{thread}", delta(step))])
        for mailbox in mailboxes:
            mailbox.sink([(f"t{thread}", finished())])

    async def read(mailbox: Mailbox) -> dict[str, list[int]]:
        got: dict[str, list[int]] = defaultdict(list)
        ends = 0
        async for request_id, update in mailbox:
            if isinstance(update, Delta):
                got[request_id] += update.token_ids
            else:
                ends += 1
                if ends == len(threads):
                    mailbox.close()
        return got

    threads = [threading.Thread(target=post, args=(number,)) for number in range(3)]
    readers = [asyncio.create_task(read(mailbox)) for mailbox in mailboxes]
    for thread in threads:
        thread.start()
    for got in await asyncio.gather(*readers):
        assert got == {f"t{number}": list(range(steps)) for number in range(3)}
    for thread in threads:
        thread.join()


async def test_a_step_wakes_the_loop_once_for_all_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    wakes = []
    call = loop.call_soon_threadsafe

    def counting(*args: object, **kwargs: object) -> asyncio.Handle:
        wakes.append(args)
        return call(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_soon_threadsafe", counting)
    hub = Hub(loop)
    mailboxes = [Mailbox(hub) for _ in range(50)]
    for mailbox in mailboxes:
        mailbox.sink([("a", delta(1))])  # the loop cannot run in between: this is its own thread
    await asyncio.sleep(0)
    assert len(wakes) == 1
    assert [len(mailbox) for mailbox in mailboxes] == [1] * 50
    mailboxes[0].sink([("a", delta(2))])
    await until(lambda: not hub._waking)
    assert len(wakes) == 2
    assert (await read_all(mailboxes[0])) == [("a", delta(1, 2))]


async def test_a_busy_loop_leaves_the_interpreter_to_others_and_updates_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    now = busy = 0.0
    later: list[tuple[float, Callable[[], None]]] = []
    loop: Any = SimpleNamespace(
        time=lambda: now,
        call_soon_threadsafe=lambda call: call(),
        call_at=lambda at, call: later.append((at, call)),
    )
    monkeypatch.setattr("draftline.engine.streaming.mailbox.time", SimpleNamespace(thread_time=lambda: busy))
    mailbox = Mailbox(Hub(loop))
    mailbox.sink([("a", delta(1))])
    assert await mailbox.take() == [("a", delta(1))]

    # As long again as it was busy, but not for long, since it may have been busy with something else.
    for works, delay in ((0.05, 0.05), (30.0, _MAX_DELAY_S)):
        now, busy = now + works, busy + works
        mailbox.sink([("a", delta(2))])
        mailbox.sink([("a", delta(3))])
        assert not len(mailbox)
        [(at, deliver)] = later
        assert at == pytest.approx(now + delay)
        later.clear()
        now = at
        deliver()
        assert await mailbox.take() == [("a", delta(2, 3))]
        assert not later


def test_posting_to_a_closed_loop_is_harmless() -> None:
    async def make() -> Mailbox:
        return Mailbox(Hub(asyncio.get_running_loop()))

    asyncio.run(make()).sink([("a", delta(1))])
