"""Certificates and tokens over real sockets: their rotation, their limits, and the rule for plaintext."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import trustme
from fake_engine import FakeEngine
from grpc_channelz.v1 import channelz_pb2, channelz_pb2_grpc
from grpc_client import SessionClient, connect, retry_delay_s, status_of, text_request, texts, violations
from grpc_health.v1 import health_pb2, health_pb2_grpc
from patience import PATIENCE_S
from pydantic import ValidationError

from draftline.engine.client.channel import OWN_CONNECTION
from draftline.engine.errors import CertificateError, QueueFullError, TokenFileError, UnauthenticatedError
from draftline.engine.server.access import Caller, TokenAccess
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.server import Server
from draftline.engine.server.tls import Certificate
from draftline.v1 import admin_pb2
from draftline.v1 import engine_pb2 as pb
from draftline.v1.admin_pb2_grpc import AdminServiceStub
from draftline.v1.engine_pb2_grpc import InferenceServiceStub

CLIENT, ADMIN = "a-client's-long-token", "an-admin's-long-token"


def write(path: Path, content: str | bytes) -> str:
    """Write a file, with a later modification time than before."""
    before = path.stat().st_mtime_ns if path.exists() else 0
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    os.utime(path, ns=(before + 10**9, max(before + 10**9, path.stat().st_mtime_ns)))
    return str(path)


def issue(authority: trustme.CA, folder: Path) -> dict[str, str]:
    """A certificate for localhost, as the server's options."""
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    chain = b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
    return {
        "tls_cert": write(folder / "cert.pem", chain),
        "tls_key": write(folder / "key.pem", certificate.private_key_pem.bytes()),
    }


async def answer(channel: grpc.aio.Channel, **call: Any) -> str:
    """The text of a request over a channel."""
    stub = InferenceServiceStub(channel)
    return "".join(
        [r.delta.text async for r in stub.Generate(text_request("abc", max_tokens=3), timeout=PATIENCE_S, **call)]
    )


def secure(server: Server, authority: trustme.CA, client: trustme.LeafCert | None = None) -> grpc.aio.Channel:
    credentials = grpc.ssl_channel_credentials(
        authority.cert_pem.bytes(),
        client.private_key_pem.bytes() if client else None,
        b"".join(blob.bytes() for blob in client.cert_chain_pems) if client else None,
    )
    return grpc.aio.secure_channel(server.address, credentials, [OWN_CONNECTION])


async def refused(channel: grpc.aio.Channel) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answer(channel)
    return caught.value.code()


async def test_tls_and_a_rotated_certificate(serve: Callable[..., Any], tmp_path: Path) -> None:
    old, new = trustme.CA(), trustme.CA()
    server = await serve(**issue(old, tmp_path))
    async with secure(server, old) as channel, secure(server, new) as stranger:
        assert await answer(channel) == "abc"
        assert await refused(stranger) is grpc.StatusCode.UNAVAILABLE
    issue(new, tmp_path)
    async with secure(server, new) as channel, secure(server, old) as outdated:
        assert await answer(channel) == "abc"
        assert await refused(outdated) is grpc.StatusCode.UNAVAILABLE
    async with connect(server.address) as plaintext:
        assert await refused(plaintext) is grpc.StatusCode.UNAVAILABLE


