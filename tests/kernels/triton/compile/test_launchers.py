"""The C modules that launch kernels: all have one name, and each keeps its own function."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from triton import knobs
from triton.runtime.build import compile_module_from_src

import draftline.kernels.triton  # noqa: F401  which lets Triton load modules so

SOURCE = """
#include <Python.h>
static PyObject *launch(PyObject *self, PyObject *args) { return PyLong_FromLong(%d); }
static PyMethodDef methods[] = {{"launch", launch, METH_NOARGS, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "__triton_launcher", NULL, -1, methods};
PyMODINIT_FUNC PyInit___triton_launcher(void) { return PyModule_Create(&definition); }
"""
"""As Triton writes them: with one state for the process."""

pytestmark = pytest.mark.skipif(
    shutil.which("gcc") is None and shutil.which("clang") is None, reason="needs a C compiler, as Triton does on a GPU"
)


def test_a_module_that_is_loaded_again_leaves_others_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(knobs.cache, "dir", str(tmp_path))

    modules: list[Any] = []

    def load(number: int) -> object:
        modules.append(compile_module_from_src(SOURCE % number, "__triton_launcher"))
        return modules[-1].launch()

    assert [load(number) for number in (1, 2, 1, 2, 2)] == [1, 2, 1, 2, 2]
    assert [module.launch() for module in modules] == [1, 2, 1, 2, 2]
