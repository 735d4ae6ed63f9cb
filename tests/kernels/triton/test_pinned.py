"""A graph's own copies from and to pinned memory, interpreted."""

from __future__ import annotations

import pytest
import torch

from draftline.kernels.triton.pinned import deliver, receive, receive_with_writes, receive_writes


@pytest.mark.parametrize("words", [1, 641, 1024, 1537])
def test_every_launch_takes_the_next_stage(words: int) -> None:
    stages = torch.arange(3 * words).view(3, words)
    turn, out = torch.zeros(1, dtype=torch.int32), torch.full((words + 1,), -1)
    for launch in range(5):
        receive(stages, turn, out[:words])
        assert torch.equal(out[:words], stages[launch % 3])
    assert out[words] == -1
    assert turn.item() == 2


@pytest.mark.parametrize(("samples", "rows"), [(0, 1), (1, 1), (640, 128), (2500, 1100)])
def test_results_go_to_the_stage_whose_turn_it_is(samples: int, rows: int) -> None:
    most = samples + 3
    stages = torch.full((2, most + rows + 4), -1)
    turn = torch.ones(1, dtype=torch.int32)
    tokens, accepted = torch.arange(samples) + (1 << 40), torch.arange(rows, dtype=torch.int32)
    deliver(tokens, accepted, torch.tensor([7, 8, 9, 10]), stages, turn, most)
    assert (stages[0] == -1).all()
    assert stages[1, -4:-1].tolist() == [7, 8, 9]
    assert stages[1, -1] == 0, "the interpreter has no clock"
    assert torch.equal(stages[1, :samples], tokens)
    assert torch.equal(stages[1, most : most + rows], accepted.long())
    assert (stages[1] == -1).sum() == 3
    assert turn.item() == 0


@pytest.mark.parametrize("size", [128, 512])
def test_every_launch_carries_out_the_next_stage_s_writes(size: int) -> None:
    stages = torch.full((2, 1 + size + size // 2), 1 << 40)  # what counts no more is no place
    stages[:, 1 : 1 + size] = 0
    turn, out = torch.zeros(1, dtype=torch.int32), torch.zeros(3000, dtype=torch.int32)
    expected = out.clone()
    for launch, count in enumerate((0, 1, 127, 128, size - 3, size)):
        stage = stages[launch % 2]
        places, values = torch.randperm(len(out))[:count], torch.arange(count, dtype=torch.int32) + 1000 * launch
        stage[0], stage[1 : 1 + count] = count, places
        stage[1 + size :].view(torch.int32)[:count] = values
        expected[places] = values
        receive_writes(stages, turn, out)
        assert torch.equal(out, expected)
    assert turn.item() == 0


@pytest.mark.parametrize("words", [5, 1030])
def test_every_launch_takes_the_next_stage_s_inputs_and_writes(words: int) -> None:
    size = 128
    stages = torch.full((2, words + 1 + size + size // 2), 1 << 40)  # what counts no more is no place
    turn, out, written = torch.zeros(1, dtype=torch.int32), torch.zeros(words + 1).long(), torch.zeros(3000).int()
    expected = written.clone()
    for launch, count in enumerate((0, 1, 127, size, 0)):
        stage = stages[launch % 2]
        places, values = torch.randperm(len(written))[:count], torch.arange(count, dtype=torch.int32) + 1000 * launch
        stage[:words] = torch.arange(words) + launch
        message = stage[words:]
        message[0], message[1 : 1 + count] = count, places
        message[1 + size :].view(torch.int32)[:count] = values
        expected[places] = values
        receive_with_writes(stages, turn, out[:words], written)
        assert torch.equal(out[:words], torch.arange(words) + launch)
        assert out[words] == 0
        assert torch.equal(written, expected)
    assert turn.item() == 1
