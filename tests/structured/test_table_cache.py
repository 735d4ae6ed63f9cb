from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from byte_automata import compile_bytes
from small_vocabulary import vocabulary

from draftline.structured.automaton.token_automaton import TokenAutomaton, compile_tokens
from draftline.structured.constraint import ConstraintSpec, ReasoningSpec
from draftline.structured.errors import Violation
from draftline.structured.language import Free
from draftline.structured.table_cache import CachedTables, TableCache
from draftline.structured.tags.determinize import determinize
from draftline.structured.tags.form import form_language, with_reasoning
from draftline.structured.tags.nfa_builder import NfaBuilder

VOCABULARY = vocabulary("ab", "abc")
SPEC = ConstraintSpec("regex", "ab+c")
UNENFORCED = (Violation("/a", "format", "it is not known"),)
CLOSED = ("/b",)


def tables(regex: str = SPEC.source) -> CachedTables:
    eos = sorted(VOCABULARY.eos_ids)
    automaton = compile_tokens(compile_bytes(regex, 100), VOCABULARY.tokens, eos, budgets=True, max_bytes=1 << 20)
    return CachedTables(automaton, UNENFORCED, CLOSED)


def reasoned() -> CachedTables:
    """Tables with a boundary, which has distances of its own."""
    form = with_reasoning(form_language(Free()), "<r>", "</r>", required=True, is_json=False).form
    assert form is not None
    eos = sorted(VOCABULARY.eos_ids)
    automaton = compile_tokens(
        determinize(NfaBuilder(100).build(form), 100),
        VOCABULARY.tokens,
        eos,
        budgets=True,
        early_budgets=True,
        max_bytes=1 << 20,
    )
    assert automaton.early_distance == 7
    return CachedTables(automaton, UNENFORCED, CLOSED, form)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "made" / "when" / "needed"


@pytest.mark.parametrize("reasoning", [False, True])
def test_tables_come_back_as_they_were(folder: Path, reasoning: bool) -> None:
    cache = TableCache(folder, VOCABULARY)
    assert cache.get(SPEC) is None
    kept = reasoned() if reasoning else tables()
    cache.put(SPEC, kept)
    found = TableCache(folder, VOCABULARY).get(SPEC)
    assert found is not None
    assert (found.unenforced, found.closed, found.form) == (UNENFORCED, CLOSED, kept.form)
    for field in fields(TokenAutomaton):
        one, other = getattr(kept.automaton, field.name), getattr(found.automaton, field.name)
        assert type(one) is type(other)
        assert np.asarray(one).dtype == np.asarray(other).dtype
        assert np.array_equal(one, other)
    assert [path.suffix for path in folder.iterdir()] == [".tables"]
    assert folder.stat().st_mode & 0o777 == 0o700


def test_another_constraint_vocabulary_or_version_has_other_tables(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    TableCache(folder, VOCABULARY).put(SPEC, tables())
    changes: dict[str, object] = {
        "kind": "grammar",
        "source": "ab+d",
        "whitespace": "compact",
        "best_effort": True,
        "close_within_budget": True,
        "integers": "plain",
        "member_order": "any",
        "close_objects": True,
        "reasoning": ReasoningSpec("<r>", "</r>", limited=True),
    }
    assert list(changes) == [field.name for field in fields(ConstraintSpec)]
    others = [replace(SPEC, **{name: value}) for name, value in changes.items()]  # type: ignore[arg-type]
    others.append(replace(SPEC, reasoning=ReasoningSpec("<r>", "</r>", limited=False)))
    others.append(replace(SPEC, reasoning=ReasoningSpec("<r>", "</r>", limited=False, required=False)))
    for index, other in enumerate(others):
        assert TableCache(folder, VOCABULARY).get(other) is None
        TableCache(folder, VOCABULARY).put(other, tables())
        assert len(list(folder.iterdir())) == 2 + index
    assert TableCache(folder, vocabulary("ab", "abd")).get(SPEC) is None
    assert TableCache(folder, replace(VOCABULARY, special_names={"<r>": 0})).get(SPEC) is None
    monkeypatch.setattr("draftline.structured.table_cache._code_digest", lambda: b"other code")
    assert TableCache(folder, VOCABULARY).get(SPEC) is None


@pytest.mark.parametrize(
    "change",
    [
        lambda content: b"",
        lambda content: content[:-9],
        lambda content: content[:-9] + b"123456789",
        lambda content: b"[]\n" + content,
        lambda content: content.replace(b"sha256", b"sha512", 1),
        lambda content: b"\x80\x04N." + content,
    ],
    ids=["empty", "cut", "changed", "foreign", "no digest", "a pickle"],
)
def test_a_file_that_is_not_whole_is_ignored_and_replaced(
    folder: Path, change: object, caplog: pytest.LogCaptureFixture
) -> None:
    cache = TableCache(folder, VOCABULARY)
    cache.put(SPEC, tables())
    [path] = folder.iterdir()
    path.write_bytes(change(path.read_bytes()))  # type: ignore[operator]
    with caplog.at_level(logging.WARNING):
        assert cache.get(SPEC) is None
    [record] = caplog.records
    assert str(path) in record.getMessage()
    cache.put(SPEC, tables())
    assert cache.get(SPEC) is not None


def test_the_oldest_files_go_when_the_folder_is_full(folder: Path) -> None:
    TableCache(folder, VOCABULARY).put(SPEC, tables())
    [path] = folder.iterdir()
    size = path.stat().st_size
    cache = TableCache(folder, VOCABULARY, max_bytes=int(2.5 * size))
    specs = [ConstraintSpec("regex", text) for text in ("ab+c", "ab+d", "ab+e")]
    for age, spec in zip((30, 20), specs[:2], strict=True):
        cache.put(spec, tables(spec.source))
        for path in folder.iterdir():
            os.utime(path, (path.stat().st_atime - age,) * 2)
    assert cache.get(specs[0]) is not None  # now the youngest
    cache.put(specs[2], tables(specs[2].source))
    assert [cache.get(spec) is not None for spec in specs] == [True, False, True]


def test_the_folder_is_looked_through_seldom_and_stays_within_its_size(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    TableCache(folder, VOCABULARY).put(SPEC, tables())
    [path] = folder.iterdir()
    most = 128 * path.stat().st_size
    looks: list[str] = []
    glob = Path.glob

    def counted(self: Path, pattern: str) -> Iterator[Path]:
        looks.append(pattern)
        return glob(self, pattern)

    monkeypatch.setattr(Path, "glob", counted)
    cache = TableCache(folder, VOCABULARY, max_bytes=most)
    for serial in range(200):
        cache.put(ConstraintSpec("regex", f"ab+c{serial}"), tables())
    assert len(looks) <= 1 + 200 / 2
    assert most * 0.9 < sum(each.stat().st_size for each in folder.iterdir()) <= most


def test_a_file_that_another_process_removes_meanwhile_is_no_fault(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gone = folder / "gone.tables"
    glob = Path.glob
    monkeypatch.setattr(Path, "glob", lambda self, pattern: [*glob(self, pattern), gone])
    cache = TableCache(folder, VOCABULARY)
    with caplog.at_level(logging.WARNING):
        cache.put(SPEC, tables())
    assert not caplog.records
    assert cache.get(SPEC) is not None


def test_a_folder_that_cannot_be_written_is_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    cache = TableCache(occupied / "folder", VOCABULARY)
    with caplog.at_level(logging.WARNING):
        cache.put(SPEC, tables())
    assert len(caplog.records) == 1
    assert cache.get(SPEC) is None
