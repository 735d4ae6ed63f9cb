"""Triton's interpreter in tests: its products in the order of the matrix units, and calls that take an eighth of the time.

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
    sums = total.data.copy()
    left, right = _numbers(a, sums.dtype), _numbers(b, sums.dtype)
    channels = left.shape[-1]
    parts = imprecise if imprecise and imprecise <= channels and a.dtype.scalar == tl.float8e4nv else channels
    for begin in range(0, channels, parts):
        part = np.zeros_like(sums) if parts == imprecise else sums
        for channel in range(begin, begin + parts):
            part += left[..., channel, None] * right[..., channel, None, :]
        if part is not sums:
            sums += part
    return TensorHandle(sums, total.dtype.scalar)


def _numbers(factor: TensorHandle, dtype: np.dtype) -> np.ndarray:
    numbers = factor.data
    if factor.dtype.scalar == tl.float8e4nv:
        numbers = torch.from_numpy(numbers.view(np.uint8)).view(torch.float8_e4m3fn).float().numpy()
    return numbers.astype(dtype, copy=False)


def hasten() -> None:
    """Replace the interpreter's slowest functions, in this process and for good."""
    interpreter._patch_builtin = _patch_builtin
    interpreter._patch_attr = _patch_attr
    interpreter._patch_lang = _patch_lang
    interpreter._get_np_dtype = _numpy_dtype
    interpreter.TensorHandle.__init__ = _init_handle
    interpreter.InterpretedFunction.__call__ = _call
    interpreter.InterpreterBuilder.binary_op = _binary_op
    tl.core._unwrap_if_constexpr = _unwrap
    tl.dtype.__eq__ = _equal
    tl.core.block_type.__init__ = _init_block_type
    tl.core.block_type.with_element_ty = _with_element_type
    tl.core.tensor.__init__ = _init_tensor
    TritonSemantic.expand_dims = _expand_dims
    TritonSemantic.broadcast_impl_value = _broadcast
    TritonSemantic.binary_op_type_checking_impl = _check_operands
    # Without its option of debugging, the interpreter computes which sums overflow and asserts nothing.
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)


# Triton's names, changed while a kernel runs --------------------------------------------------------------------------

_original_patch_lang = interpreter._patch_lang
_ALL_NAMES = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
_BUILTIN = tl.core.builtin(lambda: None).__code__


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
    scope.set_attr(package, name, _with_semantic(member))


@cache
def _with_semantic(member: Any) -> Any:
    semantic = interpreter.interpreter_semantic
    if getattr(member, "__code__", None) is _BUILTIN:  # it would only see whether there is a semantic
        member = member.__wrapped__

    def operator(self: tl.tensor, other: Any) -> Any:
        return member(self, other, _semantic=semantic)

    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = semantic
        return member(*args, **kwargs)

    code = getattr(member, "__code__", None)
    named = code.co_varnames[: code.co_argcount] if code else ()
    return operator if named == ("self", "other", "_semantic") else call


# Types ----------------------------------------------------------------------------------------------------------------

_original_numpy_dtype = interpreter._get_np_dtype
_original_init_block_type = tl.core.block_type.__init__
_original_init_tensor = tl.core.tensor.__init__
_original_equal = tl.dtype.__eq__
_original_unwrap = tl.core._unwrap_if_constexpr
_numpy_dtypes: dict[str, np.dtype] = {}
_block_types: dict[tuple[str, tuple[int, ...]], dict[str, Any]] = {}
_tensors: dict[str, tuple[tl.dtype, Any, tl.constexpr]] = {}
_shapes: dict[tuple[int, ...], tuple[Any, tl.constexpr]] = {}
_with_elements: dict[tuple[int, str], tl.core.block_type] = {}


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


def _with_element_type(self: tl.core.block_type, element: tl.dtype) -> tl.core.block_type:
    key = id(self.shape), element.name  # one state is kept for good, and so is its shape
    known = _with_elements.get(key)
    if known is None:
        known = _with_elements[key] = tl.core.block_type(element, self.shape)
    return known


def _init_tensor(self: tl.tensor, handle: TensorHandle, type: tl.dtype) -> None:
    known = _tensors.get(type.name)
    if known is None:
        _original_init_tensor(self, handle, type)
        known = _tensors[type.name] = self.dtype, *_shapes.setdefault(_sizes(type), (self.shape, self.numel))
    self.handle = handle
    self.type = type
    self.dtype, self.shape, self.numel = known


def _sizes(type: tl.dtype) -> tuple[int, ...]:
    return builtins.tuple(type.shape) if type.is_block() else ()


def _equal(self: tl.dtype, other: object) -> bool:
    return self is other or _original_equal(self, other)


_PLAIN = frozenset((int, bool, float, str, type(None), tl.tensor, tl.dtype, tl.core.block_type, tl.core.pointer_type))


def _unwrap(value: Any) -> Any:
    return value if type(value) in _PLAIN else _original_unwrap(value)


# Operands -------------------------------------------------------------------------------------------------------------

