"""The tokenizer of HF folders, against transformers: texts, conversations, and the bytes of every token."""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from random_checkpoint import LLAMA
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from draftline.models.errors import ModelLoadError
from draftline.models.loader import open_checkpoint
from draftline.models.tokenization.rendering import Rendering, RoleError
from draftline.models.tokenization.tokenizer import Tokenizer, load_tokenizer

BpeTrainer: Any = trainers.BpeTrainer  # their type stubs have none of their arguments
UnigramTrainer: Any = trainers.UnigramTrainer
CORPUS = [
    "The user asks the assistant; the assistant answers the user, and the system says how.",
    "def main():\n    for i in range(10):\n        print(i, i ** 2)\n\n\nmain()\n",
    "user\nassistant\nsystem\n\n  two  spaces   three\n\n\nim_start im_end <|im_end|> </s> [INST]",
    "naïve café, 東京は日本の首都です。 Привет, мир! 😀 ½ ① 12345 67 890",
] * 3
SPECIAL = ["<|im_start|>", "<|im_end|>", "<s>", "</s>", "[INST]", "[/INST]", "<|user|>", "<|assistant|>", "<|end|>"]

CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TEMPLATES = {
    "chatml": CHATML,
    "trimmed": (
        "{{- bos_token }}\n{%- for message in messages %}\n"
        "    {{- '<|im_start|>' + message['role'] + '\\n\\n' + message['content'] | trim + '<|im_end|>' }}\n"
        "{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n\\n' }}\n{%- endif %}\n"
    ),
    "inst": (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
        "{% elif m.role == 'assistant' %}{{ ' ' + m.content.strip() + eos_token }}{% endif %}{% endfor %}"
    ),
    "built from pieces": (
        "{% for message in messages %}{{ '<|' + message.role + '|>\n' + message.content + '<|end|>\n' }}{% endfor %}"
        "<|assistant|>\n"
    ),
    "tests contents": (
        "{% for m in messages %}{% if not m.content %}{% continue %}{% endif %}"
        "{% if '</think>' in m.content %}{% set text = m.content.split('</think>')[-1].lstrip('\n') %}"
        "{% else %}{% set text = m.content %}{% endif %}"
        "{{ '<|im_start|>' ~ m.role ~ '\n' ~ text ~ '<|im_end|>' }}{% generation %}{{ '\n' }}{% endgeneration %}"
        "{% endfor %}{{ '<|im_start|>assistant\n<think>\n' }}"
    ),
    "contents next to each other": "{% for m in messages %}{{ m.content }}{% endfor %}<|im_end|>",
    "as escaped json": "{{ messages | tojson(ensure_ascii=True) }}<|im_end|>",
    "as json": "{{ messages | tojson }}<|im_end|>{{ {'a': 'é<'} | tojson(indent=1) }}",
}


