"""``TagSpan``: one tag in a text."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TagSpan:
    """A tag that an output took, or its reasoning. Offsets are in characters (Unicode code points) of the output's text.

    Attributes:
        name: the tag's JSON pointer in the structural tag, or "reasoning".
        begin: the tag's begin mark, which tells the tags of a structural tag apart.
        start: where the begin mark starts.
        content_start: where the content starts, behind the begin mark.
        content_end: where the content ends, and the end mark starts.
        end: where the end mark ends.
    """

    name: str
    begin: str
    start: int
    content_start: int
    content_end: int
    end: int
