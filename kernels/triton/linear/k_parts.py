"""The order in which a product of 16-bit factors adds: the rule that all dense kernels share.

Each result is a sum over K. The matrix units take 16 channels after the other and add into one float32 accumulator, from
the first channel to the last. That order is the same for every tile, number of rows, instruction and operand order, so
kernels may differ in all of these. The vendor's product has it too, where it does not split K (`vendor.py`).

A weight of few rows cannot occupy a device in that order: its programs are few, and each has all of K to walk. Its K has
four parts instead. Each part is summed from zero, and then the sums are added in pairs: ``(a + b) + (c + d)``.
"""

from __future__ import annotations

_NARROW = 1024
"""The most weight rows of a product in parts."""

PARTS = 4

_GRANULE = 64
"""Part sizes are multiples of this, so that all kernels' tiles end where parts end."""


def has_parts(n: int) -> bool:
    """Whether the K of a weight of ``n`` rows has parts."""
    return n <= _NARROW


def part_size(k: int) -> int:
    """The channels of one part of ``k`` channels; the last ones may have fewer, or none."""
    return -(-k // (PARTS * _GRANULE)) * _GRANULE
