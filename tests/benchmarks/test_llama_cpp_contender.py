"""llama.cpp as a contender, with a stand-in for its interface, and with the real one if it is installed."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from draftline.engine.bench.batches import BenchmarkRequest, OfflineWorkload
from draftline.engine.bench.contenders.engines import BenchmarkModel
from draftline.engine.bench.contenders.llama_cpp import LlamaCpp

CPU = torch.device("cpu")
SMOLLM2 = BenchmarkModel("smollm2", "smollm2", None)

Entry = tuple[int, int, int, int]
"""Sequence, position, token, and whether its logits are requested."""


class StandIn:
    """The functions of llama.cpp in use, with a model whose next token is the last one plus 1."""

    def __init__(self) -> None:
        self.steps: list[list[Entry]] = []
        self.contexts: list[SimpleNamespace] = []
        self.freed: list[SimpleNamespace] = []

    def llama_backend_init(self) -> None:
        """Nothing to set up."""

    def llama_model_default_params(self) -> None:
        """No parameters."""

    def llama_model_load_from_file(self, path: bytes, params: None) -> bytes:
        return path

    def llama_model_desc(self, model: bytes, buffer: ctypes.Array[ctypes.c_char], size: int) -> None:
        buffer.value = b"llama 1B Q4_1 - Medium"

    def llama_model_get_vocab(self, model: bytes) -> bytes:
        return model

    def llama_vocab_n_tokens(self, vocab: bytes) -> int:
        return 1000

    def llama_sampler_init_greedy(self) -> str:
        return "greedy"

    def llama_context_default_params(self) -> SimpleNamespace:
        return SimpleNamespace()

    def llama_init_from_model(self, model: bytes, params: SimpleNamespace) -> SimpleNamespace:
        self.contexts.append(params)
        return params

    def llama_get_memory(self, context: SimpleNamespace) -> SimpleNamespace:
        return context

    def llama_memory_clear(self, memory: SimpleNamespace, data: bool) -> None:
        self.steps.clear()

    def llama_free(self, context: SimpleNamespace) -> None:
        self.freed.append(context)

    def llama_batch_init(self, tokens: int, embeddings: int, sequences: int) -> SimpleNamespace:
        places = {name: [0] * tokens for name in ("token", "pos", "logits", "n_seq_id")}
        return SimpleNamespace(n_tokens=0, seq_id=[[0] for _ in range(tokens)], **places)

    def llama_batch_free(self, batch: SimpleNamespace) -> None:
        """Nothing to free."""

    def llama_decode(self, context: SimpleNamespace, batch: SimpleNamespace) -> int:
        assert batch.n_tokens <= context.n_batch
        assert batch.n_seq_id[: batch.n_tokens] == [1] * batch.n_tokens
        self.steps.append(
            [
                (batch.seq_id[place][0], batch.pos[place], batch.token[place], batch.logits[place])
                for place in range(batch.n_tokens)
            ]
        )
        return 0

    def llama_sampler_sample(self, sampler: str, context: SimpleNamespace, place: int) -> int:
        _, _, token, wanted = self.steps[-1][place]
        assert wanted
        return token + 1


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "llama_cpp", stand_in)
    return stand_in


@pytest.fixture
def gguf(tmp_path: Path) -> BenchmarkModel:
    path = tmp_path / "model.gguf"
    path.touch()
    return BenchmarkModel("m", str(path), None)


def test_sequences_decode_together_and_each_to_its_length(api: StandIn, gguf: BenchmarkModel) -> None:
    contender = LlamaCpp(gguf, CPU, max_model_len=64)
    assert (contender.weights, contender.vocab_size) == ("Q4_1", 1000)
    contender.run([BenchmarkRequest((10, 20, 30), 3), BenchmarkRequest((50, 60), 1), BenchmarkRequest((70,), 2)], 0.0)
    assert api.steps == [
        [(0, 0, 10, 0), (0, 1, 20, 0), (0, 2, 30, 1), (1, 0, 50, 0), (1, 1, 60, 1), (2, 0, 70, 1)],
        [(0, 3, 31, 1), (2, 1, 71, 1)],
        [(0, 4, 32, 1)],
    ]


def test_a_context_fits_the_requests_and_is_used_again(api: StandIn, gguf: BenchmarkModel) -> None:
    contender = LlamaCpp(gguf, CPU, max_model_len=64)
    two = OfflineWorkload("two", 2, (8, 8), (4, 4)).draw(contender.vocab_size)
    contender.run(two, 0.0)
    contender.run(two, 0.0)
    (context,) = api.contexts
    assert (context.n_ctx, context.n_batch, context.n_seq_max) == (128, 16, 2)
    contender.run(two[:1], 0.0)
    assert api.freed == [context]
    assert (api.contexts[1].n_ctx, api.contexts[1].n_seq_max) == (64, 1)


def test_it_is_greedy_only(api: StandIn, gguf: BenchmarkModel) -> None:
    with pytest.raises(ValueError, match=r"not at temperature 0\.5"):
        LlamaCpp(gguf, CPU, 64).run([BenchmarkRequest((1,), 1)], 0.5)


@pytest.mark.parametrize(
    ("model", "device", "message"),
    [
        (SMOLLM2, torch.device("cuda"), "on a CPU only, not on cuda"),
        (BenchmarkModel("qwen3-0.6b", "folder", {}), CPU, "reads GGUF files, which qwen3-0.6b is not"),
    ],
)
def test_models_and_devices_that_it_cannot_run_are_rejected(
    api: StandIn, model: BenchmarkModel, device: torch.device, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        LlamaCpp(model, device, 64)


def test_a_missing_installation_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(ValueError, match="pip install llama-cpp-python"):
        LlamaCpp(SMOLLM2, CPU, 64)


def test_the_real_llama_cpp_runs() -> None:
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    contender = LlamaCpp(SMOLLM2, CPU, 64)
    assert (contender.weights, contender.vocab_size) == ("Q4_1", 49152)
    # `run` checks the length of every output.
    contender.run(OfflineWorkload("w", 3, (4, 9), (2, 5)).draw(contender.vocab_size), 0.0)
