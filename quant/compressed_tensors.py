"""``quant_method: compressed-tensors`` (llm-compressor's output): FP8 and INT8 with ``weight_scale``.

Weights of eight bits, symmetric, with one scale for a tensor, a row (``channel``) or a block. What it says of
activations does not change how they are quantized here: each token by itself, as it comes (`draftline.kernels.scaled`).
"""

from __future__ import annotations

from collections.abc import Mapping

from draftline.quant.scheme import Scheme, block, expect, refused

_FORMATS = {"float": "F8_E4M3", "int": "I8"}


def compressed_tensors_scheme(config: Mapping[str, object]) -> Scheme:
    """The scheme of a ``quantization_config`` with this method.

    Raises:
        UnsupportedFormatError: it requests an unsupported feature; the message names the field.
    """
    expect(config, "format", "float-quantized", "int-quantized", "naive-quantized", None)
    expect(config, "quantization_status", "compressed", "frozen", None)
    sparsity = config.get("sparsity_config")
    if isinstance(sparsity, Mapping) and sparsity:
        expect(sparsity, "format", "dense", None, where="sparsity_config.")
    # Rotations of activations, which a product with such weights needs.
    expect(config, "transform_config", {}, None)
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise refused("config_groups", "missing, or not an object with a group")
    schemes = {name: _group(group, f"config_groups.{name}.") for name, group in groups.items()}
    first, *others = schemes.items()
    for name, scheme in others:
        if scheme != first[1]:
            raise refused(f"config_groups.{name}", f"differs from {first[0]}; all weights must be quantized alike")
    return first[1]


def _group(group: object, where: str) -> Scheme:
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping):
        raise refused(f"{where}weights", "missing, or not an object")
    where += "weights."
    expect(weights, "num_bits", 8, where=where)
    expect(weights, "type", *_FORMATS, where=where)
    expect(weights, "symmetric", True, None, where=where)
    expect(weights, "dynamic", False, None, where=where)
    expect(weights, "strategy", "tensor", "channel", "block", where=where)
    kind, strategy = str(weights["type"]), weights["strategy"]
    rows, columns = {"tensor": (0, 0), "channel": (1, 0)}.get(str(strategy), (0, 0))
    if strategy == "block":
        rows, columns = block(weights.get("block_structure"), f"{where}block_structure")
    name = f"{'fp8' if kind == 'float' else 'int8'}-{strategy}"
    return Scheme(name, _FORMATS[kind], ("weight_scale",), rows, columns)
