"""Tokenization of prompts, with errors that name the request's field. Lengths are checked elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from draftline.engine.chat.messages import Chat
from draftline.engine.errors import FieldViolation, InvalidRequestError
from draftline.engine.protocol import EngineInfo
from draftline.engine.tools.prompt import rendered_chat
from draftline.models.tokenization.rendering import RoleError, VariableError

if TYPE_CHECKING:
    from draftline.models.tokenization.tokenizer import Tokenizer


_LAST_TOKENS = 64
"""The last tokens of a prompt, whose text has the whole mark that begins reasoning."""


def last_tokens(ids: Sequence[int], keep: int | None, info: EngineInfo) -> Sequence[int]:
    """The last ``keep`` of a prompt's tokens; with -1 as many as fit the context, with None all."""
    if keep is None:
        return ids
    return ids[-(info.max_model_len - 1 if keep < 0 else keep) :]


def tokenize(prompt: str | Chat, tokenizer: Tokenizer, info: EngineInfo) -> list[int]:
    """Return the token ids of a text, or of a chat through the model's template.

    Args:
        prompt: the text or the chat.
        tokenizer: the model's tokenizer.
        info: the engine's description, for error messages.

    Raises:
        InvalidRequestError: the prompt cannot be tokenized. The violation's field is ``text``, ``chat``,
            ``chat.chat_template_kwargs``, ``chat.messages`` or one of a message's.
    """
    if isinstance(prompt, str):
        field = "text"
    elif not prompt.messages:
        raise InvalidRequestError(FieldViolation("chat.messages", "is empty"))
    elif not tokenizer.has_chat_template:
        raise InvalidRequestError(FieldViolation("chat", f"the model {info.model} has no chat template; send text"))
    elif prompt.rendering.continue_final_message and prompt.messages[-1][0] != "assistant":
        problem = "must end with a message of the assistant to be continued"
        raise InvalidRequestError(FieldViolation("chat.messages", problem))
    else:
        field = "chat.messages"
    try:
        if isinstance(prompt, str):
            return tokenizer.encode(prompt)
        return tokenizer.encode_chat(*rendered_chat(prompt, info))
    except InvalidRequestError:  # a ValueError, too
        raise
    except RoleError as error:
        raise InvalidRequestError(FieldViolation(f"chat.messages[{error.index}].role", str(error))) from error
    except VariableError as error:
        raise InvalidRequestError(FieldViolation("chat.chat_template_kwargs", str(error))) from error
    except ValueError as error:
        raise InvalidRequestError(FieldViolation(field, str(error))) from error


def prompt_end(token_ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """The end of a prompt's text, with the names of special tokens: more than a mark of reasoning."""
    return tokenizer.decode(list(token_ids[-_LAST_TOKENS:]), skip_special=False)
