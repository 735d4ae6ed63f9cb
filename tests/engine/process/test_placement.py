"""Which engine gets a request: the one with the least to do, prefixes in its cache counted."""

from __future__ import annotations

import pytest

from draftline.engine.config import EngineConfig
from draftline.engine.process.placement import OUTPUT_TOKENS, Load, Placement
from draftline.engine.process.replicas import replica_configs
from draftline.models.errors import ModelLoadError

IDLE = Load(0, 0)


def prompt(first: int, length: int = 100) -> list[int]:
    return [first] * length


def placement(engines: int = 3, cache_blocks: int = 64) -> Placement:
    return Placement(engines, cache_blocks, block_size=16)


def test_idle_engines_take_turns() -> None:
    place = placement()
    assert [place.place(prompt(n), [IDLE] * 3) for n in range(5)] == [(0, 100), (1, 100), (2, 100), (0, 100), (1, 100)]


def test_the_one_with_the_least_to_do_is_chosen() -> None:
    assert placement().place(prompt(1), [Load(2, 0), Load(1, 5), Load(1, 6)])[0] == 1
    assert placement().place(prompt(1), [Load(1, 0), Load(0, OUTPUT_TOKENS - 1), Load(0, 5000)])[0] == 1


def test_a_prefix_is_followed_until_a_queue_outweighs_it() -> None:
    place = placement()
    assert place.place(prompt(7, 400), [Load(1, 0), IDLE, Load(1, 0)]) == (1, 400)
    # All whole blocks but the one with the last token are known.
    same = prompt(7, 400) + prompt(8, 10)
    assert place.place(same, [IDLE, Load(2, 0), IDLE]) == (1, 410 - 16 * 24)
    assert place.place(same, [IDLE, Load(4, 0), IDLE])[0] != 1


def test_the_last_token_is_always_computed() -> None:
    place = placement(1)
    assert place.place(prompt(7, 32), [IDLE]) == (0, 32)
    assert place.place(prompt(7, 32), [IDLE]) == (0, 16)


def test_a_block_counts_only_behind_the_same_tokens() -> None:
    place = placement(1)
    place.place(prompt(1, 16) + prompt(2, 32), [IDLE])
    assert place.place(prompt(3, 16) + prompt(2, 32), [IDLE]) == (0, 48)


def test_ended_engines_get_nothing() -> None:
    place = placement()
    place.place(prompt(1), [IDLE, Load(9, 0), Load(9, 0)])
    assert place.place(prompt(1), [None, Load(9, 0), Load(8, 0)])[0] == 2


def test_what_was_used_long_ago_is_forgotten_from_its_end() -> None:
    place = placement(1, cache_blocks=8)
    place.place(prompt(1, 100), [IDLE])  # six blocks
    place.place(prompt(2, 64), [IDLE])  # three more
    assert place.place(prompt(1, 100), [IDLE]) == (0, 100 - 16 * 5)


@pytest.mark.parametrize(
    ("device", "gpu", "devices"),
    [
        ("auto", False, ["auto", "auto"]),
        ("cpu", True, ["cpu", "cpu"]),
        ("auto", True, ["cuda:0", "cuda:1"]),
        ("cuda", True, ["cuda:0", "cuda:1"]),
        ("cuda:2", True, ["cuda:2", "cuda:3"]),
    ],
)
def test_each_replica_has_a_device_of_its_own(device: str, gpu: bool, devices: list[str]) -> None:
    assert [config.device for config in replica_configs(EngineConfig(device=device), 2, gpu=gpu)] == devices


def test_devices_that_cannot_be_counted_are_refused() -> None:
    with pytest.raises(ModelLoadError, match="data_parallel_size: there are no 2 devices from 'mps' on"):
        replica_configs(EngineConfig(device="mps"), 2, gpu=True)
