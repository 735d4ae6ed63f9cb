"""The tokenizer in a GGUF file, built from the file's own fields.

The fields: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, and llama.cpp's vocabulary for unspecified
details. Two kinds: ``gpt2`` is byte-level BPE with merges, ``llama`` is SentencePiece's BPE with scores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from draftline.models.gguf.fields import GGUFFields
from draftline.models.gguf.file import GGUFFile
from draftline.models.gguf.sentencepiece_merges import merges_of_scores
from draftline.models.tokenization.chat_template import by_tools
from draftline.models.tokenization.data import TokenizerData

_PREFIX = "tokenizer.ggml."
_TEMPLATE = "tokenizer.chat_template"
_ENDS = frozenset(
    ("</s>", "<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>")
)
"""Names of control tokens that end a sequence.

A conversion keeps one end of those in generation_config.json, and llama.cpp knows the others by these names, too.
"""

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6  # tokenizer.ggml.token_type


def _isolate(pattern: str) -> pre_tokenizers.PreTokenizer:
    """Make every match a piece, and every stretch between matches."""
    return pre_tokenizers.Split(Regex(pattern), "isolated")


_GPT2 = _isolate(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")


def _cl100k(digits: str) -> pre_tokenizers.PreTokenizer:
    """The pattern of OpenAI's cl100k_base and its descendants, with runs of that many digits."""
    return _isolate(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{"
        + digits
        + r"}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


_TEKKEN = _isolate(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The pattern of Mistral's tekken files, the same in each of them."""


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How one ``tokenizer.ggml.pre`` splits text before merging.

    Attributes:
        splits: each splits the pieces that the ones before it made.
        nfc: whether text is brought into Unicode's composed form first.
        ignore_merges: whether a piece that is a token is taken whole, however its merges go.
        add_bos: whether a beginning-of-sequence token comes first where the file does not say.
    """

    splits: tuple[pre_tokenizers.PreTokenizer, ...]
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False


_LLAMA3 = PreTokenizer((_cl100k("1,3"),), ignore_merges=True, add_bos=True)
_QWEN2 = PreTokenizer((_cl100k("1"),), nfc=True)

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "gpt-2": PreTokenizer((_GPT2,)),
    "smollm": PreTokenizer((pre_tokenizers.Digits(individual_digits=True), _GPT2)),
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, add_bos=True),
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "default": PreTokenizer(
        (_isolate(r"[\p{P}\$\+<=>\^~\|]+"), _GPT2, _isolate(r"\p{N}+"), _isolate("[0-9][0-9][0-9]"))
    ),
}
"""By ``tokenizer.ggml.pre``, llama.cpp's name for the pre-tokenizer of the original tokenizer.json."""


def read_gguf_tokenizer(file: GGUFFile) -> TokenizerData:
    """Read a GGUF file's tokenizer.

    Raises:
        ModelLoadError: it has none, a key is missing or malformed, or its kind is not supported.
    """
    fields = GGUFFields(file)
    kind = fields.text(f"{_PREFIX}model")
    build = _KINDS.get(kind)
    if build is None:
        raise fields.error(f"{_PREFIX}model", f"{kind!r} is not supported; {', '.join(_KINDS)} are")
    tokens, types = fields.strings(f"{_PREFIX}tokens"), fields.integers(f"{_PREFIX}token_type")
    if len(types) != len(tokens):
        raise fields.error(f"{_PREFIX}token_type", f"has {len(types)} entries for {len(tokens)} tokens")
    vocabulary = _Vocabulary(fields, tokens, types)
    built = build(vocabulary)
    built.backend.add_tokens(
        [
            AddedToken(token, normalized=False, special=kind != _USER_DEFINED)
            for token, kind in zip(tokens, types, strict=True)
            if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED)
        ]
    )
    _add_boundary_tokens(vocabulary, built)
    return TokenizerData(
        where=str(file.path),
        backend=built.backend,
        bos_id=vocabulary.token_id("bos_token_id"),
        eos_ids=vocabulary.ends(),
        unused_ids=frozenset(index for index, kind in enumerate(types) if kind == _UNUSED),
        chat_template=by_tools(_template(fields, _TEMPLATE), _template(fields, f"{_TEMPLATE}.tool_use")),
        template_variables=vocabulary.named_tokens(),
    )


def _template(fields: GGUFFields, key: str) -> str | None:
    return fields.text(key) if fields.has(key) else None


@dataclass(frozen=True, slots=True)
class _Vocabulary:
    fields: GGUFFields
    tokens: list[str]
    types: list[int]

    def ids(self) -> dict[str, int]:
        """Ids by token; of two tokens of one name, the first."""
        return {token: index for index, token in reversed(list(enumerate(self.tokens)))}

    def token_id(self, name: str) -> int | None:
        """The id that ``tokenizer.ggml.<name>`` gives, or None where the file has no such key."""
        key = f"{_PREFIX}{name}"
        index = self.fields.optional_integer(key)
        if index is not None and not 0 <= index < len(self.tokens):
            raise self.fields.error(key, f"{index} is not the id of one of the {len(self.tokens)} tokens")
        return index

    def ends(self) -> frozenset[int]:
        """The ids that end a sequence: those that keys give, and control tokens of names in ``_ENDS``."""
        given = (self.token_id(f"{name}_token_id") for name in ("eos", "eot", "eom"))
        tokens = enumerate(zip(self.tokens, self.types, strict=True))
        named = (index for index, (token, kind) in tokens if kind == _CONTROL and token in _ENDS)
        return frozenset(index for index in (*given, *named) if index is not None)

    def named_tokens(self) -> dict[str, str]:
        """The tokens that a chat template knows by name."""
        ids = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
        named = {f"{name}_token": self.token_id(f"{key}_token_id") for name, key in ids.items()}
        return {name: self.tokens[index] for name, index in named.items() if index is not None}


@dataclass(frozen=True, slots=True)
class _Built:
    backend: Backend
    add_bos: bool


def _byte_level_bpe(vocabulary: _Vocabulary) -> _Built:
    fields = vocabulary.fields
    if not fields.has(f"{_PREFIX}pre"):
        raise fields.error(
            f"{_PREFIX}pre",
            "missing, so how text is split is unknown; convert the model anew, or name another tokenizer",
        )
    name = fields.text(f"{_PREFIX}pre")
    pre = PRE_TOKENIZERS.get(name)
    if pre is None:
        raise fields.error(f"{_PREFIX}pre", f"{name!r} is not supported; {', '.join(PRE_TOKENIZERS)} are")
    merges: list[tuple[str, str]] = []
    for merge in fields.strings(f"{_PREFIX}merges"):
        left, _, right = merge.partition(" ")
        merges.append((left, right))
    try:
        backend = Backend(models.BPE(vocabulary.ids(), merges, ignore_merges=pre.ignore_merges))
    except Exception as error:  # the library raises no narrower class
        raise fields.error(f"{_PREFIX}merges", f"do not fit the tokens: {error}") from error
    if pre.nfc:
        backend.normalizer = normalizers.NFC()
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*pre.splits, to_bytes])
    backend.decoder = decoders.ByteLevel()
    return _Built(backend, pre.add_bos)


