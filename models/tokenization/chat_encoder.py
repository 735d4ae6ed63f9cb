"""``ChatEncoder``: a conversation as token ids, in which only the chat template's own markers are special tokens.

``<|im_end|>`` in a message is text that its author wrote, not the end of the message. So special tokens are recognised
by their author:

1. A special token's name in a message is replaced by a private placeholder before rendering, so that the template can
   neither recognise nor change it.
2. All special tokens' names in the rendered text are now the template's. Each is replaced by a private marker, and the
   placeholders are replaced by the original names.
3. A tokenizer that knows the markers but not the special tokens encodes the whole text. The markers' ids are then
   replaced by the special tokens'.

Encoding the whole text at once keeps everything else unchanged: the splitting of text next to a special token, white
space that a special token absorbs, SentencePiece's leading space. So a conversation without special tokens' names has
the ids of HF's ``apply_chat_template``, and templates may trim or test contents freely. Added tokens that are not
special (``<think>``) are ordinary vocabulary, and are recognised in messages too, as in HF.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from draftline.models.tokenization.chat_template import ChatTemplate
from draftline.models.tokenization.rendering import AS_USUAL, Rendering

_NO_CHARACTER = "\U0010ffff"
"""A code point that Unicode will never assign, so that no vocabulary has it."""


class ChatEncoder:
    """Encodes conversations for one tokenizer. Thread-safe."""

    def __init__(self, backend: Backend, template: ChatTemplate) -> None:
        """``backend`` is not changed, and must not be changed later."""
        self._template = template
        added = dict(sorted(backend.get_added_tokens_decoder().items()))
        special = {token.content: index for index, token in added.items() if token.special}
        self._hidden = _secret()
        shown = _secret()
        self._stand_ins = {name: f"{self._hidden}{index:09}" for name, index in special.items()}
        self._markers = {name: f"{shown}{index:09}" for name, index in special.items()}
        self._names = {stand_in: name for name, stand_in in self._stand_ins.items()}
        self._special = _any_of(special)
        self._any_stand_in = _any_of(self._names)
        self._added = _any_of([token.content for token in added.values()])

        self._plain = Backend(backend.model)  # shares the vocabulary and the merges
        if backend.normalizer is not None:
            self._plain.normalizer = backend.normalizer
        if backend.pre_tokenizer is not None:
            self._plain.pre_tokenizer = backend.pre_tokenizer
        self._plain.add_tokens([_as_marker(token, self._markers) for token in added.values()])
        self._ids = {self._plain_id(self._markers.get(t.content, t.content)): i for i, t in added.items()}
        unknown = _unknown_ids(backend)
        vocabulary = backend.get_vocab_size(with_added_tokens=False)
        self._forbidden = {i: name for name, i in special.items() if i < vocabulary and i not in unknown}

    def encode(self, messages: Sequence[tuple[str, str]], rendering: Rendering = AS_USUAL) -> list[int]:
        """The ids of a conversation, up to where the assistant's next message begins unless ``rendering`` differs.

        Args:
            messages: the role and the content of each.
            rendering: the choices of this conversation.

        Raises:
            ValueError: the template refuses the messages or takes the name of a special token in one of them apart, or
                one of them is no Unicode text.
        """
        for role, content in messages:
            check_unicode(role)
            check_unicode(content)
        hidden = [(self._hide(role), self._hide(content)) for role, content in messages]
        choices = replace(
            rendering,
            variables={name: self._hide_in(value) for name, value in rendering.variables.items()},
            tools=tuple(self._hide_members(tool) for tool in rendering.tools),
            members={index: self._hide_members(members) for index, members in rendering.members.items()},
        )
        rendered = self._template.render(hidden, choices)
        marked = self._added.sub(lambda match: self._markers.get(match[0], match[0]), rendered)
        marked = self._any_stand_in.sub(lambda match: self._names[match[0]], marked)
        if self._hidden in marked:
            raise ValueError("the chat template takes the name of a special token in a message apart")
        ids = encode_ids(self._plain, marked, add_special_tokens=False)
        forged = self._forbidden.keys() & set(ids)
        if forged:
            raise ValueError(f"the text {self._forbidden[forged.pop()]!r} cannot be told from the special token")
        return [self._ids.get(index, index) for index in ids]

    def _hide(self, text: str) -> str:
        return self._special.sub(lambda match: self._stand_ins[match[0]], text)

    def _hide_in(self, value: object) -> object:
        """A template's variable, a JSON value, without special tokens' names in its texts."""
        if isinstance(value, str):
            check_unicode(value)
            return self._hide(value)
        if isinstance(value, list):
            return [self._hide_in(each) for each in value]
        return self._hide_members(value) if isinstance(value, dict) else value

    def _hide_members(self, members: Mapping[str, object]) -> dict[str, object]:
        for name in members:
            check_unicode(name)
        return {self._hide(name): self._hide_in(each) for name, each in members.items()}

    def _plain_id(self, token: str) -> int:
        index = self._plain.token_to_id(token)
        if index is None:
            raise ValueError(f"the added token {token!r} cannot be added")
        return index


def _unknown_ids(backend: Backend) -> set[int]:
    """What a text that the vocabulary lacks becomes. Unigram models do not name it, but show it."""
    named = backend.token_to_id(getattr(backend.model, "unk_token", None) or "")
    try:
        shown = {token.id for token in backend.model.tokenize(_NO_CHARACTER)}
    except Exception:  # noqa: BLE001 - the library raises no narrower class where the model has no unknown token
        shown = set()
    return shown if named is None else shown | {named}


def encode_ids(backend: Backend, text: str, *, add_special_tokens: bool = True) -> list[int]:
    """The ids of a text.

    Other threads go on meanwhile: of the library's calls, only those for batches release the GIL.
    """
    [encoding] = backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    ids: list[int] = encoding.ids
    return ids


def _secret() -> str:
    """A string that cannot be guessed: decimal digits, which templates do not trim, case or escape."""
    return f"{secrets.randbits(128):039}"


def check_unicode(text: str) -> None:
    """Raise ValueError where a text has surrogate code points, which have no bytes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"character {error.start} is a surrogate code point, which no Unicode text has") from None


def _as_marker(token: AddedToken, markers: dict[str, str]) -> AddedToken:
    """A special token under its marker's name, matched anywhere; other added tokens unchanged."""
    marker = markers.get(token.content)
    if marker is None:
        return token
    return AddedToken(marker, lstrip=token.lstrip, rstrip=token.rstrip, normalized=False, special=False)


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    """Matches any of the names, the longest of several at one position, as the tokenizers library does."""
    longest_first = sorted(names, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
