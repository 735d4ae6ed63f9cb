"""TorchScript in tests: of each class and function, it reads the source once, not once for each module of a model."""

from __future__ import annotations

from functools import cache
from types import MethodType
from typing import Any

import torch
from torch.jit import _recursive

_original_definition = _recursive.get_jit_def
_original_overloads = _recursive.get_overload_annotations
_definition_of = cache(_original_definition)
_without_overloads: set[type] = set()


def hasten() -> None:
    """Replace two functions of TorchScript's compiler, in this process and for good. They give the same as before."""
    _recursive.get_jit_def = _definition
    _recursive.get_overload_annotations = _overloads


def _definition(function: Any, *names: Any, **options: Any) -> Any:
    """`get_jit_def`. The methods of a class's objects have the source of its function."""
    return _definition_of(function.__func__ if isinstance(function, MethodType) else function, *names, **options)


def _overloads(module: torch.nn.Module, ignored: Any) -> Any:
    """`get_overload_annotations`. A class whose methods have no overloads has none in any object."""
    if type(module) in _without_overloads:
        return {}
    found = _original_overloads(module, ignored)
    if not found:
        _without_overloads.add(type(module))
    return found
