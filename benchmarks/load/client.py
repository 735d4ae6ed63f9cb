"""Requests of the streams that serving.py sends."""

from __future__ import annotations

from collections.abc import Sequence

from draftline.engine.client.channel import OWN_CONNECTION
from draftline.v1 import engine_pb2 as pb

OPTIONS = [("grpc.max_receive_message_length", -1), OWN_CONNECTION]
"""Options of a connection that shares no TCP connection with others."""


def request(prompt: Sequence[int], output_len: int, seed: int) -> pb.GenerateRequest:
    """A greedy request for exactly ``output_len`` tokens."""
    sampling = pb.SamplingParams(max_tokens=output_len, ignore_eos=True, temperature=0.0, seed=seed)
    return pb.GenerateRequest(token_ids=pb.TokenIds(ids=prompt), sampling=sampling)
