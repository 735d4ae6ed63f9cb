"""Reading an HF ``config.json``: typed fields, clear errors, and the parts all decoders share.

The differences between families (biases, windows, norms) are in each family's file. Defaults of absent fields are those
of transformers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from draftline.models.config import Llama3Scaling, ModelConfig, RopeScaling, YarnScaling
from draftline.models.errors import ModelLoadError

SLIDING, FULL = "sliding_attention", "full_attention"
"""The names of layers with and without a sliding window in ``layer_types``."""


class HfConfig:
    """A ``config.json`` (or one of its objects), read field by field.

    Every method raises ModelLoadError, naming the field, if the field has a wrong type or is missing without a default.
    ``null`` counts as missing, as in transformers.
    """

    def __init__(self, values: Mapping[str, object], where: str = "config.json") -> None:
        self._values = values
        self._where = where

    def error(self, name: str, problem: str) -> ModelLoadError:
        """The error of field ``name``, to be raised."""
        return ModelLoadError(f"{self._where}: {name}: {problem}")

    def has(self, name: str) -> bool:
        """Whether the field is there at all, ``null`` included."""
        return name in self._values

    def integer(self, name: str, default: int | None = None, *, minimum: int = 1) -> int:
        """An integer of at least ``minimum``."""
        value = self._value(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise self.error(name, f"expected an integer of at least {minimum}, got {value!r}")
        return value

    def optional_integer(self, name: str, *, minimum: int = 0) -> int | None:
        """An integer of at least ``minimum``, or None where the field is missing or null."""
        return None if self._values.get(name) is None else self.integer(name, minimum=minimum)

    def window(self, default: int) -> int | None:
        """``sliding_window``: none where it is null, the default where it is left out."""
        return self.optional_integer("sliding_window", minimum=1) if self.has("sliding_window") else default

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number."""
        value = self._value(name, default)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise self.error(name, f"expected a positive number, got {value!r}")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        """A positive number, or None where the field is missing or null."""
        return None if self._values.get(name) is None else self.number(name)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"expected true or false, got {value!r}")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A string."""
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self.error(name, f"expected a string, got {value!r}")
        return value

    def strings(self, name: str) -> tuple[str, ...] | None:
        """A list of strings, or None where the field is missing or null."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
            raise self.error(name, f"expected a list of strings, got {value!r}")
        return tuple(value)

    def token_ids(self, name: str) -> tuple[int, ...]:
        """A token id or a list of them; none where the field is missing or null."""
        value = self._values.get(name)
        ids = value if isinstance(value, list | tuple) else [] if value is None else [value]
        for item in ids:
            if not isinstance(item, int) or isinstance(item, bool) or item < 0:
                raise self.error(name, f"expected a token id or a list of token ids, got {value!r}")
        return tuple(ids)

    def integers(self, name: str) -> tuple[int, ...]:
        """A list of integers that are not negative; none where the field is missing or null."""
        value = self._values.get(name)
        if value is None:
            return ()
        if not isinstance(value, list | tuple) or not all(type(item) is int and item >= 0 for item in value):
            raise self.error(name, f"expected a list of integers, got {value!r}")
        return tuple(value)

    def section(self, name: str) -> HfConfig | None:
        """A nested object, or None where the field is missing or null."""
        value = self._values.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(name, f"expected an object, got {value!r}")
        return HfConfig(value, f"{self._where}: {name}")

    def agrees_with(self, other: HfConfig) -> bool:
        """Whether the other object has every field of this one, with the same value."""
        missing = object()
        return all(other._values.get(name, missing) == value for name, value in self._values.items())

    def _value(self, name: str, default: object) -> object:
        value = self._values.get(name)
        if value is None:
            if default is None:
                raise self.error(name, "missing")
            return default
        return value


