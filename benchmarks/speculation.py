r"""What drafting gains over plain decoding in the same run, by concurrency; and that it changes no output.

    python benchmarks/speculation.py --dataset spec-bench --path question.jsonl --concurrency 1,4,8
    python benchmarks/speculation.py --dataset extraction --set drafter=ngram --set draft_tokens=6
    python benchmarks/speculation.py --dataset random --shape llama-3.1-8b --draft-shape llama-3.2-1b \
        --set draft_length=fixed --acceptance-length 3.5

Two engines of one model answer the same requests in turn, greedily, always ``--concurrency`` of them at a time: one that
never drafts, and one that drafts as --set says. Answers that differ are counted. On a GPU a near tie may fall differently
in a verify; on a CPU a single one is a fault, and ends the run with an error.

- ``spec-bench``: the first turns of Spec-Bench's question file (https://github.com/hemingkx/Spec-Bench), JSON lines with
  ``category`` and ``turns``.
- ``extraction``: texts to be turned into JSON records, made by this benchmark.
- ``random``: random tokens and fixed lengths, for random weights. Nothing there is worth guessing, so the acceptance is
  synthetic: each draft is accepted by chance, at a rate that gives --acceptance-length (the number of tokens that a verify
  decides on average, if all draft_tokens are drafted). Such results are marked ``synthetic``.

Results are JSON lines, on standard output or in --output; a table of them goes to standard error, a picture to --plot.
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from common.contenders import Model
from common.provenance import Conditions
from common.shapes import find_shape
from drafts.plot import plot
from drafts.prompts import chats, extraction, random_tokens, read_spec_bench
from rich.console import Console
from rich.table import Table

from draftline.engine.config import EngineConfig
from draftline.engine.outputs import Delta, Failed, Finished, Update
from draftline.engine.protocol import GenerateRequest
from draftline.engine.stats import DrafterStats
from draftline.engine.threaded_engine import ThreadedEngine, start_engine
from draftline.spec.synthetic import chance_of_length


@dataclass(frozen=True, slots=True)
class Answers:
    """One engine's answers to all requests.

    Attributes:
        tokens: each answer's token ids, in the requests' order.
        seconds: wall time of them all.
        drafts: what the drafter did meanwhile.
    """

    tokens: tuple[tuple[int, ...], ...]
    seconds: float
    drafts: DrafterStats

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens a second."""
        return sum(map(len, self.tokens)) / self.seconds


def ask(engine: ThreadedEngine, requests: Sequence[GenerateRequest], concurrency: int) -> Answers:
    """Answer all requests, always ``concurrency`` of them at a time.

    Raises:
        RuntimeError: a request failed.
    """
    news: queue.SimpleQueue[tuple[str, Update]] = queue.SimpleQueue()

    def sink(updates: Sequence[tuple[str, Update]]) -> None:
        for update in updates:
            news.put(update)

    before = engine.stats().drafter
    answers: list[list[int]] = [[] for _ in requests]
    start = time.perf_counter()
    submitted = finished = 0
    while finished < len(requests):
        while submitted < len(requests) and submitted - finished < concurrency:
            engine.submit(str(submitted), requests[submitted], sink)
            submitted += 1
        name, update = news.get()
        match update:
            case Delta():
                answers[int(name)] += update.token_ids
            case Failed():
                raise RuntimeError(f"request {name} failed") from update.error
            case Finished():
                finished += 1
    seconds = time.perf_counter() - start
    return Answers(tuple(map(tuple, answers)), seconds, since(engine.stats().drafter, before))


def since(now: DrafterStats, before: DrafterStats) -> DrafterStats:
    """What a drafter has done between two moments."""

    def difference(later: tuple[int, ...], earlier: tuple[int, ...]) -> tuple[int, ...]:
        padded = (*earlier, *[0] * (len(later) - len(earlier)))
        return tuple(a - b for a, b in zip(later, padded, strict=True))

    later, earlier = asdict(now.times), asdict(before.times)
    return DrafterStats(
        name=now.name,
        steps=now.steps - before.steps,
        drafted_by_position=difference(now.drafted_by_position, before.drafted_by_position),
        accepted_by_position=difference(now.accepted_by_position, before.accepted_by_position),
        times=type(now.times)(**{name: later[name] - earlier[name] for name in later}),
    )


