"""The outcome of a schema with a constraint engine: whether it accepts exactly the valid instances.

The tokenizer has one token a byte, so vocabularies play no role. The outcome of a schema is:

- *unsound*: the engine accepts an invalid instance;
- *incomplete*: it rejects a valid one, in some spelling of json.dumps, with members in the order of the instance;
- *refused*: it reports that it cannot enforce the schema;
- *slow*: it takes longer than the limit to compile it;
- *exact*: none of these.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from typing_extensions import override

from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError
from draftline.structured.json_schema import json_schema_language
from draftline.structured.json_schema.bundling import bundled
from draftline.structured.unique.cursor import strings_differ

_EOS = 256
TIME_LIMIT = 10.0
"""The limit on the compile time of a schema, in seconds."""


class SchemaRefusedError(Exception):
    """The engine reports that it cannot enforce the schema.

    Attributes:
        keywords: the keywords that it names.
        reasons: its messages.
    """

    def __init__(self, keywords: Sequence[str], reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.keywords = tuple(keywords)
        self.reasons = tuple(reasons)


Accepts = Callable[[str], bool]
"""Whether a text is in a compiled language."""


class SchemaEngine(Protocol):
    """Compiles schemas."""

    def __call__(self, schema: Any) -> Accepts:
        """Compile a schema.

        Raises:
            SchemaRefusedError: the engine cannot enforce it.
        """
        ...


class _ByteTokenizer:
    eos_token_id = _EOS
    bos_token_id = None
    tokens = (*(bytes([value]) for value in range(256)), b"<eos>")
    special_token_ids = (_EOS,)

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


class _LlguidanceWalker:
    """Walks texts through llguidance's matcher."""

    def __init__(self) -> None:
        self._tokenizer = LLTokenizer(TokenizerWrapper(_ByteTokenizer()), n_vocab=_EOS + 1, slices=[])

    def walk(self, grammar: str) -> Accepts:
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            error = matcher.get_error().splitlines()[0]
            raise SchemaRefusedError([error.partition(":")[0].split(" at ")[0][:40]], [error])

        def accepts(text: str) -> bool:
            matcher.reset()
            tokens = list(text.encode())
            return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

        return accepts


class DraftlineSchemas(_LlguidanceWalker, SchemaEngine):
    """The front end of this project, with the order of members left open.

    llguidance walks the grammars; the regular expressions have the same language. Where strings of arrays have to differ, the
    engine's cursor compares them.
    """

    @override
    def __call__(self, schema: Any) -> Accepts:
        try:
            language = json_schema_language(json.dumps(schema), whitespace="free")
        except UnsupportedConstraintError as error:
            names = [violation.keyword for violation in error.violations]
            raise SchemaRefusedError(sorted(set(names)), [str(violation) for violation in error.violations]) from None
        except InvalidConstraintError as error:
            if "no value matches" in str(error):
                return lambda text: False
            raise SchemaRefusedError(["(invalid or over a limit)"], [str(error)]) from None
        accepts, unique = self.walk(LLMatcher.grammar_from_lark(language.grammar)), language.unique
        return accepts if unique is None else lambda text: accepts(text) and strings_differ(text.encode(), unique)


class LlguidanceSchemas(_LlguidanceWalker, SchemaEngine):
    """llguidance's own front end, strict, with whitespace anywhere."""

    @override
    def __call__(self, schema: Any) -> Accepts:
        if isinstance(schema, bool):
            schema = {} if schema else {"not": {}}
        try:
            grammar = LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": True})
        except ValueError as error:
            raise SchemaRefusedError(["(invalid)"], [str(error)]) from None
        return self.walk(grammar)


class XgrammarSchemas(SchemaEngine):
    """xgrammar, with open objects as in the standard, and whitespace anywhere."""

    def __init__(self) -> None:
        import xgrammar

        self._xgrammar = xgrammar
        vocabulary = xgrammar.TokenizerInfo(
            list(_ByteTokenizer.tokens), vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[_EOS]
        )
        self._compiler = xgrammar.GrammarCompiler(vocabulary, cache_enabled=False)

    @override
    def __call__(self, schema: Any) -> Accepts:
        try:
            compiled = self._compiler.compile_json_schema(json.dumps(schema), any_whitespace=True, strict_mode=False)
        except RuntimeError as error:
            raise SchemaRefusedError([str(error).splitlines()[0][-40:]], [str(error)]) from None

        def accepts(text: str) -> bool:
            matcher = self._xgrammar.GrammarMatcher(compiled, terminate_without_stop_token=False)
            return all(matcher.accept_token(byte) for byte in text.encode()) and matcher.accept_token(_EOS)

        return accepts


ENGINES: Mapping[str, Callable[[], SchemaEngine]] = {
    "draftline": DraftlineSchemas,
    "llguidance": LlguidanceSchemas,
    "xgrammar": XgrammarSchemas,
}


