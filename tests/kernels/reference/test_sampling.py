"""The sampler against a naive form of its definition, exact distributions, and its promises about rows.

The naive form works token by token on numpy scalars and shares only the noise (`test_philox.py` tests that) with what
it tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from bans import write_bans
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch_threads import torch_threads

from draftline.kernels.philox import gumbel
from draftline.kernels.reference.logits import MIN_TEMPERATURE
from draftline.kernels.reference.sampling import logprobs, sample, sum_rows
from draftline.kernels.slots import Masks, SampleRows, SamplingFeatures, SlotTable

INF = float("inf")
NAN = float("nan")
F32 = np.float32
EDGE = 1e-5
"""Shares that are this close to top_p or min_p may fall on either side in float32."""


@dataclass(frozen=True)
class Row:
    """One row: its logits, its sequence and how it is sampled."""

    logits: tuple[float, ...]
    prompt: tuple[int, ...] = ()
    output: tuple[int, ...] = ()
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    min_length: int = 0
    stop_ids: tuple[int, ...] = ()
    bias: dict[int, float] = field(default_factory=dict)
    allowed_ids: frozenset[int] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    allowed: frozenset[int] | None = None

    @property
    def position(self) -> int:
        return len(self.prompt) + len(self.output)


def features_of(row: Row) -> SamplingFeatures:
    feature = SamplingFeatures
    used = {
        feature.TEMPERATURE: row.temperature > 0,
        feature.TOP_K: row.top_k > 0,
        feature.TOP_P: row.top_p < 1,
        feature.MIN_P: row.min_p > 0,
        feature.PENALTIES: (row.repetition_penalty, row.presence_penalty, row.frequency_penalty) != (1, 0, 0),
        feature.LOGIT_BIAS: bool(row.bias),
        feature.MIN_TOKENS: row.position < row.min_length,
        feature.ALLOWED_IDS: row.allowed_ids is not None,
        feature.BAD_WORDS: bool(row.bad_words),
    }
    features = feature.NONE
    for one, is_used in used.items():
        if is_used:
            features |= one
    return features


def pack(allowed: list[frozenset[int] | None], vocab: int) -> Masks:
    """Allowed tokens as masks; None allows everything."""
    words = np.zeros((1 + len(allowed), (vocab + 31) // 32), dtype=np.uint32)
    for row, tokens in enumerate([None, *allowed]):
        for token in range(vocab) if tokens is None else tokens:
            words[row, token // 32] |= np.uint32(1 << token % 32)
    rows = [0 if tokens is None else row for row, tokens in enumerate(allowed, 1)]
    return Masks(torch.from_numpy(words.view(np.int32)), torch.tensor(rows, dtype=torch.int32))


def batch(cases: list[Row]) -> tuple[Tensor, SampleRows, SlotTable]:
    """Put rows into a slot table, in slots of another order than the rows."""
    vocab = len(cases[0].logits)
    slots = SlotTable.allocate(len(cases) + 2, max(case.position for case in cases) + 4, 1, torch.device("cpu"), vocab)
    slots.tokens.fill_(vocab - 1)  # what lies beyond a row's position must not count
    order = list(range(len(cases) + 1, 1, -1))
    features = SamplingFeatures.NONE
    for slot, case in zip(order, cases, strict=True):
        slots.tokens[slot, : case.position] = torch.tensor(case.prompt + case.output, dtype=torch.int32)
        slots.prompt_lens[slot] = len(case.prompt)
        for name in (
            *("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
            *("seed", "min_length"),
        ):
            getattr(slots, name)[slot] = getattr(case, name)
        slots.stop_ids[slot, : len(case.stop_ids)] = torch.tensor(case.stop_ids, dtype=torch.int32)
        slots.bias_ids[slot, : len(case.bias)] = torch.tensor(list(case.bias), dtype=torch.int32)
        slots.bias_values[slot, : len(case.bias)] = torch.tensor(list(case.bias.values()))
        write_bans(slots, slot, case.allowed_ids, case.bad_words)
        features |= features_of(case)
    has_mask = any(case.allowed is not None for case in cases)
    rows = SampleRows(
        slots=torch.tensor(order),
        positions=torch.tensor([case.position for case in cases]),
        features=features,
        masks=pack([case.allowed for case in cases], vocab) if has_mask else None,
    )
    return torch.tensor([case.logits for case in cases], dtype=torch.float32), rows, slots


def draw(*cases: Row) -> list[int]:
    tokens = sample(*batch(list(cases)))
    assert tokens.dtype == torch.int64
    return tokens.tolist()


def naive_processed(row: Row) -> list[np.float32]:
    x = [F32(-INF if np.isnan(value) else value) for value in row.logits]
    history = row.prompt + row.output
    counts = Counter(row.output)
    for token in range(len(x)):
        if token in history:
            penalty = F32(row.repetition_penalty)
            x[token] = x[token] / penalty if x[token] > 0 else x[token] * penalty
        if counts[token]:
            x[token] = x[token] - F32(row.frequency_penalty) * F32(counts[token]) - F32(row.presence_penalty)
        if token in row.bias:
            x[token] = x[token] + F32(row.bias[token])
        if row.position < row.min_length and token in row.stop_ids:
            x[token] = F32(-INF)
        if any(word[-1] == token and ends_with(row.output, word[:-1]) for word in row.bad_words):
            x[token] = F32(-INF)
        for allowed in (row.allowed_ids, row.allowed):
            if allowed is not None and token not in allowed:
                x[token] = F32(-INF)
    return x


def ends_with(output: tuple[int, ...], end: tuple[int, ...]) -> bool:
    return len(end) <= len(output) and output[len(output) - len(end) :] == end


def naive_survivors(scaled: list[np.float32], row: Row, edge: float) -> list[int]:
    """What truncation leaves, with top_p raised and min_p lowered by ``edge``."""
    kept = [token for token in sorted(range(len(scaled)), key=lambda t: (-scaled[t], t)) if scaled[token] > -INF]
    weight = [float(np.exp(np.float64(value) - np.float64(scaled[kept[0]]))) for value in scaled]
    if row.top_k:
        kept = kept[: row.top_k]
    if row.top_p < 1:
        total = sum(weight[token] for token in kept)
        mass, nucleus = 0.0, []
        for token in kept:
            if nucleus and mass / total >= F32(row.top_p) + edge:
                break
            nucleus.append(token)
            mass += weight[token]
        kept = nucleus
    return [kept[0]] + [token for token in kept[1:] if weight[token] >= F32(row.min_p) * (1 - edge)]


def naive_tokens(row: Row) -> set[int]:
    """The token that the definition gives; two where rounding may decide what truncation leaves."""
    x = naive_processed(row)
    vocab = len(x)
    best = max(x)
    if best == -INF:
        allowed = [token for token in range(vocab) if row.allowed is None or token in row.allowed]
        banned = row.stop_ids if row.position < row.min_length else ()
        named = [token for token in allowed if row.allowed_ids is None or token in row.allowed_ids]
        return {next(iter([t for t in named if t not in banned] + named + allowed + [0]))}
    if row.temperature < MIN_TEMPERATURE:
        return {x.index(best)}
    scaled = [value / F32(row.temperature) for value in x]
    if np.isinf(max(scaled)):
        return {x.index(best)}
    noise = gumbel(torch.tensor([row.seed]), torch.tensor([row.position]), vocab)[0].numpy()
    winners = set()
    for edge in (-EDGE, EDGE):
        winners.add(max(naive_survivors(scaled, row, edge), key=lambda t: (scaled[t] + noise[t], -t)))
    return winners


def p_value(observed: Counter[int], probabilities: list[float]) -> float:
    """How probable counts at least this far from the probabilities are; impossible tokens must not occur."""
    count = sum(observed.values())
    assert all(probabilities[token] > 0 for token in observed)
    possible = [token for token, probability in enumerate(probabilities) if probability > 0]
    expected = [probabilities[token] * count for token in possible]
    assert min(expected) > 5, "too few samples for a chi-square test"
    statistic = sum((observed[t] - e) ** 2 / e for t, e in zip(possible, expected, strict=True))
    half = torch.tensor([(len(possible) - 1) / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def softmax(values: list[float]) -> list[float]:
    weights = np.exp(np.array(values) - max(values))
    return (weights / weights.sum()).tolist()


logit = st.integers(-16, 16).map(lambda value: value / 2)
odd_logit = st.one_of(logit, logit, logit, logit, st.sampled_from([-INF, INF, NAN, -0.0, 3e38, -3e38]))
plain = Row(logits=(0.0,))


def tokens_of(vocab: int, most: int) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(0, vocab - 1), max_size=most).map(tuple)


@st.composite
def any_row(draw: st.DrawFn, vocab: int, logits: st.SearchStrategy[float]) -> Row:
    return Row(
        logits=tuple(draw(st.lists(logits, min_size=vocab, max_size=vocab))),
        prompt=draw(tokens_of(vocab, 6)),
        output=draw(tokens_of(vocab, 6)),
        temperature=draw(st.sampled_from([0.0, 1e-6, 1e-4, 0.25, 0.7, 1.0, 2.0, 100.0])),
        top_k=draw(st.sampled_from([0, 0, 1, 2, 5, 40, 2**31 - 1])),
        top_p=draw(st.sampled_from([1.0, 1.0, 0.999, 0.9, 0.5, 0.1, 1e-6])),
        min_p=draw(st.sampled_from([0.0, 0.0, 1e-3, 0.1, 0.7, 1.0])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.3, 0.5])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, 0.75, -1.1])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.0, 0.3, -0.7])),
        seed=draw(st.integers(-(2**63), 2**63 - 1)),
        min_length=draw(st.integers(0, 12)),
        stop_ids=draw(tokens_of(vocab, 3)),
        bias=draw(st.dictionaries(st.integers(0, vocab - 1), st.sampled_from([-1000.0, -1.5, 0.1, 3.0]), max_size=3)),
        allowed_ids=draw(st.none() | st.frozensets(st.integers(0, vocab - 1), min_size=1)),
        bad_words=draw(st.lists(tokens_of(min(vocab, 4), 4).filter(bool), max_size=4).map(tuple)),
        allowed=draw(st.none() | st.frozensets(st.integers(0, vocab - 1))),
    )


@st.composite
def any_rows(draw: st.DrawFn, logits: st.SearchStrategy[float] = odd_logit) -> list[Row]:
    vocab = draw(st.sampled_from([1, 2, 3, 5, 31, 32, 33, 70]))
    return draw(st.lists(any_row(vocab, logits), min_size=1, max_size=4))


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # numpy's, in the naive form
@settings(max_examples=examples(150), deadline=None)
@given(any_rows())
def test_everything_at_once_equals_the_naive_form(cases: list[Row]) -> None:
    for token, case in zip(draw(*cases), cases, strict=True):
        assert token in naive_tokens(case)


STAGES: dict[str, Callable[[Row], Row]] = {
    "greedy": lambda row: row,
    "temperature": lambda row: replace(row, temperature=0.8),
    "top-k": lambda row: replace(row, temperature=1.5, top_k=4),
    "top-p": lambda row: replace(row, temperature=1.5, top_p=0.7),
    "min-p": lambda row: replace(row, temperature=1.5, min_p=0.2),
    "top-k-and-top-p": lambda row: replace(row, temperature=2.0, top_k=6, top_p=0.6),
    "repetition": lambda row: replace(row, prompt=(0, 1), output=(2, 2), repetition_penalty=1.7),
    "repetition-below-1": lambda row: replace(row, prompt=(0, 1), output=(2, 2), repetition_penalty=0.4),
    "presence": lambda row: replace(row, prompt=(0, 1), output=(2, 2, 3), presence_penalty=1.9),
    "frequency": lambda row: replace(row, prompt=(0, 1), output=(2, 2, 3), frequency_penalty=1.1),
    "bias": lambda row: replace(row, bias={0: 2.5, 3: -2.5}),
    "min-tokens": lambda row: replace(row, prompt=(1,), output=(2,), min_length=3, stop_ids=(0, 2)),
    "min-tokens-reached": lambda row: replace(row, prompt=(1,), output=(2,), min_length=2, stop_ids=(0, 2)),
    "allowed-ids": lambda row: replace(row, allowed_ids=frozenset({1, 3})),
    "bad-words": lambda row: replace(
        row, prompt=(1, 2), output=(1, 2), bad_words=((4,), (1, 2, 0), (2, 2), (2, 1, 2, 3), (2, 1))
    ),
    "mask": lambda row: replace(row, allowed=frozenset({1, 3})),
}


@pytest.mark.parametrize("stage", STAGES)
@settings(max_examples=examples(25), deadline=None)
@given(vocab=st.sampled_from([5, 8, 33]), seed=st.integers(-(2**63), 2**63 - 1), data=st.data())
def test_each_stage_alone_equals_the_naive_form(stage: str, vocab: int, seed: int, data: st.DataObject) -> None:
    logits = data.draw(st.lists(logit, min_size=vocab, max_size=vocab))
    case = STAGES[stage](Row(logits=tuple(logits), seed=seed))
    assert draw(case)[0] in naive_tokens(case)


@settings(max_examples=examples(40), deadline=None)
@given(any_rows())
def test_a_row_alone_gives_what_it_gives_in_a_batch(cases: list[Row]) -> None:
    assert draw(*cases) == [draw(case)[0] for case in cases]


@pytest.mark.parametrize("vocab", [4096, 5003])
def test_a_large_row_alone_gives_what_it_gives_in_a_batch(vocab: int) -> None:
    """Rows that need much noise draw together, in several rounds."""
    generator = torch.Generator().manual_seed(vocab)
    cases = [
        Row(
            logits=tuple((torch.randn(vocab, generator=generator) * 2).tolist()),
            temperature=(0.0, 0.3, 1.0, 1.7)[i % 4],
            top_p=(1.0, 0.95, 1.0)[i % 3],
            seed=i * 2**35,
        )
        for i in range(14)
    ]
    assert draw(*cases) == [draw(case)[0] for case in cases]


@pytest.mark.parametrize("vocab", [37, 4095, 49152])
@pytest.mark.parametrize("spread", [0.0, 0.5, 3.0, 20.0])
def test_left_out_noise_changes_nothing(vocab: int, spread: float) -> None:
    """Bit by bit the argmax over the noise of every token, however flat or peaked the row is."""
    generator = torch.Generator().manual_seed(vocab)
    count = 6 if vocab > 5000 else 24
    logits = torch.randn(count, vocab, generator=generator) * spread + 1000 * spread * (vocab == 37)
    slots = SlotTable.allocate(count, 4, 1, torch.device("cpu"))
    slots.seed.copy_(torch.randint(-(2**62), 2**62, (count,), generator=generator))
    slots.temperature.copy_(torch.tensor([0.3, 1.0, 1.9]).repeat(count // 3))
    rows = SampleRows(torch.arange(count), torch.arange(count) * 1000, SamplingFeatures.TEMPERATURE, None)
    before = logits.clone()
    tokens = sample(logits, rows, slots)
    noise = gumbel(slots.seed, rows.positions, vocab)
    assert tokens.tolist() == (logits / slots.temperature.unsqueeze(1) + noise).argmax(dim=-1).tolist()
    assert torch.equal(logits, before)


def test_a_token_far_below_the_best_can_win_by_rare_noise() -> None:
    """One token at 0 and very many at -13, which need nearly the most noise there is."""
    logits = torch.full((1, 49152), -13.0)
    logits[0, 20_000] = 0.0
    slots = SlotTable.allocate(1, 4, 1, torch.device("cpu"))
    slots.temperature.fill_(1.0)
    positions = torch.arange(60)
    rows = SampleRows(torch.zeros(60, dtype=torch.int64), positions, SamplingFeatures.TEMPERATURE, None)
    tokens = sample(logits.expand(60, -1), rows, slots)
    assert tokens.tolist() == (logits + gumbel(slots.seed.expand(60), positions, 49152)).argmax(dim=-1).tolist()
    assert 2 <= int((tokens != 20_000).sum()) <= 20


@pytest.mark.parametrize("spread", [0.0, 1.0, 5.0], ids=["flat", "wide", "peaked"])
@pytest.mark.parametrize("vocab", [3000, 49152])
@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [(50, 1.0, 0.0), (2000, 1.0, 0.0), (0, 0.9, 0.0), (0, 0.99999, 0.0), (100, 0.8, 0.0), (0, 0.95, 0.02)],
)
def test_truncation_of_a_large_row_equals_sorting_all_of_it(
    vocab: int, spread: float, top_k: int, top_p: float, min_p: float
) -> None:
    generator = torch.Generator().manual_seed(vocab + top_k)
    logits = (torch.randn(vocab, generator=generator) * spread * 16).round() / 16  # with many equals
    slots = SlotTable.allocate(1, 4, 1, torch.device("cpu"))
    for name, value in {"temperature": 1.0, "top_k": top_k, "top_p": top_p, "min_p": min_p, "seed": 99}.items():
        getattr(slots, name)[0] = value
    feature = SamplingFeatures
    features = feature.TEMPERATURE | feature.TOP_K | feature.TOP_P | feature.MIN_P
    positions = torch.arange(3)
    tokens = sample(
        logits.expand(3, -1), SampleRows(torch.zeros(3, dtype=torch.int64), positions, features, None), slots
    )

    order = torch.argsort(logits, descending=True, stable=True)[: top_k or vocab]
    weights = (logits[order] - logits.max()).exp().double()
    before = weights.cumsum(0) - weights
    kept = order[(before < float(slots.top_p[0]) * weights.sum() - 1e-9) & (weights >= float(slots.min_p[0]))]
    dropped = torch.ones(vocab, dtype=torch.bool)
    dropped[kept] = False
    scores = (logits + gumbel(slots.seed.expand(3), positions, vocab)).masked_fill(dropped, -INF)
    assert tokens.tolist() == scores.argmax(dim=-1).tolist()


DISTRIBUTION = (2.0, 1.5, 1.0, 1.0, 0.5, 0.0, -0.5, -1.0, -0.25, 0.75)
# Row, and the logits (-inf for what is left out) whose softmax is its distribution.
DISTRIBUTIONS: dict[str, tuple[Row, list[float]]] = {
    **{
        f"temperature-{t}": (Row(DISTRIBUTION, temperature=t), [value / t for value in DISTRIBUTION])
        for t in (0.5, 1.0, 1.5)
    },
    "top-k": (
        Row(DISTRIBUTION, temperature=1.0, top_k=3),
        [2.0, 1.5, 1.0, *[-INF] * 7],  # of the two at 1.0 the lower id
    ),
    "top-p": (
        Row(DISTRIBUTION, temperature=1.0, top_p=0.75),
        [2.0, 1.5, 1.0, 1.0, *[-INF] * 5, 0.75],  # 0.695 without the last, 0.768 with it
    ),
    "min-p": (
        Row(DISTRIBUTION, temperature=1.0, min_p=0.3),
        [2.0, 1.5, 1.0, 1.0, *[-INF] * 6],  # exp(-1) = 0.37, exp(-1.25) = 0.287
    ),
    "min-p-after-temperature": (
        Row(DISTRIBUTION, temperature=1.5, min_p=0.3),
        [2.0 / 1.5, 1.0, 1 / 1.5, 1 / 1.5, 0.5 / 1.5, *[-INF] * 4, 0.75 / 1.5],  # exp(-1) = 0.37, exp(-4/3) = 0.26
    ),
    "penalties": (
        Row(
            DISTRIBUTION,
            prompt=(0, 6),
            output=(1, 1, 5),
            temperature=1.0,
            repetition_penalty=2.0,
            presence_penalty=0.25,
            frequency_penalty=0.125,
        ),
        [1.0, 0.25, 1.0, 1.0, 0.5, -0.375, -1.0, -1.0, -0.25, 0.75],
    ),
    "bias": (
        Row(DISTRIBUTION, temperature=1.0, bias={0: -1.5, 7: 2.0}),
        [0.5, 1.5, 1.0, 1.0, 0.5, 0.0, -0.5, 1.0, -0.25, 0.75],
    ),
    "min-tokens": (
        Row(DISTRIBUTION, prompt=(1,), temperature=1.0, min_length=10**6, stop_ids=(0, 3)),
        [-INF, 1.5, 1.0, -INF, 0.5, 0.0, -0.5, -1.0, -0.25, 0.75],
    ),
    "mask": (
        Row(DISTRIBUTION, temperature=1.0, allowed=frozenset({1, 4, 6, 9})),
        [-INF, 1.5, -INF, -INF, 0.5, -INF, -0.5, -INF, -INF, 0.75],
    ),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_samples_follow_the_exact_distribution(name: str) -> None:
    case, expected = DISTRIBUTIONS[name]
    count, slot_count = 4000, 50
    logits, rows, slots = batch([replace(case, seed=seed) for seed in range(slot_count)])
    times = count // slot_count
    many = SampleRows(
        slots=rows.slots.repeat(times),
        # Positions differ in the draw only: what counts as the history is the same.
        positions=rows.positions.repeat(times),
        features=rows.features,
        masks=None if rows.masks is None else Masks(rows.masks.words, rows.masks.rows.repeat(times)),
    )
    observed: Counter[int] = Counter()
    for step in range(times):
        part = slice(step * slot_count, (step + 1) * slot_count)
        slots.seed.copy_(torch.arange(len(slots.seed)) * 1_000_003 + step * 2**34)
        masks = None if many.masks is None else Masks(many.masks.words, many.masks.rows[part])
        step_rows = SampleRows(many.slots[part], many.positions[part], many.features, masks)
        observed.update(sample(logits, step_rows, slots).tolist())
    assert p_value(observed, softmax(expected)) > 1e-3


def test_top_p_keeps_a_token_only_while_those_before_it_have_less_than_p() -> None:
    """Two halves: the first alone has 0.5, which is p exactly."""
    half = {token for seed in range(40) for token in draw(Row((1.0, 1.0), temperature=1.0, top_p=0.5, seed=seed))}
    assert half == {0}
    more = {token for seed in range(40) for token in draw(Row((1.0, 1.0), temperature=1.0, top_p=0.501, seed=seed))}
    assert more == {0, 1}


def test_top_k_keeps_the_lowest_ids_among_equals() -> None:
    case = Row((0.0, 3.0, *[1.0] * 200), temperature=100.0, top_k=3)
    tokens = {token for seed in range(100) for token in draw(replace(case, seed=seed))}
    assert tokens == {1, 2, 3}


@pytest.mark.parametrize("width", [2, 5000], ids=["short", "long"])
def test_greedy_takes_the_lowest_id_among_equals(width: int) -> None:
    logits = [0.0] * width
    for token in (width - 1, width // 2):
        logits[token] = 4.0
        assert draw(Row(tuple(logits))) == [token]
        # In the middle of a batch, with and without something to process.
        other = Row(tuple(logits), bias={0: -1.0})
        assert draw(other, Row(tuple(logits)), other) == [token] * 3


def test_stop_ids_are_allowed_from_min_length_on() -> None:
    reached = Row((5.0, 1.0), prompt=(1,), min_length=1, stop_ids=(0,), bias={0: 1.0})
    assert draw(reached, replace(reached, min_length=2)) == [0, 1]


def test_temperatures_too_small_to_divide_by_are_greedy() -> None:
    def tokens(temperature: float) -> set[int]:
        case = Row((0.0, 1e-6), temperature=temperature)
        return {token for seed in range(30) for token in draw(replace(case, seed=seed))}

    assert tokens(MIN_TEMPERATURE * 0.99) == {1}
    assert tokens(MIN_TEMPERATURE * 1.01) == {0, 1}


def test_equal_scores_go_to_the_lowest_id() -> None:
    """Logits so large that noise is lost in their rounding make every score equal."""
    assert draw(Row((1e9, 3e9, 3e9, 3e9), temperature=1.0, seed=5)) == [1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("bad", "token"),
    [
        pytest.param(Row((NAN, 1.0, NAN), allowed=frozenset({0, 1, 2})), 1, id="nan-is-never-taken"),
        pytest.param(Row((NAN, 7.0, -INF)), 1, id="nan-counts-as-minus-infinity"),
        pytest.param(Row((NAN, NAN, NAN)), 0, id="only-nan"),
        pytest.param(Row((NAN, NAN, NAN), allowed=frozenset({1, 2})), 1, id="only-nan-masked"),
        pytest.param(Row((-INF, -INF, -INF)), 0, id="only-minus-infinity"),
        pytest.param(Row((1.0, INF, INF)), 1, id="first-plus-infinity"),
        pytest.param(Row((5.0, 1.0, 1.0), allowed=frozenset()), 0, id="nothing-allowed"),
        pytest.param(Row((5.0, 1.0, 1.0), min_length=9, stop_ids=(0, 1, 2)), 0, id="every-token-stops"),
        pytest.param(Row((-INF, 1.0, -INF), min_length=9, stop_ids=(0, 1)), 2, id="what-does-not-stop"),
        pytest.param(
            Row((5.0, 1.0, 2.0), allowed=frozenset({1, 2}), min_length=9, stop_ids=(1, 2)), 1, id="only-stops"
        ),
    ],
)
def test_a_bad_row_has_a_defined_token_and_leaves_others_alone(bad: Row, token: int, temperature: float) -> None:
    bad = replace(bad, temperature=temperature)
    good = Row((0.0, 9.0, 1.0), temperature=temperature, seed=3)
    assert draw(good, bad, good) == [*draw(good), token, *draw(good)]


def test_ids_outside_the_vocabulary_are_ignored() -> None:
    case = Row((1.0, 2.0, 3.0), min_length=9, stop_ids=(77, 2), bias={55: 100.0}, presence_penalty=1.0)
    logits, rows, slots = batch([replace(case, prompt=(0,), output=(1, 1))])
    slots.tokens[rows.slots, 1:3] = torch.tensor([-1, 1000], dtype=torch.int32)
    slots.repetition_penalty.fill_(2.0)
    assert sample(logits, rows, slots).tolist() == [1]


def test_repetition_counts_every_token_before_the_position_once() -> None:
    """Prompt, output and drafts count; what stands at the position and after it does not."""
    case = Row((4.0, 3.0, 2.5), prompt=(0, 0, 0), output=(1,), repetition_penalty=1.5)
    assert draw(case) == [0]  # 2.67, 2.0, 2.5
    assert draw(replace(case, repetition_penalty=1.7)) == [2]  # 2.35, 1.76, 2.5
    logits, rows, slots = batch([case])
    earlier = SampleRows(rows.slots, rows.positions - 4, rows.features, None)
    slots.repetition_penalty.fill_(1.7)
    assert sample(logits, earlier, slots).tolist() == [0]


def test_position_and_seed_alone_decide_the_draw() -> None:
    case = Row(DISTRIBUTION, temperature=1.0, seed=11)
    logits, rows, slots = batch([case, case, replace(case, seed=12), replace(case, seed=11 + 2**40)])
    draws = torch.stack(
        [
            sample(logits, SampleRows(rows.slots, torch.full((4,), position), rows.features, None), slots)
            for position in range(60)
        ]
    )
    assert torch.equal(draws[:, 0], draws[:, 1])
    assert all(not torch.equal(draws[:, 0], draws[:, other]) for other in (2, 3))
    assert len(set(draws[:, 0].tolist())) > 3


def test_features_that_no_row_names_are_not_read() -> None:
    logits, rows, slots = batch([Row(DISTRIBUTION, temperature=1.0, top_k=1, bias={3: 100.0})])
    greedy = SampleRows(rows.slots, rows.positions, SamplingFeatures.NONE, None)
    assert sample(logits, greedy, slots).tolist() == [0]


def test_no_rows_give_no_tokens() -> None:
    logits, rows, slots = batch([plain])
    none = SampleRows(rows.slots[:0], rows.positions[:0], SamplingFeatures.TEMPERATURE, None)
    assert sample(logits[:0], none, slots).shape == (0,)


@pytest.mark.parametrize("shift", [0.2, 0.8, 2.0])
def test_close_distributions_mostly_draw_the_same_token(shift: float) -> None:
    """Draft and target with the same noise agree with probability at least (1 - TV) / (1 + TV)."""
    generator = torch.Generator().manual_seed(1)
    target = torch.randn(50, generator=generator) * 2
    draft = target + torch.randn(50, generator=generator) * shift
    distance = float((target.softmax(0) - draft.softmax(0)).abs().sum() / 2)
    count = 1000
    slots = SlotTable.allocate(1, 4, 1, torch.device("cpu"))
    slots.temperature.fill_(1.0)
    rows = SampleRows(torch.zeros(count, dtype=torch.int64), torch.arange(count), SamplingFeatures.TEMPERATURE, None)
    agreed = sample(target.repeat(count, 1), rows, slots) == sample(draft.repeat(count, 1), rows, slots)
    bound = (1 - distance) / (1 + distance)
    assert float(agreed.double().mean()) > bound - 3 * (bound * (1 - bound) / count) ** 0.5


@settings(max_examples=examples(60), deadline=None)
@given(st.data(), st.sampled_from([1, 2, 7, 33]), st.integers(1, 3))
def test_logprobs_equal_the_naive_form(data: st.DataObject, vocab: int, count: int) -> None:
    raw = st.one_of(logit, logit, logit, st.just(-INF), st.just(NAN))
    rows = [data.draw(st.lists(raw, min_size=vocab, max_size=vocab)) for _ in range(count)]
    tokens = data.draw(st.lists(st.integers(0, vocab - 1), min_size=count, max_size=count))
    top = data.draw(st.integers(0, vocab))
    chosen, ranks, top_ids, top_values = logprobs(torch.tensor(rows), torch.tensor(tokens), top)
    assert (chosen.dtype, ranks.dtype, top_ids.dtype, top_values.dtype) == (
        *(torch.float32, torch.int64),
        *(torch.int64, torch.float32),
    )
    assert top_ids.shape == top_values.shape == (count, top)
    for row in range(count):
        x = [-INF if np.isnan(value) else value for value in rows[row]]
        largest = max(x)
        shifted = [0.0 if value == largest else value - largest for value in x]
        expected = [value - np.log(sum(np.exp(shifted))) for value in shifted]
        assert float(chosen[row]) == pytest.approx(expected[tokens[row]], abs=1e-5)
        assert int(ranks[row]) == 1 + sum(value > x[tokens[row]] for value in x)
        order = sorted(range(vocab), key=lambda token: (-x[token], token))[:top]
        assert top_ids[row].tolist() == order
        assert top_values[row].tolist() == pytest.approx([expected[token] for token in order], abs=1e-5)


def test_logprobs_of_a_large_vocabulary_match_log_softmax_and_leave_logits_alone() -> None:
    logits = torch.randn(3, 49152, generator=torch.Generator().manual_seed(0)) * 4
    before, tokens = logits.clone(), torch.tensor([0, 777, 49151])
    chosen, ranks, top_ids, top_values = logprobs(logits, tokens, 5)
    expected = before.double().log_softmax(dim=-1)
    torch.testing.assert_close(chosen.double(), expected[torch.arange(3), tokens], atol=1e-5, rtol=0)
    torch.testing.assert_close(top_values.double(), expected.gather(-1, top_ids), atol=1e-5, rtol=0)
    assert ranks.tolist() == (1 + (before > before[torch.arange(3), tokens].unsqueeze(1)).sum(-1)).tolist()
    assert torch.equal(logits, before)


@pytest.mark.parametrize("vocab", [257, 49152, 151936])
def test_the_sum_of_a_row_has_the_same_bits_alone_and_among_others(vocab: int) -> None:
    weights = (4 * torch.randn(20, vocab, generator=torch.Generator().manual_seed(0))).exp()
    with torch_threads(1):
        expected = sum_rows(weights)
    assert expected.dtype == torch.float64
    for threads in (1, 2, 3):
        with torch_threads(threads):
            for count in (1, 2, 3, 20):
                assert torch.equal(torch.cat([sum_rows(rows) for rows in weights.split(count)]), expected)
    assert sum_rows(weights[:0]).shape == (0, 1)


@pytest.mark.parametrize("top", [-1, 4])
def test_logprobs_refuse_more_than_the_vocabulary(top: int) -> None:
    with pytest.raises(ValueError, match=f"top is {top}, but the vocabulary has 3 tokens"):
        logprobs(torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64), top)
