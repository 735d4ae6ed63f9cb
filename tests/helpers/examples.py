"""How many generated examples a property is tried on: all of them with ``--hypothesis-profile=thorough``, else a part."""

from __future__ import annotations

from hypothesis import settings

_PART = 5


def examples(thorough: int) -> int:
    """``max_examples`` of a test whose thorough run has this many."""
    return thorough if settings.get_current_profile_name() == "thorough" else -(-thorough // _PART)
