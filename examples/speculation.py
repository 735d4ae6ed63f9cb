"""Generate with and without speculative decoding, and print the drafts' statistics.

python examples/speculation.py [MODEL] [DRAFT_MODEL]
"""

from __future__ import annotations

import sys

from draftline import LLM, SamplingParams, Speculation

# A text that repeats itself, so that n-gram lookup finds the continuation.
PROMPT = "Repeat: red green blue. red green blue. red green blue. red green"


def main(llm: LLM) -> None:
    """Print what drafting saved. Both texts are equal, token for token."""
    sampling = SamplingParams(temperature=0, max_tokens=48)
    (plain,) = llm.generate(PROMPT, sampling, speculation=Speculation(enabled=False))
    (drafted,) = llm.generate(PROMPT, sampling)
    print("equal:", plain.outputs[0].token_ids == drafted.outputs[0].token_ids)

    finished = drafted.outputs[0].finished
    assert finished is not None
    drafts, tokens = finished.speculation, finished.usage.completion_tokens
    print(f"drafter {drafts.drafter or 'none'}: {drafts.accepted} of {drafts.drafted} drafts accepted")
    print(f"accepted by position: {drafts.accepted_by_position}")
    print(f"{tokens} tokens in {drafts.steps} steps: {tokens / drafts.steps:.2f} tokens a step")


if __name__ == "__main__":
    model, draft_model = (*sys.argv[1:], None, None)[:2]
    # "auto" drafts with the draft model if there is one. N-gram lookup needs none, and drafts for every model.
    with LLM(model or "smollm2", drafter="auto" if draft_model else "ngram", draft_model=draft_model) as llm:
        main(llm)
