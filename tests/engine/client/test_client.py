"""`AsyncClient` and `Client` over a real socket: many at once, streaming, cancelling, retries, deadlines, TLS and tokens."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trustme
from fake_engine import FakeEngine
from patience import DEADLINE_S, PATIENCE_S, until

from draftline import AsyncClient, Chat, Client, RetryPolicy, SamplingParams, Tls
from draftline.engine.client import async_generation
from draftline.engine.client.sync_client import _Loop
from draftline.engine.errors import (
    CallFailedError,
    DeadlineExceededError,
    EngineStoppedError,
    InvalidRequestError,
    QueueFullError,
    StepFailedError,
    UnauthenticatedError,
)
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.server import Server

QUICK = RetryPolicy(attempts=20, initial_s=0.01, max_s=0.05)


@pytest.fixture
def engine(make_engine: Callable[..., FakeEngine]) -> FakeEngine:
    """Steady: 4,000 tokens take it longer than any test."""
    return make_engine(step_s=0.002)


@pytest.fixture
async def client(server: Server, engine: FakeEngine) -> AsyncIterator[AsyncClient]:
    await server.serve(engine)
    async with AsyncClient(server.address) as client:
        yield client


def params(max_tokens: int, **options: object) -> SamplingParams:
    return SamplingParams.model_validate({"max_tokens": max_tokens, "temperature": 0, **options})


async def test_many_requests_come_back_in_order(client: AsyncClient) -> None:
    prompts = [f"prompt {index}" for index in range(100)]
    outputs = await client.generate(prompts, [params(index % 7 + 1) for index in range(100)])
    assert [o.outputs[0].text for o in outputs] == [p[: index % 7 + 1] for index, p in enumerate(prompts)]
    assert {o.outputs[0].finish_reason for o in outputs} == {"length"}
    assert [o.prompt for o in outputs] == prompts


async def test_token_ids_chats_and_several_outputs(client: AsyncClient) -> None:
    [by_ids] = await client.generate({"prompt_token_ids": [65, 66, 67]}, params(3))
    assert (by_ids.prompt, by_ids.prompt_token_ids, by_ids.outputs[0].text) == (None, [65, 66, 67], "ABC")
    [answer] = await client.chat([{"role": "user", "content": "x"}], params(4), use_tqdm=False)
    assert answer.outputs[0].text == "user"
    several = await client.submit("abc", params(2, n=3, seed=5)).result()
    assert [o.text for o in several.outputs] == ["ab"] * 3
    assert [o.finished.seed for o in several.outputs if o.finished] == [5, 6, 7]


async def test_the_log_probabilities_of_a_long_prompt_come_whole(client: AsyncClient) -> None:
    prompt = [1 + index % 200 for index in range(3000)]
    [output] = await client.generate([prompt], params(1, n=2, prompt_logprobs=2))
    assert output.prompt_logprobs is not None
    assert [position.chosen.token_id for position in output.prompt_logprobs] == prompt[1:]


async def test_an_unknown_keyword_is_named_with_the_closest_known_one(client: AsyncClient) -> None:
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'prioritty'; did you mean priority\?"):
        await client.generate("abc", prioritty=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"'time_out'; did you mean timeout\?"):
        client.submit("abc", time_out=1)  # type: ignore[call-arg]


async def test_outputs_come_as_they_grow(client: AsyncClient, engine: FakeEngine) -> None:
    engine.hold()
    generation = client.submit("abc", params(3))
    outputs = aiter(generation)
    await asyncio.to_thread(engine.wait_running, 1)
    await asyncio.to_thread(engine.step)
    texts = [(await anext(outputs)).outputs[0].text]
    assert texts == ["a"]
    for _ in range(2):  # updates that arrive between two reads may be merged
        await asyncio.to_thread(engine.step)
    texts += [output.outputs[0].text async for output in outputs]
    assert texts == sorted(texts)
    assert texts[-1] == (await generation.result()).outputs[0].text == "abc"


async def test_cancelling_and_leaving_an_iteration_end_the_request(client: AsyncClient, engine: FakeEngine) -> None:
    engine.pace(0.005)
    generation = client.submit("abc", params(4000))
    other = client.submit("xyz", params(5))
    async for _ in generation:
        break
    await asyncio.to_thread(engine.wait_idle)
    assert (await generation.result()).outputs[0].finish_reason == "cancelled"
    assert (await other.result()).outputs[0].text == "xyzxy"
    generation.cancel()  # harmless
    waiting = asyncio.create_task(client.submit("abc", params(4000)).result())
    await asyncio.to_thread(engine.wait_running, 1)
    waiting.cancel()
    await asyncio.to_thread(engine.wait_idle)


async def test_a_bad_request_fails_alone_and_names_its_fields(client: AsyncClient) -> None:
    fine = client.submit("abc", params(3))
    with pytest.raises(InvalidRequestError) as refused:
        await client.submit("", SamplingParams(max_tokens=1, stop_token_ids=(4096,))).result()
    assert {violation.field for violation in refused.value.violations} == {"text", "sampling.stop_token_ids[0]"}
    assert (await fine.result()).outputs[0].text == "abc"
    with pytest.raises(StepFailedError):
        await client.submit("FAIL", params(5)).result()


async def test_a_full_queue_is_tried_again_after_the_delay_that_it_names(
    server: Server, make_engine: Callable[..., FakeEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[float] = []

    async def noting(futures: set[asyncio.Future[object]], timeout: float | None = None, **options: object) -> object:
        if timeout is not None:
            waited.append(timeout)
            timeout = 0.01
        return await asyncio.wait(futures, timeout=timeout, **options)  # type: ignore[call-overload]

    # Only the client's: the server waits with a timeout, too.
    monkeypatch.setattr(async_generation, "asyncio", SimpleNamespace(**{**vars(asyncio), "wait": noting}))
    await server.serve(make_engine(max_waiting=1, step_s=0.002))
    async with AsyncClient(server.address, retry=RetryPolicy(attempts=1000, jitter=0.5)) as client:
        outputs = await client.generate(["abc"] * 8, params(20))
    assert [o.outputs[0].text for o in outputs] == ["abcabcabcabcabcabcab"] * 8
    assert waited
    assert all(1.5 <= delay <= 10 * 1.5 for delay in waited)  # FakeEngine's RetryInfo says 1.5 s


async def test_a_server_that_is_away_is_waited_for(server: Server, engine: FakeEngine) -> None:
    async with AsyncClient(server.address, retry=QUICK) as client:
        generation = client.submit("abc", params(3))  # the server listens, and loads its model
        model = asyncio.create_task(client.model())
        await asyncio.sleep(0.05)
        await server.serve(engine)
        assert (await generation.result()).outputs[0].text == "abc"
        assert (await model).model == "fake"


async def test_after_a_broken_connection_the_next_request_has_a_new_stream(
    engine: FakeEngine, make_engine: Callable[..., FakeEngine]
) -> None:
    first = Server(ServerConfig(port=0))
    await first.start()
    await first.serve(engine)
    port = int(first.address.rpartition(":")[2])
    async with AsyncClient(first.address, retry=QUICK) as client:
        engine.pace(0.005)
        begun = client.submit("abc", params(4000))
        async for _ in begun:
            await first.abort()
            break
        second = Server(ServerConfig(port=port))
        waiting = client.submit("abc", params(3))
        await second.start()
        await second.serve(make_engine())
        try:
            assert (await waiting.result()).outputs[0].text == "abc"
        finally:
            await second.abort()


async def test_what_has_begun_ends_with_the_engine(server: Server, make_engine: Callable[..., FakeEngine]) -> None:
    engine = make_engine()
    engine.hold()
    await server.serve(engine)
    async with AsyncClient(server.address, retry=QUICK) as client:
        generation = client.submit("abc", params(9))
        await asyncio.to_thread(engine.wait_running, 1)
        await asyncio.to_thread(engine.step)
        outputs = aiter(generation)
        assert (await anext(outputs)).outputs[0].text == "a"
        await asyncio.to_thread(engine.close)
        with pytest.raises(EngineStoppedError):
            await generation.result()
    assert engine.steps == 1


async def test_attempts_end(server: Server) -> None:
    async with AsyncClient(server.address, retry=RetryPolicy(attempts=3, initial_s=0.001)) as client:
        with pytest.raises(EngineStoppedError, match="loading"):
            await client.submit("abc").result()


async def test_a_deadline_holds_for_running_waiting_and_unanswered_requests(
    server: Server, make_engine: Callable[..., FakeEngine]
) -> None:
    async with AsyncClient(server.address, retry=QUICK) as client:
        with pytest.raises(DeadlineExceededError):  # between two attempts
            await client.submit("abc", timeout=0.05).result()
        engine = make_engine()
        engine.hold()
        await server.serve(engine)
        with pytest.raises(DeadlineExceededError):  # the engine makes no step
            await client.submit("abc", params(3), timeout=DEADLINE_S).result()
        while not engine.cancelled:
            await asyncio.sleep(0.001)
        engine.release()
        await asyncio.to_thread(engine.wait_idle)
        assert client._session is not None
        assert (await client.submit("abc", params(3)).result()).finished  # behind the end of the one before it
        assert not client._session._sent, "a long session must not remember what it has ended"


async def test_a_request_waiting_for_its_next_attempt_can_be_cancelled(server: Server) -> None:
    async with AsyncClient(server.address, retry=RetryPolicy(initial_s=60, max_s=60)) as client:
        generation = client.submit("abc")
        await asyncio.sleep(0.05)
        generation.cancel()
        assert (await generation.result()).outputs[0].finish_reason == "cancelled"


async def test_closing_fails_what_runs_and_leaves_no_task(server: Server, engine: FakeEngine) -> None:
    await server.serve(engine)
    before = asyncio.all_tasks()
    client = AsyncClient(server.address)
    engine.pace(0.005)
    running = client.submit("abc", params(4000))
    async for _ in running:
        await client.close()
        break
    with pytest.raises(CallFailedError, match="closed"):
        await running.result()
    with pytest.raises(CallFailedError, match="closed"):
        client.submit("abc")
    await client.close()
    await asyncio.to_thread(engine.wait_idle)
    await until(lambda: not [task for task in asyncio.all_tasks() - before if "draftline" in repr(task)])


async def test_a_wrong_certificate_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"tls: must be Tls\(...\) or None, not an int"):
        AsyncClient(tls=5)  # type: ignore[arg-type]
    authority = trustme.CA()
    ours = authority.issue_cert("localhost")
    paths = {name: str(tmp_path / f"{name}.pem") for name in ("junk", "cert", "key", "other")}
    Path(paths["junk"]).write_text("no PEM")
    ours.cert_chain_pems[0].write_to_path(paths["cert"])
    ours.private_key_pem.write_to_path(paths["key"])
    authority.issue_cert("someone").private_key_pem.write_to_path(paths["other"])
    for tls, problem in (
        (Tls("/no/such.pem"), "tls.ca: cannot read /no/such.pem: No such file or directory"),
        (Tls(paths["junk"]), f"tls.ca: {paths['junk']}: has no certificate authorities in PEM"),
        (Tls(cert=paths["cert"]), "tls.key: is missing; tls.cert is set"),
        (Tls(key=paths["key"]), "tls.cert: is missing; tls.key is set"),
        (Tls(cert=paths["junk"], key=paths["key"]), f"tls.cert: {paths['junk']}: has no certificate in PEM"),
        (
            Tls(cert=paths["cert"], key=paths["other"]),
            f"tls.cert: {paths['cert']} and {paths['other']} are no pair: key_values_mismatch",
        ),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            AsyncClient("localhost:1", tls=tls)
        assert str(caught.value) == problem
    assert Tls(cert=paths["cert"], key=paths["key"]).credentials()


@pytest.mark.parametrize(
    "address",
    [
        *("", None, "http://localhost:8000", "grpc://localhost:50051", "tcp://a:1"),
        *(
            "localhost",
            "localhost:",
            ":50051",
            "::1:50051",
            "[::1]",
            "localhost:0",
            "localhost:65536",
            "localhost:http",
        ),
        *("localhost:50051/", " localhost:50051", "dns"),
    ],
)
async def test_an_address_that_grpc_cannot_read_is_refused_at_once(address: Any) -> None:
    with pytest.raises(InvalidRequestError, match="address: must be host:port of a gRPC server, not"):
        AsyncClient(address)


@pytest.mark.parametrize("address", ["localhost:65535", "[::1]:50051", "dns:///localhost", "unix:/tmp/socket"])
async def test_addresses_in_the_forms_of_grpc_are_taken(address: str) -> None:
    await AsyncClient(address).close()


async def test_a_progress_bar_counts_prompts(client: AsyncClient, capsys: pytest.CaptureFixture[str]) -> None:
    await client.generate(["a", "b"], params(1), use_tqdm=True)
    assert "2/2" in capsys.readouterr().err


async def test_tls_and_tokens(engine: FakeEngine, tmp_path: Path) -> None:
    authority = trustme.CA()
    ours, theirs = authority.issue_cert("localhost"), authority.issue_cert("someone")
    paths = {}
    for name, blob in (
        ("ca", authority.cert_pem),
        ("cert", ours.cert_chain_pems[0]),
        ("key", ours.private_key_pem),
        ("client-cert", theirs.cert_chain_pems[0]),
        ("client-key", theirs.private_key_pem),
    ):
        paths[name] = str(tmp_path / f"{name}.pem")
        blob.write_to_path(paths[name])
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text("tokens: [{name: me, token: a-long-enough-token}]")
    server = Server(
        ServerConfig(
            port=0, tls_cert=paths["cert"], tls_key=paths["key"], tls_client_ca=paths["ca"], tokens=str(tokens)
        )
    )
    await server.start()
    await server.serve(engine)
    address = server.address.replace("127.0.0.1", "localhost")
    tls = Tls(paths["ca"], paths["client-cert"], paths["client-key"])
    async with AsyncClient(address, tls=tls, token="a-long-enough-token") as client:
        assert (await client.submit("abc", params(3)).result()).outputs[0].text == "abc"
        assert (await client.model()).model == "fake"
    async with AsyncClient(address, tls=tls, token="another-token-of-ours") as client:
        with pytest.raises(UnauthenticatedError):
            await client.submit("abc").result()
        with pytest.raises(UnauthenticatedError):
            await client.model()
    async with AsyncClient(address, retry=RetryPolicy(attempts=1)) as client:
        with pytest.raises(EngineStoppedError):  # no TLS: the server does not answer plaintext
            await client.submit("abc").result()
    await server.abort()


async def test_a_slow_handshake_is_waited_for(engine: FakeEngine, tmp_path: Path) -> None:
    """A busy server takes longer for a handshake than a client's first backoff, as it does while it loads a model."""
    authority = trustme.CA()
    ours = authority.issue_cert("localhost")
    ca, cert, key = (str(tmp_path / name) for name in ("ca.pem", "cert.pem", "key.pem"))
    authority.cert_pem.write_to_path(ca)
    ours.cert_chain_pems[0].write_to_path(cert)
    ours.private_key_pem.write_to_path(key)
    server = Server(ServerConfig(port=0, tls_cert=cert, tls_key=key))
    await server.start()
    await server.serve(engine)
    pumps: list[asyncio.Task[None]] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
        writer.close()

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.3)
        host, _, port = server.address.rpartition(":")
        to, back = await asyncio.open_connection(host, int(port))
        pumps.extend((asyncio.create_task(pump(reader, back)), asyncio.create_task(pump(to, writer))))

    proxy = await asyncio.start_server(late, "127.0.0.1", 0)
    port = proxy.sockets[0].getsockname()[1]
    async with AsyncClient(f"localhost:{port}", tls=Tls(ca), retry=RetryPolicy(attempts=1)) as client:
        assert (await client.model()).model == "fake"
    await server.abort()
    await asyncio.gather(*pumps, return_exceptions=True)
    proxy.close()


