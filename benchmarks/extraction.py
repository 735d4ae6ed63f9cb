"""Extraction: tokens, steps, complete answers and right fields, for each kind of white space.

    python benchmarks/extraction.py                              the embedded model, on any machine
    python benchmarks/extraction.py --model FOLDER --texts 100

The texts are made from templates, so that the right values are known: people, events and orders in equal parts. A right
field is a leaf of the value (a text, a number, an entry of a list) that the answer has at the same path. The share is of
the leaves that either has, so an invented entry counts against the answer. Incomplete answers have no right field.
Steps are the tokens that no accepted draft saved.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, Field, create_model

from draftline import LLM, SamplingParams, Schema
from draftline.engine.bench.provenance import conditions

Whitespace = Literal["compact", "spaced", "free"]

_NAMES = ("Ada Lindgren", "Tomás Rivera", "Mei Tanaka", "Omar Haddad", "Ruth Okafor", "Jan Kowalski", "Priya Nair")
_CITIES = ("Lisbon", "Kraków", "Osaka", "Nairobi", "Toronto", "Oslo", "Lima")
_JOBS = ("nurse", "carpenter", "physicist", "teacher", "pilot", "painter")
_LANGUAGES = ("English", "Polish", "Japanese", "Arabic", "Spanish", "Hindi", "Swahili")
_EVENTS = ("jazz concert", "chess tournament", "book fair", "science lecture", "food market")
_PRODUCTS = ("lamps", "chairs", "desks", "kettles", "notebooks", "bicycles")


Text = Annotated[str, Field(max_length=40)]
"""Bounded, as small models repeat themselves in texts and lists that are not."""


class Person(BaseModel):
    """Somebody."""

    name: Text
    profession: Text
    city: Text
    languages: list[Text] = Field(max_length=4)


class Event(BaseModel):
    """Something that takes place."""

    title: Text
    city: Text
    day: date
    visitors: int = Field(ge=0, le=100_000)


class Item(BaseModel):
    """One line of an order."""

    product: Text
    quantity: int = Field(ge=1, le=1000)
    unit_price: float = Field(ge=0, le=10_000)


class Order(BaseModel):
    """What somebody buys."""

    customer: Text
    items: list[Item] = Field(max_length=4)
    paid: bool


@dataclass(frozen=True, slots=True)
class Case:
    """A text and the value in it."""

    text: str
    value: BaseModel


@dataclass(frozen=True, slots=True)
class Score:
    """One setting's result: means over the texts, and shares of 1."""

    tokens: float
    steps: float
    complete: float
    right_fields: float
    right_values: float


def cases(count: int, seed: int = 0) -> list[Case]:
    """Make ``count`` texts."""
    rng = random.Random(seed)
    makers = (_person, _event, _order)
    return [makers[index % len(makers)](rng) for index in range(count)]


def _person(rng: random.Random) -> Case:
    name, job, city = rng.choice(_NAMES), rng.choice(_JOBS), rng.choice(_CITIES)
    languages = rng.sample(_LANGUAGES, rng.randint(1, 3))
    spoken = " and ".join(filter(None, [", ".join(languages[:-1]), languages[-1]]))
    text = rng.choice(
        (
            f"{name} works as a {job} in {city} and speaks {spoken}.",
            f"Our guest today is {name}, a {job} for ten years, who now lives in {city}. Languages: {spoken}.",
            f"I moved to {city} last spring. I am a {job}. I can help you in {spoken}. Best wishes, {name}",
        )
    )
    return Case(text, Person(name=name, profession=job, city=city, languages=languages))


def _event(rng: random.Random) -> Case:
    title, city, visitors = rng.choice(_EVENTS), rng.choice(_CITIES), rng.randint(3, 90) * 10
    day = date(rng.randint(2019, 2026), rng.randint(1, 12), rng.randint(1, 28))
    text = rng.choice(
        (
            f"On {day:%d %B %Y} the {title} in {city} had {visitors} visitors.",
            f"{visitors} people came to the {title}. It took place on {day:%B %d, %Y}, in {city}, in spite of the rain.",
            f"{city}, {day.isoformat()}. The {title} is over. The organisers counted {visitors} visitors.",
        )
    )
    return Case(text, Event(title=title, city=city, day=day, visitors=visitors))


