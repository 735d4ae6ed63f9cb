"""``EndlessWork``: a compiler and a tokenizer that never answer, for what must not wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from draftline.engine.protocol import Prompt


class EndlessWork:
    """The futures that it gives are never done, but they can be cancelled.

    Attributes:
        futures: all of them, in order.
    """

    def __init__(self) -> None:
        self.futures: list[Future[Any]] = []

    def submit(self, constraint: object, caller: str) -> Future[Any]:
        """As a `ConstraintCompiler` does."""
        self.futures.append(Future())
        return self.futures[-1]

    async def token_ids(self, prompt: Prompt, caller: str) -> Sequence[int]:
        """As a `TokenizerPool` does."""
        ids: Sequence[int] = await asyncio.wrap_future(self.submit(prompt, caller))
        return ids
