"""A tiny model for engines in processes of their own, and what collects their updates."""

from __future__ import annotations

import json
import queue
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from patience import PATIENCE_S

from draftline.engine.bench.contenders.placeholder_tokenizer import write_placeholder_tokenizer
from draftline.engine.config import EngineConfig
from draftline.engine.outputs import Delta, Failed, Update
from draftline.engine.params import SamplingParams
from draftline.engine.process.remote_engine import RemoteEngine
from draftline.engine.process.replicas import start_replicas
from draftline.engine.protocol import EngineClient, GenerateRequest

SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 0,
}

ENDLESS = SamplingParams(temperature=0, max_tokens=8000, ignore_eos=True)
"""Has not ended when a test that has to wait for a processor does the next thing."""


def tiny_engine_config(path: Path) -> EngineConfig:
    """The options of an engine of a tiny random model, which is written to the folder ``path``."""
    (path / "config.json").write_text(json.dumps(SHAPE))
    write_placeholder_tokenizer(path, 512)
    return EngineConfig(
        model=str(path), load_format="dummy", device="cpu", dtype="float32", max_num_seqs=2, max_waiting=3,
        kv_cache_memory_gib=0.05,
    )  # fmt: skip


@contextmanager
def living_engine(config: EngineConfig, replicas: int = 1) -> Iterator[Callable[[], RemoteEngine]]:
    """An engine whose processes run: that of the call before, unless a test has ended one of them. Starting it takes seconds."""
    started: list[RemoteEngine] = []

    def engine() -> RemoteEngine:
        if not started or not all(started[-1].replicas_running()):
            started.append(RemoteEngine(config, start_replicas(config, replicas)))
        return started[-1]

    yield engine
    for each in started:
        in_order = all(each.replicas_running())
        each.close()
        if in_order:
            assert each.stopped.result(PATIENCE_S) is None


class Inbox:
    """Collects one engine's updates, from any thread."""

    def __init__(self, engine: EngineClient) -> None:
        self.engine = engine
        self.updates: queue.SimpleQueue[tuple[str, Update]] = queue.SimpleQueue()

    def sink(self, updates: Sequence[tuple[str, Update]]) -> None:
        for update in updates:
            self.updates.put(update)

    def submit(self, name: str, prompt: Sequence[int], sampling: SamplingParams) -> None:
        submitted = self.engine.submit(name, GenerateRequest(tuple(prompt), sampling), self.sink)
        assert submitted.prompt_token_ids == tuple(prompt)

    def tokens(self, count: int) -> dict[str, tuple[int, ...]]:
        """The tokens of ``count`` requests, once they have ended."""
        tokens: dict[str, tuple[int, ...]] = {}
        while count:
            name, update = self.updates.get(timeout=PATIENCE_S)
            if isinstance(update, Delta):
                tokens[name] = tokens.get(name, ()) + update.token_ids
            if isinstance(update, Failed):
                raise update.error
            count -= update.ends_output
        return tokens
