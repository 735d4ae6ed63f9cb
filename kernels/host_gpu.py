"""``has_gpu``: whether the machine seems to have a GPU, without torch, which takes seconds to import."""

from __future__ import annotations

from pathlib import Path


def has_gpu() -> bool:
    """Whether there is a device file of NVIDIA's driver, or of Windows' for Linux. Torch may be unable to use it."""
    return Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()
