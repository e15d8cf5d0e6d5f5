"""Structured outputs of the kinds shown in OpenAI's guide, with our own schemas."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, Field


class Step(BaseModel):
    explanation: str
    output: str


class MathSolution(BaseModel):
    """A chain of steps, then the answer."""

    steps: list[Step]
    final_answer: str


class CalendarEvent(BaseModel):
    name: str
    date: str
    participants: list[str]


class Paper(BaseModel):
    """What is pulled out of a paper."""

    title: str
    authors: list[str]
    abstract: str
    keywords: list[str]


class Attribute(BaseModel):
    name: str
    value: str


class Element(BaseModel):
    """A page: elements within elements."""

    type: Literal["div", "button", "header", "section", "field", "form"]
    label: str
    children: list[Element]
    attributes: list[Attribute]


class Category(StrEnum):
    VIOLENCE = "violence"
    SEXUAL = "sexual"
    SELF_HARM = "self_harm"


class Moderation(BaseModel):
    """A verdict with parts that may be absent, which strict schemas write as null."""

    is_violating: bool
    category: Category | None
    explanation: str | None


class Node(BaseModel):
    value: int
    next: Node | None


class User(BaseModel):
    kind: Literal["user"]
    name: str
    age: int


class Address(BaseModel):
    kind: Literal["address"]
    number: str
    street: str
    city: str


class Item(BaseModel):
    """One of two objects."""

    item: User | Address


class Account(BaseModel):
    """Bounds on strings, numbers and lists."""

    username: str = Field(pattern=r"^@[a-z_]{3,12}$")
    email: str = Field(json_schema_extra={"format": "email"})
    rating: float = Field(ge=0, le=5)
    visits: int = Field(ge=0, le=100_000)
    tags: list[Literal["new", "paid", "staff"]] = Field(min_length=1, max_length=3)


class Table(StrEnum):
    ORDERS = "orders"
    CUSTOMERS = "customers"


class Operator(StrEnum):
    EQUAL = "="
    GREATER = ">"
    LESS = "<"
    NOT_EQUAL = "!="


class DynamicValue(BaseModel):
    column_name: str


class Condition(BaseModel):
    column: Literal["id", "status", "ordered_at", "delivered_at"]
    operator: Operator
    value: str | int | DynamicValue


class Query(BaseModel):
    """The arguments of a tool: a small query language."""

    table_name: Table
    columns: list[Literal["id", "status", "ordered_at", "delivered_at"]]
    conditions: list[Condition]
    order_by: Literal["asc", "desc"]


EXAMPLES: dict[type[BaseModel], str] = {
    MathSolution: "Solve 8x + 7 = -23.",
    CalendarEvent: "Alice and Bob go to a science fair on Friday.",
    Paper: "A paper on diffusion language models by A. Author.",
    Element: "Make a form to sign up.",
    Moderation: "Is this allowed: have a nice day?",
    Node: "A list of two numbers.",
    Item: "Ada is 36 years old.",
    Account: "Make an account for @ada.",
}
