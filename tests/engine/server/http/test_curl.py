"""curl against the server, as the documentation has it."""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import Any

import pytest

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl"),
]


async def curl(*arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        "curl", "--silent", "--show-error", "--max-time", "10", *arguments, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


async def test_curl(serve: Any) -> None:
    url = f"http://{(await serve()).http_address}"
    kind = ("-H", "content-type: application/json")
    whole = await curl(f"{url}/v1/completions", *kind, "-d", '{"prompt": "abc", "max_tokens": 4}')
    assert json.loads(whole)["choices"][0]["text"] == "abca"
    stream = await curl("-N", f"{url}/v1/completions", *kind, "-d", '{"prompt": "ab", "max_tokens": 2, "stream": true}')
    assert stream.endswith("data: [DONE]\n\n")
    form = await curl("-w", "%{http_code}", f"{url}/v1/completions", "-d", '{"prompt": "abc"}')
    assert "content-type: application/json" in form
    assert form.endswith("415")
    assert json.loads(await curl(f"{url}/v1/models"))["data"][0]["id"] == "fake"
