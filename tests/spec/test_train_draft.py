"""Training a draft model, on tiny random targets: its forward pass, packing, loss, samples and prompts."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
import torch.nn.functional as F
import transformers
from closeness import assert_model_close, nudged
from torch import Tensor

from draftline.models.errors import ModelLoadError
from draftline.models.families import config_from_hf
from draftline.quant.tensor import RawTensor
from draftline.spec.train_draft import words
from draftline.spec.train_draft.decoder import Draft, FrozenTarget
from draftline.spec.train_draft.distill import Schedule, kl_to_target, rate_at, train
from draftline.spec.train_draft.packing import batches, pack
from draftline.spec.train_draft.prompts import Prompts
from draftline.spec.train_draft.samples import Kind, Sample, Samples, Split, ends_in_loop

CPU = torch.device("cpu")
VOCAB = 97

_SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
}
_LLAMA3_ROPE: Any = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

CONFIGS: dict[str, Callable[[], transformers.PreTrainedConfig]] = {
    "llama-tied": lambda: transformers.LlamaConfig(**_SHAPE, tie_word_embeddings=True),
    "llama-biases": lambda: transformers.LlamaConfig(**_SHAPE, attention_bias=True, mlp_bias=True),
    "llama3-rope": lambda: transformers.LlamaConfig(**_SHAPE, rope_parameters=_LLAMA3_ROPE),
    "mistral": lambda: transformers.MistralConfig(**_SHAPE, sliding_window=9),
    "qwen2-windows": lambda: transformers.Qwen2Config(
        **_SHAPE, use_sliding_window=True, sliding_window=7, max_window_layers=1
    ),
    "qwen3": lambda: transformers.Qwen3Config(**_SHAPE, head_dim=32),
}


class StateDictCheckpoint:
    def __init__(self, reference: transformers.PreTrainedModel) -> None:
        hf = json.loads(reference.config.to_json_string(use_diff=False))
        self.config = config_from_hf(hf | {"architectures": [type(reference).__name__]})
        self._state = reference.state_dict()

    def __contains__(self, name: str) -> bool:
        return name in self._state

    def tensor(self, name: str) -> RawTensor:
        if name not in self._state:
            raise ModelLoadError(f"{name}: missing")
        return RawTensor(name, "F32", tuple(self._state[name].shape), self._state[name])


def reference(name: str) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name]()).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:  # norms start as ones and biases as zeros, which would hide their absence
            parameter.data += 0.3 * torch.randn_like(parameter)
    return model


def target(name: str = "llama-tied") -> FrozenTarget:
    return FrozenTarget(StateDictCheckpoint(reference(name)), torch.float32, CPU)


def some_samples(count: int, seed: int = 0, split: Split = Split.TRAIN) -> list[Sample]:
    rng = random.Random(seed)
    samples = []
    for index in range(count):
        prompt_len, answer_len = rng.randint(1, 8), rng.randint(1, 24)
        tokens = np.array([rng.randrange(VOCAB) for _ in range(prompt_len + answer_len)], np.int32)
        samples.append(Sample(tokens, prompt_len, Kind(index % 2), split))
    return samples


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_equal_transformers(name: str) -> None:
    expected_model, samples = reference(name), some_samples(5)
    model = FrozenTarget(StateDictCheckpoint(expected_model), torch.float32, CPU)
    logits = F.linear(model.hidden(pack(samples, CPU)), model.head)
    expected = []
    with torch.inference_mode():
        for other in (expected_model, nudged(expected_model)):
            each = [
                other(torch.from_numpy(s.tokens.astype(np.int64))[None]).logits[0, s.prompt_len - 1 : -1]
                for s in samples
            ]
            expected.append(torch.cat(each))
    assert_model_close(logits, *expected)


@pytest.mark.parametrize("name", ["llama-tied", "mistral"])
def test_gradients_equal_transformers(name: str) -> None:
    expected_model, samples = reference(name), some_samples(3)
    model = FrozenTarget(StateDictCheckpoint(expected_model), torch.float32, CPU)
    draft = Draft.from_layers(model, range(3))
    packed = pack(samples, CPU)
    F.cross_entropy(F.linear(draft.hidden(packed), model.head), packed.answers, reduction="sum").backward()
    expected = []
    for other in (expected_model, nudged(expected_model)):
        for sample in samples:
            ids = torch.from_numpy(sample.tokens.astype(np.int64))
            logits = other(ids[None]).logits[0, sample.prompt_len - 1 : -1]
            F.cross_entropy(logits, ids[sample.prompt_len :], reduction="sum").backward()
        expected.append(dict(other.named_parameters()))
    for weight, parameter in draft.layers.named_parameters():
        assert parameter.grad is not None
        assert_model_close(parameter.grad, *(weights[f"model.{weight}"].grad for weights in expected))


def test_a_draft_of_all_layers_is_the_target_and_shares_its_embedding() -> None:
    model = target()
    draft, packed = Draft.from_layers(model, range(3)), pack(some_samples(4), CPU)
    torch.testing.assert_close(draft.hidden(packed), model.hidden(packed))
    assert draft.embedding.data_ptr() == model.embedding.data_ptr()
    assert not any("embed" in name or "head" in name for name in draft.weights())


@pytest.mark.parametrize("name", ["llama-tied", "mistral"])
def test_sequences_packed_together_do_not_see_one_another(name: str) -> None:
    model, samples = target(name), some_samples(6)
    together, of_nudged = model.hidden(pack(samples, CPU)), nudged(model).hidden(pack(samples, CPU))
    assert_model_close(torch.cat([model.hidden(pack([s], CPU)) for s in samples]), together, of_nudged)
    changed = [samples[0], some_samples(1, seed=9)[0], *samples[2:]]
    first = samples[0].answer_len
    assert_model_close(model.hidden(pack(changed, CPU))[:first], together[:first], of_nudged[:first])


def test_packing_marks_the_tokens_that_predict_answers() -> None:
    packed = pack([Sample(np.arange(5, dtype=np.int32), 2, Kind.JSON, Split.TRAIN)] * 2, CPU)
    assert packed.predicting.tolist() == [1, 2, 3, 6, 7, 8]
    assert packed.answers.tolist() == [2, 3, 4, 2, 3, 4]
    assert packed.positions.tolist() == [0, 1, 2, 3, 4] * 2


def test_batches_hold_every_sample_once_within_their_size() -> None:
    samples = some_samples(50)
    made = list(batches(samples, 60, random.Random(0)))
    assert sorted(id(s) for batch in made for s in batch) == sorted(map(id, samples))
    assert all(sum(len(s.tokens) for s in batch) <= 60 for batch in made)
    assert [len(batch) for batch in batches(samples, 1, random.Random(0))] == [1] * 50


def test_the_loss_and_its_gradient_are_those_of_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftline.spec.train_draft.distill._CHUNK", 4)
    hidden, wanted = torch.randn(11, 8, dtype=torch.float64).requires_grad_(), torch.randn(11, 8, dtype=torch.float64)
    head = torch.randn(VOCAB, 8, dtype=torch.float64)

    def plain(x: Tensor) -> Tensor:
        p, q = F.log_softmax(wanted @ head.T, -1), F.log_softmax(x @ head.T, -1)
        return F.kl_div(q, p, log_target=True, reduction="batchmean")

    loss = kl_to_target(hidden, wanted, head)
    torch.testing.assert_close(loss.double(), plain(hidden), atol=1e-5, rtol=1e-5)
    (gradient,) = torch.autograd.grad(3 * loss, hidden)
    (expected,) = torch.autograd.grad(3 * plain(hidden), hidden)
    torch.testing.assert_close(gradient, expected, atol=1e-5, rtol=1e-5)
    assert kl_to_target(wanted, wanted, head).abs() < 1e-6


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_training_lowers_the_loss_and_leaves_the_target_alone(dtype: torch.dtype) -> None:
    model = FrozenTarget(StateDictCheckpoint(reference("llama-tied")), dtype, CPU)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    draft = Draft.from_layers(model, [0, 2])
    schedule = Schedule(epochs=8, batch_tokens=256, learning_rate=3e-3, pauses=4)
    progress = list(train(model, draft, some_samples(60), schedule))
    assert [p.step for p in progress] == [-(-p.steps * k // 4) for k, p in enumerate(progress, 1)]
    assert progress[-1].loss < 0.7 * progress[0].loss
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(value.dtype == torch.float32 for value in draft.weights().values())


def test_training_stops_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr("draftline.spec.train_draft.distill.time.monotonic", lambda: float(next(clock)))
    model, samples = target(), some_samples(60)
    schedule = Schedule(epochs=1000, batch_tokens=256, seconds=20, pauses=3)
    draft = Draft.from_layers(model, [0, 2])
    progress = list(train(model, draft, samples, schedule))
    assert [p.step for p in progress] == [7, 14, 20]
    assert {p.steps for p in progress} == {progress[0].steps}
    assert progress[0].steps > 1000


def test_the_learning_rate_rises_and_falls() -> None:
    rates = [rate_at(step / 100, 0.1) for step in range(101)]
    assert rates[:10] == pytest.approx([k / 10 for k in range(10)])
    assert rates[10] == 1.0
    assert rates[55] == pytest.approx(0.5)
    assert rates[100] == pytest.approx(0.0)
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_samples_survive_save_and_load(tmp_path: Path) -> None:
    listed = [*some_samples(7), *some_samples(3, 1, Split.REPORT)]
    path = tmp_path / "samples.npz"
    Samples.of(listed).save(path)
    again = Samples.load(path)
    assert len(again) == 10
    for one, other in zip(again, listed, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        assert (one.prompt_len, one.kind, one.split) == (other.prompt_len, other.kind, other.split)
    assert again.answer_tokens == sum(s.answer_len for s in listed)
    assert len(again.part(Split.REPORT)) == 3


@pytest.mark.parametrize("content", [b"", b"no archive", "lengths", "prompt_lens", "labels"])
def test_a_damaged_file_of_samples_is_a_value_error(tmp_path: Path, content: bytes | str) -> None:
    path = tmp_path / "samples.npz"
    if isinstance(content, str):
        Samples.of(some_samples(3)).save(path)
        with np.load(path) as arrays:
            np.savez(path, **{**arrays, content: arrays[content] + 99})
    else:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"samples\.npz is not a file of samples"):
        Samples.load(path)


def test_a_file_of_samples_that_is_cut_off_is_a_value_error(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole.npz", tmp_path / "samples.npz"
    Samples.of(some_samples(3)).save(whole)
    content = whole.read_bytes()
    for end in range(0, len(content), 50):
        path.write_bytes(content[:end])
        with pytest.raises(ValueError, match=r"samples\.npz is not a file of samples"):
            Samples.load(path)


@pytest.mark.parametrize(
    "content",
    [b"", b'{"prompt": "a"}\n', b"\x80\x04K\x03.", b"\x93NUMPY"],
    ids=["empty", "JSON lines", "pickle", ".npy"],
)
def test_a_file_that_is_no_archive_is_named_as_such(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "samples.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"samples\.npz is not a file of samples: it is no \.npz archive$"):
        Samples.load(path)


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("tokens", lambda array: array + 0.5, "tokens are float64 in 1 dimensions"),
        ("tokens", lambda array: array.reshape(-1, 1), "tokens are .* in 2 dimensions"),
        ("tokens", lambda array: array.astype(np.int64) + 2**32, "it has token 42949"),
        ("tokens", lambda array: -1 - array.astype(np.int64), "it has token -"),
        ("prompt_lens", lambda array: 0 * array, "a prompt is empty, or longer than its sample"),
        ("lengths", lambda array: array.sum(), "lengths are int64 in 0 dimensions"),
    ],
)
def test_arrays_that_are_no_samples_are_named(
    tmp_path: Path, name: str, change: Callable[[npt.NDArray[np.int32]], object], reason: str
) -> None:
    path = tmp_path / "samples.npz"
    Samples.of(some_samples(3)).save(path)
    with np.load(path) as arrays:
        np.savez(path, **{**arrays, name: change(arrays[name])})
    with pytest.raises(ValueError, match=rf"samples\.npz is not a file of samples: {reason}"):
        Samples.load(path)


@pytest.mark.parametrize(
    ("tokens", "loop"),
    [
        ([*range(50), *[7] * 24], True),
        ([*range(50), *[7] * 24, 2], True),
        ([*range(50), *[7] * 23], False),
        ([*range(50), *[1, 2, 3] * 8], True),
        ([*range(50), *[1, 2, 3] * 7, 1, 2], False),
        ([*range(64)] * 3, True),
        ([*range(65)] * 3, False),
        ([*range(40)] * 2, False),
        ([], False),
        ([5], False),
    ],
)
def test_loops_are_found(tokens: list[int], loop: bool) -> None:
    assert ends_in_loop(np.array(tokens, np.int32)) is loop


def test_held_out_prompts_share_nothing_with_training_prompts() -> None:
    drawn = {}
    for held_out in (False, True):
        prompts = Prompts(0, held_out=held_out)
        drawn[held_out] = {prompts.general() for _ in range(3000)} | {prompts.json() for _ in range(3000)}
        assert not any("{" in text and "}" not in text for text in drawn[held_out])
        assert len(drawn[held_out]) > 2500
        about = (
            prompts.about_text("the {n} words"),
            prompts.json_about_text("the {n} words"),
            prompts.about_texts(["the {n} words"] * 2),
        )
        assert all("the {n} words" in text for text in about)
    assert not drawn[False] & drawn[True]
    assert not any("JSON please" in text for text in drawn[True])
    assert any("JSON please" in text for text in drawn[False])
    people = {
        held_out: {name for name in words.PEOPLE for text in drawn[held_out] if name in text} for held_out in drawn
    }
    assert not people[False] & people[True]
    assert people[False] | people[True] == set(words.PEOPLE)


def test_prompts_depend_on_their_seed_alone() -> None:
    def draw(seed: int) -> list[str]:
        prompts = Prompts(seed, held_out=False)
        return [prompts.json() for _ in range(20)]

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
