"""IP addresses, interfaces and networks, UUIDs, email addresses and URLs."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

from draftline.structured.regular.syntax import Node, alt, literal, repeat, seq
from draftline.structured.types.texts.trees import tree, without

_BYTE: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
IPV4: Final = f"{_BYTE}(?:\\.{_BYTE}){{3}}"
_H16: Final = "[0-9A-Fa-f]{1,4}"
_LS32: Final = f"(?:{_H16}:{_H16}|{IPV4})"
IPV6: Final = "(?:" + "|".join(
    [
        f"(?:{_H16}:){{6}}{_LS32}",
        f"::(?:{_H16}:){{5}}{_LS32}",
        *(f"(?:(?:{_H16}:){{0,{3 - more}}}{_H16})?::(?:{_H16}:){{{more}}}{_LS32}" for more in (3, 2, 1)),
        f"(?:(?:{_H16}:){{0,4}}{_H16})?::{_LS32}",
        f"(?:(?:{_H16}:){{0,5}}{_H16})?::{_H16}",
        f"(?:(?:{_H16}:){{0,6}}{_H16})?::",
    ]
) + ")"  # fmt: skip

INTERFACE4: Final = f"{IPV4}(?:/(?:[12]?[0-9]|3[0-2]))?"
INTERFACE6: Final = f"{IPV6}(?:/(?:[1-9]?[0-9]|1[01][0-9]|12[0-8]))?"


def _network4() -> str:
    """Addresses with a prefix length, whose other bits are zero."""
    options = [f"{IPV4}(?:/32)?"]
    for length in range(32):
        whole, bits = divmod(length, 8)
        partial = "|".join(str(value) for value in range(0, 256, 256 >> bits)) if bits else "0"
        octets = [*[_BYTE] * whole, f"(?:{partial})", *["0"] * (3 - whole)]
        options.append("\\.".join(octets) + f"/{length}")
    return "|".join(options)


def _network6() -> str:
    """Addresses with a prefix length, whose other bits are zero: what follows the prefix is ``::``, or a single 0."""
    options = [f"{IPV6}(?:/128)?", "::/0"]
    for length in range(1, 128):
        whole, more = divmod(length - 1, 16)  # the prefix has so many whole groups, and more + 1 bits of the next one
        digits, rest = divmod(more + 1, 4)
        group, zeros = f"[0-9A-Fa-f]{{1,{digits}}}", "0" * (4 - digits)
        if rest:
            last = "".join(f"{value:x}{value:X}" for value in range(0, 16, 16 >> rest))
            group, zeros = f"[0-9A-Fa-f]{{0,{digits}}}[{last}]", "0" * (3 - digits)
        after = ("::", "(?:::|:0)", "")[max(0, whole - 5)]
        shorter = f"(?::|(?:{_H16}:){{1,{whole}}}):" if whole else "::"
        options.append(f"(?:{shorter}|(?:{_H16}:){{{whole}}}(?:{group}{zeros}|0){after})/{length}")
    return "|".join(options)


NETWORK4: Final = _network4()
NETWORK6: Final = _network6()


def uuid_text(version: int | None) -> Node:
    """The UUIDs of a version of RFC 9562; all if None."""
    digits = "[0-9a-fA-F]"
    if version is None:
        return tree(f"{digits}{{8}}(?:-{digits}{{4}}){{3}}-{digits}{{12}}")
    return tree(f"{digits}{{8}}-{digits}{{4}}-{version}{digits}{{3}}-[89abAB]{digits}{{3}}-{digits}{{12}}")


_ATEXT: Final = "[A-Za-z0-9_+'-]"
_LOCAL: Final = "|".join(
    f"{_ATEXT}{{1,{longest}}}(?:\\.{_ATEXT}{{1,{longest}}}){{{others}}}"
    for longest, others in ((24, "0,1"), (15, "2,3"))
)
_LABEL: Final = "[a-z0-9](?:-?[a-z0-9]){0,24}"
_RESERVED: Final = "arpa|invalid|local|localhost|onion|test|alt|example|internal"

MAX_EMAIL_LENGTH: Final = 4 * 15 + 3 + len("@") + 3 * (1 + 2 * 24 + 1) + 18
"""The most characters of an address. Its local part has at most 64."""


@functools.cache
def email_text() -> Node:
    """Email addresses: up to four atoms before the @, up to four labels behind it, no reserved top-level domain.

    The domain is in lower case, as pydantic leaves it.
    """
    top_level = without(tree("[a-z]{2,18}"), tree(_RESERVED))
    return seq(tree(f"(?:{_LOCAL})@(?:{_LABEL}\\.){{1,3}}"), top_level)


@functools.cache
def name_email_text() -> Node:
    """Email addresses, also behind a name of up to four words in Latin letters, or behind one in quotation marks.

    A name in quotation marks has at most 64 characters: pydantic reads no text of more than 2,048.
    """
    word = repeat(tree("[A-Za-z0-9_'\\u00c0-\\u00d6\\u00d8-\\u00f6\\u00f8-\\u024f-]"), 1, 16)
    name = seq(word, repeat(seq(literal(" "), word), 0, 3))
    quoted = tree('"[^"\\\\\\x00-\\x1f\\x7f]{1,64}"')
    address = email_text()
    return alt([address, seq(alt([name, quoted]), literal(" <"), address, literal(">"))])


_HOST_LABEL: Final = "[a-zA-Z0-9](?:[a-zA-Z0-9_]|-[a-zA-Z0-9]){0,24}"
_HOST_END: Final = "[a-zA-Z](?:[a-zA-Z0-9_]|-[a-zA-Z0-9]){0,18}"
_PERCENT: Final = "%[0-9A-Fa-f]{2}"
_PERSON: Final = f"(?:[A-Za-z0-9._~-]|{_PERCENT})"
_PORT: Final = "(?:[1-9][0-9]{0,3}|[1-5][0-9]{4}|6(?:[0-4][0-9]{3}|5(?:[0-4][0-9]{2}|5(?:[0-2][0-9]|3[0-5]))))"
_LETTERS: Final = "A-Za-z0-9._~!$&()*+,;=:@/-"
MAX_TAIL: Final = 120
"""The most characters of a URL's path with its query, and of its fragment, if the type limits its length."""


