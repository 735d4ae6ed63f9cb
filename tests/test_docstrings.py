"""Docstrings and comments: a name in single backticks is one that the code has."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("engine", "kernels", "models", "quant", "spec", "structured")
NAME = re.compile(r"(?<!`)`(?:\w+\.)*([A-Za-z_]\w*)`(?!`)")


def modules(package: str) -> list[Path]:
    return sorted((ROOT / package).rglob("*.py"))


def code_of(module: Path) -> str:
    """A module without its docstrings and comments."""
    tree = ast.parse(module.read_text())
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str()) as text):
                text.value = ""
    return ast.unparse(tree)


@cache
def known() -> frozenset[str]:
    found = [module for package in PACKAGES for module in modules(package)]
    return frozenset(re.findall(r"\w+", " ".join(map(code_of, found)))) | {module.stem for module in found}


@pytest.mark.parametrize("package", PACKAGES)
def test_names_in_docstrings_and_comments_exist(package: str) -> None:
    wrong = [
        f"{module.relative_to(ROOT)}: {name}"
        for module in modules(package)
        for name in NAME.findall(module.read_text())
        if name not in known()
    ]
    assert wrong == []