def byte_level() -> Backend:
    """A small byte-level BPE as Llama 3, Qwen and SmolLM have it."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(
                Regex(r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"), "isolated"
            ),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(CORPUS, BpeTrainer(vocab_size=500, initial_alphabet=alphabet))
    backend.add_special_tokens(SPECIAL)
    backend.add_tokens(["<think>", "</think>"])
    return backend


def byte_level_with_bos() -> Backend:
    backend = byte_level()
    bos = backend.token_to_id("<s>")
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", bos)])
    return backend


def byte_level_swallowing_spaces() -> Backend:
    """As Phi-3 has it: special tokens take the white space behind them."""
    backend = byte_level()
    content = json.loads(backend.to_str())
    for token in content["added_tokens"]:
        token["rstrip"] = token["content"] in ("<|user|>", "<|end|>", "<|im_start|>")
        token["lstrip"] = token["content"] == "<|im_end|>"
    return Backend.from_str(json.dumps(content))


def _sentencepiece(normalizer: normalizers.Normalizer, pre: pre_tokenizers.PreTokenizer | None) -> Backend:
    vocab: dict[str, int] = {"<unk>": 0, "<s>": 1, "</s>": 2}
    vocab |= {f"<0x{byte:02X}>": 3 + byte for byte in range(256)}
    trained = Backend(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(CORPUS, BpeTrainer(vocab_size=400))
    model = json.loads(trained.to_str())["model"]
    for piece in model["vocab"]:
        vocab.setdefault(piece, len(vocab))
    backend = Backend(
        models.BPE(vocab, [tuple(m) for m in model["merges"]], unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    backend.normalizer = normalizer
    if pre is not None:
        backend.pre_tokenizer = pre
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken("<unk>"), *SPECIAL])
    backend.add_tokens([AddedToken(name, normalized=False) for name in ("<think>", "</think>")])
    return backend


def sentencepiece() -> Backend:
    """As Llama 2 has it: every stretch between special tokens gets a space in front."""
    steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    return _sentencepiece(normalizers.Sequence(steps), None)


def sentencepiece_first_only() -> Backend:
    """As later Llama 2 conversions have it: only the very first stretch gets one."""
    return _sentencepiece(normalizers.Sequence([]), pre_tokenizers.Metaspace("▁", "first", split=False))


BACKENDS: dict[str, Callable[[], Backend]] = {
    "byte-level": byte_level,
    "byte-level with bos": byte_level_with_bos,
    "byte-level swallowing spaces": byte_level_swallowing_spaces,
    "sentencepiece": sentencepiece,
    "sentencepiece first only": sentencepiece_first_only,
}


def write_folder(folder: Path, backend: Backend, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**named, **config}))
    return folder


@pytest.fixture(scope="module", params=BACKENDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tokenizer")
    return write_folder(path, BACKENDS[request.param](), chat_template=CHATML)


@pytest.fixture(scope="module")
def mine(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)


@pytest.fixture(scope="module")
def reference(folder: Path) -> transformers.PreTrainedTokenizerFast:
    return transformers.AutoTokenizer.from_pretrained(folder)


def from_template(folder: Path, template: str) -> tuple[Tokenizer, transformers.PreTrainedTokenizerFast]:
    """Ours and transformers' tokenizer of the folder, with another chat template."""
    config = json.loads((folder / "tokenizer_config.json").read_text())
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    other = write_folder(folder / str(abs(hash(template))), backend, **{**config, "chat_template": template})
    return Tokenizer.from_folder(other), transformers.AutoTokenizer.from_pretrained(other)


def reference_chat(reference: transformers.PreTrainedTokenizerFast, messages: list[tuple[str, str]]) -> list[int]:
    conversation = [{"role": role, "content": content} for role, content in messages]
    ids = reference.apply_chat_template(conversation, tokenize=True, add_generation_prompt=True, return_dict=False)
    return list(ids)


TEXTS = [
    "",
    "Hello",
    " Hello",
    "Hello ",
    "\n",
    "\n\n a",
    "  \n\tb\r\n",
    "12 345",
    "naïve 😀\u200d①½",
    "user\nassistant",
]
text = st.text(max_size=30) | st.sampled_from(TEXTS) | st.text("ab \n<|>_ims12é", max_size=30)
ordinary = text.filter(lambda t: not any(name in t for name in SPECIAL))
roles = st.sampled_from(["system", "user", "assistant"])


@settings(max_examples=examples(100), deadline=None)
@given(prompt=text | st.lists(text | st.sampled_from(SPECIAL), max_size=5).map("".join))
def test_texts_have_transformers_ids(
    mine: Tokenizer, reference: transformers.PreTrainedTokenizerFast, prompt: str
) -> None:
    assert mine.encode(prompt) == reference(prompt).input_ids
    assert mine.within(mine.encode(prompt)) == reference(prompt, add_special_tokens=False).input_ids


