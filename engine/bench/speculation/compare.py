"""The speed-up of speculative decoding over plain decoding, in rounds that alternate, with its noise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice, zip_longest
from statistics import median
from typing import Any

from rich.table import Table

from draftline.engine.bench.noise import paired_ratio
from draftline.engine.bench.rounds import results_of_rounds
from draftline.engine.bench.speculation.answers import Answers, ask
from draftline.engine.protocol import EngineClient, GenerateRequest
from draftline.spec.step_costs import CostTable

_WARM_UP = 16
"""Requests of a warm-up, at the least: acceptance rates are learned from them."""

_SHOWN = 8
"""The most differences in a result."""


def measure(
    plain: EngineClient,
    drafting: Sequence[EngineClient],
    requests: Sequence[GenerateRequest],
    concurrency: int,
    rounds: int,
    progress: Callable[[], object] = lambda: None,
) -> Iterator[dict[str, Any]]:
    """Compare engines that draft with one that never does, at one concurrency, after a warm-up.

    Args:
        plain: the engine that never drafts.
        drafting: those that do.
        requests: what all answer, each in one of the rounds if there are enough of them, else in every round.
        concurrency: how many of them at a time.
        rounds: how often, in turns, so that disturbances affect all alike. Each begins with another engine.
        progress: called after each engine's part of a round, warm-up included.

    Yields:
        The fields of a result of each engine that drafts; see `results_of_rounds`.
    """
    engines = (plain, *drafting)
    warm_up, *parts = _parts(requests, concurrency, rounds + 1)
    for engine in engines:
        engine.flush_prefix_cache().result()  # a drafter may remember these requests from an earlier comparison
        ask(engine, warm_up[: max(concurrency, _WARM_UP)], concurrency)
        progress()
    counts = {"requests": len(requests), "concurrency": concurrency}

    def answers(first: int, part: Sequence[GenerateRequest]) -> list[Answers]:
        """Each engine's answers in a round that begins with the ``first`` one."""
        found: dict[int, Answers] = {}
        for turn in range(len(engines)):
            index = (first + turn) % len(engines)
            found[index] = ask(engines[index], part, concurrency)
            progress()
        return [found[index] for index in range(len(engines))]

    def results(taken: Sequence[Sequence[Answers]]) -> Iterator[dict[str, Any]]:
        plainly, *drafted = zip(*taken, strict=True)
        for engine, one in zip(drafting, drafted, strict=True):
            synthetic = engine.info.synthetic_acceptance is not None
            different = {} if synthetic else differences(plainly, one)  # synthetic outputs have no meaning
            costs = costs_of(engine.info.step_costs, concurrency)
            yield counts | compare(plainly, one) | {"synthetic": synthetic, **different, "step_costs": costs}

    yield from results_of_rounds((answers(first, part) for first, part in enumerate(parts)), results)


def compare(plain: Sequence[Answers], drafted: Sequence[Answers]) -> dict[str, Any]:
    """The speed-up of the rounds, each and their median, and the statistics of the last round's drafts.

    ``verdict`` is ``faster`` or ``slower`` only where something was drafted and every one of three or more rounds shows
    it.
    """
    found = paired_ratio([one.tokens_per_s for one in drafted], [one.tokens_per_s for one in plain])
    drafts = drafted[-1].drafts
    tokens = sum(map(len, drafted[-1].tokens))
    words = {"higher": "faster", "lower": "slower"}
    verdict = words.get(found.verdict, found.verdict) if drafts.drafted else "nothing drafted"
    return {
        "drafter": drafts.name,
        "plain_tokens_per_s": median(one.tokens_per_s for one in plain),
        "tokens_per_s": median(one.tokens_per_s for one in drafted),
        "rounds": len(drafted),
        "speedups": [round(b.tokens_per_s / a.tokens_per_s, 3) for a, b in zip(plain, drafted, strict=True)],
        "speedup": found.median,
        "speedup_low": found.low,
        "speedup_high": found.high,
        "verdict": verdict,
        # CPU seconds count where other programs run on the same cores.
        "plain_cpu_ms_per_token": median(_cpu_ms(one) for one in plain),
        "cpu_ms_per_token": median(_cpu_ms(one) for one in drafted),
        "cpu_speedup": median(_cpu_ms(a) / max(1e-9, _cpu_ms(b)) for a, b in zip(plain, drafted, strict=True)),
        "tokens": tokens,
        "drafted_steps": drafts.steps,
        "acceptance_length": drafts.acceptance_length,
        "tokens_in_drafted_steps": (drafts.steps + drafts.accepted) / tokens,
        "drafted": drafts.drafted,
        "accepted": drafts.accepted,
        "drafted_by_position": list(drafts.drafted_by_position),
        "accepted_by_position": list(drafts.accepted_by_position),
        "survival": [round(right / max(1, drafts.steps), 4) for right in drafts.accepted_by_position],
        "times": asdict(drafts.times),
    }


