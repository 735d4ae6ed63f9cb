"""``Matcher``: how far one output has come in its constraint. One contract, whatever enforces it.

* Masks: ``fill_mask`` writes which tokens may come next. It can be asked at any time, also after the end; the mask is
  never empty.
* An illegal token changes nothing, and ``advance`` says so.
* End-of-sequence is a token like any other: it counts, it is taken back by ``rollback``, and it is allowed exactly where
  the text so far is complete. After it nothing but itself is allowed.
* ``rollback`` is exact: afterwards the matcher is what it was before the tokens taken back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.int32]
"""[ceil(vocab / 32)] int32 of allowed tokens: token t is bit t % 32 of word t // 32."""


class Matcher(Protocol):
    """One output's place in its constraint."""

    @property
    def error(self) -> str | None:
        """Why nothing but end-of-sequence can follow although the text is not complete, if it has come to that.

        A grammar can run into limits, or lead where no token of the model goes on. None while all is well.
        """
        ...

    @property
    def consumed(self) -> int:
        """How many tokens have been taken, end-of-sequence among them."""
        ...

    @property
    def complete(self) -> bool:
        """Whether the text so far is one of the language's texts."""
        ...

    @property
    def finished(self) -> bool:
        """Whether end-of-sequence has been taken."""
        ...

    @property
    def ended(self) -> bool:
        """Whether nothing but end-of-sequence can follow, the text being complete."""
        ...

    def fill_mask(self, words: Words) -> None:
        """Write which tokens may come next."""
        ...

    def advance(self, token: int) -> bool:
        """Take one more token; False, and nothing changes, if it is not allowed here."""
        ...

    def rollback(self, count: int) -> None:
        """Take back the last ``count`` tokens, at most ``consumed``.

        Raises:
            ValueError: there have not been as many.
        """
        ...

    def forced(self) -> bytes:
        """What every continuation begins with."""
        ...


def fill_verify(matcher: Matcher, drafts: Sequence[int], masks: npt.NDArray[np.int32]) -> int:
    """Write the masks of a verify: before each draft, and after the last.

    Positions after an illegal draft are never accepted; they get the mask of the place before it.

    Args:
        matcher: left as it was.
        drafts: tokens that may come next.
        masks: [len(drafts) + 1, ceil(vocab / 32)] int32.

    Returns:
        How many of the drafts are legal, one after the other.
    """
    legal = 0
    matcher.fill_mask(masks[0])
    for draft in drafts:
        if not matcher.advance(draft):
            break
        legal += 1
        matcher.fill_mask(masks[legal])
    masks[legal + 1 :] = masks[legal]
    matcher.rollback(legal)
    return legal
