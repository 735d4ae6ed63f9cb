"""Stream two requests at once in an asyncio program, and cancel one of them.

python examples/streaming.py [MODEL]
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing

from draftline import AsyncEngine, SamplingParams


async def main(engine: AsyncEngine) -> None:
    """Print both outputs as they grow."""
    await asyncio.gather(
        show(engine, "Once upon a time", enough=400),
        show(engine, "One, two, three,", enough=40),
    )


async def show(engine: AsyncEngine, prompt: str, enough: int) -> None:
    """Print one request's text so far, and stop it after ``enough`` characters."""
    async with aclosing(engine.generate(prompt, SamplingParams(temperature=0, max_tokens=48))) as outputs:
        async for request in outputs:
            text = request.outputs[0].text
            print(f"{prompt!r}: {text!r}")
            if len(text) >= enough:
                break  # leaving the block cancels the request


async def run(model: str) -> None:
    """Load a model, stream, and close the engine."""
    async with await AsyncEngine.create(model) as engine:
        await main(engine)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1] if len(sys.argv) > 1 else "smollm2"))
