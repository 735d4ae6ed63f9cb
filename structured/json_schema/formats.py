"""String formats as sets of strings.

A format is enforced wherever a schema names one that stands here; others are annotations, as the standard has it. Each set is within its
RFC and within what common validators accept, so that whatever is generated passes, and holds everything that is written
in practice.
"""

from __future__ import annotations

import functools
from typing import Final

from draftline.structured.json_schema.strings import StringSet
from draftline.structured.regular import ecma
from draftline.structured.regular.automaton import without_anchors
from draftline.structured.regular.syntax import Node

_FOUR_YEARS = "(?:[02468][048]|[13579][26])"
_LEAP_YEAR: Final = f"(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|{_FOUR_YEARS}00)"
_DATE: Final = (
    "(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)"
    f"|02-(?:0[1-9]|1\\d|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_TIME: Final = (
    "(?:(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d+)?(?:[Zz]|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
    "|23:59:60(?:\\.\\d+)?[Zz])"
)
_DURATION: Final = "P(?:\\d+W|(?:\\d+Y(?:\\d+M(?:\\d+D)?)?|\\d+M(?:\\d+D)?|\\d+D)(?:T{0})?|T{0})".replace(
    "{0}", "(?:\\d+H(?:\\d+M(?:\\d+S)?)?|\\d+M(?:\\d+S)?|\\d+S)"
)
_BYTE: Final = "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
_IPV4: Final = f"{_BYTE}(?:\\.{_BYTE}){{3}}"
_H16: Final = "[0-9A-Fa-f]{1,4}"
_LS32: Final = f"(?:{_H16}:{_H16}|{_IPV4})"
_IPV6: Final = "(?:" + "|".join(
    [
        f"(?:{_H16}:){{6}}{_LS32}",
        f"::(?:{_H16}:){{5}}{_LS32}",
        f"(?:{_H16})?::(?:{_H16}:){{4}}{_LS32}",
        f"(?:(?:{_H16}:){{0,1}}{_H16})?::(?:{_H16}:){{3}}{_LS32}",
        f"(?:(?:{_H16}:){{0,2}}{_H16})?::(?:{_H16}:){{2}}{_LS32}",
        f"(?:(?:{_H16}:){{0,3}}{_H16})?::{_H16}:{_LS32}",
        f"(?:(?:{_H16}:){{0,4}}{_H16})?::{_LS32}",
        f"(?:(?:{_H16}:){{0,5}}{_H16})?::{_H16}",
        f"(?:(?:{_H16}:){{0,6}}{_H16})?::",
    ]
) + ")"  # fmt: skip
_LABEL: Final = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOSTNAME: Final = f"{_LABEL}(?:\\.{_LABEL})*"
_ATEXT: Final = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_LOCAL: Final = f"{_ATEXT}+(?:\\.{_ATEXT}+)*"
_UNRESERVED: Final = "A-Za-z0-9._~-"
_SUB_DELIMS: Final = "!$&'()*+,;="
_PCT: Final = "%[0-9A-Fa-f]{2}"


def _uri(letters: str, private: str) -> dict[str, str]:
    """RFC 3986's grammar (with more letters: RFC 3987's), as absolute form and as reference."""
    unreserved = _UNRESERVED[:-1] + letters + "-"
    pchar = f"(?:[{_SUB_DELIMS}:@{unreserved}]|{_PCT})"
    segment_nc = f"(?:[{_SUB_DELIMS}@{unreserved}]|{_PCT})+"
    query = f"(?:\\?(?:{pchar}|[/?{private}])*)?"
    fragment = f"(?:#(?:{pchar}|[/?])*)?"
    literal = f"\\[(?:{_IPV6}|[vV][0-9A-Fa-f]+\\.[{_SUB_DELIMS}:{_UNRESERVED}]+)\\]"
    name = f"(?:[{_SUB_DELIMS}{unreserved}]|{_PCT})*"
    userinfo = f"(?:[{_SUB_DELIMS}:{unreserved}]|{_PCT})*"
    authority = f"(?:{userinfo}@)?(?:{literal}|{name})(?::\\d*)?"
    abempty = f"(?:/{pchar}*)*"
    absolute = f"/(?:{pchar}+(?:/{pchar}*)*)?"
    rootless = f"{pchar}+(?:/{pchar}*)*"
    noscheme = f"{segment_nc}(?:/{pchar}*)*"
    scheme = "[A-Za-z][A-Za-z0-9+.-]*"
    full = f"{scheme}:(?://{authority}{abempty}|{absolute}|{rootless})?{query}{fragment}"
    relative = f"(?://{authority}{abempty}|{absolute}|{noscheme})?{query}{fragment}"
    return {"absolute": full, "reference": f"(?:{full}|{relative})"}


