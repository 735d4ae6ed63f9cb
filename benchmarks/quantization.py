"""What quantized weights and caches cost and give: time, memory and quality.

    python benchmarks/quantization.py --sections quality          perplexity of SmolLM2 in each format, on any machine
    python benchmarks/quantization.py --sections quality --gpu-arithmetic    the same on a CPU, with what a GPU multiplies
    python benchmarks/quantization.py --sections layers,attention,memory,divisions    needs a GPU

- ``layers``: a layer's four projections with what is fused into them, by number of rows, checked against float64 first:
  eight-bit formats beside bfloat16, and that by the vendor's products alone.
- ``attention``: a decode step's attention over caches of each type.
- ``memory``: Llama-8B's shape with dummy weights, loaded in each format: what its parts take, and the most while loading.
- ``divisions``: other divisions of the eight-bit products than the ones that are used, at Llama-8B's sizes.
- ``quality``: see `quantization_quality`.

Not here: a whole engine's throughput, which `throughput.py --set quantization=fp8 --set kv_cache_dtype=fp8` measures.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

import torch
from common.provenance import Conditions
from eight_bit.quality import GpuArithmetic, quality

GPU_SECTIONS = ("layers", "attention", "memory", "divisions")


def main() -> None:
    """Run the sections, print their tables, save the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", default="quality", help=f"of quality, {', '.join(GPU_SECTIONS)}")
    parser.add_argument("--seconds", type=float, default=110.0, help="begin no GPU case after this time")
    parser.add_argument("--out", type=Path, help="where to save the GPU sections' results as JSON")
    parser.add_argument("--dtype", default="auto", help="of the models whose quality is measured")
    parser.add_argument("--tokens", type=int, default=4000, help="tokens a text, for the quality")
    parser.add_argument(
        "--gpu-arithmetic", action="store_true", help="on a CPU: quantize activations as a GPU does, in float32 (slow)"
    )
    options = parser.parse_args()
    sections = options.sections.split(",")
    unknown = set(sections) - {"quality", *GPU_SECTIONS}
    if unknown:
        parser.error(f"--sections: there is no {min(unknown)!r}")
    begin = time.monotonic()
    gpu = [section for section in sections if section in GPU_SECTIONS]
    if gpu:
        if not torch.cuda.is_available():
            raise SystemExit(f"--sections {','.join(gpu)} needs a GPU, and torch finds none here")
        # Imported here, since a CPU does without Triton.
        from eight_bit.kernels import run_sections

        run_sections(gpu, begin + options.seconds, options.out)
    if "quality" in sections:
        if options.gpu_arithmetic and torch.cuda.is_available():
            parser.error("--gpu-arithmetic: a GPU has no other")
        conditions = asdict(Conditions.now(torch.device("cuda" if torch.cuda.is_available() else "cpu")))
        lines = (
            quality("float32", options.tokens, GpuArithmetic())
            if options.gpu_arithmetic
            else quality(options.dtype, options.tokens)
        )
        for line in lines:
            print(json.dumps({**conditions, "gpu_arithmetic": options.gpu_arithmetic, **line}), flush=True)


if __name__ == "__main__":
    main()
