"""What a constraint compiles to before any vocabulary is known: a set of texts, in the forms that backends read."""

from dataclasses import dataclass
from typing import Literal

from draftline.structured.errors import Violation

Whitespace = Literal["compact", "spaced", "free"]
"""What may stand between JSON's tokens.

compact: nothing. spaced: what Python's json.dumps writes by default, one space after ":" and ",". free: nothing or a few spaces after
":"; and after "," and inside brackets nothing, a few spaces, or one newline with a bounded indent. So a model can never spin
on whitespace.
"""

PropertyOrder = Literal["any", "schema", "auto"]
"""In which order an object's members may come.

any: every order, as JSON has it. schema: that of the schema's "properties", with all other members after them; fewer texts for the same
values, and member names that the language forces. auto: the schema's where the language then has a regular expression, else any.
"""


@dataclass(frozen=True, slots=True)
class Language:
    """A set of texts.

    Attributes:
        regex: matches exactly the language's whole texts, in the dialect of the regex-automata crate, which outlines-core
            uses; None where it has none.
        grammar: the same language as a Lark grammar of llguidance, with the start symbol "start".
        unenforced: what was asked for and is not enforced; empty unless best effort was asked for.
        not_regular: why it has no regex (of a schema after "#", the JSON pointer of where, and ": "); None where it has one.
    """

    regex: str | None
    grammar: str
    unenforced: tuple[Violation, ...] = ()
    not_regular: str | None = None
