"""``StepBudget``: how many tokens a step may compute, so that streams that run beside long prompts keep their pace.

A step with a chunk of a prompt takes about as long as its tokens do together. While sequences decode, the budget
follows the measured time of such steps to a target; the time of a token depends on the model, the device and the length
of the contexts. Without decoding sequences no caller waits for a token, and prompts may fill the step.
"""

from __future__ import annotations

import math

_DECAY = 0.7
"""Weight of what was measured before in moving averages: of a decode's time, and of a prompt token's, where a step
weighs as much as it has tokens."""

FIRST_CHUNK = 16
"""Prompt tokens of a step while no token's time is known. On a small CPU, more of them would take longer than the
target."""

MIN_CHUNK = 8
"""Prompt tokens that a step may always have, so that prompts make progress whatever the target is."""

_AIM = 0.8
"""The part of the target that a step is planned for at most: clients also wait for the step's delivery."""

_OVERRUNS = 3.0
"""How many mean overruns a step leaves room for, so that some nine of ten steps take no longer than the target: where
times have a normal distribution, the 90th percentile is 3.2 mean overruns above the mean."""

_OVERRUN_DECAY = 0.9
"""The same as ``_DECAY``, of the mean overrun. It is slower: an overrun says little about the next one."""

_MANY_TOKENS = 32
_MUCH_LONGER = 1.5
"""A token's time is measured in steps with many prompt tokens, or that take much longer than a step that only decodes.
In other steps it would be the step's own time."""


class StepBudget:
    """The token budget of each step. One thread uses it."""

    def __init__(self, max_tokens: int, target_s: float) -> None:
        """No step is measured yet.

        Args:
            max_tokens: the most tokens of a step.
            target_s: how long a step may take while sequences decode; infinite for no limit.
        """
        self._max_tokens = max_tokens
        self._target_s = target_s
        self._decode_s = 0.0
        # Sums over steps with prompts, each weighing less than the next.
        self._prompt_s = 0.0
        self._prompt_tokens = 0.0
        self._overrun = 0.0  # the mean part by which steps take longer than expected; shorter ones count as none

    def tokens(self, decoding: int) -> int:
        """The budget of the next step, in which ``decoding`` sequences decode."""
        if not decoding or math.isinf(self._target_s):
            return self._max_tokens
        if not self._prompt_tokens:
            return min(self._max_tokens, decoding + FIRST_CHUNK)
        aim = min(_AIM, 1 / (1 + _OVERRUNS * self._overrun)) * self._target_s
        chunk = (aim - self._decode_s) * self._prompt_tokens / self._prompt_s
        return min(self._max_tokens, decoding + max(MIN_CHUNK, int(min(chunk, self._max_tokens))))

    def measure(self, decoding: int, prompt_tokens: int, seconds: float) -> None:
        """Note the time of a step with these decoding sequences and prompt tokens."""
        if not prompt_tokens:
            known = self._decode_s or seconds
            self._decode_s = _DECAY * known + (1 - _DECAY) * seconds
            return
        if decoding and self._prompt_tokens:
            expected = self._decode_s + prompt_tokens * self._prompt_s / self._prompt_tokens
            overrun = min(1.0, max(0.0, seconds / expected - 1))
            self._overrun = _OVERRUN_DECAY * self._overrun + (1 - _OVERRUN_DECAY) * overrun
        beyond = max(seconds - (self._decode_s if decoding else 0.0), 1e-9)
        if prompt_tokens >= _MANY_TOKENS or seconds > _MUCH_LONGER * self._decode_s > 0:
            self._prompt_s = _DECAY * self._prompt_s + beyond
            self._prompt_tokens = _DECAY * self._prompt_tokens + prompt_tokens
        else:  # no measurement, but a bound: larger chunks follow
            bound = ((_MUCH_LONGER - 1) * self._decode_s or beyond) / prompt_tokens
            self._prompt_tokens = self._prompt_tokens or prompt_tokens
            self._prompt_s = min(self._prompt_s or math.inf, bound * self._prompt_tokens)
