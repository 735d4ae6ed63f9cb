"""Fixed widths of the slot table, and limits of kernels, without torch, so that validation and scheduling need none."""

from __future__ import annotations

MAX_LOGIT_BIAS = 512
"""The most logit_bias entries one request may carry."""

MAX_BAD_WORD_TOKENS = 1024
"""The most tokens of all bad words of one request together."""

MAX_STOP_IDS = 128
"""The most token ids that can end one request: its stop_token_ids plus the model's end-of-sequence ids."""

LEAST_LONG_HISTORY = 768
"""The fewest tokens of histories that are divided where only long ones are: a program reads so many in about the time
that joining the parts takes. Engines of shorter contexts divide none."""