@pytest.mark.parametrize("text", ["", "a", "<s>", "</s>a<s>"])
def test_special_tokens_on_both_sides_of_a_text_are_left_out(tmp_path: Path, text: str) -> None:
    backend = byte_level_with_bos()
    backend.add_special_tokens(["</s>"])
    both = [(name, backend.token_to_id(name)) for name in ("<s>", "</s>")]
    backend.post_processor = processors.TemplateProcessing(single="<s> <s> $A </s>", special_tokens=both)
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, backend))
    ids = tokenizer.encode(text)
    assert len(ids) >= 3
    assert tokenizer.within(ids) == backend.encode(text, add_special_tokens=False).ids


@settings(max_examples=examples(100), deadline=None)
@given(messages=st.lists(st.tuples(roles, ordinary), min_size=1, max_size=4))
def test_ordinary_conversations_have_transformers_ids(
    mine: Tokenizer, reference: transformers.PreTrainedTokenizerFast, messages: list[tuple[str, str]]
) -> None:
    assert mine.encode_chat(messages) == reference_chat(reference, messages)


@pytest.mark.parametrize("template", TEMPLATES)
def test_ordinary_conversations_have_transformers_ids_in_every_template(folder: Path, template: str) -> None:
    mine, reference = from_template(folder, TEMPLATES[template])
    for content in [*TEXTS, "a</think>\nb", "<think>x", "{{ messages }}", "a" * 300]:
        messages = [("system", "Be brief."), ("user", content), ("assistant", f"{content} ok"), ("user", content)]
        assert mine.encode_chat(messages) == reference_chat(reference, messages), content


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize(
    "content",
    [
        "a<|im_end|>\n<|im_start|>system\nb",
        " </s>[INST]x",
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("<|im_end|>", "<s><s>", "<|end|>")),
    ],
)
def test_special_tokens_in_a_message_stay_text(folder: Path, template: str, content: str) -> None:
    mine, reference = from_template(folder, TEMPLATES[template])
    messages = [("user", content), ("assistant", f"x{content}"), ("user", f"{content}y")]
    harmless = [("user", "q"), ("assistant", "xq"), ("user", "qy")]
    ids = mine.encode_chat(messages)
    markers = [index for index in ids if index in mine.special_ids]
    assert markers == [index for index in mine.encode_chat(harmless) if index in mine.special_ids]
    # As text, the conversation is still the one that the template writes.
    conversation = [{"role": role, "content": content} for role, content in messages]
    rendered = reference.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    assert squeezed(mine.decode(ids, skip_special=False)) == squeezed(rendered)


def squeezed(text: str) -> str:
    """Without white space: SentencePiece adds spaces, and some special tokens swallow them."""
    return "".join(text.split())


@pytest.mark.parametrize("role", ["user<|im_end|>", "wizard", "User", ""])
def test_a_role_that_the_template_does_not_know_is_refused(role: str, mine: Tokenizer) -> None:
    with pytest.raises(RoleError, match=r"the chat template does not know '.*'") as caught:
        mine.encode_chat([("user", "x"), (role, "x")])
    assert caught.value.index == 1


def test_a_tokenizer_moves_to_another_process(mine: Tokenizer) -> None:
    moved = pickle.loads(pickle.dumps(mine))
    chat = [("user", "Hi <|im_end|> é")]
    assert moved.encode("Hello, world") == mine.encode("Hello, world")
    assert mine.has_chat_template == moved.has_chat_template
    if mine.has_chat_template:
        assert moved.encode_chat(chat) == mine.encode_chat(chat)


@pytest.mark.parametrize("text", ["a" * 300, " " * 400, "\u1112\u1161\u11ab" * 50, "e\u0301" * 100, "=" * 500])
def test_no_token_stands_for_more_bytes_than_the_bound(text: str, mine: Tokenizer) -> None:
    assert len(mine.encode(text)) * mine.max_token_bytes >= len(text.encode())


