"""``load_draft``: the weights that ``draft_model`` names, which are a small model's or a head's.

What differs between the two is here: how much memory a block of their caches takes, and what their caches need.
"""

from __future__ import annotations

from typing import Protocol

import torch
from typing_extensions import override

from draftline.engine.config import EngineConfig
from draftline.engine.drafting.cache import CacheNeeds, known_tokens, tokens_with_states
from draftline.engine.request.language import configured_tokenizer
from draftline.engine.runner.device import check_weights
from draftline.engine.runner.memory import block_bytes, memory_explained, weight_bytes
from draftline.kernels.batch import KVCache
from draftline.kernels.collectives import ALONE, Collectives
from draftline.kernels.constraints import ConstraintTable
from draftline.kernels.ops import Ops
from draftline.models.checkpoints.checkpoint import Checkpoint
from draftline.models.checkpoints.padded import FittedVocabulary
from draftline.models.config import ModelConfig
from draftline.models.errors import ModelLoadError
from draftline.models.families import build_model
from draftline.models.heads.checkpoint import open_head
from draftline.models.heads.eagle3 import Eagle3Head
from draftline.models.loader import open_draft_checkpoint
from draftline.models.model import Model
from draftline.models.parallel.shard import WHOLE, PartialShard, Shard
from draftline.models.parallel.split import fits
from draftline.models.tokenization.tokenizer import load_tokenizer
from draftline.spec.draft_model import ROUND_BEGINS_WITH, DraftModel, SharedDraftModel
from draftline.spec.drafter import Drafter
from draftline.spec.eagle3 import Eagle3, round_begins_with
from draftline.spec.forced import ForcedFirst
from draftline.spec.lookup_first import LookupFirst, LookupInstead
from draftline.spec.parallel_head import ParallelHead

_WORTH_TWO_SUMS = 20 << 20
"""Bytes that take a GPU longer to read than two sums between ranks take: 5 µs at 4 TB/s. A layer counts with its share
of the head."""


_FUSION = "fc.weight"
"""A tensor that every EAGLE head has, and no model."""


class LoadedDraft(Protocol):
    """The weights of a drafter, which is built once it is known how many blocks there are."""

    @property
    def facts(self) -> tuple[str, ...]:
        """What the duration of its passes depends on."""
        ...

    @property
    def read_layers(self) -> tuple[int, ...]:
        """The target's hidden states that it reads; see `HiddenStateSink.layers`."""
        ...

    def block_bytes(self, block_size: int) -> int:
        """Bytes of what it keeps for the tokens of one cache block."""
        ...

    def needs(self, draft_tokens: int) -> CacheNeeds:
        """What its cache needs, where a round has at most ``draft_tokens`` drafts."""
        ...

    def build(self, config: EngineConfig, blocks: int, ops: Ops, constraints: ConstraintTable) -> Drafter:
        """The drafter with an empty cache of ``blocks`` blocks; see `DraftModel` for the other arguments."""
        ...


class LoadedDraftModel(LoadedDraft):
    """A model with the target's vocabulary, or a rank's part of it."""

    def __init__(self, model: Model, collectives: Collectives) -> None:
        """``model`` is on the target's device; ``collectives`` are of the ranks that share it."""
        self._model, self._collectives = model, collectives

    @property
    @override
    def facts(self) -> tuple[str, ...]:
        return repr(self._model.config), self._model.quantization

    @property
    @override
    def read_layers(self) -> tuple[int, ...]:
        return ()

    @override
    def block_bytes(self, block_size: int) -> int:
        return block_bytes(self._model.config, block_size, self._model.cache_dtype)

    @override
    def needs(self, draft_tokens: int) -> CacheNeeds:
        return CacheNeeds(self._model.config.max_positions, ROUND_BEGINS_WITH, known_tokens)

    @override
    def build(self, config: EngineConfig, blocks: int, ops: Ops, constraints: ConstraintTable) -> Drafter:
        model = self._model
        cache = _cache(model.config, blocks, config.block_size, model.cache_dtype, model.device)
        if self._collectives.size == 1:
            return DraftModel(model, cache, ops, config.draft_tokens, constraints)
        return SharedDraftModel(model, cache, ops, config.draft_tokens, constraints, self._collectives)