async def test_a_broken_rotation_leaves_the_old_certificate_in_use(
    serve: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = trustme.CA()
    server = await serve(**issue(authority, tmp_path))
    write(tmp_path / "key.pem", "half a fi")
    async with secure(server, authority) as channel:
        assert await answer(channel) == "abc"
    assert "key.pem: has no private key in PEM" in caplog.text


async def test_half_a_rotation_is_not_reported_as_read(
    serve: Callable[..., Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    old, new = trustme.CA(), trustme.CA()
    server = await serve(**issue(old, tmp_path))
    old_key = (tmp_path / "key.pem").read_bytes()
    issue(new, tmp_path)
    new_key = (tmp_path / "key.pem").read_bytes()
    write(tmp_path / "key.pem", old_key)
    for _ in range(3):
        async with secure(server, old) as channel:
            assert await answer(channel) == "abc"
    assert "reloaded the certificate" not in caplog.text
    assert caplog.text.count("are no pair: key_values_mismatch") == 1
    write(tmp_path / "key.pem", new_key)
    async with secure(server, new) as channel:
        assert await answer(channel) == "abc"
    assert "reloaded the certificate" in caplog.text


async def test_mtls_needs_a_certificate_of_the_client(serve: Callable[..., Any], tmp_path: Path) -> None:
    servers, clients = trustme.CA(), trustme.CA()
    authorities = write(tmp_path / "clients.pem", clients.cert_pem.bytes())
    server = await serve(**issue(servers, tmp_path), tls_client_ca=authorities)
    async with secure(server, servers, clients.issue_cert("client")) as channel:
        assert await answer(channel) == "abc"
    async with secure(server, servers) as without:
        assert await refused(without) is grpc.StatusCode.UNAVAILABLE
    async with secure(server, servers, trustme.CA().issue_cert("client")) as stranger:
        assert await refused(stranger) is grpc.StatusCode.UNAVAILABLE


def test_certificates_that_cannot_be_read_are_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match=r"cannot read .*/missing\.pem: No such file"):
        Server(ServerConfig(port=0, tls_cert=str(tmp_path / "missing.pem"), tls_key=str(tmp_path / "key.pem")))


def test_a_certificate_that_vanishes_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    authority = trustme.CA()
    options = issue(authority, tmp_path)
    chain, key = Path(options["tls_cert"]), Path(options["tls_key"])
    certificate = Certificate(chain, key, None)
    current = certificate.current()
    content = chain.read_bytes()
    for count in (1, 2):
        chain.unlink()
        for _ in range(3):
            assert certificate.current() is current
        assert caplog.text.count("cert.pem: No such file or directory; the previous certificate") == count
        write(chain, content)
        current = certificate.current()


def test_authorities_without_a_certificate_are_one_clear_error(tmp_path: Path) -> None:
    pem = trustme.CA().cert_pem.bytes()
    options = issue(trustme.CA(), tmp_path)
    chain, key, authorities = Path(options["tls_cert"]), Path(options["tls_key"]), tmp_path / "clients.pem"
    write(authorities, "# Autorité\n".encode() + pem)
    certificate = Certificate(chain, key, authorities)
    current = certificate.current()
    for content in (b"", b"no PEM", key.read_bytes(), pem[:99]):
        write(authorities, content)
        assert certificate.current() is current
        with pytest.raises(CertificateError, match=r"clients\.pem: has no certificate authorities in PEM"):
            Certificate(chain, key, authorities)


TOKENS = f"""
tokens:
  - {{name: client, token: "{CLIENT}", max_requests: 2}}
  - {{name: ops, sha256: {hashlib.sha256(ADMIN.encode()).hexdigest()}, admin: true}}
"""


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {token}"),)


async def test_calls_need_a_known_token_and_probes_need_none(serve: Callable[..., Any], tmp_path: Path) -> None:
    server = await serve(tokens=write(tmp_path / "tokens.yaml", TOKENS))
    async with connect(server.address) as channel:
        assert await answer(channel, metadata=bearer(CLIENT)) == "abc"
        stub, admin = InferenceServiceStub(channel), AdminServiceStub(channel)
        unknown: list[Any] = [
            stub.Generate(text_request("a")).read(),
            stub.Generate(text_request("a"), metadata=bearer("not-a-known-token")).read(),
            stub.GetModel(pb.GetModelRequest(), metadata=(("authorization", f"Basic {CLIENT}"),)),
            stub.Session().read(),
            admin.GetStatistics(admin_pb2.GetStatisticsRequest()),
        ]
        for call in unknown:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert status_of(caught.value).code == grpc.StatusCode.UNAUTHENTICATED.value[0]
            assert CLIENT not in str(caught.value)
        health = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.SERVING


async def test_administration_needs_a_token_with_admin_rights(serve: Callable[..., Any], tmp_path: Path) -> None:
    server = await serve(tokens=write(tmp_path / "tokens.yaml", TOKENS))
    async with connect(server.address) as channel:
        calls: list[Callable[..., Any]] = [
            lambda **c: AdminServiceStub(channel).GetStatistics(admin_pb2.GetStatisticsRequest(), **c),
            lambda **c: channelz_pb2_grpc.ChannelzStub(channel).GetServers(channelz_pb2.GetServersRequest(), **c),
        ]
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(metadata=bearer(CLIENT))
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
            await call(metadata=bearer(ADMIN))


async def test_without_tokens_an_option_allows_administration(serve: Callable[..., Any]) -> None:
    for options, allowed in (({}, True), ({"admin": False}, False)):
        server = await serve(**options)
        async with connect(server.address) as channel:
            call = AdminServiceStub(channel).GetStatistics(admin_pb2.GetStatisticsRequest())
            if allowed:
                assert (await call).metrics
            else:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_a_token_bounds_requests_in_flight(
    serve: Callable[..., Any], tmp_path: Path, engine: FakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "draftline.requests")
    server = await serve(tokens=write(tmp_path / "tokens.yaml", TOKENS))
    engine.hold()
    async with connect(server.address) as channel:
        stub = InferenceServiceStub(channel)
        client = SessionClient.__new__(SessionClient)
        client.call = stub.Session(metadata=bearer(CLIENT))
        await client.submit("one", text_request("1"))
        other = stub.Generate(text_request("2"), metadata=bearer(CLIENT))
        await asyncio.to_thread(engine.wait_running, 2)
        await client.submit("three", text_request("3"))
        status = await client.error("three")
        assert status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
        assert retry_delay_s(status) > 0
        engine.release()
        assert "".join([r.delta.text async for r in other]) == "2222"
        assert texts(await client.outcomes()) == {"one": "1111"}
        assert await answer(channel, metadata=bearer(CLIENT)) == "abc"
    assert {record.fields["caller"] for record in caplog.records} == {"client"}  # type: ignore[attr-defined]
    assert CLIENT not in caplog.text


async def test_rotated_tokens_are_valid_at_once(serve: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    server = await serve(tokens=write(path, TOKENS))
    async with connect(server.address) as channel:
        assert await answer(channel, metadata=bearer(CLIENT)) == "abc"
        write(path, TOKENS.replace(CLIENT, "the-next-long-token"))
        assert await answer(channel, metadata=bearer("the-next-long-token")) == "abc"
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await answer(channel, metadata=bearer(CLIENT))
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("tokens: []", "tokens.yaml: has no tokens; it needs a list of them: tokens: [...]"),
        ("tokens:", "tokens.yaml: has no tokens"),
        ("", "tokens.yaml: has no tokens"),
        ("# nothing yet", "tokens.yaml: has no tokens"),
        ("tokens: 1", "tokens: "),
        (f"- {{name: a, token: {'x' * 20}}}", "tokens.yaml: has no tokens; it needs a list of them: tokens: [...]"),
        ("tokens: [secret]", "tokens.yaml: tokens[0]: must be a mapping"),
        ("tokens: [\n  {name: a, token: 'xxx}]", "tokens.yaml: line 2: is not YAML"),
        ("tokens: *secret", "tokens.yaml: line 1: is not YAML"),
        ("tokens: \u0000", "tokens.yaml: is not YAML"),
        ("tokens: [{name: a, token: tooshort-secret}]", "tokens[0].token: "),
        ("tokens: [{name: a}]", "tokens[0]: set exactly one of token and sha256"),
        (f"tokens: [{{name: a, token: {'x' * 20}}}, {{name: a, token: {'y' * 20}}}]", "two tokens are named a"),
        (
            f"tokens: [{{name: a, token: {'x' * 20}, max_request: 2}}]",
            "max_request: is not a field; did you mean max_requests?",
        ),
        ("modle: smollm2", "tokens.yaml: tokens: Field required; modle: is not a field"),
        ("tokens: [{name: a\n  , token: 1, name: b}]", "tokens.yaml: line 2: name: is set twice"),
    ],
)
def test_a_wrong_token_file_is_one_clear_error_without_tokens(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    path.write_text(content)
    with pytest.raises(TokenFileError) as caught:
        TokenAccess(path)
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)
    assert "xxx" not in str(caught.value)


def test_a_token_file_that_vanishes_or_breaks_keeps_the_previous_tokens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokens.yaml"
    write(path, TOKENS)
    access = TokenAccess(path)
    write(path, "tokens: 1")
    for _ in range(3):
        assert access.caller(bearer(CLIENT)).name == "client"
    path.unlink()
    assert access.caller(bearer(ADMIN)).admin
    with pytest.raises(UnauthenticatedError):
        access.caller(())
    assert len(caplog.records) == 2


def test_files_that_keep_their_modification_time_are_read_again(tmp_path: Path) -> None:
    """As with tools that set one time for all files, and after a chmod of a file that could not be read."""
    authority = trustme.CA()
    paths = {name: Path(path) for name, path in issue(authority, tmp_path).items()}
    tokens = Path(write(tmp_path / "tokens.yaml", TOKENS))
    files = [*paths.values(), tokens]
    for file in files:
        os.utime(file, ns=(1, 1))
    access = TokenAccess(tokens)
    certificate = Certificate(paths["tls_cert"], paths["tls_key"], None)
    before = certificate.current()
    issue(authority, tmp_path)
    tokens.write_text(TOKENS.replace("name: client", "name: renamed"))
    for file in files:
        os.utime(file, ns=(1, 1))
    assert access.caller(bearer(CLIENT)).name == "renamed"
    assert certificate.current().chain != before.chain


def test_a_token_bounds_requests_per_minute() -> None:
    now = 0.0
    caller = Caller("x", admin=False, requests_per_minute=60, clock=lambda: now)
    for _ in range(60):
        caller.admit()
        caller.release()
    with pytest.raises(QueueFullError) as caught:
        caller.admit()
    assert caught.value.retry_after_s == pytest.approx(1.0)
    now = 1.0
    caller.admit()
    with pytest.raises(QueueFullError):
        caller.admit()
    now = 1000.0
    for _ in range(60):
        caller.admit()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_plaintext_beyond_this_machine_needs_an_option(host: str) -> None:
    with pytest.raises(ValidationError, match="other machines can reach it"):
        ServerConfig(host=host)
    ServerConfig(host=host, insecure=True)
    ServerConfig(host=host, tls_cert="c", tls_key="k")
    for mine in ("127.0.0.1", "::1", "localhost", "127.8.8.8"):
        ServerConfig(host=mine)


@pytest.mark.parametrize("options", [{"tls_cert": "c"}, {"tls_key": "k"}, {"tls_client_ca": "a"}])
def test_half_a_certificate_is_an_error(options: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="tls_"):
        ServerConfig(**options)  # type: ignore[arg-type]


async def test_a_token_bounds_what_its_requests_ask_for(serve: Callable[..., Any], tmp_path: Path) -> None:
    content = f"tokens: [{{name: client, token: {CLIENT}, max_tokens: 5, max_priority: 1, weight: 2.5}}]"
    server = await serve(tokens=write(tmp_path / "tokens.yaml", content))
    async with connect(server.address) as channel:
        stub = InferenceServiceStub(channel)
        client = SessionClient(stub, metadata=bearer(CLIENT))
        await client.submit("fine", text_request("abcdefgh", max_tokens=5))
        request = text_request("abcdefgh")
        request.sampling.ClearField("max_tokens")
        await client.submit("open", request)
        assert texts(await client.outcomes()) == {"fine": "abcde", "open": "abcde"}
        urgent = text_request("abcdefgh", max_tokens=5)
        urgent.priority = 2
        for request, field, most in (
            (text_request("abcdefgh", max_tokens=6), "sampling.max_tokens", 5),
            (urgent, "priority", 1),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Generate(request, metadata=bearer(CLIENT)).read()
            assert violations(status_of(caught.value)) == {field: f"this token allows at most {most}"}


async def test_the_limits_of_a_token_cover_every_call(serve: Callable[..., Any], tmp_path: Path) -> None:
    content = f"tokens: [{{name: client, token: {CLIENT}, requests_per_minute: 3}}]"
    server = await serve(tokens=write(tmp_path / "tokens.yaml", content))
    async with connect(server.address) as channel:
        stub = InferenceServiceStub(channel)
        metadata = bearer(CLIENT)
        await stub.Tokenize(pb.TokenizeRequest(text="a"), metadata=metadata)
        await stub.Detokenize(pb.DetokenizeRequest(token_ids=[65]), metadata=metadata)
        constrained = pb.CheckConstraintRequest(constraint=pb.Constraint(regex="a"))
        await stub.CheckConstraint(constrained, metadata=metadata)
        for call in (
            stub.Tokenize(pb.TokenizeRequest(text="a"), metadata=metadata),
            stub.Detokenize(pb.DetokenizeRequest(token_ids=[65]), metadata=metadata),
            stub.CheckConstraint(constrained, metadata=metadata),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "3 requests a minute" in str(caught.value.details())
