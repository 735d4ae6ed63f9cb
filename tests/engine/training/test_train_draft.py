"""``draftline train-draft`` from end to end, on a tiny random model in a folder."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from byte_llama import byte_llama
from byte_tokenizer import VOCAB, write_byte_tokenizer
from typer.testing import CliRunner, Result

from draftline.engine.cli import app
from draftline.engine.llm import LLM
from draftline.engine.training.config import TrainDraftConfig
from draftline.engine.training.samples import SamplePlan, trained_tokens, write_samples
from draftline.models.loader import open_checkpoint, open_draft_checkpoint
from draftline.spec.train_draft.decoder import Draft, FrozenTarget
from draftline.spec.train_draft.packing import pack
from draftline.spec.train_draft.samples import Kind, Sample, Samples, Split, ends_in_loop


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama over bytes, with a chat template."""
    folder = tmp_path_factory.mktemp("target")
    write_byte_tokenizer(folder)
    byte_llama(tie_word_embeddings=True).save_pretrained(folder)
    return folder


def run(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["train-draft", *map(str, arguments)])


def small(target: Path) -> list[object]:
    options = {
        "model": target,
        "device": "cpu",
        "dtype": "float32",
        "max-num-seqs": 16,
        "kv-cache-memory-gib": 0.05,
        "answer-tokens": 24,
        "held-out": 2,
        "sample-tokens": 200,
        "batch-tokens": 2048,
    }
    return [part for name, value in options.items() for part in (f"--{name}", value)]


@dataclass(frozen=True)
class Trained:
    """A draft model trained from scratch, its samples, and what the command said."""

    draft: Path
    answers: Path
    result: Result


@pytest.fixture(scope="module")
def trained(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("trained")
    draft, answers = folder / "draft", folder / "answers.npz"
    plot = draft / "curve.svg"  # in a folder that the training makes
    result = run(draft, *small(target), "--epochs", 2, "--evaluations", 2, "--samples", answers, "--plot", plot)
    return Trained(draft, answers, result)


def test_help_lists_every_option() -> None:
    text = re.sub(r"[\s│]+", " ", run("--help").stdout)
    for name, field in TrainDraftConfig.model_fields.items():
        assert f"--{name.replace('_', '-')} " in text
        assert field.description is not None
        assert " ".join(field.description.split()[:2]) in text
    assert "Examples" in text


def test_a_family_with_layers_of_its_own_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["GPT2LMHeadModel"]}))
    result = run(tmp_path / "draft", "--model", tmp_path, "--load-format", "dummy")
    assert result.exit_code == 2, result.output
    assert "GPT2LMHeadModel: draft models can be trained for Llama-like models only" in " ".join(result.stderr.split())


def test_from_a_target_to_a_draft_and_again_from_its_samples(target: Path, trained: Trained, tmp_path: Path) -> None:
    draft, answers, result = trained.draft, trained.answers, trained.result
    assert result.exit_code == 0, result.output
    assert (
        len(re.findall(r"(draft model|n-gram) +(general|json) +\d\.\d{3} tokens per verification", result.stdout)) == 4
    )
    assert "acceptance length general" in result.stderr
    fields = json.loads((draft / "config.json").read_text())
    assert fields["draft_of"] == {
        "model": str(target),
        "tokenizer": str(target),
        "shared": ["model.embed_tokens.weight"],
    }
    facts = json.loads((draft / "training.json").read_text())
    assert facts["layers"] == [0, 2]
    assert facts["acceptance"]["draft model"]["json"]["length"] >= 1
    curve = [json.loads(line) for line in (draft / "curve.jsonl").read_text().splitlines()]
    assert [point["step"] for point in curve] == sorted({point["step"] for point in curve})
    assert curve[-1]["step"] == curve[-1]["steps"]
    assert all(set(point["acceptance"]) == {"general", "json"} for point in curve)
    assert "acceptance length on held-out prompts" in (draft / "curve.svg").read_text()

    again = run(tmp_path / "again", *small(target), "--epochs", 2, "--evaluations", 2, "--samples", answers)
    assert again.exit_code == 0
    assert again.stdout == result.stdout.replace(str(draft), str(tmp_path / "again"))
    for file in ("model.safetensors", "config.json"):
        assert (draft / file).read_bytes() == (tmp_path / "again" / file).read_bytes()

    refused = CliRunner().invoke(app, ["generate", "x", "--model", str(draft), "--device", "cpu"])
    assert refused.exit_code == 1
    assert "draft_of" in refused.stderr