def url_text(schemes: Sequence[str], *, bounded: bool, user: bool) -> Node:
    """URLs with a host, which is a name or an IPv4 address, and at most a path, a query and a fragment.

    Args:
        schemes: the schemes. URLs of files have no host.
        bounded: whether the length is limited. Then no character becomes several in the value.
        user: whether a user and a password may precede the host.
    """
    scheme = alt(literal(one) for one in schemes if one != "file")
    # A last label that is not a number cannot be read as an IPv4 address.
    name = seq(repeat(tree(f"{_HOST_LABEL}\\."), 0, 5), tree(_HOST_END))
    host = alt([name, tree(IPV4)])
    port = tree(f"(?::{_PORT})?")
    person = tree(f"(?:{_PERSON}{{0,32}}(?::{_PERSON}{{1,32}})?@)?") if user else tree("")
    bound = f"{{0,{MAX_TAIL}}}" if bounded else "*"
    apostrophe = "" if bounded else "'"  # %27 in a query
    letter = f"(?:[{apostrophe}{_LETTERS}]|{_PERCENT})"
    tail = tree(f"(?:[/?](?:{letter}|\\?){bound})?(?:#(?:{letter}|\\?){bound})?")
    remote = seq(scheme, literal("://"), person, host, port, tail)
    return alt([remote, tree(f"file:///{letter}{bound}")]) if "file" in schemes else remote


def least_url(scheme: str) -> str:
    """A URL of a scheme as `url_text` writes it."""
    return "file:///" if scheme == "file" else f"{scheme}://a"
