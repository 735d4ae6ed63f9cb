"""The tokenizer of an HF folder: tokenizer.json, with what tokenizer_config.json and its neighbours add to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from draftline.models.checkpoints.damaged import damaged
from draftline.models.checkpoints.json_file import read_json_object_if_there
from draftline.models.errors import ModelLoadError
from draftline.models.hf_config import HfConfig
from draftline.models.tokenization.chat_template import by_tools
from draftline.models.tokenization.data import NAMED_TOKENS, TokenizerData

_CONFIG = "tokenizer_config.json"
_MORE_TOKENS = ("additional_special_tokens", "extra_special_tokens")
_SLOW_FILES = ("tokenizer.model", "vocab.json")
_TOKEN_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def read_hf_tokenizer(folder: Path) -> TokenizerData:
    """Read a folder's tokenizer.

    Raises:
        ModelLoadError: there is none, or its files are damaged.
    """
    config, added, where = _with_old_files(folder, read_json_object_if_there(folder / _CONFIG))
    path = folder / "generation_config.json"
    generation = HfConfig(read_json_object_if_there(path), str(path))
    backend = _backend(folder)
    backend.no_truncation()
    backend.no_padding()
    _add_tokens(backend, added, where)
    _add_named_tokens(backend, config)
    more = config.get("extra_special_tokens")  # those of one model have names of their own, such as image_token
    tokens = (dict(more) if isinstance(more, Mapping) else {}) | {name: config.get(name) for name in NAMED_TOKENS}
    named = {name: text for name, token in tokens.items() if (text := _content(token)) is not None}
    return TokenizerData(
        where=str(folder),
        backend=backend,
        bos_id=backend.token_to_id(named["bos_token"]) if "bos_token" in named else None,
        eos_ids=frozenset(_eos_ids(backend, named, generation)),
        chat_template=_chat_template(folder, config),
        template_variables=named,
    )


def _with_old_files(folder: Path, config: Mapping[str, object]) -> tuple[dict[str, object], object, str]:
    """tokenizer_config.json with the named tokens of special_tokens_map.json, the added tokens by id, and their place.

    The other files count where tokenizer_config.json has no added tokens, as in transformers.
    """
    if "added_tokens_decoder" in config:
        return dict(config), config["added_tokens_decoder"], f"{folder / _CONFIG}: added_tokens_decoder"
    named = read_json_object_if_there(folder / "special_tokens_map.json")
    merged = dict(config) | {name: named[name] for name in (*NAMED_TOKENS, *_MORE_TOKENS) if name in named}
    special = set(_special_names(merged))
    path = folder / "added_tokens.json"
    tokens = read_json_object_if_there(path).items()
    return merged, {str(index): {"content": name, "special": name in special} for name, index in tokens}, str(path)


def _backend(folder: Path) -> Backend:
    path = folder / "tokenizer.json"
    if path.is_file():
        try:
            return Backend.from_file(str(path))
        except Exception as error:  # the library raises no narrower class
            raise damaged(path, f"is damaged: {error}") from error
    if not any((folder / name).is_file() for name in _SLOW_FILES):
        raise ModelLoadError(f"{folder}: holds no tokenizer (tokenizer.json, {', '.join(_SLOW_FILES)})")
    from transformers import AutoTokenizer  # seconds to import, and only folders without tokenizer.json need it

    try:
        backend = AutoTokenizer.from_pretrained(str(folder), local_files_only=True).backend_tokenizer
    except Exception as error:  # a conversion may raise anything
        raise ModelLoadError(f"{folder}: the tokenizer cannot be converted to a tokenizer.json: {error}") from error
    if not isinstance(backend, Backend):
        raise ModelLoadError(f"{folder}: the tokenizer cannot be converted to a tokenizer.json")
    return backend


def _add_tokens(backend: Backend, declared: object, where: str) -> None:
    """Add the tokens that are declared by id and that tokenizer.json lacks, in transformers' order."""
    known = _added_names(backend)
    declared = declared or {}
    if not isinstance(declared, Mapping) or not all(str(index).isdecimal() for index in declared):
        raise ModelLoadError(f"{where}: is not an object of tokens by id")
    for index, entry in sorted((int(index), entry) for index, entry in declared.items()):
        content = _content(entry)
        if content is None:
            raise ModelLoadError(f"{where}: {index}: is not a token")
        if content not in known:
            backend.add_tokens(
                [AddedToken(content, **{flag: bool(entry[flag]) for flag in _TOKEN_FLAGS if flag in entry})]
            )
            known.add(content)
        if backend.token_to_id(content) != index:
            raise ModelLoadError(
                f"{where}: {content!r} has id {index}, but {backend.token_to_id(content)} in tokenizer.json"
            )


def _add_named_tokens(backend: Backend, config: Mapping[str, object]) -> None:
    known = _added_names(backend)
    for content in _special_names(config):
        if content not in known:
            backend.add_special_tokens([content])
            known.add(content)


def _added_names(backend: Backend) -> set[str]:
    return {token.content for token in backend.get_added_tokens_decoder().values()}


def _special_names(config: Mapping[str, object]) -> Iterator[str]:
    more: list[object] = [config.get(name) for name in NAMED_TOKENS]
    for key in _MORE_TOKENS:
        value = config.get(key)
        more.extend(value if isinstance(value, list) else value.values() if isinstance(value, Mapping) else [])
    for token in more:
        content = _content(token)
        if content:
            yield content


def _content(token: object) -> str | None:
    """A token's text: tokenizer_config.json writes tokens as strings or as objects."""
    if isinstance(token, Mapping):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _eos_ids(backend: Backend, named: Mapping[str, str], generation: HfConfig) -> Iterable[int]:
    if "eos_token" in named and (index := backend.token_to_id(named["eos_token"])) is not None:
        yield index
    yield from generation.token_ids("eos_token_id")


def _chat_template(folder: Path, config: Mapping[str, object]) -> str | None:
    """chat_template.jinja, else tokenizer_config.json's template; of several, those with and without tools."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        more = folder / "additional_chat_templates" / "tool_use.jinja"
        return by_tools(_text(path), _text(more) if more.is_file() else None)
    template = config.get("chat_template")
    if not isinstance(template, list):
        return _template(template, folder)
    by_name = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, Mapping)}
    return by_tools(_template(by_name.get("default"), folder), _template(by_name.get("tool_use"), folder))


def _template(value: object, folder: Path) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ModelLoadError(f"{folder / _CONFIG}: chat_template: is not a template")
    return value


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{path}: cannot be read: {error}") from error
