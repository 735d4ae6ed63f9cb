"""Which of the vendor's matrix products have the bits of our own kernel (`gemm.py`), and so may stand in for it.

The vendor's library chooses a kernel by the product's sizes and the device. Where that kernel adds all channels in order,
its bits are ours; where it splits K they are not. Nothing says which, so each product is compared once on
this device. The verdict holds for our arithmetic, the device, the library's version and workspace, the sizes and the type. It is
kept in a file next to the compiled kernels. Whatever the verdicts are, results are the same: only the speed depends on them.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from draftline.kernels.arithmetic import ARITHMETIC_REVISION
from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.linear.gemm import gemm
from draftline.kernels.triton.linear.gemm_config import MANY_ROWS, OWN_ROWS
from draftline.kernels.triton.overlap import overlaps
from draftline.kernels.triton.rows import rows_with_room

_OTHER_ROWS = (65, 129, 257, 1025, 4097)
"""Numbers of rows, one of each range that `gemm_config.py` tells apart."""

_FILE = "draftline-products.json"

_WORKSPACES = ("CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE")
"""Environment variables by which the library has more or less memory for sums that it splits, and so chooses other kernels."""


def compared_rows(rows: int) -> int:
    """The next number of rows whose products are compared: few sizes, so that each is soon known, and little padding."""
    if rows <= OWN_ROWS:
        return rows
    granule = 32 if rows <= 512 else 64 if rows <= 2048 else 256
    return -(-rows // granule) * granule


def product(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    """The vendor's ``x @ weight.T``, plus a bias or a residual, which may be written over."""
    if residual is not None:
        return residual.addmm_(x, weight.t())
    return F.linear(x, weight, bias)


class _Product(NamedTuple):
    """A product that has come up."""

    rows: int
    weight: Tensor
    bias: Tensor | None
    adds: bool


class VendorProducts:
    """The verdicts for one device."""

    def __init__(self, device: torch.device, folder: Path | None, limits: DeviceLimits) -> None:
        """Read the verdicts of earlier processes.

        Args:
            device: a CUDA device.
            folder: where to keep verdicts; None keeps them in this process only.
            limits: the device's.
        """
        self._limits = limits
        self._path = folder / _FILE if folder is not None else None
        versions = (torch.__version__, torch.version.cuda)
        workspaces = filter(None, map(os.environ.get, _WORKSPACES))
        revision = f"revision {ARITHMETIC_REVISION}"
        self._device = "/".join(map(str, (torch.cuda.get_device_name(device), *versions, revision, *workspaces)))
        self._verdicts = _read(self._path).get(self._device, {})
        self._unknown: dict[str, _Product] = {}
        self._captured: dict[str, _Product] = {}

    def run(self, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor | None:
        """The vendor's product, or None where its bits are not known to be ours.

        It has as many rows as are compared: more than x, where x has room for them (`rows.py`). A product that comes up for the first
        time is compared at once, which waits for the device. While a CUDA graph is captured nothing can run: then `settle`
        compares it later.
        """
        tokens, k = x.shape
        rows = compared_rows(tokens)
        if x.element_size() != 2 or rows <= OWN_ROWS or rows > rows_with_room(x) or x.data_ptr() % 16:
            return None
        if bias is not None and residual is not None:
            return None
        kind = "biased" if bias is not None else "added" if residual is not None else "plain"
        key = f"{kind} {x.dtype} {rows}x{weight.shape[0]}x{k}"
        made = _Product(rows, weight, bias, residual is not None)
        if torch.cuda.is_current_stream_capturing():
            captured = f"{kind} {tuple(weight.shape)}"
            self._captured[captured] = max(made, self._captured.get(captured, made), key=lambda one: one.rows)
        if key not in self._verdicts:
            self._unknown[key] = made
            if torch.cuda.is_current_stream_capturing():
                return None
            self.settle()
        if not self._verdicts.get(key):
            return None
        if residual is not None and rows > tokens:
            # Not in place: what lies behind these rows may be another's.
            before, residual = residual, residual.new_empty(rows, weight.shape[0])
            residual[:tokens] = before
        return product(x.as_strided((rows, k), (k, 1)), weight, bias, residual)[:tokens]

    def settle(self) -> bool:
        """Compare the products that have come up without a verdict. Waits for the device if there are any.

        Returns:
            Whether there are verdicts that there were not.
        """
        known = len(self._verdicts)
        for key, unknown in self._unknown.items():
            try:
                self._verdicts[key] = self._equal(*unknown)
            except torch.OutOfMemoryError:
                # Both results have no room at the moment: our own kernel runs, and the next such step tries again.
                continue
        self._unknown.clear()
        if len(self._verdicts) == known:
            return False
        self._keep()
        return True

    def launch_alternatives(self) -> None:
        """Launch our own kernels in place of the captured products: other numbers of rows will need them."""
        for most, weight, bias, adds in self._captured.values():
            for rows in _OTHER_ROWS:
                # Of many rows only where there have been as many: logits of them would take much memory.
                if rows <= max(most, MANY_ROWS):
                    x = weight.new_zeros(rows, weight.shape[1])
                    residual = weight.new_zeros(rows, weight.shape[0]) if adds else None
                    self._own(x, weight, bias, residual)
        self._captured.clear()

    def _equal(self, rows: int, weight: Tensor, bias: Tensor | None, adds: bool) -> bool:
        """Whether both products have the same bits, of random numbers and of this weight."""
        generator = torch.Generator(weight.device).manual_seed(0)

        def draw(columns: int) -> Tensor:
            return torch.randn(rows, columns, generator=generator, device=weight.device).to(weight.dtype)

        x = draw(weight.shape[1])
        residual = draw(weight.shape[0]) if adds else None
        ours = self._own(x, weight, bias, residual)
        theirs = product(x, weight, bias, residual)
        return torch.equal(ours.view(torch.int16), theirs.view(torch.int16))

    def _own(self, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
        """Our product, by the kernel that steps launch."""
        overlap = overlaps(x, self._limits)
        return gemm(x, weight, bias, residual=residual, overlap=overlap, limits=self._limits)

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
        known = json.loads(path.read_text()) if path is not None else {}
    except (OSError, ValueError):
        return {}
    whole = isinstance(known, dict) and all(isinstance(verdicts, dict) for verdicts in known.values())
    return known if whole else {}
