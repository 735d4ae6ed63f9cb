"""``connect``: open the target that a URL names."""

from __future__ import annotations

from draftline.engine.bench.targets.grpc import GrpcTarget
from draftline.engine.bench.targets.target import Target
from draftline.engine.client.access import http_url_problem
from draftline.engine.client.tls import Tls
from draftline.engine.errors import CallFailedError, EngineStoppedError, MissingExtraError, UsageError


async def connect(url: str, model: str | None = None, token: str | None = None, tls: Tls | None = None) -> Target:
    """Connect: to an OpenAI-compatible server for ``http://`` and ``https://``, else over gRPC to ``host:port``.

    Args:
        url: the server's.
        model: the model that requests name; the server's where None.
        token: the bearer token; None without one.
        tls: certificates, for gRPC with TLS and for HTTPS.

    Raises:
        UsageError: the URL has another scheme, or ``model`` is not the server's.
        MissingExtraError: HTTP needs a package that is not installed.
        DraftlineError: no server answers.
    """
    scheme, separator, rest = url.partition("://")
    if separator and scheme in ("http", "https"):
        if problem := http_url_problem(url):
            raise UsageError(f"--url: {url}: {problem}")
        if scheme == "http" and tls is not None:
            raise UsageError(f"--url: {url}: has no TLS; --tls, --ca, --client-cert and --client-key need https://")
        try:
            from draftline.engine.bench.targets.http import HttpTarget
        except ImportError as error:
            raise MissingExtraError(f"--url {scheme}://", "http") from error
        return await HttpTarget.connect(url, token, model, tls)
    if separator and scheme not in ("grpc", "grpcs"):
        raise UsageError(f"--url: {url}: must be http://, https:// or grpc://")
    address = rest if separator else url
    try:
        target = await GrpcTarget.connect(address, token, tls or (Tls() if scheme == "grpcs" else None))
    except EngineStoppedError as error:
        raise CallFailedError(f"--url: {address}: {error}") from error
    if model is not None and model != target.info.model:
        served = target.info.model
        await target.close()
        raise UsageError(f"--model: {model}: the server has {served}")
    return target
