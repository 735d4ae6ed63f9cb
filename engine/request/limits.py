"""Limits of requests that every face knows."""

from __future__ import annotations

from typing import Final

DEFAULT_MAX_TOKENS: Final = 256
"""Maximum output tokens of a request without ``max_tokens``, as far as the context has room."""
