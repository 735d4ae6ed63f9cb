"""A form as a Lark grammar of llguidance, for forms that are not regular or too large for an automaton.

llguidance's lexer takes the longest text that a terminal matches. So a terminal is only used where no other text follows,
or where no text of it continues another one: free text and its trigger are one terminal, and so are content that is not
JSON and its end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from draftline.structured.errors import UnsupportedConstraintError, Violation
from draftline.structured.language import (
    Choice,
    Concatenation,
    Form,
    Free,
    Leaf,
    Literal,
    Repetition,
    Separated,
    Tag,
    Triggered,
)
from draftline.structured.regular import syntax
from draftline.structured.tags.embedded import EmbeddedGrammars
from draftline.structured.tags.form import children
from draftline.structured.tags.special import SpecialNames

_ANY = r"/(?s:.*)/"
_SOME = r"/(?s:.+)/"


_NO_TOKENS: Mapping[str, int] = {}


def tag_grammar(form: Form, special: Mapping[str, int] = _NO_TOKENS) -> str:
    """The grammar of a form.

    Args:
        form: the tree.
        special: the special tokens that may write their names in marks, by name.

    Raises:
        UnsupportedConstraintError: its parts cannot be told from each other by a grammar's lexer.
    """
    writer = _Writer(special)
    start = writer.rule(form, last=True)
    return "\n".join([f"start: {start}", *writer.lines, ""])


class _Writer:
    def __init__(self, special: Mapping[str, int]) -> None:
        self.lines: list[str] = []
        self._embedded = EmbeddedGrammars(self.lines)
        self._pointer = ""
        self._special = special
        self._names = SpecialNames(special)

    def _refuse(self, reason: str) -> NoReturn:
        raise UnsupportedConstraintError([Violation(self._pointer, "structural_tag", reason)])

    def _terminal(self, text: str) -> str:
        name = f"T{len(self.lines)}"
        self.lines.append(f"{name}: {text}")
        return name

    def _rule(self, text: str) -> str:
        name = f"r{len(self.lines)}"
        self.lines.append(f"{name}: {text}")
        return name

    def rule(self, form: Form, *, last: bool) -> str:
        """A rule's right side for a form; ``last``: the text ends behind it."""
        match form:
            case Literal(text):
                return self._mark(text)
            case Leaf():
                return self._leaf(form, last)
            case Tag():
                return self._tag(form, self._mark(form.begin))
            case Separated(body, separator):
                inner = self._rule(self.rule(body, last=False))
                return f"{inner} ({self._mark(separator)} {inner})*"
            case Triggered():
                if not last:
                    self._refuse("text follows tags that have no automaton, and free text may come between them")
                return self._triggered(form)
            case Concatenation(parts) if not self._is_one_terminal(form):
                return " ".join(self.rule(part, last=last and part is parts[-1]) for part in parts)
            case Choice(options) if not self._is_one_terminal(form):
                return self._rule(" | ".join(self.rule(option, last=last) for option in options))
            case Repetition(body, low, high) if not self._is_one_terminal(form) or (not last and _ends_itself(body)):
                inner = self._rule(self.rule(body, last=False))
                return f"{inner}{{{low},{'' if high is None else high}}}"
            case _:
                if not last:
                    self._refuse("text follows it that has no automaton, and it cannot be told where it ends")
                return self._terminal(self._pattern(form))

    def _leaf(self, leaf: Leaf, last: bool) -> str:
        if leaf.language.regex is not None and not leaf.is_json:
            if not last:
                self._refuse("text follows it that has no automaton, and it cannot be told where it ends")
            return self._terminal(self._pattern(leaf))
        return self._embedded.start(leaf.language.grammar) if leaf.is_json else f"%lark {{\n{leaf.language.grammar}\n}}"

    def _tag(self, tag: Tag, begin: str) -> str:
        outside, self._pointer = self._pointer, tag.name if tag.name.startswith("/") else self._pointer
        # A tag ends at the first mark, so a mark that continues another one is never reached.
        marks = [mark for mark in tag.ends if not any(one and one != mark and mark.startswith(one) for one in tag.ends)]
        if _ends_itself(tag.content) or _ends_before(tag.content, marks):
            text = f"{begin} {self.rule(tag.content, last=False)} ({' | '.join(map(self._mark, marks))})"
        elif _is_regular(tag.content):
            ends = " | ".join(map(_literal, marks))
            content = self._pattern(tag.content)
            whole = self._terminal(f"({content}) ({ends})")
            texts = [self._terminal(f"{whole} & ~({whole} {_SOME})")]
            # Where a mark begins with a special token, that token ends the content.
            begun = [mark for mark in marks if self._begins_specially(mark)]
            if begun:
                inside = self._terminal(f"({content}) & ~({whole} {_ANY})")
                texts += [f"{some}{self._mark(mark, specially=True)}" for mark in begun for some in (f"{inside} ", "")]
            text = f"{begin} ({' | '.join(texts)})"
        else:
            self._refuse("its content has no automaton, and it cannot be told where it ends")
        self._pointer = outside
        return text

    def _triggered(self, form: Triggered) -> str:
        # The tags of each trigger: those whose begin mark it completes first.
        tags: dict[str, list[str]] = {}
        first: list[str] = []
        for tag in form.tags:
            trigger = min((one for one in form.triggers if tag.begin.startswith(one)), key=len)
            if form.at_least_one:
                first.append(self._rule(self._tag(tag, self._mark(tag.begin))))
            rest = tag.begin.removeprefix(trigger)
            tags.setdefault(trigger, []).append(self._rule(self._tag(tag, self._mark(rest) if rest else "")))
        shown = " | ".join(map(_literal, tags))
        triggered = self._terminal(f"{_ANY} ({shown})")
        too_late = self._terminal(f"{_ANY} ({shown}) {_SOME}")
        forbidden = [*map(_literal, form.excluded)]
        excluded = f" & ~({_ANY} ({' | '.join(forbidden)}) {_ANY})" if forbidden else ""
        free = self._terminal(f"{_ANY} & ~({_ANY} ({' | '.join([*map(_literal, tags), *forbidden])}) {_ANY})")
        segments: list[str] = []
        for trigger, rules in tags.items():
            longer = [_literal(one) for one in tags if one != trigger and one.endswith(trigger)]
            longest = f" & ~({_ANY} ({' | '.join(longer)}))" if longer else ""
            begun = self._terminal(f"({_ANY} {_literal(trigger)}) & {triggered} & ~{too_late}{longest}{excluded}")
            segments += [f"{begun} {rule}" for rule in rules]
            if self._begins_specially(trigger) and not any(_overlap(one, trigger) for one in form.excluded):
                mark = self._mark(trigger, specially=True)
                segments += [f"{some}{mark} {rule}" for rule in rules for some in (f"{free} ", "")]
        segment = self._rule("\n  | ".join(segments))
        once = self._rule("\n  | ".join(first)) if form.at_least_one else ""
        if form.stop_after_first:
            return once or self._rule(f"{segment} | {free}")
        return f"{once} {segment}* {free}"

    def _mark(self, text: str, *, specially: bool = False) -> str:
        """A rule's right side for a mark; ``specially``: it begins with a special token, not with that token's name."""
        parts: list[str] = []
        for part, is_name in self._names.split(text):
            token = f"<[{self._special[part]}]>" if is_name else ""
            if not is_name:
                parts.append(_literal(part))
            elif specially and not parts:
                parts.append(token)
            else:
                parts.append(f"({token} | {_literal(part)})")
        return " ".join(parts) or _literal("")

    def _begins_specially(self, text: str) -> bool:
        return any(is_name for _, is_name in list(self._names.split(text))[:1])

    def _is_one_terminal(self, form: Form) -> bool:
        return _is_regular(form) and not _ends_itself(form)

    def _pattern(self, form: Form) -> str:
        """A terminal's right side for a regular form."""
        match form:
            case Literal(text):
                return _literal(text)
            case Leaf(language):
                return f"/{language.regex}/"
            case Free(excluded, not_first):
                forbidden = " | ".join(map(_literal, excluded))
                text = f"({_ANY} & ~({_ANY} ({forbidden}) {_ANY}))" if excluded else _ANY
                first = " | ".join(map(_literal, not_first))
                return f"({text} & ~(({first}) {_ANY}))" if not_first else text
            case Concatenation(parts):
                return " ".join(f"({self._pattern(part)})" for part in parts)
            case Choice(options):
                return " | ".join(f"({self._pattern(option)})" for option in options)
            case Repetition(body, low, high):
                return f"({self._pattern(body)}){{{low},{'' if high is None else high}}}"
            case Separated(body, separator):
                body_pattern = self._pattern(body)
                return f"({body_pattern}) ({_literal(separator)} ({body_pattern}))*"
            case _:
                self._refuse("free text between tags inside another constraint needs an automaton, which has no room")


