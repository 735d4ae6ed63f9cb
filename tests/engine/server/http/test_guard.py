"""Who may call: tokens, TLS, and the names and origins by which a browser could be led to the server."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trustme
from http_client import http_client

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMPLETION = {"prompt": "abc", "max_tokens": 3}


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("localhost:8000", 200),
        ("LOCALHOST", 200),
        ("app.localhost", 200),
        ("[::1]:80", 200),
        ("192.168.0.7:9", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example:8000", 403),
        ("", 403),
    ],
)
async def test_without_tokens_the_host_must_be_an_address(http: httpx2.AsyncClient, host: str, status: int) -> None:
    response = await http.get("/v1/models", headers={"host": host})
    assert response.status_code == status
    if status != 200:
        assert "--http-allowed-hosts" in response.json()["error"]["message"]


async def test_hosts_can_be_allowed(serve: Any) -> None:
    server = await serve(http_allowed_hosts=("gpu.example",))
    async with http_client(server) as http:
        assert (await http.get("/v1/models", headers={"host": "GPU.example:80"})).status_code == 200
        assert (await http.get("/v1/models", headers={"host": "cpu.example"})).status_code == 403


async def test_other_origins_are_refused_unless_they_are_allowed(http: httpx2.AsyncClient, serve: Any) -> None:
    preflight = {"access-control-request-method": "POST", "access-control-request-headers": "content-type"}
    for origin in ("https://app.example", "null", "http://localhost:1"):
        response = await http.post("/v1/completions", json=COMPLETION, headers={"origin": origin})
        assert response.status_code == 403
        assert "access-control-allow-origin" not in response.headers
    own = str(http.base_url).rstrip("/")
    assert (await http.post("/v1/completions", json=COMPLETION, headers={"origin": own})).status_code == 200
    async with http_client(await serve(http_allowed_origins=("https://app.example",))) as opened:
        for origin, status in (("https://app.example", 200), ("https://other.example", 403)):
            response = await opened.post("/v1/completions", json=COMPLETION, headers={"origin": origin})
            assert response.status_code == status
            assert (response.headers.get("access-control-allow-origin") == origin) is (status == 200)
            assert response.headers["access-control-expose-headers"] == "x-request-id, retry-after"
        asked = await opened.options("/v1/completions", headers={"origin": "https://app.example"} | preflight)
        assert asked.status_code == 200


async def test_without_tokens_any_authorization_is_ignored(http: httpx2.AsyncClient) -> None:
    for value in ("Bearer sk-123", "Basic x", ""):
        response = await http.post("/v1/completions", json=COMPLETION, headers={"authorization": value})
        assert response.status_code == 200


async def test_tokens(serve: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text(json.dumps({"tokens": [{"name": "a", "token": "x" * 20}]}))
    server = await serve(tokens=str(tokens))
    async with http_client(server) as http:
        for path in ("/", "/health", "/ready", "/live"):
            assert (await http.get(path)).status_code == 200
        for path in ("/metrics", "/v1/models", "/openapi.json", "/version", "/nothing"):
            assert (await http.get(path)).status_code == 401
        for authorization in ({}, {"authorization": "Bearer wrong"}):
            response = await http.post("/v1/completions", json=COMPLETION, headers=authorization)
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.json()["error"]["code"] == "invalid_api_key"
        http.headers["authorization"] = f"Bearer {'x' * 20}"
        named = await http.post("/v1/completions", json=COMPLETION, headers={"host": "gpu.example"})
        assert named.status_code == 200
        metrics = (await http.get("/metrics")).text
    assert 'draftline_authentication_failures_total{code="UNAUTHENTICATED",model="fake"} 7.0' in metrics
    assert 'draftline_requests_total{call="/v1/completions",caller="a",code="OK",model="fake"} 1.0' in metrics
    assert "refused" in caplog.text


def issue(authority: trustme.CA, folder: Path) -> dict[str, str]:
    leaf = authority.issue_cert("127.0.0.1", "localhost")
    chain = b"".join(blob.bytes() for blob in leaf.cert_chain_pems)
    (folder / "cert.pem").write_bytes(chain)
    (folder / "key.pem").write_bytes(leaf.private_key_pem.bytes())
    return {"tls_cert": str(folder / "cert.pem"), "tls_key": str(folder / "key.pem")}


def trusting(authority: trustme.CA, leaf: trustme.LeafCert | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    if leaf is not None:
        leaf.configure_cert(context)
    return context


async def test_tls_and_a_rotated_certificate(serve: Any, tmp_path: Path) -> None:
    old, new = trustme.CA(), trustme.CA()
    server = await serve(**issue(old, tmp_path))
    async with http_client(server, verify=trusting(old)) as http:
        assert (await http.post("/v1/completions", json=COMPLETION)).json()["choices"][0]["text"] == "abc"
    issue(new, tmp_path)
    async with http_client(server, verify=trusting(new)) as http:
        assert (await http.get("/health")).status_code == 200
    async with http_client(server, verify=trusting(old)) as http:
        with pytest.raises(httpx2.ConnectError):
            await http.get("/health")


async def test_mtls_needs_a_certificate_of_the_client(serve: Any, tmp_path: Path) -> None:
    servers, clients = trustme.CA(), trustme.CA()
    authorities = tmp_path / "clients.pem"
    authorities.write_bytes(clients.cert_pem.bytes())
    server = await serve(**issue(servers, tmp_path), tls_client_ca=str(authorities))
    async with http_client(server, verify=trusting(servers, clients.issue_cert("me@example.org"))) as http:
        assert (await http.get("/health")).status_code == 200
    async with http_client(server, verify=trusting(servers)) as http:
        with pytest.raises(httpx2.TransportError):
            await http.get("/health")


async def test_the_clients_name_for_a_request_comes_back_and_is_logged(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="draftline.requests")
    async with http_client(await serve()) as http:
        response = await http.post("/v1/completions", json=COMPLETION, headers={"x-request-id": "job-7"})
    assert response.headers["x-request-id"] == "job-7"
    [record] = [record for record in caplog.records if record.name == "draftline.requests"]
    fields: Any = record.__dict__["fields"]
    assert (fields["client_id"], fields["call"], fields["code"]) == ("job-7", "/v1/completions", "OK")
    assert fields["peer"].startswith("ipv4:127.0.0.1:")


@pytest.mark.parametrize(("path", "body"), [("/v1/completions", {}), ("/nowhere", {}), ("/v1/completions", COMPLETION)])
async def test_errors_and_streams_have_the_clients_name_too(
    http: httpx2.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    for name, repeated in (("job-8", "job-8"), ("jöb", None)):
        response = await http.post(path, json=body | {"stream": True}, headers={"x-request-id": name.encode("latin-1")})
        assert response.headers.get("x-request-id") == repeated
