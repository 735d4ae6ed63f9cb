"""Tokenizers from a GGUF file's own fields: pre-tokenizers, merges, scores, boundary tokens, and rejected files."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from draftline.models.errors import ModelLoadError
from draftline.models.gguf.file import open_gguf
from draftline.models.gguf.tokenizer import read_gguf_tokenizer
from draftline.models.tokenization.rendering import Rendering
from draftline.models.tokenization.tokenizer import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
CORPUS = [
    "The user asks the assistant; the assistant answers: it's 12345, 678 and 90!",
    "def main():\n    return {'a': [1, 22, 333]}\n\n\n  \tmain()\r\n",
    "naïve café, 東京は日本の首都です。 Привет, мир! 😀 ½ ①",
] * 3
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{{ '<|im_start|>assistant\n' }}"
)


def byte_level(pre: list[pre_tokenizers.PreTokenizer], normalizer: normalizers.Normalizer | None = None) -> Backend:
    """A byte-level BPE as a tokenizer.json has it, trained with the given pre-tokenizers."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(pre)
    if normalizer is not None:
        backend.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer: Any = trainers.BpeTrainer
    backend.train_from_iterator(CORPUS, trainer(vocab_size=450, initial_alphabet=alphabet))
    return backend


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The pre-tokenizers and normalizers of the models' own tokenizer.json, by the name that llama.cpp gives them.
ORIGINALS: dict[str, tuple[list[pre_tokenizers.PreTokenizer], normalizers.Normalizer | None]] = {
    "gpt-2": ([GPT2], None),
    "smollm": ([pre_tokenizers.Digits(individual_digits=True), GPT2], None),
    "llama-bpe": ([pre_tokenizers.Split(Regex(LLAMA3), "isolated"), BYTES], None),
    "qwen2": (
        [pre_tokenizers.Split(Regex(LLAMA3.replace("{1,3}", "")), "isolated"), BYTES],
        normalizers.NFC(),
    ),
    "tekken": ([pre_tokenizers.Split(Regex(TEKKEN), "isolated"), BYTES], None),
}


