"""Extract pydantic models from texts. Each text has a result of its own: a value, or an error.

python examples/extraction.py [MODEL]
"""

from __future__ import annotations

import sys
from typing import Literal

from pydantic import BaseModel, Field

from draftline import LLM, Extraction

TEXTS = (
    "Marie Curie was born in Warsaw. She spoke Polish, French and Russian.",
    "Ada Lovelace was an English mathematician. She spoke English and French.",
)


class Person(BaseModel):
    """What to extract. Bounds keep a small model from filling a text or a list until max_tokens."""

    name: str = Field(max_length=40)
    profession: Literal["scientist", "mathematician", "writer", "other"]
    languages: list[str] = Field(max_length=4)


def main(llm: LLM) -> list[Extraction[Person]]:
    """Extract a person from each text, all in one batch."""
    results = llm.extract(TEXTS, Person)
    for result in results:
        print(result.error or result.value)
    return results


if __name__ == "__main__":
    with LLM(sys.argv[1] if len(sys.argv) > 1 else "smollm2") as llm:
        main(llm)