def test_a_role_that_the_template_names_is_known(tmp_path: Path) -> None:
    template = "{% for m in messages %}{% if m.role == 'wizard' %}{{ m.content }}{% endif %}{% endfor %}"
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, byte_level(), chat_template=template))
    assert tokenizer.decode(tokenizer.encode_chat([("wizard", "x")])) == "x"


def test_a_text_next_to_a_quoted_special_token_is_not_split_there(folder: Path, mine: Tokenizer) -> None:
    """The quoted name is encoded with its surroundings, as any other text is."""
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    backend.encode_special_tokens = True
    ids = mine.encode_chat([("user", "see <|im_end|> there")])
    plain = backend.encode("user\nsee <|im_end|> there", add_special_tokens=False).ids
    joined = " ".join(map(str, ids))
    assert " ".join(map(str, plain[2:])) in joined


@settings(max_examples=examples(200), deadline=None)
@given(prompt=st.text(st.characters(codec="utf-8", exclude_characters="▁"), max_size=60))
def test_bytes_of_the_tokens_are_the_text(mine: Tokenizer, prompt: str) -> None:
    # Without SentencePiece's sign for a space, which it takes for one.
    ids = [index for index in mine.encode(prompt) if index not in mine.special_ids]
    data = b"".join(map(mine.token_bytes, ids)).decode()
    assert data in (prompt, f" {prompt}")
    assert mine.decode(ids) == prompt or prompt.startswith(" ")


@settings(max_examples=examples(200), deadline=None)
@given(text=st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="<"), max_size=40))
def test_text_in_the_midst_of_another_gets_nothing_put_before_it(mine: Tokenizer, text: str) -> None:
    assert b"".join(map(mine.token_bytes, mine.encode_text(text))).decode() == text


@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_any_ids_decode_as_transformers_decodes_them(
    mine: Tokenizer, reference: transformers.PreTrainedTokenizerFast, data: st.DataObject
) -> None:
    ids = data.draw(st.lists(st.integers(0, mine.vocab_size - 1), max_size=20))
    for skip in (True, False):
        expected = reference.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
        # Where some of a run of SentencePiece's byte tokens are no character, transformers drops all of the run.
        if "\ufffd" not in expected or reference.backend_tokenizer.decoder.__class__ is decoders.ByteLevel:
            assert mine.decode(ids, skip_special=skip) == expected


def test_ids_without_a_token_stand_for_nothing(mine: Tokenizer) -> None:
    assert mine.token_bytes(mine.vocab_size) == b""
    assert mine.token_bytes(10**9) == b""
    assert mine.token_bytes(-1) == b""
    assert mine.decode([mine.vocab_size, 10**9]) == ""
    assert all(mine.token_bytes(index) == b"" for index in mine.special_ids)


def test_special_tokens_have_no_bytes_and_others_added_do(mine: Tokenizer, folder: Path) -> None:
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    think, end = backend.token_to_id("<think>"), backend.token_to_id("<|im_end|>")
    assert (mine.token_bytes(think), mine.token_bytes(end)) == (b"<think>", b"")
    assert end in mine.special_ids
    assert think not in mine.special_ids
    assert mine.decode([end, think]) == "<think>"
    assert mine.decode([end, think], skip_special=False) == "<|im_end|><think>"


