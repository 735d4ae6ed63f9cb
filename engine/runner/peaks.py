"""The peak rates of known devices, from their makers' data sheets."""

from __future__ import annotations

from collections.abc import Mapping

from draftline.engine.stats import DevicePeak
from draftline.quant.eight_bit import NAMES

_T, _GB = 1e12, 1e9

_PEAKS: Mapping[str, tuple[float, float, float]] = {
    # name: sixteen-bit and eight-bit tensor cores without sparsity, and memory. From NVIDIA's data sheets.
    "NVIDIA B200": (2250 * _T, 4500 * _T, 8000 * _GB),
    "NVIDIA GH200 480GB": (989.4 * _T, 1978.9 * _T, 4000 * _GB),
    "NVIDIA H200": (989.4 * _T, 1978.9 * _T, 4800 * _GB),
    "NVIDIA H200 NVL": (835.5 * _T, 1671 * _T, 4800 * _GB),
    "NVIDIA H100 80GB HBM3": (989.4 * _T, 1978.9 * _T, 3350 * _GB),
    "NVIDIA H100 NVL": (835.5 * _T, 1671 * _T, 3900 * _GB),
    "NVIDIA H100 PCIe": (756 * _T, 1513 * _T, 2000 * _GB),
    "NVIDIA A100-SXM4-80GB": (312 * _T, 624 * _T, 2039 * _GB),
    "NVIDIA A100 80GB PCIe": (312 * _T, 624 * _T, 1935 * _GB),
    "NVIDIA A100-SXM4-40GB": (312 * _T, 624 * _T, 1555 * _GB),
    "NVIDIA A100-PCIE-40GB": (312 * _T, 624 * _T, 1555 * _GB),
    "NVIDIA L40S": (362 * _T, 733 * _T, 864 * _GB),
    "NVIDIA L40": (181 * _T, 362 * _T, 864 * _GB),
    "NVIDIA L4": (121 * _T, 242.5 * _T, 300 * _GB),
    "NVIDIA A10": (125 * _T, 250 * _T, 600 * _GB),
    "NVIDIA A30": (165 * _T, 330 * _T, 933 * _GB),
    "NVIDIA A40": (149.7 * _T, 299.3 * _T, 696 * _GB),
    "NVIDIA GeForce RTX 4090": (165.2 * _T, 330.3 * _T, 1008 * _GB),
    "NVIDIA GeForce RTX 3090": (71 * _T, 284 * _T, 936 * _GB),
}


def peak_of(name: str, formats: str) -> DevicePeak | None:
    """The peak rates of a GPU; None where they are not known, as of every CPU.

    Args:
        name: as the driver gives it.
        formats: the formats of the projections; see `Model.quantization`. Products with eight-bit weights count at the
            eight-bit rate.
    """
    rates = _PEAKS.get(name)
    if rates is None:
        return None
    sixteen, eight, memory = rates
    return DevicePeak(eight if any(part in NAMES.values() for part in formats.split("+")) else sixteen, memory)
