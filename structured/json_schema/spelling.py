"""The options of a schema's texts: how the same values may be written."""

from __future__ import annotations

from typing import Literal

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
