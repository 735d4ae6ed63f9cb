"""``fill_masks``: the host masks of one step, of all rows at once: before each draft, and after the last."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate

from draftline.structured.matcher import MaskBatcher, Masks, Matcher


@dataclass(frozen=True, slots=True)
class MaskedRow:
    """One row whose masks the host writes.

    Attributes:
        matcher: the row's position in its constraint. No two rows share one.
        taken: tokens that are known to come next, but that the matcher has not taken yet.
        drafts: tokens that may come after them.
    """

    matcher: Matcher
    taken: Sequence[int] = ()
    drafts: Sequence[int] = ()


def fill_masks(rows: Sequence[MaskedRow], masks: Masks) -> dict[int, Exception]:
    """Write the masks of all rows, one row after the other.

    Positions after an illegal draft are never accepted; they get the mask of the position before it.

    Args:
        rows: their matchers are left as they were.
        masks: [sum of len(drafts) + 1, ceil(vocab / 32)] int32, contiguous.

    Returns:
        The errors of matchers, by the index of the row. The masks of such a row allow every token: its output cannot go on.
    """
    faults: dict[int, Exception] = {}

    def contained(index: int, ask: Callable[[], int | None]) -> int:
        """The number that ``ask`` returns; 0 without one, or if the row's matcher has failed, or fails now."""
        if index not in faults:
            try:
                return ask() or 0
            except Exception as error:  # noqa: BLE001 - the caller ends this row's output
                faults[index] = error
        return 0

    # Bring every matcher to its first position.
    taken = [contained(index, partial(_advance, row.matcher, row.taken)) for index, row in enumerate(rows)]

    # First masks: one call for each backend, so that the interpreter is released once and not for every row.
    firsts = list(accumulate((len(row.drafts) + 1 for row in rows), initial=0))
    jobs: dict[MaskBatcher[Matcher], list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        if index not in faults:
            jobs[row.matcher.mask_batcher].append(index)
    for batcher, indices in jobs.items():
        try:
            batcher.fill([(rows[index].matcher, firsts[index]) for index in indices], masks)
        except Exception:  # noqa: BLE001 - one by one, they show whose error it is
            for index in indices:
                contained(index, partial(rows[index].matcher.fill_mask, masks[firsts[index]]))

    # Masks behind drafts follow one by one: each depends on the draft before it.
    for index, row in enumerate(rows):
        of_row = masks[firsts[index] : firsts[index + 1]]
        count = taken[index]
        if row.drafts:
            count += contained(index, partial(_fill_behind, row.matcher, row.drafts, of_row))
        if count:
            contained(index, partial(row.matcher.rollback, count))
        if index in faults:
            of_row[:] = -1
    return faults


def _advance(matcher: Matcher, tokens: Sequence[int]) -> int:
    """Take tokens up to the first illegal one; return how many were taken."""
    for count, token in enumerate(tokens):
        if not matcher.advance(token):
            return count
    return len(tokens)


def _fill_behind(matcher: Matcher, drafts: Sequence[int], masks: Masks) -> int:
    """Write all masks but the first, which is already there. The matcher takes the legal drafts; return how many."""
    legal = 0
    for draft in drafts:
        if not matcher.advance(draft):
            break
        legal += 1
        matcher.fill_mask(masks[legal])
    masks[legal + 1 :] = masks[legal]
    return legal
