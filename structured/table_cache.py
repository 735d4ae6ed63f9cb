"""``TableCache``: the tables of compiled constraints in a folder, so that later processes need not build them.

A file is named by a digest of all that its tables depend on: the constraint, the vocabulary, and the code that compiles. It
holds plain arrays and a digest of them; nothing in it is ever executed. The cache only saves time: a file that cannot be
read, or is not whole, counts as absent.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import unicodedata
import zipfile
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, fields
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from draftline.structured.automaton.token_automaton import TokenAutomaton
from draftline.structured.cache_files import code_digest, user_cache_folder, write_whole
from draftline.structured.constraint import ConstraintSpec
from draftline.structured.errors import Violation
from draftline.structured.language import Form
from draftline.structured.tags.stored import from_json, to_json
from draftline.structured.vocabulary import ByteVocabulary

logger = logging.getLogger(__name__)

MAX_CACHE_BYTES = 256 << 20
"""Size of the files of one folder; beyond it, those used least recently go."""

_LOOK_AFTER = 64
"""A process looks through the folder each time that it has written this part of what may be in it: thousands of small
files take longer than a compilation."""

_SUFFIX = ".tables"


@dataclass(frozen=True, slots=True)
class CachedTables:
    """What compiling a constraint has found out.

    Attributes:
        automaton: its tables.
        unenforced: see `CompileReport`.
        closed: likewise.
        form: finds the tags of outputs; None for a constraint without tags.
    """

    automaton: TokenAutomaton
    unenforced: tuple[Violation, ...]
    closed: tuple[str, ...] = ()
    form: Form | None = None


def cache_folder(option: str) -> Path | None:
    """The folder that an option names: "auto" is the user's, if the user has one, "none" is no folder.

    A file of options can have ``~``, which no shell replaces there.
    """
    named = {"auto": user_cache_folder("constraints"), "none": None}
    return named.get(option, Path(os.path.expanduser(option)))


class TableCache:
    """The tables of one vocabulary. Thread-safe, and processes may share the folder."""

    def __init__(self, folder: Path, vocabulary: ByteVocabulary, max_bytes: int = MAX_CACHE_BYTES) -> None:
        """Nothing is read yet.

        Args:
            folder: where to keep tables; made when the first are kept.
            vocabulary: the vocabulary.
            max_bytes: the size that the folder may have.
        """
        self._folder = folder
        self._tokens = vocabulary
        self._max_bytes = max_bytes
        self._room = 0  # bytes to write before the next look

    def get(self, constraint: ConstraintSpec) -> CachedTables | None:
        """The tables of a constraint; None if they are not cached."""
        path = self._path(constraint)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        try:
            found = _decode(content)
        except (ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
            logger.warning("%s is ignored: it is no file of constraint tables, or not whole (%s)", path, error)
            return None
        _touch(path)
        return found

    def put(self, constraint: ConstraintSpec, tables: CachedTables) -> None:
        """Keep the tables of a constraint, and evict others until all fit."""
        content = _encode(tables)
        if len(content) > self._max_bytes:
            return
        try:
            write_whole(self._path(constraint), content)
            self._room -= len(content)
            if self._room < 0:
                self._evict()
        except OSError as error:
            logger.warning("constraint tables are not kept in %s: %s", self._folder, error)

    @cached_property
    def _context(self) -> bytes:
        """A digest of what all tables depend on."""
        vocabulary = self._tokens
        tokens = (vocabulary.tokens, sorted(vocabulary.eos_ids), sorted(vocabulary.special_names.items()))
        return hashlib.sha256(_code_digest() + repr(tokens).encode()).digest()

    def _path(self, constraint: ConstraintSpec) -> Path:
        digest = hashlib.sha256(self._context + json.dumps(asdict(constraint), sort_keys=True).encode())
        return self._folder / f"{digest.hexdigest()[:40]}{_SUFFIX}"

    def _evict(self) -> None:
        """Make room for what this process writes before its next look."""
        self._room = self._max_bytes // _LOOK_AFTER
        files: list[tuple[Path, os.stat_result]] = []
        for path in self._folder.glob(f"*{_SUFFIX}"):
            with suppress(FileNotFoundError):  # another process has renamed or removed it
                files.append((path, path.stat()))
        size = sum(status.st_size for _, status in files)
        for path, status in sorted(files, key=lambda one: one[1].st_mtime):
            if size <= self._max_bytes - self._room:
                return
            path.unlink(missing_ok=True)
            size -= status.st_size


def _touch(path: Path) -> None:
    """Note that a file has been used."""
    try:
        os.utime(path)
    except OSError:
        logger.debug("the time of %s cannot be set", path)


@cache
def _code_digest() -> bytes:
    """Of the code that compiles constraints, and of what it builds on."""
    versions = (version("outlines_core"), version("numpy"), unicodedata.unidata_version)
    return hashlib.sha256(code_digest((Path(__file__).parent,)) + repr(versions).encode()).digest()


def _encode(tables: CachedTables) -> bytes:
    arrays = io.BytesIO()
    np.savez_compressed(
        arrays, **{field.name: getattr(tables.automaton, field.name) for field in fields(TokenAutomaton)}
    )
    payload = arrays.getvalue()
    header = {
        "sha256": hashlib.sha256(payload).hexdigest(),
        "unenforced": [astuple(violation) for violation in tables.unenforced],
        "closed": tables.closed,
        "form": None if tables.form is None else to_json(tables.form),
    }
    return json.dumps(header).encode() + b"\n" + payload


def _decode(content: bytes) -> CachedTables:
    """The tables in a file. Raises one of several errors if it has none."""
    header, _, payload = content.partition(b"\n")
    known = json.loads(header)
    if known["sha256"] != hashlib.sha256(payload).hexdigest():
        raise ValueError("its digest is another")
    with np.load(io.BytesIO(payload), allow_pickle=False) as arrays:
        # Numbers are arrays without dimensions in the file.
        found = {field.name: arrays[field.name] for field in fields(TokenAutomaton)}
        values: dict[str, Any] = {name: array if array.ndim else int(array) for name, array in found.items()}
    automaton = TokenAutomaton(**values)
    unenforced = tuple(Violation(*violation) for violation in known["unenforced"])
    form = None if known["form"] is None else from_json(known["form"])
    return CachedTables(automaton, unenforced, tuple(known["closed"]), form)