def differences(plain: Sequence[Answers], drafted: Sequence[Answers]) -> dict[str, Any]:
    """The most answers of a round that differ, and where the first ones of all rounds do."""
    return {
        "different_answers": max(
            sum(a != b for a, b in zip(one.tokens, other.tokens, strict=True))
            for one, other in zip(plain, drafted, strict=True)
        ),
        "differences": list(islice(_first_differences(plain, drafted), _SHOWN)),
    }


def _first_differences(plain: Sequence[Answers], drafted: Sequence[Answers]) -> Iterator[dict[str, Any]]:
    """Where an answer first differs, and the tokens there without and with drafts; None where it had ended."""
    for number, (one, other) in enumerate(zip(plain, drafted, strict=True)):
        for answer, (expected, got) in enumerate(zip(one.tokens, other.tokens, strict=True)):
            for position, (a, b) in enumerate(zip_longest(expected, got)):
                if a != b:
                    yield {"round": number, "answer": answer, "position": position, "plain": a, "drafted": b}
                    break


def costs_of(step_costs: Sequence[tuple[int, int, float]], rows: int) -> list[tuple[int, float]]:
    """The drafts a sequence, and the seconds of such a step as `EngineInfo.step_costs` has them for so many sequences.

    Those of the next larger number that was measured, or of the largest one; none where none was.
    """
    if not step_costs:
        return []
    costs = CostTable({(count, drafts): seconds for count, drafts, seconds in step_costs})
    return [(drafts, costs.seconds(rows, drafts)) for drafts in costs.draft_lens]


def _parts(requests: Sequence[GenerateRequest], concurrency: int, count: int) -> list[Sequence[GenerateRequest]]:
    """The requests of the warm-up and of each round.

    No request comes twice: a drafter that remembers texts would know the answers of the rounds before. Only where there
    are too few requests for that, each part has all of them.
    """
    if len(requests) // count < concurrency:
        return [requests] * count
    return [requests[index::count] for index in range(count)]


def _cpu_ms(answers: Answers) -> float:
    return 1e3 * answers.cpu_seconds / sum(map(len, answers.tokens))


def tables(results: Sequence[Mapping[str, Any]]) -> Iterator[Table]:
    """The results as a table, and what adaptive draft lengths have measured, if any engine has them."""
    yield _gains(results)
    if any(result["step_costs"] for result in results):
        yield _costs(results)


def _costs(results: Sequence[Mapping[str, Any]]) -> Table:
    """The milliseconds of a step, by drafts a sequence."""
    rows = {(_drafter(one), one["concurrency"], tuple(map(tuple, one["step_costs"]))) for one in results}
    found = [(drafter, concurrency, dict(costs)) for drafter, concurrency, costs in sorted(rows) if costs]
    lengths = sorted({drafts for _, _, costs in found for drafts in costs})
    shown = Table(title="ms of a step by drafts a sequence, measured at the start", title_justify="left")
    shown.add_column("drafter")
    for name in ("concurrency", *map(str, lengths)):
        shown.add_column(name, justify="right")
    for drafter, concurrency, costs in found:
        milliseconds = [f"{1e3 * costs[drafts]:.3f}" if drafts in costs else "" for drafts in lengths]
        shown.add_row(drafter, str(concurrency), *milliseconds)
    return shown


def _drafter(result: Mapping[str, Any]) -> str:
    return str(result.get("draft_model") or result["drafter"])


def _gains(results: Sequence[Mapping[str, Any]]) -> Table:
    synthetic = any(result["synthetic"] for result in results)
    first = results[0]
    shown = Table(
        title=f"{first['model']}, {first['dataset']}{', SYNTHETIC acceptance' * synthetic}", title_justify="left"
    )
    # What several results differ in.
    about = [name for name in ("category", "temperature") if len({result.get(name) for result in results}) > 1]
    shown.add_column("drafter")
    for name in about:
        shown.add_column(name)
    for name in ("concurrency", "plain tokens/s", "drafting tokens/s", "speed-up", "lowest–highest", "verdict"):
        shown.add_column(name, justify="right")
    for name in ("acceptance length", "accepted", "draft s", "verify s", "sample s", "differ"):
        shown.add_column(name, justify="right")
    for result in results:
        times = result["times"]
        gains = result["verdict"] in ("faster", "slower")
        shown.add_row(
            _drafter(result),
            *(str(result[name]) for name in about),
            str(result["concurrency"]),
            f"{result['plain_tokens_per_s']:,.1f}",
            f"{result['tokens_per_s']:,.1f}",
            f"{result['speedup']:.2f}×" if gains else "–",
            f"{result['speedup_low']:.2f}–{result['speedup_high']:.2f}×",
            result["verdict"],
            f"{result['acceptance_length']:.2f}",
            f"{result['accepted']} of {result['drafted']}",
            *(f"{times[name]:.2f}" for name in ("draft_s", "verify_s", "sample_s")),
            str(result.get("different_answers", "–")),
        )
    few, many = (pick(result["rounds"] for result in results) for pick in (min, max))
    rounds = f"{many} alternating round{'s' * (many != 1)}" if few == many else f"{few} to {many} alternating rounds"
    shown.caption = f"medians of {rounds}; a gain or loss shows in every one of 3 or more"
    return shown
