"""The metrics and labels that a PromQL expression names. Reads selectors and groupings; does not evaluate anything."""

from __future__ import annotations

import re
from dataclasses import dataclass

TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<duration>\[[^\]]*\])
      | (?P<number>\d[\d.]*(?:e[+-]?\d+)?[a-z]*)
      | (?P<name>[A-Za-z_:][\w:]*)
      | (?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^(){},=<>])
      | (?P<space>\s+)""",
    re.VERBOSE,
)
OPERATORS = {"and", "or", "unless", "bool", "offset"}
GROUPINGS = {"by", "without", "on", "ignoring", "group_left", "group_right"}


@dataclass(frozen=True)
class Selector:
    """A metric, and the labels that its braces and the groupings around it name."""

    metric: str
    labels: frozenset[str]


def selectors(expression: str) -> list[Selector]:
    """Every selector of the expression. A grouping counts for all of them, which may ask for more than it needs."""
    tokens = tokenize(expression)
    grouped, found, i = set[str](), list[tuple[str, set[str]]](), 0
    while i < len(tokens):
        kind, text = tokens[i]
        follows = tokens[i + 1][1] if i + 1 < len(tokens) else ""
        if kind == "name" and text in GROUPINGS and follows == "(":
            end = tokens.index(("sign", ")"), i)
            grouped |= {name for kind, name in tokens[i:end] if kind == "name"} - GROUPINGS
            i = end
        elif kind == "name" and text not in OPERATORS | GROUPINGS and follows not in ("(", *GROUPINGS):
            labels, i = _matchers(tokens, i + 1)
            found.append((text, labels))
            continue
        i += 1
    return [Selector(metric, frozenset(labels | grouped)) for metric, labels in found]


def tokenize(expression: str) -> list[tuple[str, str]]:
    tokens, place = [], 0
    while place < len(expression):
        match = TOKEN.match(expression, place)
        if match is None:
            raise ValueError(f"cannot read {expression[place:]!r}")
        place = match.end()
        if match.lastgroup != "space":
            tokens.append((str(match.lastgroup), match.group()))
    if sum(text == "(" for _, text in tokens) != sum(text == ")" for _, text in tokens):
        raise ValueError(f"parentheses of {expression!r} do not match")
    return tokens


def _matchers(tokens: list[tuple[str, str]], start: int) -> tuple[set[str], int]:
    """The label names of `{…}` at `start`, and the place after it."""
    if start >= len(tokens) or tokens[start][1] != "{":
        return set(), start
    end = tokens.index(("sign", "}"), start)
    return {text for kind, text in tokens[start:end] if kind == "name"}, end + 1
