"""The numbers of a load that has run: latencies, rates, goodput, cache hits, drafts and errors."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftline.engine.bench.load.answers import Answer
from draftline.engine.bench.load.run import LoadRun

PERCENTILES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits within which a request counts for goodput, in seconds. ``e2e_s`` is None for no limit."""

    ttft_s: float
    tpot_s: float
    e2e_s: float | None

    def hold(self, answer: Answer) -> bool:
        """Whether an answer without an error is within all limits."""
        in_time = answer.ttft_s <= self.ttft_s and (self.e2e_s is None or answer.total_s <= self.e2e_s)
        return in_time and (answer.tpot_s is None or answer.tpot_s <= self.tpot_s)


def percentiles(seconds: Iterable[float]) -> dict[str, float] | None:
    """Mean and percentiles in milliseconds of times in seconds; None of no times."""
    times = np.fromiter(seconds, float) * 1000
    if not times.size:
        return None
    found = {"mean": float(times.mean())}
    found |= {f"p{q}": float(value) for q, value in zip(PERCENTILES, np.percentile(times, PERCENTILES), strict=True)}
    return {name: round(value, 3) for name, value in found.items()}


def summarize(run: LoadRun, limits: Limits) -> dict[str, Any]:
    """The fields of a result. Times are of requests without an error."""
    answers = sorted(run.answers, key=lambda answer: (answer.conversation, answer.turn))
    fine = [answer for answer in answers if not answer.error]
    errors = Counter(answer.error for answer in answers if answer.error)
    tokens = sum(answer.tokens for answer in fine)
    good = sum(map(limits.hold, fine))
    turns = by_turn(fine)
    return {
        "seconds": round(run.seconds, 4),
        "requests": len(answers),
        "failed": sum(errors.values()),
        "errors": dict(errors),
        "first_error": next((answer.message for answer in answers if answer.error), None),
        "prompt_tokens": sum(answer.prompt_tokens for answer in fine),
        "tokens": tokens,
        "requests_per_s": round(len(fine) / run.seconds, 4),
        "tokens_per_s": round(tokens / run.seconds, 2),
        "prompt_tokens_per_s": round(sum(answer.prompt_tokens for answer in fine) / run.seconds, 2),
        "ttft_ms": percentiles(answer.ttft_s for answer in fine),
        "inter_token_ms": percentiles(gap for answer in fine for gap in answer.gaps_s()),
        "tpot_ms": percentiles(answer.tpot_s for answer in fine if answer.tpot_s is not None),
        "e2e_ms": percentiles(answer.total_s for answer in fine),
        "client_wait_ms": percentiles(answer.waited_s for answer in fine),
        "session_s": _sessions(answers),
        "ttft_ms_by_turn": [percentiles(answer.ttft_s for answer in turn) for turn in turns]
        if len(turns) > 1
        else None,
        "goodput_per_s": round(good / run.seconds, 4),
        "good_share": round(good / len(answers), 4) if answers else 0.0,
        "limits_s": {"ttft": limits.ttft_s, "tpot": limits.tpot_s, "e2e": limits.e2e_s},
        "cache_hit_rate": hit_rate(fine),
        "cache_hit_rate_by_turn": [hit_rate(turn) for turn in turns] if len(turns) > 1 else None,
        "drafts": _drafts(fine),
        "max_in_flight": in_flight(fine),
        "client_cpu_share": round(run.client_cpu_s / run.seconds, 3),
    }


def unanswered(lines: Sequence[Mapping[str, Any]]) -> str | None:
    """Why some runs measured nothing: all of their requests failed. None if every run has an answer."""
    dead = [line for line in lines if line["failed"] and line["failed"] == line["requests"]]
    if not dead:
        return None
    runs = "" if len(lines) == 1 else f" of {len(dead)} of {len(lines)} runs"
    return f"all {sum(line['failed'] for line in dead)} requests{runs} failed: {dead[0]['first_error']}"


def by_turn(answers: Iterable[Answer]) -> list[list[Answer]]:
    """The answers of each turn, from the first."""
    turns: dict[int, list[Answer]] = defaultdict(list)
    for answer in answers:
        turns[answer.turn].append(answer)
    return [turns[number] for number in sorted(turns)]


def hit_rate(answers: Sequence[Answer]) -> float | None:
    """The share of prompt tokens that came from a cache; None where the server does not say."""
    known = [answer for answer in answers if answer.cached_tokens is not None and answer.prompt_tokens]
    if not known:
        return None
    cached = sum(answer.cached_tokens or 0 for answer in known)
    return round(cached / sum(answer.prompt_tokens for answer in known), 4)


def in_flight(answers: Iterable[Answer]) -> int:
    """The most requests that were in flight at one moment."""
    ends = sorted(
        [(answer.sent_at, 1) for answer in answers] + [(answer.ended_at, -1) for answer in answers],
    )
    most = now = 0
    for _, change in ends:
        now += change
        most = max(most, now)
    return most


def _sessions(answers: Iterable[Answer]) -> dict[str, float] | None:
    """Percentiles of the seconds from a conversation's first request to its last end; None for single turns.

    A conversation that an error ended has no such time: it was cut short.
    """
    sessions: dict[int, list[Answer]] = defaultdict(list)
    for answer in answers:
        sessions[answer.conversation].append(answer)
    if all(len(session) == 1 for session in sessions.values()):
        return None
    whole = [session for session in sessions.values() if not any(answer.error for answer in session)]
    return percentiles(
        (max(answer.ended_at for answer in session) - min(answer.sent_at for answer in session)) / 1000
        for session in whole
    )


def _drafts(answers: Iterable[Answer]) -> Mapping[str, float] | None:
    known = [answer for answer in answers if answer.drafted is not None]
    drafted = sum(answer.drafted or 0 for answer in known)
    if not known:
        return None
    accepted = sum(answer.accepted for answer in known)
    return {"drafted": drafted, "accepted": accepted, "rate": round(accepted / drafted, 4) if drafted else 0.0}
