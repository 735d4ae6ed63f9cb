"""The runner: carries a plan out on the device. Slots in, one ragged forward, samples out; the host waits for nothing.

It knows rows and slots. What a token means (text, stops, finishing) is the host's business, in `output_state`.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import torch
from torch import Tensor

from draftline.engine.request.sequence import Plan, Row
from draftline.engine.runner.executor import Passes, Sampled
from draftline.engine.runner.launched_step import LaunchedStep, LogprobTensors
from draftline.engine.runner.masks import Constraining
from draftline.engine.runner.memory import check_device
from draftline.engine.runner.slot_writer import SlotWriter
from draftline.engine.runner.transfer import Readback, upload
from draftline.kernels.ops import Ops
from draftline.kernels.slots import SlotTable
from draftline.spec.drafter import DraftChunk, Drafter


class Runner:
    """Brings a plan to the device, has it computed, and reads the results."""

    def __init__(
        self,
        passes: Passes,
        drafter: Drafter,
        table: SlotTable,
        constraining: Constraining,
        ops: Ops,
        eos_ids: tuple[int, ...],
    ) -> None:
        """``passes`` draft with ``drafter``, and with what ``constraining`` brings to the device."""
        self._passes = passes
        self._drafter = drafter
        self._table = table
        self._ops = ops
        self._writer = SlotWriter(table, eos_ids)
        self._constraining = constraining
        self._device = table.tokens.device

    @torch.inference_mode()
    def launch(self, plan: Plan, behind: Seq[DraftChunk] = (), unread: Seq[LaunchedStep] = ()) -> LaunchedStep:
        """Start one step. Steps run in the order of their launch, each on what the one before it left on the device.

        Args:
            plan: the step.
            behind: what the drafter must catch up with before.
            unread: the steps before it that were not committed yet.
        """
        rows = plan.rows
        self._writer.apply(plan)
        self._constraining.apply(plan, unread)
        if behind:
            self._drafter.catch_up(behind, self._table)
        sampled, watch = self._passes.run(rows, self._writer.features(rows))
        readback = Readback(self._device)
        step = LaunchedStep(
            rows=rows,
            readback=readback,
            tokens=readback.take(sampled.tokens),
            accepted=readback.take(sampled.accepted),
            logprobs=self._logprobs(rows, sampled, readback),
            prompt_logprobs=self._prompt_logprobs(rows, sampled, readback),
            watch=watch,
        )
        readback.seal()
        return step

    def check_device(self) -> None:
        """Raise `DeviceLostError` if the device computes nothing any more."""
        check_device(self._device)

    def _logprobs(self, rows: tuple[Row, ...], sampled: Sampled, readback: Readback) -> LogprobTensors | None:
        """Of every token that a row sampled, where it asked for them."""
        wanted = [row.sequence.sampling.logprobs for row in rows]
        top = max([-1 if wants is None else wants for wants in wanted])
        if top < 0:
            return None
        logits_places: list[int] = []
        sample_places: list[int] = []
        logits_end = samples_end = 0
        for row, wants in zip(rows, wanted, strict=True):
            logits_end += row.logits_count
            samples_end += row.samples
            if wants is not None:
                logits_places.extend(range(logits_end - row.samples, logits_end))
                sample_places.extend(range(samples_end - row.samples, samples_end))
        at, chosen = self._index(logits_places, sample_places)
        return self._read_logprobs(sampled.logits[at], sampled.tokens[chosen], top, readback)

    def _prompt_logprobs(self, rows: tuple[Row, ...], sampled: Sampled, readback: Readback) -> LogprobTensors | None:
        """Of the prompt tokens after each that the step computes, where the row asked for them."""
        if sampled.logits.shape[0] <= sampled.tokens.shape[0]:
            return None  # only these would need more logits than there are samples
        places: list[int] = []
        tokens: list[int] = []
        end = top = 0
        for row in rows:
            if row.known_predictions:
                places.extend(range(end, end + row.known_predictions))
                tokens.extend(row.sequence.tokens[row.start + 1 : row.start + 1 + row.known_predictions])
                top = max(top, row.sequence.sampling.prompt_logprobs or 0)
            end += row.logits_count
        at, chosen = self._index(places, tokens)
        return self._read_logprobs(sampled.logits[at], chosen, top, readback)

    def _index(self, *lists: list[int]) -> Tensor:
        return upload(np.array(lists, np.int64), self._device)

    def _read_logprobs(self, logits: Tensor, tokens: Tensor, top: int, readback: Readback) -> LogprobTensors:
        chosen, ranks, top_ids, top_values = self._ops.logprobs(logits, tokens, top)
        return LogprobTensors(
            readback.take(tokens),
            readback.take(chosen),
            readback.take(ranks),
            readback.take(top_ids),
            readback.take(top_values),
        )
