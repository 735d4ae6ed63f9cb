"""``Matcher``: how far one output has come in its constraint. One contract, whatever enforces it.

* Masks: ``fill_mask`` writes which tokens may come next. It can be asked at any time, also after the end; the mask is
  never empty.
* An illegal token changes nothing, and ``advance`` says so.
* End-of-sequence is a token like any other: it counts, it is taken back by ``rollback``, and it is allowed exactly where
  the text so far is complete. After it nothing but itself is allowed.
* ``rollback`` is exact: afterwards the matcher is what it was before the tokens taken back.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher

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

    @property
    def mask_engine(self) -> LLMatcher | None:
        """What can write the mask side by side with those of others, for `finish_mask` to finish; None: that does it all."""
        ...

    def finish_mask(self, words: Words) -> None:
        """Make of what ``mask_engine`` has written what `fill_mask` writes."""
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
