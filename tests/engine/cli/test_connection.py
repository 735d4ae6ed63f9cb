"""The command line and a server with TLS and tokens; ``draftline token``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme
from click.testing import Result
from fake_engine import FakeEngine
from patience import PATIENCE_S
from typer.testing import CliRunner

from draftline.engine.cli import app, backend, top
from draftline.engine.outputs import Finished
from draftline.engine.params import SamplingParams
from draftline.engine.protocol import GenerateRequest
from draftline.engine.server.access import TokenAccess
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.server import Server
from draftline.v1 import engine_pb2 as pb

TOKEN = "a-long-enough-token"


def run(*arguments: str, stdin: str = "", **environment: str) -> Result:
    return CliRunner(env={"NO_COLOR": "1", "COLUMNS": "200", **environment}).invoke(app, arguments, input=stdin)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    authority = trustme.CA()
    ours = authority.issue_cert("localhost")
    names = {"ca": authority.cert_pem, "cert": ours.cert_chain_pems[0], "key": ours.private_key_pem}
    for name, blob in names.items():
        blob.write_to_path(str(tmp_path / name))
    (tmp_path / "tokens").write_text(f"tokens: [{{name: me, token: {TOKEN}, admin: true}}]")
    return {name: str(tmp_path / name) for name in (*names, "tokens")}


@pytest.fixture
def serve(make_engine: Callable[..., FakeEngine]) -> Iterator[Callable[..., str]]:
    """Start a server on a thread of its own; returns its address."""
    over, threads = threading.Event(), list[threading.Thread]()

    def start(**options: str) -> str:
        found, ready = list[str](), threading.Event()

        async def serve_until_over() -> None:
            server = Server(ServerConfig(port=0, **options))  # type: ignore[arg-type]
            await server.start()
            await server.serve(make_engine())
            found.append(server.address.replace("127.0.0.1", "localhost"))
            ready.set()
            await asyncio.to_thread(over.wait)
            await server.abort()

        threads.append(threading.Thread(target=lambda: asyncio.run(serve_until_over())))
        threads[-1].start()
        assert ready.wait(PATIENCE_S)
        return found[0]

    yield start
    over.set()
    for thread in threads:
        thread.join()


def test_every_command_reaches_a_server_with_tls_and_tokens(serve: Callable[..., str], files: dict[str, str]) -> None:
    address = serve(tls_cert=files["cert"], tls_key=files["key"], tokens=files["tokens"])
    secure = ("--ca", files["ca"], "--token", TOKEN)
    assert run("generate", "abc", "--server", address, "--max-tokens", "4", *secure).stdout == "abca\n"
    assert run("chat", "--server", address, "--max-tokens", "8", *secure, stdin="hi\n").stdout == "user: hi\n"
    assert "fake" in run("info", "--server", address, *secure).stdout
    assert "tokens/s" in run("top", address, "--once", "--interval", "0.1", *secure).stdout
    by_variable = run("info", "--server", address, "--ca", files["ca"], DRAFTLINE_TOKEN=TOKEN)
    assert by_variable.exit_code == 0
    unset = run("info", "--server", address, "--ca", files["ca"], DRAFTLINE_TOKEN="")
    assert "UNAUTHENTICATED: a token is needed" in unset.stderr


def test_top_prints_one_view_after_another_where_there_is_no_terminal(
    serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    views = iter(["first", "second"])

    def view(*_: object) -> str:
        try:
            return next(views)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(top, "view", view)
    result = run("top", serve(), "--interval", "0.1")
    assert (result.exit_code, result.stdout) == (130, "first\nsecond\n")


def test_a_refusal_says_what_is_wrong(
    serve: Callable[..., str], files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    secure = serve(tls_cert=files["cert"], tls_key=files["key"], tokens=files["tokens"])
    plain = serve()
    for arguments, message in (
        (("--server", secure, "--ca", files["ca"]), "the server answers UNAUTHENTICATED: a token is needed"),
        (
            ("--server", secure, "--ca", files["ca"], "--token", "of someone else"),
            "the server answers UNAUTHENTICATED: this token is not known",
        ),
    ):
        result = run("info", *arguments)
        assert result.exit_code == 1
        assert message in result.stderr
    monkeypatch.setattr(backend, "CONNECT_S", 0.5)  # none of these ever connects
    for arguments, message in (
        (("--server", secure), "is open, but does not answer in plaintext: it needs --tls, perhaps"),
        (
            ("--server", plain, "--tls"),
            "is open, but TLS fails: it serves plaintext, or --ca or --client-cert do not fit",
        ),
        (("--server", secure, "--tls"), "is open, but TLS fails"),
        (("--server", "localhost:1"), "no server answers at localhost:1"),
        (("--server", "localhost"), "localhost is no address of a gRPC server: give host:port"),
        (("--server", "grpc://localhost:1"), "grpc://localhost:1 is no address of a gRPC server: give host:port"),
        (("--server", "http://localhost:1"), "http://localhost:1 is no address of a gRPC server: give host:port"),
    ):
        result = run("info", *arguments)
        assert result.exit_code == 1
        assert message in result.stderr


def test_wrong_options_of_a_connection_are_one_line(files: dict[str, str]) -> None:
    for arguments, message in (
        (("info", "--server", "a:1", "--ca", "/no/such"), "--ca: cannot read /no/such: No such file or directory"),
        (
            ("info", "--server", "a:1", "--ca", files["key"]),
            f"--ca: {files['key']}: has no certificate authorities in PEM",
        ),
        (
            ("info", "--server", "a:1", "--client-cert", files["key"], "--client-key", files["key"]),
            f"--client-cert: {files['key']}: has no certificate in PEM",
        ),
        (
            ("info", "--server", "a:1", "--client-cert", files["cert"]),
            "--client-cert and --client-key: set both, or neither",
        ),
        (("generate", "a", "--token", "x"), "--tls, --ca, --client-cert, --client-key and --token need --server"),
        (("info", "--tls"), "--tls, --ca, --client-cert, --client-key and --token need --server"),
    ):
        result = run(*arguments)
        assert result.exit_code == 2
        assert message in result.stderr


@pytest.mark.parametrize("name", ["extraction", "123", "true", "2026-11-30", "é.-_"])
def test_a_token_is_made_and_its_hash_is_an_entry_of_a_token_file(tmp_path: Path, name: str) -> None:
    made = run("token", name)
    given = run("token", "ops", "--stdin", stdin=TOKEN)
    path = tmp_path / "tokens.yaml"
    path.write_text("tokens:\n" + made.stdout + given.stdout, encoding="utf-8")
    token = made.stderr.removeprefix("token: ").strip()
    assert len(token) >= 32
    assert token not in made.stdout
    access = TokenAccess(path)
    assert access.caller([("authorization", f"Bearer {token}")]).name == name
    assert access.caller([("authorization", f"Bearer {TOKEN}")]).name == "ops"
    assert run("token", "extraction").stderr != made.stderr
    assert run("token", "a b").exit_code == 2
    assert run("token", "ops", "--stdin", stdin="short").exit_code == 2


def test_a_server_s_output_says_whether_a_token_stopped_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has no field for it, and none for the steps of the server's engine, which are None."""

    class Call(list[pb.GenerateResponse]):
        def cancel(self) -> None:
            pass

    stub = SimpleNamespace(
        Generate=lambda request: Call(
            [pb.GenerateResponse(finished=pb.Finished(finish_reason=pb.FINISH_REASON_STOP, matched_stop="98"))]
        )
    )
    monkeypatch.setattr(backend, "InferenceServiceStub", lambda channel: stub)
    for sampling, by_token in ((SamplingParams(stop_token_ids=[98]), True), (SamplingParams(stop=["98"]), False)):
        channel: Any = None
        [end] = backend.RemoteBackend(channel).generate(GenerateRequest("abc", sampling))
        assert isinstance(end, Finished)
        assert (end.stopped_by_token, end.utilization) == (by_token, None)
