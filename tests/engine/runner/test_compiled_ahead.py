"""On a GPU nothing is compiled while a step waits for it: neither common sampling, nor top-p, penalties, log-probabilities, …"""

from __future__ import annotations

import pytest
from uninterpreted import Uninterpreted

pytestmark = pytest.mark.long

_SCRIPT = """
import contextlib, io
from launch_variants import main

found = []
for engine in engines:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        main(*map(str, engine))
    found.append(printed.getvalue())
"""


# Shape, most rows, most drafts a row and longest context of engines.
@pytest.mark.parametrize(
    "engines",
    [
        [("llama-8b", 64, 4, 2048)],
        pytest.param(
            [
                ("qwen3", 256, 0, 640),
                ("smollm2", 1, 0, 2048),
                ("smollm2", 2, 0, 640),
                ("smollm2", 4, 0, 1024),
                ("smollm2", 32, 0, 2048),
                ("smollm2", 64, 4, 640),
                ("smollm2", 256, 4, 2048),
                ("qwen3", 1, 0, 4096),
                ("qwen3", 2, 0, 640),
                ("qwen3", 8, 4, 4096),
                ("qwen3", 64, 4, 4096),
                ("llama-8b", 48, 16, 300),
                ("llama-8b", 64, 0, 131072),
            ],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["common", "others"],
)
def test_a_start_compiles_what_steps_by_operation_launch(
    engines: list[tuple[str, int, int, int]], uninterpreted: Uninterpreted
) -> None:
    for text in uninterpreted.find(_SCRIPT, engines=engines):
        launched, *unforeseen = text.splitlines()
        assert int(launched) >= 10
        assert not unforeseen