def _sentencepiece_bpe(vocabulary: _Vocabulary) -> _Built:
    fields = vocabulary.fields
    scores = fields.numbers(f"{_PREFIX}scores")
    if len(scores) != len(vocabulary.tokens):
        raise fields.error(f"{_PREFIX}scores", f"has {len(scores)} entries for {len(vocabulary.tokens)} tokens")
    # Control tokens are not pieces: text that spells one must not be merged into it.
    pieces = {
        token: score
        for token, score, kind in zip(vocabulary.tokens, scores, vocabulary.types, strict=True)
        if kind == _NORMAL
    }
    unknown = vocabulary.token_id("unknown_token_id")
    ids = vocabulary.ids()
    backend = Backend(
        models.BPE(
            ids,
            merges_of_scores(pieces, ids),
            unk_token=None if unknown is None else vocabulary.tokens[unknown],
            fuse_unk=True,
            byte_fallback=_BYTE in vocabulary.types,
        )
    )
    adds_space = fields.flag(f"{_PREFIX}add_space_prefix", True)
    spaces = normalizers.Replace(" ", "▁")
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if adds_space else spaces
    strip = [decoders.Strip(" ", 1, 0)] if adds_space else []
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip])
    return _Built(backend, True)


def _add_boundary_tokens(vocabulary: _Vocabulary, built: _Built) -> None:
    """Make encoding add the beginning and end of sequence to a text, if the file says so."""
    template: list[str] = ["$A"]
    special: list[tuple[str, int]] = []
    for name, default in (("bos", built.add_bos), ("eos", False)):
        key = f"{_PREFIX}add_{name}_token"
        if not vocabulary.fields.flag(key, default):
            continue
        index = vocabulary.token_id(f"{name}_token_id")
        if index is None:
            raise vocabulary.fields.error(f"{_PREFIX}{name}_token_id", f"missing, but every text needs one ({key})")
        token = vocabulary.tokens[index]
        template = [token, *template] if name == "bos" else [*template, token]
        special.append((token, index))
    if special:
        built.backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)


_KINDS: dict[str, Callable[[_Vocabulary], _Built]] = {"gpt2": _byte_level_bpe, "llama": _sentencepiece_bpe}
"""By ``tokenizer.ggml.model``."""
