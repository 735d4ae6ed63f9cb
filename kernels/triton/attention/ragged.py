"""Attention of any batch: prompt chunks, decodes and verifies, each kind in its own launch.

Where launches overlap, the two run at the same time: chunks are bound by arithmetic, and decodes by the memory. The chunks' launch is the
first, since each of its tiles takes longest.

Not here: batches of decodes and verifies alone, whose launch rotates and writes keys too (`decode.py`).
"""

from __future__ import annotations

from torch import Tensor

from draftline.kernels.attention_spec import AttentionSpec
from draftline.kernels.batch import Batch, LayerCache
from draftline.kernels.triton.attention.chunks import attend_chunks
from draftline.kernels.triton.attention.decode import attend_short
from draftline.kernels.triton.attention.decode_plan import plan_short
from draftline.kernels.triton.attention.parts_plan import plan_uneven_short
from draftline.kernels.triton.attention.plan import AttentionShape, plan_chunks
from draftline.kernels.triton.device import DeviceLimits
from draftline.kernels.triton.overlap import ALONE, FIRST, SECOND
from draftline.kernels.triton.rows import empty_rows


def attention(
    q: Tensor,
    batch: Batch,
    cache: LayerCache,
    spec: AttentionSpec,
    *,
    limits: DeviceLimits,
    own: Tensor | None = None,
    overlap: bool = False,
) -> Tensor:
    """``Ops.attention`` by Triton kernels. Query and context lengths known to the host may be upper bounds.

    Args:
        q: [T, H, D], each token's heads contiguous.
        batch: rows and block tables.
        cache: the layer's keys and values.
        spec: the layer's attention.
        limits: the device's: splits fill its multiprocessors, and tiles fit its shared memory.
        own: [T, (H + 2 G) * D], the tokens' queries ``q``, and their rotated keys and values. Then the queries are normalised and
            rotated here, where each is read once, and prompt chunks read their own keys here, faster than through the block
            table. Without it queries are rotated already, and all keys are read from the cache.
        overlap: start before the previous kernel has ended.
    """
    shape = AttentionShape.of(q.shape[1] // cache.keys.shape[2], q, cache, limits)
    lengths = batch.query_lens_host
    # Windows leave no long histories.
    plans = plan_short if batch.parts is None or spec.window is not None else plan_uneven_short
    short = plans(shape, lengths, batch.context_lens_host)
    chunks = plan_chunks(shape, lengths, q.shape[0], short.longest if short is not None else 0)
    out = empty_rows(q.shape[0], q.shape[1] * q.shape[2], dtype=q.dtype, device=q.device)
    first, second = (FIRST, SECOND) if short and chunks and limits.overlaps else (ALONE, ALONE)
    if chunks is not None:
        attend_chunks(q, batch, cache, spec, out, plan=chunks, own=own, place=first.value, overlap=overlap)
    if short is not None:
        rotate = own is not None
        attend_short(q, batch, cache, spec, out, plan=short, rotate=rotate, place=second.value, overlap=overlap)
    return out
