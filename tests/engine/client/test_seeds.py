"""A seed gives the same output over gRPC as in process."""

from __future__ import annotations

from pathlib import Path

from byte_tokenizer import write_byte_model
from four_faces import FACES, four_faces

from draftline import SamplingParams


def test_a_negative_seed_gives_the_same_output_on_every_face(tmp_path: Path) -> None:
    with four_faces(write_byte_model(tmp_path)) as faces:
        for seed in (-1, -3, -(2**63)):
            # The engine takes seeds modulo 2**64, and reports them so.
            sampling = [SamplingParams(temperature=1, seed=each, max_tokens=8) for each in (seed, seed % 2**64)]
            outputs = [faces.call(face, "generate", "a", each)[0].outputs[0] for face in FACES for each in sampling]
            assert len({tuple(output.token_ids) for output in outputs}) == 1
            assert {output.finished.seed for output in outputs} == {seed % 2**64}