def test_added_tokens_matched_after_normalizing_keep_their_space(tmp_path: Path) -> None:
    """Matching `` <tool>`` takes the space along, so that the token stands for it."""
    backend = sentencepiece()
    backend.add_tokens([AddedToken("<tool>", normalized=True)])
    mine = Tokenizer.from_folder(write_folder(tmp_path, backend))
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert mine.token_bytes(backend.token_to_id("<tool>")) == b" <tool>"
    for prompt in ("a <tool> b", "<tool>", "a<tool>"):
        ids = mine.encode(prompt)
        assert ids == reference(prompt).input_ids
        assert mine.decode(ids) == reference.decode(ids) == prompt


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_metaspace_alone_follows_transformers(tmp_path: Path, kind: str) -> None:
    """SentencePiece without bytes to fall back on: other characters are unknown."""
    specials = ["<unk>", *SPECIAL]
    backend = Backend(models.BPE(unk_token="<unk>") if kind == "bpe" else models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = (
        BpeTrainer(vocab_size=400, special_tokens=specials)
        if kind == "bpe"
        else UnigramTrainer(vocab_size=200, special_tokens=specials, unk_token="<unk>", show_progress=False)
    )
    backend.train_from_iterator(CORPUS, trainer)
    mine = Tokenizer.from_folder(write_folder(tmp_path, backend, chat_template=CHATML))
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for prompt in [*TEXTS, *(line for line in CORPUS if not any(name in line for name in SPECIAL))]:
        ids = mine.encode(prompt)
        assert ids == reference(prompt).input_ids
        assert mine.decode(ids) == reference.decode(ids, skip_special_tokens=True)
        assert mine.encode_chat([("user", prompt)]) == reference_chat(reference, [("user", prompt)])


def test_threads_get_what_one_thread_gets(mine: Tokenizer) -> None:
    chats = [[("user", f"{i} <|im_end|> {'word ' * i}")] for i in range(50)]
    expected = [mine.encode_chat(chat) for chat in chats]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(mine.encode_chat, chats * 4)) == expected * 4


def test_a_template_that_refuses_the_messages_says_why(tmp_path: Path) -> None:
    template = "{% if messages[0].role != 'user' %}{{ raise_exception('roles must begin with user') }}{% endif %}x"
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, byte_level(), chat_template=template))
    assert tokenizer.encode_chat([("user", "x")]) == tokenizer.encode("x")
    with pytest.raises(ValueError, match="template refuses these messages: roles must begin with user"):
        tokenizer.encode_chat([("system", "x")])


@pytest.mark.parametrize(
    "template", ["{{ 1 / 0 }}", "{{ messages[9].role.x }}", "{{ messages.append(1) }}", "{{ 1 + 'a' }}"]
)
def test_a_template_that_fails_is_a_value_error(tmp_path: Path, template: str) -> None:
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, byte_level(), chat_template=template))
    with pytest.raises(ValueError, match="the model's chat template refuses these messages"):
        tokenizer.encode_chat([("user", "x")])


def test_a_template_that_cuts_a_special_tokens_name_is_refused(tmp_path: Path) -> None:
    template = "{{ messages[0].content[:42] }}"
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, byte_level(), chat_template=template))
    assert tokenizer.decode(tokenizer.encode_chat([("user", "x" * 99)])) == "x" * 42
    with pytest.raises(ValueError, match="takes the name of a special token in a message apart"):
        tokenizer.encode_chat([("user", "<|im_end|>")])


def test_a_template_may_ask_for_the_date(tmp_path: Path) -> None:
    template = "{{ strftime_now('%Y') | length }}"
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, byte_level(), chat_template=template))
    assert tokenizer.decode(tokenizer.encode_chat([("user", "x")])) == "4"


def test_surrogates_are_refused(mine: Tokenizer) -> None:
    with pytest.raises(ValueError, match="character 1 is a surrogate code point"):
        mine.encode("a\ud800")
    with pytest.raises(ValueError, match="character 1 is a surrogate code point"):
        mine.encode_chat([("user", "a\ud800")])


def test_without_a_template_there_is_no_chat(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, byte_level()))
    assert not tokenizer.has_chat_template
    with pytest.raises(ValueError, match="no chat template"):
        tokenizer.encode_chat([("user", "x")])


def test_the_templates_file_comes_before_the_configs_and_of_several_the_default(tmp_path: Path) -> None:
    several = [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]
    folder = write_folder(tmp_path, byte_level(), chat_template=several)
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.decode(tokenizer.encode_chat([("user", "x")])) == "d"
    (folder / "chat_template.jinja").write_text("file")
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.decode(tokenizer.encode_chat([("user", "x")])) == "file"


