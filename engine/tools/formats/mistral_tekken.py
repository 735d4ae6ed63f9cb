"""Mistral, tokenizer v3 (Tekken): as ``mistral``, without the space behind the control token."""

from dataclasses import replace

from draftline.engine.tools.formats import mistral

FORMAT = replace(mistral.FORMAT, name="mistral_tekken", recognised_by=("[TOOL_CALLS][",), open="[TOOL_CALLS][")
