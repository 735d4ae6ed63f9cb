"""Complete prompts and answer a conversation in this process, without a server.

python examples/offline.py [MODEL]
"""

from __future__ import annotations

import sys

from draftline import LLM, SamplingParams


def main(llm: LLM) -> None:
    """Print two completions of each prompt, and one answer."""
    prompts = ["The capital of France is", "Water boils at"]
    # Seeds make outputs repeatable: output i of a request draws with seed + i.
    for request in llm.generate(prompts, SamplingParams(n=2, seed=7, max_tokens=16)):
        for output in request.outputs:
            print(f"{request.prompt}{output.text!r} ({output.finish_reason})")

    conversation = [
        {"role": "system", "content": "Answer in one sentence."},
        {"role": "user", "content": "Why is the sky blue?"},
    ]
    (answer,) = llm.chat(conversation, SamplingParams(temperature=0, max_tokens=48))
    print(answer.outputs[0].text)


if __name__ == "__main__":
    with LLM(sys.argv[1] if len(sys.argv) > 1 else "smollm2") as llm:
        main(llm)
