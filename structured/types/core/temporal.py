"""Dates, times, datetimes and durations."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any, Final

from pydantic_core import SchemaValidator

from draftline.structured.types.core.place import CoreSchema, Fragment, Place, Reader, text_or_refusal
from draftline.structured.types.texts import durations, temporal

_DAY: Final = timedelta(days=1)
_TICK: Final = timedelta(microseconds=1)
_MARGIN: Final = timedelta(days=2)
"""How long before now a text must be for it to be past in every time zone."""


def read_date(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Dates of ISO 8601 from the year 1 on."""
    if schema.get("now_op") == "future":
        return _future(reader, place)
    try:
        low, high = _interval(_bounds(schema), _DAY)
    except OverflowError as error:
        return reader.refuse(place, "date", str(error))
    if schema.get("now_op") == "past":
        high = min(high or date.max, (_now() - _MARGIN).date())
    return text_or_refusal(reader, place, "date", lambda: temporal.date_text(low or date.min, high or date.max))


def read_datetime(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Datetimes of ISO 8601, with an offset or without one as the type demands."""
    if schema.get("now_op") == "future":
        return _future(reader, place)
    bounds = _bounds(schema)
    zone = schema.get("tz_constraint")
    if len({bound.tzinfo is None for bound in bounds.values()}) > 1:
        return reader.refuse(place, "datetime", "one of its bounds has an offset from UTC, another has none")
    if isinstance(zone, int) and bounds:
        return reader.refuse(place, "datetime", "it has bounds and a fixed offset from UTC")
    try:
        low, high = _interval(bounds, _TICK)
    except OverflowError as error:
        return reader.refuse(place, "datetime", str(error))
    if schema.get("now_op") == "past":
        past = _now() - _MARGIN
        if high is None:
            high = past if bounds and low is not None and low.tzinfo is not None else past.replace(tzinfo=None)
        else:
            high = min(high, past if high.tzinfo is not None else past.replace(tzinfo=None))
    return text_or_refusal(
        reader, place, "datetime", lambda: temporal.datetime_text(low, high, "any" if zone is None else zone)
    )


def read_time(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Times of ISO 8601."""
    bounds = _bounds(schema)
    zone = schema.get("tz_constraint")
    if any(bound.tzinfo is not None for bound in bounds.values()):
        return reader.refuse(place, "time", "bounds of times with an offset from UTC are not supported")
    if isinstance(zone, int) and bounds:
        return reader.refuse(place, "time", "it has bounds and a fixed offset from UTC")
    low: time | None = bounds.get("ge")
    high: time | None = bounds.get("le")
    try:
        if "gt" in bounds:
            low = max(low or time.min, temporal.time_after(bounds["gt"]))
        if "lt" in bounds:
            high = min(high or time.max, temporal.time_before(bounds["lt"]))
    except OverflowError as error:
        return reader.refuse(place, "time", str(error))
    return text_or_refusal(
        reader, place, "time", lambda: temporal.time_text(low, high, "any" if zone is None else zone)
    )


def read_timedelta(reader: Reader, schema: CoreSchema, place: Place) -> Fragment:
    """Durations of ISO 8601."""
    if schema.get("multiple_of") is not None:
        return reader.refuse(place, "timedelta", "multiples of a duration are not supported")
    bounds = _bounds(schema)
    try:
        low, high = _interval(bounds, _TICK)
    except OverflowError as error:
        return reader.refuse(place, "timedelta", str(error))
    return text_or_refusal(reader, place, "timedelta", lambda: durations.duration_text(low, high))


def _bounds(schema: CoreSchema) -> dict[str, Any]:
    """The bounds of a schema. pydantic reads them as it reads values: a date's may be a text, and a duration's a number."""
    validator = SchemaValidator({"type": schema["type"]})
    given = {key: schema.get(key) for key in ("ge", "gt", "le", "lt")}
    return {key: validator.validate_python(value) for key, value in given.items() if value is not None}


def _interval(bounds: dict[str, Any], tick: timedelta) -> tuple[Any, Any]:
    """The closed interval of open and closed bounds; None is no bound."""
    lows = [bounds[key] for key in ("ge",) if key in bounds] + [bounds[key] + tick for key in ("gt",) if key in bounds]
    highs = [bounds[key] for key in ("le",) if key in bounds] + [bounds[key] - tick for key in ("lt",) if key in bounds]
    return max(lows, default=None), min(highs, default=None)


def _future(reader: Reader, place: Place) -> Fragment:
    return reader.refuse(
        place,
        "future",
        "what is in the future now may be past when the text is read; give its type a bound, such as gt, instead",
    )


def _now() -> datetime:
    return datetime.now(UTC)