class LoadedHead(LoadedDraft):
    """A head, which also keeps the target's hidden states."""

    def __init__(self, head: Eagle3Head) -> None:
        """``head`` is on the target's device."""
        self._head = head

    @property
    @override
    def facts(self) -> tuple[str, ...]:
        return (repr(self._head.config), self._head.quantization)

    @property
    @override
    def read_layers(self) -> tuple[int, ...]:
        return self._head.config.target_layers

    @override
    def block_bytes(self, block_size: int) -> int:
        layer, dtype = self._head.config.layer, self._head.cache_dtype
        return block_bytes(layer, block_size, dtype) + block_size * layer.hidden_size * dtype.itemsize

    @override
    def needs(self, draft_tokens: int) -> CacheNeeds:
        return CacheNeeds(self._head.config.layer.max_positions, round_begins_with(draft_tokens), tokens_with_states)

    @override
    def build(self, config: EngineConfig, blocks: int, ops: Ops, constraints: ConstraintTable) -> Drafter:
        head = self._head
        kind = ParallelHead if head.config.parallel_drafts > 1 else Eagle3
        cache = _cache(head.config.layer, blocks, config.block_size, head.cache_dtype, head.device)
        drafter: Drafter = kind(head, cache, ops, config.draft_tokens, constraints)
        if config.drafter != "auto":
            return drafter
        lookup = LookupInstead if head.device.type == "cpu" else LookupFirst
        return ForcedFirst(lookup(drafter, ops), ops, constraints)


def load_draft(
    config: EngineConfig,
    target: Checkpoint,
    ops: Ops,
    dtype: torch.dtype,
    device: torch.device,
    collectives: Collectives = ALONE,
) -> LoadedDraft | None:
    """Load what ``config.draft_model`` names, or this rank's part of it; None on a rank that has none.

    A head is rank 0's alone: it is one layer, and reads hidden states that every rank has whole.

    Raises:
        ModelLoadError: it cannot be loaded, or does not fit the target.
    """
    name = config.draft_model
    assert name is not None
    head = open_head(
        name,
        target,
        load_format=config.load_format,
        quantization=config.draft_quantization,
        device=device,
        text_tokens=lambda: configured_tokenizer(config, target.config).vocab_size,
    )
    if head is not None:
        at_once = head.config.parallel_drafts
        if 1 < at_once < config.draft_tokens:
            raise ModelLoadError(f"draft_tokens: {config.draft_tokens}, but the head {name} drafts at most {at_once}")
        if (config.draft_tensor_parallel_size or 1) > 1:
            raise ModelLoadError(f"draft_tensor_parallel_size: {name} is a head, which is not shared")
        if collectives.rank:
            return None
        with memory_explained(device, f"the weights of the head {name}"):
            return LoadedHead(Eagle3Head(head, ops, dtype, device))
    checkpoint = open_draft_checkpoint(
        name, target, load_format=config.load_format, quantization=config.draft_quantization, device=device
    )
    if _FUSION in checkpoint:
        raise ModelLoadError(
            f"draft_model: {name}: {_FUSION}: this is a head, but no EAGLE-3 head, the only kind that is supported: its "
            "config.json has no draft_vocab_size, and no architecture with Eagle3 in its name"
        )
    check_weights(name, checkpoint, device, "draft_quantization")
    checkpoint = _fitted(config, name, checkpoint, target.config)
    shared: Collectives = ALONE
    shard: Shard = WHOLE
    sharing = config.draft_tensor_parallel_size
    if sharing is None:
        sharing = _worthwhile_ranks(checkpoint, dtype, device, collectives.size)
    if sharing > 1:
        shared, shard = collectives, PartialShard.of(checkpoint.config, collectives)
    elif collectives.rank:
        return None
    with memory_explained(
        device, f"the weights of the draft model {name}", weight_bytes(shard.checkpoint(checkpoint), dtype)
    ):
        return LoadedDraftModel(build_model(checkpoint, checkpoint.config, ops, dtype, device, shard), shared)


def _fitted(config: EngineConfig, name: str, checkpoint: Checkpoint, target: ModelConfig) -> Checkpoint:
    """A draft model with the rows of its target's vocabulary. What is padded is known from their tokenizers' tokens."""
    mine, its = checkpoint.config.vocab_size, target.vocab_size
    if mine == its:
        return checkpoint
    refusal = (
        f"draft_model: {name} has a vocabulary of {mine} tokens and {config.model} one of {its}: "
        "a draft model must have its target's"
    )
    try:
        own = load_tokenizer(name, checkpoint.config)
    except ModelLoadError as error:
        raise ModelLoadError(f"{refusal}, and its tokenizer must show it: {error}") from error
    if not own.has_the_tokens_of(configured_tokenizer(config, target)):
        raise ModelLoadError(f"{refusal}, and their tokenizers have different tokens")
    return FittedVocabulary(checkpoint, its)


def _worthwhile_ranks(checkpoint: Checkpoint, dtype: torch.dtype, device: torch.device, size: int) -> int:
    """How many of ``size`` ranks should share a draft model: all, or one.

    Ranks agree, since they read the same checkpoint.
    """
    if device.type == "cpu" or not fits(checkpoint.config, size):
        return 1
    of_layer = weight_bytes(checkpoint, dtype) / checkpoint.config.num_layers
    return size if of_layer * (1 - 1 / size) >= _WORTH_TWO_SUMS else 1


def _cache(shape: ModelConfig, blocks: int, block_size: int, dtype: torch.dtype, device: torch.device) -> KVCache:
    return KVCache.allocate(
        shape.num_layers, blocks, block_size, shape.num_kv_heads, shape.head_dim, dtype=dtype, device=device
    )
