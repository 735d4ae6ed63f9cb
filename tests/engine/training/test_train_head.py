"""``draftline train-draft --kind eagle3`` from end to end, on a tiny random model in a folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from byte_llama import byte_llama
from byte_tokenizer import write_byte_tokenizer
from tiny_head import head_fields, random_weights, write_head
from typer.testing import CliRunner, Result

from draftline import SamplingParams
from draftline.engine.cli import app
from draftline.engine.llm import LLM
from draftline.models.heads.config import head_config
from draftline.models.loader import open_checkpoint

ENGINE = {"device": "cpu", "dtype": "float32", "max_num_seqs": 16, "kv_cache_memory_gib": 0.05}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama over bytes, with a chat template. Its next token mostly depends on the newest one."""
    folder = tmp_path_factory.mktemp("target")
    write_byte_tokenizer(folder)
    model = byte_llama(tie_word_embeddings=False)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data *= 0.1
        layer.mlp.down_proj.weight.data *= 0.1
    model.save_pretrained(folder)
    return folder


def run(output: Path, target: Path, answers: Path, *arguments: object) -> Result:
    options = {
        **ENGINE,
        "model": target,
        "kind": "eagle3",
        "samples": answers,
        "answer_tokens": 24,
        "held_out": 3,
        "sample_tokens": 600,
        "batch_tokens": 1024,
        "draft_vocab_size": 200,
        "unroll": 2,
        "measured_drafts": 2,
        "epochs": 12,
        "evaluations": 2,
        "learning_rate": 5e-3,
    }
    named = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
    command = ["train-draft", str(output), *map(str, (*named, *arguments))]
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, command)


@pytest.mark.slow
def test_a_trained_head_is_accepted_more_often_than_a_random_one(target: Path, tmp_path: Path) -> None:
    """Two runs, the second of which continues the first; then the head drafts."""
    output, answers = tmp_path / "head", tmp_path / "answers.npz"
    begun = run(output, target, answers, "--stop-after", 1e-6)
    assert begun.exit_code == 0, begun.output
    assert not json.loads((output / "training.json").read_text())["finished"]
    ended = run(output, target, answers)
    assert ended.exit_code == 0, ended.output
    assert "continues after step 1" in ended.stderr
    facts = json.loads((output / "training.json").read_text())
    assert facts["finished"]
    assert facts["layers"] == [0, 1, 2]
    curve = [json.loads(line) for line in (output / "curve.jsonl").read_text().splitlines()]
    assert curve[0]["step"] == 1
    assert curve[-1]["step"] == curve[-1]["steps"]
    assert curve[-1]["loss"] < curve[0]["loss"] - 0.3
    assert set(curve[-1]["acceptance"]) == {"general", "json"}
    assert 1 <= curve[0]["sharpness"] <= 1.3  # the first point is the best so far
    # Another training starts from it, with more tokens and an eight-bit projection.
    further, other_options = tmp_path / "further", ("--epochs", 1, "--draft-vocab-size", 220)
    result = run(further, target, answers, *other_options, "--output-projection", "fp8", "--initial-head", output)
    assert result.exit_code == 0, result.output
    losses = [json.loads(line)["loss"] for line in (further / "curve.jsonl").read_text().splitlines()]
    assert losses[0] < curve[0]["loss"] - 0.3, "it begins where the other one ended"
    # It has nothing left to do, but to plot a curve that an earlier version has written.
    named = (output / "curve.jsonl").read_text()
    (output / "curve.jsonl").write_text(named.replace('"benchmark": "training", ', ""))
    assert run(output, target, answers, "--plot", output / "curve.svg").exit_code == 0
    assert (output / "curve.jsonl").read_text() == named
    assert (output / "curve.svg").exists()
    other = run(output, target, answers, "--epochs", 2)
    assert other.exit_code == 2
    assert "belongs to a training with other options" in " ".join(other.stderr.split())

    shape = open_checkpoint(str(target)).config
    fields = head_fields(shape, draft_vocab_size=200)
    random_head = write_head(tmp_path / "random", fields, random_weights(head_config(fields, "head", shape)))
    prompts = [f"What is {word}?" for word in ("a sea", "red", "an owl", "seven", "iron", "rain")]
    sampling = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    with LLM(str(target), drafter="none", **ENGINE) as llm:
        plain = [answer.outputs[0].token_ids for answer in llm.generate(prompts, sampling, use_tqdm=False)]
    accepted = {}
    for name, folder in (("trained", output), ("random", random_head)):
        with LLM(str(target), draft_model=str(folder), drafter="draft_model", draft_length="fixed", **ENGINE) as llm:
            assert [a.outputs[0].token_ids for a in llm.generate(prompts, sampling, use_tqdm=False)] == plain
            drafter = llm.stats().drafter
            assert drafter.name == "eagle3"
            accepted[name] = drafter.accepted / drafter.drafted
    assert accepted["trained"] > max(0.01, 3 * accepted["random"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kind", "model"], "--draft-vocab-size: is only used where --kind is eagle3 or parallel"),
        (["--layers", 2, "--layers", 1], "--layers: [2, 1]: must ascend from 0 to the 3 layers of"),
        (["--layers", 1, "--layers", 4], "must ascend from 0 to the 3 layers"),
        (
            ["--kind", "parallel", "--output-projection", "fp8"],
            "--output-projection: is only used where --kind is eagle3",
        ),
    ],
)
def test_what_makes_no_sense_is_one_line(target: Path, tmp_path: Path, arguments: list[object], message: str) -> None:
    result = run(tmp_path / "head", target, tmp_path / "answers.npz", *arguments)
    assert result.exit_code == 2, result.output
    assert message.replace("_", "-") in " ".join(result.stderr.split()).replace("_", "-")
    assert not (tmp_path / "head").exists()


def test_an_initial_head_that_does_not_fit_is_named(target: Path, tmp_path: Path) -> None:
    shape = open_checkpoint(str(target)).config
    fields = head_fields(shape, draft_vocab_size=200)
    other = write_head(tmp_path / "other", fields, random_weights(head_config(fields, "head", shape)))
    differs = "its norm_before_residual is False, and this training's True"
    for head, message in ((other, differs), (target, "is no head")):
        result = run(tmp_path / "head", target, tmp_path / "answers.npz", "--initial-head", head)
        assert result.exit_code == 2, result.output
        expected = f"--initial-head: {head}: {message}"
        assert expected.replace("_", "-") in " ".join(result.stderr.split()).replace("_", "-")
        assert not (tmp_path / "answers.npz").exists(), "before the target writes answers"


def test_a_damaged_state_is_named(target: Path, tmp_path: Path) -> None:
    (tmp_path / "training-state.pt").write_bytes(b"nothing")
    result = run(tmp_path, target, tmp_path / "answers.npz")
    assert result.exit_code == 2
    assert "training-state.pt: is no state of a training" in " ".join(result.stderr.split())
