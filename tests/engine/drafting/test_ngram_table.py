"""What the n-gram table remembers of earlier texts, and forgets when it is asked to."""

from __future__ import annotations

import torch
from tiny import Client, tiny_core

from draftline.engine.params import SamplingParams
from draftline.kernels.reference.ops import ReferenceOps
from draftline.spec.ngram_table import NGramTable


def test_it_drafts_from_earlier_texts_until_the_cache_is_flushed() -> None:
    client = Client(tiny_core(drafter=NGramTable(4, 4096, ReferenceOps(), torch.device("cpu"))))
    sampling = SamplingParams(temperature=1.0, seed=3, max_tokens=32, ignore_eos=True)

    def accepted(name: str) -> int:
        client.submit(name, list(range(20, 60)), sampling)
        finished = client.run()[name].outputs[0].finished
        assert finished is not None
        return finished.speculation.accepted

    first, again = accepted("first"), accepted("again")
    assert again > first
    client.core.flush_prefix_cache()
    assert accepted("forgotten") == first
