"""The command line: its options and messages in this process, its server and signals in processes of their own."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import gguf
import grpc
import pytest
from fake_cli import start_engine
from fake_engine import FakeEngine
from patience import PATIENCE_S
from pydantic import BaseModel
from serving_command import assert_serves
from typer.core import TyperOption
from typer.main import get_command
from typer.testing import CliRunner, Result

import draftline
from draftline.engine.cli import app, main
from draftline.engine.cli.chat import with_recommended
from draftline.engine.cli.serve import LISTENING, READY
from draftline.engine.cli.topics import TOPICS
from draftline.engine.client.channel import OWN_CONNECTION
from draftline.engine.config import EngineConfig
from draftline.engine.errors import UsageError
from draftline.engine.params import Constraint, Reasoning, SamplingParams
from draftline.engine.server.config import ServerConfig
from draftline.models.checkpoints.resolve import resolve_model
from draftline.v1 import engine_pb2 as pb
from draftline.v1.engine_pb2_grpc import InferenceServiceStub

FAKE_CLI = Path(__file__).parents[2] / "helpers" / "fake_cli.py"


@pytest.fixture(autouse=True)
def fake_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftline.engine.threaded_engine.start_engine", start_engine)


def run(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments, input=stdin)


def failed(result: Result, code: int) -> str:
    """The one line that a command ended with."""
    assert result.exit_code == code, result.output
    [line] = result.stderr.splitlines()
    assert line.startswith("draftline: error: ")
    return line.removeprefix("draftline: error: ")


_RENAMED = {"json_schema": "schema"}


def test_every_field_is_an_option_with_its_meaning() -> None:
    models: dict[str, list[type[BaseModel]]] = {
        "serve": [EngineConfig, ServerConfig],
        "generate": [EngineConfig, SamplingParams, Constraint, Reasoning],
        "chat": [EngineConfig, SamplingParams],
        "info": [EngineConfig],
    }
    for command, shown in models.items():
        text = re.sub(r"[\s│]+", " ", run(command, "--help").stdout)
        for model in shown:
            for name, field in model.model_fields.items():
                if name == "reasoning":
                    continue  # a model, whose fields are options
                name = f"reasoning_{name}" if model is Reasoning else name
                assert f"--{_RENAMED.get(name, name).replace('_', '-')} " in text, (command, name)
                assert field.description is not None
                assert " ".join(field.description.split()[:2]) in text, (command, name)
        assert "Examples" in text


@pytest.mark.parametrize("command", ["serve", "generate", "chat", "info", "demo", "train-draft", "top"])
def test_help_at_80_columns_shows_whole_names_values_and_words(command: str) -> None:
    lines = CliRunner(env={"COLUMNS": "80"}).invoke(app, [command, "--help"]).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    words = " ".join(" ".join(lines).replace("│", " ").split())
    parameters = get_command(app).commands[command].params  # type: ignore[attr-defined]
    options = [each for each in parameters if isinstance(each, TyperOption) and not each.hidden]
    assert options
    for option in options:
        [name] = option.opts
        shown = name if option.is_flag else f"{name} {option.metavar}"
        assert any(line.startswith(f"│ {shown}  ") for line in lines), shown
        assert option.metavar or option.is_flag, name
        assert option.help is not None
        assert option.help in words


def test_help_shows_the_bounds_and_the_defaults_of_a_commands_own_options() -> None:
    rounds = run("bench", "latency", "--help").stdout
    assert re.search(r"--rounds N +rounds of each batch \[1 to 1000; default: 5\]", rounds)
    limit = run("bench", "speculation", "--help").stdout
    assert re.search(r"--limit N +number of prompts, spread over the file; all where unset \[at least 1\]", limit)


def test_every_option_has_one_topic() -> None:
    for model, topics in TOPICS.items():
        assert sorted(name for names in topics.values() for name in names) == sorted(model.model_fields)


def test_the_commands_have_summaries_of_one_line() -> None:
    lines = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["--help"]).stdout.splitlines()
    for name in ("serve", "generate", "chat", "top", "info", "demo", "train-draft"):
        assert any(re.match(rf"│ {name} +\S.*\. +│$", line) for line in lines), name


def test_the_version_is_the_packages() -> None:
    assert run("--version").stdout == f"draftline {draftline.__version__}\n"


def test_generate_prints_text_on_stdout_and_its_summary_on_stderr() -> None:
    result = run("generate", "abc", "--max-tokens", "5", "--seed", "9")
    assert result.exit_code == 0
    assert result.stdout == "abcab\n"
    assert "3 prompt + 5 output tokens" in result.stderr
    assert "finished: length, seed 9" in result.stderr


def test_generate_reads_standard_input() -> None:
    assert run("generate", "--max-tokens", "3", stdin="xyz").stdout == "xyz\n"


SURROGATE = "character 0 is a surrogate code point, which no Unicode text has; perhaps the byte 0xff of a text that is not UTF-8"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 1, f"text: {SURROGATE}"),
        (("--chat",), 1, f"chat.messages[0].content: {SURROGATE}"),
        (("a", "--regex", "\udcff"), 2, f"--regex: {SURROGATE}, not '\\udcff'"),
        (("a", "--choice", "a", "--choice", "\udcff"), 2, f"--choice: {SURROGATE}, not ('a', '\\udcff')"),
    ],
)
@pytest.mark.parametrize("server", [(), ("--server", "localhost:1")], ids=["here", "server"])
def test_text_that_is_not_utf_8_is_one_line(
    arguments: tuple[str, ...], code: int, message: str, server: tuple[str, ...]
) -> None:
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, ["generate", *arguments, *server], input=b"\xff\xfe")
    assert failed(result, code) == message


@pytest.mark.parametrize(
    "command", ["generate", *(pytest.param(each, marks=pytest.mark.slow) for each in ("chat", "token a --stdin"))]
)
def test_a_closed_standard_input_is_one_line(command: str) -> None:
    script = f'"$0" "$1" {command} <&-'
    done = subprocess.run(
        ["sh", "-c", script, sys.executable, str(FAKE_CLI)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "draftline: error: there is no standard input: it is closed"


def test_generate_takes_a_chat_message() -> None:
    assert run("generate", "hi", "--chat", "--max-tokens", "8").stdout == "user: hi\n"


def test_generate_prints_several_outputs() -> None:
    assert run("generate", "ab", "--n", "2", "--max-tokens", "2").stdout == "[0] ab\n[1] ab\n"


def test_generate_prints_json() -> None:
    result = run("generate", "ab", "--n", "2", "--max-tokens", "2", "--json", "--logprobs", "0", "--seed", "1")
    content = json.loads(result.stdout)
    assert content["prompt"] == "ab"
    assert [(o["text"], o["token_ids"], o["finish_reason"], o["seed"]) for o in content["outputs"]] == [
        ("ab", [97, 98], "length", 1),
        ("ab", [97, 98], "length", 2),
    ]
    assert content["outputs"][0]["logprobs"][1]["chosen"] == {"token_id": 98, "logprob": 0.0, "rank": 1}


@pytest.mark.parametrize("option", ["--logprobs", "--prompt-logprobs"])
def test_log_probabilities_that_nothing_would_print_are_refused(option: str) -> None:
    assert failed(run("generate", "ab", option, "2"), 2) == f"{option}: only --json prints log-probabilities"
    assert failed(run("chat", option, "2", stdin="hi\n"), 2).startswith(f"{option}: a conversation prints no log-prob")


def test_chat_remembers_resets_and_ends() -> None:
    result = run("chat", "--system", "S", "--max-tokens", "60", stdin="one\n\ntwo\n/reset\nthree\n/exit\nfour\n")
    assert result.exit_code == 0
    first = "system: S\nuser: one\nassistant:"
    answer = (first * 3)[:60]
    second = f"system: S\nuser: one\nassistant: {answer}\nuser: two\nassistant:"
    third = "system: S\nuser: three\nassistant:"
    assert result.stdout == f"{answer}\n{second[:60]}\n{(third * 3)[:60]}\n"


def test_chat_greets_and_knows_its_commands() -> None:
    result = run("chat", "--max-tokens", "4", stdin="/help\nhi\n/rest\n/etc/hosts?\n/exit\n")
    assert result.exit_code == 0
    greeting, how, *commands, answered, unknown, _ = result.stderr.splitlines()
    assert greeting == "fake on cpu, float32; temperature 1, top-p 1"
    assert how == "Type a message. /help lists the commands, /exit or Ctrl-D ends."
    assert [line.split()[0] for line in commands] == ["/help", "/reset", "/exit"]
    assert answered.endswith("finished: length")
    assert unknown == "/rest is not a command; /help lists them."
    assert result.stdout == "user\nuser\n"


def test_chat_shows_a_seed_that_was_asked_for() -> None:
    assert "seed" not in run("chat", "--max-tokens", "4", stdin="hi\n").stderr
    assert run("chat", "--max-tokens", "4", "--seed", "7", stdin="hi\n").stderr.endswith("finished: length, seed 7\n")


def test_chat_samples_as_the_model_recommends(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    fields: dict[str, object] = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "eos_token_id": [1], "do_sample": True}
    (tmp_path / "generation_config.json").write_text(json.dumps(fields))
    model = resolve_model(str(tmp_path))
    assert with_recommended(SamplingParams(), model) == SamplingParams(temperature=0.6, top_p=0.9, top_k=20)
    assert with_recommended(SamplingParams(top_p=1.0), model) == SamplingParams(temperature=0.6, top_p=1.0, top_k=20)
    assert with_recommended(SamplingParams(), resolve_model("smollm2")) == SamplingParams()
    more = {"min_p": 0.1, "repetition_penalty": 1.05}
    (tmp_path / "generation_config.json").write_text(json.dumps(more))
    assert with_recommended(SamplingParams(), model) == SamplingParams(min_p=0.1, repetition_penalty=1.05)
    (tmp_path / "generation_config.json").write_text(json.dumps(fields))
    greeting = run("chat", "--model", str(tmp_path), "--top-p", "0.5", stdin="").stderr.splitlines()[0]
    assert greeting.endswith("temperature 0.6, top-p 0.5")


def test_chat_samples_as_a_gguf_file_recommends(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_sampling_temp(0.6)
    writer.add_sampling_top_k(20)
    writer.add_sampling_penalty_repeat(1.05)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    recommended = with_recommended(SamplingParams(), resolve_model(str(tmp_path)))
    assert recommended == SamplingParams(temperature=0.6, top_k=20, repetition_penalty=1.05)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"temperature": "hot"}', "generation_config.json: temperature: must be a number, not 'hot'"),
        (
            '{"temperature": -1}',
            "generation_config.json: temperature: Input should be greater than or equal to 0, not -1",
        ),
        ("[", "generation_config.json: is not valid JSON"),
    ],
)
def test_a_damaged_recommendation_is_one_line(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "generation_config.json").write_text(content)
    assert message in failed(run("chat", "--model", str(tmp_path), stdin=""), 1)


def test_chat_goes_on_after_a_question_that_is_too_long() -> None:
    result = run("chat", "--max-tokens", "8", stdin=f"{'x' * 5000}\nshort\n")
    assert result.exit_code == 1  # one of its messages was refused
    assert result.stdout == "user: sh\n"
    assert "chat: the prompt is too long: 5017 tokens" in result.stderr


def test_info_shows_the_model_without_generating() -> None:
    facts = json.loads(run("info", "--json").stdout)
    assert (facts["model"], facts["layers"], facts["cache_tokens"]) == ("fake", 2, 16384)
    assert facts["system_fingerprint"] == "fp_fake"
    table = run("info")
    assert table.exit_code == 0
    assert re.search(r"cache tokens +16384", table.stdout)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--max-num-seqs", "0"], "--max-num-seqs: Input should be greater than or equal to 1, not 0"),
        (["--ngram-entries", "1000"], "--ngram-entries: 1000 is not a power of two\n"),
        (["--top-p", "1.5"], "--top-p: Input should be less than or equal to 1, not 1.5"),
        (["--logit-bias", "7"], "--logit-bias: '7' is not ID=BIAS, as in 42=-1.5"),
        (
            ["--min-tokens", "9", "--max-tokens", "3"],
            "--min-tokens: min_tokens (9) exceeds max_tokens (3); --max-tokens: ",
        ),
        (
            ["--regex", "a", "--json-object"],
            (
                "set exactly one of --schema, --regex, --choice, --json-object, --grammar and --structural-tag, or only "
                "--reasoning-* options"
            ),
        ),
        (["--reasoning-end", ""], "--reasoning-end: String should have at least 1 character"),
        (["--schema", "/no/such/file"], "--schema: cannot read /no/such/file: No such file or directory"),
        (["--draft-tokens", "17"], "--draft-tokens: Input should be less than or equal to 16, not 17"),
        (["--draft-quantization", "fp8"], "--draft-quantization: there is no draft model to convert to fp8"),
        (["--drafter", "draft_model"], "--drafter: 'draft_model' needs the name of one: set --draft-model"),
        (
            ["--server", "x:1", "--dtype", "float32", "--drafter", "auto"],  # as it is without the option
            "--drafter, --dtype: the server at --server has its own engine",
        ),
        (["--server", "x:1", "--max-num-seqs", "256"], "--max-num-seqs: the server at --server has its own engine"),
    ],
)
def test_a_bad_option_is_one_line(arguments: list[str], message: str) -> None:
    assert (failed(run("generate", "x", *arguments), 2) + "\n").startswith(message)


def test_what_the_engine_refuses_is_one_line() -> None:
    assert failed(run("generate", "x", "--regex", "(a"), 1).startswith("constraint.regex: ")
    without_json = run("generate", "x", "--regex", "a", "--whitespace", "compact")
    assert failed(without_json, 1) == "constraint.whitespace: without effect where regex is set: whitespace"
    assert failed(run("generate", ""), 2).startswith("the prompt is empty")
    assert failed(run("generate", "x", "--model", "missing"), 1).startswith("missing: no such file or folder, ")


def test_options_reach_the_request(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seen: list[EngineConfig] = []

    def watched(config: EngineConfig) -> FakeEngine:
        seen.append(config)
        return start_engine(config)

    monkeypatch.setattr("draftline.engine.threaded_engine.start_engine", watched)
    file = tmp_path / "c.yaml"
    file.write_text("max-num-seqs: 3\nblock_size: 32\nport: 7\nprefix-caching: false\nageing-s: 2\n")
    assert (
        run(
            "generate", "x", "--config", str(file), "--max-num-seqs", "4", "--device", "cpu", "--max-tokens", "3"
        ).exit_code
        == 0
    )
    assert seen == [
        EngineConfig(max_num_seqs=4, block_size=32, prefix_caching=False, ageing_s=2.0, device="cpu"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("max-num-seq: 3", "max-num-seq: is not an option; did you mean max_num_seqs?"),
        ("zzz: 3", "zzz: is not an option"),
        ("max-num-seqs: many", "max_num_seqs: Input should be a valid integer, not 'many'"),
        ("max-num-seqs: '3'", "max_num_seqs: Input should be a valid integer, not '3'"),
        ("prefix-caching: 1", "prefix_caching: Input should be a valid boolean, not 1"),
        ("block_size: 12", "block_size: Input should be a multiple of 8, not 12"),
        ("served_model_name: a", "served_model_name: Input should be a list, not 'a'"),
        ("served_model_name: [a, 1]", "served_model_name[1]: Input should be a valid string, not 1"),
        ("block_size: 16\nblock-size: 16", "block-size: is set twice, with dashes and with underscores"),
        ("block-size: 16\nport: 1\nblock-size: 8", "line 3: block-size: is set twice"),
        ("- a", "must be a mapping of options, is a list"),
        ("a: [", "line 1: is not YAML: "),
    ],
)
def test_a_bad_configuration_file_is_one_line(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(content)
    assert failed(run("serve", "--config", str(file)), 2).startswith(f"{file}: {message}")


@pytest.mark.parametrize("content", ["max-tokens: 3", "max_tokens: 3", "server: gpu7:50051", "schema: a.json"])
def test_a_configuration_file_has_no_options_of_a_request(content: str, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(content)
    name = content.partition(":")[0]
    problem = f"{file}: {name}: is no option of an engine or a server; give it on the command line"
    assert failed(run("generate", "x", "--config", str(file)), 2) == problem


def test_options_that_do_not_go_together_are_named_where_they_stand(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("drafter: ngram\ndraft-tokens: 6\n")
    problem = f"draft_tokens in {file}: has no effect where --drafter is none"
    assert failed(run("info", "--config", str(file), "--drafter", "none"), 2) == problem
    problem = f"--draft-model: is not used where drafter in {file} is ngram"
    assert failed(run("info", "--config", str(file), "--draft-model", "smollm2-head"), 2) == problem


def test_an_option_that_can_be_repeated_is_a_list_in_a_configuration_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[ServerConfig] = []

    def replicas(_: EngineConfig, config: ServerConfig) -> None:
        seen.append(config)
        raise UsageError("seen")

    monkeypatch.setattr("draftline.engine.cli.serve.start_process", lambda *_: None)
    monkeypatch.setattr("draftline.engine.cli.serve._start_replicas", replicas)
    file = tmp_path / "c.yaml"
    file.write_text("http_port: 0\nserved_model_name: [a, b]\nhttp_allowed_hosts:\n- gpu7.example\n")
    assert failed(run("serve", "--config", str(file)), 2) == "seen"
    assert seen == [ServerConfig(http_port=0, served_model_name=("a", "b"), http_allowed_hosts=("gpu7.example",))]


def test_a_missing_configuration_file_is_one_line() -> None:
    assert failed(run("info", "--config", "/no/such.yaml"), 2) == "/no/such.yaml: No such file or directory"


def test_a_second_configuration_file_is_refused() -> None:
    """It replaced the first one as a whole."""
    problem = "--config: is given more than once (a.yaml, b.yaml); give one file"
    assert failed(run("serve", "--config", "a.yaml", "--config", "b.yaml"), 2) == problem


@pytest.fixture
def process() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the command with fake models as a process; it is killed after the test."""
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: str, before: Sequence[str] = ()) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        command = [*before, sys.executable, str(FAKE_CLI), *arguments]
        processes.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def said(process: subprocess.Popen[str], what: str) -> str:
    """What follows ``what`` in the next line of the process's output."""
    assert process.stdout is not None
    line = process.stdout.readline()
    _, found, rest = line.partition(what)
    assert found, line + process.communicate(timeout=PATIENCE_S)[1]
    return rest.strip()


