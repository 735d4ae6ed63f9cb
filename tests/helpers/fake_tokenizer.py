"""The fake engine's tokenizer, apart from it: worker processes of tests load this alone."""

from __future__ import annotations

from collections.abc import Sequence

from draftline.models.tokenization.rendering import AS_USUAL, Rendering

EOS = 0


class ByteTokenizer:
    """Tokens are bytes; a chat is its messages as ``role: content`` lines."""

    eos_ids = (EOS,)
    has_chat_template = True

    def encode(self, text: str) -> list[int]:
        """The text's bytes."""
        return list(text.encode())

    encode_text = encode

    def within(self, ids: Sequence[int]) -> Sequence[int]:
        """The same: no tokens are added to a text."""
        return ids

    def encode_chat(self, messages: Sequence[tuple[str, str]], rendering: Rendering = AS_USUAL) -> list[int]:
        """The conversation's bytes. A final message that is continued is the last of its line."""
        if any(role not in ("system", "user", "assistant") for role, _ in messages):
            raise ValueError("the chat template takes the roles system, user and assistant")
        text = "".join(f"{role}: {content}\n" for role, content in messages)
        if rendering.variables:
            text = f"{dict(rendering.variables)}\n{text}"
        if rendering.continue_final_message:
            return self.encode(text[:-1])
        return self.encode(text + "assistant:" if rendering.add_generation_prompt else text)

    def decode(self, token_ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of bytes."""
        return bytes(token_ids).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """One byte."""
        return bytes([token_id])
