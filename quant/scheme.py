"""``Scheme``: the location of a quantized checkpoint's scales, from its ``quantization_config``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from draftline.quant.eight_bit import with_scales
from draftline.quant.errors import UnsupportedFormatError
from draftline.quant.tensor import RawTensor


@dataclass(frozen=True, slots=True)
class Scheme:
    """A checkpoint's way to store eight-bit weights. Dense ones are known by their format.

    Attributes:
        name: for reports.
        format: ``F8_E4M3`` or ``I8``.
        scales: each replaces ``weight`` in the name of a weight to give a name that its scale may have.
        rows: weight rows that share a scale; 0 for all.
        columns: weight columns that share a scale; 0 for all.
    """

    name: str
    format: str
    scales: tuple[str, ...]
    rows: int
    columns: int

    def scale_names(self, weight: str) -> tuple[str, ...]:
        """The names that a weight's scales may have."""
        return tuple(weight.removesuffix("weight") + scale for scale in self.scales)

    def scaled(self, raw: RawTensor, scale: RawTensor) -> RawTensor:
        """The weight with its scales.

        Raises:
            UnsupportedFormatError: they do not fit.
        """
        return with_scales(raw, scale, self.rows, self.columns)


def refused(field: str, problem: str) -> UnsupportedFormatError:
    """The error of a field of ``quantization_config``, to be raised."""
    return UnsupportedFormatError(f"quantization_config.{field}: {problem}")


def expect(config: Mapping[str, object], field: str, *allowed: object, where: str = "") -> None:
    """Raise UnsupportedFormatError where a field has another value than those allowed (None: it may be missing)."""
    value = config.get(field)
    if value not in allowed:
        known = " and ".join(repr(one) for one in allowed if one is not None)
        raise refused(where + field, f"{value!r} is not supported; {known} {'are' if ' and ' in known else 'is'}")


def block(sizes: object, field: str) -> tuple[int, int]:
    """Rows and columns of a weight's blocks.

    Raises:
        UnsupportedFormatError: they are not two sizes, or the columns are not 128, as activations' groups are.
    """
    match sizes:
        case [int(rows), int(columns)] if rows > 0 and columns == 128:
            return rows, columns
    raise refused(field, f"{sizes!r} is not supported; blocks of 128 columns are, as [128, 128]")
