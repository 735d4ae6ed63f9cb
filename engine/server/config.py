"""``ServerConfig``: every option of the server, with its default, bounds and meaning in one place."""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator, model_validator

from draftline.engine.options import Options
from draftline.engine.process.log_format import LogFormat
from draftline.engine.vllm_names import SERVER_ALIASES, SERVER_FOREIGN

_HOST_NAME = re.compile(r"[^\s/:*[\]]+")

_DEFAULT_PORTS = {"http": 80, "https": 443}
"""By scheme. Browsers leave them out of an origin."""

_PORT_OF = {
    "http_allowed_hosts": "http_port",
    "http_allowed_origins": "http_port",
    "served_model_name": "http_port",
    "metrics_host": "metrics_port",
}
"""Options that would mean nothing without a port, by name."""


def _host(name: str) -> str:
    if name != "*" and not _HOST_NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no name of a host: leave out scheme and port, or allow all with '*'")
    return name


def _origin(url: str) -> str:
    if url not in ("*", "null") and url != (sent := _origin_of(url)):
        instead = f": browsers send {sent!r}" if sent else "; '*' allows all"
        raise ValueError(f"{url!r} is no origin, such as https://example.org{instead}")
    return url


def _origin_of(url: str) -> str | None:
    """The origin that browsers send from a page with this URL; None if the text is no URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    if not parts.scheme or not parts.hostname:
        return "file://" if parts.scheme == "file" else None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    has_port = port is not None and port != _DEFAULT_PORTS.get(parts.scheme)
    return f"{parts.scheme}://{host}:{port}" if has_port else f"{parts.scheme}://{host}"


class ServerConfig(Options):
    """The options of a server. Its engine has options of its own."""

    foreign = SERVER_FOREIGN
    aliases = SERVER_ALIASES

    host: str = Field(
        default="127.0.0.1", min_length=1, description="address to listen on; '0.0.0.0' or '::' is every interface"
    )
    port: int = Field(default=50051, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    http_port: int | None = Field(
        default=None, ge=0, le=65535, description="port for OpenAI's API over HTTP; none if unset, 0 takes a free one"
    )
    http_allowed_hosts: tuple[Annotated[str, AfterValidator(_host)], ...] = Field(
        default=(),
        description="names by which clients may call the HTTP port, besides addresses and localhost; '*' allows all. "
        "Without tokens other names are refused",
    )
    http_allowed_origins: tuple[Annotated[str, AfterValidator(_origin)], ...] = Field(
        default=(),
        description="origins whose web pages may call the HTTP port, such as https://example.org; '*' allows all",
    )
    served_model_name: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(), description="the model's names over HTTP; if unset, its name as given to model"
    )
    tls_cert: str | None = Field(
        default=None, min_length=1, description="PEM file of the server's certificate chain, for TLS"
    )
    tls_key: str | None = Field(default=None, min_length=1, description="PEM file of its private key")
    tls_client_ca: str | None = Field(
        default=None,
        min_length=1,
        description="PEM file of certificate authorities; clients must have a certificate of one of them",
    )
    tokens: str | None = Field(
        default=None, min_length=1, description="YAML file of bearer tokens; if unset, clients need no token"
    )
    insecure: bool = Field(default=False, description="allow plaintext on addresses that other machines can reach")
    admin: bool | None = Field(
        default=None,
        description="let clients without tokens administer the server; if unset, only if other machines cannot reach it",
    )
    drain_timeout: float = Field(
        default=30.0, ge=0, description="seconds in which requests in flight may finish when the server shuts down"
    )
    step_timeout: float = Field(
        default=120.0,
        ge=1,
        le=86400,
        description="seconds without a finished step, while there are requests, after which health is NOT_SERVING",
    )
    max_request_mib: int = Field(default=16, ge=1, le=1024, description="maximum size of a client's message, in MiB")
    max_streams: int = Field(
        default=1024,
        ge=1,
        le=2**31 - 1,
        description="maximum calls at once on one connection; more calls wait in the client",
    )
    max_sessions: int = Field(default=1024, ge=1, description="maximum open Session streams; more are refused")
    min_ping_interval: float = Field(
        default=10.0,
        ge=0.01,
        le=86400,
        description="minimum seconds between a client's keepalive pings; more frequent pings close its connection",
    )
    keepalive: float = Field(
        default=60.0, ge=1, le=86400, description="seconds of silence after which the server pings a client"
    )
    stall_timeout: float = Field(
        default=60.0,
        gt=0,
        le=86400,
        description="seconds that a message may wait for a client to read; then the client's requests are cancelled",
    )
    gateway: bool = Field(default=False, description="also serve as a worker of the gateway smg")
    engine_process: bool | None = Field(
        default=None,
        description="run the engine in a process of its own; if unset, on a GPU",
    )
    data_parallel_size: int = Field(
        default=1,
        ge=1,
        le=64,
        description="engines that share the requests, each in a process of its own with the whole model; on GPUs each has its "
        "own, from device on",
    )
    metrics_port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="port for Prometheus metrics over HTTP; none if unset, 0 takes a free one",
    )
    metrics_host: str = Field(default="127.0.0.1", min_length=1, description="address to serve metrics on")
    otlp_endpoint: str | None = Field(
        default=None,
        description="URL or HOST:PORT of an OpenTelemetry collector for traces, such as http://localhost:4317",
    )
    profile_dir: str | None = Field(
        default=None,
        min_length=1,
        description="folder for the traces of AdminService.Profile; if unset, profiling is refused",
    )
    log_requests: bool = Field(default=True, description="log a line for each request, without its text")
    log_format: LogFormat = Field(default="text", description="the log: lines for people, or JSON for programs")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="minimum level of the messages that are logged to standard error"
    )

    @field_validator("host", "metrics_host")
    @classmethod
    def _can_be_listened_on(cls, host: str) -> str:
        if host.startswith(("unix:", "unix-abstract:", "/")):  # the first two as gRPC writes them
            raise ValueError(f"{host!r} is a Unix socket; the server listens on TCP ports only, so give an address")
        if not _HOST_NAME.fullmatch(host):
            try:
                ipaddress.ip_address(host)
            except ValueError:
                instead = "leave out scheme, brackets and port"
                raise ValueError(f"{host!r} is neither an IP address nor the name of a host: {instead}") from None
        return host

    @field_validator("otlp_endpoint")
    @classmethod
    def _collector(cls, url: str | None) -> str | None:
        if url is not None:
            scheme, _, rest = url.rpartition("://")
            try:
                parts = urlsplit(f"//{rest}")
                port = parts.port
            except ValueError as error:  # a port that is no number, or brackets around no address
                raise ValueError(f"{url!r} is no URL: {error}") from error
            if scheme not in ("", "http", "https") or not parts.hostname or not (scheme or port):
                raise ValueError(f"{url!r} is neither a URL, such as http://localhost:4317, nor HOST:PORT")
        return url

    @model_validator(mode="after")
    def _certificate_with_key(self) -> ServerConfig:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key: set both, or neither")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca: needs tls_cert and tls_key")
        return self

    @model_validator(mode="after")
    def _options_of_open_ports(self) -> ServerConfig:
        for name, port in _PORT_OF.items():
            if name in self.model_fields_set and getattr(self, port) is None:
                raise ValueError(f"{name}: needs {port}")
        return self

    @model_validator(mode="after")
    def _options_have_an_effect(self) -> ServerConfig:
        if self.insecure and self.tls_cert is not None:
            raise ValueError("insecure: has no effect where tls_cert is set")
        if self.admin is not None and self.tokens is not None:
            raise ValueError("admin: has no effect where tokens is set: its entries say who administers the server")
        return self

    @model_validator(mode="after")
    def _plaintext_is_local(self) -> ServerConfig:
        if self.tls_cert is None and not self.insecure and not self.is_local:
            raise ValueError(
                f"host {self.host}: other machines can reach it; set tls_cert and tls_key, or insecure to serve plaintext"
            )
        return self

    @model_validator(mode="after")
    def _replicas_are_processes(self) -> ServerConfig:
        if self.data_parallel_size > 1 and self.engine_process is False:
            raise ValueError("data_parallel_size: engines that share the requests need engine_process")
        if self.data_parallel_size > 1 and self.gateway:
            raise ValueError("data_parallel_size: a gateway places requests itself; start a server for each engine")
        return self

    @property
    def is_local(self) -> bool:
        """Whether other machines cannot reach the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"
