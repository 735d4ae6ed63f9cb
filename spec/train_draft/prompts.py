"""Prompts for the target to answer: instructions, and extraction to JSON, made from templates and word lists.

Every list has a training part and a held-out part. So a held-out prompt shares neither its template nor any inserted
words with a training prompt.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from draftline.spec.train_draft import tasks, templates, words
from draftline.spec.train_draft.templates import Record

_Item = TypeVar("_Item")

_HELD_OUT_EVERY = 6
"""The share of every list that is held out: one item in this many."""

_SLOT = re.compile(r"\{(\w+)\}")

_GENERAL = (templates.GENERAL, tasks.PROBLEMS, tasks.FACTS, tasks.INTO_ENGLISH, tasks.NEWS)
_SHARES = (0.4, 0.2, 0.15, 0.1, 0.15)
"""How often an instruction is of each list."""


class Prompts:
    """Draws prompts at random, from the training part or the held-out part of the lists.

    Args:
        seed: the seed of the draws.
        held_out: whether to draw from the held-out part.
    """

    def __init__(self, seed: int, *, held_out: bool) -> None:
        self._random = random.Random(seed)
        self._held_out = held_out

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

    def _number(self, low: int, high: int) -> str:
        return str(self._random.randint(low, high))

    def _fill(self, template: str, more: Mapping[str, Callable[[], str]] | None = None) -> str:
        slots = self._slots() | dict(more or {})
        return _SLOT.sub(lambda match: slots[match[1]](), template)

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

    def _slots(self) -> dict[str, Callable[[], str]]:
        def date() -> str:
            month, day, year = self._pick(words.MONTHS), self._number(1, 28), self._number(2019, 2029)
            number = words.MONTHS.index(month) + 1
            return self._random.choice(
                [f"{month} {day}, {year}", f"{day} {month}", f"{year}-{number:02}-{int(day):02}"]
            )

        def email() -> str:
            first, last = self._pick(words.PEOPLE).lower().split()
            return f"{first}.{last}@{self._pick(words.COMPANIES).split()[0].lower()}.example"

        return {
            "topic": lambda: self._pick(words.TOPICS),
            "other_topic": lambda: self._pick(words.TOPICS),
            "audience": lambda: self._pick(words.AUDIENCES),
            "style": lambda: self._pick(words.STYLES),
            "language": lambda: self._pick(words.LANGUAGES),
            "person": lambda: self._pick(words.PEOPLE),
            "other_person": lambda: self._pick(words.PEOPLE),
            "city": lambda: self._pick(words.CITIES),
            "other_city": lambda: self._pick(words.CITIES),
            "company": lambda: self._pick(words.COMPANIES),
            "product": lambda: self._pick(words.PRODUCTS),
            "job": lambda: self._pick(words.JOBS),
            "other_job": lambda: self._pick(words.JOBS),
            "month": lambda: self._pick(words.MONTHS),
            "opinion": lambda: self._pick(words.OPINIONS),
            "code": lambda: self._pick(templates.CODE),
            "complaint": lambda: self._pick(templates.COMPLAINTS),
            "fact": lambda: self._fill(self._pick(tasks.FACTS)),
            "foreign": lambda: self._fill(self._pick(tasks.FOREIGN)),
            "more_foreign": lambda: self._fill(self._pick(tasks.FOREIGN)),
            "country": lambda: self._pick(words.COUNTRIES),
            "work": lambda: self._pick(words.WORKS),
            "figure": lambda: self._pick(words.FIGURES),
            "event": lambda: self._pick(words.EVENTS),
            "local_event": lambda: self._pick(words.LOCAL_EVENTS),
            "deed": lambda: self._pick(words.DEEDS),
            "invention": lambda: self._pick(words.INVENTIONS),
            "feat": lambda: self._pick(words.FEATS),
            "animals": lambda: self._pick(words.ANIMALS),
            "other_animals": lambda: self._pick(words.ANIMALS),
            "dish": lambda: self._pick(words.DISHES),
            "organ": lambda: self._pick(words.ORGANS),
            "word": lambda: self._pick(words.VOCABULARY),
            "thing": lambda: self._pick(words.SUPERLATIVES),
            "things": lambda: self._pick(words.THINGS),
            "german_month": lambda: self._pick(words.GERMAN_MONTHS),
            "date": date,
            "email": email,
            "day": lambda: self._number(1, 28),
            "hour": lambda: self._number(7, 20),
            "n": lambda: self._number(2, 8),
            "m": lambda: self._number(15, 180),
            "k": lambda: self._number(1, 14),
            "age": lambda: self._number(19, 77),
            "speed": lambda: self._number(40, 160),
            "percent": lambda: self._random.choice(["10", "15", "20", "25", "40", "50", "75"]),
            "note": lambda: self._random.choice(["20", "50", "100"]),
            "stars": lambda: self._number(1, 5),
            "price": lambda: f"{self._number(4, 2500)}.{self._number(10, 99)}",
            "salary": lambda: f"{self._number(24, 140)},000 euros",
            "number": lambda: f"{self._random.choice('ABKRT')}-{self._number(1000, 99999)}",
            "code_number": lambda: f"{self._random.choice(['LH', 'AF', 'KL', 'BA'])}{self._number(100, 2999)}",
            "phone": lambda: f"+{self._number(1, 99)} {self._number(100, 999)} {self._number(1000000, 9999999)}",
        }
