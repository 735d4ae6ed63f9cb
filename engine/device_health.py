"""Whether a device still computes. After a fault of some kinds it does not, and only a new process can use it again."""

from __future__ import annotations

import torch

from draftline.engine.errors import DeviceLostError


def check_device(device: torch.device) -> None:
    """Find out whether ``device`` is still usable after a step has failed on it.

    A CUDA kernel that reads where it must not leaves its process's context unusable: everything fails from then on. A
    lack of memory, or a fault of the host, does not.

    Raises:
        DeviceLostError: it is not.
    """
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
        torch.zeros(1, device=device).item()
    except RuntimeError as error:
        raise DeviceLostError(f"{device} computes nothing any more: {str(error).splitlines()[0]}") from error
