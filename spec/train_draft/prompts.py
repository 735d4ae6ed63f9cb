"""Prompts for the target to answer: instructions, and extraction to JSON, made from templates and word lists.

Every list has a training part and a held-out part. So a held-out prompt shares neither its template nor any inserted
words with a training prompt.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from draftline.spec.train_draft import words

_Item = TypeVar("_Item")

_HELD_OUT_EVERY = 6
"""The share of every list that is held out: one item in this many."""

_SLOT = re.compile(r"\{(\w+)\}")

GENERAL = (
    "Explain {topic} to {audience}.",
    "Write a short story about {topic}.",
    "What are the most important facts about {topic}?",
    "List {n} interesting things about {topic}.",
    "Write a {style} email to {person} about {topic}.",
    "Give me {n} tips for {topic}.",
    "Compare {topic} with {other_topic}.",
    "Write a {style} paragraph about {topic} for {audience}.",
    "Why does {topic} matter today?",
    "Summarize what is known about {topic} in {n} sentences.",
    "I want to learn about {topic}. Where should I start?",
    "Write a poem about {topic} in a {style} tone.",
    "What are the advantages and disadvantages of {topic}?",
    "Create an outline for an article on {topic}.",
    "Translate into {language}: The lecture about {topic} begins at {hour} o'clock in {city}.",
    "Write a dialogue between {person} and {other_person} about {topic}.",
    "Write a Python function that takes a list of numbers and {code}.",
    "{person} has {n} apples and buys {m} more, then gives away {k}. How many are left? Explain step by step.",
    "Plan a {n}-day trip to {city} for {audience}.",
    "Write a product description for a {product} in a {style} style.",
    "Draft a job advertisement for a {job} at {company} in {city}.",
    "What questions should I ask in an interview for a position as a {job}?",
    "Rewrite this more politely: Send me the report on {topic} by {month} {day} or we have a problem.",
    "Correct the grammar: He don't knows nothing about {topic} and they was asking {person} for helps.",
    "What could go wrong when a {job} starts to work with {topic}?",
    "Give {n} headlines for a newspaper article about {topic} in {city}.",
    "Imagine that you are a {job}. Describe a day in {city}.",
    "Write a {style} review of a {product} that {opinion}.",
    "What is the difference between a {job} and a {other_job}?",
    "Write a speech of one minute about {topic} for {audience}.",
    "How would you teach {topic} in a school?",
    "A train leaves {city} at {hour}:00 and travels {m} km at {speed} km/h. When does it arrive?",
    "Write three multiple-choice questions about {topic} with answers.",
    "Answer briefly: what is {topic}?",
    "Make a table that compares {topic} and {other_topic}.",
    "Write a SQL query that returns all customers in {city} who bought a {product} after {month} {day}.",
    "Continue the story: When {person} came to {city}, nobody had heard of {topic}.",
    "Write a letter of complaint to {company} about a {product} that {opinion}.",
    "Describe {topic} without using the word 'important'.",
    "Which {n} books would you recommend on {topic}, and why?",
    "Give a recipe that somebody in {city} could cook in {m} minutes.",
    "Write an HTML page for {company} with a heading and a list of {n} products.",
    "Turn these notes into a paragraph: {topic}; {city}; {person}; {month}; {n} participants; {style} mood.",
    "What would {person}, a {job}, say about {topic}?",
    "Write a function in JavaScript that {code}.",
    "Explain the saying that everybody in {city} loves {topic}, and invent its origin.",
    "Is {topic} more useful than {other_topic}? Give arguments for both sides.",
    "Write a checklist for a {job} who travels to {city}.",
)

_CODE = (
    *("returns the largest one", "returns their average", "removes duplicates", "sorts them in descending order"),
    *("counts the even ones", "returns the sum of their squares", "splits them into chunks of three"),
    *("checks whether they are sorted", "returns the two largest", "reverses them in place", "finds the missing one"),
    "prints every third one",
)


@dataclass(frozen=True, slots=True)
class _Record:
    """A kind of record to extract: its keys, and text templates that contain one."""

    name: str
    keys: str
    texts: tuple[str, ...]


_RECORDS = (
    _Record(
        "person",
        "name, age, job, city",
        (
            "{person} is a {age}-year-old {job} who has lived in {city} for {n} years.",
            "Our new {job} is called {person}, is {age} and commutes from {city}.",
            "At {age}, {person} left {city} to become a {job}, and never looked back.",
        ),
    ),
    _Record(
        "order",
        "order_number, customer, product, quantity, total, delivery_date",
        (
            "Order {number}: {person} bought {n} pieces of {product} for {price} euros in total, to arrive on {date}.",
            "Dear {person}, thank you for your order {number}: {n} x {product}, {price} EUR, delivery on {date}.",
        ),
    ),
    _Record(
        "event",
        "title, speaker, city, date, start_time, seats",
        (
            "On {date} at {hour}:30, {person} speaks on {topic} in {city}. There are {m} seats.",
            "Save the date: '{topic}', an evening with {person}, {date}, {hour}:30, {city}. Limited to {m} guests.",
        ),
    ),
    _Record(
        "invoice",
        "invoice_number, company, amount, currency, due_date, paid",
        (
            "Invoice {number} from {company} over {price} dollars is due on {date} and has not been paid yet.",
            "We have received your payment of {price} USD for invoice {number} ({company}), which was due on {date}.",
        ),
    ),
    _Record(
        "job_posting",
        "position, company, city, salary, start_date, contact",
        (
            "{company} in {city} is looking for a {job} from {date} on. The salary is {salary} a year; write to {email}.",
            "Wanted: {job}. You start on {date} in our office in {city} and earn {salary}. {company}, {email}.",
        ),
    ),
    _Record(
        "review",
        "product, rating, opinion, recommended",
        (
            "I bought this {product} in {month}. It {opinion}. {stars} out of 5 stars.",
            "{stars}/5. The {product} from {company} {opinion}.",
        ),
    ),
    _Record(
        "flight",
        "flight_number, passenger, from, to, date, departure_time",
        (
            "{person} flies from {city} to {other_city} on {date} with flight {code_number}, departing at {hour}:45.",
            "Your booking: {code_number}, {city} - {other_city}, {date}, {hour}:45, passenger {person}.",
        ),
    ),
    _Record(
        "appointment",
        "patient, doctor, clinic, date, time, reason",
        (
            "{person} sees Dr. {other_person} at {company} on {date} at {hour}:15 because of a {complaint}.",
            "Reminder: {date}, {hour}:15, {company}. Dr. {other_person} expects {person} ({complaint}).",
        ),
    ),
    _Record(
        "support_ticket",
        "ticket_id, customer, product, problem, priority, assigned_to",
        (
            "Ticket {number}: {person} reports that the {product} {opinion}. Priority high, assigned to {other_person}.",
            "{other_person} takes over ticket {number}, low priority: {person} says the {product} {opinion}.",
        ),
    ),
    _Record(
        "contact",
        "name, company, position, email, phone",
        (
            "{person}, {job}, {company}, {email}, phone {phone}.",
            "You can reach our {job} {person} of {company} by mail ({email}) or by phone: {phone}.",
        ),
    ),
    _Record(
        "apartment",
        "city, rooms, area_m2, monthly_rent, available_from, pets_allowed",
        (
            "Bright flat in {city}: {n} rooms, {m} square metres, {price} a month, free from {date}. No pets.",
            "{person} lets a {n}-room apartment ({m} m2) in {city} for {price} per month. Pets are welcome. From {date}.",
        ),
    ),
    _Record(
        "shipment",
        "tracking_number, sender, recipient, weight_kg, destination, status",
        (
            "Parcel {number} from {company} to {person} in {city}, {n} kg, has left the depot.",
            "{person} in {city} has received shipment {number} ({n} kg) of {company}.",
        ),
    ),
)

_JSON_INSTRUCTIONS = (
    "Extract the {record} from the text as JSON with the keys {keys}.\n\nText: {text}",
    "{text}\n\nReturn a JSON object with these keys: {keys}. Return only JSON.",
    "You extract data. Answer with JSON only. Keys: {keys}.\n\n{text}",
    "Read the text and fill in this {record} as JSON ({keys}). Use null for what is missing.\n\n{text}",
    "Convert to JSON:\n{text}\nFields: {keys}",
    "Extract structured data.\nSchema: {schema}\nInput: {text}\nOutput:",
    "What does this say about the {record}? Reply in JSON following the schema {schema}\n\n{text}",
    "Each line is about one {record}. Return a JSON array of {count} objects with the keys {keys}.\n\n{texts}",
    "JSON please, keys {keys}:\n{text}",
    "List every {record} in the following as a JSON array of objects with the keys {keys}.\n\n{texts}",
)

_GENERATED_JSON = (
    "Write a JSON object that describes a {product}, with at least {n} keys.",
    "Give me an example of a JSON file with {n} entries about {topic}.",
    "Make up a {record} and write it as JSON with the keys {keys}.",
    "Create a JSON array of {n} objects of the kind {record} with the keys {keys}.",
    "Write a JSON configuration for a server of {company}, with host, port, logging and {n} users.",
    "Write {n} quiz questions about {topic} as a JSON array, each with question, options and answer.",
)

FOLLOW_UPS = (
    "Make it shorter.",
    "Summarize that in one sentence.",
    "Now say it for {audience}.",
    "Translate that into {language}.",
    "Can you give an example?",
    "Rewrite it in a {style} tone.",
    "Turn it into a list of {n} points.",
    "Are you sure? Check it step by step.",
    "What else should I know?",
    "Write it again, but mention {city}.",
    "Thanks! And what about {topic}?",
    "What is the main idea?",
)

_ABOUT_TEXT = (
    "Summarize the following text in {n} sentences.\n\n{passage}",
    "{passage}\n\nWhat is the main point of this text?",
    "Rewrite this in a {style} style:\n\n{passage}",
    "Translate into {language}:\n\n{passage}",
    "Answer with the help of the text. Question: what is said here that {audience} should know?\n\nText: {passage}",
    "Find the three most important statements in this text and quote them.\n\n{passage}",
    "Continue this text:\n\n{passage}",
    "Give this text a title and say why it fits.\n\n{passage}",
)

_ABOUT_TEXTS = (
    "Answer the question with the help of the documents below.\n\n{passages}\n\nQuestion: What is said about {topic}?",
    "Summarize the following article:\n\n{passages}",
    "{passages}\n\nWhat do these texts have in common, and where do they differ?",
    "Read the passages and answer in {n} sentences. Which of them matters most to {audience}?\n\n{passages}",
    "Context:\n{passages}\n\nBased on the context, what should {audience} know?",
    "Write a summary of no more than {n} sentences.\n\n{passages}\n\nSummary:",
)

_JSON_ABOUT_TEXT = (
    "Extract the key facts from the text as JSON with the keys title, summary and facts.\n\n{passage}",
    "{passage}\n\nReturn JSON with the keys topic, people, places and numbers.",
    "Classify this text. Answer as JSON with the keys category, language, tone and confidence.\n\n{passage}",
    "Text:\n{passage}\n\nWrite a JSON array of the sentences, each with the keys text and keywords.",
)

TASKS = (
    "You summarize texts. Answer with a short summary of the user's text.",
    "You translate the user's text into English.",
    "You rewrite the user's text so that it is shorter and clearer.",
    "You solve problems of mathematics step by step.",
    "You answer questions with the help of the passages that the user gives.",
    "You are an assistant who writes code and explains it.",
    "You answer questions about history, geography and people with facts.",
    "You are a teacher of the natural sciences.",
    "You play the role that the user asks for.",
    "You extract facts from the user's text.",
    "You are an editor. Correct the user's text, and say what you changed.",
    "You give advice on everyday problems.",
)
"""System messages, behind which the target itself writes a user's message."""