@pytest.fixture
def address(make_engine: Callable[..., FakeEngine]) -> Iterator[str]:
    """Of a server on a thread of its own, for clients without an event loop."""
    engine, found, ready, over = make_engine(step_s=0.002), [], threading.Event(), threading.Event()

    async def run() -> None:
        server = Server(ServerConfig(port=0))
        await server.start()
        await server.serve(engine)
        found.append(server.address)
        ready.set()
        await asyncio.to_thread(over.wait)
        await server.abort()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert ready.wait(PATIENCE_S)
    yield found[0]
    over.set()
    thread.join()


def test_the_client_without_an_event_loop(address: str) -> None:
    with Client(address) as client:
        assert client.model().model == "fake"
        outputs = client.generate(["abc", "xyz"], params(4), priority=1, timeout=PATIENCE_S)
        assert [o.outputs[0].text for o in outputs] == ["abca", "xyzx"]
        [answer] = client.chat([{"role": "user", "content": "x"}], params(4))
        assert answer.outputs[0].text == "user"
        texts = [output.outputs[0].text for output in client.submit(Chat((("user", "x"),)), params(3))]
        assert texts[-1] == "use"
        assert all("use".startswith(text) for text in texts)
        endless = client.submit("abc", params(4000))
        for _ in endless:
            break
        assert endless.result().outputs[0].finish_reason == "cancelled"
        with pytest.raises(InvalidRequestError):
            client.submit("").result()
        with pytest.raises(DeadlineExceededError):
            client.submit("abc", params(4000), timeout=1e-9).result()
    with pytest.raises(CallFailedError, match="closed"):
        client.generate("abc")
    client.close()
    assert "draftline-client" not in {thread.name for thread in threading.enumerate()}