def test_serve_from_start_to_sigterm(process: Callable[..., subprocess.Popen[str]]) -> None:
    server = process("serve", "--port", "0")
    address = said(server, LISTENING)
    assert said(server, READY) == "fake on cpu, float32"
    result = run("generate", "abc", "--server", address, "--max-tokens", "4", "--seed", "5", "--stop", "x")
    assert (result.exit_code, result.stdout) == (0, "abca\n")
    assert "seed 5" in result.stderr
    assert run("chat", "--server", address, "--max-tokens", "8", stdin="hi\n").stdout == "user: hi\n"
    assert json.loads(run("info", "--server", address, "--json").stdout)["model"] == "fake"
    error = failed(run("generate", "x" * 5000, "--server", address), 1)
    assert error.startswith("the server answers INVALID_ARGUMENT: text: the prompt is too long: 5000 bytes of UTF-8")
    with grpc.insecure_channel(address, [OWN_CONNECTION]) as channel:
        request = pb.GenerateRequest(text="running", sampling=pb.SamplingParams(max_tokens=100))
        running = iter(InferenceServiceStub(channel).Generate(request))
        first = next(running)
        server.send_signal(signal.SIGTERM)
        *rest, end = running
    assert first.delta.text + "".join(response.delta.text for response in rest) == ("running" * 15)[:100]
    assert end.finished.usage.completion_tokens == 100
    out, err = server.communicate(timeout=PATIENCE_S)
    assert server.returncode == 0
    assert out == "draftline: stopped\n"
    assert "Traceback" not in err


