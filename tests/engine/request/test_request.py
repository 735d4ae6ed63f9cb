"""Invalid prompts: each error names its field."""

from __future__ import annotations

import pytest
from fake_engine import FakeEngine

from draftline.engine.errors import InvalidRequestError
from draftline.engine.protocol import Chat, GenerateRequest, Prompt
from draftline.engine.request.request import RequestBuilder

LONE_SURROGATE = "a\ud800"


@pytest.mark.parametrize(
    ("prompt", "field", "problem"),
    [
        ("", "text", "is empty"),
        ([], "token_ids", "is empty"),
        ([1, 256], "token_ids.ids[1]", "256 is not a token id"),
        (LONE_SURROGATE, "text", "surrogate"),
        (Chat(()), "chat.messages", "is empty"),
        (Chat((("robot", "x"),)), "chat.messages", "roles system, user and assistant"),
    ],
    ids=["empty text", "no ids", "id out of range", "text", "empty chat", "role"],
)
def test_an_invalid_prompt_names_its_field(prompt: Prompt, field: str, problem: str, engine: FakeEngine) -> None:
    builder = RequestBuilder(engine.info, engine.tokenizer, 5.0)
    with pytest.raises(InvalidRequestError) as caught:
        builder.build("a", GenerateRequest(prompt), lambda updates: None, 0.0)
    (violation,) = caught.value.violations
    assert violation.field == field
    assert problem in violation.description