def _order(rng: random.Random) -> Case:
    customer, paid = rng.choice(_NAMES), rng.random() < 0.5
    items = [
        Item(product=product, quantity=rng.randint(2, 20), unit_price=rng.randint(4, 400) / 4)
        for product in rng.sample(_PRODUCTS, rng.randint(1, 3))
    ]
    lines = "; ".join(f"{item.quantity} {item.product} at {item.unit_price:.2f} euros each" for item in items)
    state = "It is paid." if paid else "It has not been paid yet."
    text = rng.choice(
        (f"{customer} ordered {lines}. {state}", f"Order of {customer}: {lines}. {state} Please ship it on Monday.")
    )
    return Case(text, Order(customer=customer, items=items, paid=paid))


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of plain data, with their paths. Texts count without their case."""
    match value:
        case dict():
            for name, part in value.items():
                yield from leaves(part, f"{path}.{name}")
        case list():
            for index, part in enumerate(value):
                yield from leaves(part, f"{path}[{index}]")
        case str():
            yield path, value.strip().casefold()
        case _:
            yield path, value


def right_share(answer: BaseModel, expected: BaseModel) -> float:
    """The share of right leaves among all that the answer or the expected value has."""
    got, wanted = set(leaves(answer.model_dump())), set(leaves(expected.model_dump()))
    paths = {path for path, _ in got | wanted}
    return len(got & wanted) / len(paths)


def unbounded(kind: Any) -> Any:
    """A type without its bounds and lengths, as people write it at first."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        fields: dict[str, Any] = {name: (unbounded(field.annotation), ...) for name, field in kind.model_fields.items()}
        return create_model(kind.__name__, **fields)
    if get_origin(kind) is Annotated:
        return unbounded(get_args(kind)[0])
    return list[unbounded(get_args(kind)[0])] if get_origin(kind) is list else kind  # type: ignore[misc]


def measure(
    llm: LLM, texts: list[Case], whitespace: Whitespace, sampling: SamplingParams, bounded: bool = True
) -> Score:
    """Extract every text, each with its own type; ``bounded`` keeps the type's bounds."""
    tokens = steps = complete = 0
    shares: list[float] = []
    for kind in (Person, Event, Order):
        group = [case for case in texts if isinstance(case.value, kind)]
        constraint = Schema(kind if bounded else unbounded(kind), whitespace=whitespace)
        for case, result in zip(
            group, llm.extract([case.text for case in group], constraint, sampling, use_tqdm=False), strict=True
        ):
            if result.output is not None and (end := result.output.outputs[0].finished) is not None:
                tokens += end.usage.completion_tokens
                steps += end.usage.completion_tokens - end.speculation.accepted
            complete += result.error is None
            shares.append(right_share(result.value, case.value) if result.error is None else 0.0)
    right = sum(share == 1 for share in shares)
    return Score(*(total / len(texts) for total in (tokens, steps, complete, sum(shares), right)))


def main() -> None:
    """Measure each kind of white space, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2", help="a model of `draftline.LLM` (default: the embedded one)")
    parser.add_argument("--texts", type=int, default=48, help="number of texts (default: 48)")
    parser.add_argument("--max-tokens", type=int, default=256, help="maximum tokens of an answer (default: 256)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    parser.add_argument("--unbounded", action="store_true", help="types without bounds and lengths")
    options = parser.parse_args()
    texts = cases(options.texts)
    sampling = SamplingParams(temperature=options.temperature, max_tokens=options.max_tokens, seed=0)
    with LLM(options.model) as llm:
        print(conditions(llm.info.device)["machine"])
        print("white space   tokens    steps   complete   right fields   right values", flush=True)
        for whitespace in get_args(Whitespace):
            score = measure(llm, texts, whitespace, sampling, not options.unbounded)
            print(
                f"{whitespace:11} {score.tokens:8.1f} {score.steps:8.1f} {score.complete:10.1%} "
                f"{score.right_fields:14.1%} {score.right_values:14.1%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