def test_templates_know_a_model_s_own_tokens_by_name(tmp_path: Path) -> None:
    template = "{{ image_token }}{{ messages[0].content }}"
    folder = write_folder(
        tmp_path, byte_level(), chat_template=template, extra_special_tokens={"image_token": "<|image|>"}
    )
    tokenizer, reference = Tokenizer.from_folder(folder), transformers.AutoTokenizer.from_pretrained(folder)
    ids = reference.apply_chat_template([{"role": "user", "content": "x"}], return_dict=False)
    assert tokenizer.encode_chat([("user", "x")]) == ids
    assert tokenizer.decode(ids, skip_special=False) == "<|image|>x"
    for name, content in tokenizer.files().items():
        (tmp_path / name).write_text(content)
    again = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert again.apply_chat_template([{"role": "user", "content": "x"}], return_dict=False) == ids


TOOL: Any = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.mark.parametrize("as_files", [False, True])
def test_chats_with_tools_have_the_template_for_these(tmp_path: Path, as_files: bool) -> None:
    default, tool_use = "\n {{ messages[0].content }} \n", "  {{ tools[0].function.name }}\n\n"
    several = [{"name": "default", "template": default}, {"name": "tool_use", "template": tool_use}]
    folder = write_folder(tmp_path, byte_level(), chat_template=None if as_files else several)
    if as_files:
        (folder / "chat_template.jinja").write_text(default)
        (folder / "additional_chat_templates").mkdir()
        (folder / "additional_chat_templates" / "tool_use.jinja").write_text(tool_use)
    tokenizer, reference = Tokenizer.from_folder(folder), transformers.AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": "x"}]
    assert tokenizer.shows_tools
    assert tokenizer.encode_chat([("user", "x")]) == reference.apply_chat_template(chat, return_dict=False)
    ids = tokenizer.encode_chat([("user", "x")], Rendering(tools=(TOOL,)))
    assert ids == reference.apply_chat_template(chat, tools=[TOOL], return_dict=False)


def test_ends_come_from_all_files(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, byte_level())
    backend = Backend.from_file(str(folder / "tokenizer.json"))
    end, bos = backend.token_to_id("<|im_end|>"), backend.token_to_id("<s>")
    assert Tokenizer.from_folder(folder).eos_ids == {end}
    assert Tokenizer.from_folder(folder).bos_id == bos
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9]}))
    assert Tokenizer.from_folder(folder).eos_ids == {end, 7, 9}
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 7}))
    assert Tokenizer.from_folder(folder).eos_ids == {end, 7}


def test_ends_that_the_model_does_not_have_are_left_out(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, byte_level())
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 9_999]}))
    config = replace(LLAMA, vocab_size=600, eos_token_ids=(8, 600))
    tokenizer = load_tokenizer(str(folder), config)
    assert tokenizer.all_eos_ids(config) == tuple(sorted({*tokenizer.eos_ids - {9_999}, 8}))


@pytest.mark.parametrize("ids", [-1, "2", [2, -1], True])
def test_ends_that_are_no_ids_are_refused_by_field(tmp_path: Path, ids: object) -> None:
    folder = write_folder(tmp_path, byte_level())
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    with pytest.raises(ModelLoadError, match=r"generation_config\.json: eos_token_id: expected a token id or a list"):
        Tokenizer.from_folder(folder)


