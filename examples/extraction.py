"""Extract pydantic models from texts. Every output is valid JSON of the model's schema.

python examples/extraction.py [MODEL]
"""

from __future__ import annotations

import sys
from typing import Literal

from pydantic import BaseModel, Field

from draftline import LLM, SamplingParams, Schema

TEXTS = (
    "Marie Curie was born in Warsaw. She spoke Polish, French and Russian.",
    "Ada Lovelace was an English mathematician. She spoke English and French.",
)


class Person(BaseModel):
    """What to extract."""

    name: str = Field(max_length=40)
    profession: Literal["scientist", "mathematician", "writer", "other"]
    languages: list[str] = Field(max_length=4)


def main(llm: LLM) -> list[Person]:
    """Extract a person from each text, all in one batch."""
    conversations = [[{"role": "user", "content": f"Extract the person as JSON: {text}"}] for text in TEXTS]
    # spaced: white space as json.dumps writes it. close_within_budget: the JSON is complete after max_tokens at the latest.
    constraint = Schema(Person, whitespace="spaced", close_within_budget=True)
    answers = llm.chat(conversations, SamplingParams(temperature=0, max_tokens=96), constraint=constraint)
    people = [Person.model_validate_json(answer.outputs[0].text) for answer in answers]
    for person in people:
        print(person)
    return people


if __name__ == "__main__":
    with LLM(sys.argv[1] if len(sys.argv) > 1 else "smollm2") as llm:
        main(llm)
