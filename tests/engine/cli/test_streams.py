"""The standard streams of the command: closed ones, and locales other than UTF-8. Its temporary files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from serving_command import assert_serves

from draftline.engine.errors import UsageError, temporary_folder

FAKE_CLI = Path(__file__).parents[2] / "helpers" / "fake_cli.py"
TEXT = "Zürich — 😀"


def shell(arguments: str) -> list[str]:
    """A command line that a shell runs, with its redirections."""
    return ["sh", "-c", f'exec "$0" "$1" {arguments}', sys.executable, str(FAKE_CLI)]


@pytest.mark.parametrize(
    "arguments",
    [
        "--version",
        pytest.param("--help", marks=pytest.mark.slow),
        "generate abc --max-tokens 3",
        pytest.param("generate abc --json", marks=pytest.mark.slow),
    ],
)
def test_closed_standard_output_is_an_error_in_one_line(arguments: str) -> None:
    done = subprocess.run(shell(f"{arguments} >&-"), stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "draftline: error: cannot write the output: Bad file descriptor"
    assert "Traceback" not in done.stderr


def test_closed_standard_error_takes_no_message() -> None:
    done = subprocess.run(shell("generate abc --max-tokens 3 2>&-"), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "abc\n", "")


@pytest.mark.parametrize(
    "streams", [*(pytest.param(one, marks=pytest.mark.slow) for one in (">&-", "2>&-")), "<&- >&- 2>&-"]
)
@pytest.mark.parametrize("log_format", [pytest.param("text", marks=pytest.mark.slow), "json"])
def test_a_server_serves_without_standard_streams(streams: str, log_format: str) -> None:
    """As one that a program without a terminal starts. What it opens must not take their place."""
    pipe = subprocess.PIPE

    def start(port: int) -> subprocess.Popen[str]:
        command = shell(f"serve --port {port} --log-format {log_format} {streams}")
        return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)

    assert_serves(start)


@pytest.mark.parametrize("encoding", ["ascii", pytest.param("latin-1", marks=pytest.mark.slow)])
def test_text_is_utf_8_in_every_locale(encoding: str) -> None:
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    command = [sys.executable, str(FAKE_CLI)]
    generate = [*command, "generate", "--json", "--max-tokens", str(len(TEXT.encode()))]
    done = subprocess.run(generate, input=TEXT.encode(), env=environment, capture_output=True, check=True)
    answer = json.loads(done.stdout)
    assert answer["prompt"] == TEXT
    helped = subprocess.run([*command, "generate", "--help"], env=environment, capture_output=True, check=True)
    assert "╭" in helped.stdout.decode()


def test_temporary_files_need_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with temporary_folder() as folder:
        assert folder.parent == tmp_path
    assert not folder.exists()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with (
        pytest.raises(UsageError, match=r"no folder for temporary files can be written \(set TMPDIR\)"),
        temporary_folder(),
    ):
        pass