_COMPLAINTS = ("cough", "sore knee", "headache", "routine check", "skin rash", "back pain", "fever", "broken finger")


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
        return self._fill(self._pick(GENERAL))

    def json(self) -> str:
        """A request for JSON: mostly extracted from a given text, sometimes invented."""
        template = self._pick(_JSON_INSTRUCTIONS if self._random.random() < 0.8 else _GENERATED_JSON)
        record = self._pick(_RECORDS)
        return self._fill(template, self._record_slots(record))

    def follow_up(self) -> str:
        """A user's reply to an answer."""
        return self._fill(self._pick(FOLLOW_UPS))

    def about_text(self, passage: str) -> str:
        """An instruction about a given text."""
        return self._fill(self._pick(_ABOUT_TEXT), {"passage": lambda: passage})

    def about_texts(self, passages: Sequence[str]) -> str:
        """An instruction about several given texts, numbered or in one piece."""
        numbered = [f"[{number}] {passage}" for number, passage in enumerate(passages, 1)]
        joined = "\n\n".join(self._random.choice([numbered, passages]))
        return self._fill(self._pick(_ABOUT_TEXTS), {"passages": lambda: joined})

    def json_about_text(self, passage: str) -> str:
        """A request for JSON about a given text."""
        return self._fill(self._pick(_JSON_ABOUT_TEXT), {"passage": lambda: passage})

    def task(self) -> str:
        """A system message."""
        return self._pick(TASKS)

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

    def _record_slots(self, record: _Record) -> dict[str, Callable[[], str]]:
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
            "code": lambda: self._pick(_CODE),
            "complaint": lambda: self._pick(_COMPLAINTS),
            "date": date,
            "email": email,
            "day": lambda: self._number(1, 28),
            "hour": lambda: self._number(7, 20),
            "n": lambda: self._number(2, 8),
            "m": lambda: self._number(15, 180),
            "k": lambda: self._number(1, 14),
            "age": lambda: self._number(19, 77),
            "speed": lambda: self._number(40, 160),
            "stars": lambda: self._number(1, 5),
            "price": lambda: f"{self._number(4, 2500)}.{self._number(10, 99)}",
            "salary": lambda: f"{self._number(24, 140)},000 euros",
            "number": lambda: f"{self._random.choice('ABKRT')}-{self._number(1000, 99999)}",
            "code_number": lambda: f"{self._random.choice(['LH', 'AF', 'KL', 'BA'])}{self._number(100, 2999)}",
            "phone": lambda: f"+{self._number(1, 99)} {self._number(100, 999)} {self._number(1000000, 9999999)}",
        }