def test_a_server_says_where_its_metrics_are(process: Callable[..., subprocess.Popen[str]]) -> None:
    """A free port is known from this line alone."""
    server = process("serve", "--port", "0", "--metrics-port", "0")
    said(server, LISTENING)
    url = said(server, "metrics at ")
    said(server, READY)
    assert "draftline_model{" in urllib.request.urlopen(url, timeout=PATIENCE_S).read().decode()


@pytest.mark.parametrize("form", ["text", pytest.param("json", marks=pytest.mark.slow)])
def test_a_server_whose_engine_dies_says_so_and_ends(form: str, process: Callable[..., subprocess.Popen[str]]) -> None:
    server = process("serve", "--port", "0", "--log-format", form)
    address = said(server, LISTENING)
    said(server, READY)
    assert failed(run("generate", "DIE", "--server", address), 1).startswith("the server answers UNAVAILABLE: ")
    _, err = server.communicate(timeout=PATIENCE_S)
    assert server.returncode == 1
    last = err.splitlines()[-1]
    message = last if form == "text" else json.loads(last)["message"]
    assert message == "draftline: error: the engine stopped after a fault: DIE"
    assert "Traceback" not in err


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM])
def test_a_second_signal_ends_at_once(number: signal.Signals, process: Callable[..., subprocess.Popen[str]]) -> None:
    server = process("serve", "--port", "0")
    address = said(server, LISTENING)
    said(server, READY)
    with grpc.insecure_channel(address, [OWN_CONNECTION]) as channel:
        request = pb.GenerateRequest(text="long", sampling=pb.SamplingParams(max_tokens=4000))
        running = iter(InferenceServiceStub(channel).Generate(request))
        next(running)
        server.send_signal(number)
        assert server.stderr is not None
        while "draining" not in (line := server.stderr.readline()):
            assert line
        server.send_signal(number)
        server.communicate(timeout=PATIENCE_S)
    assert server.returncode == (1 if number == signal.SIGTERM else 128 + number)