_UCSCHAR: Final = "\\u00a0-\\ud7ff\\uf900-\\ufdcf\\ufdf0-\\uffef" + "".join(
    f"\\u{{{plane:x}0000}}-\\u{{{plane:x}fffd}}" for plane in range(1, 14)
)
_PRIVATE: Final = "\\ue000-\\uf8ff\\u{f0000}-\\u{ffffd}\\u{100000}-\\u{10fffd}"
_URI: Final = _uri("", "")
_IRI: Final = _uri(_UCSCHAR, _PRIVATE)
_UUID: Final = "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_POINTER: Final = "(?:/(?:[^~/]|~[01])*)*"
_VARNAME: Final = "(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})(?:\\.?(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2}))*"
_VARSPEC: Final = f"{_VARNAME}(?::[1-9]\\d{{0,3}}|\\*)?"
_TEMPLATE: Final = f"(?:[!#$&()*+,./0-9:;=?@A-Z\\[\\]_a-z~{_UCSCHAR}{_PRIVATE}-]|%[0-9A-Fa-f]{{2}}|\\{{[+#./;?&]?{_VARSPEC}(?:,{_VARSPEC})*\\}})*"

_ACE_LABEL: Final = "[A-Za-z0-9][A-Za-z0-9-]--"
"""What looks like punycode would have to decode as well: names with "--" there are left out."""

_PATTERNS: Final[dict[str, tuple[list[str], list[str], int | None]]] = {
    # name: patterns of the whole string, patterns that must not be found in it, greatest length
    "date": ([_DATE], [], None),
    "time": ([_TIME], [], None),
    "date-time": ([f"{_DATE}[Tt]{_TIME}"], [], None),
    "duration": ([_DURATION], [], None),
    "email": ([f"{_LOCAL}@{_HOSTNAME}", "[^@]{1,64}@.*"], [f"@(?:.*\\.)?{_ACE_LABEL}"], 254),
    "hostname": ([_HOSTNAME], [f"(?:^|\\.){_ACE_LABEL}"], 253),
    "ipv4": ([_IPV4], [], None),
    "ipv6": ([_IPV6], [], None),
    "uuid": ([_UUID], [], None),
    "uri": ([_URI["absolute"]], [], None),
    "uri-reference": ([_URI["reference"]], [], None),
    "iri": ([_IRI["absolute"]], [], None),
    "iri-reference": ([_IRI["reference"]], [], None),
    "uri-template": ([_TEMPLATE], [], None),
    "json-pointer": ([_POINTER], [], None),
    "relative-json-pointer": ([f"(?:0|[1-9]\\d*)(?:#|{_POINTER})"], [], None),
}

UNENFORCEABLE: Final = {
    "regex": "whether a string is a regular expression is no regular property",
    "idn-hostname": "internationalised names depend on Unicode's tables",
    "idn-email": "internationalised names depend on Unicode's tables",
}
"""Formats of the standard that have no exact form here, and why."""


def _whole(pattern: str) -> Node:
    return without_anchors(ecma.parse(f"^(?:{pattern})$"))


@functools.cache
def format_set(name: str) -> StringSet | None:
    """The strings of a format; None where the name is no known format."""
    known = _PATTERNS.get(name)
    if known is None:
        return None
    patterns, absent, longest = known
    return StringSet(
        0,
        longest,
        frozenset(_whole(pattern) for pattern in patterns),
        frozenset(without_anchors(ecma.parse(pattern)) for pattern in absent),
    )
