"""``TrainedHead``: an EAGLE-3 head in differentiable torch operations, unrolled as it will draft.

Drafting feeds the head its own outputs. Training does the same for a few steps, so that it learns from the inputs that
it will have (training-time test, Li et al. 2025, https://arxiv.org/abs/2503.01840, section 3.2). Step 0 reads the
target's hidden states at all positions at once. Step s reads the outputs of step s - 1, one position later. An entry of
step s sees the entries of step 0 up to s positions before it, then one entry of each later step, as in a round of
drafts.

A parallel head has no outputs to read. Its steps are the entries of one pass, which see one another in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from draftline import quant
from draftline.models.config import ModelConfig
from draftline.models.heads.checkpoint import HeadCheckpoint
from draftline.models.heads.config import HeadConfig
from draftline.models.rope import rope_table
from draftline.models.weight_shapes import HEAD
from draftline.spec.train_draft.acceptance import Acceptance, served
from draftline.spec.train_draft.decoder import FrozenTarget, GatedMlp, Norm, autocast_to, rotated
from draftline.spec.train_draft.draft_loss import draft_losses
from draftline.spec.train_draft.packing import Packed, pack
from draftline.spec.train_draft.samples import Sample

_STEP_DECAY = 0.8
"""The weight of a step's loss, relative to that of the step before: a later draft counts only if the earlier are
right."""

_BATCH = 32
"""Samples measured at once."""


class TrainedHead(nn.Module):
    """A head in training: its own float32 weights, with the target's embedding.

    Args:
        target: the target model.
        config: the head's shape, without norms before the fusion.
        target_ids: [draft_vocab] int64, the target's token of each token that it can draft, ascending.

    Attributes:
        config: the head's shape.
        target_ids: as given.
    """

    embedding: Tensor
    rope: Tensor
    target_ids: Tensor

    def __init__(self, target: FrozenTarget, config: HeadConfig, target_ids: Tensor) -> None:
        super().__init__()
        self.config = config
        layer, hidden = config.layer, config.layer.hidden_size
        device = target.embedding.device
        self.fc = nn.Linear(len(config.target_layers) * config.target_hidden_size, hidden, bias=False)
        self.hidden_norm = Norm(hidden, layer.norm_eps)
        layers = [_HeadLayer(layer, hidden if index else 2 * hidden) for index in range(layer.num_layers)]
        self.layers = nn.ModuleList(layers)
        self.norm = Norm(hidden, layer.norm_eps)
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False)
        # The output projection begins as the target's, with the norm that it was made for.
        self.norm.weight.data = target.layers.norm.weight.detach().float().clone()
        self.lm_head.weight.data = target.head[target_ids].float()
        self.register_buffer("embedding", target.embedding, persistent=False)
        self.register_buffer("rope", rope_table(layer, device), persistent=False)
        self.register_buffer("target_ids", target_ids.to(device))
        self.to(device)

    def unrolled(self, packed: Packed, states: Sequence[Tensor], steps: int) -> list[Tensor]:
        """The outputs of each step, [B, longest, hidden]; those at positions below the step are undefined.

        Args:
            packed: the sequences.
            states: the target's hidden states of ``config.target_layers``, [T, hidden] each.
            steps: how many drafts are unrolled.
        """
        fused = packed.rows(self.fc(torch.cat([state.float() for state in states], dim=-1)))
        following = packed.rows(packed.tokens).roll(-1, dims=1)
        embedded = F.embedding(following, self.embedding).float()
        layers = cast("list[_HeadLayer]", list(self.layers))
        entries: list[Entries] = [[] for _ in layers]
        outputs: list[Tensor] = []
        for step in range(steps):
            token, hidden = self._inputs(step, embedded, fused, outputs)
            normed = self.hidden_norm(hidden)
            first = torch.cat((layers[0].input_layernorm(token), normed), dim=-1)
            x = normed if self.config.norm_before_residual else hidden
            for index, (layer, earlier) in enumerate(zip(layers, entries, strict=True)):
                x = layer(layer.input_layernorm(x) if index else first, x, self.rope, earlier)
            outputs.append(x)
        return outputs

    def _inputs(self, step: int, embedded: Tensor, fused: Tensor, outputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """What the entries of a step read, [B, L, hidden] each: in the place of a token, and of a hidden state."""
        return embedded, outputs[-1].roll(1, dims=1) if step else fused

    def logits(self, outputs: Tensor) -> Tensor:
        """[..., hidden] -> [..., draft_vocab]."""
        logits: Tensor = self.lm_head(self.norm(outputs))
        return logits

    def weights(self) -> dict[str, Tensor]:
        """Its trained weights by the names of `head_shapes`. Writing to them changes the head."""
        renamed = {
            "fc.weight": "fc.weight",
            HEAD: HEAD,
            "mask_embedding": "mask_embedding",
            "hidden_norm.weight": "model.layers.0.hidden_norm.weight",
        }
        own = {name: value.detach() for name, value in self.named_parameters() if value.requires_grad}
        return {renamed.get(name, f"model.{name}"): value for name, value in own.items()}


class TrainedParallelHead(TrainedHead):
    """A parallel head in training, which has the target's output projection.

    Its entries of a later step stand for drafts whose tokens and hidden states are not known.
    """

    def __init__(self, target: FrozenTarget, config: HeadConfig, target_ids: Tensor) -> None:
        super().__init__(target, config, target_ids)
        self.lm_head.requires_grad_(False)
        masks = torch.randn(config.parallel_drafts - 1, config.layer.hidden_size, device=self.embedding.device)
        self.mask_embedding = nn.Parameter(masks * self.embedding.float().std())

    @override
    def _inputs(self, step: int, embedded: Tensor, fused: Tensor, outputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        if not step:
            return embedded, fused
        return self.mask_embedding[step - 1].expand_as(embedded), fused.roll(step, dims=1)


def head_of(target: FrozenTarget, config: HeadConfig, target_ids: Tensor) -> TrainedHead:
    """An untrained head of its kind."""
    kind = TrainedParallelHead if config.parallel_drafts > 1 else TrainedHead
    return kind(target, config, target_ids)


def trained_head(target: FrozenTarget, checkpoint: HeadCheckpoint) -> TrainedHead:
    """A trained head of a kind that `new_head` makes."""
    head = head_of(target, checkpoint.config, checkpoint.target_ids.to(target.embedding.device))
    for name, weight in head.weights().items():
        weight.copy_(quant.dequantize(checkpoint.weights.tensor(name)))
    return head


@torch.no_grad()
def start_from(head: TrainedHead, trained: TrainedHead) -> None:
    """Give a head the weights of one of the same shape.

    Tokens that only ``head`` drafts keep their rows of the projection.
    """
    places = torch.searchsorted(head.target_ids, trained.target_ids).clamp(max=len(head.target_ids) - 1)
    shared = head.target_ids[places] == trained.target_ids
    starts = trained.weights()
    for name, weight in head.weights().items():
        if name == HEAD:
            weight[places[shared]] = starts[name][shared]
        else:
            weight.copy_(starts[name])


Entries = list[tuple[Tensor, Tensor]]
"""The keys and values of a layer, [B, heads, L, D] each, by step."""


class _SelfAttention(nn.Module):
    """The projections of a layer's attention."""

    def __init__(self, shape: ModelConfig, inputs: int) -> None:
        super().__init__()
        queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        self.q_proj = nn.Linear(inputs, queries, bias=False)
        self.k_proj = nn.Linear(inputs, keys, bias=False)
        self.v_proj = nn.Linear(inputs, keys, bias=False)
        self.o_proj = nn.Linear(queries, shape.hidden_size, bias=False)
        self._head_dim, self._group = shape.head_dim, shape.num_heads // shape.num_kv_heads

    def forward(self, inputs: Tensor, rope: Tensor, entries: Entries) -> Tensor:
        """[B, L, inputs] -> [B, L, hidden]; appends the step's keys and values to those of the earlier steps."""
        count, length = inputs.shape[:2]

        def heads(x: Tensor) -> Tensor:
            return x.view(count, length, *x.shape[1:]).transpose(1, 2)

        flat = inputs.flatten(0, 1)
        query, key, value = (
            project(flat).unflatten(-1, (-1, self._head_dim)) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        angles = rope[:length].repeat(count, 1, 1)
        query, key = (rotated(x.float(), angles).to(value.dtype) for x in (query, key))
        entries.append((heads(key.repeat_interleave(self._group, 1)), heads(value.repeat_interleave(self._group, 1))))
        query, step = heads(query) * self._head_dim**-0.5, len(entries) - 1
        positions = torch.arange(length, device=inputs.device)
        seen = positions[:, None] - positions >= step
        first_keys, first_values = entries[0]
        scores = [(query @ first_keys.transpose(2, 3)).masked_fill(~seen, torch.finfo(query.dtype).min)]
        later = [(k.roll(step - j, dims=2), v.roll(step - j, dims=2)) for j, (k, v) in enumerate(entries)][1:]
        scores += [(query * k).sum(-1, keepdim=True) for k, _ in later]
        weights = torch.cat(scores, dim=-1).softmax(-1, dtype=torch.float32).to(query.dtype)
        result = weights[..., :length] @ first_values
        for index, (_, v) in enumerate(later):
            result = result + weights[..., length + index, None] * v
        attended: Tensor = self.o_proj(result.transpose(1, 2).flatten(2))
        return attended


class _HeadLayer(nn.Module):
    def __init__(self, shape: ModelConfig, inputs: int) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape.hidden_size, shape.norm_eps)
        self.self_attn = _SelfAttention(shape, inputs)
        self.post_attention_layernorm = Norm(shape.hidden_size, shape.norm_eps)
        self.mlp = GatedMlp(shape)

    def forward(self, normed: Tensor, x: Tensor, rope: Tensor, entries: Entries) -> Tensor:
        """Add a layer to the residual stream ``x``; ``normed`` is what its attention reads."""
        x = x + self.self_attn(normed, rope, entries)
        y: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return y