def _literal(text: str) -> str:
    return f"/{syntax.to_regex(syntax.literal(text))}/" if text else '""'


def _is_regular(form: Form) -> bool:
    """Whether a form can be a terminal."""
    match form:
        case Leaf(language):
            return language.regex is not None
        case Tag() | Triggered():
            return False
        case _:
            return all(map(_is_regular, children(form)))


def _ends_itself(form: Form) -> bool:
    """Whether no text of it continues another, so that a lexer can tell its end. Grammars are taken at their word."""
    match form:
        case Leaf():
            return form.is_json or form.language.regex is None
        case Literal():
            return True
        case Tag():
            return "" not in form.ends
        case Concatenation() | Choice():
            return all(map(_ends_itself, children(form)))
        case Repetition(body, low, high):
            return low == high and _ends_itself(body)
        case Free() | Separated() | Triggered():
            return False


def _overlap(excluded: str, trigger: str) -> bool:
    """Whether an excluded text can appear in a trigger, or across free text and a trigger."""
    return excluded in trigger or any(excluded.endswith(trigger[:length]) for length in range(1, len(trigger) + 1))


def _ends_before(form: Form, marks: list[str]) -> bool:
    """Whether a form that may go on does so by a text that differs from each of the marks that may end it."""
    if not isinstance(form, Separated) or not _ends_itself(form.body):
        return False
    further = [form.separator] if form.separator else _begins(form.body)
    return bool(further) and not any(mark.startswith(one) or one.startswith(mark) for mark in marks for one in further)


def _begins(form: Form) -> list[str]:
    """Texts of which each text of a form begins with one; none if they are not known."""
    match form:
        case Tag(begin=begin) if begin:
            return [begin]
        case Choice(options):
            begins = [_begins(option) for option in options]
            return [each for one in begins for each in one] if all(begins) else []
        case _:
            return []
