"""Prompts for the target to answer: instructions, and extraction to JSON, made from templates and word lists.

Every list has a training part and a held-out part. So a held-out prompt shares neither its template nor any inserted
words with a training prompt.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from draftline.spec.train_draft import questions, templates, words
from draftline.spec.train_draft.templates import Record

_Item = TypeVar("_Item")

_HELD_OUT_EVERY = 6
"""The share of every list that is held out: one item in this many."""

_SLOT = re.compile(r"\{(\w+)\}")

_GENERAL = (templates.GENERAL, questions.PROBLEMS, questions.FACTS, questions.INTO_ENGLISH, questions.NEWS)
_SHARES = (0.4, 0.2, 0.15, 0.1, 0.15)
"""How often an instruction is of each list."""

_LISTS: Mapping[str, Sequence[str]] = {
    "topic": words.TOPICS,
    "audience": words.AUDIENCES,
    "style": words.STYLES,
    "language": words.LANGUAGES,
    "person": words.PEOPLE,
    "city": words.CITIES,
    "company": words.COMPANIES,
    "product": words.PRODUCTS,
    "job": words.JOBS,
    "month": words.MONTHS,
    "opinion": words.OPINIONS,
    "code": templates.CODE,
    "complaint": templates.COMPLAINTS,
    "fact": questions.FACTS,
    "foreign": questions.FOREIGN,
    "country": words.COUNTRIES,
    "work": words.WORKS,
    "figure": words.FIGURES,
    "event": words.EVENTS,
    "local_event": words.LOCAL_EVENTS,
    "deed": words.DEEDS,
    "invention": words.INVENTIONS,
    "feat": words.FEATS,
    "animals": words.ANIMALS,
    "dish": words.DISHES,
    "organ": words.ORGANS,
    "word": words.VOCABULARY,
    "thing": words.SUPERLATIVES,
    "things": words.THINGS,
    "german_month": words.GERMAN_MONTHS,
}
"""What a slot may be filled with; entries may have slots themselves."""

_RANGES: Mapping[str, tuple[int, int]] = {
    "day": (1, 28),
    "hour": (7, 20),
    "n": (2, 8),
    "m": (15, 180),
    "k": (1, 14),
    "age": (19, 77),
    "speed": (40, 160),
    "stars": (1, 5),
}
"""The lowest and the highest number in a slot."""


class Prompts:
    """Draws prompts at random, from the training part or the held-out part of the lists.

    Args:
        seed: the seed of the draws.
        held_out: whether to draw from the held-out part.
    """

    def __init__(self, seed: int, *, held_out: bool) -> None:
        self._random = random.Random(seed)
        self._held_out = held_out
        self._slots: dict[str, Callable[[], str]] = {
            **{name: partial(self._listed, items) for name, items in _LISTS.items()},
            **{name: partial(self._number, *bounds) for name, bounds in _RANGES.items()},
            "date": self._date,
            "email": self._email,
            "percent": lambda: self._random.choice(["10", "15", "20", "25", "40", "50", "75"]),
            "note": lambda: self._random.choice(["20", "50", "100"]),
            "price": lambda: f"{self._number(4, 2500)}.{self._number(10, 99)}",
            "salary": lambda: f"{self._number(24, 140)},000 euros",
            "number": lambda: f"{self._random.choice('ABKRT')}-{self._number(1000, 99999)}",
            "code_number": lambda: f"{self._random.choice(['LH', 'AF', 'KL', 'BA'])}{self._number(100, 2999)}",
            "phone": lambda: f"+{self._number(1, 99)} {self._number(100, 999)} {self._number(1000000, 9999999)}",
        }

    def general(self) -> str:
        """An instruction."""
        return self._fill(self._pick(*self._random.choices(_GENERAL, _SHARES)))

    def json(self) -> str:
        """A request for JSON: mostly extracted from a given text, sometimes invented."""
        template = self._pick(templates.JSON_INSTRUCTIONS if self._random.random() < 0.8 else templates.GENERATED_JSON)
        record = self._pick(templates.RECORDS)
        return self._fill(template, self._record_slots(record))

    def follow_up(self) -> str:
        """A user's reply to an answer."""
        return self._fill(self._pick(templates.FOLLOW_UPS))

    def about_text(self, passage: str) -> str:
        """An instruction about a given text."""
        return self._fill(self._pick(templates.ABOUT_TEXT), {"passage": lambda: passage})

    def about_texts(self, passages: Sequence[str]) -> str:
        """An instruction about several given texts, numbered or in one piece."""
        numbered = [f"[{number}] {passage}" for number, passage in enumerate(passages, 1)]
        joined = "\n\n".join(self._random.choice([numbered, passages]))
        return self._fill(self._pick(templates.ABOUT_TEXTS), {"passages": lambda: joined})

    def json_about_text(self, passage: str) -> str:
        """A request for JSON about a given text."""
        return self._fill(self._pick(templates.JSON_ABOUT_TEXT), {"passage": lambda: passage})

    def task(self) -> str:
        """A system message."""
        return self._pick(templates.TASKS)

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._random.random() < probability

    def _pick(self, items: Sequence[_Item]) -> _Item:
        part = [item for index, item in enumerate(items) if (index % _HELD_OUT_EVERY == 3) == self._held_out]
        return self._random.choice(part)

    def _listed(self, items: Sequence[str]) -> str:
        return self._fill(self._pick(items))

    def _number(self, low: int, high: int) -> str:
        return str(self._random.randint(low, high))

    def _fill(self, template: str, more: Mapping[str, Callable[[], str]] | None = None) -> str:
        slots = {**self._slots, **(more or {})}
        # The "other" of a slot is one more of its kind.
        return _SLOT.sub(lambda match: slots[match[1].removeprefix("other_")](), template)

    def _record_slots(self, record: Record) -> dict[str, Callable[[], str]]:
        def text() -> str:
            # A kind has too few texts to divide them into two parts; the words in them are divided.
            return self._fill(self._random.choice(record.texts))

        keys = record.keys.split(", ")
        count = self._random.randint(2, 4)
        quoted = ", ".join(f'"{key}"' for key in keys)
        schema = "{" + ", ".join(f'"{key}": "string"' for key in keys) + "}"
        return {
            "record": lambda: record.name.replace("_", " "),
            "keys": lambda: self._random.choice([record.keys, quoted]),
            "schema": lambda: schema,
            "text": text,
            "texts": lambda: "\n".join(f"- {text()}" for _ in range(count)),
            "count": lambda: str(count),
        }

    def _date(self) -> str:
        month, day, year = self._pick(words.MONTHS), self._number(1, 28), self._number(2019, 2029)
        number = words.MONTHS.index(month) + 1
        return self._random.choice([f"{month} {day}, {year}", f"{day} {month}", f"{year}-{number:02}-{int(day):02}"])

    def _email(self) -> str:
        first, last = self._pick(words.PEOPLE).lower().split()
        return f"{first}.{last}@{self._pick(words.COMPANIES).split()[0].lower()}.example"
