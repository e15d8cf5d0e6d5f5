"""Plausible strings for a property, chosen by the property name."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from quicksilver.training.synthesis.banks import CATEGORIES, CITIES, COMPANIES, PEOPLE, PRODUCTS, QUESTION_TOPICS

Draw = Callable[[random.Random], str]


def _pick(bank: tuple[str, ...]) -> Draw:
    return lambda rng: rng.choice(bank)


def _word(rng: random.Random) -> str:
    return rng.choice(CATEGORIES[rng.choice(sorted(CATEGORIES))]).lower().replace(" ", "-")


def _date(rng: random.Random) -> str:
    return f"20{rng.randint(10, 30)}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"


def _time(rng: random.Random) -> str:
    return f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}:00Z"


def _hex(rng: random.Random, length: int) -> str:
    return "".join(rng.choices("0123456789abcdef", k=length))


def _uuid(rng: random.Random) -> str:
    return "-".join(_hex(rng, n) for n in (8, 4, 4, 4, 12))


def _sentence(rng: random.Random) -> str:
    shapes = ("A short note about {}.", "All about {}.", "Notes on {} and {}.", "Everything we know of {}.")
    return rng.choice(shapes).format(rng.choice(QUESTION_TOPICS), rng.choice(QUESTION_TOPICS))


FORMATS: Mapping[str, Draw] = {
    "date": _date,
    "date-time": lambda rng: f"{_date(rng)}T{_time(rng)}",
    "time": _time,
    "email": lambda rng: f"{_word(rng)}@example.com",
    "uri": lambda rng: f"https://example.com/{_word(rng)}",
    "url": lambda rng: f"https://example.com/{_word(rng)}",
    "uri-reference": lambda rng: f"/{_word(rng)}",
    "uuid": _uuid,
    "ipv4": lambda rng: f"192.0.2.{rng.randint(1, 254)}",
    "hostname": lambda rng: f"{_word(rng)}.example.com",
}

# The first key contained in the lower-case property name is used.
_BY_NAME: tuple[tuple[tuple[str, ...], Draw], ...] = (
    (("url", "uri", "href", "link", "website"), FORMATS["uri"]),
    (("email", "mail"), FORMATS["email"]),
    (("uuid", "guid"), _uuid),
    (("date", "day", "birth"), _date),
    (("time", "created", "updated", "_at"), FORMATS["date-time"]),
    (("version",), lambda rng: f"{rng.randint(0, 9)}.{rng.randint(0, 20)}.{rng.randint(0, 9)}"),
    (("phone",), lambda rng: f"555-{rng.randint(1000, 9999)}"),
    (("path", "file", "folder", "directory"), lambda rng: f"{_word(rng)}/{_word(rng)}.txt"),
    (("description", "summary", "comment", "message", "text", "note", "abstract"), _sentence),
    (("title", "label", "subject"), lambda rng: rng.choice(QUESTION_TOPICS).capitalize()),
    (("city", "place", "location", "town"), _pick(CITIES)),
    (("country",), _pick(CATEGORIES["countries"])),
    (("colour", "color"), _pick(CATEGORIES["colors"])),
    (("company", "vendor", "brand", "organization", "organisation"), _pick(COMPANIES)),
    (("product", "item"), _pick(PRODUCTS)),
    (("author", "owner", "person", "contact"), _pick(PEOPLE)),
    (("language", "lang", "locale"), _pick(("en", "de", "fr", "es", "en-US"))),
    (("currency",), _pick(("USD", "EUR", "GBP", "JPY"))),
    (("hash", "token", "key", "sha"), lambda rng: _hex(rng, 12)),
    (("name",), lambda rng: rng.choice((rng.choice(PEOPLE), _word(rng)))),
    (("id",), lambda rng: f"{_word(rng)}-{rng.randint(1, 99)}"),
)


def string_value(name: str, schema: Mapping[str, Any], rng: random.Random) -> str:
    """A value for the string property `name`, within the lengths of its schema."""
    if schema.get("format") in FORMATS:
        return FORMATS[schema["format"]](rng)
    for stated in (*schema.get("examples", ()), schema.get("default")):
        if isinstance(stated, str) and stated:
            return stated
    text = _drawn(name, rng)
    least, most = int(schema.get("minLength", 0)), int(schema.get("maxLength", 60))
    return (text * (least // len(text) + 1) if least > len(text) else text)[:most]


def _drawn(name: str, rng: random.Random) -> str:
    lower = name.lower()
    for keys, draw in _BY_NAME:
        if any(key in lower for key in keys):
            return draw(rng)
    return _word(rng)
