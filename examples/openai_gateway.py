"""Use OpenAI's client: the gateway smg gives Draftline servers one OpenAI-compatible address.

draftline serve --gateway & smg launch --worker-urls grpc://127.0.0.1:50051 & python examples/openai_gateway.py [URL]
"""

from __future__ import annotations

import asyncio
import sys

import openai

MODEL = "smollm2"  # the name that the servers were started with


async def main(client: openai.AsyncOpenAI) -> None:
    """Stream one answer."""
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Name three colours."}],
        max_tokens=24,
        temperature=0,
        stream=True,
    )
    async for chunk in stream:
        for choice in chunk.choices:
            print(choice.delta.content or "", end="", flush=True)
    print()


async def run(url: str) -> None:
    """Connect, stream, and disconnect."""
    async with openai.AsyncOpenAI(base_url=url, api_key="none") as client:
        await main(client)


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1] if len(sys.argv) > 1 else "http://localhost:30000/v1"))
