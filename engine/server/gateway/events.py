"""The stream of events by which a gateway follows the prefix cache and the load of a worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import count

from smg_grpc_proto.generated import common_pb2 as common

from draftline.engine.cache_journal import BlockRemoved, BlockStored, Change, JournalReader
from draftline.engine.protocol import EngineClient
from draftline.engine.server.gateway.convert import engine_load

HEARTBEAT_S = 1.0
"""Seconds between two records of the load while the cache does not change."""

BLOCKS_PER_MESSAGE = 4096
"""Blocks in one message of a snapshot. With 16 tokens a block this is well below the 4 MB that a gateway accepts."""


class TokenRate:
    """The rate in tokens/s at which an engine generates, measured between two reads that are not too close."""

    def __init__(self, engine: EngineClient) -> None:
        """A rate of zero, measured from now on."""
        self._engine = engine
        self._at = time.monotonic()
        self._tokens = engine.stats().generated_tokens
        self._rate = 0.0

    def now(self) -> float:
        """The recent rate in tokens/s."""
        at, tokens = time.monotonic(), self._engine.stats().generated_tokens
        if at - self._at >= HEARTBEAT_S / 2:
            self._rate = (tokens - self._tokens) / (at - self._at)
            self._at, self._tokens = at, tokens
        return self._rate


class CacheEvents:
    """The stream of one gateway: first a snapshot of the cache, then its changes."""

    def __init__(self, engine: EngineClient, first_number: int) -> None:
        """``first_number`` is the first sequence number that the gateway asks for; 0 if it has received nothing yet."""
        self._engine = engine
        self._rate = TokenRate(engine)
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()
        self._reader: JournalReader = engine.journal.follow(self._wake)
        self._number = max(first_number, 1) - 1
        self._begun = False
        self._event_ids = count(1)
        self._samples = count(1)

    def _wake(self) -> None:
        """Called on the step thread, which an error would end."""
        with suppress(RuntimeError):  # the loop has closed, so there is no gateway
            self._loop.call_soon_threadsafe(self._changed.set)

    async def next(self) -> Sequence[common.KvEventBatch]:
        """The next batches to send. Waits until there are some."""
        if self._begun:
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._changed.wait()
            except TimeoutError:
                return [self._batch(self._number, [], load_only=True)]
        self._begun = True
        self._changed.clear()
        # On a thread: to hash 100,000 blocks alone takes a quarter of a second.
        return await asyncio.to_thread(self._read)

    def close(self) -> None:
        """Stop following the cache."""
        self._reader.close()

    def _read(self) -> Sequence[common.KvEventBatch]:
        everything, changes = self._reader.take()
        return list(self._snapshot(changes) if everything else self._changes(changes))

    def _snapshot(self, blocks: Sequence[Change]) -> Iterator[common.KvEventBatch]:
        chunks = [blocks[i : i + BLOCKS_PER_MESSAGE] for i in range(0, max(len(blocks), 1), BLOCKS_PER_MESSAGE)]
        for index, chunk in enumerate(chunks):
            events = [] if index else [common.KvCacheEvent(cleared=common.KvCacheCleared())]
            events += [self._event(change, 0) for change in chunk]
            self._number += 1
            batch = self._batch(self._number, events)
            batch.snapshot.index, batch.snapshot.count, batch.snapshot.blocks = index, len(chunks), len(blocks)
            yield batch

    def _changes(self, changes: Sequence[Change]) -> Iterator[common.KvEventBatch]:
        for start in range(0, len(changes), BLOCKS_PER_MESSAGE):
            self._number += 1
            chunk = changes[start : start + BLOCKS_PER_MESSAGE]
            yield self._batch(self._number, [self._event(change, next(self._event_ids)) for change in chunk])

    def _event(self, change: Change, event_id: int) -> common.KvCacheEvent:
        match change:
            case BlockStored():
                block = common.KvBlock(
                    block_hash=change.block_hash, token_ids=change.tokens, block_size=len(change.tokens), cache_level=0
                )
                stored = common.KvBlocksStored(blocks=[block], parent_block_hash=change.parent_hash)
                return common.KvCacheEvent(event_id=event_id, stored=stored)
            case BlockRemoved():
                return common.KvCacheEvent(
                    event_id=event_id, removed=common.KvBlocksRemoved(block_hashes=[change.block_hash], cache_level=0)
                )

    def _batch(
        self, number: int, events: Sequence[common.KvCacheEvent], *, load_only: bool = False
    ) -> common.KvEventBatch:
        load = engine_load(self._engine.info, self._engine.stats(), self._rate.now(), next(self._samples))
        load.load_only = load_only
        return common.KvEventBatch(sequence_number=number, timestamp=time.time(), events=events, dp_rank=0, load=load)
