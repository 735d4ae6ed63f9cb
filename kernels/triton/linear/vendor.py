"""Which of the vendor's matrix products have the bits of our own kernel (`gemm.py`), and so may stand in for it.

The vendor's library chooses a kernel by the product's sizes and the device. Where that kernel adds all channels in order,
its bits are ours; where it splits K they are not. Nothing says which, so each product is compared once on
this device. The verdict holds for the device, the library's version, the sizes and the type, and is kept in a file next to
the compiled kernels. Whatever the verdicts are, results are the same: only the speed depends on them.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from draftline.kernels.triton.linear.gemm import gemm

_GRANULE = 64
"""Only products of a multiple of this many rows are compared, so that few sizes exist."""

_FILE = "draftline-products.json"


def product(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    """The vendor's ``x @ weight.T``, plus a bias or a residual, which may be written over."""
    if residual is not None:
        return residual.addmm_(x, weight.t())
    return F.linear(x, weight, bias)


class VendorProducts:
    """The verdicts for one device."""

    def __init__(self, device: torch.device, folder: Path | None) -> None:
        """Read the verdicts of earlier processes.

        Args:
            device: a CUDA device.
            folder: where to keep verdicts; None keeps them in this process only.
        """
        self._path = folder / _FILE if folder is not None else None
        versions = (torch.__version__, torch.version.cuda, torch.backends.cudnn.version())
        self._device = "/".join(map(str, (torch.cuda.get_device_name(device), *versions)))
        self._verdicts = _read(self._path).get(self._device, {})

    def run(self, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor | None:
        """The vendor's product, or None where its bits are not known to be ours.

        A product that comes up for the first time is compared at once, which waits for the device; not while a CUDA graph
        is captured, since nothing runs then.
        """
        if (
            x.element_size() != 2
            or x.shape[0] % _GRANULE
            or (bias is not None and residual is not None)
            or x.data_ptr() % 16
        ):
            return None
        kind = "biased" if bias is not None else "added" if residual is not None else "plain"
        key = f"{kind} {x.dtype} {x.shape[0]}x{weight.shape[0]}x{x.shape[1]}"
        if key not in self._verdicts:
            if torch.cuda.is_current_stream_capturing():
                return None
            self._verdicts[key] = _equal(x, weight, bias, residual)
            self._keep()
        return product(x, weight, bias, residual) if self._verdicts[key] else None

    def _keep(self) -> None:
        if self._path is None:
            return
        known = _read(self._path)
        known.setdefault(self._device, {}).update(self._verdicts)
        try:
            with tempfile.NamedTemporaryFile("w", dir=self._path.parent, delete=False) as file:
                json.dump(known, file)
            os.replace(file.name, self._path)
        except OSError:
            # The file only saves time.
            self._path = None


def _read(path: Path | None) -> dict[str, dict[str, bool]]:
    try:
        return json.loads(path.read_text()) if path is not None else {}
    except (OSError, ValueError):
        return {}


def _equal(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> bool:
    """Whether both products have the same bits, of random numbers of the arguments' sizes and of these weights."""
    generator = torch.Generator(x.device).manual_seed(0)

    def draw(like: Tensor) -> Tensor:
        return torch.randn(like.shape, generator=generator, device=like.device).to(like.dtype)

    values = draw(x)
    before = draw(residual) if residual is not None else None
    ours = gemm(values, weight, bias, residual=before)
    theirs = product(values, weight, bias, before)
    return torch.equal(ours.view(torch.int16), theirs.view(torch.int16))
