"""``StepLog``: the log of each step's plan and time (--log-steps)."""

from __future__ import annotations

import logging

from draftline.engine.request.sequence import Plan, Row
from draftline.engine.scheduling.scheduler import SchedulerStats

logger = logging.getLogger("draftline.steps")


class StepLog:
    """Logs each step twice: when it is planned, and when its results are read.

    The lines have request ids and counts, but no text.
    """

    def planned(self, step: int, plan: Plan, scheduler: SchedulerStats) -> None:
        """A step is about to be launched; ``step`` counts launches from 1."""
        rows = plan.rows
        decoding = [row for row in rows if row.start >= row.sequence.prompt_len]
        fields = {
            "step": step,
            "rows": len(rows),
            "decoding": len(decoding),
            "prompt_tokens": sum(row.count for row in rows) - sum(row.count for row in decoding),
            "drafts": sum(row.drafts for row in rows),
            "admitted": len(plan.admitted),
            "cancelled": len(plan.cancelled),
            "running": scheduler.running,
            "waiting": scheduler.waiting,
            "preemptions": scheduler.preemptions,
            "free_blocks": scheduler.free_blocks,
            "cached_blocks": scheduler.cached_blocks,
            "plan": " ".join(map(_row, rows)),
        }
        logger.info("planned", extra={"fields": fields})

    def read(self, step: int, rows: int, seconds: float, host_s: float) -> None:
        """The step has arrived. It took ``seconds``, and the host ``host_s`` to plan and launch it."""
        fields = {"step": step, "rows": rows, "ms": round(1e3 * seconds, 3), "host_ms": round(1e3 * host_s, 3)}
        logger.info("read", extra={"fields": fields})


def _row(row: Row) -> str:
    """``request[output]@computed+tokens``, and ``+drafts`` behind a second plus where there are some."""
    drafts = f"+{row.drafts}" if row.drafts else ""
    return f"{row.sequence.name}@{row.start}+{row.count}{drafts}"