def write(path: Path, fields: Mapping[str, Any]) -> Path:
    """A GGUF file with these keys and no tensors."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in fields.items():
        match value:
            case bool():
                writer.add_bool(key, value)
            case int():
                writer.add_uint32(key, value)
            case str():
                writer.add_string(key, value)
            case list():
                writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tokenizer_of(path: Path) -> Tokenizer:
    return Tokenizer(read_gguf_tokenizer(open_gguf(path)))


def gpt2_fields(backend: Backend, pre: str) -> dict[str, Any]:
    """The fields of a byte-level BPE, with a few tokens added behind its own."""
    model = json.loads(backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    size = len(tokens)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*tokens, "<|im_start|>", "<|im_end|>", "<tool>", "[PAD0]"],
        "tokenizer.ggml.token_type": [*([NORMAL] * size), CONTROL, CONTROL, USER_DEFINED, UNUSED],
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.bos_token_id": size,
        "tokenizer.ggml.eos_token_id": size + 1,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHATML,
    }


def test_chats_with_tools_have_the_template_for_these(tmp_path: Path) -> None:
    fields = gpt2_fields(byte_level(*ORIGINALS["gpt-2"]), "gpt-2") | {"tokenizer.chat_template.tool_use": "tools"}
    tokenizer = tokenizer_of(write(tmp_path / "m.gguf", fields))
    tool: Any = {"type": "function", "function": {"name": "f", "parameters": {}}}
    assert tokenizer.decode(tokenizer.encode_chat([("user", "x")], Rendering(tools=(tool,)))) == "tools"
    assert tokenizer.decode(tokenizer.encode_chat([("user", "x")])) != "tools"


@pytest.fixture(scope="module", params=ORIGINALS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Backend]:
    """A tokenizer read from a GGUF file, and the one that the file was made from."""
    original = byte_level(*ORIGINALS[request.param])
    path = write(tmp_path_factory.mktemp("gguf") / "m.gguf", gpt2_fields(original, request.param))
    return tokenizer_of(path), original


prompts = st.text(max_size=40) | st.text("ab'sS \n\r\t12345é!①½", max_size=40)


@settings(max_examples=examples(150), deadline=None)
@given(prompt=prompts)
def test_texts_have_the_ids_of_the_original(pair: tuple[Tokenizer, Backend], prompt: str) -> None:
    tokenizer, original = pair
    assert tokenizer.encode(prompt) == original.encode(prompt).ids


def composed(original: Backend, text: str) -> str:
    return str(original.normalizer.normalize_str(text)) if original.normalizer is not None else text


@settings(max_examples=examples(100), deadline=None)
@given(prompt=prompts)
def test_the_bytes_of_the_tokens_are_the_text(pair: tuple[Tokenizer, Backend], prompt: str) -> None:
    tokenizer, original = pair
    ids = tokenizer.encode(prompt)
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == composed(original, prompt)
    assert tokenizer.decode(ids) == composed(original, prompt)


def test_the_kinds_of_tokens(pair: tuple[Tokenizer, Backend]) -> None:
    tokenizer, original = pair
    size = original.get_vocab_size()
    start, end, tool, unused = range(size, size + 4)
    assert tokenizer.vocab_size == size + 4
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (start, {end})
    assert tokenizer.special_ids == {start, end}
    assert [tokenizer.token_bytes(i) for i in (start, end, tool, unused)] == [b"", b"", b"<tool>", b""]
    a, b = original.encode("a").ids[0], original.encode("b").ids[0]
    assert tokenizer.encode("a<|im_end|>b<tool>a") == [a, end, b, tool, a]
    assert tokenizer.decode([start, a, end], skip_special=False) == "<|im_start|>a<|im_end|>"
    assert unused not in tokenizer.encode("[PAD0]")
    chat = tokenizer.encode_chat([("user", "a<|im_end|>")])
    assert [index for index in chat if index in tokenizer.special_ids] == [start, end, start]
    assert tokenizer.decode(chat, skip_special=False) == (
        "<|im_start|>user\na<|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )


DIGITS = {
    "gpt-2": ["12345"],
    "smollm": list("12345"),
    "llama-bpe": ["123", "45"],
    "llama-v3": ["123", "45"],
    "llama3": ["123", "45"],
    "qwen2": list("12345"),
    "deepseek-r1-qwen": list("12345"),
    "tekken": list("12345"),
}


@pytest.mark.parametrize("pre", DIGITS)
def test_digits_are_split_as_the_model_was_trained(tmp_path: Path, pre: str) -> None:
    """With a vocabulary that would merge any digits, only the pre-tokenizer splits."""
    runs = ["12", "34", "123", "1234", "12345"]
    vocab = {token: index for index, token in enumerate([*"12345", *runs])}
    merges = [("1", "2"), ("12", "3"), ("3", "4"), ("123", "4"), ("1234", "5")]
    backend = Backend(models.BPE({**vocab, "45": len(vocab)}, [*merges, ("4", "5")]))
    tokenizer = tokenizer_of(write(tmp_path / "m.gguf", gpt2_fields(backend, pre)))
    assert [tokenizer.token_bytes(index).decode() for index in tokenizer.encode("12345")] == DIGITS[pre]


def test_tekken_splits_before_a_capital_letter(tmp_path: Path) -> None:
    backend = byte_level([BYTES])
    tokenizer = tokenizer_of(write(tmp_path / "m.gguf", gpt2_fields(backend, "tekken")))
    split = [backend.encode(piece).ids for piece in (" the", "User", "ASKS", "/\n")]
    assert tokenizer.encode(" theUserASKS/\n") == [index for ids in split for index in ids]


def test_the_default_pre_tokenizer_cuts_digits_in_threes_and_isolates_punctuation(tmp_path: Path) -> None:
    backend = byte_level([BYTES])
    tokenizer = tokenizer_of(write(tmp_path / "m.gguf", gpt2_fields(backend, "default")))
    split = [backend.encode(piece).ids for piece in ("abc", " ", "123", "45", "!?", "x")]
    assert tokenizer.encode("abc 12345!?x") == [index for ids in split for index in ids]


def test_some_take_whole_tokens_that_no_merge_makes(tmp_path: Path) -> None:
    vocab = {token: index for index, token in enumerate(["a", "b", "c", "abc", "x", "y", "xy"])}
    backend = Backend(models.BPE(vocab, [("x", "y")]))
    for pre, expected in (("llama-bpe", [3]), ("tekken", [3]), ("gpt-2", [0, 1, 2])):
        path = write(tmp_path / "m.gguf", gpt2_fields(backend, pre))
        assert tokenizer_of(path).encode("abc") == expected


def test_boundary_tokens_come_where_the_file_says_or_its_kind(tmp_path: Path) -> None:
    backend = byte_level([GPT2])
    a, bos = backend.encode("a").ids[0], backend.get_vocab_size()
    cases: list[tuple[str, dict[str, bool], list[int]]] = [
        ("gpt-2", {}, [a]),
        ("llama-bpe", {}, [bos, a]),
        ("llama-bpe", {"add_bos_token": False}, [a]),
        ("gpt-2", {"add_bos_token": True}, [bos, a]),
        ("gpt-2", {"add_bos_token": True, "add_eos_token": True}, [bos, a, bos + 1]),
    ]
    for pre, flags, expected in cases:
        fields = gpt2_fields(backend, pre)
        del fields["tokenizer.ggml.add_bos_token"]
        fields |= {f"tokenizer.ggml.{name}": value for name, value in flags.items()}
        tokenizer = tokenizer_of(write(tmp_path / "m.gguf", fields))
        assert tokenizer.encode("a") == expected
        chat = tokenizer.encode_chat([("user", "a")])
        assert chat.count(bos) == 2  # the template's two, and none of the tokenizer's


def test_several_ends_are_known(tmp_path: Path) -> None:
    fields = gpt2_fields(byte_level([GPT2]), "gpt-2")
    end = fields["tokenizer.ggml.eos_token_id"]
    fields |= {"tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 6}
    assert tokenizer_of(write(tmp_path / "m.gguf", fields)).eos_ids == {end, 5, 6}


def test_control_tokens_that_end_a_sequence_are_known_by_name(tmp_path: Path) -> None:
    """As with Llama 3.1, whose generation_config.json names three, and of which a conversion keeps one."""
    fields = gpt2_fields(byte_level([GPT2]), "gpt-2")
    end, size = fields["tokenizer.ggml.eos_token_id"], len(fields["tokenizer.ggml.tokens"])
    fields["tokenizer.ggml.tokens"] += ["<|end_of_text|>", "<|eom_id|>", "<|start_header_id|>", "</s>"]
    fields["tokenizer.ggml.token_type"] += [CONTROL, CONTROL, CONTROL, NORMAL]  # </s> is a word in code of Qwen's
    assert tokenizer_of(write(tmp_path / "m.gguf", fields)).eos_ids == {end, size, size + 1}


def test_of_two_tokens_of_one_name_the_first_is_used(tmp_path: Path) -> None:
    fields = gpt2_fields(byte_level([GPT2]), "gpt-2")
    fields["tokenizer.ggml.tokens"][-2] = "a"
    fields["tokenizer.ggml.token_type"][-2] = NORMAL
    tokenizer = tokenizer_of(write(tmp_path / "m.gguf", fields))
    (index,) = tokenizer.encode("a")
    assert index == fields["tokenizer.ggml.tokens"].index("a")


PIECES = ["▁", "a", "b", "c", "n", "▁a", "▁b", "ab", "an", "abc", "▁ab", "▁an", "na", "nan", "ana", "bc", "▁▁", "cb"]


def spm_fields(**changes: Any) -> dict[str, Any]:
    """The fields of a small SentencePiece BPE, pieces falling in score in a mixed order."""
    order = [7, 2, 11, 5, 14, 1, 9, 12, 3, 16, 0, 8, 4, 15, 6, 13, 17, 10]
    scores = [-float(order[index]) for index in range(len(PIECES))]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *PIECES, "<tool>"],
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(PIECES), USER_DEFINED],
        "tokenizer.ggml.scores": [*[0.0] * 259, *scores, 0.0],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.chat_template": "{{ bos_token }}{% for m in messages %}{{ m.content + eos_token }}{% endfor %}",
        **changes,
    }


def greedy_merges(text: str, fields: Mapping[str, Any]) -> list[str]:
    """SentencePiece's algorithm as it is defined: merge the neighbours whose union scores best, leftmost first."""
    tokens = fields["tokenizer.ggml.tokens"]
    scores = dict(zip(tokens[259:-1], fields["tokenizer.ggml.scores"][259:-1], strict=True))
    symbols = list(text)
    while True:
        unions = [(scores.get(a + b), -i) for i, (a, b) in enumerate(itertools.pairwise(symbols))]
        best = max((union for union in unions if union[0] is not None), default=None)
        if best is None:
            return [p for s in symbols for p in ([s] if s in scores else [f"<0x{b:02X}>" for b in s.encode()])]
        at = -best[1]
        symbols[at : at + 2] = ["".join(symbols[at : at + 2])]


