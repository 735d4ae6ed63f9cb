"""The package's public names: each can be imported, and is listed before it is."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import draftline


def test_every_public_name_is_there() -> None:
    assert dir(draftline) == sorted(draftline.__all__)
    for name in draftline.__all__:
        assert getattr(draftline, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'LLMs'"):
        draftline.LLMs  # noqa: B018


def test_listing_the_names_imports_none_of_them() -> None:
    code = "import sys, draftline; assert 'AsyncEngine' in dir(draftline); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_only_what_is_raised_on_purpose_needs_catching() -> None:
    errors = [getattr(draftline, name) for name in draftline.__all__ if name.endswith("Error")]
    assert all(issubclass(error, draftline.DraftlineError | draftline.ModelLoadError) for error in errors)


TYPED = """
from typing import Any, assert_type

from pydantic import BaseModel

from draftline import LLM, AsyncClient, AsyncEngine, Client, Constraint, RequestOutput, SamplingParams, Schema


class Person(BaseModel):
    name: str


SamplingParams(stop=["a"], stop_token_ids=[1])
SamplingParams(stop="a")
Constraint(choice=["a", "b"])
Constraint(json_schema={"type": "null"})
Constraint(structural_tag={"type": "structural_tag"})
LLM("smollm2", dtype="float32", max_num_seqs=3).generate("a", SamplingParams(), priority=1, timeout=2.0)
Client("a:1").generate(["a"], priority=1, timeout=2.0)
Client("a:1").submit("a", constraint=Constraint(regex="a")).result()
assert_type(LLM().generate("a", constraint=Schema(Person))[0].parsed, Person)
assert_type(LLM().generate("a", constraint=Person)[0].outputs[0].parsed, Person)
assert_type(LLM().generate("a")[0], RequestOutput[Any])
assert_type(Client("a:1").chat([{"role": "user", "content": "a"}], constraint=Schema({"type": "null"}))[0].parsed, Any)
assert_type(Client("a:1").submit("a", constraint=list[Person]).result().parsed, list[Person])
assert_type(LLM().extract(["a"], Person, examples=[("b", Person(name="b"))])[0].value, Person)
assert_type(Client("a:1").extract("a", Schema(list[Person]), retry=2)[0].value, list[Person])
LLM().generate(["a", "b"], constraint=[Person, None])


async def served() -> None:
    async with await AsyncEngine.create("smollm2", device="cpu") as engine:
        async for output in engine.chat([{"role": "user", "content": "a"}], timeout=3):
            print(output.outputs[0].text)
        async for output in engine.generate("a", constraint=Person):
            assert_type(output.parsed, Person)
        assert_type((await engine.extract("a", Person))[0].value, Person)
    async with AsyncClient("a:1") as client:
        await client.chat([{"role": "user", "content": "a"}], priority=1)
        assert_type((await client.submit("a", constraint=Person).result()).parsed, Person)
        assert_type((await client.extract("a", Person))[0].value, Person)
"""

MISTYPED = {
    "LLM(max_num_seq=3)": "max_num_seq",
    "LLM(dtype='float64')": "dtype",
    "AsyncEngine(max_num_seqs='many')": "max_num_seqs",
    "AsyncEngine.create(devise='cpu')": "devise",
    "LLM().generate('a', timeoutt=3)": "timeoutt",
    "Client('a:1').generate('a', prioritty=3)": "prioritty",
    "AsyncClient('a:1').submit('a', timeout='3')": "timeout",
    "SamplingParams(temprature=1)": "temprature",
    "SamplingParams(stop=[1])": "List item 0",
    "LLM().generate('a', constraint={'type': 'object'})": "constraint",
}


@pytest.mark.slow
def test_a_type_checker_sees_the_options(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[1]
    lines = [*TYPED.splitlines(), "", "def mistyped() -> None:", *(f"    {line}" for line in MISTYPED)]
    snippet = tmp_path / "snippet.py"
    snippet.write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "mypy", "--config-file", root / "pyproject.toml", "--no-error-summary", snippet]
    printed = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root).stdout
    by_line: dict[int, str] = defaultdict(str)
    for line in printed.splitlines():
        where, _, message = line.partition(": error: ")
        if message:
            by_line[int(where.rpartition(":")[2])] += message
    first = len(lines) - len(MISTYPED) + 1
    assert sorted(by_line) == list(range(first, first + len(MISTYPED))), printed
    for number, name in enumerate(MISTYPED.values(), start=first):
        assert name in by_line[number]


def test_the_lazy_names_are_the_typed_ones() -> None:
    source = Path(draftline.__file__).read_text()
    for name in set(draftline.__all__) - {"__version__"}:
        home = getattr(draftline, name).__module__
        assert f"from {home} import" in source, name
