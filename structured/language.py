"""``Language``: the set of texts that a constraint allows, in the forms that backends read. It knows no vocabulary.

A language may be made of others: then it has a `Form`, a tree whose leaves are languages. A form is a set of texts, defined
by concatenation, choice and repetition, but for two rules that make reading unique:

* A tag ends where an end mark first follows complete content. So text that any reader would take for the end is the end.
* Free text ends where a trigger first appears: the longest one, if several end there.
"""

from __future__ import annotations

from dataclasses import dataclass

from draftline.structured.errors import Violation
from draftline.structured.unique.paths import UniquePaths


@dataclass(frozen=True, slots=True)
class Language:
    """A set of texts.

    Attributes:
        regex: a regular expression whose whole matches are the texts, in the dialect of the regex-automata crate (which
            outlines-core uses); None if there is none.
        grammar: the same language as a Lark grammar of llguidance, with the start symbol "start".
        unenforced: parts of the constraint that are not enforced: annotations, and with best effort also keywords.
        not_regular: why there is no regex; None if there is one. For a schema it starts with "#", a JSON pointer
            and a colon.
        closed: JSON pointers of the schemas whose objects have no other members because that was asked for.
        unique: where in a document arrays hold different items, which no other member says; None if nowhere. The
            document is the text without reasoning.
        form: the same language as a tree of other languages; None for a language that is not made of others. If
            ``not_regular`` is None, it stands for the regex.
    """

    regex: str | None
    grammar: str
    unenforced: tuple[Violation, ...] = ()
    not_regular: str | None = None
    closed: tuple[str, ...] = ()
    unique: UniquePaths | None = None
    form: Form | None = None

    @property
    def is_regular(self) -> bool:
        """Whether an automaton may enforce it: whether it has a regex, or a form of such languages."""
        return self.regex is not None or (self.form is not None and self.not_regular is None)


@dataclass(frozen=True, slots=True)
class Literal:
    """Exactly this text."""

    text: str


@dataclass(frozen=True, slots=True)
class Leaf:
    """The texts of another constraint.

    Attributes:
        language: its texts.
        pointer: its place, as a JSON pointer.
        is_json: whether its texts are JSON documents.
    """

    language: Language
    pointer: str
    is_json: bool


@dataclass(frozen=True, slots=True)
class Free:
    """Any text in which no excluded text appears.

    Attributes:
        excluded: the excluded texts.
        not_first: ASCII characters that the text does not begin with.
    """

    excluded: tuple[str, ...] = ()
    not_first: str = ""


@dataclass(frozen=True, slots=True)
class Concatenation:
    """The parts one after the other."""

    parts: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Any of the options."""

    options: tuple[Form, ...]


@dataclass(frozen=True, slots=True)
class Repetition:
    """At least ``low`` and at most ``high`` times; None is unbounded."""

    body: Form
    low: int
    high: int | None


@dataclass(frozen=True, slots=True)
class Separated:
    """A form once or more often, with a separator between."""

    body: Form
    separator: str


@dataclass(frozen=True, slots=True)
class Tag:
    """A begin mark, content and an end mark.

    Attributes:
        name: the name that reports give it.
        begin: the begin mark; it may be empty.
        content: what stands between the marks.
        ends: the end marks: any of them. An empty one ends the tag wherever the content is complete.
    """

    name: str
    begin: str
    content: Form
    ends: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Triggered:
    """Free text, in which a trigger begins a tag.

    Attributes:
        triggers: each begins at least one tag.
        tags: each begins with a trigger.
        at_least_one: the first tag comes at once, without free text before it.
        stop_after_first: nothing follows the first tag.
        excluded: texts that do not appear in the free text, nor across it and a trigger.
    """

    triggers: tuple[str, ...]
    tags: tuple[Tag, ...]
    at_least_one: bool
    stop_after_first: bool
    excluded: tuple[str, ...]


Form = Literal | Leaf | Free | Concatenation | Choice | Repetition | Separated | Tag | Triggered
