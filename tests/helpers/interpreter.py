"""Triton's interpreter in tests: its products in the order of the matrix units, and calls that take a third of the time.

The interpreter runs every operation through the compiler's type rules. Its numbers are NumPy's; most of its time goes into
types that it makes anew. `hasten` keeps what is a function of its arguments alone, so no number and no check changes.
"""

from __future__ import annotations

import builtins
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.runtime.errors import InterpreterError
from triton.runtime.interpreter import TensorHandle


def dot_in_order(
    _: object, a: TensorHandle, b: TensorHandle, total: TensorHandle, precision: object, imprecise: int | None
) -> TensorHandle:
    """`InterpreterBuilder.create_dot`, adding one channel after the other to one sum.

    The original multiplies by NumPy, whose order of additions follows a tile's shape. Sums of ``imprecise`` products of FP8
    begin at zero and are added as wholes, as the matrix units' are.
    """
    left, right = _numbers(a), _numbers(b)
    sums = total.data.copy()
    channels = left.shape[-1]
    parts = imprecise if imprecise and imprecise <= channels and a.dtype.scalar == tl.float8e4nv else channels
    for begin in range(0, channels, parts):
        part = np.zeros_like(sums) if parts == imprecise else sums
        for channel in range(begin, begin + parts):
            part += left[..., channel, None].astype(sums.dtype) * right[..., channel, None, :].astype(sums.dtype)
        if part is not sums:
            sums += part
    return TensorHandle(sums, total.dtype.scalar)


def _numbers(factor: TensorHandle) -> np.ndarray:
    if factor.dtype.scalar == tl.float8e4nv:
        return torch.from_numpy(factor.data.view(np.uint8)).view(torch.float8_e4m3fn).float().numpy()
    return factor.data


def hasten() -> None:
    """Replace the interpreter's slowest functions, in this process and for good."""
    interpreter._patch_builtin = _patch_builtin
    interpreter._patch_attr = _patch_attr
    interpreter._patch_lang = _patch_lang
    interpreter._get_np_dtype = _numpy_dtype
    interpreter.InterpretedFunction.__call__ = _call
    tl.dtype.__eq__ = _equal
    tl.core.block_type.__init__ = _init_block_type
    tl.core.tensor.__init__ = _init_tensor
    TritonSemantic.broadcast_impl_value = _broadcast
    TritonSemantic.binary_op_type_checking_impl = _check_operands
    # Without its option of debugging, the interpreter computes which sums overflow and asserts nothing.
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)


# Triton's names, changed while a kernel runs --------------------------------------------------------------------------

_original_patch_lang = interpreter._patch_lang
_ALL_NAMES = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})


def _patch_lang(_: object) -> Any:
    """`_patch_lang` at a kernel's launch, for the device functions that it may call too."""
    return _original_patch_lang(_ALL_NAMES)


def _call(self: interpreter.InterpretedFunction, *args: Any, **kwargs: Any) -> Any:
    """A device function's call; the original changes all names again."""
    try:
        return self.rewrite()(*args, **kwargs)
    except Exception as error:
        raise InterpreterError(repr(error)) from error


def _patch_builtin(package: Any, *rest: object) -> None:
    for name in _builtins(package):
        member = getattr(package, name)
        if tl.core.is_builtin(member):
            interpreter._patch_attr(package, name, member, *rest)


@cache
def _builtins(package: Any) -> list[str]:
    return [name for name in dir(package) if tl.core.is_builtin(getattr(package, name, None))]


def _patch_attr(package: Any, name: str, member: Any, _: object, scope: Any) -> None:
    semantic = interpreter.interpreter_semantic

    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = semantic
        return member(*args, **kwargs)

    scope.set_attr(package, name, call)


# Types ----------------------------------------------------------------------------------------------------------------

_original_numpy_dtype = interpreter._get_np_dtype
_original_init_block_type = tl.core.block_type.__init__
_original_init_tensor = tl.core.tensor.__init__
_original_equal = tl.dtype.__eq__
_original_broadcast = TritonSemantic.broadcast_impl_value
_original_check_operands = TritonSemantic.binary_op_type_checking_impl
_numpy_dtypes: dict[str, np.dtype] = {}
_block_types: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}
_shapes: dict[tuple[int, ...], tuple[Any, tl.constexpr]] = {}


def _numpy_dtype(dtype: tl.dtype) -> np.dtype:
    if isinstance(dtype, tl.core.block_type):
        dtype = dtype.element_ty
    known = _numpy_dtypes.get(dtype.name)
    if known is None:
        known = _numpy_dtypes[dtype.name] = _original_numpy_dtype(dtype)
    return known


def _init_block_type(self: tl.core.block_type, element: tl.dtype, shape: Any) -> None:
    """A block type never changes, so all that are equal can have one state."""
    key = element.name, builtins.tuple([size.value if isinstance(size, tl.constexpr) else size for size in shape])
    known = _block_types.get(key)
    if known is None:
        _original_init_block_type(self, element, shape)
        known = _block_types[key] = self.__dict__
    self.__dict__ = known


def _init_tensor(self: tl.tensor, handle: TensorHandle, type: tl.dtype) -> None:
    self.handle = handle
    self.type = type
    self.dtype = type.scalar
    sizes = builtins.tuple(type.shape) if type.is_block() else ()
    known = _shapes.get(sizes)
    if known is None:
        _original_init_tensor(self, handle, type)
        known = _shapes[sizes] = self.shape, self.numel
    self.shape, self.numel = known


def _broadcast(self: TritonSemantic, left: tl.tensor, right: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    if left.shape is right.shape:  # tensors of one shape have the same object
        return left, right
    if not left.type.is_block():
        return _splat(self, left, right.type), right
    if not right.type.is_block():
        return left, _splat(self, right, left.type)
    return _original_broadcast(self, left, right)


_WIDE = frozenset(("fp32", "int32", "int64"))
"""Types that no operation between two of them converts."""


def _check_operands(self: TritonSemantic, left: Any, right: Any, *options: Any, **named: Any) -> tuple[Any, Any]:
    if type(left) is type(right) is tl.tensor and left.shape is right.shape:
        name = left.dtype.name
        if name in _WIDE and name == right.dtype.name:
            return left, right
    return _original_check_operands(self, left, right, *options, **named)


def _splat(semantic: TritonSemantic, scalar: tl.tensor, like: tl.core.block_type) -> tl.tensor:
    type = like.with_element_ty(scalar.dtype)
    return semantic.tensor(semantic.builder.create_splat(type, scalar.handle), type)


def _equal(self: tl.dtype, other: object) -> bool:
    return self is other or _original_equal(self, other)