def test_a_plot_that_cannot_be_drawn_is_refused_before_the_training(target: Path, tmp_path: Path) -> None:
    for plot, problem in (("missing/curve.svg", "there is no folder"), ("curve.png", "a plot is an SVG file")):
        result = run(tmp_path / "draft", *small(target), "--plot", tmp_path / plot)
        assert result.exit_code == 2
        assert problem in " ".join(result.stderr.split())
        assert not (tmp_path / "draft").exists()


def test_a_saved_draft_gives_its_logits_again(target: Path, trained: Trained) -> None:
    assert trained.result.exit_code == 0, trained.result.output
    checkpoint = open_checkpoint(str(target))
    model = FrozenTarget(checkpoint, torch.float32, torch.device("cpu"))
    packed = pack(list(Samples.load(trained.answers))[:4], torch.device("cpu"))
    saved = Draft.from_checkpoint(model, open_draft_checkpoint(str(trained.draft), checkpoint))
    fresh = Draft.from_layers(model, [0, 2])
    before = fresh.hidden(packed)
    fresh.layers.load_state_dict(saved.layers.state_dict())
    torch.testing.assert_close(fresh.hidden(packed), saved.hidden(packed))
    assert not torch.allclose(before, saved.hidden(packed))


def test_samples_are_the_targets_own_answers(target: Path) -> None:
    llm = LLM(str(target), device="cpu", dtype="float32", max_num_seqs=16, kv_cache_memory_gib=0.05)
    lines: list[str] = []
    plan = SamplePlan(tokens=300, answer_tokens=24, held_out=3)
    samples = [sample for new in write_samples(llm, plan, lines.append) for sample in new]
    parts = {split: [s for s in samples if s.split is split] for split in Split}
    assert sum(s.answer_len for s in parts[Split.TRAIN]) >= 300
    assert all({s.kind for s in part} == set(Kind) for part in parts.values())
    assert all(1 <= s.answer_len <= 24 for s in samples)
    assert not any(ends_in_loop(s.tokens[s.prompt_len :]) for s in samples)
    assert len(lines) >= 2
    trained = {tuple(s.tokens[: s.prompt_len]) for s in parts[Split.TRAIN]}
    assert len(trained) == len(parts[Split.TRAIN])
    model = FrozenTarget(open_checkpoint(str(target)), torch.float32, torch.device("cpu"))
    held_out = parts[Split.CHOOSE] + parts[Split.REPORT]
    packed = pack(held_out, torch.device("cpu"))
    assert not any(tuple(s.tokens[: s.prompt_len]) in trained for s in held_out)
    greedy = (model.hidden(packed) @ model.head.T).argmax(-1)
    assert (greedy == packed.answers).float().mean() > 0.99


@pytest.mark.slow
def test_writing_goes_on_where_it_was_broken_off(target: Path) -> None:
    llm = LLM(str(target), device="cpu", dtype="float32", max_num_seqs=16, kv_cache_memory_gib=0.05)
    plan = SamplePlan(tokens=400, answer_tokens=24, held_out=2)
    begun = next(write_samples(llm, plan, lambda line: None))
    begun += next(write_samples(llm, plan, lambda line: None, begun))
    assert trained_tokens(begun) > 0
    rest = [s for new in write_samples(llm, replace(plan, tokens=800), lambda line: None, begun) for s in new]
    assert trained_tokens(begun) + trained_tokens(rest) >= 800
    assert {s.split for s in rest} == {Split.TRAIN}
    asked = [s.tokens[: s.prompt_len].tobytes() for s in (*begun, *rest)]
    assert len(set(asked)) == len(asked)
    assert not list(write_samples(llm, replace(plan, tokens=1), lambda line: None, begun))