_original_expand_dims = TritonSemantic.expand_dims
_original_broadcast = TritonSemantic.broadcast_impl_value
_original_check_operands = TritonSemantic.binary_op_type_checking_impl
_original_binary_op = interpreter.InterpreterBuilder.binary_op
_original_init_handle = TensorHandle.__init__
_expanded: dict[tuple[str, int], tl.dtype] = {}
_broadcasts: dict[tuple[int, int], tuple[tuple[int, ...] | None, tuple[int, ...] | None]] = {}
_conversions: dict[tuple[Any, ...], tuple[tl.dtype | None, tl.dtype | None]] = {}
_constants: dict[tuple[Any, ...], tl.tensor] = {}
_blocks: dict[tuple[str, tuple[int, ...]], tl.core.block_type] = {}
_fit: set[tuple[np.dtype, str]] = set()


def _init_handle(self: TensorHandle, data: np.ndarray, dtype: tl.dtype, attr: dict[str, Any] | None = None) -> None:
    """The original compares the sizes of both types' numbers."""
    key = data.dtype, dtype.name
    if key not in _fit:
        _original_init_handle(self, data, dtype)
        _fit.add(key)
    self.data = data
    self.dtype = dtype
    self.attr = {} if attr is None else attr


def _binary_op(self: interpreter.InterpreterBuilder, left: TensorHandle, right: TensorHandle, op: Any) -> TensorHandle:
    dtype = left.dtype.scalar
    if left.data.dtype != np.bool_:  # of which the original has its own arithmetic
        output = op(left.data, right.data)
        if (output.dtype, dtype.name) in _fit:
            return TensorHandle(output, dtype)
    return _original_binary_op(self, left, right, op)


def _expand_dims(self: TritonSemantic, tensor: tl.tensor, axis: int) -> tl.tensor:
    if not tensor.shape:
        return _original_expand_dims(self, tensor, axis)
    key = tensor.type.name, axis
    known = _expanded.get(key)
    if known is None:
        expanded = _original_expand_dims(self, tensor, axis)
        _expanded[key] = expanded.type
        return expanded
    handle = tensor.handle
    data = handle.data[(*[slice(None)] * axis, None)]
    return tl.tensor(TensorHandle(data, handle.dtype.scalar), known)


def _broadcast(self: TritonSemantic, left: tl.tensor, right: tl.tensor) -> tuple[tl.tensor, tl.tensor]:
    if left.shape is right.shape:  # tensors of one shape have the same object
        return left, right
    key = id(left.shape), id(right.shape)  # which are kept for good
    known = _broadcasts.get(key)
    if known is None:
        both = _original_broadcast(self, left, right)
        wider = [
            None if new.shape is old.shape else _sizes(new.type) for new, old in zip(both, (left, right), strict=True)
        ]
        _broadcasts[key] = wider[0], wider[1]
        return both
    to_left, to_right = known
    return left if to_left is None else _spread(left, to_left), right if to_right is None else _spread(right, to_right)


def _spread(tensor: tl.tensor, sizes: tuple[int, ...]) -> tl.tensor:
    if tensor.shape:
        data = np.broadcast_to(tensor.handle.data, sizes)
    else:
        data = np.empty(sizes, _numpy_dtype(tensor.handle.dtype))
        data[...] = tensor.handle.data
    key = tensor.dtype.name, sizes
    known = _blocks.get(key)
    if known is None:
        known = _blocks[key] = tl.core.block_type(tensor.dtype, list(sizes))
    return tl.tensor(TensorHandle(data, tensor.handle.dtype.scalar), known)


def _check_operands(self: TritonSemantic, left: Any, right: Any, *options: Any, **named: Any) -> tuple[Any, Any]:
    """Both with the type and the shape of what is computed from them."""
    rules = options, builtins.tuple(named.items())
    kinds = type(left), type(right)
    if kinds == _TWO_TENSORS:
        key = left.dtype.name, right.dtype.name, rules
        known = _conversions.get(key)
        if known is None:
            both = _original_check_operands(self, left, right, *options, **named)
            to = [None if new.dtype == old.dtype else new.dtype for new, old in zip(both, (left, right), strict=True)]
            _conversions[key] = to[0], to[1]
            return both
        if known[0] is not None:
            left = self.cast(left, known[0])
        if known[1] is not None:
            right = self.cast(right, known[1])
        return _broadcast(self, left, right)
    if kinds[0] is tl.tensor and kinds[1] in _NUMBERS:
        tensor, number = left, right
    elif kinds[1] is tl.tensor and kinds[0] in _NUMBERS:
        number, tensor = left, right
    else:
        return _original_check_operands(self, left, right, *options, **named)
    # A number is the same constant beside all tensors of one type, unless they are converted for it.
    first = tensor is left
    key = tensor.dtype.name, id(tensor.shape), repr(number), first, rules
    constant = _constants.get(key)
    if constant is None:
        both = _original_check_operands(self, left, right, *options, **named)
        if both[not first] is tensor:
            _constants[key] = _unchanging(both[first])
        return both
    return (tensor, constant) if first else (constant, tensor)


_TWO_TENSORS = tl.tensor, tl.tensor
_NUMBERS = frozenset((int, float, bool))


def _unchanging(constant: tl.tensor) -> tl.tensor:
    constant.handle.data.flags.writeable = False
    return constant
