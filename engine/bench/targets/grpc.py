"""``GrpcTarget``: a Draftline server over gRPC. All requests share one Session stream."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Self

from typing_extensions import override

from draftline.engine.bench.counts import peak_of, work_of
from draftline.engine.bench.load.answers import Answer
from draftline.engine.bench.targets.target import Question, RequestError, Target, TargetInfo
from draftline.engine.bench.targets.updates import record, request_of
from draftline.engine.client.async_client import AsyncClient
from draftline.engine.client.metrics import ServerMetrics
from draftline.engine.client.retry import RetryPolicy
from draftline.engine.client.tls import Tls
from draftline.engine.outputs import Update
from draftline.engine.stats import DevicePeak, WorkCounts

_ONCE = RetryPolicy(attempts=1)

_ASKED_S = 5.0
"""The longest wait for metrics."""

_PAUSE_S = 0.5
"""Between two questions whether the server compiles."""


class GrpcTarget(Target):
    """A server. Requests are sent once: a full queue is an error to count, not to wait for."""

    def __init__(self, client: AsyncClient, info: TargetInfo, metrics: ServerMetrics) -> None:
        """Use a client, and the metrics of the same server; `connect` makes both."""
        self.info = info
        self._client = client
        self._metrics = metrics
        self._peak: DevicePeak | None = None
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
        return cls(client, info, ServerMetrics(address, token, tls))

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
                session.cancel(name)
            session.discard(name)

    @override
    async def ready(self) -> None:
        while (found := await self._metrics.read(_ASKED_S)) is not None and found.get("getting_ready"):
            await asyncio.sleep(_PAUSE_S)

    @override
    async def work(self) -> WorkCounts | None:
        found = await self._metrics.read(_ASKED_S)
        if found is None:
            return None

        def number(name: str) -> float:
            return found.get(name, 0.0)

        self._peak = peak_of(number)
        return work_of(number)

    @override
    def peak(self) -> DevicePeak | None:
        return self._peak

    @override
    async def close(self) -> None:
        await self._metrics.close()
        await self._session.close()
        await self._client.close()
