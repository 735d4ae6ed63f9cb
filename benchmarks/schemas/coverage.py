"""Which schemas a constraint engine gets right: every valid instance accepted, every invalid one rejected, in every spelling.

A tokenizer with one token a byte keeps vocabularies out of it: what is walked is the text. An engine is *unsound* on a schema if it accepts
an invalid instance, *incomplete* if it rejects a valid one (however json.dumps may write it, members in the instance's own
order), *refused* if it says that it cannot do it, *slow* if it takes longer than the limit to compile, and *exact* otherwise.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from draftline.structured.errors import InvalidConstraintError, UnsupportedConstraintError
from draftline.structured.json_schema import json_schema_language

_EOS = 256
TIME_LIMIT = 10.0
"""Seconds that a schema may take to compile."""


class RefusedError(Exception):
    """The engine says that it cannot enforce the schema.

    Attributes:
        keywords: what stands in the way, as far as the engine tells.
        reasons: in words.
    """

    def __init__(self, keywords: Sequence[str], reasons: Sequence[str]) -> None:
        super().__init__("; ".join(reasons))
        self.keywords = tuple(keywords)
        self.reasons = tuple(reasons)


Accepts = Callable[[str], bool]
"""Whether a whole text is in a compiled language."""


class Engine(Protocol):
    """Compiles a schema; raises RefusedError where it cannot."""

    def __call__(self, schema: Any) -> Accepts:
        """A function that tells whether a text is accepted."""


class _ByteTokenizer:
    eos_token_id = _EOS
    bos_token_id = None
    tokens = (*(bytes([value]) for value in range(256)), b"<eos>")
    special_token_ids = (_EOS,)

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


class _Llguidance:
    """Walks texts through llguidance's matcher."""

    def __init__(self) -> None:
        self._tokenizer = LLTokenizer(TokenizerWrapper(_ByteTokenizer()), n_vocab=_EOS + 1, slices=[])

    def walk(self, grammar: str) -> Accepts:
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            error = matcher.get_error().splitlines()[0]
            raise RefusedError([error.partition(":")[0].split(" at ")[0][:40]], [error])

        def accepts(text: str) -> bool:
            matcher.reset()
            tokens = list(text.encode())
            return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

        return accepts


class Draftline(_Llguidance):
    """This project's front end; the grammar that it makes is walked by llguidance, as the regular form would be by tables."""

    def __call__(self, schema: Any) -> Accepts:
        """See `Engine`."""
        try:
            language = json_schema_language(json.dumps(schema), whitespace="free")
        except UnsupportedConstraintError as error:
            names = [violation.keyword for violation in error.violations]
            raise RefusedError(sorted(set(names)), [str(violation) for violation in error.violations]) from None
        except InvalidConstraintError as error:
            if "no value matches" in str(error):
                return lambda text: False
            raise RefusedError(["(invalid or over a limit)"], [str(error)]) from None
        return self.walk(LLMatcher.grammar_from_lark(language.grammar))


class Llguidance(_Llguidance):
    """llguidance's own JSON Schema front end, strict, with whitespace anywhere."""

    def __call__(self, schema: Any) -> Accepts:
        """See `Engine`."""
        if isinstance(schema, bool):
            schema = {} if schema else {"not": {}}
        try:
            grammar = LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": True})
        except ValueError as error:
            raise RefusedError(["(invalid)"], [str(error)]) from None
        return self.walk(grammar)


class Xgrammar:
    """xgrammar, with open objects as the standard has them and whitespace anywhere."""

    def __init__(self) -> None:
        import xgrammar

        self._xgrammar = xgrammar
        vocabulary = xgrammar.TokenizerInfo(
            list(_ByteTokenizer.tokens), vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[_EOS]
        )
        self._compiler = xgrammar.GrammarCompiler(vocabulary, cache_enabled=False)

    def __call__(self, schema: Any) -> Accepts:
        """See `Engine`."""
        try:
            compiled = self._compiler.compile_json_schema(json.dumps(schema), any_whitespace=True, strict_mode=False)
        except RuntimeError as error:
            raise RefusedError([str(error).splitlines()[0][-40:]], [str(error)]) from None

        def accepts(text: str) -> bool:
            matcher = self._xgrammar.GrammarMatcher(compiled, terminate_without_stop_token=False)
            return all(matcher.accept_token(byte) for byte in text.encode()) and matcher.accept_token(_EOS)

        return accepts


ENGINES: Mapping[str, Callable[[], Engine]] = {
    "draftline": Draftline,
    "llguidance": Llguidance,
    "xgrammar": Xgrammar,
}


@dataclass(frozen=True, slots=True)
class Case:
    """A schema with instances.

    Attributes:
        name: of the file, and of the group within it.
        schema: the schema.
        tests: each with ``data`` and ``valid``.
    """

    name: str
    schema: Any
    tests: Sequence[Mapping[str, Any]]


def read_cases(folder: Path) -> list[Case]:
    """Every schema of a folder, whose files hold one with its tests, or a list of them as the official suite's do."""
    cases: list[Case] = []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        for group in content if isinstance(content, list) else [content]:
            name = f"{path.stem}: {group['description']}" if "description" in group else path.stem
            cases.append(Case(name, group["schema"], group["tests"]))
    if not cases:
        raise FileNotFoundError(f"{folder} holds no schemas")
    return cases


def spellings(value: Any) -> Iterator[str]:
    """How json.dumps may write a value."""
    yield json.dumps(value, separators=(",", ":"))
    yield json.dumps(value)
    yield json.dumps(value, indent=2)
    yield json.dumps(value, indent=4)
    yield json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one schema.

    Attributes:
        outcome: exact, incomplete, unsound, refused or slow.
        compile_s: seconds until texts could be walked, or until it was refused.
        keywords: what was in the way, if refused.
        reasons: in words; or the first text that was judged wrongly.
    """

    outcome: str
    compile_s: float
    keywords: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()


def judge(engine: Engine, case: Case) -> Verdict:
    """Compile a schema and try all its instances."""
    started = time.perf_counter()
    try:
        accepts = engine(case.schema)
    except RefusedError as refused:
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
    """Counts, compile times, and what stood in the way, of one engine over many schemas."""
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
