"""``GrpcTarget``: a Draftline server over gRPC. All requests share one Session stream."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Self

from typing_extensions import override

from draftline.engine.bench.load.answers import Answer
from draftline.engine.bench.targets.target import Question, RequestError, Target, TargetInfo
from draftline.engine.bench.targets.updates import record, request_of
from draftline.engine.client.async_client import AsyncClient, Tls
from draftline.engine.client.retry import RetryPolicy
from draftline.engine.outputs import Update

_ONCE = RetryPolicy(attempts=1)


class GrpcTarget(Target):
    """A server. Requests are sent once: a full queue is an error to count, not to wait for."""

    def __init__(self, client: AsyncClient, info: TargetInfo) -> None:
        """Use a client; `connect` makes one."""
        self.info = info
        self._client = client
        self._session = client.open_session()

    @classmethod
    async def connect(cls, address: str, token: str | None, tls: Tls | None) -> Self:
        """Connect to ``host:port``.

        Raises:
            DraftlineError: no server answers, or it refuses the call.
        """
        client = AsyncClient(address, token=token, tls=tls, retry=_ONCE)
        try:
            model: Any = await client.model()
        except BaseException:
            await client.close()
            raise
        details: dict[str, object] = {
            "system_fingerprint": model.system_fingerprint,
            "quantization": model.quantization,
            "max_num_seqs": model.max_num_seqs,
            "cache_blocks": model.cache_blocks,
            "block_size": model.block_size,
            "drafters": list(model.drafters),
        }
        if model.HasField("synthetic_acceptance"):
            details["synthetic_acceptance"] = model.synthetic_acceptance
        info = TargetInfo(
            protocol="grpc",
            engine="draftline",
            version=model.version or None,
            model=model.model,
            device=model.device,
            dtype=model.dtype,
            vocab_size=model.vocab_size,
            max_model_len=model.max_model_len,
            form="tokens",
            details=details,
        )
        return cls(client, info)

    @override
    async def ask(self, question: Question, answer: Answer) -> None:
        if self._session.has_ended:
            self._session = self._client.open_session()
        session = self._session
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def receive(update: Update) -> None:
            if ended.done():
                return
            try:
                if record(answer, update, time.perf_counter()):
                    ended.set_result(None)
            except RequestError as error:
                ended.set_exception(error)

        name = session.submit(request_of(question), receive)
        try:
            await ended
        finally:
            if ended.cancelled():
                session.abandon(name)
            else:
                session.discard(name)

    @override
    async def close(self) -> None:
        await self._session.close()
        await self._client.close()
