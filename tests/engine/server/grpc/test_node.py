"""@grpc/grpc-js, unmodified, holds a Session: the program in examples/ that Node's users start from."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine
from patience import PATIENCE_S

from draftline.engine.server.server import Server

ROOT = Path(__file__).resolve().parents[4]
PACKAGES = ("@grpc/grpc-js", "@grpc/proto-loader")
NODE = shutil.which("node")

pytestmark = [pytest.mark.long, pytest.mark.skipif(NODE is None, reason="needs node")]


@pytest.fixture(scope="module")
def environment() -> Mapping[str, str]:
    """With Node's packages, from NODE_PATH or from npm's global folder."""
    npm = shutil.which("npm")
    folders = [os.environ.get("NODE_PATH", "")]
    if npm is not None:
        folders.append(subprocess.run([npm, "root", "-g"], capture_output=True, text=True, check=True).stdout.strip())
    environment = {**os.environ, "NODE_PATH": os.pathsep.join(folders)}
    wanted = ";".join(f"require({json.dumps(package)})" for package in PACKAGES)
    assert NODE is not None
    if subprocess.run([NODE, "-e", wanted], env=environment, capture_output=True, check=False).returncode:
        pytest.skip(f"needs {' and '.join(PACKAGES)}: npm install -g, or NODE_PATH with their node_modules")
    return environment


async def test_a_session_from_node(server: Server, engine: FakeEngine, environment: Mapping[str, str]) -> None:
    await server.serve(engine)
    engine.pace(0.002)
    spec = find_spec("google.rpc.status_pb2")
    assert spec is not None
    assert spec.origin is not None
    assert NODE is not None
    process = await asyncio.create_subprocess_exec(
        *(NODE, str(ROOT / "examples" / "session.cjs"), server.address, str(ROOT / "proto")),
        str(Path(spec.origin).parents[2]),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(PATIENCE_S):
        out, err = await process.communicate()
    assert (process.returncode, err.decode()) == (0, "")
    found: dict[str, dict[str, Any]] = {line["id"]: line for line in map(json.loads, out.decode().splitlines())}
    assert found["short"] == {"id": "short", "text": "The sky ", "end": "FINISH_REASON_LENGTH"}
    assert found["chat"] == {"id": "chat", "text": "user:", "end": "FINISH_REASON_LENGTH"}
    assert found["wrong"]["end"].startswith("error 3: sampling.top_p")
    assert found["endless"]["end"] == "FINISH_REASON_CANCELLED"
    assert set(found["endless"]["text"]) == {"a"}
