"""Batches from files: every request gets one answer, whatever is wrong with it and however often the run is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fake_engine import FakeEngine
from served_on_a_thread import served_on_a_thread
from typer.testing import CliRunner, Result

from draftline.engine.batch.lines import PlainPrompts, check_ids, read_lines
from draftline.engine.batch.output import AnswerFile
from draftline.engine.batch.run import BatchStoppedError, run_batch
from draftline.engine.cli import app
from draftline.engine.errors import UsageError
from draftline.engine.server.config import ServerConfig
from draftline.engine.server.server import Server

PLAIN = PlainPrompts({"max_tokens": 3}, as_chat=False)


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[FakeEngine, str]]:
    """A fake engine, and the URL of its server, which has a thread of its own."""
    engine = FakeEngine()
    with served_on_a_thread(engine, log_requests=False) as server:
        yield engine, f"http://{server.http_address}"


@pytest.fixture
def engine(served: tuple[FakeEngine, str]) -> FakeEngine:
    """The engine of the server, which runs as fast as it can."""
    served[0].pace(0)
    return served[0]


@pytest.fixture
def url(engine: FakeEngine, served: tuple[FakeEngine, str]) -> str:
    """The URL of the server."""
    return served[1]


def write_lines(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def read_answers(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def run(requests: Path, answers: Path, url: str, **options: Any) -> int:
    """Run a batch. Returns how many of its answers are errors."""
    with AnswerFile(answers, check_ids(requests, PLAIN)) as file:
        async with httpx2.AsyncClient(base_url=url, timeout=None, verify=False) as client:
            await run_batch(
                read_lines(requests, PLAIN),
                client,
                file,
                **({"concurrency": 8, "in_order": True, "progress": lambda: None} | options),
            )
    return file.failed


async def test_every_form_of_line_and_one_error_a_line(url: str, tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
    requests = write_lines(
        tmp_path / "in.jsonl",
        {"custom_id": "chat", "method": "POST", "url": "/v1/chat/completions", "body": chat},
        {"custom_id": "plain", "prompt": "abc"},
        '"text"',
        {"messages": chat["messages"], "max_tokens": 2},
        {"custom_id": "bound", "prompt": "abc", "temperature": -1},
        "no json",
        {"custom_id": "url", "url": "/v1/embeddings", "body": {}},
        {"custom_id": "stream", "url": "/v1/completions", "body": {"prompt": "a", "stream": True}},
        {"custom_id": "both", "prompt": "a", "messages": []},
        {"custom_id": 5, "prompt": "a"},
        {"custom_id": "extra", "url": "/v1/completions", "body": {"prompt": "a"}, "x": 1},
        "[1]",
        '{"custom_id": "twice", "prompt": "a", "prompt": "b"}',
    )
    errors = await run(requests, tmp_path / "out.jsonl", url)
    answers = read_answers(tmp_path / "out.jsonl")
    assert errors == 9
    assert [answer["custom_id"] for answer in answers] == [
        *(
            "chat",
            "plain",
            "line-3",
            "line-4",
            "bound",
            "line-6",
            "url",
            "stream",
            "both",
            "line-10",
            "extra",
            "line-12",
            "line-13",
        )
    ]
    bodies = [answer["response"]["body"]["choices"][0] for answer in answers[:4]]
    texts = [choice["message"]["content"] if "message" in choice else choice["text"] for choice in bodies]
    assert texts == ["user", "abc", "tex", "us"]
    assert all(answer["error"] is None for answer in answers[:4])
    assert "temperature" in answers[4]["error"]["message"]
    assert answers[-1]["error"]["message"] == "the line has an object with two members named 'prompt'"
    assert answers[4]["response"]["status_code"] == 400
    assert all(answer["response"] is None and answer["error"]["code"] == "invalid_line" for answer in answers[5:])


@pytest.mark.parametrize("in_order", [True, False])
async def test_answers_in_order_or_as_they_finish(url: str, engine: FakeEngine, tmp_path: Path, in_order: bool) -> None:
    requests = write_lines(
        tmp_path / "in.jsonl", {"prompt": "a", "max_tokens": 400}, *({"prompt": "b"} for _ in range(60))
    )
    engine.pace(0.0005)
    await run(requests, tmp_path / "out.jsonl", url, in_order=in_order)
    names = [answer["custom_id"] for answer in read_answers(tmp_path / "out.jsonl")]
    assert sorted(names) == sorted(f"line-{number}" for number in range(1, 62))
    assert (names[0] == "line-1") is in_order


async def test_a_run_goes_on_where_it_was(url: str, tmp_path: Path) -> None:
    requests = write_lines(tmp_path / "in.jsonl", *({"custom_id": f"r{index}", "prompt": "ab"} for index in range(20)))
    whole = tmp_path / "out.jsonl"
    await run(requests, whole, url)
    expected = [answer["custom_id"] for answer in read_answers(whole)]
    content = whole.read_bytes()
    for cut in (0, 1, len(content) // 2, len(content) - 1):
        whole.write_bytes(content[:cut])
        await run(requests, whole, url)
        assert [answer["custom_id"] for answer in read_answers(whole)] == expected


def test_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    twice = write_lines(tmp_path / "in.jsonl", {"custom_id": "a", "prompt": "x"}, {"custom_id": "a", "prompt": "y"})
    with pytest.raises(UsageError, match="two lines have the custom_id 'a'"):
        check_ids(twice, PLAIN)
    with pytest.raises(UsageError, match="No such file"):
        check_ids(tmp_path / "none.jsonl", PLAIN)
    other = write_lines(tmp_path / "out.jsonl", {"custom_id": "b"})
    with pytest.raises(UsageError, match="line 1 answers 'b', which the batch does not have"):
        AnswerFile(other, {"a"})
    other.write_text("prose\n")
    with pytest.raises(UsageError, match="line 1 is no answer of a batch"):
        AnswerFile(other, {"a"})
    other.unlink()
    with AnswerFile(other, {"a"}), pytest.raises(UsageError, match="another process is writing it"):
        AnswerFile(other, {"a"})


def test_pipes_are_refused() -> None:
    reader, writer = os.pipe()
    os.write(writer, b'"a"\n')
    os.close(writer)
    with pytest.raises(UsageError, match=rf"/dev/fd/{reader}: is a pipe"):
        check_ids(Path(f"/dev/fd/{reader}"), PLAIN)
    with pytest.raises(UsageError, match=rf"/dev/fd/{reader}: is no regular file"):
        AnswerFile(Path(f"/dev/fd/{reader}"), set())
    os.close(reader)


async def test_a_full_queue_is_waited_for(
    url: str, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "_max_waiting", 2)
    monkeypatch.setattr(engine, "_retry_after_s", 0.3)
    requests = write_lines(tmp_path / "in.jsonl", *({"prompt": "ab"} for _ in range(24)))
    errors = await run(requests, tmp_path / "out.jsonl", url)
    assert errors == 0


def test_the_exit_code_says_whether_some_failed(url: str, tmp_path: Path) -> None:
    requests = write_lines(tmp_path / "in.jsonl", {"custom_id": "a", "prompt": "ab"}, {"custom_id": "b", "prompt": 3})
    answers = tmp_path / "out.jsonl"

    def exit_code() -> int:
        return CliRunner().invoke(app, ["run-batch", str(requests), str(answers), "--server", url]).exit_code

    assert exit_code() == 3
    assert exit_code() == 3  # nothing is left to do, and one line is still an error
    first, _ = answers.read_text().splitlines(keepends=True)
    answers.write_text(first)
    write_lines(requests, {"custom_id": "a", "prompt": "ab"}, {"custom_id": "b", "prompt": "cd"})
    assert exit_code() == 0


def test_options_of_plain_prompts_need_some(url: str, tmp_path: Path) -> None:
    body = {"custom_id": "a", "url": "/v1/completions", "body": {"prompt": "ab", "max_tokens": 2}}
    requests, options = tmp_path / "in.jsonl", ["--max-tokens", "3", "--schema", '{"type": "integer"}', "--chat"]

    def run(*options: str) -> Result:
        answers = tmp_path / "out.jsonl"
        answers.unlink(missing_ok=True)
        return CliRunner().invoke(app, ["run-batch", str(requests), str(answers), "--server", url, *options])

    write_lines(requests, body, "prose")
    for given in (options, options[:2]):
        done = run(*given)
        named = ", ".join(sorted(option for option in given if option.startswith("--")))
        assert done.exit_code == 2
        assert f"{named}: for plain prompts, and each request of {requests} has a body of its own" in done.stderr
    assert run().exit_code == 3
    write_lines(requests, body, {"custom_id": "b", "prompt": "ab"})
    assert run(*options[:2]).exit_code == 0


async def test_a_server_that_is_away_or_refuses_ends_the_run(
    serve_with_tokens: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftline.engine.batch.run.RETRIES", 1)
    requests = write_lines(tmp_path / "in.jsonl", {"prompt": "ab"}, {"prompt": "cd"})
    with pytest.raises(BatchStoppedError, match=r"http://127\.0\.0\.1:1/?: no server answers in HTTP: "):
        await run(requests, tmp_path / "out.jsonl", "http://127.0.0.1:1")
    with pytest.raises(BatchStoppedError, match="refuses the batch with 401: a token is needed: "):
        await run(requests, tmp_path / "out.jsonl", serve_with_tokens)
    assert (tmp_path / "out.jsonl").read_bytes() == b""


@pytest.mark.parametrize("error", [httpx2.ConnectError("refused"), httpx2.RemoteProtocolError("illegal request line")])
@pytest.mark.parametrize(("answered", "tries"), [(0, 3), (1, 9)], ids=["never answered", "answered before"])
async def test_a_server_that_has_answered_is_waited_for_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: httpx2.TransportError, answered: int, tries: int
) -> None:
    monkeypatch.setattr("draftline.engine.batch.run._wait", lambda *_: 0.0)
    sent = 0

    def answer(request: httpx2.Request) -> httpx2.Response:
        nonlocal sent
        sent += 1
        if sent <= answered:
            return httpx2.Response(200, json={})
        raise error

    requests = write_lines(tmp_path / "in.jsonl", {"prompt": "ab"}, {"prompt": "cd"})
    with AnswerFile(tmp_path / "out.jsonl", check_ids(requests, PLAIN)) as file:
        async with httpx2.AsyncClient(base_url="http://x", transport=httpx2.MockTransport(answer)) as client:
            lines = list(read_lines(requests, PLAIN))[: answered + 1]
            with pytest.raises(BatchStoppedError, match="http://x"):
                await run_batch(lines, client, file, concurrency=1, in_order=True, progress=lambda: None)
    assert sent == answered + tries


@pytest.fixture
async def serve_with_tokens(engine: FakeEngine, tmp_path: Path) -> Any:
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text(json.dumps({"tokens": [{"name": "a", "token": "x" * 20}]}))
    server = Server(ServerConfig(port=0, http_port=0, tokens=str(tokens)))
    await server.start()
    await server.serve(engine)
    yield f"http://{server.http_address}"
    await server.abort()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["in order", "as they finish"])
def test_2000_lines_survive_two_kills(url: str, engine: FakeEngine, tmp_path: Path, way: str) -> None:
    count = 2000
    requests = write_lines(
        tmp_path / "in.jsonl", *({"custom_id": f"r{index}", "prompt": f"{index} " * 4} for index in range(count))
    )
    answers = tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "draftline", "run-batch", str(requests), str(answers), "--server", url]
    command += ["--max-tokens", "6", "--concurrency", "16", *(["--as-finished"] if way == "as they finish" else [])]
    engine.pace(0.002)
    for least in (300, 1000):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        while not answers.exists() or answers.read_bytes().count(b"\n") < least:
            assert process.poll() is None
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert answers.read_bytes().count(b"\n") < count
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    found = read_answers(answers)
    names = [answer["custom_id"] for answer in found]
    assert sorted(names) == sorted(f"r{index}" for index in range(count))
    if way == "in order":
        assert names == [f"r{index}" for index in range(count)]
    for answer in found:
        index = answer["custom_id"].removeprefix("r")
        assert answer["response"]["body"]["choices"][0]["text"] == (f"{index} " * 4)[:6]
