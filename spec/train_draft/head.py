"""``TrainedHead``: an EAGLE-3 head in differentiable torch operations, unrolled as it will draft.

Drafting feeds the head its own outputs. Training does the same for a few steps, so that it learns from the inputs that it
will have (training-time test, Li et al. 2025, https://arxiv.org/abs/2503.01840, section 3.2). Step 0 reads the target's
hidden states at all positions at once. Step s reads the outputs of step s - 1, one position later. An entry of step s sees
the entries of step 0 up to s positions before it, then one entry of each later step, as in a round of drafts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from draftline import quant
from draftline.models.heads.checkpoint import HeadCheckpoint
from draftline.models.heads.config import HeadConfig
from draftline.models.rope import rope_table
from draftline.spec.train_draft.acceptance import Acceptance, served
from draftline.spec.train_draft.decoder import GatedMlp, Norm, Target, rotated
from draftline.spec.train_draft.packing import Packed, pack
from draftline.spec.train_draft.samples import Sample

_STEP_DECAY = 0.8
"""The weight of a step's loss, relative to that of the step before: a later draft counts only if the earlier are right."""

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

    def __init__(self, target: Target, config: HeadConfig, target_ids: Tensor) -> None:
        super().__init__()
        self.config = config
        layer, hidden = config.layer, config.layer.hidden_size
        queries, keys = layer.num_heads * layer.head_dim, layer.num_kv_heads * layer.head_dim
        device = target.embedding.device
        self.fc = nn.Linear(len(config.target_layers) * config.target_hidden_size, hidden, bias=False)
        self.input_layernorm, self.hidden_norm = Norm(hidden, layer.norm_eps), Norm(hidden, layer.norm_eps)
        self.q_proj = nn.Linear(2 * hidden, queries, bias=False)
        self.k_proj = nn.Linear(2 * hidden, keys, bias=False)
        self.v_proj = nn.Linear(2 * hidden, keys, bias=False)
        self.o_proj = nn.Linear(queries, hidden, bias=False)
        self.post_attention_layernorm = Norm(hidden, layer.norm_eps)
        self.mlp = GatedMlp(layer)
        self.norm = Norm(hidden, layer.norm_eps)
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False)
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
        hidden = _rows(self.fc(torch.cat([state.float() for state in states], dim=-1)), packed)
        following = _rows(packed.tokens, packed).roll(-1, dims=1)
        embedded = self.input_layernorm(F.embedding(following, self.embedding).float())
        entries: list[tuple[Tensor, Tensor]] = []
        outputs: list[Tensor] = []
        for _ in range(steps):
            normed = self.hidden_norm(hidden)
            attended = self._attended(torch.cat((embedded, normed), dim=-1), entries)
            x = (normed if self.config.norm_before_residual else hidden) + self.o_proj(attended)
            x = x + self.mlp(self.post_attention_layernorm(x))
            outputs.append(x)
            hidden = x.roll(1, dims=1)
        return outputs

    def _attended(self, inputs: Tensor, entries: list[tuple[Tensor, Tensor]]) -> Tensor:
        """The attention of a step's entries, [B, L, heads * D]; appends their keys and values to the earlier steps'."""
        count, length = inputs.shape[:2]
        head_dim, group = self.config.layer.head_dim, self.config.layer.num_heads // self.config.layer.num_kv_heads
        rope = self.rope[:length].repeat(count, 1, 1)

        def heads(x: Tensor) -> Tensor:
            return x.view(count, length, *x.shape[1:]).transpose(1, 2)

        flat = inputs.flatten(0, 1)
        query, key, value = (
            project(flat).unflatten(-1, (-1, head_dim)) for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = (rotated(x.float(), rope).to(value.dtype) for x in (query, key))
        entries.append((heads(key.repeat_interleave(group, 1)), heads(value.repeat_interleave(group, 1))))
        query, step = heads(query) * head_dim**-0.5, len(entries) - 1
        positions = torch.arange(length, device=inputs.device)
        seen = positions[:, None] - positions >= step
        first_keys, first_values = entries[0]
        scores = [(query @ first_keys.transpose(2, 3)).masked_fill(~seen, torch.finfo(query.dtype).min)]
        later = [(k.roll(step - j, dims=2), v.roll(step - j, dims=2)) for j, (k, v) in enumerate(entries)][1:]
        scores += [(query * k).sum(-1, keepdim=True) for k, _ in later]
        weights = torch.cat(scores, dim=-1).softmax(-1, dtype=torch.float32).to(query.dtype)
        result: Tensor = weights[..., :length] @ first_values
        for index, (_, v) in enumerate(later):
            result = result + weights[..., length + index, None] * v
        return result.transpose(1, 2).flatten(2)

    def logits(self, outputs: Tensor) -> Tensor:
        """[..., hidden] -> [..., draft_vocab]."""
        logits: Tensor = self.lm_head(self.norm(outputs))
        return logits

    def weights(self) -> dict[str, Tensor]:
        """Its weights by the names of `head_shapes`, without the embedding. Writing to them changes the head."""
        own = {name: value.detach() for name, value in self.named_parameters()}
        outside = ("fc.weight", "lm_head.weight")
        named = {name: own.pop(name) for name in outside} | {"model.norm.weight": own.pop("norm.weight")}
        for name, value in own.items():
            inside = f"self_attn.{name}" if name.split(".")[0].endswith("_proj") else name
            named[f"model.layers.0.{inside}"] = value
        return named

    @classmethod
    def from_checkpoint(cls, target: Target, checkpoint: HeadCheckpoint) -> TrainedHead:
        """A trained head of a kind that `new_head` makes."""
        head = cls(target, checkpoint.config, checkpoint.target_ids.to(target.embedding.device))
        for name, weight in head.weights().items():
            weight.copy_(quant.dequantize(checkpoint.weights.tensor(name)))
        return head


def new_head(target: Target, layers: Sequence[int], target_ids: Tensor) -> TrainedHead:
    """An untrained head for a target, with one of its layers' shape.

    Args:
        target: the target.
        layers: the head reads the residual stream before each of these; ascending.
        target_ids: the tokens that it can draft, ascending.
    """
    shape = replace(
        target.config,
        family="LlamaForCausalLM",
        num_layers=1,
        sliding_windows=(None,),
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        tied_embeddings=False,
    )
    config = HeadConfig(
        layer=shape,
        draft_vocab_size=len(target_ids),
        target_hidden_size=shape.hidden_size,
        target_layers=tuple(layers),
        norm_before_residual=True,
        norm_before_fc=False,
        fc_norm=False,
        norm_output=False,
    )
    return TrainedHead(target, config, target_ids)


def frequent_tokens(samples: Iterable[Sample], vocab: int, count: int) -> Tensor:
    """The ``count`` most frequent tokens of the answers, [count] int64 ascending; ties go to lower ids."""
    found = torch.zeros(vocab, dtype=torch.int64)
    for sample in samples:
        answer = torch.from_numpy(sample.tokens[sample.prompt_len :].astype("int64"))
        found += torch.bincount(answer, minlength=vocab)
    return found.sort(descending=True, stable=True).indices[:count].sort().values


def head_loss(head: TrainedHead, target: Target, packed: Packed, steps: int) -> Tensor:
    """The cross entropy of the target's distribution and the head's, over the unrolled steps; a scalar, in nats.

    The target's distribution is over its whole vocabulary. Tokens that the head cannot draft count for nothing.
    """
    dtype, device = target.head.dtype, target.head.device
    wanted_hidden, states = target.hidden_and_states(packed, head.config.target_layers)
    wanted = F.linear(wanted_hidden, target.head).softmax(-1, dtype=torch.float32)[:, head.target_ids]
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        outputs = head.unrolled(packed, states, steps)
        total, weight = torch.zeros((), device=device), 0.0
        for step, output in enumerate(outputs):
            entry, valid = _entries(packed, step)
            predicted = head.logits(output.flatten(0, 1).index_select(0, entry)).log_softmax(-1, dtype=torch.float32)
            losses = -(wanted * predicted).sum(-1)
            total = total + _STEP_DECAY**step * (losses * valid).sum() / valid.sum().clamp(min=1)
            weight += _STEP_DECAY**step
    return total / weight


def head_acceptance(head: TrainedHead, target: Target, samples: Sequence[Sample], draft_tokens: int) -> Acceptance:
    """The acceptance of a head on samples whose answers the target wrote greedily."""
    runs = [_right(agrees, count) for agrees, count in _agreement(head, target, samples, draft_tokens)]
    return served(((len(run), run.__getitem__) for run in runs), draft_tokens)


@torch.no_grad()
def _agreement(
    head: TrainedHead, target: Target, samples: Sequence[Sample], steps: int
) -> Iterable[tuple[list[list[bool]], int]]:
    """For each sample, by step and answer token, whether the draft of that step is that token; and the answer's length."""
    device, dtype = target.head.device, target.head.dtype
    for first in range(0, len(samples), _BATCH):
        batch = samples[first : first + _BATCH]
        packed = pack(batch, device)
        _, states = target.hidden_and_states(packed, head.config.target_layers)
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            outputs = head.unrolled(packed, states, steps)
            agrees = []
            for step, output in enumerate(outputs):
                entry, valid = _entries(packed, step)
                guesses = head.logits(output.flatten(0, 1).index_select(0, entry)).argmax(-1)
                agrees.append(((head.target_ids[guesses] == packed.answers) & valid).tolist())
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


def _rows(x: Tensor, packed: Packed) -> Tensor:
    """[T, ...] -> [B, longest, ...], zero where a sequence is shorter."""
    rows = x.new_zeros(packed.count * packed.longest, *x.shape[1:]).index_copy(0, packed.padded, x)
    return rows.view(packed.count, packed.longest, *x.shape[1:])


def _entries(packed: Packed, step: int) -> tuple[Tensor, Tensor]:
    """[P], the entry in [B * longest] that predicts each answer token, and whether step ``step`` has one there.

    The token after position p is predicted by the entry of position p - 1, which reads token p.
    """
    positions = packed.positions[packed.predicting] - 1
    entry = (packed.padded[packed.predicting] - 1).clamp(min=0)
    return entry, positions >= step
