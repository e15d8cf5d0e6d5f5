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
TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
TIME_SPAN = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
DATE_SPAN = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"


def label(most: int) -> str:
    """A label of a host name, of at most this many characters. `--` in the third place marks an encoded name, whose
    code would have to be checked, so it is left out."""
    end, inner = "[a-zA-Z0-9]", "[a-zA-Z0-9-]"
    return f"{end}(?:{end}|{inner}{end}|{inner}{{2}}{end}|{inner}(?:{end}{inner}|-{end}){inner}{{0,{most - 5}}}{end})?"


# A whole name has at most 253 characters.
LABEL, SHORT_LABEL = label(63), label(30)
OCTET = "(?:[0-9]|[1-9][0-9]|1[0-9][0-9]|2[0-4][0-9]|25[0-5])"
IPV4 = rf"(?:{OCTET}\.){{3}}{OCTET}"
HEX4 = "[0-9a-fA-F]{1,4}"
IPV6 = "|".join(
    [
        f"(?:{HEX4}:){{7}}{HEX4}",
        f"(?:{HEX4}:){{1,7}}:",
        *(f"(?:{HEX4}:){{1,{7 - after}}}(?::{HEX4}){{1,{after}}}" for after in range(1, 7)),
        f":(?::{HEX4}){{1,7}}",
        "::",
        f"(?:{HEX4}:){{6}}{IPV4}",
        f"(?:{HEX4}:){{1,5}}:{IPV4}",
        f"::(?:{HEX4}:){{0,5}}{IPV4}",
    ]
)
HOST = rf"(?:{LABEL}(?:\.{LABEL}){{0,2}}|{SHORT_LABEL}(?:\.{SHORT_LABEL}){{3,6}})"
ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
EMAIL = (
    rf"(?:{ATOM}{{1,30}}(?:\.{ATOM}{{1,30}})?|{ATOM}{{1,15}}(?:\.{ATOM}{{1,15}}){{2,3}})"
    rf"@(?:{LABEL}(?:\.{LABEL}){{1,2}}|{SHORT_LABEL}(?:\.{SHORT_LABEL}){{3,4}})"
)
PORT = "(?:[0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3})"
AUTHORITY = rf"(?:[A-Za-z0-9._~-]+@)?(?:{HOST}|\[(?:{IPV6})\])(?::{PORT})?"
# Characters beyond ASCII, without white space and marks that no reader sees.
ASCII, LETTERS = "", r"\x{a1}-\x{1fff}\x{3040}-\x{d7ff}"


def uri(letters: str) -> str:
    """An absolute URI; `letters` are the characters beyond ASCII that its path, query and fragment may have."""
    char = path_char(letters, ":")
    path = f"(?:/{char}*)*"
    return rf"[A-Za-z][A-Za-z0-9+.-]*:(?://{AUTHORITY}{path}|//(?:/{char}+)+|/?{char}+{path}){tail(letters)}"


def relative(letters: str) -> str:
    """A relative reference, whose first segment has no colon."""
    char, first = path_char(letters, ":"), path_char(letters, "")
    return rf"(?://{AUTHORITY}(?:/{char}*)*|/?(?:{first}+(?:/{char}*)*)?){tail(letters)}"


def path_char(letters: str, more: str) -> str:
    return f"(?:[{more}{letters}A-Za-z0-9._~!$&'()*+,;=@-]|%[0-9A-Fa-f]{{2}})"


def tail(letters: str) -> str:
    """Query and fragment."""
    char = path_char(letters, ":/?")
    return rf"(?:\?{char}*)?(?:#{char}*)?"


NAME = r"[A-Za-z0-9_]+(?:\.[A-Za-z0-9_]+)*(?:\*|:[1-9][0-9]{0,3})?"
VARIABLE = rf"\{{[+#./;?&]?{NAME}(?:,{NAME})*\}}"
TEMPLATE = rf"(?:[A-Za-z][A-Za-z0-9+.-]*:)?(?:{path_char(ASCII, ':/?#')}|{VARIABLE})*"
REGEX_ATOM = r"(?:[A-Za-z0-9 _,:;@#%&=~!<>/-]|\.|\\[dDwWsS.*+?^$(){}|/\\\[\]]|\[\^?(?:[A-Za-z0-9_]|[a-y]-z|A-Z|0-9)+\])"
REGEX_PIECE = rf"{REGEX_ATOM}(?:[*+?]|\{{[0-9]{{1,3}}\}})?"
REGEX_GROUP = rf"\((?:{REGEX_PIECE})+(?:\|(?:{REGEX_PIECE})+)*\)[*+?]?"
POINTER = "(?:/(?:[^~/]|~[01])*)*"

# Formats that the grammar enforces. Others are annotations, as in the specification.
FORMATS = {
    "date": DATE,
    "time": TIME,
    "date-time": f"{DATE}T{TIME}",
    "duration": f"P(?:[0-9]+W|{DATE_SPAN}(?:{TIME_SPAN})?|{TIME_SPAN})",
    "email": EMAIL,
    "idn-email": EMAIL,
    "hostname": HOST,
    "idn-hostname": HOST,
    "ipv4": IPV4,
    "ipv6": f"(?:{IPV6})",
    "uri": uri(ASCII),
    "iri": uri(LETTERS),
    "uri-reference": f"(?:{uri(ASCII)}|{relative(ASCII)})",
    "iri-reference": f"(?:{uri(LETTERS)}|{relative(LETTERS)})",
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


ANY_TEXT = length_pattern(0, None)


def one_of(strings: list[str]) -> str | None:
    """A `pattern` for these strings only; None for an empty list."""
    return None if not strings else f"^(?:{'|'.join(''.join(map(_literal, text)) for text in strings)})$"


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
