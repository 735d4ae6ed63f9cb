"""``train_draft_model``: from a target to a draft model's folder: samples, training, the choice of a checkpoint.

`draftline.engine.training.samples` writes the samples; `draftline.spec.train_draft` has the training itself.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from draftline.engine.config import EngineConfig
from draftline.engine.errors import UsageError
from draftline.engine.llm import LLM
from draftline.engine.training.config import TrainDraftConfig
from draftline.engine.training.curve import Curve, last_point
from draftline.engine.training.folder import check_folder, make_folder, write_record
from draftline.engine.training.samples import SamplePlan, trained_tokens, write_samples
from draftline.models.checkpoints.draft_folder import write_draft_folder
from draftline.models.config import ModelConfig
from draftline.models.families import is_llama_like
from draftline.models.loader import open_checkpoint, open_draft_checkpoint
from draftline.spec.ngram import MAX_NGRAM
from draftline.spec.train_draft.acceptance import Acceptance, draft_acceptance, ngram_acceptance
from draftline.spec.train_draft.decoder import Draft, FrozenTarget
from draftline.spec.train_draft.distill import OnStep, Schedule, train
from draftline.spec.train_draft.samples import Kind, Sample, Samples, Split


def train_draft_model(
    output: Path, training: TrainDraftConfig, engine: EngineConfig, report: Callable[[str], None], on_step: OnStep
) -> dict[str, dict[str, Acceptance]]:
    """Train a draft model, and write it to a folder with a ``training.json`` that records how it was made.

    Args:
        output: the folder; see `draftline.models.checkpoints.draft_folder`. It has the losses and acceptance lengths in
            ``curve.jsonl``, too.
        training: the options of the training.
        engine: the target, and the options of the engine that writes its answers.
        report: receives lines of progress.
        on_step: shows progress.

    Returns:
        The acceptance on held-out prompts, by drafter (the saved draft model, n-gram lookup) and kind of prompt.

    Raises:
        UsageError: the target's family is not supported, a layer does not exist, the file of samples is damaged, or the
            folder has another model.
        ModelLoadError: the target cannot be loaded.
    """
    checkpoint = open_checkpoint(engine.model, load_format=engine.load_format)
    if not is_llama_like(checkpoint.config):
        raise UsageError(
            f"--model: {engine.model}: {checkpoint.config.family}: draft models can be trained for Llama-like models only"
        )
    layers = training.layers or tuple(sorted({0, checkpoint.config.num_layers - 1}))
    if max(layers) >= checkpoint.config.num_layers:
        raise UsageError(f"--layers: {max(layers)}: {engine.model} has layers 0 to {checkpoint.config.num_layers - 1}")
    check_folder(output, training)
    samples = written_samples(output, training, engine, checkpoint.config, report)
    write_record(output, training, engine, list(layers), samples.answer_tokens, {})
    device, dtype = target_device(engine)
    target = FrozenTarget(checkpoint, dtype, device)
    draft = Draft.from_layers(target, layers)
    tokenizer, drafts = engine.tokenizer or engine.model, training.measured_drafts
    choose, curve = samples.part(Split.CHOOSE), Curve()
    for progress in train(target, draft, samples.part(Split.TRAIN), schedule_of(training), on_step):
        chosen_by = measure(choose, lambda part: draft_acceptance(draft, target, part, drafts))
        kept = curve.add(progress, chosen_by)
        if kept:
            write_draft_folder(output, draft.config, draft.weights(), target=engine.model, tokenizer=tokenizer)
        curve.write(output)
        report(last_point(curve, kept=kept))
    saved = Draft.from_checkpoint(target, open_draft_checkpoint(str(output), checkpoint))
    held_out = samples.part(Split.REPORT)
    measured = {
        "draft model": measure(held_out, lambda part: draft_acceptance(saved, target, part, drafts)),
        "n-gram": measure(held_out, lambda part: ngram_acceptance(part, drafts, MAX_NGRAM)),
    }
    results = {"acceptance": acceptance_record(measured)}
    write_record(output, training, engine, list(layers), samples.answer_tokens, results)
    return measured


def written_samples(
    output: Path, training: TrainDraftConfig, engine: EngineConfig, target: ModelConfig, report: Callable[[str], None]
) -> Samples:
    """The target's answers: those of the file of samples, and new ones where they are too few.

    Answers and training take long, so the folder ``output`` is made before them.

    Raises:
        UsageError: the file is damaged, of another model, or in no folder; ``output`` cannot be made or written; or the
            target answers no held-out prompt.
    """
    path, written = training.samples, list[Sample]()
    if path is not None and not path.absolute().parent.is_dir():
        raise UsageError(f"--samples: {path}: no such folder")
    if path is not None and path.exists():
        try:
            written += Samples.load(path)
        except ValueError as error:
            raise UsageError(f"--samples: {error}") from error
        _check_fit(written, target, f"--samples: {path}", engine.model)
    make_folder(output)
    if trained_tokens(written) < training.sample_tokens:
        plan = SamplePlan(training.sample_tokens, training.answer_tokens, training.held_out, seed=training.train_seed)
        with LLM(**engine.model_dump(exclude_unset=True)) as llm:
            for new in write_samples(llm, plan, report, tuple(written)):
                written += new
                if path is not None:
                    Samples.of(written).save(path)
        # The engine holds most of a GPU's memory until its cycles are collected.
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    samples = Samples.of(written)
    # The prompt's forward pass decides an answer's first token: drafts begin with the second.
    if all(sample.answer_len < 2 for sample in samples.part(Split.CHOOSE)):
        raise UsageError(
            f"--model: {engine.model}: has no whole answer of two tokens or more to a held-out prompt, by which to "
            "choose a checkpoint"
        )
    return samples


def _check_fit(samples: Sequence[Sample], target: ModelConfig, where: str, model: str) -> None:
    """Raise UsageError where samples cannot be the answers of this target."""
    token = max((int(sample.tokens.max(initial=0)) for sample in samples), default=0)
    if token >= target.vocab_size:
        raise UsageError(f"{where}: has token {token}, and the vocabulary of {model} has {target.vocab_size}")
    longest = max((len(sample.tokens) for sample in samples), default=0)
    if longest > target.max_positions:
        raise UsageError(f"{where}: has a sample of {longest} tokens, and {model} has {target.max_positions} positions")


def target_device(engine: EngineConfig) -> tuple[torch.device, torch.dtype]:
    """The device of a training, and the type of the target's weights there."""
    device = torch.device(engine.device if engine.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu")
    return device, torch.float32 if engine.dtype == "float32" or device.type == "cpu" else torch.bfloat16


def schedule_of(training: TrainDraftConfig) -> Schedule:
    """The schedule that the options ask for."""
    return Schedule(
        epochs=training.epochs,
        batch_tokens=training.batch_tokens,
        learning_rate=training.learning_rate,
        seconds=training.train_seconds,
        stop_after=training.stop_after,
        pauses=training.evaluations,
        seed=training.train_seed,
    )


def measure(samples: list[Sample], acceptance: Callable[[list[Sample]], Acceptance]) -> dict[str, Acceptance]:
    """The acceptance by kind of prompt."""
    return {kind.name.lower(): acceptance([s for s in samples if s.kind is kind]) for kind in Kind}


def acceptance_record(measured: Mapping[str, Mapping[str, Acceptance]]) -> dict[str, object]:
    """What was measured, by drafter and kind of prompt, as ``training.json`` has it."""
    return {name: {kind: _fields(found) for kind, found in by.items()} for name, by in measured.items()}


def _fields(found: Acceptance) -> dict[str, object]:
    return {
        "length": round(found.length, 4),
        "verifies": found.verifies,
        "rate_by_position": [round(rate, 4) for rate in found.rates],
    }
