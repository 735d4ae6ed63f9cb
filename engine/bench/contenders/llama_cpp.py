"""``LlamaCpp``: llama.cpp under measurement, through its C interface, with hardly any Python between its steps.

It is not a dependency of this project: ``pip install llama-cpp-python`` compiles it for the machine.
"""

from __future__ import annotations

import ctypes
import importlib
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from typing_extensions import override

from draftline.engine.bench.batches import BenchmarkRequest
from draftline.engine.bench.contenders.engines import BenchmarkModel, Contender, check_length
from draftline.models.checkpoints.resolve import SourceKind, resolve_model


@dataclass(frozen=True, slots=True)
class _Piece:
    """Consecutive tokens of one sequence.

    Attributes:
        sequence: the index of the sequence.
        position: the position of the first token.
        tokens: one or more token ids.
    """

    sequence: int
    position: int
    tokens: Sequence[int]


class LlamaCpp(Contender):
    """llama.cpp on the cores of this process, with the GGUF file's own format, a float16 cache and no drafts.

    All requests are sequences of one context and decode together. Each number of requests needs a new context, so its
    first run takes longer.
    """

    name = "llama.cpp"
    options: Mapping[str, object] = MappingProxyType({})
    dtype = "float32"  # between products, whose kernels round each block of 32 activations to eight bits

    def __init__(self, model: BenchmarkModel, device: torch.device, max_model_len: int) -> None:
        """Load ``model``, for sequences of up to ``max_model_len`` tokens.

        Raises:
            ValueError: llama-cpp-python is not installed, the model is not a GGUF file, or the device is not a CPU.
        """
        try:
            llama_cpp = importlib.import_module("llama_cpp")
        except ImportError as error:
            raise ValueError(f"llama.cpp: {error}; pip install llama-cpp-python compiles it") from None
        if device.type != "cpu":
            raise ValueError(f"llama.cpp is measured on a CPU only, not on {device}")
        source = None if model.shape is not None else resolve_model(model.checkpoint)
        if source is None or source.kind is not SourceKind.GGUF:
            raise ValueError(f"llama.cpp reads GGUF files, which {model.name} is not")
        self.device = device
        self._api: Any = llama_cpp
        self._max_model_len = max_model_len
        logging.getLogger("llama-cpp-python").setLevel(logging.ERROR)
        self._api.llama_backend_init()
        path = os.fsencode(source.path)
        self._model = self._api.llama_model_load_from_file(path, self._api.llama_model_default_params())
        if not self._model:
            raise ValueError(f"llama.cpp cannot load {source.path}")
        self.weights = self._description().split()[2]
        self.vocab_size = int(self._api.llama_vocab_n_tokens(self._api.llama_model_get_vocab(self._model)))
        self._sampler = self._api.llama_sampler_init_greedy()
        self._context: Any = None
        self._batch: Any = None
        self._sizes = (0, 0)

    @override
    def run(self, requests: Sequence[BenchmarkRequest], temperature: float) -> None:
        if temperature:
            raise ValueError(f"llama.cpp is measured with greedy workloads, not at temperature {temperature:g}")
        self._prepare_context(requests)
        self._api.llama_memory_clear(self._api.llama_get_memory(self._context), False)
        outputs: list[list[int]] = [[] for _ in requests]
        pieces = [_Piece(sequence, 0, request.prompt) for sequence, request in enumerate(requests)]
        while pieces:
            for piece, token in zip(pieces, self._step(pieces), strict=True):
                outputs[piece.sequence].append(token)
            pieces = [
                _Piece(piece.sequence, piece.position + len(piece.tokens), outputs[piece.sequence][-1:])
                for piece in pieces
                if len(outputs[piece.sequence]) < requests[piece.sequence].output_len
            ]
        for request, output in zip(requests, outputs, strict=True):
            check_length(self.name, request, len(output))

    def _step(self, pieces: Sequence[_Piece]) -> list[int]:
        """Decode the pieces together; return the token after each."""
        batch = self._batch
        index = 0
        lasts = []
        for piece in pieces:
            for offset, token in enumerate(piece.tokens):
                batch.token[index], batch.pos[index], batch.logits[index] = token, piece.position + offset, 0
                batch.n_seq_id[index], batch.seq_id[index][0] = 1, piece.sequence
                index += 1
            batch.logits[index - 1] = 1
            lasts.append(index - 1)
        batch.n_tokens = index
        status = self._api.llama_decode(self._context, batch)
        if status:
            raise RuntimeError(f"llama.cpp: llama_decode returned {status}")
        return [int(self._api.llama_sampler_sample(self._sampler, self._context, last)) for last in lasts]

    def _prepare_context(self, requests: Sequence[BenchmarkRequest]) -> None:
        sizes = (len(requests), sum(len(request.prompt) for request in requests))
        if sizes == self._sizes:
            return
        if self._context is not None:
            self._api.llama_batch_free(self._batch)
            self._api.llama_free(self._context)
        sequences, prompt_tokens = self._sizes = sizes
        params = self._api.llama_context_default_params()
        params.n_ctx = sequences * self._max_model_len
        params.n_batch = prompt_tokens
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = len(os.sched_getaffinity(0))
        self._context = self._api.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp: no context for {sequences} sequences of {self._max_model_len} tokens")
        self._batch = self._api.llama_batch_init(prompt_tokens, 0, 1)

    def _description(self) -> str:
        """A description like ``llama 135M Q4_1 - Medium``."""
        buffer = ctypes.create_string_buffer(256)
        self._api.llama_model_desc(self._model, buffer, len(buffer))
        return buffer.value.decode()