def compare(plain: Answers, drafted: Answers) -> dict[str, Any]:
    """What drafting gained, and how its drafts fared."""
    drafts = drafted.drafts
    tokens = sum(map(len, drafted.tokens))
    return {
        "drafter": drafts.name,
        "plain_tokens_per_s": plain.tokens_per_s,
        "tokens_per_s": drafted.tokens_per_s,
        "speedup": drafted.tokens_per_s / plain.tokens_per_s,
        "tokens": tokens,
        "drafted_steps": drafts.steps,
        "acceptance_length": drafts.acceptance_length,
        "tokens_in_drafted_steps": (drafts.steps + drafts.accepted) / tokens,
        "drafted": drafts.drafted,
        "accepted": drafts.accepted,
        "drafted_by_position": list(drafts.drafted_by_position),
        "accepted_by_position": list(drafts.accepted_by_position),
        "times": asdict(drafts.times),
        "different_answers": sum(a != b for a, b in zip(plain.tokens, drafted.tokens, strict=True)),
    }


def table(results: Sequence[Mapping[str, Any]]) -> Table:
    """The results as a person reads them."""
    synthetic = any(result["synthetic"] for result in results)
    first = results[0]
    drafts = "SYNTHETIC acceptance" if synthetic else first["drafter"]
    shown = Table(title=f"{first['model']}, {first['dataset']}, {drafts}", title_justify="left")
    for name in ("at once", "plain tokens/s", "drafting tokens/s", "speed-up", "acceptance length", "accepted"):
        shown.add_column(name, justify="right")
    for name in ("draft s", "verify s", "sample s", "differ"):
        shown.add_column(name, justify="right")
    for result in results:
        times = result["times"]
        shown.add_row(
            str(result["concurrency"]),
            f"{result['plain_tokens_per_s']:,.1f}",
            f"{result['tokens_per_s']:,.1f}",
            f"{result['speedup']:.2f}×",
            f"{result['acceptance_length']:.2f}",
            f"{result['accepted']} of {result['drafted']}",
            *(f"{times[name]:.2f}" for name in ("draft_s", "verify_s", "sample_s")),
            "–" if result["synthetic"] else str(result["different_answers"]),
        )
    return shown


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", choices=["spec-bench", "extraction", "random"], default="spec-bench")
    parser.add_argument("--path", type=Path, help="Spec-Bench's file")
    parser.add_argument("--limit", type=int, help="ask only as many questions (default: all; of extraction 64)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--model", default="smollm2", help="an HF folder, a .gguf file or a hub id (default: smollm2)")
    what.add_argument("--shape", help="random weights in the shape of this model, or of a config.json")
    parser.add_argument("--draft-shape", help="the same for the draft model")
    parser.add_argument("--acceptance-length", type=float, help="for random: tokens a verify decides on average")
    parser.add_argument("--concurrency", default="1,4,8", help="comma-separated (default: 1,4,8)")
    parser.add_argument("--max-tokens", type=int, default=128, help="longest answer (default: 128)")
    parser.add_argument("--rounds", type=int, default=1, help="how often; each engine's fastest counts (default: 1)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="OPTION=VALUE",
        help="an EngineConfig option; those that begin with draft are for the drafting engine only; repeatable",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, help="append the JSON lines to this file instead of standard output")
    parser.add_argument("--plot", type=Path, help="draw the gains to this SVG file")
    arguments = parser.parse_args(argv)
    if (arguments.dataset == "spec-bench") != (arguments.path is not None):
        parser.error("--path: spec-bench needs it, and nothing else takes it")
    if (arguments.dataset == "random") != (arguments.acceptance_length is not None):
        parser.error("--acceptance-length: random needs it, and nothing else takes it")
    if arguments.dataset != "random" and (arguments.shape or arguments.draft_shape):
        parser.error("--shape, --draft-shape: random weights can only be asked random tokens")
    return arguments


