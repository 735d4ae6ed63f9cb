"""``fill_masks``: the host masks of one step, of all rows at once: before each draft, and after the last."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

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


def fill_masks(rows: Sequence[MaskedRow], masks: Masks) -> None:
    """Write the masks of all rows, one row after the other.

    Positions after an illegal draft are never accepted; they get the mask of the position before it.

    Args:
        rows: their matchers are left as they were.
        masks: [sum of len(drafts) + 1, ceil(vocab / 32)] int32, contiguous.
    """
    # Bring every matcher to its first position.
    taken = [_advance(row.matcher, row.taken) for row in rows]

    # First masks: one call for each backend, so that the interpreter is released once and not for every row.
    first_indices: list[int] = []
    jobs: dict[MaskBatcher[Matcher], list[tuple[Matcher, int]]] = defaultdict(list)
    end = 0
    for row in rows:
        first_indices.append(end)
        jobs[row.matcher.mask_batcher].append((row.matcher, end))
        end += len(row.drafts) + 1
    for batcher, backend_jobs in jobs.items():
        batcher.fill(backend_jobs, masks)

    # Masks behind drafts follow one by one: each depends on the draft before it.
    for row, first, count in zip(rows, first_indices, taken, strict=True):
        if row.drafts:
            count += _fill_behind(row.matcher, row.drafts, masks[first : first + len(row.drafts) + 1])
        if count:
            row.matcher.rollback(count)


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
