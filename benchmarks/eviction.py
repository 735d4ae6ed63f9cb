"""Eviction policies of the prefix cache under memory pressure: how many prompt tokens each finds, without a model.

    python benchmarks/eviction.py --workloads agent-session,chat-serving --preset medium

The real block pool sees the traces of the workloads, in caches that hold a share of all blocks. Results are JSON lines, on
standard output or in --output; a table goes to standard error.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import replace

from common.arguments import add_output
from rich.table import Table

from draftline.engine.bench.eviction import POLICIES, compare, trace
from draftline.engine.bench.lines import result_lines
from draftline.engine.bench.load.workloads import Conversation, Turn, find_workload
from draftline.engine.bench.provenance import conditions
from draftline.engine.cli.bench.output import console

_PREFILL_S, _DECODE_S = 2e-5, 4e-3
"""Seconds a token, about those of a small model on a busy GPU. They decide which turns overlap."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default="agent-session,chat-serving", help="comma-separated")
    parser.add_argument("--preset", default="medium", choices=["small", "medium", "large"])
    parser.add_argument("--conversations", type=int, default=32, help="conversations of each workload (default: 32)")
    parser.add_argument("--groups", type=int, default=4, help="shared prefixes, one for each group (default: 4)")
    parser.add_argument(
        "--singles", type=int, default=60, help="single requests among them, of 1,024 new tokens each (default: 60)"
    )
    parser.add_argument("--think", type=float, default=5.0, help="seconds between turns (default: 5)")
    parser.add_argument("--shares", default="0.1,0.2,0.4", help="sizes of the cache, of all blocks")
    parser.add_argument("--seeds", type=int, default=3, help="traces of each workload (default: 3)")
    add_output(parser)
    arguments = parser.parse_args(argv)
    shares = [float(share) for share in arguments.shares.split(",")]
    rates: dict[tuple[str, float, str], list[float]] = {}
    with result_lines(arguments.output, {**conditions(), "benchmark": "eviction"}) as lines:
        for name in arguments.workloads.split(","):
            own = find_workload(name, arguments.preset)
            each = max(1, arguments.conversations // arguments.groups)
            workload = replace(own, conversations=each, think_s=arguments.think, rate=own.rate / arguments.groups)
            for seed in range(arguments.seeds):
                # Several applications, each with a prefix of its own, arrive side by side.
                drawn = [
                    conversation
                    for group in range(arguments.groups)
                    for conversation in workload.draw(1 << 16, 1000 * seed + group)
                ]
                rng, end = random.Random(seed), max(conversation.arrives_s for conversation in drawn) + 60
                drawn += [
                    Conversation(rng.uniform(0, end), (), (Turn(tuple(rng.choices(range(1 << 16), k=1024)), 64),))
                    for _ in range(arguments.singles)
                ]
                for line in compare(trace(drawn, _PREFILL_S, _DECODE_S, seed), shares):
                    fields = {"workload": own.name, "preset": arguments.preset}
                    lines.write({**fields, "singles": arguments.singles, "seed": seed, **line})
                    key = (own.name, float(str(line["cache_share"])), str(line["policy"]))
                    rates.setdefault(key, []).append(float(str(line["hit_rate"])))
    table = Table(title="hit rate: mean of the seeds, and lowest–highest", title_justify="left")
    for heading in ("workload", "cache", *POLICIES):
        table.add_column(heading, justify="right")
    for workload_name, share in dict.fromkeys((name, share) for name, share, _ in rates):
        found = [rates[workload_name, share, policy] for policy in POLICIES]
        cells = [f"{sum(each) / len(each):.1%} ({min(each):.1%}–{max(each):.1%})" for each in found]
        table.add_row(workload_name, f"{share:.0%}", *cells)
    console().print(table)


if __name__ == "__main__":
    main()