def test_a_closed_terminal_starts_a_drain(process: Callable[..., subprocess.Popen[str]]) -> None:
    server = process("serve", "--port", "0")
    said(server, LISTENING)
    said(server, READY)
    server.send_signal(signal.SIGHUP)
    out, err = server.communicate(timeout=PATIENCE_S)
    assert (server.returncode, out) == (0, "draftline: stopped\n")
    assert "draining" in err


def test_the_end_of_a_session_starts_one_drain(process: Callable[..., subprocess.Popen[str]]) -> None:
    """Systemd sends SIGHUP right behind SIGTERM then."""
    server = process("serve", "--port", "0")
    address = said(server, LISTENING)
    said(server, READY)
    with grpc.insecure_channel(address, [OWN_CONNECTION]) as channel:
        request = pb.GenerateRequest(text="long", sampling=pb.SamplingParams(max_tokens=4000))
        running = InferenceServiceStub(channel).Generate(request)
        next(iter(running))
        server.send_signal(signal.SIGTERM)
        assert server.stderr is not None
        while "draining" not in (line := server.stderr.readline()):
            assert line
        server.send_signal(signal.SIGHUP)
        next(iter(running))
        running.cancel()
        server.communicate(timeout=PATIENCE_S)
    assert server.returncode == 0


