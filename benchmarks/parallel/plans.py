"""Time plans on their way to the other ranks: ``python benchmarks/parallel/plans.py --receivers 1,3,7``. Needs no GPU.

Rank 0 encodes a decode step's plan and sends it through shared memory; each receiver, a process of its own, decodes it.
``arrival_us`` is the time from the call of send until the last receiver has decoded the plan. One JSON line for each number of
receivers and rows. Each process needs a core of its own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

from draftline.engine.bench.numbers import positive_ints
from draftline.engine.bench.provenance import conditions
from draftline.engine.parallel.plan_codec import PlanDecoder, encode
from draftline.engine.parallel.plan_ring import PlanReceiver, PlanSender
from draftline.engine.params import SamplingParams
from draftline.engine.request.sequence import Plan, Row, Sequence

_PLANS = 500
_STEP_S = 0.001
"""From plan to plan, so that receivers wait for each, as they do while a step runs."""


def _receive(memory: int, wake: int, index: int, plans: int, results: Connection) -> None:
    """Decode plans, and send the times at which that was done."""
    receiver, decoder = PlanReceiver(memory, wake, index), PlanDecoder()
    times = []
    for _ in range(plans):
        decoder.decode(receiver.receive())
        times.append(time.perf_counter())
    results.send(times)


def _plans(rows: int) -> tuple[Plan, Plan]:
    """A step that admits sequences of 64 tokens, and one in which they decode."""
    sequences = [Sequence("r", 0, [0] * 64, 64, SamplingParams(), seed=0, max_len=4096, order=0.0) for _ in range(rows)]
    admitted = tuple([Row(sequence, slot, 0, 64, 64, 0, 1) for slot, sequence in enumerate(sequences)])
    decodes = tuple([Row(sequence, slot, 64, 1, 65, 0, 1) for slot, sequence in enumerate(sequences)])
    return Plan(rows=admitted, admitted=admitted), Plan(rows=decodes)


def _micros(seconds: list[float], pick: Callable[[list[float]], float]) -> float:
    return round(pick(seconds) * 1e6, 1)


def measure(receivers: int, rows: int) -> dict[str, float]:
    """The times of one plan after the other, in microseconds."""
    context = multiprocessing.get_context("fork")  # they inherit the descriptors
    sender = PlanSender(receivers, lambda: None)
    ends = []
    for index, wake in enumerate(sender.wakes):
        ours, theirs = context.Pipe(duplex=False)
        context.Process(target=_receive, args=(sender.memory, wake, index, _PLANS + 1, theirs), daemon=True).start()
        ends.append(ours)
    admission, decode = _plans(rows)
    sender.send(encode(admission))
    begun, encoded, sent = [], [], []
    for _ in range(_PLANS):
        time.sleep(_STEP_S)
        begun.append(time.perf_counter())
        words = encode(decode)
        encoded.append(time.perf_counter())
        sender.send(words)
        sent.append(time.perf_counter())
    arrived = [max(times) for times in zip(*(end.recv()[1:] for end in ends), strict=True)]
    sender.close()

    def between(first: list[float], last: list[float]) -> list[float]:
        return [end - start for start, end in zip(first, last, strict=True)]

    arrivals = between(encoded, arrived)
    return {
        "encode_us": _micros(between(begun, encoded), statistics.median),
        "send_us": _micros(between(encoded, sent), statistics.median),
        "arrival_us": _micros(arrivals, statistics.median),
        "arrival_p99_us": _micros(arrivals, lambda values: statistics.quantiles(values, n=100)[98]),
    }


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--receivers", type=positive_ints, default=[1, 3, 7], help="ranks besides rank 0 (default: 1,3,7)"
    )
    parser.add_argument("--rows", type=positive_ints, default=[1, 64], help="rows of a plan (default: 1,64)")
    options = parser.parse_args()
    begun = conditions()
    for receivers in options.receivers:
        for rows in options.rows:
            line = {**begun, "receivers": receivers, "rows": rows, **measure(receivers, rows)}
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
