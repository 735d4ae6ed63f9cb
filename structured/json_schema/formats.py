"""String formats as sets of strings.

Formats defined here are enforced; all others are annotations, as in the standard. Each set is a subset of its RFC and
of the strings that common validators accept, so every generated string passes. It includes what is written in
practice.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import Final

from draftline.structured.json_schema.document import Dialect
from draftline.structured.json_schema.shapes.strings import StringSet
from draftline.structured.regular import ecma
from draftline.structured.regular.expression import without_anchors

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
_DURATION: Final = "P(?:#W|(?:#Y(?:#M(?:#D)?)?|#M(?:#D)?|#D)(?:T{0})?|T{0})".replace(
    "{0}", "(?:#H(?:#M(?:#S)?)?|#M(?:#S)?|#S)"
).replace("#", "\\d{1,6}")  # readers overflow at more digits
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


def _is_small(letter: str) -> bool:
    """Whether a Latin letter is a small one in its normal form."""
    return letter.islower() and unicodedata.normalize("NFKC", letter) == letter


def _label(max_length: int) -> str:
    """A label of a host name. Labels with "--" at the third character are excluded: they must be valid punycode."""
    inner = "[A-Za-z0-9-]"
    edge = "[A-Za-z0-9]"
    return f"{edge}(?:{inner}?{edge}|{inner}{inner}{edge}|{inner}(?:{edge}{inner}|-{edge}){inner}{{0,{max_length - 5}}}{edge})?"


# The number of labels of each length bounds the length of a name: 253 characters, 189 in an email address.
_HOSTNAME: Final = f"(?:(?:{_label(62)}\\.){{0,3}}{_label(62)}|(?:{_label(24)}\\.){{0,9}}{_label(24)})"
_DOMAIN: Final = (
    f"(?:(?:{_label(30)}\\.){{0,2}}{_label(63)}(?:\\.{_label(30)}){{0,2}}|(?:{_label(18)}\\.){{0,9}}{_label(18)})"
)
_LATIN: Final = "a-z0-9\\u00df-\\u00f6\\u00f8-\\u00ff" + "".join(filter(_is_small, map(chr, range(0x100, 0x180))))
_IDN: Final = (
    f"{_LATIN}\\u0390\\u03ac-\\u03ce\\u0430-\\u045f\\u10d0-\\u10f0"
    "\\u3005\\u3041-\\u3096\\u30a1-\\u30fa\\u30fc\\u4e00-\\u9fa5\\uac00-\\ud7a3"
)
"""Letters that IDNA 2008 allows everywhere in a label: they need no context, no direction and no normal form."""
_IDN_LABEL: Final = "|".join(
    [
        f"[{_LATIN}]{{1,24}}",
        f"[{_LATIN}](?:-?[{_LATIN}]){{1,13}}",
        f"[{_IDN}]{{1,14}}",
        f"[{_IDN}](?:-?[{_IDN}]){{1,10}}",
    ]
)
"""At most 60 characters in punycode."""
_IDN_HOSTNAME: Final = f"(?:{_HOSTNAME}|(?:(?:{_label(62)}|{_IDN_LABEL})\\.){{0,3}}(?:{_label(62)}|{_IDN_LABEL}))"
_IDN_DOMAIN: Final = f"(?:{_DOMAIN}|(?:(?:{_label(30)}|{_IDN_LABEL})\\.){{0,2}}(?:{_label(30)}|{_IDN_LABEL}))"
_ATEXT: Final = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_LOCAL: Final = f"(?:{_ATEXT}{{1,64}}|{_ATEXT}(?:\\.?{_ATEXT}){{0,31}})"
_UTEXT: Final = f"{_ATEXT[:-2]}\\u00a1-\\ud7ff\\uf900-\\ufdcf\\ufdf0-\\uffef-]"
_IDN_LOCAL: Final = f"(?:{_LOCAL}|{_UTEXT}{{1,21}}|{_UTEXT}(?:\\.?{_UTEXT}){{0,15}})"
"""At most 64 bytes."""
_UNRESERVED: Final = "A-Za-z0-9._~-"
_SUB_DELIMS: Final = "!$&'()*+,;="
_PCT: Final = "%[0-9A-Fa-f]{2}"


def _uri(letters: str, private: str) -> dict[str, str]:
    """The grammar of RFC 3986 (RFC 3987 with ``letters`` and ``private``): the absolute form, and references."""
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


def _expression() -> str:
    """Regular expressions that ECMA-262, in its Unicode mode too, Python and Rust read. Groups nest up to three deep."""
    count = "(?:0|[1-9]\\d?)"
    repeat = f"(?:[*+?]|\\{{(?:{count},?|[01],[1-9]\\d?|[2-9],[1-9]\\d)\\}})\\??"
    unit = "[0-9A-CE-Fa-ce-f][0-9A-Fa-f]{3}|[Dd][0-7][0-9A-Fa-f]{2}"
    escape = f"\\\\(?:[dDwWsStnrfv^$\\\\.*+?()\\[\\]{{}}|/]|x[0-9A-Fa-f]{{2}}|u(?:{unit}))"
    span = "(?:0-[1-9]|[1-8]-9|a-[b-z]|[b-y]-z|A-[B-Z]|[B-Y]-Z)"
    member = f"(?:{span}|{escape}|\\\\-|[^\\\\\\[\\]^&~|\\0-\\x1f-])"
    members = f"(?:(?:[&~|]?{member})+[&~|]?|[&~|])"  # two of &, ~ or | are or may become operators
    one = f"(?:[^\\\\^$.*+?()\\[\\]{{}}|\\0-\\x1f]|\\.|{escape}|\\[\\^?-?{members}-?\\])"
    inner = f"(?:{one}(?:{repeat})?|[$^|]|\\\\[bB])*"
    for ahead in ("", "", "|\\(\\?[=!]{inner}\\)"):
        group = f"\\((?:\\?:)?{inner}\\)"
        inner = f"(?:(?:{one}|{group})(?:{repeat})?|[$^|]|\\\\[bB]{ahead.format(inner=inner)})*"
    return inner


_PATTERNS: Final = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[Tt]{_TIME}",
    "duration": _DURATION,
    "email": f"{_LOCAL}@{_DOMAIN}",
    "idn-email": f"{_IDN_LOCAL}@{_IDN_DOMAIN}",
    "hostname": _HOSTNAME,
    "idn-hostname": _IDN_HOSTNAME,
    "ipv4": _IPV4,
    "ipv6": _IPV6,
    "uuid": _UUID,
    "uri": _URI["absolute"],
    "uri-reference": _URI["reference"],
    "iri": _IRI["absolute"],
    "iri-reference": _IRI["reference"],
    "uri-template": _TEMPLATE,
    "json-pointer": _POINTER,
    "relative-json-pointer": f"(?:0|[1-9]\\d*)(?:#|{_POINTER})",
    "regex": _expression(),
}

_WIDEST: Final = {
    "date": "^[0-9.+-]{10}$",
    "time": ":",
    "date-time": ":",
    "duration": "^[+-]?[Pp]",
    "email": "@",
    "idn-email": "@",
    "hostname": "^[^\\s@:/]*$",
    "idn-hostname": "^[^\\s@:/]*$",
    "ipv4": "^(?:(?:0[Xx][0-9A-Fa-f]*|[0-9]*)(?:\\.|$)){1,4}$",
    "ipv6": ":",
    "uuid": "^(?:urn:uuid:)?[{(]?[0-9A-Fa-f-]*[)}]?$",
    "uri": ":",
    "iri": ":",
    "json-pointer": "^(?:$|[/#])",
    "relative-json-pointer": "^[0-9]",
}
"""Patterns of all strings that any validator may accept. For the formats that are not here, a lax one may accept any string."""

_B64: Final = "[A-Za-z0-9+/]"
_B32: Final = "[A-Z2-7]"
_BASE64: Final = f"(?:{_B64}{{4}})*(?:{_B64}[AQgw]==|{_B64}{{2}}[AEIMQUYcgkosw048]=)?"
_ENCODINGS: Final = {
    "base64": _BASE64,
    "base64url": _BASE64.replace("+/", "_-"),
    "base32": (
        f"(?:{_B32}{{8}})*"
        f"(?:{_B32}[AEIMQUY4]======|{_B32}{{3}}[AQ]====|{_B32}{{4}}[ACEGIKMOQSUWY246]===|{_B32}{{6}}[AIQY]=)?"
    ),
    "base16": "(?:[0-9A-F]{2})*",
}
"""The encodings of RFC 4648 in their canonical form: padded, and without bits that no byte uses."""

CONTENTS: Final = {
    "contentEncoding": (Dialect.DRAFT7, "the encoding of a string is not enforced"),
    "contentMediaType": (Dialect.DRAFT7, "the contents of a string are not enforced"),
    "contentSchema": (Dialect.DRAFT2019, "the contents of a string are not enforced"),
}
"""Keywords on what a string contains: the draft that has them first, and the reason why they are not enforced."""


_LOCAL_TIME: Final = r"\d\d:\d\d(?::\d\d(?:\.\d+)?)?"
_WITHOUT_OFFSET: Final = {"time": _LOCAL_TIME, "date-time": f"{_DATE}[Tt ]{_LOCAL_TIME}"}
"""The formats that require an offset from UTC, without it."""


@functools.cache
def local_set(name: str) -> StringSet | None:
    """The times of a format without their offset; None for a format that requires none."""
    return _strings(_WITHOUT_OFFSET.get(name))


@functools.cache
def encoding_set(name: str) -> StringSet | None:
    """The strings of an encoding; None for an unknown one."""
    return _strings(_ENCODINGS.get(name))


def is_json(media_type: str) -> bool:
    """Whether a media type is JSON's or based on it."""
    return re.match(r"[\w.-]+/(?:[\w.-]+\+)?json\b", media_type.lower()) is not None


@functools.cache
def format_set(name: str) -> StringSet | None:
    """The strings of a format; None for an unknown format."""
    return _strings(_PATTERNS.get(name))


def _strings(pattern: str | None) -> StringSet | None:
    return None if pattern is None else StringSet(patterns=frozenset([without_anchors(ecma.parse(f"^(?:{pattern})$"))]))


@functools.cache
def widest_format_set(name: str) -> StringSet | None:
    """All strings that any validator may accept for the format; None for an unknown format."""
    if name not in _PATTERNS:
        return None
    return StringSet(patterns=frozenset([without_anchors(ecma.parse(_WIDEST.get(name, "")))]))


def mentions_format(schema: str) -> bool:
    """Whether the text of a schema may have a format that is enforced."""
    return any(f'"{name}"' in schema for name in _PATTERNS)