def test_what_makes_no_sense_is_one_line(target: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "answers.npz"
    damaged.write_bytes(b"nothing")
    foreign, long = tmp_path / "foreign.npz", tmp_path / "long.npz"
    for path, tokens in (foreign, np.full(9, VOCAB)), (long, np.zeros(2049)):
        Samples.of([Sample(tokens.astype(np.int32), 2, Kind.GENERAL, Split.TRAIN)]).save(path)
    for arguments, message in (
        (["--layers", 0, "--layers", 3], "--layers: 3: "),
        (["--samples", damaged], "is not a file of samples"),
        (["--samples", foreign], f"has token {VOCAB}, and the vocabulary of "),
        (["--samples", long], "has a sample of 2049 tokens, and "),
        (["--samples", tmp_path / "nowhere" / "answers.npz"], "answers.npz: no such folder"),
        (["--epochs", 0], "--epochs: "),
        (["--synthetic-acceptance", 1], "--synthetic-acceptance: changes the target's answers"),
    ):
        result = run(tmp_path / "draft", *small(target), *arguments)
        assert result.exit_code == 2, result.output
        [line] = result.stderr.splitlines()
        assert message in line
    assert not (tmp_path / "draft").exists()
    result = run(damaged / "draft", *small(target))
    assert (result.exit_code, "draft: cannot be created: " in result.stderr) == (2, True), result.output


@pytest.mark.parametrize("kind", ["model", "eagle3"])
def test_a_folder_of_another_model_is_left_as_it_is(target: Path, tmp_path: Path, kind: str) -> None:
    """Above all the target's own."""
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    result = run(target, *small(target), "--kind", kind)
    [line] = result.stderr.splitlines()
    assert (result.exit_code, f"{target}: has another model's config.json" in line) == (2, True), result.output
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before

    trained, other = tmp_path / "trained", {"model": "eagle3", "eagle3": "parallel"}[kind]
    trained.mkdir()
    (trained / "config.json").write_text("{}")
    (trained / "training.json").write_text(json.dumps({"training": {"kind": other}}))
    result = run(trained, *small(target), "--kind", kind)
    assert (result.exit_code, f"trained: has a training of --kind {other}" in result.stderr) == (2, True), result.output


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("model", "model.safetensors"),
        pytest.param("eagle3", "model.safetensors", marks=pytest.mark.slow),
        pytest.param("eagle3", "training-state.pt", marks=pytest.mark.slow),
    ],
)
def test_a_full_disk_is_one_line(target: Path, trained: Trained, tmp_path: Path, kind: str, name: str) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / f"{name}.unfinished").symlink_to("/dev/full")
    result = run(draft, *small(target), "--samples", trained.answers, "--kind", kind, "--epochs", 1)
    expected = f"{draft / name}: cannot be written: No space left on device"
    assert (result.exit_code, expected in result.stderr) == (2, True), result.output
    assert not (draft / name).exists()
    # The same command begins again once there is room.
    again = run(draft, *small(target), "--samples", trained.answers, "--kind", kind, "--epochs", 1)
    assert (again.exit_code, (draft / name).exists()) == (0, True), again.output


@pytest.mark.parametrize("kind", ["model", "eagle3"])
def test_a_target_without_held_out_answers_is_refused(target: Path, tmp_path: Path, kind: str) -> None:
    """Before the training. Drafts begin with an answer's second token, so answers of one token choose no checkpoint."""
    answers, trained = tmp_path / "answers.npz", Sample(np.zeros(700, np.int32), 2, Kind.GENERAL, Split.TRAIN)
    one_token = Sample(np.zeros(3, np.int32), 2, Kind.GENERAL, Split.CHOOSE)
    for held_out in (replace(one_token, split=Split.REPORT), one_token):
        Samples.of([trained, held_out]).save(answers)
        result = run(tmp_path / "draft", *small(target), "--samples", answers, "--kind", kind)
        message = "has no whole answer of two tokens or more to a held-out prompt"
        assert (result.exit_code, message in result.stderr) == (2, True), result.output


def test_a_kind_without_held_out_answers_is_not_measured(target: Path, trained: Trained, tmp_path: Path) -> None:
    answers = tmp_path / "answers.npz"
    held_out = (Split.CHOOSE, Kind.GENERAL), (Split.REPORT, Kind.GENERAL)
    samples = [s for s in Samples.load(trained.answers) if s.split is Split.TRAIN or (s.split, s.kind) in held_out]
    Samples.of(samples).save(answers)
    result = run(tmp_path / "draft", *small(target), "--samples", answers, "--epochs", 1, "--evaluations", 1)
    assert result.exit_code == 0, result.output
    assert re.search(r"draft model +general +\d\.\d{3} tokens per verification", result.stdout)
    assert re.search(r"draft model +json +not measured: no held-out answers", result.stdout)
