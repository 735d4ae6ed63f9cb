"""``Invoice``: a type as applications have them, with nested lines, dates, decimals and patterns."""

from __future__ import annotations

import enum
from datetime import date
from decimal import Decimal
from typing import Literal

from pydantic import BaseModel, Field


class Unit(enum.Enum):
    """What is counted."""

    HOUR = "hour"
    PIECE = "piece"
    KG = "kg"


class Line(BaseModel):
    """A line of an invoice."""

    description: str = Field(min_length=1, max_length=60)
    sku: str | None = Field(default=None, pattern="^[A-Z]{3}-[0-9]{4}$")
    quantity: int = Field(ge=1, le=1000)
    unit: Unit
    unit_price: Decimal = Field(max_digits=8, decimal_places=2, ge=0)


class Invoice(BaseModel):
    """An invoice with nested lines."""

    number: str = Field(pattern="^[A-Z]{2}-[0-9]{4}$")
    issued: date
    due: date | None
    currency: Literal["EUR", "USD"]
    lines: list[Line] = Field(min_length=1, max_length=4)
    total: Decimal = Field(max_digits=8, decimal_places=2, ge=0)
