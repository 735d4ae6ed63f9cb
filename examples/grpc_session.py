"""Submit many requests over one gRPC stream, with the generated stubs alone: no torch, nothing else of Draftline.

draftline serve & python examples/grpc_session.py [HOST:PORT]
"""

from __future__ import annotations

import asyncio
import sys

import grpc.aio

from draftline.v1 import engine_pb2 as pb
from draftline.v1.engine_pb2_grpc import InferenceServiceStub

REQUESTS = 8


async def main(address: str) -> None:
    """Submit all requests, cancel the last, and print each event as it arrives."""
    async with grpc.aio.insecure_channel(address) as channel:
        session = InferenceServiceStub(channel).Session()
        for number in range(REQUESTS):
            request = pb.GenerateRequest(
                text=f"{number} plus {number} is", sampling=pb.SamplingParams(temperature=0, max_tokens=24)
            )
            await session.write(pb.SessionRequest(request_id=f"sum-{number}", submit=request))
        await session.write(pb.SessionRequest(request_id=f"sum-{REQUESTS - 1}", cancel=pb.CancelRequest()))
        await session.done_writing()  # the stream ends after the last answer

        # Events of all requests arrive interleaved; request_id tells whose they are.
        texts: dict[str, str] = {}
        async for response in session:
            name = response.request_id
            match response.WhichOneof("event"):
                case "delta":
                    texts[name] = texts.get(name, "") + response.delta.text
                case "finished":
                    reason = pb.FinishReason.Name(response.finished.finish_reason)
                    print(f"{name}: {texts.get(name, '')!r} {reason}")
                case "error":
                    print(f"{name}: error {response.error.code}: {response.error.message}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "localhost:50051"))
