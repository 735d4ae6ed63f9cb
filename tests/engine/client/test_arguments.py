"""Arguments that no client can use are refused when it is made."""

from __future__ import annotations

from typing import Any

import pytest

from draftline import Client, InvalidRequestError

NO_HEADER = "has a character at index {} that no HTTP header can hold: not printable ASCII"


@pytest.mark.parametrize(
    ("token", "problem"),
    [
        ("secret\n", NO_HEADER.format(6)),
        ("\tsecret", NO_HEADER.format(0)),
        ("secrét", NO_HEADER.format(4)),
        ("secret\x7f", NO_HEADER.format(6)),
        (b"secret", "must be text or None, not bytes"),
        (3, "must be text or None, not an int"),
    ],
)
def test_a_token_that_no_header_can_hold_is_named_and_not_shown(token: Any, problem: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        Client(token=token)
    assert str(refused.value) == f"token: {problem}"


@pytest.mark.parametrize("retry", [3, 0, False])
def test_a_retry_policy_of_another_type_is_named(retry: Any) -> None:
    with pytest.raises(InvalidRequestError, match=r"retry: must be RetryPolicy\(...\) or None, not an? (int|bool)"):
        Client(retry=retry)


def test_a_token_of_printable_characters_is_accepted() -> None:
    Client(token="!a long ~ token!").close()
