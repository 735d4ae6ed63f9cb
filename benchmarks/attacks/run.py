"""Attacks on a server of its own: what they do to the gaps between the tokens of another client's stream."""

from __future__ import annotations

import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml
from common.server import server
from rich.console import Console
from rich.table import Table

from attacks.clients import ATTACKS
from draftline.engine.config import EngineConfig

CLIENTS = Path(__file__).with_name("clients.py")
MAX_RATIO = 2.0
"""The longest median gap under attack, relative to the quiet one."""

MAX_GAP_S = 0.15
"""The longest gap under attack."""

INTER_TOKEN_TARGET_S: float = EngineConfig.model_fields["inter_token_target"].default
"""Prompts are work that the server promises to do: under them, the median
gap may be this long."""

MAX_FIRST_TOKEN_S = 1.5
"""The longest wait of a single request for its first token behind another caller's 200."""


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


@dataclass(frozen=True, slots=True)
class Round:
    """One round of an attack: the victim's gaps before and during it."""

    attack: str
    quiet: Gaps
    attacked: Gaps

    @property
    def max_p50(self) -> float:
        """The bound on the median gap during the attack, in seconds."""
        twice = MAX_RATIO * self.quiet.p50
        return max(twice, INTER_TOKEN_TARGET_S) if self.attack == "prompts" else twice

    @property
    def passes(self) -> bool:
        """Whether the attack did no harm."""
        return self.attacked.p50 <= self.max_p50 and self.attacked.max <= MAX_GAP_S

    def __str__(self) -> str:
        gaps = [f"{1000 * gaps.p50:.0f} and at most {1000 * gaps.max:.0f} ms" for gaps in (self.quiet, self.attacked)]
        return f"{self.attack}: gaps of {gaps[0]} in quiet, {gaps[1]} under attack: {'pass' if self.passes else 'FAIL'}"


def run_attacks(names: Sequence[str], rounds: int, model: str, device: str, seconds: float) -> Iterator[Round]:
    """Run attacks one after the other, and all of them again in each round. Yields each when it has ended.

    Args:
        names: keys of ``ATTACKS``.
        rounds: how often.
        model: the model to serve.
        device: where it runs.
        seconds: the length of each attack, and of the quiet time before it.
    """
    with server({"model": model, "device": device, "max_num_seqs": 16}) as served:
        address = served.grpc
        _victim(address, 2).communicate()  # the first steps are slower
        for _ in range(rounds):
            for name in names:
                quiet = _gaps(_victim(address, seconds))
                attacker = _client(name, address, seconds + 5)
                attacked = _gaps(_victim(address, seconds))
                attacker.wait()
                yield Round(name, quiet, attacked)


def run_crowd(model: str, device: str) -> list[float]:
    """The seconds that single requests wait for their first token, while another caller's 200 requests run or wait."""
    names = ("crowd", "single")
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as tokens:
        entries = [{"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest()} for name in names]
        yaml.safe_dump({"tokens": entries}, tokens)
        tokens.flush()
        with server({"model": model, "device": device, "tokens": tokens.name}) as served:
            address = served.grpc
            _client("single", address, 5, piped=True).communicate()
            crowd = _client("crowd", address, 120, piped=True)
            assert crowd.stdout is not None
            crowd.stdout.readline()
            out, _ = _client("single", address, 20, piped=True).communicate()
            if crowd.poll() is not None:
                raise SystemExit("--crowd: the 200 requests ended before the single ones")
            crowd.communicate()
    waits: list[float] = json.loads(out)
    return waits


def report(rounds: Sequence[Round], waits: Sequence[float] | None) -> tuple[dict[str, object], list[str]]:
    """The figures for the JSON line, and the checks that failed. A table of them goes to standard error."""
    table = Table(title="Gaps in a stream, in ms")
    for column in ("attack", "quiet p50", "p99", "max", "attacked p50", "p99", "max", "ratio", "bounds", ""):
        table.add_column(column, justify="left" if column in ("attack", "") else "right")
    wrong: list[str] = []
    for each in rounds:
        times = [
            f"{1000 * value:.0f}" for gaps in (each.quiet, each.attacked) for value in (gaps.p50, gaps.p99, gaps.max)
        ]
        bounds = f"{1000 * each.max_p50:.0f}, {1000 * MAX_GAP_S:.0f}"
        verdict = "pass" if each.passes else "FAIL"
        table.add_row(each.attack, *times, f"{each.attacked.p50 / each.quiet.p50:.2f}", bounds, verdict)
        if not each.passes:
            wrong.append(f"under {each.attack}: the gaps are {each.attacked}, and {each.quiet} in quiet")
    console = Console(stderr=True, width=120)
    if rounds:
        console.print(table)
    figures: dict[str, object] = {"gaps_under_attack": [asdict(each) for each in rounds]}
    if waits is not None:
        verdict = "pass" if max(waits) <= MAX_FIRST_TOKEN_S else "FAIL"
        console.print(
            f"first tokens of {len(waits)} single requests behind another caller's 200: median "
            f"{statistics.median(waits):.2f} s, longest {max(waits):.2f} s, bound {MAX_FIRST_TOKEN_S} s: {verdict}"
        )
        figures["first_token_s_behind_200"] = [round(wait, 3) for wait in waits]
        if verdict != "pass":
            wrong.append(f"behind another caller's 200 requests, a first token came after {max(waits):.2f} s")
    return figures, wrong


def chosen(text: str) -> list[str]:
    """The attacks of the option ``--attack``: names with commas between them, or all."""
    names = list(ATTACKS) if text == "all" else text.split(",") if text else []
    unknown = [name for name in names if name not in ATTACKS]
    if unknown:
        raise SystemExit(f"--attack: {', '.join(unknown)}: unknown; there are {', '.join(ATTACKS)} and all")
    return names


def _client(kind: str, address: str, seconds: float, *, piped: bool = False) -> subprocess.Popen[str]:
    command = [sys.executable, str(CLIENTS), kind, address, str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE if piped else None, text=True)


def _victim(address: str, seconds: float) -> subprocess.Popen[str]:
    return _client("victim", address, seconds, piped=True)


def _gaps(victim: subprocess.Popen[str]) -> Gaps:
    out, _ = victim.communicate()
    return Gaps.of(json.loads(out))
