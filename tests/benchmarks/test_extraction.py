"""The measurement of extraction.py: its texts hold their values, and its score counts what is right."""

from __future__ import annotations

import json
from datetime import date

import pytest
from byte_tokenizer import write_byte_model
from extraction import Event, Order, Person, cases, leaves, measure, right_share, unbounded
from four_faces import OPTIONS

from draftline import LLM, SamplingParams


def test_the_texts_hold_their_values() -> None:
    made = cases(30)
    assert made == cases(30)
    assert {type(case.value) for case in made} == {Person, Event, Order}
    for case in made:
        texts = [value for _, value in leaves(case.value.model_dump()) if isinstance(value, str)]
        assert all(text in case.text.casefold() for text in texts)


def test_the_share_of_right_fields_counts_missing_and_invented_ones() -> None:
    right = Person(name="Ada", profession="nurse", city="Oslo", languages=["Polish", "Hindi"])
    assert right_share(right, right) == 1
    assert right_share(right.model_copy(update={"name": "ADA "}), right) == 1
    assert right_share(right.model_copy(update={"name": "Eva"}), right) == 4 / 5
    assert right_share(right.model_copy(update={"languages": ["Polish"]}), right) == 4 / 5
    assert right_share(right.model_copy(update={"languages": ["Polish", "Hindi", "x"]}), right) == 5 / 6
    event = Event(title="fair", city="Oslo", day=date(2020, 1, 2), visitors=3)
    assert right_share(event.model_copy(update={"day": date(2020, 1, 3)}), event) == 3 / 4


def test_a_type_loses_its_bounds() -> None:
    schema = json.dumps(unbounded(Order).model_json_schema())
    assert "maxLength" in json.dumps(Order.model_json_schema())
    assert not [word for word in ("maxLength", "maxItems", "maximum") if word in schema]
    assert list(unbounded(Order).model_fields) == ["customer", "items", "paid"]


def test_a_random_model_completes_and_is_wrong(tmp_path_factory: pytest.TempPathFactory) -> None:
    with LLM(write_byte_model(tmp_path_factory.mktemp("model")), **OPTIONS) as llm:
        cut = measure(llm, cases(3), "compact", SamplingParams(max_tokens=5))
    assert (cut.tokens, cut.complete, cut.right_fields) == (5, 0, 0)
    assert 0 < cut.steps <= 5
