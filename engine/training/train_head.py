"""``train_head``: from a target to the folder of an EAGLE-3 head or a parallel head, in one run or in several.

A run that stops keeps its state in the folder: weights, optimizer and the curve so far. The next run with the same
options continues from there. The answers are kept by ``samples``.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from draftline.engine.config import EngineConfig
from draftline.engine.errors import UsageError
from draftline.engine.training.config import DRAFT_VOCAB, PARALLEL_LAYERS, UNROLL, TrainDraftConfig
from draftline.engine.training.curve import Curve, last_point
from draftline.engine.training.folder import check_folder, write_record
from draftline.engine.training.train import acceptance_record, measure, schedule_of, target_device, written_samples
from draftline.models.checkpoints.checkpoint import Checkpoint
from draftline.models.checkpoints.write_file import write_file
from draftline.models.families import is_llama_like
from draftline.models.heads.checkpoint import HeadCheckpoint, open_head
from draftline.models.heads.config import FLAGS, HeadConfig
from draftline.models.heads.folder import write_head_folder
from draftline.models.loader import open_checkpoint
from draftline.spec.ngram import MAX_NGRAM
from draftline.spec.train_draft.acceptance import Acceptance, ngram_acceptance
from draftline.spec.train_draft.decoder import FrozenTarget
from draftline.spec.train_draft.distill import OnStep, Optimiser, optimise
from draftline.spec.train_draft.head import (
    HeadSize,
    TrainedHead,
    frequent_tokens,
    head_acceptance,
    head_loss,
    new_config,
    new_head,
    start_from,
    trained_head,
)
from draftline.spec.train_draft.samples import Samples, Split
from draftline.spec.train_draft.sharpness import best_sharpness, sharpened

STATE = "training-state.pt"
_SAME = ("target_layers", "parallel_drafts", *FLAGS)
_SAME_IN_LAYERS = (
    *("num_layers", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim"),
    *("qkv_bias", "output_bias", "mlp_bias", "qk_norm"),
)
"""The fields in which a head and the one that it starts from are alike."""


def train_head(
    output: Path, training: TrainDraftConfig, engine: EngineConfig, report: Callable[[str], None], on_step: OnStep
) -> dict[str, dict[str, Acceptance]]:
    """Train a head, and write it to a folder with a ``training.json`` that records how it was made.

    Args:
        output: the folder; the head is in EAGLE's own format, with the losses and acceptance lengths in
            ``curve.jsonl``.
        training: the options of the training.
        engine: the target, and the options of the engine that writes its answers.
        report: receives lines of progress.
        on_step: shows progress.

    Returns:
        The acceptance on held-out prompts, by drafter (the saved head, n-gram lookup) and kind of prompt.

    Raises:
        UsageError: the target's family is not supported, a layer does not exist, the initial head does not fit, the
            file of samples is damaged, or the folder has a training with other options or another model.
        ModelLoadError: the target cannot be loaded.
    """
    checkpoint = open_checkpoint(engine.model, load_format=engine.load_format)
    count = checkpoint.config.num_layers
    if not is_llama_like(checkpoint.config):
        raise UsageError(
            f"--model: {engine.model}: {checkpoint.config.family}: heads can be trained for Llama-like models only"
        )
    initial = _initial_head(training, checkpoint)
    default = initial.config.target_layers if initial else tuple(sorted({min(2, count), count // 2, max(0, count - 3)}))
    layers = training.layers or default
    if list(layers) != sorted(set(layers)) or layers[-1] > count:
        raise UsageError(f"--layers: {list(layers)}: must ascend from 0 to the {count} layers of {engine.model}")
    if initial is not None:
        _check_start(initial.config, new_config(checkpoint.config, layers, 0, _size(training)), training)
    check_folder(output, training)
    state = _state(output, training, engine)
    samples = written_samples(output, training, engine, checkpoint.config, report)
    if state is None:
        write_record(output, training, engine, list(layers), samples.answer_tokens, {"finished": False})
    device, dtype = target_device(engine)
    target = FrozenTarget(checkpoint, dtype, device)
    if state is None:
        torch.manual_seed(training.train_seed)
    vocab = min(training.draft_vocab_size or DRAFT_VOCAB, checkpoint.config.vocab_size)
    target_ids = frequent_tokens(samples.part(Split.TRAIN), checkpoint.config.vocab_size, vocab)
    head = new_head(target, layers, target_ids, _size(training))
    if initial is not None and state is None:
        start_from(head, trained_head(target, initial))

    run = _Run(output, training, engine, report)
    run.train(head, target, samples, state, on_step)
    saved = open_head(str(output), checkpoint)
    assert saved is not None
    kept = trained_head(target, saved)
    held_out, drafts = samples.part(Split.REPORT), training.measured_drafts
    measured = {
        "head": measure(held_out, lambda part: head_acceptance(kept, target, part, drafts)),
        "n-gram": measure(held_out, lambda part: ngram_acceptance(part, drafts, MAX_NGRAM)),
    }
    results = {"finished": run.finished, "acceptance": acceptance_record(measured)}
    write_record(output, training, engine, list(layers), samples.answer_tokens, results)
    return measured


def _initial_head(training: TrainDraftConfig, target: Checkpoint) -> HeadCheckpoint | None:
    if training.initial_head is None:
        return None
    head = open_head(training.initial_head, target)
    if head is None:
        raise UsageError(f"--initial-head: {training.initial_head}: is no head")
    return head


def _check_start(initial: HeadConfig, new: HeadConfig, training: TrainDraftConfig) -> None:
    """Raise UsageError where a head cannot start as another one."""
    pairs = [*((name, initial, new) for name in _SAME), *((name, initial.layer, new.layer) for name in _SAME_IN_LAYERS)]
    for name, one, other in pairs:
        has, wanted = getattr(one, name), getattr(other, name)
        if has != wanted:
            raise UsageError(
                f"--initial-head: {training.initial_head}: its {name} is {has}, and this training's {wanted}"
            )


def _size(training: TrainDraftConfig) -> HeadSize:
    if training.kind == "eagle3":
        return HeadSize(mlp=training.head_mlp_size)
    return HeadSize(training.unroll or UNROLL, training.head_layers or PARALLEL_LAYERS, training.head_mlp_size)


def _options(training: TrainDraftConfig, engine: EngineConfig) -> str:
    """What all runs of one training have in common."""
    fixed = training.model_dump(mode="json", exclude={"samples", "stop_after"})
    return json.dumps(fixed | {"model": engine.model}, sort_keys=True)


def _state(output: Path, training: TrainDraftConfig, engine: EngineConfig) -> dict[str, Any] | None:
    """The state of an earlier run in the folder."""
    path = output / STATE
    if not path.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        options = state["options"]
    except Exception as error:  # a damaged file fails in many ways
        raise UsageError(f"{path}: is no state of a training: {error}") from error
    if options != _options(training, engine):
        raise UsageError(f"{path}: belongs to a training with other options; repeat these, or remove the file")
    return state


class _Run:
    """One run of a training.

    Attributes:
        finished: whether the training has reached its end.
    """

    def __init__(
        self, output: Path, training: TrainDraftConfig, engine: EngineConfig, report: Callable[[str], None]
    ) -> None:
        self.finished = False
        self._output, self._training, self._engine, self._report = output, training, engine, report

    def train(
        self, head: TrainedHead, target: FrozenTarget, samples: Samples, state: dict[str, Any] | None, on_step: OnStep
    ) -> None:
        """Train, and write the head whenever its acceptance length is the best so far."""
        training, choose = self._training, samples.part(Split.CHOOSE)
        optimiser, curve = Optimiser(head, target.head.device), Curve()
        if state is not None:
            optimiser.restore(state["optimiser"])
            curve, self.finished = Curve(state["curve"]), state["finished"]
            curve.write(self._output)  # the run may have ended before it wrote this file, or have written an older form
            self._report(f"continues after step {optimiser.step}")
        if self.finished:
            return
        steps = training.unroll or UNROLL
        schedule = schedule_of(training)
        for progress in optimise(
            optimiser,
            lambda packed: head_loss(head, target, packed, steps),
            samples.part(Split.TRAIN),
            schedule,
            target.head.device,
            on_step,
        ):
            measured = measure(choose, lambda part: head_acceptance(head, target, part, training.measured_drafts))
            kept = curve.add(progress, measured)
            if kept:
                sharpness = curve.points[-1]["sharpness"] = best_sharpness(head, target, choose)
                weights = sharpened(head.weights(), sharpness)
                write_head_folder(
                    self._output,
                    head.config,
                    weights,
                    head.target_ids,
                    fp8_projection=training.output_projection == "fp8",
                )
            self.finished = progress.ended
            self._save(optimiser, curve)
            self._report(last_point(curve, kept=kept))

    def _save(self, optimiser: Optimiser, curve: Curve) -> None:
        state = {
            "options": _options(self._training, self._engine),
            "optimiser": optimiser.state(),
            "curve": curve.points,
            "finished": self.finished,
        }
        # Not to the file itself: where it cannot be written, torch's own error says nothing of it.
        content = io.BytesIO()
        torch.save(state, content)
        write_file(self._output / STATE, content.getvalue())
        curve.write(self._output)
