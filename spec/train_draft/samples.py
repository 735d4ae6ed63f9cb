"""``Samples``: answers of the target, as token ids: the training and evaluation data of a draft model."""

from __future__ import annotations

import enum
import io
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from draftline.models.checkpoints.write_file import write_file

MAX_PERIOD = 64
"""Tokens of the longest repetition that `ends_in_loop` finds."""

_LOOP_REPEATS = 3
_LOOP_TOKENS = 24

_ARRAYS = {"tokens": 1, "lengths": 1, "prompt_lens": 1, "labels": 2}
"""The arrays of a file, and their dimensions."""


class Kind(enum.IntEnum):
    """The kind of answer that a prompt asks for. Acceptance is reported for each kind."""

    GENERAL = 0
    JSON = 1


class Split(enum.IntEnum):
    """The use of a sample. Prompts of the held-out splits share no template and no word list entry with TRAIN."""

    TRAIN = 0
    CHOOSE = 1
    """Held out, to choose a checkpoint."""

    REPORT = 2
    """Held out, to report the acceptance of the chosen checkpoint."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One prompt with the answer of the target.

    Attributes:
        tokens: [prompt + answer] token ids.
        prompt_len: the number of tokens of the prompt, at least one.
        kind: the kind of answer.
        split: the use of the sample.
    """

    tokens: npt.NDArray[np.int32]
    prompt_len: int
    kind: Kind
    split: Split

    @property
    def answer_len(self) -> int:
        """The number of tokens of the answer."""
        return len(self.tokens) - self.prompt_len


class Samples(Sequence[Sample]):
    """Many samples in four flat arrays, the format in which they are saved."""

    def __init__(
        self,
        tokens: npt.NDArray[np.int32],
        lengths: npt.NDArray[np.int32],
        prompt_lens: npt.NDArray[np.int32],
        labels: npt.NDArray[np.int8],
    ) -> None:
        """From the arrays.

        Args:
            tokens: the tokens of all samples, one after another.
            lengths: [N], the number of tokens of each sample.
            prompt_lens: [N], the number of prompt tokens of each sample.
            labels: [N, 2], kind and split.
        """
        self._tokens, self._lengths, self._prompt_lens, self._labels = tokens, lengths, prompt_lens, labels
        self._ends = np.cumsum(lengths, dtype=np.int64)

    @classmethod
    def of(cls, samples: Iterable[Sample]) -> Samples:
        """From samples, which are copied."""
        listed = list(samples)
        return cls(
            np.concatenate([np.empty(0, np.int32), *(s.tokens for s in listed)]),
            np.array([len(s.tokens) for s in listed], np.int32),
            np.array([s.prompt_len for s in listed], np.int32),
            np.array([(s.kind, s.split) for s in listed], np.int8).reshape(-1, 2),
        )

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, index: int) -> Sample:  # type: ignore[override]
        if not 0 <= index < len(self):
            raise IndexError(index)
        end = int(self._ends[index])
        kind, split = self._labels[index].tolist()
        tokens = self._tokens[end - int(self._lengths[index]) : end]
        return Sample(tokens, int(self._prompt_lens[index]), Kind(kind), Split(split))

    def __iter__(self) -> Iterator[Sample]:
        return (self[index] for index in range(len(self)))

    @property
    def answer_tokens(self) -> int:
        """The number of answer tokens in all samples."""
        return int(self._lengths.sum(dtype=np.int64) - self._prompt_lens.sum(dtype=np.int64))

    def part(self, split: Split) -> list[Sample]:
        """The samples of one split."""
        return [sample for sample in self if sample.split is split]

    def save(self, path: Path) -> None:
        """Write an .npz file, atomically."""
        wide = self._tokens.max(initial=0) >= 1 << 16
        arrays = {
            "tokens": self._tokens.astype(np.uint32 if wide else np.uint16),
            "lengths": self._lengths,
            "prompt_lens": self._prompt_lens,
            "labels": self._labels,
        }
        content = io.BytesIO()
        np.savez(content, allow_pickle=False, **arrays)
        write_file(path, content.getvalue())

    @classmethod
    def load(cls, path: Path) -> Samples:
        """Read a file that `save` wrote.

        Raises:
            ValueError: the file is not a valid file of samples. The message names it.
        """
        try:
            content = io.BytesIO(path.read_bytes())
            if not zipfile.is_zipfile(content):  # np.load would advise to unpickle it
                raise ValueError("it is no .npz archive")
            with np.load(content) as arrays:
                tokens, lengths, prompt_lens, labels = (arrays[name] for name in _ARRAYS)
        except Exception as error:  # a damaged file fails in many ways
            raise ValueError(f"{path} is not a file of samples: {error}") from error
        for name, array in zip(_ARRAYS, (tokens, lengths, prompt_lens, labels), strict=True):
            if array.dtype.kind not in "iu" or array.ndim != _ARRAYS[name]:
                raise ValueError(
                    f"{path} is not a file of samples: {name} are {array.dtype} in {array.ndim} dimensions"
                )
        outside = tokens[(tokens < 0) | (tokens > np.iinfo(np.int32).max)]
        if len(outside):
            raise ValueError(f"{path} is not a file of samples: it has token {outside[0]}")
        counts = {len(lengths), len(prompt_lens), len(labels)}
        if len(counts) != 1 or lengths.sum(dtype=np.int64) != len(tokens):
            raise ValueError(f"{path} is not a file of samples: the sizes of its arrays contradict one another")
        # Without a prompt, nothing predicts the answer's first token.
        answered = (prompt_lens >= 1) & (prompt_lens <= lengths)
        if not answered.all():
            raise ValueError(f"{path} is not a file of samples: a prompt is empty, or longer than its sample")
        if (
            labels.shape[1:] != (2,)
            or not (np.isin(labels[:, 0], list(Kind)) & np.isin(labels[:, 1], list(Split))).all()
        ):
            raise ValueError(f"{path} is not a file of samples: a label is no kind and split")
        return cls(tokens.astype(np.int32), lengths, prompt_lens, labels)


def ends_in_loop(tokens: npt.NDArray[np.int32]) -> bool:
    """Whether a text ends in a loop.

    A loop repeats a period of up to ``MAX_PERIOD`` tokens three times, over at least 24 tokens. The very last token,
    which may be end-of-sequence, need not be part of it.
    """
    tail: list[int] = tokens[-_LOOP_REPEATS * MAX_PERIOD - 1 :].tolist()
    for body in (tail, tail[:-1]):
        for period in range(1, min(MAX_PERIOD, len(body) // _LOOP_REPEATS) + 1):
            span = max(_LOOP_REPEATS * period, _LOOP_TOKENS)
            if (
                body[-1] == body[-1 - period]  # rules out almost all periods at once
                and len(body) >= span
                and body[-span:-period] == body[len(body) - span + period :]
            ):
                return True
    return False