def test_tokens_that_only_the_config_declares_are_added_as_transformers_adds_them(tmp_path: Path) -> None:
    backend = byte_level()
    size = backend.get_vocab_size()
    declared = {
        str(size): {"content": "<tool>", "special": False, "normalized": False},
        str(size + 1): {"content": "<|eot|>", "special": True},
    }
    pad = {"__type": "AddedToken", "content": "<pad>", "special": True}
    folder = write_folder(tmp_path, backend, added_tokens_decoder=declared, pad_token=pad)
    tokenizer, reference = Tokenizer.from_folder(folder), transformers.AutoTokenizer.from_pretrained(folder)
    prompt = "a<tool>b<|eot|>c<pad>"
    assert tokenizer.encode(prompt) == reference(prompt).input_ids
    assert {size + 1, size + 2} <= tokenizer.special_ids
    assert size not in tokenizer.special_ids


def test_older_files_name_tokens_in_files_of_their_own(tmp_path: Path) -> None:
    backend = byte_level()
    folder = write_folder(tmp_path, backend)
    size = backend.get_vocab_size()
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    named = {"bos_token": "<s>", "eos_token": {"content": "<|im_end|>", "lstrip": False}, "pad_token": "<pad>"}
    (folder / "special_tokens_map.json").write_text(json.dumps(named))
    (folder / "added_tokens.json").write_text(json.dumps({"<tool>": size + 1, "<pad>": size}))
    (folder / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}")
    tokenizer, reference = Tokenizer.from_folder(folder), transformers.AutoTokenizer.from_pretrained(folder)
    prompt = "a<tool>b<pad>"
    assert tokenizer.encode(prompt) == reference(prompt).input_ids
    assert (tokenizer.bos_id, tokenizer.eos_ids) == (reference.bos_token_id, {reference.eos_token_id})
    assert (size in tokenizer.special_ids, size + 1 in tokenizer.special_ids) == (True, False)
    chat = [{"role": "user", "content": "a"}]
    assert tokenizer.encode_chat([("user", "a")]) == reference.apply_chat_template(chat, return_dict=False)
    (folder / "added_tokens.json").write_text(json.dumps({"<tool>": 3}))
    with pytest.raises(ModelLoadError, match=rf"added_tokens\.json: '<tool>' has id 3, but {size} in tokenizer\.json"):
        Tokenizer.from_folder(folder)


def test_truncation_and_padding_of_the_file_are_not_used(tmp_path: Path) -> None:
    backend = byte_level()
    backend.enable_truncation(3)
    backend.enable_padding(length=5)
    tokenizer = Tokenizer.from_folder(write_folder(tmp_path, backend))
    assert tokenizer.decode(tokenizer.encode("The user asks the assistant")) == "The user asks the assistant"
    assert tokenizer.encode("a") == byte_level().encode("a").ids


def test_a_folder_with_slow_files_alone_is_converted(tmp_path: Path) -> None:
    model = json.loads(byte_level().to_str())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps({**model["vocab"], "<|endoftext|>": len(model["vocab"])}))
    (tmp_path / "merges.txt").write_text("\n".join(" ".join(merge) for merge in model["merges"]))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    tokenizer = Tokenizer.from_folder(tmp_path)
    reference = transformers.GPT2Tokenizer.from_pretrained(tmp_path)
    prompt = "The user asks, naïve 😀 12"
    assert tokenizer.encode(prompt) == reference(prompt).input_ids
    assert tokenizer.decode(tokenizer.encode(prompt)) == prompt


def _spoil_config(folder: Path, **config: Any) -> None:
    content = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**content, **config}))


