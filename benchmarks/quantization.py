"""Time, memory and quality of quantized weights and caches.

    python benchmarks/quantization.py --sections quality          perplexity of SmolLM2 in each format, on any machine
    python benchmarks/quantization.py --sections quality --gpu-arithmetic    the same on a CPU, with a GPU's arithmetic
    python benchmarks/quantization.py --sections layers,attention,memory,divisions    needs a GPU

- ``layers``: the four projections of a layer with their fusions, by number of rows, after a check against float64:
  eight-bit formats compared with bfloat16, and with bfloat16 products of the vendor's library.
- ``attention``: attention of a decode step over caches of each dtype.
- ``memory``: the shape of Llama-8B with dummy weights, loaded in each format: the memory of its parts, and the peak
  while loading.
- ``divisions``: other tile configurations of the eight-bit products than the default ones, at the sizes of Llama-8B.
- ``quality``: perplexity, see eight_bit/quality.py.

Not measured here: the throughput of an engine; see throughput.py --set quantization=fp8 --set kv_cache_dtype=fp8.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from common.arguments import fill, positive_int, refuse
from eight_bit.quality import GpuArithmetic, quality

from draftline.engine.bench.provenance import conditions

GPU_SECTIONS = ("layers", "attention", "memory", "divisions")

_OF_GPU_SECTIONS: Mapping[str, object] = {"seconds": 110.0, "out": None}
_OF_QUALITY: Mapping[str, object] = {"dtype": "auto", "tokens": 4000}
"""The arguments of some sections, with their defaults."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the sections, print their tables, save the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sections",
        default="quality",
        help=f"comma-separated, of quality, {', '.join(GPU_SECTIONS)} (default: quality)",
    )
    parser.add_argument("--seconds", type=float, help="start no GPU case after this time (default: 110)")
    parser.add_argument("--out", type=Path, help="save the results of the GPU sections to this JSON file")
    parser.add_argument("--dtype", help="the dtype of the models of --sections quality (default: auto)")
    parser.add_argument("--tokens", type=positive_int, help="tokens of each text of --sections quality (default: 4000)")
    parser.add_argument(
        "--gpu-arithmetic", action="store_true", help="on a CPU: quantize activations as a GPU does, in float32 (slow)"
    )
    options = parser.parse_args(argv)
    sections = options.sections.split(",")
    unknown = set(sections) - {"quality", *GPU_SECTIONS}
    if unknown:
        parser.error(f"--sections: there is no {min(unknown)!r}")
    begin = time.monotonic()
    gpu = [section for section in sections if section in GPU_SECTIONS]
    if not gpu:
        refuse(parser, options, _OF_GPU_SECTIONS, f"belongs to the sections {', '.join(GPU_SECTIONS)}")
    if "quality" not in sections:
        refuse(parser, options, ["gpu_arithmetic", *_OF_QUALITY], "belongs to the section quality")
    if options.gpu_arithmetic:
        refuse(parser, options, ["dtype"], "not with --gpu-arithmetic, which is float32")
        if torch.cuda.is_available():
            parser.error("--gpu-arithmetic: for CPUs only")
    fill(options, {**_OF_GPU_SECTIONS, **_OF_QUALITY})
    if gpu:
        if not torch.cuda.is_available():
            raise SystemExit(f"--sections {','.join(gpu)} needs a GPU, and torch finds none here")
        # Imported here: a CPU has no Triton.
        from eight_bit.kernels import run_sections

        run_sections(gpu, begin + options.seconds, options.out)
    if "quality" in sections:
        begun = conditions("cuda" if torch.cuda.is_available() else "cpu")
        lines = (
            quality("float32", options.tokens, GpuArithmetic())
            if options.gpu_arithmetic
            else quality(options.dtype, options.tokens)
        )
        for line in lines:
            print(json.dumps({**begun, "gpu_arithmetic": options.gpu_arithmetic, **line}), flush=True)


if __name__ == "__main__":
    main()
