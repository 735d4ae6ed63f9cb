"""The names of plug-ins agree wherever they stand: in registries, options, the protocol, HTTP's fields and docs/.

`drafting/test_embedded_draft.py` compares those of drafters, and `tools/test_answer_reader.py` those of tool formats.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import get_args

import pytest

from draftline.engine.config import Conversion, DrafterName
from draftline.engine.params import CONSTRAINT_KINDS, Constraint
from draftline.engine.scheduling.ordering import ORDERS
from draftline.engine.server.http.body import StructuredOutputs
from draftline.engine.tools.formats import FORMATS
from draftline.quant import CONVERT
from draftline.structured.constraint import _LANGUAGES, ConstraintKind
from draftline.v1 import engine_pb2 as pb

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_conversions_of_weights() -> None:
    assert get_args(Conversion) == ("auto", *CONVERT)


def test_kinds_of_constraints() -> None:
    assert set(get_args(ConstraintKind)) == _LANGUAGES.keys() == {*CONSTRAINT_KINDS, "any"}
    assert set(CONSTRAINT_KINDS) == {field.name for field in pb.Constraint.DESCRIPTOR.oneofs_by_name["kind"].fields}
    over_http = {"json_schema" if name == "json_" else name for name in StructuredOutputs.model_fields}
    assert over_http == Constraint.model_fields.keys() - {"reasoning"}


@pytest.mark.parametrize(
    ("page", "names"),
    [("tools.md", FORMATS), ("speculation.md", get_args(DrafterName)), ("deploy.md", ORDERS)],
    ids=["tool-formats", "drafters", "queue-orders"],
)
def test_a_page_explains_every_name(page: str, names: Iterable[str]) -> None:
    text = (DOCS / page).read_text()
    assert [name for name in names if f"`{name}`" not in text] == []
