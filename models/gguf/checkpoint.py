"""``GGUFCheckpoint``: a GGUF file's weights under HF's names and in HF's layout, still in the file's block formats.

Not here: dequantization, and which formats run (`quant`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from draftline.models.checkpoints.checkpoint import Checkpoint
from draftline.models.errors import ModelLoadError
from draftline.models.families import weight_shapes
from draftline.models.gguf.config import EMBEDDING, OUTPUT, ROPE_FACTORS, architecture, gguf_config
from draftline.models.gguf.fields import GGUFFields
from draftline.models.gguf.file import GGUFFile, GGUFTensor
from draftline.models.weight_shapes import check_shape
from draftline.quant import DEQUANTIZE
from draftline.quant.tensor import RawTensor

_TOP_LEVEL: dict[str, str] = {
    EMBEDDING: "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    OUTPUT: "lm_head.weight",
}

_IN_LAYER: dict[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
"""HF's module names by GGUF's, after ``model.layers.N.`` and ``blk.N.``."""

_DENSE: dict[str, torch.dtype] = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class GGUFCheckpoint(Checkpoint):
    """The weights of one GGUF file. Tensors that need no reordering share the file's mapped memory."""

    def __init__(self, file: GGUFFile) -> None:
        """Read the configuration and match every tensor with its HF name.

        Raises:
            ModelLoadError: the model is not supported, the metadata are incomplete, or its tensors are not just the
                ones that the metadata imply.
        """
        self._file = file
        self.config = gguf_config(file, _rope_factors(file))
        self._shapes = weight_shapes(self.config)
        self._tensors = {
            _hf_name(tensor.name, file): tensor for tensor in file.tensors.values() if tensor.name != ROPE_FACTORS
        }
        for name in self._shapes.keys() - self._tensors.keys():
            raise ModelLoadError(f"{file.path}: {name}: the tensor is missing")
        for name in self._tensors.keys() - self._shapes.keys():
            raise ModelLoadError(f"{file.path}: {self._tensors[name].name}: the configuration implies no such tensor")
        # The projections that the llama conversion permutes, and by how many heads.
        self._permuted: dict[str, int] = {}
        if architecture(GGUFFields(file)) == "llama":
            self._permuted = {"q_proj": self.config.num_heads, "k_proj": self.config.num_kv_heads}

    @override
    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    @override
    def tensor(self, name: str) -> RawTensor:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise ModelLoadError(f"{self._file.path}: {name}: not in this file")
        where = f"{self._file.path}: {tensor.name}"
        check_shape(self._shapes.get(name), name, tensor.shape, where)
        if tensor.type_name not in DEQUANTIZE:
            raise ModelLoadError(f"{where}: {name}: its format {tensor.type_name} is not supported")
        module = name.split(".")[-2]
        heads = self._permuted.get(module)
        rows = torch.from_numpy(self._file.rows(tensor))
        dtype = _DENSE.get(tensor.type_name)
        data = rows if dtype is None else rows.view(dtype).view(tensor.shape)
        if heads is not None:
            data = _half_split(data, heads)
        return RawTensor(name, tensor.type_name, tensor.shape, data)


def _half_split(data: Tensor, heads: int) -> Tensor:
    """Rows of a query or key projection (or its bias), from llama.cpp's rotary order to HF's.

    llama.cpp rotates neighbouring rows (2 i, 2 i + 1), HF rows (i, i + head_dim / 2); the conversion of llama models
    interleaves each head's halves accordingly. A row's blocks stay together, so quantized rows move as they are.
    """
    pairs = data.view(heads, data.shape[0] // heads // 2, 2, *data.shape[1:])
    return pairs.transpose(1, 2).reshape(data.shape)


def _hf_name(name: str, file: GGUFFile) -> str:
    if name in _TOP_LEVEL:
        return _TOP_LEVEL[name]
    match name.split("."):
        case ["blk", layer, module, "weight" | "bias" as kind] if layer.isdecimal() and module in _IN_LAYER:
            return f"model.layers.{layer}.{_IN_LAYER[module]}.{kind}"
    raise ModelLoadError(f"{file.path}: {name}: a tensor that no supported architecture has")


def _rope_factors(file: GGUFFile) -> list[float] | None:
    tensor = file.tensors.get(ROPE_FACTORS)
    if tensor is None:
        return None
    if tensor.type_name != "F32" or len(tensor.shape) != 1:
        raise ModelLoadError(f"{file.path}: {ROPE_FACTORS}: expected an F32 vector, got {_described(tensor)}")
    factors: list[float] = file.rows(tensor).view(np.float32)[0].tolist()
    return factors


def _described(tensor: GGUFTensor) -> str:
    return f"{tensor.type_name} {list(tensor.shape)}"
