"""Texts to extract records from, and the schemas of the records: the main use of structured output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_STRING: Mapping[str, object] = {"type": "string"}


def record(**members: object) -> dict[str, Any]:
    """The schema of an object with these members, all required and no others."""
    return {"type": "object", "properties": members, "required": list(members), "additionalProperties": False}


PERSON = record(
    first_name=_STRING,
    last_name=_STRING,
    age={"type": "integer", "minimum": 0, "maximum": 150},
    email=_STRING,
    languages={"type": "array", "items": _STRING, "maxItems": 5},
)
_ORDER = record(
    order_number=_STRING,
    customer=_STRING,
    items={
        "type": "array",
        "items": record(product=_STRING, quantity={"type": "integer", "minimum": 1}),
        "minItems": 1,
        "maxItems": 5,
    },
    total={"type": "number", "minimum": 0},
    currency={"enum": ["EUR", "USD", "GBP"]},
    delivery_date={"type": "string", "format": "date"},
)
_EVENT = record(
    title=_STRING,
    speaker=_STRING,
    location=record(city=_STRING, country=_STRING),
    start_time=_STRING,
    available_seats={"type": "integer"},
    free_of_charge={"type": "boolean"},
)
_TICKET = record(
    ticket_id=_STRING,
    reported_by=_STRING,
    product=_STRING,
    problem_description=_STRING,
    priority={"enum": ["low", "medium", "high"]},
    assigned_to={"anyOf": [_STRING, {"type": "null"}]},
)

_TEXTS: tuple[tuple[str, Mapping[str, Any], tuple[str, ...]], ...] = (
    (
        "person",
        PERSON,
        (
            "Ada Lovelace (36) speaks English and French; write to ada@example.org.",
            "Our new colleague Jonas Weber is 29 and can be reached at jonas.weber@example.com. He speaks German.",
            "At 51, Maria Silva answers her mail (m.silva@example.net) in Portuguese, Spanish and Italian.",
        ),
    ),
    (
        "order",
        _ORDER,
        (
            "Order A-1093: Karen Holm bought 2 desk lamps and 1 chair for 214.50 euros, delivery on 2024-03-18.",
            "Dear Mr Okafor, thank you for order T-77120: 3 x kettle, 89 USD, to arrive on July 2, 2025.",
            "Peter Lang's order B-4 over 12.99 GBP, one umbrella, will be delivered on 2023-11-30.",
        ),
    ),
    (
        "event",
        _EVENT,
        (
            "Save the date: 'Bees in the City', an evening with Dr. Ruth Adler in Vienna, Austria, 19:30. 80 seats, free.",
            "On Tuesday at 18:00 Hiro Tanaka speaks on 'Bridges that Breathe' in Osaka, Japan. 250 seats, tickets 12 euros.",
            "Tom Reed reads from 'Night Trains' in Leeds, England, at 20:15; there are 40 places, and entry is free.",
        ),
    ),
    (
        "support ticket",
        _TICKET,
        (
            "Ticket 5521: Lena Fischer reports that her printer jams on every second page. High priority, goes to Omar.",
            "K-310, low priority, nobody assigned yet: Ben Carter says the app logs him out when he turns his phone.",
            "Sofia Rossi (ticket R-88, medium) cannot pair her headphones with the laptop; Mia takes over.",
        ),
    ),
)


def documents() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The prompt and the schema of each document."""
    for name, schema, texts in _TEXTS:
        for text in texts:
            members = ", ".join(schema["properties"])
            yield f"Extract the {name} from the text as JSON with the members {members}.\n\nText: {text}", schema