def decoder_config(
    hf: HfConfig,
    *,
    family: str,
    sliding_windows: tuple[int | None, ...],
    qkv_bias: bool,
    output_bias: bool,
    mlp_bias: bool,
    qk_norm: bool,
    default_head_dim: int | None = None,
) -> ModelConfig:
    """The ModelConfig of a Llama-like decoder, from the fields that all families share and a family's arguments.

    Args:
        hf: the config.json.
        family: its key in FAMILIES.
        sliding_windows: each layer's window, or None.
        qkv_bias: see ModelConfig.
        output_bias: see ModelConfig.
        mlp_bias: see ModelConfig.
        qk_norm: see ModelConfig.
        default_head_dim: the head size where config.json has none; None is hidden_size / num_attention_heads.

    Raises:
        ModelLoadError: a field is missing, malformed, or requests an unsupported feature.
    """
    activation = hf.text("hidden_act", "silu")
    if activation != "silu":
        raise hf.error("hidden_act", f"{activation!r} is not supported; only 'silu' is")
    num_heads = hf.integer("num_attention_heads")
    num_kv_heads = hf.integer("num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise hf.error("num_key_value_heads", f"{num_kv_heads} does not divide num_attention_heads = {num_heads}")
    bos = hf.token_ids("bos_token_id")
    rope_theta, rope_factor, rope_scaling = _rope(hf)
    max_positions = hf.integer("max_position_embeddings")
    if isinstance(rope_scaling, YarnScaling):  # config.json may have the context from before
        max_positions = max(max_positions, int(rope_scaling.factor * rope_scaling.original_max_positions))
    return ModelConfig(
        family=family,
        vocab_size=hf.integer("vocab_size"),
        hidden_size=hf.integer("hidden_size"),
        intermediate_size=hf.integer("intermediate_size"),
        num_layers=hf.integer("num_hidden_layers"),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=_head_dim(hf, num_heads, default_head_dim),
        max_positions=max_positions,
        norm_eps=hf.number("rms_norm_eps", 1e-6),
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        sliding_windows=sliding_windows,
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        mlp_bias=mlp_bias,
        qk_norm=qk_norm,
        tied_embeddings=hf.flag("tie_word_embeddings", False),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=hf.token_ids("eos_token_id"),
        rope_factor=rope_factor,
    )


def qwen_windows(hf: HfConfig) -> tuple[int | None, ...]:
    """Each layer's sliding window as Qwen2 and Qwen3 write it.

    The window holds where ``use_sliding_window`` is set, in the layers that ``layer_types`` names, or else in the
    layers from ``max_window_layers`` on.
    """
    num_layers = hf.integer("num_hidden_layers")
    window = hf.window(4096) if hf.flag("use_sliding_window", False) else None
    types = hf.strings("layer_types")
    if types is None:
        first = hf.integer("max_window_layers", 28, minimum=0)
        return tuple(window if layer >= first else None for layer in range(num_layers))
    if window is None and SLIDING in types:
        raise hf.error("layer_types", f"names {SLIDING!r} while use_sliding_window is false")
    return windows_by_type(hf, types, num_layers, window)


def windows_by_type(
    hf: HfConfig, types: tuple[str, ...], num_layers: int, window: int | None
) -> tuple[int | None, ...]:
    """Each layer's sliding window: ``window`` where ``layer_types`` says so.

    Raises:
        ModelLoadError: there is a type that nothing here does, or another number of them than of layers.
    """
    if len(types) != num_layers:
        raise hf.error("layer_types", f"has {len(types)} entries for {num_layers} layers")
    unknown = sorted(set(types) - {SLIDING, FULL})
    if unknown:
        raise hf.error("layer_types", f"{unknown[0]!r} is not supported; {FULL!r} and {SLIDING!r} are")
    return tuple(window if kind == SLIDING else None for kind in types)


def _head_dim(hf: HfConfig, num_heads: int, default: int | None) -> int:
    if default is None:
        hidden_size = hf.integer("hidden_size")
        if hf.optional_integer("head_dim") is None and hidden_size % num_heads:
            raise hf.error("hidden_size", f"{hidden_size} is not a multiple of num_attention_heads = {num_heads}")
        default = hidden_size // num_heads
    head_dim = hf.integer("head_dim", default)
    if head_dim % 2:
        raise hf.error("head_dim", f"{head_dim} is odd, so it has no rotary halves")
    return head_dim


def rope_scaling(hf: HfConfig, parameters: HfConfig | None) -> HfConfig | None:
    """``rope_scaling``, which transformers 5 replaced by ``rope_parameters``.

    Args:
        hf: the object that has it.
        parameters: the ``rope_parameters`` in its place, or None.

    Raises:
        ModelLoadError: both are there and differ. Of the two, transformers takes the older one.
    """
    scaling = hf.section("rope_scaling")
    if scaling is not None and parameters is not None and not scaling.agrees_with(parameters):
        raise hf.error("rope_scaling", "differs from rope_parameters; keep one of them")
    return scaling


def _rope(hf: HfConfig) -> tuple[float, float, RopeScaling | None]:
    """Base, linear factor and other scaling.

    From ``rope_parameters`` (transformers 5), or the ``rope_theta`` and ``rope_scaling`` that there were before.
    """
    parameters = hf.section("rope_parameters")
    scaling = rope_scaling(hf, parameters)
    rope = parameters or scaling or HfConfig({})
    for layer_type in (FULL, SLIDING):
        if rope.has(layer_type):
            raise rope.error(layer_type, "rotary parameters by layer type are not supported")
    theta = rope.number("rope_theta", hf.number("rope_theta", 10_000.0))
    partial = rope.number("partial_rotary_factor", hf.number("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise rope.error("partial_rotary_factor", f"{partial} is not supported; only 1 is")
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind == "default":
        return theta, 1.0, None
    if kind == "linear":
        return theta, rope.number("factor"), None
    name = "original_max_position_embeddings"
    outer = hf.optional_integer(name, minimum=1)
    original = rope.integer(name, outer or hf.integer("max_position_embeddings"))
    if outer is not None and outer != original:
        raise hf.error(name, f"{outer}, but the rotary parameters have {original}")
    if kind == "yarn":
        return theta, 1.0, _yarn(rope, original)
    if kind != "llama3":
        raise rope.error("rope_type", f"{kind!r} is not supported; 'default', 'linear', 'llama3' and 'yarn' are")
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if low >= high:
        raise rope.error("low_freq_factor", f"{low} is not below high_freq_factor = {high}")
    return theta, 1.0, Llama3Scaling(rope.number("factor"), low, high, original)


def _yarn(rope: HfConfig, original: int) -> YarnScaling:
    factor = rope.number("factor")
    if factor < 1:
        raise rope.error("factor", f"{factor} is below 1")
    fast, slow = rope.number("beta_fast", 32.0), rope.number("beta_slow", 1.0)
    if fast <= slow:
        raise rope.error("beta_fast", f"{fast} is not above beta_slow = {slow}")
    if not rope.flag("truncate", True):
        raise rope.error("truncate", "false is not supported")
    scales = [rope.optional_number(name) for name in ("mscale", "mscale_all_dim")]
    if (scales[0] is None) != (scales[1] is None):
        raise rope.error("mscale", "has a meaning only together with mscale_all_dim")
    of_queries, of_all = ((1.0 if scale is None else 1.0 + 0.1 * scale * math.log(factor)) for scale in scales)
    default = of_queries / of_all if scales[0] is not None else 1.0 + 0.1 * math.log(factor)
    return YarnScaling(factor, original, fast, slow, magnitude=rope.number("attention_factor", default))
