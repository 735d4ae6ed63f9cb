"""The client decodes the server's messages to the same outputs."""

from __future__ import annotations

import pytest

from draftline.engine.client.convert import update
from draftline.engine.outputs import (
    BrokenOff,
    Delta,
    Finished,
    FinishReason,
    PositionLogprobs,
    SpeculationStats,
    TagSpan,
    Timing,
    TokenLogprob,
    Usage,
)
from draftline.engine.server.grpc import convert
from draftline.engine.stats import StepTimes
from draftline.v1 import engine_pb2 as pb

# Values that float32 represents exactly.
POSITION = PositionLogprobs(TokenLogprob(7, -0.5, 1), (TokenLogprob(7, -0.5, 1), TokenLogprob(9, -1.25, 2)))


def test_the_end_of_an_output_arrives_whole() -> None:
    end = Finished(
        index=2,
        finish_reason=FinishReason.STOP,
        matched_stop="\n",
        usage=Usage(3, 1, 5),
        speculation=SpeculationStats(8, 4, 2, (3, 1), "ngram", StepTimes(0.125, 0.25, 0.5, 1.0), synthetic=True),
        timing=Timing(1.5, 2.5, 3.5, 4.5),
        constraint_complete=True,
        seed=2**63 + 1,
        json_valid=False,
        system_fingerprint="fp_0123456789ab",
        unenforced=("/format",),
        broken_off=BrokenOff("/a~1b/0", 12),
        tags=(TagSpan("reasoning", "<think>", 0, 7, 9, 17), TagSpan("/format/tags/0", "é", 20, 21, 21, 22)),
    )
    assert update(pb.GenerateResponse(finished=convert.finished(end))) == end


@pytest.mark.parametrize(
    "delta",
    [
        Delta(1, (5, 6), "né"),
        Delta(1, (5,), "n", (POSITION,)),
        Delta(0, (), "", (), (POSITION, POSITION)),
    ],
    ids=["plain", "logprobs", "prompt-logprobs"],
)
def test_a_delta_arrives_whole(delta: Delta) -> None:
    (message,) = convert.deltas(delta)
    assert update(pb.GenerateResponse(delta=message)) == delta
