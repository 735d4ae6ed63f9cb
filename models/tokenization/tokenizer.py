"""``Tokenizer``: text and conversations to token ids, and ids to the exact bytes they stand for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer as Backend

from draftline.models.checkpoints.resolve import TOKENIZER_FILES, SourceKind, resolve_model
from draftline.models.config import ModelConfig
from draftline.models.errors import ModelLoadError
from draftline.models.gguf.file import open_gguf
from draftline.models.gguf.tokenizer import read_gguf_tokenizer
from draftline.models.tokenization.chat_encoder import ChatEncoder, check_unicode, encode_ids
from draftline.models.tokenization.chat_template import ChatTemplate
from draftline.models.tokenization.data import TokenizerData
from draftline.models.tokenization.hf_tokenizer import read_hf_tokenizer
from draftline.models.tokenization.rendering import AS_USUAL, Rendering
from draftline.models.tokenization.token_bytes import token_bytes

_LEAD = "\x02"

_MAX_COMPOSITION = 3
"""The bytes of a decomposed text for each byte of its composition: three Hangul jamo make one syllable."""


class Tokenizer:
    """A model's tokenizer. Thread-safe: nothing in it changes after construction.

    Attributes:
        vocab_size: ids run from 0 to below this. A model's embedding may have more rows, which stand for no text.
        bos_id: the beginning-of-sequence id, or None.
        eos_ids: the ids that end a sequence, from all places where the model's files name one.
        special_ids: control tokens: they stand for no text.
        special_names: their ids by name.
        chat_template: the Jinja source of the chat template, or None.
        shows_tools: whether the chat template shows tools.
    """

    def __init__(self, data: TokenizerData) -> None:
        """Build from a model's tokenizer data.

        Raises:
            ModelLoadError: the vocabulary's convention is not supported, or the chat template is not valid.
        """
        self._backend = data.backend
        self._data = data
        try:
            decoded = token_bytes(data.backend)
            template = None if data.chat_template is None else ChatTemplate(data.chat_template, data.template_variables)
            self._chat = None if template is None else ChatEncoder(data.backend, template)
        except ValueError as error:
            raise ModelLoadError(f"{data.where}: the tokenizer: {error}") from error
        added = data.backend.get_added_tokens_decoder()
        self.vocab_size = len(decoded.table)
        self.bos_id = data.bos_id
        self.eos_ids = data.eos_ids
        self.special_ids = frozenset(index for index, token in added.items() if token.special)
        self.special_names = {token.content: index for index, token in sorted(added.items()) if token.special}
        self.chat_template = data.chat_template
        self.shows_tools = template is not None and template.shows_tools
        silent = self.special_ids | data.unused_ids
        self._bytes = tuple(b"" if index in silent else data for index, data in enumerate(decoded.table))
        self._bytes_and_names = decoded.table
        self._strips_space = decoded.strips_space
        self._added_before, self._added_behind = _added_around(data.backend)

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[TokenizerData]]:
        """For pickle: a compiled chat template cannot move to another process, but its source can."""
        return type(self), (self._data,)

    def has_the_tokens_of(self, other: Tokenizer) -> bool:
        """Whether both have the same tokens, each with the same id."""
        return self._bytes_and_names == other._bytes_and_names

    def all_eos_ids(self, config: ModelConfig) -> tuple[int, ...]:
        """The ids that end a sequence, by these files or by the model's configuration, in order.

        Those that the model does not have are left out, as special tokens are.
        """
        named = {*config.eos_token_ids, *self.eos_ids}
        return tuple(sorted(index for index in named if index < config.vocab_size))

    @staticmethod
    def from_folder(folder: Path) -> Tokenizer:
        """The tokenizer of an HF folder.

        Raises:
            ModelLoadError: its files are missing, damaged or not supported.
        """
        return Tokenizer(read_hf_tokenizer(folder))

    @property
    def has_chat_template(self) -> bool:
        """Whether the model has a chat template."""
        return self._chat is not None

    def files(self) -> dict[str, str]:
        """Files, by name, from which HF's tokenizers are loaded, for clients that must tokenize as this one does."""
        return self._data.files()

    def encode(self, text: str) -> list[int]:
        """The ids of a text, as the model's own tokenizer gives them.

        Names of special tokens in the text become those tokens, and a beginning-of-sequence token comes first where the
        model's tokenizer puts one.

        Raises:
            ValueError: the text has surrogate code points, which no Unicode text has.
        """
        check_unicode(text)
        return encode_ids(self._backend, text)

    def within(self, ids: Sequence[int]) -> Sequence[int]:
        """The ids of a text that `encode` gave, without the special tokens that it puts before and behind each text."""
        return ids[self._added_before : len(ids) - self._added_behind]

    def encode_text(self, text: str) -> list[int]:
        """The ids of a text in the midst of another: no space or token is added before it.

        Raises:
            ValueError: the text has surrogate code points, which no Unicode text has.
        """
        check_unicode(text)
        if not self._strips_space:
            return encode_ids(self._backend, text, add_special_tokens=False)
        # A space would be added before it, unless the text has another start: a character that is a token by itself.
        ids = encode_ids(self._backend, _LEAD + text, add_special_tokens=False)
        before = b""
        for index, token_id in enumerate(ids):
            before += self._bytes_and_names[token_id]
            if before.lstrip(b" ") == _LEAD.encode():
                return ids[index + 1 :]
        return ids

    def encode_chat(self, messages: Sequence[tuple[str, str]], rendering: Rendering = AS_USUAL) -> list[int]:
        """The ids of a conversation in the model's chat template, up to where the assistant's next message begins.

        It may end elsewhere, as ``rendering`` says.

        Names of special tokens in the messages stay text: see `ChatEncoder`.

        Args:
            messages: the role and the content of each.
            rendering: the choices of this conversation.

        Raises:
            ValueError: there is no chat template, it refuses these messages, or one of them is no Unicode text.
        """
        if self._chat is None:
            raise ValueError("the model has no chat template")
        return self._chat.encode(messages, rendering)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of some ids; bytes that are not UTF-8 become U+FFFD.

        Args:
            ids: the tokens.
            skip_special: leave special tokens out instead of writing their names.
        """
        table = self._bytes if skip_special else self._bytes_and_names
        size = len(table)
        text = b"".join(table[index] for index in ids if 0 <= index < size).decode(errors="replace")
        return text[1:] if self._strips_space and text.startswith(" ") else text

    @property
    def max_token_bytes(self) -> int:
        """The most bytes of UTF-8 that one token stands for in a text before its normalization.

        Normalization shortens a text at most to a third, by composing characters
        (https://unicode.org/faq/normalization.html#12).
        """
        longest = max(map(len, self._bytes_and_names), default=1)
        return longest if self._backend.normalizer is None else _MAX_COMPOSITION * longest

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; none for special tokens and for ids that have no token."""
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""


def load_tokenizer(model: str, config: ModelConfig, chat_template: Path | None = None) -> Tokenizer:
    """The tokenizer of a model, by any of the model's names (see `resolve_model`).

    Special tokens that the model does not have are left out.

    Args:
        model: the model, or another that has the same tokenizer.
        config: the configuration of the model that the ids are for.
        chat_template: a file with a Jinja template in place of the model's; None for the model's.

    Raises:
        ModelLoadError: there is no such model or tokenizer, or its ids are not all the model's; or the file of
            the template cannot be read.
    """
    source = resolve_model(model, TOKENIZER_FILES)
    data = _READERS[source.kind](source.path).within(config.vocab_size)
    if chat_template is not None:
        data = replace(data, chat_template=_template_text(chat_template), where=f"{data.where} with {chat_template}")
    tokenizer = Tokenizer(data)
    if tokenizer.vocab_size > config.vocab_size:
        raise ModelLoadError(
            f"{source.path}: the tokenizer has {tokenizer.vocab_size} tokens, but the model only {config.vocab_size}"
        )
    return tokenizer


def _template_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot read the chat template: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ModelLoadError(f"{path}: the chat template is not UTF-8 text") from error


_READERS: dict[SourceKind, Callable[[Path], TokenizerData]] = {
    SourceKind.FOLDER: read_hf_tokenizer,
    SourceKind.GGUF: lambda path: read_gguf_tokenizer(open_gguf(path)),
}


def _added_around(backend: Backend) -> tuple[int, int]:
    """The numbers of special tokens that a tokenizer puts before and behind each text."""
    for index in range(backend.get_vocab_size()):
        mask = backend.encode(backend.id_to_token(index) or "").special_tokens_mask
        if 0 in mask:  # the token's own text is between them
            return mask.index(0), mask[::-1].index(0)
    return 0, 0