@dataclass(frozen=True, slots=True)
class HeadSize:
    """The size of a head.

    Attributes:
        parallel_drafts: the drafts of one pass; 1 for a head that drafts one after the other.
        layers: decoder layers; 1 unless drafts are parallel.
        mlp: width of the MLP; None for the target's.
    """

    parallel_drafts: int = 1
    layers: int = 1
    mlp: int | None = None


def new_config(target: ModelConfig, layers: Sequence[int], vocab: int, size: HeadSize) -> HeadConfig:
    """The shape of a new head for a target, with its layers' shape.

    Args:
        target: the target's.
        layers: the head reads the residual stream before each of these; ascending.
        vocab: tokens that it can draft.
        size: the head's.
    """
    shape = replace(
        target,
        family="LlamaForCausalLM",
        num_layers=size.layers,
        sliding_windows=(None,) * size.layers,
        intermediate_size=size.mlp or target.intermediate_size,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        tied_embeddings=False,
    )
    return HeadConfig(
        layer=shape,
        draft_vocab_size=vocab,
        target_hidden_size=shape.hidden_size,
        target_layers=tuple(layers),
        norm_before_residual=True,
        norm_before_fc=False,
        fc_norm=False,
        norm_output=False,
        parallel_drafts=size.parallel_drafts,
    )


