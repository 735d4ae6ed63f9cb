"""The names of plug-ins agree wherever they stand: in registries, options, the protocol and HTTP's fields.

`drafting/test_embedded_draft.py` compares those of drafters, and `tools/test_answer_reader.py` those of tool formats.
"""

from __future__ import annotations

from typing import get_args

from draftline.engine.config import Conversion
from draftline.engine.params import CONSTRAINT_KINDS, Constraint
from draftline.engine.server.http.body import StructuredOutputs
from draftline.quant import CONVERT
from draftline.structured.constraint import _LANGUAGES, ConstraintKind
from draftline.v1 import engine_pb2 as pb


def test_conversions_of_weights() -> None:
    assert get_args(Conversion) == ("auto", *CONVERT)


def test_kinds_of_constraints() -> None:
    assert set(get_args(ConstraintKind)) == _LANGUAGES.keys() == {*CONSTRAINT_KINDS, "any"}
    assert set(CONSTRAINT_KINDS) == {field.name for field in pb.Constraint.DESCRIPTOR.oneofs_by_name["kind"].fields}
    over_http = {"json_schema" if name == "json_" else name for name in StructuredOutputs.model_fields}
    assert over_http == Constraint.model_fields.keys() - {"reasoning"}
