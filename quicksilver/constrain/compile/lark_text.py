"""Lark fragments (quoted text, tags, text up to a tag) and the restrictions on grammars of callers.

The grammar of a caller must not name special tokens, set sampling options or refer to other grammars.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from quicksilver.constrain.compile.rewrite.limits import MAX_GRAMMAR_BYTES
from quicksilver.constrain.compile.rewrite.refusal import too_big
from quicksilver.constrain.source import Tag, Thinking
from quicksilver.errors import InvalidGrammar

# Any text. Special tokens are never part of it.
TEXT = "TEXT: /(?s:.*)/"
FORBIDDEN_OPTIONS = ("max_tokens", "temperature", "stop", "stop_capture", "capture")


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def tag(mark: Tag) -> str:
    """A special token by its id, or literal text."""
    return f"<[{mark}]>" if isinstance(mark, int) else quoted(mark)


def until(mark: Tag, name: str) -> str:
    """A rule `name`: text that ends with the first `mark`."""
    return f"{name}: TEXT {tag(mark)}" if isinstance(mark, int) else f"{name}[lazy]: TEXT {quoted(mark)}"


def thinking_rules(thinking: Thinking) -> list[str]:
    """Rules for `think`, which may be empty if the section is optional."""
    use = "think_end" if thinking.open is None else f"({tag(thinking.open)} think_end)?"
    return [f"think: {use}", until(thinking.close, "think_end")]


def refuse_reserved_syntax(grammar: str) -> None:
    """Raises InvalidGrammar if a caller's grammar uses reserved syntax. Other errors are found by llguidance."""
    size = len(grammar.encode("utf-8", "surrogatepass"))
    if size > MAX_GRAMMAR_BYTES:
        raise too_big("bytes in the `grammar`", MAX_GRAMMAR_BYTES, size)
    bare = "".join(outside_quotes(grammar))
    if "<" in bare:
        raise InvalidGrammar("The grammar names a special token with `<...>`, which is not allowed.")
    if "%llguidance" in bare or "@" in bare:
        raise InvalidGrammar("The grammar uses `%llguidance` or `@`, which are not allowed.")
    for option in FORBIDDEN_OPTIONS:
        if f"{option}=" in bare.replace(" ", ""):
            raise InvalidGrammar(f"The grammar sets `{option}`, which is not allowed.")


def outside_quotes(grammar: str) -> Iterator[str]:
    """The characters outside strings, regular expressions and comments."""
    i = 0
    while i < len(grammar):
        char = grammar[i]
        if grammar.startswith("//", i) or char == "#":
            i = end_of_line(grammar, i)
        elif char in "\"'/":
            i = end_of_quote(grammar, i)
        else:
            yield char
            i += 1


def end_of_line(text: str, start: int) -> int:
    end = text.find("\n", start)
    return len(text) if end < 0 else end


def end_of_quote(text: str, start: int) -> int:
    """The index after the closing quote of the string that starts at `start`."""
    i = start + 1
    while i < len(text) and text[i] != text[start]:
        i += 2 if text[i] == "\\" else 1
    return i + 1