def _configurations(arguments: argparse.Namespace, folder: Path) -> tuple[EngineConfig, EngineConfig]:
    """Of the engine that never drafts, and of the one that does."""
    options = {name: yaml.safe_load(value) for name, _, value in (setting.partition("=") for setting in arguments.set)}
    most = max(map(int, arguments.concurrency.split(",")))
    common: dict[str, Any] = {"model": arguments.model, "prefix_caching": False, "max_num_seqs": most}
    drafting: dict[str, Any] = {}
    if arguments.shape is not None:
        model = _shape(arguments.shape, folder / "target")
        common |= {"model": model.checkpoint, "load_format": "dummy", "max_model_len": 1024}
    if arguments.draft_shape is not None:
        drafting["draft_model"] = _shape(arguments.draft_shape, folder / "draft").checkpoint
    if torch.cuda.is_available():
        common["kv_cache_memory_gib"] = 8  # two engines share the device
    common |= {name: value for name, value in options.items() if not name.startswith("draft")}
    drafting |= {name: value for name, value in options.items() if name.startswith("draft")}
    if not drafting.keys() & {"drafter", "draft_model"}:
        drafting["drafter"] = "ngram"
    config = EngineConfig.model_validate(common | drafting)
    if arguments.acceptance_length is not None:
        chance = chance_of_length(arguments.acceptance_length, config.draft_tokens)
        config = EngineConfig.model_validate(common | drafting | {"synthetic_acceptance": chance})
    return EngineConfig.model_validate(common | {"drafter": "none"}), config


def _shape(name: str, folder: Path) -> Model:
    folder.mkdir()
    return Model.of_shape(name, find_shape(name), folder)


def _requests(arguments: argparse.Namespace, concurrency: int, vocab_size: int) -> list[GenerateRequest]:
    if arguments.dataset == "random":
        return random_tokens(concurrency, vocab_size)
    if arguments.dataset == "extraction":
        return chats(extraction(arguments.limit or 64), arguments.max_tokens)
    return chats(read_spec_bench(arguments.path, arguments.limit), arguments.max_tokens)


def run(
    arguments: argparse.Namespace, plain: ThreadedEngine, drafting: ThreadedEngine, concurrency: int
) -> dict[str, Any]:
    """Compare the engines with so many requests at a time. Acceptance is learned before anything is timed."""
    requests = _requests(arguments, concurrency, plain.info.config.vocab_size)
    engines = (plain, drafting)
    for engine in engines:
        ask(engine, requests[: max(concurrency, 16)], concurrency)
    rounds = [[ask(engine, requests, concurrency) for engine in engines] for _ in range(arguments.rounds)]
    best = [min(answers, key=lambda one: one.seconds) for answers in zip(*rounds, strict=True)]
    return {"requests": len(requests), "concurrency": concurrency, **compare(best[0], best[1])}


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    arguments = _arguments(argv)
    results: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        arguments.output.open("a") if arguments.output else nullcontext(sys.stdout) as out,
    ):
        try:
            without, config = _configurations(arguments, Path(folder))
            _requests(arguments, 1, 1)
        except (OSError, ValueError) as error:
            raise SystemExit(str(error)) from None
        with start_engine(without) as plain, start_engine(config) as drafting:
            conditions = Conditions.now(torch.device(plain.info.device))
            for concurrency in map(int, arguments.concurrency.split(",")):
                result = {
                    "date": conditions.date,
                    "machine": conditions.machine,
                    "commit": conditions.commit,
                    "model": arguments.shape or arguments.model,
                    "draft_model": arguments.draft_shape or config.draft_model,
                    "dataset": arguments.dataset,
                    "synthetic": config.synthetic_acceptance is not None,
                    "options": config.model_dump(exclude_defaults=True, exclude={"model", "draft_model"}),
                    **run(arguments, plain, drafting, concurrency),
                }
                results.append(result)
                out.write(json.dumps(result) + "\n")
                out.flush()
    Console(stderr=True, width=140).print(table(results))
    if arguments.plot is not None:
        plot(results, arguments.plot)
    on_cpu = plain.info.device == "cpu"
    if on_cpu and any(result["different_answers"] for result in results if not result["synthetic"]):
        raise SystemExit("drafting changed an answer: that is a fault of the engine")


if __name__ == "__main__":
    main()
