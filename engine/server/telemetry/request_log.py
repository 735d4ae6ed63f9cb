"""The request log: a line for each request that has ended, with its caller, times, token counts and code, but no text.

A refused request has its reason in place of times: the fields that are wrong, and why.
"""

from __future__ import annotations

import logging

from draftline.engine.errors import DraftlineError
from draftline.engine.server.telemetry.reports import RequestReport
from draftline.engine.stats import Utilization

logger = logging.getLogger("draftline.requests")
_access = logging.getLogger("draftline.access")

_MAX_REASON = 300
"""Characters of a reason. It names fields, and may quote the values of all but the prompt."""


def log_request(report: RequestReport) -> None:
    """Log one request. The cause of a server fault is logged where it occurs."""
    if logger.isEnabledFor(logging.INFO):
        logger.info("refused" if report.refused else "ended", extra={"fields": _fields(report)})


def log_refused_call(call: str, peer: str, code: str, error: DraftlineError) -> None:
    """Log a call that was refused for its token, before it became a request."""
    _access.warning("refused", extra={"fields": {"call": call, "peer": peer, "code": code, "reason": str(error)}})


def _steps(use: Utilization | None) -> dict[str, object]:
    """The engine's steps while the first output ran; nothing where none was counted."""
    if use is None or not use.steps:
        return {}
    return {
        "steps": use.steps,
        "step_s": round(use.step_s, 6),
        "mfu": "" if use.mfu is None else round(use.mfu, 4),
        "bandwidth": "" if use.bandwidth is None else round(use.bandwidth, 4),
    }


def _fields(report: RequestReport) -> dict[str, object]:
    fields: dict[str, object] = {
        "request": report.request_id,
        "client_id": report.client_id,
        "call": report.origin.call,
        "peer": report.origin.peer,
        "caller": report.origin.caller,
        "code": report.code,
        "seconds": round(report.seconds, 4),
        "reason": report.reason[:_MAX_REASON],
    }
    if report.outputs:
        first = report.outputs[0]
        fields |= {
            "finish": ",".join(output.finish_reason.name.lower() for output in report.outputs),
            "prompt_tokens": first.usage.prompt_tokens,
            "cached_tokens": first.usage.cached_tokens,
            "completion_tokens": sum(output.usage.completion_tokens for output in report.outputs),
            "constraint_compile_s": round(first.timing.constraint_compile_s, 4) or "",
            "queued_s": round(first.timing.queued_s, 4),
            "first_token_s": round(min(output.timing.first_token_s for output in report.outputs), 4),
            "drafted": sum(output.speculation.drafted for output in report.outputs),
            "accepted": sum(output.speculation.accepted for output in report.outputs),
            **_steps(first.utilization),
        }
    return {name: value for name, value in fields.items() if value != ""}