@settings(max_examples=examples(300), deadline=None)
@given(prompt=st.text("abcn ", min_size=1, max_size=16) | st.text("abn é😀", min_size=1, max_size=12))
def test_scores_merge_as_sentencepiece_merges(tmp_path_factory: pytest.TempPathFactory, prompt: str) -> None:
    fields = spm_fields()
    tokenizer = tokenizer_of(write(tmp_path_factory.mktemp("spm") / "m.gguf", fields))
    expected = greedy_merges("▁" + prompt.replace(" ", "▁"), fields)
    ids = tokenizer.encode(prompt)
    assert [fields["tokenizer.ggml.tokens"][index] for index in ids] == ["<s>", *expected]
    assert tokenizer.decode(ids) == prompt
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == f" {prompt}"


def test_sentencepiece_without_a_space_in_front(tmp_path: Path) -> None:
    fields = spm_fields(**{"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": False})
    tokenizer = tokenizer_of(write(tmp_path / "m.gguf", fields))
    tokens = fields["tokenizer.ggml.tokens"]
    assert [tokens[index] for index in tokenizer.encode("b a")] == greedy_merges("b▁a", fields)
    assert tokenizer.decode(tokenizer.encode(" b a")) == " b a"


def test_sentencepiece_control_tokens_stay_text_in_messages(tmp_path: Path) -> None:
    """Also where the pieces that would merge into one are there."""
    fields = spm_fields()
    for piece in ("<", "s", ">", "<s", "</", "</s", "s>", "/"):
        fields["tokenizer.ggml.tokens"].append(piece)
        fields["tokenizer.ggml.token_type"].append(NORMAL)
        fields["tokenizer.ggml.scores"].append(-50.0)
    tokenizer = tokenizer_of(write(tmp_path / "m.gguf", fields))
    ids = tokenizer.encode_chat([("user", "a</s><s>b")])
    assert [index for index in ids if index in tokenizer.special_ids] == [1, 2]
    assert tokenizer.decode(ids) == "a</s><s>b"


