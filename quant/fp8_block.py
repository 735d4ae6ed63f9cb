"""FP8 as transformers writes it (``quant_method: fp8``; Qwen3-8B-FP8): e4m3, a scale for each 128 x 128 block.

A weight's scales are stored as ``weight_scale_inv`` (despite the name, they multiply). Where the configuration
has no block size, one is for the whole weight (Ministral 3, Devstral 2), which other tools write as ``weight_scale``.
"""

from __future__ import annotations

from collections.abc import Mapping

from draftline.quant.scheme import Scheme, block, expect


def fp8_scheme(config: Mapping[str, object]) -> Scheme:
    """The scheme of a ``quantization_config`` with this method.

    Raises:
        UnsupportedFormatError: it requests an unsupported feature; the message names the field.
    """
    expect(config, "fmt", "e4m3", None)
    # Static activation scales may be there; quantizing each token by its own loses less.
    expect(config, "activation_scheme", "dynamic", "static", None)
    sizes = config.get("weight_block_size")
    if sizes is None:
        return Scheme("fp8", "F8_E4M3", ("weight_scale_inv", "weight_scale"), 0, 0)
    return Scheme("fp8-block", "F8_E4M3", ("weight_scale_inv",), *block(sizes, "weight_block_size"))
