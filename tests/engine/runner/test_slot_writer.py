from __future__ import annotations

import dataclasses

import pytest
import torch
from host_graphs import HostRecorder, HostWriteGraph

from draftline.engine.params import SamplingParams
from draftline.engine.request.sequence import Plan, Row, Sequence
from draftline.engine.runner import slot_writer
from draftline.engine.runner.slot_writer import SlotWriter
from draftline.kernels.slots import SamplingFeatures, SlotTable

EOS = (7, 9)


@pytest.fixture
def table() -> SlotTable:
    return SlotTable.allocate(3, 20, 4, torch.device("cpu"), vocab=100)


def row_of(slot: int, tokens: list[int], sampling: SamplingParams, seed: int = 5) -> Row:
    sequence = Sequence("r", 0, tokens, len(tokens), sampling, seed, len(tokens) + 4, 0.0)
    return Row(sequence, slot, 0, len(tokens), len(tokens), 0, 1)


def enter(writer: SlotWriter, *rows: Row) -> SamplingFeatures:
    return apply(writer, Plan(rows=rows, admitted=rows))


def apply(writer: SlotWriter, plan: Plan) -> SamplingFeatures:
    writer.send(writer.collect(plan))
    return writer.features(plan.rows)


def test_fields_share_one_storage_and_begin_where_kernels_read_fast(table: SlotTable) -> None:
    for field in dataclasses.fields(SlotTable):
        value = getattr(table, field.name)
        assert value.untyped_storage().data_ptr() == table.words.untyped_storage().data_ptr(), field.name
    for name in ("tokens", "block_tables", "seed", "stop_ids", "bias_ids", "bias_values", "allowed", "word_prefixes"):
        offset = getattr(table, name).data_ptr() - table.words.data_ptr()
        assert offset % 128 == 0, name
    assert table.top_p.tolist() == table.repetition_penalty.tolist() == [1.0] * 3


def test_a_sequence_enters_its_slot_with_all_its_parameters(table: SlotTable) -> None:
    sampling = SamplingParams(
        temperature=0.5,
        top_k=3,
        top_p=0.75,
        min_p=0.25,
        repetition_penalty=1.5,
        presence_penalty=-1.0,
        frequency_penalty=0.5,
        min_tokens=2,
        stop_token_ids=[11],
        logit_bias={4: -1.5, 6: 2.0},
        allowed_token_ids=[1, 33],
    )
    before = table.words.clone()
    features = enter(SlotWriter(table, EOS), row_of(1, [3, 1, 4], sampling, seed=2**64 - 2))
    assert table.tokens[1, :3].tolist() == [3, 1, 4]
    assert (table.lengths[1], table.prompt_lens[1], table.min_length[1], table.top_k[1]) == (3, 3, 5, 3)
    assert (table.temperature[1], table.top_p[1], table.min_p[1]) == (0.5, 0.75, 0.25)
    assert (table.repetition_penalty[1], table.presence_penalty[1], table.frequency_penalty[1]) == (1.5, -1.0, 0.5)
    assert table.seed[1] == -2
    assert table.stop_ids[1, :4].tolist() == [*EOS, 11, -1]
    assert table.bias_ids[1, :3].tolist() == [4, 6, -1]
    assert table.bias_values[1, :2].tolist() == [-1.5, 2.0]
    assert table.only_allowed[1] == 1
    assert [table.allowed[1, word].item() for word in range(4)] == [2, 2, 0, 0]
    assert SamplingFeatures.LOGIT_BIAS | SamplingFeatures.ALLOWED_IDS | SamplingFeatures.MIN_TOKENS in features
    # The other slots are as they were.
    others = SlotTable.allocate(3, 20, 4, torch.device("cpu"), vocab=100)
    assert torch.equal(others.words, before)
    for name in ("tokens", "seed", "stop_ids", "bias_ids", "allowed"):
        assert torch.equal(getattr(table, name)[[0, 2]], getattr(others, name)[[0, 2]]), name
    assert torch.equal(table.scalars[:, [0, 2]], others.scalars[:, [0, 2]])