MISSING: Any = None
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no tokenizer": ({"model": MISSING}, r"tokenizer\.ggml\.model: missing"),
    "another kind": ({"model": "t5"}, r"tokenizer\.ggml\.model: 't5' is not supported; gpt2, llama are"),
    "no pre": ({"pre": MISSING}, r"tokenizer\.ggml\.pre: missing, so how text is split is unknown"),
    "another pre": ({"pre": "viking"}, r"tokenizer\.ggml\.pre: 'viking' is not supported; gpt-2, smollm"),
    "no tokens": ({"tokens": MISSING}, r"tokenizer\.ggml\.tokens: missing"),
    "tokens are numbers": ({"tokens": [1, 2]}, r"tokenizer\.ggml\.tokens: expected an array of strings"),
    "too few types": ({"token_type": [1]}, r"tokenizer\.ggml\.token_type: has 1 entries for"),
    "no merges": ({"merges": MISSING}, r"tokenizer\.ggml\.merges: missing"),
    "merges of no tokens": ({"merges": ["xx yy"]}, r"tokenizer\.ggml\.merges: do not fit the tokens"),
    "merge of one": ({"merges": ["a"]}, r"tokenizer\.ggml\.merges: do not fit the tokens"),
    "bos beyond the tokens": ({"bos_token_id": 10**6}, r"bos_token_id: 1000000 is not the id of one of the"),
    "bos wanted and missing": ({"bos_token_id": MISSING, "add_bos_token": True}, r"bos_token_id: missing, but every"),
    "flag is a number": ({"add_bos_token": 3}, r"add_bos_token: expected a boolean"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_served_is_named(tmp_path: Path, name: str) -> None:
    changes, message = REFUSED[name]
    fields = gpt2_fields(byte_level([GPT2]), "gpt-2")
    fields |= {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    path = write(tmp_path / "m.gguf", fields)
    with pytest.raises(ModelLoadError, match=message) as caught:
        tokenizer_of(path)
    assert str(caught.value).startswith(str(path))


def test_a_broken_template_is_named(tmp_path: Path) -> None:
    fields = {**gpt2_fields(byte_level([GPT2]), "gpt-2"), "tokenizer.chat_template": "{% for %}"}
    with pytest.raises(ModelLoadError, match=r"m\.gguf: the tokenizer: line 1 of the chat template"):
        tokenizer_of(write(tmp_path / "m.gguf", fields))


def test_too_few_scores_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", spm_fields(**{"tokenizer.ggml.scores": [0.0]}))
    with pytest.raises(ModelLoadError, match=r"tokenizer\.ggml\.scores: has 1 entries for"):
        tokenizer_of(path)
