"""``Ops``: every operation of a step that has a device-specific form.

One implementation is chosen at start-up and passed in. `reference.py` is all of it in plain torch: the CPU path, and
the oracle that every other implementation is tested against.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import Batch, Inputs, LayerCache
from draftline.kernels.constraints import Constrained, ConstraintTable
from draftline.kernels.residual import Residual
from draftline.kernels.scaled import ScaledWeight
from draftline.kernels.slots import SampleRows, SlotTable

Accept = Callable[[Tensor, SampleRows, Tensor, int, SlotTable], Tensor]
"""`Ops.accept`, or what takes its place."""


class Ops(Protocol):
    """The device-specific operations. H are query heads, G key/value heads, D the head size, T tokens."""

    @property
    def scripted(self) -> bool:
        """Whether a decoder may run its layers as one TorchScript program of `kernels.functional` on a CPU instead.

        True of the operations that are made of the same functions.
        """
        ...

    @property
    def runs_scaled(self) -> bool:
        """Whether eight-bit weights run as they are, by `scaled_linear` and its like, instead of being unpacked on loading."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """RMSNorm over the last axis: [..., N] -> [..., N], computed in float32 (Zhang & Sennrich 2019)."""
        ...

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """``residual + x`` and its RMSNorm: returns (normed, new residual), both [T, N]."""
        ...

    def rms_norm_add(self, x: Tensor, weight: Tensor, eps: float, residual: Tensor) -> Tensor:
        """``residual + rms_norm(x)``, all [T, N]. It may be written over ``residual``."""
        ...

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """LayerNorm over the last axis: [T, N] -> [T, N], computed in float32 (Ba et al. 2016)."""
        ...

    def rope_write_kv(self, qkv: Tensor, batch: Batch, cache: LayerCache, spec: AttentionSpec) -> Tensor:
        """Split, (normalise,) rotate and write: the query heads, rotated, as [T, H, D].

        Args:
            qkv: [T, (H + 2 G) * D], query, key and value heads of each token; it may be written over.
            batch: positions and cache indices of the tokens.
            cache: keys and values are written at ``batch.cache_index``, in the cache's type: FP8 (e4m3) as they are, INT8
                with a scale for each head of a token.
            spec: how to normalise and rotate.
        """
        ...

    def attention(self, q: Tensor, batch: Batch, cache: LayerCache, spec: AttentionSpec) -> Tensor:
        """Causal attention of each row's query tokens over its paged history: [T, H, D] -> [T, H * D].

        With a window w, position p sees positions > p - w only.
        """
        ...

    def rope_attention(self, qkv: Tensor, batch: Batch, cache: LayerCache, spec: AttentionSpec) -> Tensor:
        """`rope_write_kv`, then `attention` of its result: [T, (H + 2 G) * D] -> [T, H * D]."""
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """SwiGLU's activation: [T, 2 N] -> [T, N], ``silu(first half) * second half``."""
        ...

    def gelu(self, x: Tensor) -> Tensor:
        """GELU with tanh's approximation (Hendrycks & Gimpel 2016): elementwise, [T, N] -> [T, N]."""
        ...

    def gelu_mul(self, gate_up: Tensor) -> Tensor:
        """GeGLU's activation (Shazeer 2020): [T, 2 N] -> [T, N], ``gelu(first half) * second half``."""
        ...

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        """``cap * tanh(x / cap)``, elementwise, computed in float32."""
        ...

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """A dense layer, ``x @ weight.T + bias``: [T, K], [N, K], [N] -> [T, N]."""
        ...

    def norm_linear(self, x: Residual, norm: Tensor, eps: float, weight: Tensor, bias: Tensor | None) -> Tensor:
        """`linear` of `rms_norm`: [T, K] -> [T, N]."""
        ...

    def norm_swiglu(self, x: Residual, norm: Tensor, eps: float, weight: Tensor, bias: Tensor | None) -> Tensor:
        """`silu_mul` of `norm_linear`, the weight being [2 N, K]: [T, K] -> [T, N]."""
        ...

    def linear_add(
        self, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Residual, following: Tensor | None
    ) -> Residual:
        """``residual + linear(x)``: [T, K], [T, N] -> [T, N]. It may be written over ``residual``.

        Args:
            x: [T, K].
            weight: [N, K].
            bias: [N], or None.
            residual: [T, N].
            following: [N], the weight of the norm that reads the result next and may be prepared, or None.
        """
        ...

    def scaled_linear(self, x: Tensor, weight: ScaledWeight, bias: Tensor | None) -> Tensor:
        """`linear` of an eight-bit weight: [T, K], [N, K], [N] -> [T, N].

        ``x`` is quantized by `kernels.scaled.quantize_activations`, whatever T is.
        """
        ...

    def scaled_norm_linear(
        self, x: Tensor, norm: Tensor, eps: float, weight: ScaledWeight, bias: Tensor | None
    ) -> Tensor:
        """`scaled_linear` of `rms_norm`: [T, K] -> [T, N]."""
        ...

    def scaled_norm_swiglu(
        self, x: Tensor, norm: Tensor, eps: float, weight: ScaledWeight, bias: Tensor | None
    ) -> Tensor:
        """`silu_mul` of `scaled_norm_linear`, the weight being [2 N, K]: [T, K] -> [T, N]."""
        ...

    def scaled_linear_add(self, x: Tensor, weight: ScaledWeight, bias: Tensor | None, residual: Tensor) -> Tensor:
        """``residual + scaled_linear(x)``: [T, K], [T, N] -> [T, N]. It may be written over ``residual``."""
        ...

    def gather(
        self,
        slots: SlotTable,
        rows: Tensor,
        query_lens: tuple[int, ...],
        starts: tuple[int, ...],
        logits_counts: tuple[int, ...],
        block_size: int,
        from_newest: tuple[bool, ...] = (),
    ) -> Inputs:
        """Build a step's inputs from the slot table.

        Args:
            slots: the slot table.
            rows: [R] int64, the slot of each row.
            query_lens: query tokens of each row.
            starts: each row's computed tokens: its query starts at this position.
            logits_counts: how many of each row's last query tokens want logits.
            block_size: tokens a cache block.
            from_newest: for each row, whether its query starts with its newest known token, at a position that only
                the device knows (`SlotTable.lengths`). Its start is then an upper bound. Empty: no row's does.
        """
        ...

    def sample(self, logits: Tensor, rows: SampleRows, slots: SlotTable) -> Tensor:
        """The token at each row's position, a pure function of its logits, history, parameters and seed.

        ``argmax(processed / T + gumbel(seed, position, token))`` (the Gumbel-max trick), ties to the lowest id;
        T = 0 is ``argmax(processed)``.

        Args:
            logits: [S, vocab], of any floating type, computed with in float32; left unchanged.
            rows: which sequence and position each logits row belongs to.
            slots: the slot table, with the sequences' tokens (drafts included) and sampling parameters.

        Returns:
            [S] int64 token ids.
        """
        ...

    def accept(self, tokens: Tensor, rows: SampleRows, starts: Tensor, max_samples: int, slots: SlotTable) -> Tensor:
        """Accept each row's drafts while they are what was sampled, and commit what that decides.

        The target samples every position as plain decoding would, a pure function of history, parameters and seed. So
        the accepted tokens are plain decoding's own: no draft probabilities and no rejection sampling are needed.

        Args:
            tokens: [S] int64, what `sample` returned.
            rows: what it was sampled for; ``slots.tokens`` has the drafts at the same positions.
            starts: [R + 1] int32: row r's samples are ``starts[r]`` to ``starts[r + 1]``, of which the last one's draft
                is none. A row without samples is left alone.
            max_samples: a bound on the samples of a row.
            slots: the slot table, whose tokens and lengths are brought up to date.

        Returns:
            [R] int32, how many of its samples each row keeps: up to the first that is not its draft, and that one.
        """
        ...

    def constrain(
        self, rows: SampleRows, starts: Tensor, slots: SlotTable, constraints: ConstraintTable
    ) -> Constrained:
        """What each sampled position is constrained by, its row's drafts before it taken as they are.

        Where a draft is not allowed, the positions after it can never be accepted, and everything is allowed there.

        Args:
            rows: what is sampled; ``slots.tokens`` has the drafts at the same positions.
            starts: [R + 1] int32: row r's samples are ``starts[r]`` to ``starts[r + 1]``, of which the last one's draft
                is none. What is beyond the last row's is not constrained.
            slots: the slot table.
            constraints: the constraint table, with the states before the step.
        """
        ...

    def advance_constraints(
        self,
        tokens: Tensor,
        accepted: Tensor,
        rows: SampleRows,
        starts: Tensor,
        constrained: Constrained,
        constraints: ConstraintTable,
    ) -> None:
        """Bring the slots' states up to date with the tokens that they keep. One that is not allowed changes nothing.

        Args:
            tokens: [S] int64, what `sample` returned.
            accepted: [R] int32, what `accept` returned.
            rows: as they were given to `constrain`.
            starts: likewise.
            constrained: what `constrain` returned.
            constraints: the constraint table, whose states are written. Those of slots that the host masks stay.
        """
        ...

    def draft_forced(self, rows: Tensor, count: int, slots: SlotTable, constraints: ConstraintTable) -> None:
        """Draft what the slots' states force, over what stands there; what is not forced stays.

        Args:
            rows: [R] int64, the slots that want drafts.
            count: the most that each gets, written behind its known tokens.
            slots: the slot table.
            constraints: the constraint table.
        """
        ...

    def draft_ngram(self, rows: Tensor, count: int, max_ngram: int, slots: SlotTable) -> None:
        """Draft what followed the latest earlier place at which a sequence's end occurs, as much of it as does.

        Args:
            rows: [R] int64, the slots that want drafts.
            count: how many each gets, written behind its known tokens.
            max_ngram: the most tokens of the end that are compared.
            slots: the slot table.
        """
        ...

    def learn_ngrams(self, rows: Tensor, count: int, ngrams: Tensor, slots: SlotTable) -> None:
        """Note what followed the three tokens before each of the last ``count`` known tokens of some sequences.

        Args:
            rows: [R] int64, slots.
            count: tokens of each that are noted.
            ngrams: [E, 2] int32, a hash table of E entries, a power of two, that is written: a check of the three tokens
                at a place that they hash to, and the token that followed. Of several that hash to one place, any stays.
            slots: the slot table.
        """
        ...

    def draft_ngram_table(self, rows: Tensor, count: int, max_ngram: int, ngrams: Tensor, slots: SlotTable) -> None:
        """`draft_ngram`; where less of the end than ``max_ngram`` has occurred, ``ngrams`` knows better if it knows at all."""
        ...

    def gather_drafts(self, slots: SlotTable, rows: Tensor, drafts: Tensor, step: int, block_size: int) -> Inputs:
        """What a draft model reads to decide draft ``step`` of each row that has one.

        A row's query is its newest token, draft or not. In the first step it is the newest two: the draft model has not
        seen the one before the last if that was a draft of its own, the last one, and was accepted.

        Args:
            slots: the slot table; the lengths of the slots in use are at least two.
            rows: [R] int64, slots.
            drafts: [R] int32, how many drafts each has. A row without a draft ``step`` is left out, or is padding: its
                position is -1, and nothing of it is written to the cache.
            step: which draft, from 0.
            block_size: tokens a cache block.
        """
        ...

    def write_drafts(self, tokens: Tensor, rows: SampleRows, slots: SlotTable) -> None:
        """Store what a draft model has drawn: [S] int64 ``tokens`` to ``rows``' slots and positions, but those at -1."""
        ...

    def logprobs(self, logits: Tensor, token_ids: Tensor, top: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Log-probabilities under the model's own distribution (before temperature, penalties and masks).

        Args:
            logits: [S, vocab], of any floating type, computed with in float32.
            token_ids: [S] int64, the chosen tokens.
            top: how many most likely tokens to report as well (0 for none).

        Returns:
            chosen [S] float32, rank [S] int64 (1 is the most likely), top ids [S, top] int64, top [S, top] float32.
        """
        ...
