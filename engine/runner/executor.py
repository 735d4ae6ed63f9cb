"""``Passes``: a step on the device. Drafts, one ragged forward, samples, acceptance; nothing waits for the host.

Each part can be launched in two ways: as CUDA graphs (`draft_graphs.py`, `pass_graphs.py`), or one operation after the
other (`draft_by_operation.py`, `pass_by_operation.py`), which fits all rows. It goes the first way that fits.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from draftline.engine.request.sequence import Row
from draftline.engine.runner.masks import Constraining
from draftline.engine.runner.timing import Stopwatch
from draftline.kernels.slots import SamplingFeatures


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a step leaves on the device, until the next one.

    Attributes:
        logits: [L, vocab], of every position that wants them, in the rows' order.
        tokens: [S] int64, the token sampled at each sampled position, in the rows' order.
        accepted: [R] int32, how many of its tokens each row keeps.
    """

    logits: Tensor
    tokens: Tensor
    accepted: Tensor


class DraftPass(Protocol):
    """A way to draft."""

    def fits(self, rows: tuple[Row, ...]) -> bool:
        """Whether it can draft for these rows."""
        ...

    def propose(self, rows: tuple[Row, ...]) -> None:
        """Write the rows' drafts into the slot table."""
        ...


class Pass(Protocol):
    """A way to compute rows, whose drafts are in the slot table: gather, forward, sample, accept."""

    def fits(self, rows: tuple[Row, ...]) -> bool:
        """Whether it can compute these rows."""
        ...

    def run(self, rows: tuple[Row, ...], features: SamplingFeatures, watch: Stopwatch | None = None) -> Sampled:
        """Compute the rows, which sample with ``features``.

        ``watch`` is marked where sampling begins. What is returned may be overwritten by the next call, in the order of
        the device.
        """
        ...


class Passes:
    """All ways to compute a step."""

    def __init__(
        self, drafting: Seq[DraftPass], deciding: Seq[Pass], constraining: Constraining, device: torch.device
    ) -> None:
        """The last of each fits all rows; ``drafting`` may be empty where nothing drafts."""
        self._drafting = tuple(drafting)
        self._deciding = tuple(deciding)
        self._constraining = constraining
        self._device = device

    def run(self, rows: tuple[Row, ...], features: SamplingFeatures) -> tuple[Sampled, Stopwatch | None]:
        """Compute the rows: what is left, and how long the parts of a step with drafts take."""
        watch = self._draft(rows)
        sampled = next(way for way in self._deciding if way.fits(rows)).run(rows, features, watch)
        if watch is not None:
            watch.mark()
        return sampled, watch

    def _draft(self, rows: tuple[Row, ...]) -> Stopwatch | None:
        drafting = tuple([row for row in rows if row.drafts])
        if not drafting:
            return None
        watch = Stopwatch(self._device)
        watch.mark()
        next(way for way in self._drafting if way.fits(drafting)).propose(drafting)
        self._constraining.write_drafts(drafting)
        watch.mark()
        return watch
