"""The exchanges between GPUs, with a process for each rank in Triton's interpreter: the flags, the cells and the sums are real."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import exchanging_rank
import pytest
import torch
from exchanging_rank import Job
from patience import PATIENCE_S
from torch import Tensor

from draftline.kernels.triton.inbox import inbox_bytes
from draftline.kernels.triton.words import MAX_WORDS

_CODE = """
import pickle, sys
sys.path.insert(0, sys.argv[1])
import exchanging_rank
with open(sys.argv[2], "rb") as file:
    results = [exchanging_rank.run(job) for job in pickle.load(file)]
with open(sys.argv[2], "wb") as file:
    pickle.dump(results, file)
"""


Result = tuple[list[Tensor], Tensor, Tensor]
Done = dict[torch.dtype, list[tuple[Job, Result]]]

PROGRAMS = 128
"""Of an exchange, as on a small device."""

DTYPES = {2: (torch.float32, torch.float16), 4: (torch.float32,)}
"""By the number of ranks."""


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Done]:
    """Each rank's job and result, by type. A rank's process does all its jobs: most of its time is importing torch."""

    @cache
    def run(size: int) -> Done:
        folder = tmp_path_factory.mktemp("ranks")
        jobs = [_jobs(size, dtype, folder) for dtype in DTYPES[size]]
        results = _run([list(of_rank) for of_rank in zip(*jobs, strict=True)], folder)
        by_type = zip(jobs, zip(*results, strict=True), strict=True)
        return dict(zip(DTYPES[size], (list(zip(*both, strict=True)) for both in by_type), strict=True))

    return run


def _jobs(size: int, dtype: torch.dtype, folder: Path) -> list[Job]:
    generator = torch.Generator().manual_seed(size)
    inboxes = [folder / f"inbox-{dtype}-{rank}" for rank in range(size)]
    for inbox in inboxes:
        inbox.write_bytes(bytes(inbox_bytes(size)))
    # In words and with flags; blocks of many rows, and of a part of one; in turn, so that cells are used again. The join has more
    # blocks than programs.
    shapes = [(1, 600), (130, 8), (3, 64), (2, 5000), (1, 140001), (1, 600), (3, 601), (1, 600)]
    assert any(rows * columns > MAX_WORDS for rows, columns in shapes)
    whole = [
        (torch.randn(size, *shape, generator=generator) * 10 ** torch.randint(0, 4, (size, 1, 1))).to(dtype)
        for shape in shapes
    ]
    residuals = [torch.randn(shape, generator=generator).to(dtype) if shape[0] < 130 else None for shape in shapes]
    widths = [700, 650, 130, 1][:size]
    parts = [torch.randn(PROGRAMS + 2, width, generator=generator).to(dtype) for width in widths]
    values = torch.arange(1500) * 1_000_003
    return [
        Job(
            rank,
            size,
            inboxes,
            [x[rank] for x in whole],
            None,
            list(residuals),
            parts[rank],
            widths,
            values + rank,
            PROGRAMS,
        )
        for rank in range(size)
    ]


def _run(ranks: list[list[Job]], folder: Path) -> list[list[Result]]:
    """The results of each rank's jobs."""
    files = [folder / f"jobs-{rank}" for rank in range(len(ranks))]
    for file, jobs in zip(files, ranks, strict=True):
        file.write_bytes(pickle.dumps(jobs))
    helpers = str(Path(exchanging_rank.__file__).parent)
    processes = [subprocess.Popen([sys.executable, "-c", _CODE, helpers, str(file)]) for file in files]
    try:
        assert [process.wait(PATIENCE_S) for process in processes] == [0] * len(ranks)
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [pickle.loads(file.read_bytes()) for file in files]


@pytest.mark.parametrize(
    ("size", "dtype"),
    [(2, torch.float32), (2, torch.float16), pytest.param(4, torch.float32, marks=pytest.mark.slow)],
    ids=["2-float32", "2-float16", "4-float32"],
)
def test_sums_in_the_order_of_the_ranks(size: int, dtype: torch.dtype, done: Callable[[int], Done]) -> None:
    jobs, results = zip(*done(size)[dtype], strict=True)
    for sums, joined, spread in results:
        assert joined.equal(torch.cat([job.part for job in jobs], dim=1))
        assert spread.equal(jobs[0].values)
        partials = zip(*(job.partials for job in jobs), strict=True)
        for total, x, residual in zip(sums, partials, jobs[0].residuals, strict=True):
            expected = x[0].float()
            for part in x[1:]:
                expected = expected + part.float()
            assert total.equal((expected if residual is None else residual.float() + expected).to(dtype))