def test_nothing_of_an_earlier_sequence_counts_in_its_slot(table: SlotTable) -> None:
    writer = SlotWriter(table, EOS)
    many = SamplingParams(stop_token_ids=[11, 12, 13], logit_bias={4: 1.0, 5: 1.0, 6: 1.0}, bad_words=[])
    enter(writer, row_of(2, [1, 2, 3], many))
    assert (table.stop_ids[2] >= 0).sum() == 5
    features = enter(writer, row_of(2, [5], SamplingParams(temperature=0, ignore_eos=True)))
    assert (table.stop_ids[2] >= 0).sum() == 0
    assert (table.bias_ids[2] >= 0).sum() == 0
    assert (table.tokens[2, 0], table.lengths[2]) == (5, 1)
    assert features == SamplingFeatures.NONE


def test_nothing_of_an_earlier_sequence_counts_after_a_step_that_was_not_launched(table: SlotTable) -> None:
    writer = SlotWriter(table, EOS)
    enter(writer, row_of(2, [1], SamplingParams(stop_token_ids=[11, 12, 13], logit_bias={4: 1.0, 5: 1.0, 6: 1.0})))
    lost = row_of(2, [1], SamplingParams(stop_token_ids=[14], logit_bias={7: 1.0}))
    writer.collect(Plan(rows=(lost,), admitted=(lost,)))
    enter(writer, row_of(2, [1], SamplingParams(stop_token_ids=[15], logit_bias={8: 1.0})))
    assert table.stop_ids[2].tolist() == [*EOS, 15, *[-1] * (table.stop_ids.shape[1] - 3)]
    assert table.bias_ids[2].tolist() == [8, *[-1] * (table.bias_ids.shape[1] - 1)]


def test_blocks_and_sequences_are_written_together(table: SlotTable) -> None:
    writer = SlotWriter(table, EOS)
    entering = row_of(0, [8, 8], SamplingParams())
    apply(writer, Plan(rows=(entering,), admitted=(entering,), new_blocks=((0, 0, 17), (2, 3, 18), (1, 2, 19))))
    assert table.tokens[0, :2].tolist() == [8, 8]
    assert (table.block_tables[0, 0], table.block_tables[2, 3], table.block_tables[1, 2]) == (17, 18, 19)
    assert table.block_tables.sum() == 17 + 18 + 19
    assert apply(writer, Plan()) == SamplingFeatures.NONE


def test_prompts_of_any_lengths_are_written_together() -> None:
    table = SlotTable.allocate(3, 400, 40, torch.device("cpu"), vocab=100)
    prompts = [list(range(start, start + count)) for start, count in ((1000, 300), (2000, 3), (3000, 64))]
    writer = SlotWriter(table, EOS)
    enter(writer, *[row_of(slot, prompt, SamplingParams()) for slot, prompt in enumerate(prompts)])
    for slot, prompt in enumerate(prompts):
        assert table.tokens[slot].tolist() == prompt + [0] * (400 - len(prompt))
        enter(writer, row_of(slot, [0] * 400, SamplingParams()))
    assert not table.tokens.any()
    assert not table.block_tables.any()


@pytest.mark.parametrize("prompt", [5, 1500], ids=["few", "many"])
def test_a_graph_writes_what_operations_would(prompt: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slot_writer, "WriteGraph", HostWriteGraph)
    recorder = HostRecorder()
    tables = [SlotTable.allocate(3, 2000, 4, torch.device("cpu"), vocab=100) for _ in range(2)]
    by_graph = SlotWriter(tables[0], EOS, recorder)  # type: ignore[arg-type]
    by_operations = SlotWriter(tables[1], EOS)
    assert torch.equal(tables[0].words, tables[1].words)
    for writer in (by_graph, by_operations):
        entering = row_of(1, list(range(7, 7 + prompt)), SamplingParams(temperature=0.3, logit_bias={3: 1.5}))
        apply(writer, Plan(rows=(entering,), admitted=(entering,), new_blocks=((0, 0, 17), (2, 3, 18))))
        apply(writer, Plan(rows=(entering,), new_blocks=((1, 2, 19),)))
        apply(writer, Plan(rows=(entering,)))
    assert torch.equal(tables[0].words, tables[1].words)
    [graph] = recorder.graphs
    assert graph.replays == (2 if prompt < slot_writer._FEW else 1), "long prompts are uploaded whole"
