"""The worker process that tokenizes long prompts: ``python -m draftline.engine.process.tokenizer_worker``.

Its setup is the model's tokenizer and the engine's description. A job is a prompt; the answer is its token ids, or the
error of the request. `draftline.engine.server.tokenizer_pool` is the other end of its pipes.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from draftline.engine.chat.messages import Chat
from draftline.engine.errors import InvalidRequestError
from draftline.engine.protocol import EngineInfo
from draftline.engine.request.tokenization import tokenize
from draftline.structured.worker_processes import serve

if TYPE_CHECKING:
    from draftline.models.tokenization.tokenizer import Tokenizer

TokenizerSetup = tuple["Tokenizer", EngineInfo]


def _start(setup: TokenizerSetup) -> Callable[[str | Chat], Iterator[object]]:
    tokenizer, info = setup

    def answers(prompt: str | Chat) -> Iterator[object]:
        try:
            # As one array: the other process reads a list of thousands of ints one by one, and cannot stream meanwhile.
            yield array("I", tokenize(prompt, tokenizer, info))
        except InvalidRequestError as error:
            yield error
        except Exception as error:  # noqa: BLE001 - the parent raises it; the worker goes on
            yield RuntimeError(f"the tokenizer failed: {error!r}")

    return answers


if __name__ == "__main__":
    serve(_start)
