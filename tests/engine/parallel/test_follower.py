"""What a rank other than 0 computes."""

from __future__ import annotations

from draftline.engine.parallel.follower import RankZerosDrafter
from draftline.models.hidden_states import NO_HIDDEN_STATES


def test_every_rank_computes_the_tokens_whose_states_rank_zero_s_drafter_reads() -> None:
    assert RankZerosDrafter(5).sink.layers == (5,)
    assert RankZerosDrafter(0).sink.layers == NO_HIDDEN_STATES.layers == ()
