"""Attacks on a server of its own: what they do to the gaps between the tokens of another client's stream."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from attacks.clients import ATTACKS

CLIENTS = Path(__file__).with_name("clients.py")
MAX_RATIO = 2.0
MAX_GAP_S = 0.15
"""An attack has failed if the median gap has at most doubled, and no gap is longer than this."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """Gaps between the messages of the victim's streams, in seconds."""

    count: int
    p50: float
    p99: float
    max: float

    @staticmethod
    def of(gaps: Sequence[float]) -> Gaps:
        """Summarize gaps, of which there must be some."""
        ordered = sorted(gaps)
        p99 = ordered[int(0.99 * (len(ordered) - 1))]
        return Gaps(len(gaps), round(statistics.median(gaps), 4), round(p99, 4), round(ordered[-1], 4))


def run_attacks(names: Sequence[str], model: str, device: str, seconds: float) -> tuple[dict[str, object], list[str]]:
    """Run attacks one after the other; returns the gaps under each, and those that did harm.

    Args:
        names: keys of ``ATTACKS``.
        model: the model to serve.
        device: where it runs.
        seconds: the length of each attack, and of the quiet time before it.
    """
    report: dict[str, object] = {}
    wrong: list[str] = []
    with _server(model, device) as address:
        _victim(address, 2).communicate()  # the first steps are slower
        for name in names:
            quiet = _gaps(_victim(address, seconds))
            attacker = subprocess.Popen([sys.executable, str(CLIENTS), name, address, str(seconds + 5)])
            attacked = _gaps(_victim(address, seconds))
            attacker.wait()
            report[name] = {"quiet": asdict(quiet), "attacked": asdict(attacked)}
            if attacked.p50 > MAX_RATIO * quiet.p50 or attacked.max > MAX_GAP_S:
                wrong.append(f"under {name}: the gaps are {attacked}, and {quiet} in quiet")
    return report, wrong


def chosen(text: str) -> list[str]:
    """The attacks of the option ``--attack``: names with commas between them, or all."""
    names = list(ATTACKS) if text == "all" else text.split(",")
    unknown = [name for name in names if name not in ATTACKS]
    if unknown:
        raise SystemExit(f"--attack: {', '.join(unknown)}: unknown; there are {', '.join(ATTACKS)} and all")
    return names


def _victim(address: str, seconds: float) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(CLIENTS), "victim", address, str(seconds)], stdout=subprocess.PIPE, text=True
    )


def _gaps(victim: subprocess.Popen[str]) -> Gaps:
    out, _ = victim.communicate()
    return Gaps.of(json.loads(out))


@contextmanager
def _server(model: str, device: str) -> Iterator[str]:
    command = [sys.executable, "-m", "draftline", "serve", "--port", "0", "--model", model, "--device", device]
    server = subprocess.Popen(
        [*command, "--max-num-seqs", "16", "--no-log-requests"], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    try:
        address = server.stdout.readline().split()[-1]
        if "ready" not in server.stdout.readline():
            raise SystemExit("the server does not start")
        yield address
    finally:
        server.terminate()
        server.wait()
