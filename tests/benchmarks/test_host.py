"""host.py steps a real engine; its arithmetic, and the command."""

from __future__ import annotations

import json
from functools import partial
from itertools import count
from pathlib import Path

import host
import pytest
from host import VARIANTS, WINDOW

from draftline.engine.bench.contenders.placeholder_tokenizer import write_placeholder_tokenizer
from draftline.engine.bench.contenders.shapes import SMOLLM2_135M
from draftline.models.tokenization.tokenizer import Tokenizer
from draftline.spec.adaptive import STEPS_PER_CHOICE


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_placeholder_tokenizer(folder, SMOLLM2_135M["vocab_size"])
    (folder / "config.json").write_text(json.dumps(SMOLLM2_135M))
    return Tokenizer.from_folder(folder)


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_row_decodes_in_every_timed_step(
    variant: str, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens_at: list[int] = []
    cores: list[host.Core] = []
    make = host.hostbound_core
    monkeypatch.setattr(host, "hostbound_core", lambda *given: cores.append(make(*given)) or cores[0])
    # Where choices seem to take time, they stand for more steps, and the probe falls between the two windows.
    monkeypatch.setattr(host, "AdaptiveDrafting", partial(host.AdaptiveDrafting, clock=lambda: 0.0))

    ticks = count()

    def clock() -> float:
        tokens_at.append(cores[0].stats().generated_tokens)
        return float(next(ticks) ** 2)

    seconds = host.measure(VARIANTS[variant], tokenizer, rows=3, rounds=2, clock=clock)
    assert seconds == [1 / WINDOW, 5 / WINDOW]  # readings 0, 1, 4, 9
    # With drafts, three rows have fourteen tokens in two steps (`_ACCEPTED`), and a probe without drafts has three a step.
    drafts = VARIANTS[variant].drafts
    expected = {7 * WINDOW, 7 * WINDOW - 4 * STEPS_PER_CHOICE} if drafts else {3 * WINDOW}
    assert {tokens_at[1] - tokens_at[0], tokens_at[3] - tokens_at[2]} == expected
    cores[0].check()


def test_the_best_round_counts() -> None:
    line = host.result("plain", 4, [3e-6, 2e-6, 9e-6])
    assert (line["us_per_step"], line["us_per_row"], line["rounds"]) == (2.0, 0.5, [3.0, 2.0, 9.0])


def test_the_command_writes_a_line_for_each_variant_and_number_of_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "results.jsonl"
    host.main(["--rows", "1,2", "--variants", "plain,stop", "--best-of", "1", "--output", str(output)])
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(line["variant"], line["rows"]) for line in lines] == [("plain", 1), ("plain", 2), ("stop", 1), ("stop", 2)]
    assert all(line["us_per_step"] > 0 and line["machine"] for line in lines)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "µs/step and row" in shown.err


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("--rows", "1,x", "--rows: 'x' is no whole number of at least 1"),
        ("--rows", "0", "--rows: '0' is no whole number of at least 1"),
        ("--variants", "plain,fast", "fast: not one of plain"),
        ("--best-of", "0", "no whole number of at least 1"),
    ],
)
def test_invalid_arguments_are_rejected(
    argument: str, value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        host.main([argument, value])
    assert message in capsys.readouterr().err
