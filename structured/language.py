"""``Language``: the set of texts that a constraint allows, in the forms that backends read. It knows no vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from draftline.structured.errors import Violation
from draftline.structured.unique.paths import UniquePaths

if TYPE_CHECKING:
    from draftline.structured.tags.form import Form

Whitespace = Literal["compact", "spaced", "free"]
"""The whitespace allowed between the tokens of JSON.

* compact: none.
* spaced: one space after ":" and ",", as Python's json.dumps writes by default.
* free: up to a few spaces after ":". After "," and inside brackets: up to a few spaces, or one
  newline with a bounded indent.

All are bounded, so a model can never produce whitespace without end.
"""

PropertyOrder = Literal["any", "schema"]
"""The order of the members of an object.

* any: every order, as in JSON.
* schema: the order of the schema's "properties", then all other members. There are fewer texts for the same values, and
  the language forces member names. Objects that count members, or ask for one that they do not name, have any order.
"""


IntegerSpelling = Literal["plain", "standard"]
"""The texts of an integer.

* plain: without fraction and exponent, as typed decoders require. Integers in "enum" and "const" too.
* standard: 1.0 and 1e16 too, which JSON Schema has counted as integers since draft 6.
"""


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
