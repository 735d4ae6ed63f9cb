"""The measurements of quantization.py, on a few tokens."""

from __future__ import annotations

import math

import pytest
import torch
from eight_bit.quality import DOCUMENTS, VARIANTS, GpuArithmetic, Piece, perplexity
from quantization import main

from draftline import LLM, SamplingParams, quant
from draftline.engine.bench.provenance import ROOT
from draftline.kernels.reference.ops import ReferenceOps
from draftline.models.families import build_model
from draftline.models.loader import open_checkpoint
from draftline.quant.fp8 import to_fp8
from draftline.quant.tensor import RawTensor

CPU = torch.device("cpu")


@pytest.mark.usefixtures("shared_weights")
def test_perplexity_counts_the_predicted_tokens_alone() -> None:
    checkpoint = open_checkpoint("smollm2")
    model = build_model(checkpoint, checkpoint.config, ReferenceOps(), torch.float32, CPU)
    tokens = (504, 3575, 282, 4649, 314, 7042, 28, 284, 260, 3575, 282)
    pieces = [Piece((), tokens)], [Piece((), tokens[:6])], [Piece(tokens[:6], tokens[6:])]
    whole, begin, end = (perplexity(model, torch.float32, piece) for piece in pieces)
    # Ten tokens are predicted: five in each half.
    assert math.log(whole) == pytest.approx((5 * math.log(begin) + 5 * math.log(end)) / 10, rel=1e-4)
    assert 1 < whole < 1000
    logprobs = (
        LLM("smollm2", dtype="float32", max_model_len=64, kv_cache_memory_gib=0.05, drafter="none")
        .generate([{"prompt_token_ids": [*tokens]}], SamplingParams(max_tokens=1, prompt_logprobs=0), use_tqdm=False)[0]
        .prompt_logprobs
        or []
    )
    engine_s = -sum(entry.chosen.logprob for entry in logprobs) / 10
    assert math.log(whole) == pytest.approx(engine_s, rel=1e-4)


def test_gpu_arithmetic_quantizes_activations_on_a_cpu() -> None:
    generator = torch.Generator().manual_seed(3)
    weight, x = torch.randn(48, 128, generator=generator), torch.randn(3, 128, generator=generator)
    raw = to_fp8(RawTensor("w", "F32", (48, 128), weight), weight)
    errors = []
    for ops in (GpuArithmetic(), ReferenceOps()):
        linear = quant.make_linear([raw], None, dtype=torch.float32, device=CPU, scaled=ops.runs_scaled)
        exact = x @ quant.dequantize(raw).T
        errors.append(float((linear.linear(x, ops) - exact).norm() / exact.norm()))
    assert errors[0] > 1e-3
    assert errors[1] < 1e-5


def test_the_first_variant_is_the_unquantized_model() -> None:
    assert VARIANTS[0] == {}
    assert {"quantization": "fp8"} in VARIANTS


@pytest.mark.parametrize("sections", ["speed", "quality,layer"])
def test_unknown_sections_are_rejected(
    sections: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["quantization.py", "--sections", sections])
    with pytest.raises(SystemExit):
        main()
    assert "there is no" in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, which would run the section")
def test_gpu_sections_without_a_gpu_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["quantization.py", "--sections", "layers"])
    with pytest.raises(SystemExit, match="layers needs a GPU"):
        main()


def test_the_documents_of_the_perplexity_exist() -> None:
    assert all((ROOT / name).is_file() for name in DOCUMENTS)