def new_head(
    target: FrozenTarget, layers: Sequence[int], target_ids: Tensor, size: HeadSize = HeadSize()
) -> TrainedHead:
    """An untrained head for a target; ``target_ids`` are the tokens that it can draft, ascending. See `new_config`."""
    return head_of(target, new_config(target.config, layers, len(target_ids), size), target_ids)


def frequent_tokens(samples: Iterable[Sample], vocab: int, count: int) -> Tensor:
    """The ``count`` most frequent tokens of the answers, [count] int64 ascending; ties go to lower ids."""
    answers = [torch.from_numpy(sample.tokens[sample.prompt_len :]) for sample in samples]
    found = torch.bincount(torch.cat(answers).long(), minlength=vocab)
    return found.sort(descending=True, stable=True).indices[:count].sort().values


def head_loss(head: TrainedHead, target: FrozenTarget, packed: Packed, steps: int) -> Tensor:
    """How far the head is from the target's distribution, over the unrolled steps; a scalar.

    The target's distribution is over its whole vocabulary. Tokens that the head cannot draft count for nothing.
    """
    wanted_hidden, states = target.hidden_and_states(packed, head.config.target_layers)
    wanted = F.linear(wanted_hidden, target.head).softmax(-1, dtype=torch.float32)[:, head.target_ids]
    with autocast_to(target.head):
        outputs = head.unrolled(packed, states, steps)
        total, weight = torch.zeros((), device=target.head.device), 0.0
        for step, output in enumerate(outputs):
            logits, valid = _drafts(head, packed, output, step)
            losses = draft_losses(wanted, logits)
            total = total + _STEP_DECAY**step * (losses * valid).sum() / valid.sum().clamp(min=1)
            weight += _STEP_DECAY**step
    return total / weight


