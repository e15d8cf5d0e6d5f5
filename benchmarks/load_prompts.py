"""Prompts of the load measurements: code, chat, JSON extraction and whole-file edits, 24 of each.

Every request has a ticket number before its text, so only the system turn is found in the prefix cache.
"""

from __future__ import annotations

from typing import Any

from benchmarks.coder_prompts import CHAT

KINDS = ("code", "chat", "json", "edit")
SYSTEM = "You are a careful assistant. Answer completely and to the point, without repeating the question."

_TASKS = (
    "returns the n-th Fibonacci number iteratively", "checks whether a string is a palindrome, ignoring punctuation",
    "merges two sorted lists", "counts the words of a text file and prints the ten most frequent ones",
    "parses an ISO date without a library", "computes the edit distance of two strings",
    "flattens a nested list of any depth", "reads a CSV file into a list of dictionaries",
    "implements a least-recently-used cache", "finds all prime numbers up to n", "validates an IPv4 address",
    "converts Roman numerals to integers", "sorts words by their length, then alphabetically",
    "computes a moving average over a window", "transposes a matrix given as a list of rows",
    "groups anagrams together", "rounds a price to two digits and formats it with a currency",
    "finds the longest common prefix of several strings", "retries a call with exponential backoff",
    "splits a list into chunks of equal size", "removes duplicates but keeps the order",
    "evaluates an arithmetic expression with parentheses", "rotates a list by k places",
    "draws a histogram with asterisks",
)  # fmt: skip
_NAMES = ("Ada Moss", "Ben Okafor", "Clara Diaz", "Deniz Kaya", "Eva Lind", "Farid Aziz")
_CITIES = ("Lisbon", "Oslo", "Kyoto", "Quito")

# Schemas of constrained requests: a person, an order, and a list of tags.
SCHEMAS: tuple[dict[str, Any], ...] = (
    {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer"},
            "city": {"type": "string"},
            "languages": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
        },
        "required": ["name", "age", "city", "languages"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {
            "order": {"type": "string"},
            "items": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {"product": {"type": "string"}, "count": {"type": "integer"}},
                    "required": ["product", "count"],
                    "additionalProperties": False,
                },
                "maxItems": 4,
            },
            "is_paid": {"type": "boolean"},
        },
        "required": ["order", "items", "is_paid"],
        "additionalProperties": False,
    },
)
_FILE = '''"""Accounts of a small shop."""


class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance

    def deposit(self, amount):
        self.balance = self.balance + amount
        return self.balance

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance = self.balance - amount
        return self.balance


def {function}(accounts):
    total = 0
    for account in accounts:
        total = total + account.balance
    return total
'''


def text_of(kind: str, index: int, ticket: int) -> str:
    """The user turn of prompt `index` of a kind."""
    return f"[ticket {ticket:06d}] {_TEXTS[kind](index % 24)}"


def _code(index: int) -> str:
    return f"Write a Python function that {_TASKS[index]}. Include a docstring and a short example."


def _chat(index: int) -> str:
    return CHAT[index % len(CHAT)]


def _json(index: int) -> str:
    name, city = _NAMES[index % len(_NAMES)], _CITIES[index % len(_CITIES)]
    return (
        f"Extract the facts as JSON: {name}, {20 + index}, lives in {city}, speaks Spanish and English, and ordered "
        f"{1 + index % 3} lamps and {2 + index % 5} chairs under number A-{1000 + 7 * index}, which is paid."
    )


def _edit(index: int) -> str:
    names = ("total", "sum_all", "worth", "add_up")
    wanted = ("rename the function to net_worth", "add type annotations", "use augmented assignment", "add docstrings")
    source = _FILE.format(function=names[index % 4])
    return f"In this file, {wanted[index // 6 % 4]}. Answer with the whole file only.\n\n```python\n{source}```"


_TEXTS = {"code": _code, "chat": _chat, "json": _json, "edit": _edit}
