"""``ServerConfig``: every option of the gRPC server, with its default, bounds and meaning in one place."""

from __future__ import annotations

import ipaddress
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class ServerConfig(BaseModel):
    """The options of a server, beside those of its engine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field(
        default="127.0.0.1", min_length=1, description="address to listen on; '0.0.0.0' or '::' is every interface"
    )
    port: int = Field(default=50051, ge=0, le=65535, description="port to listen on; 0 takes a free one")
    tls_cert: str | None = Field(default=None, description="PEM file of the server's certificate chain, for TLS")
    tls_key: str | None = Field(default=None, description="PEM file of its private key")
    tls_client_ca: str | None = Field(
        default=None, description="PEM file of authorities; clients must have a certificate of theirs"
    )
    tokens: str | None = Field(
        default=None, description="YAML file of the bearer tokens that clients may use; without it any client may call"
    )
    insecure: bool = Field(default=False, description="allow plaintext on addresses that others can reach")
    admin: bool | None = Field(
        default=None,
        description="let clients without tokens administer the server; where unset, only those on this machine",
    )
    drain_timeout: float = Field(
        default=30.0, ge=0, description="seconds that running requests get to finish when the server is told to stop"
    )
    max_request_mib: int = Field(
        default=16, ge=1, le=1024, description="largest message that a client may send, in MiB"
    )
    max_streams: int = Field(
        default=1024, ge=1, le=2**31 - 1, description="most calls at once on one connection; more wait at the client"
    )
    max_sessions: int = Field(default=1024, ge=1, description="most Session streams open at once; more are refused")
    min_ping_interval: float = Field(
        default=10.0,
        ge=0.01,
        le=86400,
        description="seconds between a client's keepalive pings; closer ones cut it off",
    )
    keepalive: float = Field(
        default=60.0, ge=1, le=86400, description="seconds of silence after which the server checks that a client lives"
    )
    stall_timeout: float = Field(
        default=60.0,
        gt=0,
        le=86400,
        description="seconds that a message may wait for a client that has stopped reading; then its requests are cancelled",
    )
    gateway: bool = Field(default=False, description="serve as a worker of the gateway smg, too")
    engine_process: bool | None = Field(
        default=None,
        description="run the engine in a process of its own; where unset, on a GPU, unless the gateway is served",
    )
    metrics_port: int | None = Field(
        default=None, ge=0, le=65535, description="port of Prometheus metrics over HTTP; none where unset"
    )
    metrics_host: str = Field(default="127.0.0.1", min_length=1, description="address that the metrics port listens on")
    otlp_endpoint: str | None = Field(
        default=None, description="OpenTelemetry collector that traces go to, as http://localhost:4317"
    )
    profile_dir: str | None = Field(
        default=None, description="folder for the traces of AdminService's Profile, which is refused where unset"
    )
    log_requests: bool = Field(default=True, description="a line of log for each request, without its text")
    log_format: Literal["text", "json"] = Field(default="text", description="lines for people, or JSON for programs")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="the least serious messages that are logged, on standard error"
    )

    @model_validator(mode="after")
    def _certificate_with_key(self) -> ServerConfig:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key: set both, or neither")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca: needs tls_cert and tls_key")
        return self

    @model_validator(mode="after")
    def _plaintext_stays_at_home(self) -> ServerConfig:
        if self.tls_cert is None and not self.insecure and not self.is_local:
            raise ValueError(
                f"host {self.host}: others can reach it; set tls_cert and tls_key, or insecure to serve plaintext"
            )
        return self

    @model_validator(mode="after")
    def _the_gateway_follows_the_prefix_cache(self) -> ServerConfig:
        if self.gateway and self.engine_process:
            raise ValueError("engine_process: the gateway is told what the prefix cache holds, which takes one process")
        return self

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"
