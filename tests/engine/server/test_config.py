"""The options of a server that can only be wrong: what browsers and clients never send."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from draftline.engine.cli.connection import Connection
from draftline.engine.config import EngineConfig
from draftline.engine.options import Options, without_none
from draftline.engine.server.config import ServerConfig

TEXTS = [
    (model, name)
    for model in (EngineConfig, ServerConfig, Connection)
    for name, field in model.model_fields.items()
    if without_none(field.annotation) is str
]
"""The options that are any text, such as a path."""


@pytest.mark.parametrize(("model", "name"), TEXTS)
def test_no_option_is_an_empty_text(model: type[Options], name: str) -> None:
    """As of a variable that is not set: ``--profile-dir "$TRACES"`` was the current folder."""
    with pytest.raises(ValidationError) as caught:
        model(**{name: ""})
    assert {error["loc"] for error in caught.value.errors()} == {(name,)}


@pytest.mark.parametrize(
    ("origin", "problem"),
    [
        ("https://app.example/", ": browsers send 'https://app.example'"),
        ("https://app.example/chat?a", ": browsers send 'https://app.example'"),
        ("HTTPS://App.example", ": browsers send 'https://app.example'"),
        ("https://app.example:443", ": browsers send 'https://app.example'"),
        ("http://[::1]:80", ": browsers send 'http://[::1]'"),
        ("app.example", "; '*' allows all"),
        ("localhost:3000", "; '*' allows all"),
        ("https://app.example:x", "; '*' allows all"),
        ("", "; '*' allows all"),
    ],
)
def test_an_origin_that_no_browser_sends_is_refused(origin: str, problem: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ServerConfig(http_allowed_origins=("https://right.example", origin))
    assert f"{origin!r} is no origin, such as https://example.org{problem}" in str(caught.value)


@pytest.mark.parametrize(
    "origin",
    [
        "*",
        "null",
        "https://a.example",
        "http://localhost:3000",
        "http://[::1]:8080",
        "file://",
        "chrome-extension://ab",
    ],
)
def test_origins_that_browsers_send_can_be_allowed(origin: str) -> None:
    assert ServerConfig(http_port=0, http_allowed_origins=(origin,)).http_allowed_origins == (origin,)


@pytest.mark.parametrize("host", ["http://gpu.example", "gpu.example:8000", "gpu.example/v1", "*.example", ""])
def test_a_host_that_no_request_names_is_refused(host: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ServerConfig(http_allowed_hosts=(host,))
    assert f"{host!r} is no name of a host" in str(caught.value)


@pytest.mark.parametrize("name", ["host", "metrics_host"])
@pytest.mark.parametrize("host", ["http://gpu.example", "gpu.example:8000", "[::1]", "[::1]:8000", "a b", "*", ":::1"])
def test_a_server_listens_on_an_address_or_the_name_of_a_host(name: str, host: str) -> None:
    with pytest.raises(ValidationError) as caught:
        ServerConfig.model_validate({name: host})
    assert [error["loc"] for error in caught.value.errors()] == [(name,)]
    assert f"{host!r} is neither an IP address nor the name of a host" in str(caught.value)


@pytest.mark.parametrize("host", ["unix:/run/a.sock", "unix:///run/a.sock", "unix-abstract:a", "/run/a.sock"])
def test_a_server_listens_on_no_unix_socket(host: str) -> None:
    with pytest.raises(ValidationError, match=f"'{host}' is a Unix socket; the server listens on TCP ports only"):
        ServerConfig(host=host)


@pytest.mark.parametrize("host", ["localhost", "gpu_7", "gpu.example", "::", "::1", "fe80::1%eth0", "10.0.0.1"])
def test_addresses_and_names_of_hosts_can_be_listened_on(host: str) -> None:
    assert ServerConfig(host=host, insecure=True).host == host


@pytest.mark.parametrize(
    ("name", "value", "port"),
    [
        ("http_allowed_hosts", ("gpu.example",), "http_port"),
        ("http_allowed_origins", ("https://a.example",), "http_port"),
        ("served_model_name", ("a",), "http_port"),
        ("metrics_host", "0.0.0.0", "metrics_port"),
    ],
)
def test_an_option_of_a_port_that_is_closed_is_refused(name: str, value: object, port: str) -> None:
    with pytest.raises(ValidationError, match=f"{name}: needs {port}"):
        ServerConfig.model_validate({name: value})
    assert getattr(ServerConfig.model_validate({name: value, port: 0}), name) == value


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"insecure": True, "tls_cert": "c.pem", "tls_key": "k.pem"}, "insecure: has no effect where tls_cert is set"),
        ({"admin": True, "tokens": "t.yaml"}, "admin: has no effect where tokens is set"),
        ({"admin": False, "tokens": "t.yaml"}, "admin: has no effect where tokens is set"),
    ],
)
def test_an_option_that_another_leaves_without_effect_is_refused(options: dict[str, object], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        ServerConfig.model_validate(options)


def test_a_model_is_never_served_without_a_name() -> None:
    with pytest.raises(ValidationError, match="at least 1 character"):
        ServerConfig(http_port=0, served_model_name=("",))


def test_a_server_has_time_for_more_than_to_look_for_hangs() -> None:
    """It looks four times in each timeout: with a millisecond, an idle server took a whole core."""
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        ServerConfig(step_timeout=0.001)
