"""The masks of a step's verifies, of all rows at once: before each draft, and after the last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor

from draftline.structured.matcher import Matcher


@dataclass(frozen=True, slots=True)
class Verify:
    """One row's part.

    Attributes:
        matcher: its place, no other row's.
        taken: tokens that come next for certain, of which the matcher has not been told.
        drafts: tokens that may come after them.
    """

    matcher: Matcher
    taken: Sequence[int] = ()
    drafts: Sequence[int] = ()


class VerifyMasks:
    """Writes them. One thread uses it."""

    @cached_property
    def _executor(self) -> LLExecutor:
        # It starts threads, which most engines never need.
        return LLExecutor()

    def fill(self, verifies: Sequence[Verify], masks: npt.NDArray[np.int32]) -> None:
        """Write the masks of all verifies, one after the other.

        Positions after an illegal draft are never accepted; they get the mask of the place before it.

        Args:
            verifies: their matchers are left as they were.
            masks: [sum of len(drafts) + 1, ceil(vocab / 32)] int32, contiguous.
        """
        taken = [_advance(verify.matcher, verify.taken) for verify in verifies]
        places: list[int] = []
        end = 0
        for verify in verifies:
            places.append(end)
            end += len(verify.drafts) + 1
        jobs = [
            (engine, place)
            for verify, place in zip(verifies, places, strict=True)
            if (engine := verify.matcher.mask_engine) is not None
        ]
        if jobs:
            # One call for all rows: the interpreter is left to other threads once, not for each. Those behind drafts
            # follow one by one.
            self._executor.unsafe_compute_mask_ptr(jobs, masks.ctypes.data, masks.strides[0], len(masks))
        for verify, place, count in zip(verifies, places, taken, strict=True):
            verify.matcher.finish_mask(masks[place])
            if verify.drafts:
                count += _fill_behind(verify.matcher, verify.drafts, masks[place : place + len(verify.drafts) + 1])
            if count:
                verify.matcher.rollback(count)


def _advance(matcher: Matcher, tokens: Sequence[int]) -> int:
    """Take tokens up to one that is not allowed; how many that were."""
    for count, token in enumerate(tokens):
        if not matcher.advance(token):
            return count
    return len(tokens)


def _fill_behind(matcher: Matcher, drafts: Sequence[int], masks: npt.NDArray[np.int32]) -> int:
    """Write all masks but the first, which is there; the matcher takes the drafts that are legal: how many."""
    legal = 0
    for draft in drafts:
        if not matcher.advance(draft):
            break
        legal += 1
        matcher.fill_mask(masks[legal])
    masks[legal + 1 :] = masks[legal]
    return legal
