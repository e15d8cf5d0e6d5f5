"""Extraction: the text of an invoice becomes an object of a JSON Schema.

The invoices are made by rule, so the right value of every field is known. The server guarantees the schema; whether the
values are right depends on the model, and the example counts it.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass

from examples.measure import Chat, compare, connect, parser

SELLERS = ("Nordwind GmbH", "Acme Ltd", "Lumen SARL", "Blue Harbor Inc")
GOODS = ("paper", "cable", "lamp", "chair", "toner")
CURRENCIES = ("EUR", "USD", "GBP")
PROPERTIES = {
    "invoice_number": {"type": "string", "maxLength": 12},
    "seller": {"type": "string", "maxLength": 40},
    "date": {"type": "string", "pattern": "^20[0-9]{2}-[01][0-9]-[0-3][0-9]$"},
    "currency": {"enum": list(CURRENCIES)},
    "total": {"type": "integer", "minimum": 0, "maximum": 99999},
}
SCHEMA = {
    "type": "object",
    "properties": PROPERTIES,
    "required": list(PROPERTIES),
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Invoice:
    invoice_number: str
    seller: str
    date: str
    currency: str
    total: int


def make(rng: random.Random) -> tuple[str, Invoice]:
    """The text of an invoice, and its fields."""
    lines = [(rng.choice(GOODS), rng.randint(1, 9), rng.randint(2, 90)) for _ in range(rng.randint(1, 3))]
    invoice = Invoice(
        invoice_number=f"{rng.choice(('IN', 'RE', 'FA'))}-{rng.randint(1000, 9999)}",
        seller=rng.choice(SELLERS),
        date=f"2026-{rng.randint(1, 12):02}-{rng.randint(1, 28):02}",
        currency=rng.choice(CURRENCIES),
        total=sum(count * price for _, count, price in lines),
    )
    goods = "\n".join(f"{count} x {name} at {price}" for name, count, price in lines)
    text = f"Invoice {invoice.invoice_number}\nDate: {invoice.date}\nFrom: {invoice.seller}\n{goods}"
    return f"{text}\nTotal: {invoice.total} {invoice.currency}", invoice


def extract(chat: Chat, text: str) -> Invoice:
    message = chat.ask(
        f"Extract the fields of this invoice as JSON.\n\n{text}",
        max_tokens=128,
        response_format={"type": "json_schema", "json_schema": {"name": "invoice", "schema": SCHEMA}},
    )
    return Invoice(**json.loads(message.content))


def run(chat: Chat, count: int = 20) -> dict[str, int]:
    """For each field the number of invoices in which it is right."""
    rng = random.Random(0)
    right = dict.fromkeys(PROPERTIES, 0)
    for _ in range(count):
        text, expected = make(rng)
        found = asdict(extract(chat, text))
        for name, value in asdict(expected).items():
            right[name] += found[name] == value
    return right


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--count", type=int, default=20)
    arguments = options.parse_args()
    right = compare(connect(arguments), lambda chat: run(chat, arguments.count))
    print(f"{arguments.count} of {arguments.count} answers have the form of the schema")
    print("right: " + ", ".join(f"{name} {count}" for name, count in right.items()))


if __name__ == "__main__":
    main()