@dataclass(frozen=True, slots=True)
class SchemaCase:
    """A schema with instances.

    Attributes:
        name: the name of the file, and of the group within it.
        schema: the schema.
        tests: instances, each with ``data`` and ``valid``.
    """

    name: str
    schema: Any
    tests: Sequence[Mapping[str, Any]]


def read_cases(folder: Path) -> list[SchemaCase]:
    """All schemas of a folder. A file holds one schema with tests, or a list of them as in the official suite."""
    cases: list[SchemaCase] = []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        for group in content if isinstance(content, list) else [content]:
            name = f"{path.stem}: {group['description']}" if "description" in group else path.stem
            cases.append(SchemaCase(name, group["schema"], group["tests"]))
    if not cases:
        raise FileNotFoundError(f"{folder} contains no schemas")
    return cases


def read_suite(folder: Path) -> dict[str, list[SchemaCase]]:
    """The groups of the official suite, by draft: of a folder of one draft, or of one with a folder for each draft.

    Schemas of drafts other than the newest say so. Beside the tests, a folder ``remotes`` has the documents that schemas refer
    to: they are bundled with them.
    """
    folders = [folder / draft for draft in _DRAFTS if (folder / draft).is_dir()] or [folder]
    remotes = next((found for up in (folder, *folder.parents) if (found := up / "remotes").is_dir()), None)
    documents: dict[str, str] = {}
    for path in sorted(remotes.rglob("*.json")) if remotes else ():
        documents[f"http://localhost:1234/{path.relative_to(remotes or path).as_posix()}"] = path.read_text()
    return {one.name: [_whole(case, one.name, documents) for case in read_cases(one)] for one in folders}


def _whole(case: SchemaCase, draft: str, documents: Mapping[str, str]) -> SchemaCase:
    schema = case.schema
    if isinstance(schema, dict) and draft in _DRAFTS:
        schema = {"$schema": _DRAFTS[draft], **schema}
    with suppress(InvalidConstraintError):  # it is no schema of a known draft; the engines say so
        schema = json.loads(bundled(json.dumps(schema), documents))
    return SchemaCase(case.name, schema, case.tests)


_DRAFTS = {
    "draft4": "http://json-schema.org/draft-04/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
    "draft2020-12": "https://json-schema.org/draft/2020-12/schema",
}


def spellings(value: Any) -> Iterator[str]:
    """The texts of a value by json.dumps with different options."""
    yield json.dumps(value, separators=(",", ":"))
    yield json.dumps(value)
    yield json.dumps(value, indent=2)
    yield json.dumps(value, indent=4)
    yield json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one schema.

    Attributes:
        outcome: exact, incomplete, unsound, refused or slow.
        compile_s: seconds until the schema was compiled or refused.
        keywords: the keywords that the engine names, if it refused.
        reasons: the messages of the engine, or the first text with a wrong result.
    """

    outcome: str
    compile_s: float
    keywords: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


def judge(engine: SchemaEngine, case: SchemaCase) -> Verdict:
    """Compile a schema, and try all its instances."""
    started = time.perf_counter()
    try:
        accepts = engine(case.schema)
    except SchemaRefusedError as refused:
        return Verdict("refused", time.perf_counter() - started, refused.keywords, refused.reasons)
    taken = time.perf_counter() - started
    if taken > TIME_LIMIT:
        return Verdict("slow", taken)
    missed = ""
    for test in case.tests:
        for text in spellings(test["data"]):
            if accepts(text) == test["valid"]:
                continue
            if not test["valid"]:
                return Verdict("unsound", taken, (), (text,))
            missed = missed or text
    return Verdict("incomplete" if missed else "exact", taken, (), (missed,) if missed else ())


def summary(verdicts: Mapping[str, Verdict]) -> dict[str, Any]:
    """The counts of outcomes, compile times, and refused keywords of one engine over many schemas."""
    outcomes = Counter(verdict.outcome for verdict in verdicts.values())
    times = np.array([verdict.compile_s for verdict in verdicts.values()]) * 1000
    keywords = Counter(keyword for verdict in verdicts.values() for keyword in verdict.keywords)
    return {
        "schemas": len(verdicts),
        **{outcome: outcomes[outcome] for outcome in ("exact", "incomplete", "unsound", "refused", "slow")},
        "compile_p50_ms": round(float(np.percentile(times, 50)), 2),
        "compile_p95_ms": round(float(np.percentile(times, 95)), 2),
        "compile_max_ms": round(float(times.max()), 2),
        "keywords": dict(keywords.most_common()),
        "not_exact": {
            name: [verdict.outcome, *(reason[:300] for reason in verdict.reasons[:5])]
            for name, verdict in verdicts.items()
            if verdict.outcome != "exact"
        },
    }
