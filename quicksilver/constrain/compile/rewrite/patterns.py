"""Regular expressions for string formats, lengths, and "any string except these".

Rust syntax, matched against the whole string. The pattern of a format admits only what strict validators accept, which
may be less than its RFC allows.
"""

from __future__ import annotations

from collections.abc import Iterable

# Total characters of the strings that `other_than` excludes.
MAX_EXCLUDED_CHARS = 1_500
ANYTHING = "(?s:.*)"

YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
LEAP_YEAR = "(?:(?:[0-9][0-9])(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
DATE = (
    f"(?:{YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{LEAP_YEAR}-02-29)"
)
TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
OCTET = "(?:[0-9]|[1-9][0-9]|1[0-9][0-9]|2[0-4][0-9]|25[0-5])"
HEX4 = "[0-9a-fA-F]{1,4}"
PCHAR = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
HOST = rf"{LABEL}(?:\.{LABEL}){{0,2}}"
AUTHORITY = rf"(?:[A-Za-z0-9._~-]+@)?{HOST}(?::[0-9]{{1,4}})?"
TAIL = rf"(?:\?(?:{PCHAR}|[/?])*)?(?:#(?:{PCHAR}|[/?])*)?"
URI = rf"[A-Za-z][A-Za-z0-9+.-]*:(?://{AUTHORITY}(?:/{PCHAR}*)*|/?{PCHAR}+(?:/{PCHAR}*)*){TAIL}"
RELATIVE = rf"(?:\.{{0,2}}/)?(?:[A-Za-z0-9._~-]+(?:/{PCHAR}*)*)?{TAIL}"
EMAIL = rf"[A-Za-z0-9_+-]{{1,30}}(?:\.[A-Za-z0-9_+-]{{1,30}})?@{LABEL}(?:\.{LABEL}){{1,2}}"
VARIABLE = r"\{[A-Za-z_][A-Za-z0-9_]*\}"
TEMPLATE = rf"(?:[A-Za-z][A-Za-z0-9+.-]*:)?(?:{PCHAR}|[/?#]|{VARIABLE})*"
REGEX_ATOM = r"(?:[A-Za-z0-9 _,:;@#%&=~!<>/-]|\.|\\[dDwWsS.*+?^$(){}|/\\\[\]]|\[\^?(?:[A-Za-z0-9_]|[a-y]-z|A-Z|0-9)+\])"
REGEX_PIECE = rf"{REGEX_ATOM}(?:[*+?]|\{{[0-9]{{1,3}}\}})?"
REGEX_GROUP = rf"\((?:{REGEX_PIECE})+(?:\|(?:{REGEX_PIECE})+)*\)[*+?]?"
POINTER = "(?:/(?:[^~/]|~[01])*)*"

# Formats that the grammar enforces. Others are annotations, as in the specification.
FORMATS = {
    "date": DATE,
    "time": TIME,
    "date-time": f"{DATE}T{TIME}",
    "duration": (
        "P(?:[0-9]+W|[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D"
        "|(?:[0-9]+D)?T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S))"
    ),
    "email": EMAIL,
    "idn-email": EMAIL,
    "hostname": HOST,
    "idn-hostname": HOST,
    "ipv4": rf"(?:{OCTET}\.){{3}}{OCTET}",
    "ipv6": f"(?:(?:{HEX4}:){{7}}{HEX4}|::(?:(?:{HEX4}:){{0,5}}{HEX4})?|(?:{HEX4}:){{1,5}}:{HEX4})",
    "uri": URI,
    "iri": URI,
    "uri-reference": f"(?:{URI}|{RELATIVE})",
    "iri-reference": f"(?:{URI}|{RELATIVE})",
    "uri-template": TEMPLATE,
    "regex": rf"\^?(?:{REGEX_PIECE}|{REGEX_GROUP})+\$?",
    "uuid": "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}",
    "json-pointer": POINTER,
    "relative-json-pointer": f"(?:0|[1-9][0-9]*)(?:#|{POINTER})",
}


BASE64 = "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$"


def format_pattern(name: str) -> str | None:
    """A `pattern` for a known format."""
    body = FORMATS.get(name)
    return None if body is None else f"^(?:{body})$"


def length_pattern(shortest: int, longest: int | None) -> str:
    """A `pattern` for strings of a length."""
    return f"^(?s:.{{{shortest},{'' if longest is None else longest}}})$"


def other_than(strings: Iterable[str]) -> str | None:
    """A `pattern` for every string except these; None if the list is too long."""
    listed = sorted(set(strings))
    if sum(map(len, listed)) > MAX_EXCLUDED_CHARS or any(len(text) > 200 for text in listed):
        return None
    return f"^(?:{_leaving(listed)})$"


def _leaving(strings: list[str]) -> str:
    """An expression for all strings except `strings`, which are suffixes after a common prefix."""
    heads = sorted({text[0] for text in strings if text})
    ways = [] if "" in strings else [""]
    # A negated set without quote and backslash must exclude NUL, or llguidance would admit their escapes.
    other = "".join(map(_literal, heads))
    ways.append(f"[^{other}\\x{{0}}]{ANYTHING}" if heads else "(?s:.+)")
    for head in heads:
        tails = [text[1:] for text in strings if text[:1] == head]
        ways.append(f"{_literal(head)}{_leaving(tails)}")
    return f"(?:{'|'.join(ways)})"


def _literal(char: str) -> str:
    return char if char.isascii() and char.isalnum() else f"\\x{{{ord(char):x}}}"