def test_a_server_under_nohup_outlives_its_terminal(process: Callable[..., subprocess.Popen[str]]) -> None:
    server = process("serve", "--port", "0", before=["nohup"])
    address = said(server, LISTENING)
    said(server, READY)
    server.send_signal(signal.SIGHUP)
    assert run("generate", "abc", "--server", address, "--max-tokens", "1").exit_code == 0


def test_a_server_whose_engine_hangs_ends(process: Callable[..., subprocess.Popen[str]], tmp_path: Path) -> None:
    model = tmp_path / "hanging.gguf"
    model.touch()
    server = process("serve", "--port", "0", "--drain-timeout", "0.1", "--model", str(model))
    said(server, LISTENING)
    said(server, READY)
    server.send_signal(signal.SIGTERM)
    out, err = server.communicate(timeout=PATIENCE_S)
    assert (server.returncode, out) == (0, "draftline: stopped\n")
    assert "Traceback" not in err


def test_a_signal_while_the_model_loads_ends_well(
    process: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    model = tmp_path / "slow.gguf"
    model.touch()
    server = process("serve", "--port", "0", "--model", str(model))
    said(server, LISTENING)
    server.send_signal(signal.SIGTERM)
    out, err = server.communicate(timeout=PATIENCE_S)
    assert (server.returncode, out, err) == (0, "", "")


def test_a_port_in_use_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        error = failed(run("serve", "--port", str(port)), 1)
    assert error == f"cannot listen on 127.0.0.1:{port}: {os.strerror(errno.EADDRINUSE)}"


def test_a_model_that_is_missing_ends_the_server_in_one_line() -> None:
    assert failed(run("serve", "--port", "0", "--model", "missing"), 1).startswith("missing: no such file or folder, ")


def test_a_wrong_model_is_reported_before_torch_is_imported() -> None:
    commands = [
        ["serve", "--port", "0", "--model", "missing"],
        ["generate", "x", "--model", "missing"],
        ["generate", "x", "--draft-model", "missing"],
        ["chat", "--model", "missing"],
        ["info", "--tokenizer", "missing"],
        ["train-draft", "out", "--model", "missing"],
    ]
    code = f"""if True:
        import sys
        from draftline.engine.cli import main
        for arguments in {commands!r}:
            sys.argv[1:] = arguments
            try:
                main()
            except SystemExit as end:
                print(end.code, "torch" in sys.modules)
    """
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    assert [line for line in done.stdout.splitlines() if "listening" not in line] == ["1 False"] * len(commands)
    errors = done.stderr.splitlines()
    assert len(errors) == len(commands), done.stderr
    assert all(error.startswith("draftline: error: missing: no such file or folder, ") for error in errors)


def test_a_command_imports_no_other() -> None:
    code = """if True:
        import sys
        from draftline.engine.cli import main
        try:
            main()
        except SystemExit as end:
            print(end.code, *sorted({"grpc", "numpy", "pydantic", "torch"} & set(sys.modules)))
    """
    for arguments, imported in ((["--version"], "0"), (["bench", "plot", "--help"], "0 grpc pydantic")):
        done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
        assert done.stdout.splitlines()[-1] == imported


def test_the_engine_s_process_starts_before_the_server_is_imported() -> None:
    """Both take seconds to import."""
    code = """if True:
        import subprocess, sys
        from draftline.engine.cli import main

        def start(*_, **__):
            print(*sorted({"numpy", "torch", "draftline.engine.server.server"} & set(sys.modules)))
            sys.exit(0)

        subprocess.Popen.__init__ = start
        main()
    """
    command = [sys.executable, "-c", code, "serve", "--engine-process", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "\n"), done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "No such command 'nope'"),
        (["serve", "--nope"], "No such option: --nope"),
        (["generate", "a", "--served-model-name", "b"], "No such option: --served-model-name (see"),
        (["bench", "nope"], "No such command 'nope' (see draftline bench --help)"),
        (["serve", "--port"], "Option '--port' requires an argument (see draftline serve --help)"),
        (["bench", "plot", "--what"], "Option '--what' requires an argument (see draftline bench plot --help)"),
        (["serve", "--insecure=3"], "Option '--insecure' does not take a value (see draftline serve --help)"),
        (
            ["serve", "--swap-space", "4"],
            "No such option: --swap-space. Preempted requests are computed again; nothing is swapped (see draftline serve --help)",
        ),
        (
            ["serve", "org/name"],
            "Got unexpected extra argument(s) (org/name). The model is an option: --model NAME (see",
        ),
        (["serve", "--model", "a", "b"], "Got unexpected extra argument(s) (b) (see"),
        (["token", "a", "b"], "Got unexpected extra argument(s) (b) (see"),
        (["serve", "--prot", "1"], "No such option: --prot (Possible options: --host, --port"),
        (
            ["serve", "--port", "many"],
            (
                "Invalid value for '--port': Input should be a valid integer, unable to parse "
                "string as an integer, not 'many' (see draftline serve --help)"
            ),
        ),
        (
            ["serve", "--dtype", "int3"],
            (
                "Invalid value for '--dtype': 'int3' is not one of 'auto', 'float32', "
                "'bfloat16', 'float16' (see draftline serve --help)"
            ),
        ),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["draftline", *arguments])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert exit_.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    [line] = err.splitlines()
    assert line.startswith(f"draftline: error: {message}")


