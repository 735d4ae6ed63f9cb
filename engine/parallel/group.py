"""``RankGroup``: the ranks of an engine find each other, through a file, and get their collectives.

gloo connects the ranks over loopback. It sets up everything else, and on a CPU it also carries the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

import torch
from torch import Tensor
from torch._C._distributed_c10d import FileStore, ProcessGroup, ProcessGroupGloo

from draftline.kernels.collectives import Collectives
from draftline.kernels.reference.collectives import ProcessCollectives

_CPU = torch.device("cpu")
_LOOPBACK = "127.0.0.1"

_TIMEOUT = timedelta(hours=1)
"""A rank may load for long. Ranks that have ended or hang are the watchdog's affair."""


def meet(file: Path, rank: int, size: int) -> ProcessGroup:
    """Wait for the other ranks, and connect to them.

    Args:
        file: a path that the ranks have in common. The first rank creates the file.
        rank: this one's number.
        size: the number of ranks.
    """
    store = FileStore(str(file), size)
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [ProcessGroupGloo.create_device(hostname=_LOOPBACK)]
    options._timeout = _TIMEOUT
    group = ProcessGroup(store, rank, size)
    group._register_backend(_CPU, ProcessGroup.BackendType.GLOO, ProcessGroupGloo(store, rank, size, options))
    group._set_default_backend(ProcessGroup.BackendType.GLOO)
    group._set_group_name(str(file))  # type: ignore[arg-type]
    return group


class RankGroup:
    """The ranks of an engine, as one of them sees them.

    Attributes:
        collectives: exchange tensors of the engine's device in a step.
    """

    def __init__(self, group: ProcessGroup, device: torch.device, begun: Callable[[], None] = lambda: None) -> None:
        """Set up the exchanges. All ranks do so together.

        Args:
            group: the ranks that have met.
            device: where this rank's part of the model is.
            begun: is called when an exchange begins: of a step's drafts or samples, and on a CPU of what is summed or
                joined.
        """
        self._host, self._begun = ProcessCollectives(group, begun), begun
        self.collectives: Collectives = self._host
        if device.type == "cuda":
            # Imported here, since a CPU runs without Triton.
            from draftline.kernels.triton.collectives import SymmetricCollectives

            self.collectives = SymmetricCollectives(group, self._host, device)

    def spread(self, values: Tensor) -> Tensor:
        """Rank 0's drafts or samples on every rank; see `Collectives.spread`."""
        # Other exchanges of GPUs are mostly in graphs, so that no rank knows when it begins one.
        self._begun()
        return self.collectives.spread(values)

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self.least([0])

    def least(self, values: Sequence[int]) -> list[int]:
        """The least that any rank gives, of each value. All ranks call it in the same order."""
        given = torch.tensor([values], dtype=torch.int64)
        everyone = self._host.joiner([len(values)] * self._host.size)(given)
        least: list[int] = everyone.view(self._host.size, -1).amin(0).tolist()
        return least
