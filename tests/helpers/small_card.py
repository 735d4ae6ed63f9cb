"""A process on a GPU that has less memory than the real one: ``python small_card.py GIB SHAPE [OPTIONS as JSON]``.

torch's allocator gets no more than the smaller memory, and the driver's figures, which the engine plans by, are those of the
smaller card. The driver's own share is taken off: a context, loaded kernels and graphs lie outside of the allocator. The last
line of the output is a JSON object: either the error of the start, or what was served and the most memory that was reserved.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from draftline import LLM, SamplingParams
from draftline.engine.bench.contenders.engines import BenchmarkModel
from draftline.engine.bench.contenders.shapes import find_shape
from draftline.engine.runner.memory import OutOfMemoryAtStartError

DRIVER_BYTES = 640 << 20
"""What a process takes outside of torch's allocator."""


def limit_memory(total: int) -> None:
    """Let this process see, and get, ``total`` bytes of the current GPU."""
    _, real = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction((total - DRIVER_BYTES) / real)

    def mem_get_info(device: object = None) -> tuple[int, int]:
        return total - DRIVER_BYTES - torch.cuda.memory_reserved(), total

    torch.cuda.mem_get_info = mem_get_info


def serve(shape: str, options: dict[str, Any]) -> dict[str, object]:
    """Answer a small crowd, and one long prompt, with default options but for those given."""
    with tempfile.TemporaryDirectory() as folder:
        model = BenchmarkModel.of_shape(shape, find_shape(shape), Path(folder))
        try:
            llm = LLM(model.checkpoint, load_format="dummy", device="cuda", dtype="bfloat16", **options)
        except OutOfMemoryAtStartError as error:
            return {"refused": str(error)}
        with llm:
            prompts = [[5 + (7 * i + 3 * j) % 900 for j in range(20 + 40 * i)] for i in range(16)]
            prompts.append([9 + j % 700 for j in range(min(4000, llm.info.max_model_len - 64))])
            sampling = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
            outputs = llm.generate(prompts, sampling, use_tqdm=False)
            alone = [llm.generate(prompts[i], sampling, use_tqdm=False)[0] for i in (0, 16)]
            return {
                "tokens": [len(output.outputs[0].token_ids) for output in outputs],
                "alike": all(
                    a.outputs[0].token_ids == outputs[i].outputs[0].token_ids
                    for i, a in zip((0, 16), alone, strict=True)
                ),
                "reserved": torch.cuda.max_memory_reserved(),
                "max_model_len": llm.info.max_model_len,
            }


if __name__ == "__main__":
    limit_memory(int(float(sys.argv[1]) * (1 << 30)))
    print(json.dumps(serve(sys.argv[2], json.loads(sys.argv[3]) if len(sys.argv) > 3 else {})))
