"""``Ops``: every operation of a step that has a device-specific form.

One implementation is chosen at start-up and passed in. `reference.ops` implements all of it in plain torch: the CPU
path, and the oracle of every other implementation's tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import Batch, DraftQuery, Inputs, LayerCache
from draftline.kernels.constraints import ConstraintTable, SampleConstraints
from draftline.kernels.scaled import ScaledWeight
from draftline.kernels.slots import SampleRows, SlotTable

Accept = Callable[[Tensor, SampleRows, Tensor, int, SlotTable], Tensor]
"""`Ops.accept`, or a substitute for it."""

Sample = Callable[[Tensor, SampleRows, SlotTable], Tensor]
"""`Ops.sample`, or a substitute for it."""

AreUneven = Callable[[int, Sequence[int], int], bool]
"""Whether decodes or verifies of up to so many query tokens, with histories of these lengths, are faster with
`Ops.divide_histories`, beside so many rows of prompts and padding."""


def never_uneven(query_len: int, context_lens: Sequence[int], prompts: int) -> bool:
    """The rule of devices that divide no histories."""
    return False


class Ops(Protocol):
    """The device-specific operations. H are query heads, G key/value heads, D the head size, T tokens."""

    @property
    def scripted(self) -> bool:
        """Whether a decoder on a CPU may run as one TorchScript program of `kernels.reference.functional` instead.

        True of implementations that are made of the same functions.
        """
        ...

    @property
    def runs_scaled(self) -> bool:
        """Whether `scaled_linear` and its fusions run eight-bit weights as stored; else loading unpacks them."""
        ...

    def settle(self) -> bool:
        """Settle which of several kernels of equal results run the operations that were captured so far.

        That needs the device, so not while anything is captured. Without it, they run, but may be slower.

        Returns:
            Whether any was settled, and may be captured otherwise now.
        """
        ...

    def launch_alternatives(self) -> None:
        """Launch the captured operations' kernels for other numbers of rows, so that they can be compiled."""
        ...

    def take_rows(self, table: Tensor, index: Tensor) -> Tensor:
        """``table[index]``: [V, N], [T] int64 -> [T, N].

        Each tensor's rows are contiguous; -1 is the table's last row.
        """
        ...

    def put_rows(self, rows: Tensor, index: Tensor, table: Tensor) -> None:
        """``table[index] = rows``: [T, N], [T] int64, [V, N], as `take_rows`. Of rows with one index, any is kept."""
        ...

    def copy_rows(self, rows: Tensor, out: Tensor) -> None:
        """Copy [T, N] into ``out`` [T, N], which may be a part of wider rows."""
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

    def joined_norms(
        self, table: Tensor, token_ids: Tensor, table_norm: Tensor, hidden: Tensor, hidden_norm: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """RMSNorm of each token's vector and of its hidden state, side by side: what an EAGLE-3 head's attention reads.

        Args:
            table: [V, N], the tokens' vectors.
            token_ids: [T] int64.
            table_norm: [N], the weights of the vectors' norm.
            hidden: [T, N], contiguous.
            hidden_norm: [N], the weights of the hidden states' norm.
            eps: of both norms.

        Returns:
            [T, 2 N] in the type of ``hidden``, and [T, N], the norm of the hidden states alone.
        """
        ...

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """LayerNorm over the last axis: [T, N] -> [T, N], computed in float32 (Ba et al. 2016)."""
        ...

    def rope_write_kv(self, qkv: Tensor, batch: Batch, cache: LayerCache, spec: AttentionSpec) -> Tensor:
        """Split, (normalise,) rotate and write: the query heads, rotated, as [T, H, D].

        Args:
            qkv: [T, (H + 2 G) * D], query, key and value heads of each token; it may be written over.
            batch: positions and cache indices of the tokens.
            cache: keys and values are written at ``batch.cache_index``, in the cache's type: FP8 (e4m3) as they are,
                INT8 with a scale for each head of a token.
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

    def norm_linear(self, x: Tensor, norm: Tensor, eps: float, weight: Tensor, bias: Tensor | None) -> Tensor:
        """`linear` of `rms_norm` of ``x``: [T, K] -> [T, N]."""
        ...

    def norm_swiglu(self, x: Tensor, norm: Tensor, eps: float, weight: Tensor, bias: Tensor | None) -> Tensor:
        """`silu_mul` of `norm_linear`, the weight being [2 N, K]: [T, K] -> [T, N]."""
        ...

    def linear_add(self, x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor) -> Tensor:
        """``residual + linear(x)``: [T, K], [T, N] -> [T, N]. It may be written over ``residual``."""
        ...

    def scaled_linear(self, x: Tensor, weight: ScaledWeight, bias: Tensor | None) -> Tensor:
        """`linear` of an eight-bit weight: [T, K], [N, K], [N] -> [T, N].

        Whatever T is, `kernels.scaled.quantize_activations` quantizes ``x``.
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
        table: SlotTable,
        slots: Tensor,
        query_lens: tuple[int, ...],
        starts: tuple[int, ...],
        logits_counts: tuple[int, ...],
        block_size: int,
        from_newest: tuple[bool, ...] = (),
    ) -> Inputs:
        """Build a step's inputs from the slot table.

        Args:
            table: the slot table.
            slots: [R] int64, the slot of each row.
            query_lens: query tokens of each row.
            starts: each row's computed tokens: its query starts at this position.
            logits_counts: how many of each row's last query tokens want logits.
            block_size: tokens a cache block.
            from_newest: for each row, whether its query starts with its newest known token, at a position that only
                the device knows (`SlotTable.lengths`). Its start is then an upper bound. Empty: no row's does.
        """
        ...

    def uneven_rule(self, bound: int, heads: tuple[int, int], cache: LayerCache) -> AreUneven:
        """The rule by which `divide_histories` is worth it.

        Args:
            bound: the longest context.
            heads: H and G.
            cache: any layer's.
        """
        return never_uneven

    def divide_histories(self, batch: Batch, cache: LayerCache, ahead: int = 0) -> Batch:
        """The batch, with what attention needs to divide histories between programs.

        Args:
            batch: the rows.
            cache: any layer's.
            ahead: by how many tokens histories may be longer in later passes that have the same parts.
        """
        return batch

    def sample(self, logits: Tensor, rows: SampleRows, table: SlotTable) -> Tensor:
        """The token at each row's position, a pure function of its logits, history, parameters and seed.

        ``argmax(processed / T + gumbel(seed, position, token))`` (the Gumbel-max trick), ties to the lowest id;
        T = 0 is ``argmax(processed)``.

        Args:
            logits: [S, vocab], of any floating type, computed with in float32; left unchanged.
            rows: which sequence and position each logits row belongs to.
            table: the slot table, with the sequences' tokens (drafts included) and sampling parameters.

        Returns:
            [S] int64 token ids.
        """
        ...

    def accept(self, tokens: Tensor, rows: SampleRows, starts: Tensor, max_samples: int, table: SlotTable) -> Tensor:
        """Accept each row's drafts while they equal the sampled tokens, and commit the accepted tokens.

        The target samples every position as plain decoding would, a pure function of history, parameters and seed. So
        the accepted tokens are plain decoding's own: no draft probabilities and no rejection sampling are needed.

        Args:
            tokens: [S] int64, the result of `sample`.
            rows: the argument of `sample`; ``table.tokens`` has the drafts at the same positions.
            starts: [R + 1] int32: row r's samples are ``starts[r]`` to ``starts[r + 1]``. The last one has no draft. A
                row without samples is left alone.
            max_samples: a bound on the samples of a row.
            table: the slot table; its tokens and lengths are updated.

        Returns:
            [R] int32, how many samples each row keeps: up to and including the first that differs from its draft.
        """
        ...

    def constrain(
        self, rows: SampleRows, starts: Tensor, table: SlotTable, constraints: ConstraintTable
    ) -> SampleConstraints:
        """The constraint of each sampled position, assuming that its row's earlier drafts are accepted.

        Behind a draft that is not allowed, everything is allowed: these positions can never be accepted.

        Args:
            rows: the positions to sample; ``table.tokens`` has the drafts at the same positions.
            starts: [R + 1] int32: row r's samples are ``starts[r]`` to ``starts[r + 1]``. The last one has no draft.
                Positions beyond the last row's are not constrained.
            table: the slot table.
            constraints: the constraint table, with the states before the step.
        """
        ...

    def advance_constraints(
        self,
        tokens: Tensor,
        accepted: Tensor,
        rows: SampleRows,
        starts: Tensor,
        sample_constraints: SampleConstraints,
        constraints: ConstraintTable,
    ) -> None:
        """Advance the slots' states by the tokens that they keep. A token that is not allowed changes nothing.

        Args:
            tokens: [S] int64, the result of `sample`.
            accepted: [R] int32, the result of `accept`.
            rows: as given to `constrain`.
            starts: as given to `constrain`.
            sample_constraints: the result of `constrain`.
            constraints: the constraint table; its states are written, except those of slots that the host masks.
        """
        ...

    def draft_forced(self, slots: Tensor, count: int, table: SlotTable, constraints: ConstraintTable) -> None:
        """Draft the tokens that the slots' states force, over the drafts that are there. Other drafts stay.

        Args:
            slots: [R] int64, the slots that want drafts.
            count: at most how many each gets, written behind its known tokens.
            table: the slot table.
            constraints: the constraint table.
        """
        ...

    def draft_ngram(self, slots: Tensor, count: int, max_ngram: int, table: SlotTable, least: int = 0) -> None:
        """Draft the continuation of the latest earlier occurrence of a sequence's end (prompt lookup).

        The longest end that occurs earlier counts, up to ``max_ngram`` tokens.

        Args:
            slots: [R] int64, the slots that want drafts.
            count: how many each gets, written behind its known tokens.
            max_ngram: at most how many tokens of the end are compared.
            table: the slot table.
            least: how many tokens of the end must occur earlier. The drafts of other rows stay.
        """
        ...

    def learn_ngrams(self, slots: Tensor, count: int, ngrams: Tensor, table: SlotTable) -> None:
        """Record the last ``count`` known tokens of some sequences, each under the three tokens before it.

        Args:
            slots: [R] int64, the sequences' slots.
            count: how many tokens of each to record.
            ngrams: [E, 2] int32, the hash table to write, of E entries, a power of two. An entry is a check of the
                three tokens, and the token that followed. Where several hash to one entry, any of them stays.
            table: the slot table.
        """
        ...

    def draft_ngram_table(self, slots: Tensor, count: int, max_ngram: int, ngrams: Tensor, table: SlotTable) -> None:
        """`draft_ngram`, but where fewer than ``max_ngram`` tokens of the end match, ``ngrams`` comes first."""
        ...

    def gather_drafts(
        self, table: SlotTable, slots: Tensor, drafts: Tensor, query: DraftQuery, passes: int, block_size: int
    ) -> tuple[Inputs, ...]:
        """Build a drafter's inputs for the passes of a round.

        `draft_sampled` fills in the token ids of all but the first.

        Args:
            table: the slot table; the lengths of the slots in use are at least ``query.tokens + query.shift``.
            slots: [R] int64, the slot of each row.
            drafts: [R] int32, how many drafts each row has. A row without a pass's draft is left out of it, or is
                padding: its positions are -1, and it writes nothing to the cache.
            query: what the first pass reads of a row.
            passes: how many passes; with ``query.ahead``, one.
            block_size: tokens a cache block.
        """
        ...

    def draft_sampled(
        self,
        logits: Tensor,
        token_ids: Tensor | None,
        slots: Tensor,
        positions: Tensor,
        table: SlotTable,
        constraints: ConstraintTable,
        following: Inputs | None = None,
    ) -> None:
        """Draft the tokens that the slots' states force, else those that `sample` would take by temperature alone.

        They go into ``table.tokens``.

        Args:
            logits: [S, N], of any floating type, computed with in float32; left unchanged. Without a finite one, any
                token is drafted.
            token_ids: [N] int64, ascending, the token of each logit; others are not drafted. None: logit i is token
                i's.
            slots: [S] int64, the slot of each draft.
            positions: [S] int64, its position; -1 of a draft that is not stored.
            table: the slot table.
            constraints: the constraint table.
            following: the inputs of the next pass, whose token ids are these drafts; None behind the last one.
        """
        ...

    def note_time(self, moments: Tensor, index: int) -> None:
        """Write what the device's clock shows when all work before has run.

        Args:
            moments: [N] int64, in nanoseconds since any moment.
            index: which of them to write.
        """
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