def test_no_command_shows_the_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["draftline"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert not exit_.value.code
    assert "generate" in capsys.readouterr().out


def test_the_module_runs_as_the_command_and_imports_no_server_for_its_help() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "draftline", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "serve" in result.stdout
    assert "draftline.engine.cli.backend" in result.stderr
    assert "draftline.engine.server.grpc" not in result.stderr


def test_output_may_be_cut_off(process: Callable[..., subprocess.Popen[str]]) -> None:
    """As ``draftline generate … | head -c 10`` does."""
    writing = process("generate", "abc", "--max-tokens", "4000")
    assert writing.stdout is not None
    assert writing.stderr is not None
    writing.stdout.read(3)
    writing.stdout.close()
    assert "Traceback" not in writing.stderr.read()
    assert writing.wait(timeout=PATIENCE_S) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("generate", "abc", "--json", "--max-tokens", "3"),
        ("--version",),
        pytest.param(("--help",), marks=pytest.mark.slow),
    ],
    ids=" ".join,
)
def test_output_that_cannot_be_written_is_an_error_in_one_line(arguments: tuple[str, ...]) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, str(FAKE_CLI), *arguments],
            stdout=full, stderr=subprocess.PIPE, text=True, env=environment, check=False,
        )  # fmt: skip
    assert result.returncode == 1
    assert result.stderr.splitlines()[-1] == "draftline: error: cannot write the output: No space left on device"
    assert "Traceback" not in result.stderr
    assert "Exception" not in result.stderr


def test_a_server_serves_on_where_its_output_cannot_be_written() -> None:
    def start(port: int) -> subprocess.Popen[str]:
        command = [sys.executable, str(FAKE_CLI), "serve", "--port", str(port)]
        with Path("/dev/full").open("w") as full:
            return subprocess.Popen(command, stdout=full, stderr=subprocess.PIPE, text=True)

    assert_serves(start)