def test_the_ends_of_cancelled_calls_come_before_the_end_of_their_loop() -> None:
    """gRPC awaits them in tasks, which a client does not hold."""
    loop, ended = _Loop(), list[str]()

    async def end_of_call() -> None:
        await asyncio.sleep(0.05)
        ended.append("call")

    async def start() -> asyncio.Task[None]:
        return asyncio.create_task(end_of_call())

    task = loop.run(start())
    loop.close()
    assert ended == ["call"]
    assert not task.cancelled()


def test_threads_can_share_a_client(address: str) -> None:
    texts: dict[int, str] = {}
    with Client(address) as client:

        def ask(number: int) -> None:
            texts[number] = client.generate(f"{number} ", params(4))[0].outputs[0].text

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(10, 26)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert texts == {number: f"{number} {number}"[:4] for number in range(10, 26)}


def test_waits_grow_and_are_never_shorter_than_what_the_server_says() -> None:
    policy = RetryPolicy(attempts=5, initial_s=1, factor=2, max_s=5, jitter=0.1, rng=random.Random(0))
    away, full = EngineStoppedError("away"), QueueFullError("full", 4.0)
    for failed, backoff in ((1, 1), (2, 2), (3, 4), (4, 5)):
        delay = policy.delay(failed, away)
        assert delay is not None
        assert backoff <= delay <= backoff * 1.1
        asked = policy.delay(failed, full)
        assert asked is not None
        assert max(4, backoff) <= asked <= max(4, backoff) * 1.1
    assert policy.delay(5, away) is None
    assert policy.delay(1, StepFailedError("a fault")) is None


@pytest.mark.parametrize("module", ["draftline.v1.engine_pb2_grpc", "draftline.engine.client.sync_client"])
def test_neither_stubs_nor_clients_load_torch(module: str) -> None:
    code = f"import sys, importlib; importlib.import_module({module!r}); assert 'torch' not in sys.modules, 'torch'"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_stubs_load_nothing_of_the_engine() -> None:
    code = """if True:
        import sys, draftline.v1.engine_pb2_grpc, draftline.v1.admin_pb2_grpc
        assert not [name for name in sys.modules if name.startswith("draftline.engine")]
    """
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("address", ["", None, 50051, "http://localhost:8000", "https://gpu7:8000/v1"])
def test_an_address_that_no_grpc_server_has_is_refused_at_once(address: Any) -> None:
    with pytest.raises(InvalidRequestError, match="address: must be host:port of a gRPC server, not "):
        Client(address)
