"""What drafting gains over plain decoding, by concurrency, on real prompts; and that it changes no output.

    python benchmarks/speculation.py --path question.jsonl --concurrency 1,4,8
    python benchmarks/speculation.py --path question.jsonl --set drafter=ngram --set draft_tokens=6

The file is Spec-Bench's (https://github.com/hemingkx/Spec-Bench): JSON lines with ``category`` and ``turns``, of which the
first is asked. Two engines of one model answer the same questions in turn, greedily, ``--concurrency`` of them at a time:
one that never drafts, and one that drafts as --set says. Answers that differ are counted. On a GPU a near tie may fall
differently in a verify; on a CPU a single one is a fault, and ends the run with an error.

Results are JSON lines, on standard output or in --output; a table of them goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from provenance import Conditions
from rich.console import Console
from rich.table import Table

from draftline import LLM, RequestOutput, SamplingParams


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt of the dataset."""

    category: str
    text: str


@dataclass(frozen=True, slots=True)
class Answers:
    """One engine's answers to all questions, and the seconds that they took."""

    outputs: tuple[RequestOutput, ...]
    seconds: float

    @property
    def tokens(self) -> int:
        """Generated tokens."""
        return sum(len(output.outputs[0].token_ids) for output in self.outputs)


def read_spec_bench(path: Path, limit: int | None) -> list[Question]:
    """The first turn of each question; of more than ``limit``, as many, spread evenly over the file.

    Raises:
        ValueError: a line is not a question. The message names it.
    """
    questions: list[Question] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            fields = json.loads(line)
            questions.append(Question(fields["category"], fields["turns"][0]))
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise ValueError(f"{path}:{number}: not a question of Spec-Bench: {error!r}") from error
    if limit is None or limit >= len(questions):
        return questions
    return [questions[i * len(questions) // limit] for i in range(limit)]


def ask(llm: LLM, questions: Sequence[Question], concurrency: int, max_tokens: int) -> Answers:
    """Ask all questions, ``concurrency`` at a time."""
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens)
    outputs: list[RequestOutput] = []
    start = time.perf_counter()
    for first in range(0, len(questions), concurrency):
        chats = [[{"role": "user", "content": q.text}] for q in questions[first : first + concurrency]]
        outputs += llm.chat(chats, sampling, use_tqdm=False)
    return Answers(tuple(outputs), time.perf_counter() - start)


def compare(plain: Answers, drafted: Answers) -> dict[str, Any]:
    """What drafting gained, and how its drafts fared."""
    steps = accepted = proposed = 0
    by_position: Counter[int] = Counter()
    for output in drafted.outputs:
        finished = output.outputs[0].finished
        assert finished is not None
        stats = finished.speculation
        steps += stats.steps
        proposed += stats.drafted
        accepted += stats.accepted
        by_position.update(dict(enumerate(stats.accepted_by_position)))
    pairs = zip(plain.outputs, drafted.outputs, strict=True)
    return {
        "plain_tokens_per_s": plain.tokens / plain.seconds,
        "tokens_per_s": drafted.tokens / drafted.seconds,
        "speedup": drafted.tokens / drafted.seconds / (plain.tokens / plain.seconds),
        "tokens": drafted.tokens,
        "steps": steps,
        "tokens_per_step": drafted.tokens / steps,
        "drafted": proposed,
        "accepted": accepted,
        "accepted_by_position": [by_position[place] for place in range(len(by_position))],
        "different_answers": sum(a.outputs[0].token_ids != b.outputs[0].token_ids for a, b in pairs),
    }


def table(results: Sequence[Mapping[str, Any]]) -> Table:
    """The results as a person reads them."""
    shown = Table(
        "concurrency", "plain tokens/s", "drafting tokens/s", "speed-up", "tokens a step", "accepted", "differ"
    )
    for result in results:
        share = f"{result['accepted']} of {result['drafted']}"
        shown.add_row(
            str(result["concurrency"]),
            f"{result['plain_tokens_per_s']:,.1f}",
            f"{result['tokens_per_s']:,.1f}",
            f"{result['speedup']:.2f}×",
            f"{result['tokens_per_step']:.2f}",
            share,
            str(result["different_answers"]),
        )
    return shown


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", choices=["spec-bench"], default="spec-bench", help="what --path holds")
    parser.add_argument("--path", type=Path, required=True, help="the dataset's file")
    parser.add_argument("--limit", type=int, help="ask only as many questions, spread over the file")
    parser.add_argument("--model", default="smollm2", help="an HF folder, a .gguf file or a hub id (default: smollm2)")
    parser.add_argument("--concurrency", default="1,4,8", help="comma-separated (default: 1,4,8)")
    parser.add_argument("--max-tokens", type=int, default=128, help="longest answer (default: 128)")
    parser.add_argument(
        "--set", action="append", default=["drafter=ngram"], metavar="OPTION=VALUE",
        help="an EngineConfig option of the drafting engine; repeatable (default: drafter=ngram)",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, help="append the JSON lines to this file instead of standard output")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    arguments = _arguments(argv)
    options = {name: yaml.safe_load(value) for name, _, value in (setting.partition("=") for setting in arguments.set)}
    try:
        questions = read_spec_bench(arguments.path, arguments.limit)
    except (OSError, ValueError) as error:
        raise SystemExit(str(error)) from None
    common = {"prefix_caching": False, **{k: v for k, v in options.items() if not k.startswith("draft")}}
    plain, drafting = LLM(arguments.model, drafter="none", **common), LLM(arguments.model, **{**common, **options})
    device = torch.device(plain.info.device)
    conditions = Conditions.now(device)
    results: list[dict[str, Any]] = []
    with arguments.output.open("a") if arguments.output else nullcontext(sys.stdout) as out:
        for concurrency in map(int, arguments.concurrency.split(",")):
            for llm in (plain, drafting):  # warm up, and let acceptance be learned as it would be in use
                ask(llm, questions[:concurrency], concurrency, 16)
            first, second = (ask(llm, questions, concurrency, arguments.max_tokens) for llm in (plain, drafting))
            result = {
                "date": conditions.date,
                "machine": conditions.machine,
                "commit": conditions.commit,
                "model": arguments.model,
                "dataset": arguments.dataset,
                "questions": len(questions),
                "options": options,
                "concurrency": concurrency,
                **compare(first, second),
            }
            results.append(result)
            out.write(json.dumps(result) + "\n")
            out.flush()
    Console(stderr=True, width=120).print(table(results))
    if device.type == "cpu" and any(result["different_answers"] for result in results):
        raise SystemExit("drafting changed an answer: that is a fault of the engine")


if __name__ == "__main__":
    main()
