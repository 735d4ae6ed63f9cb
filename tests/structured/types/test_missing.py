"""Fields that may be pydantic's MISSING: such a field is left out or has a value of its other types."""

from __future__ import annotations

from typing import Annotated, Any

import pydantic
import pytest
from pydantic import Field, create_model
from walk import Walker

from draftline.structured.errors import UnsupportedConstraintError
from draftline.structured.json_schema import json_schema_language
from draftline.structured.types.derive import typed_schema

if pydantic.VERSION < "2.12":
    pytest.skip("this pydantic has no MISSING", allow_module_level=True)
elif pydantic.VERSION < "2.14":
    from pydantic.experimental.missing_sentinel import MISSING
else:
    from pydantic import MISSING


@pytest.mark.parametrize(
    ("kind", "written", "not_written"),
    [
        (int | MISSING, "1", "null"),
        (str | None | MISSING, '"a" null', "1"),
        (Annotated[int, Field(gt=3)] | list[int] | MISSING, "4 [1]", "3"),
    ],
    ids=str,
)
def test_a_field_that_may_be_missing(kind: Any, written: str, not_written: str) -> None:
    for default, absent in ((MISSING, True), (..., False)):
        model = create_model("Model", value=(kind, default))
        typed = typed_schema(model)
        one = Walker.of_grammar(json_schema_language(typed.json_schema, whitespace="compact").grammar)
        for value in written.split():
            text = f'{{"value":{value}}}'
            assert one.accepts(text)
            model.model_validate_json(text, strict=True)
        assert one.accepts("{}") is absent
        assert not any(one.accepts(f'{{"value":{value}}}') for value in not_written.split())


def test_a_field_that_can_only_be_missing_is_named() -> None:
    with pytest.raises(
        UnsupportedConstraintError, match=r"Model\.value: missing-sentinel: JSON has no value for MISSING"
    ):
        typed_schema(create_model("Model", value=(MISSING, ...)))