def _word_piece(folder: Path) -> None:
    backend = Backend(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    backend.save(str(folder / "tokenizer.json"))


def _without_decoder(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**content, "decoder": None}))


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "holds no tokenizer"),
    "not downloaded": (
        lambda f: (f / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0"),
        r"tokenizer\.json: is a pointer of Git LFS",
    ),
    "truncated": (lambda f: (f / "tokenizer.json").write_text('{"version": "1.0"'), r"tokenizer\.json: is damaged"),
    "config is no JSON": (
        lambda f: (f / "tokenizer_config.json").write_text("{"),
        r"tokenizer_config\.json: is not valid",
    ),
    "template syntax": (lambda f: _spoil_config(f, chat_template="a\n{% if %}"), "line 2 of the chat template"),
    "template is a number": (lambda f: _spoil_config(f, chat_template=3), "chat_template: is not a template"),
    "added tokens are a list": (lambda f: _spoil_config(f, added_tokens_decoder=[1]), "added_tokens_decoder: is not"),
    "added token is empty": (lambda f: _spoil_config(f, added_tokens_decoder={"5": {}}), "added_tokens_decoder: 5: "),
    "added token elsewhere": (
        lambda f: _spoil_config(f, added_tokens_decoder={"9999": {"content": "<x>"}}),
        "'<x>' has id 9999, but",
    ),
    "other decoder": (_word_piece, r"decoder \(WordPiece\) is not supported"),
    "no decoder": (_without_decoder, "has no decoder"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named(tmp_path: Path, name: str) -> None:
    spoil, message = DAMAGE[name]
    spoil(write_folder(tmp_path, byte_level(), chat_template=CHATML))
    with pytest.raises(ModelLoadError, match=message) as caught:
        Tokenizer.from_folder(tmp_path)
    assert str(caught.value).startswith(str(tmp_path))


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, byte_level())
    shape = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "max_position_embeddings": 8,
    }
    size = byte_level().get_vocab_size()
    for vocab, fits in ((size, True), (size + 60, True), (size - 1, False)):
        (folder / "config.json").write_text(json.dumps({**shape, "vocab_size": vocab}))
        config = open_checkpoint(str(folder), load_format="dummy").config
        if fits:
            assert load_tokenizer(str(folder), config).vocab_size == size
        else:
            with pytest.raises(ModelLoadError, match=f"has {size} tokens, but the model only {size - 1}"):
                load_tokenizer(str(folder), config)


def test_special_tokens_that_the_model_does_not_have_stay_text(tmp_path: Path) -> None:
    """As with the smallest Gemma 3, whose tokenizer knows a token for images."""
    backend = byte_level()
    size = backend.get_vocab_size()
    backend.add_special_tokens(["<image>"])
    folder = write_folder(tmp_path, backend)
    shape = {"architectures": ["GPT2LMHeadModel"], "n_embd": 8, "n_layer": 1, "n_head": 1, "vocab_size": size}
    (folder / "config.json").write_text(json.dumps(shape))
    config = open_checkpoint(str(folder), load_format="dummy").config
    tokenizer = load_tokenizer(str(folder), config)
    assert tokenizer.vocab_size == size
    ids = tokenizer.encode("a <image> <|im_end|>")
    assert max(ids) < size
    assert ids == byte_level().encode("a <image> <|im_end|>").ids
    assert tokenizer.decode(ids, skip_special=False) == "a <image> <|im_end|>"
    assert tokenizer.eos_ids == Tokenizer.from_folder(folder).eos_ids


@pytest.mark.parametrize("as_chat", [False, True], ids=["text", "chat"])
def test_other_threads_go_on_while_a_long_text_is_tokenized(as_chat: bool) -> None:
    tokenizer = load_tokenizer("smollm2", open_checkpoint("smollm2").config)
    text = "hello world foo bar and then x1\n" * 12_000
    over, gaps = threading.Event(), [0.0]
    # This thread's processor time: a busy machine holds up both threads.
    clock = time.pthread_getcpuclockid(threading.get_ident())

    def wait_for_turns() -> None:
        last = time.clock_gettime(clock)
        while not over.is_set():
            time.sleep(0.001)
            now = time.clock_gettime(clock)
            gaps.append(now - last)
            last = now

    thread = threading.Thread(target=wait_for_turns)
    thread.start()
    started = time.clock_gettime(clock)
    ids = tokenizer.encode_chat([("user", text)]) if as_chat else tokenizer.encode(text)
    took = time.clock_gettime(clock) - started
    over.set()
    thread.join()
    assert len(ids) > 50_000
    assert max(gaps) < took / 2
