"""Translates the `pattern` of a schema from ECMA-262 to the regex syntax of Rust.

The two differ in details (`[[a]]`, `\\s`, `{`), and llguidance handles control characters incorrectly, which JSON would
have to escape. A pattern that has no exact translation is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn

from quicksilver.constrain.compile.rewrite.refusal import Unenforceable

# White space in ECMA-262.
SPACES = r"\t\n\x{b}\f\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}\x{feff}"
# What `.` matches in every dialect; in some it also matches a carriage return.
NARROW_DOT = r"[^\n\r\x{2028}\x{2029}]"
# Escapes with the same meaning in both languages, or that llguidance refuses.
SAFE_LETTERS = frozenset("dDwWnrtfbBpPk123456789")
QUANTIFIER = re.compile(r"[*+?]|\{[0-9]+(?:,[0-9]*)?\}")
# Control characters with a short escape in JSON.
JSON_CONTROLS = "\b\t\n\f\r"


def value_pattern(pattern: str, at: str) -> str:
    """An expression for string values. It matches only what every dialect matches."""
    return _Translation(pattern, at, NARROW_DOT).run()


def name_pattern(pattern: str, at: str) -> str:
    """An expression for property names. It must not match less, or a property would escape its schema."""
    return _Translation(pattern, at, ".").run()


def is_writable(text: str) -> bool:
    """Whether the grammar can write these characters in a JSON string."""
    return not any((char < " " and char not in JSON_CONTROLS) or char == "\x7f" for char in text)


class _Translation:
    def __init__(self, pattern: str, at: str, dot: str) -> None:
        self._pattern = pattern
        self._at = at
        self._dot = dot
        self._i = 0
        self._out: list[str] = []

    def run(self) -> str:
        steps: dict[str, Callable[[], None]] = {
            "\\": self._escape,
            "[": self._class,
            ".": lambda: self._emit(self._dot, 1),
            "{": self._brace,
            "}": lambda: self._emit("\\}", 1),
        }
        while self._i < len(self._pattern):
            steps.get(self._pattern[self._i], self._plain)()
        return "".join(self._out)

    def _emit(self, text: str, width: int) -> None:
        self._out.append(text)
        self._i += width

    def _plain(self) -> None:
        char = self._pattern[self._i]
        self._emit(self._written(char), 1)
        if char in "*+?":
            self._skip_lazy()

    def _brace(self) -> None:
        """A quantifier, or a literal brace."""
        end = self._pattern.find("}", self._i)
        body = self._pattern[self._i + 1 : end] if end > 0 else ""
        least, _, most = body.partition(",")
        if not (least.isdecimal() and (most.isdecimal() or not most)):
            self._emit("\\{", 1)
            return
        self._emit(f"{{{body}}}", len(body) + 2)
        self._skip_lazy()

    def _skip_lazy(self) -> None:
        """Skips the mark of a lazy quantifier: lazy and greedy ones match the same strings."""
        if self._pattern[self._i : self._i + 1] == "?":
            self._i += 1
        if QUANTIFIER.match(self._pattern, self._i):
            self._refuse("a quantifier follows another one")

    def _escape(self) -> None:
        letter = self._peek(1)
        if letter in "sS":
            self._emit(f"[{'^' if letter == 'S' else ''}{SPACES}]", 2)
        elif letter in "xu":
            char, width = self._code_point()
            self._emit(literal(self._written(char)), width)
        else:
            self._same_escape(letter)

    def _same_escape(self, letter: str) -> None:
        """An escape that passes unchanged."""
        if letter in "pP" and self._peek(2) == "{":
            end = self._pattern.find("}", self._i) + 1
            self._emit(self._pattern[self._i : end], end - self._i)
            return
        if letter in "<>" or not letter.isascii() or (letter.isalnum() and letter not in SAFE_LETTERS):
            self._refuse(f"\\{letter} is interpreted differently by different validators")
        self._emit(f"\\{letter}", 2)

    def _code_point(self) -> tuple[str, int]:
        """The character of `\\x41`, `\\u0041` or `\\u{41}`, and the width of the escape."""
        start = self._i + 2
        if self._peek(2) == "{":
            end = self._pattern.find("}", start) + 1
            digits = self._pattern[start + 1 : end - 1]
        else:
            end = start + (2 if self._peek(1) == "x" else 4)
            digits = self._pattern[start:end]
        try:
            return chr(int(digits, 16)), end - self._i
        except (ValueError, OverflowError):
            self._refuse("an escape names no character")

    def _class(self) -> None:
        """A character class, with the characters escaped that are special in Rust only.

        NUL is removed: llguidance treats a set with NUL as if it held every escaped character, including quotes.
        """
        is_negated = self._peek(1) == "^"
        self._emit("[^" if is_negated else "[", 2 if is_negated else 1)
        start, members = self._i, 0
        while self._peek(0) != "]":
            self._member()
            members += 1
        body = self._pattern[start : self._i]
        if not body or "--" in body:
            self._refuse(f"the class [{body}] is interpreted differently by different validators")
        if members == 1 and not is_negated and body.startswith(("\\x", "\\u")):
            self._refuse("a class of one code is not supported; write the character itself")
        self._emit(r"\x{0}]" if is_negated else "]", 1)

    def _member(self) -> None:
        char = self._pattern[self._i]
        letter = self._peek(1) if char == "\\" else ""
        if char != "\\":
            self._emit(f"\\{char}" if char in "[&~" else max(char, "\x01"), 1)
        elif letter in "sS":
            self._emit(SPACES if letter == "s" else f"[^{SPACES}]", 2)
        elif letter in "xu":
            code, width = self._code_point()
            self._emit(literal(max(code, "\x01")), width)
        else:
            self._same_escape(letter)

    def _written(self, char: str) -> str:
        if not is_writable(char):
            self._refuse("control characters cannot be written")
        return char

    def _peek(self, ahead: int) -> str:
        if self._i + ahead >= len(self._pattern):
            self._refuse("it ends too early")
        return self._pattern[self._i + ahead]

    def _refuse(self, why: str) -> NoReturn:
        raise Unenforceable("pattern", self._at, why)


def literal(char: str) -> str:
    return f"\\x{{{ord(char):x}}}"