@torch.no_grad()
def first_drafts(head: TrainedHead, packed: Packed, states: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The logits of the first draft at ``packed.predicting``, [P, draft_vocab] float32, and [P] whether there is one.

    ``states`` are as `TrainedHead.unrolled` has them.
    """
    with autocast_to(head.embedding):
        (output,) = head.unrolled(packed, states, 1)
        logits, valid = _drafts(head, packed, output, 0)
    return logits.float(), valid


def head_acceptance(
    head: TrainedHead, target: FrozenTarget, samples: Sequence[Sample], draft_tokens: int
) -> Acceptance:
    """The acceptance of a head on samples whose answers the target wrote greedily."""
    runs = [_right(agrees, count) for agrees, count in _agreement(head, target, samples, draft_tokens)]
    return served(((len(run), run.__getitem__) for run in runs), draft_tokens)


@torch.no_grad()
def _agreement(
    head: TrainedHead, target: FrozenTarget, samples: Sequence[Sample], steps: int
) -> Iterable[tuple[list[list[bool]], int]]:
    """For each sample, by step and answer token, whether that step drafts that token; and the answer's length."""
    for first in range(0, len(samples), _BATCH):
        batch = samples[first : first + _BATCH]
        packed = pack(batch, target.head.device)
        _, states = target.hidden_and_states(packed, head.config.target_layers)
        with autocast_to(target.head):
            outputs = head.unrolled(packed, states, steps)
            agrees = []
            for step, output in enumerate(outputs):
                logits, valid = _drafts(head, packed, output, step)
                agrees.append(((head.target_ids[logits.argmax(-1)] == packed.answers) & valid).tolist())
        ends = torch.tensor([0, *(sample.answer_len for sample in batch)]).cumsum(0).tolist()
        for start, end in pairwise(ends):
            yield [row[start:end] for row in agrees], end - start


def _right(agrees: list[list[bool]], count: int) -> list[int]:
    """For each answer token, how many drafts of a round that begins there are right."""
    right = []
    for index in range(count):
        run = 0
        while run < len(agrees) and index + run < count and agrees[run][index + run]:
            run += 1
        right.append(run)
    return right


def _drafts(head: TrainedHead, packed: Packed, output: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """The logits of a step's drafts at ``packed.predicting``, [P, draft_vocab], and [P] whether there is one."""
    entry, valid = _entries(packed, step)
    return head.logits(output.flatten(0, 1).index_select(0, entry)), valid


def _entries(packed: Packed, step: int) -> tuple[Tensor, Tensor]:
    """[P], the entry in [B * longest] that predicts each answer token, and whether step ``step`` has one there.

    The token after position p is predicted by the entry of position p - 1, which reads token p.
    """
    positions = packed.positions[packed.predicting] - 1
    entry = (packed.padded[packed.predicting] - 1).clamp(min=0)
    return entry, positions >= step
