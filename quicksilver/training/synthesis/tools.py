"""Tool-calling rows by rule: random functions with typed parameters, requests that state exact values.

Covers one call, parallel calls, a missing parameter that must be asked for, a question that no tool fits, and an answer
from a tool result. Names and descriptions vary, so that the schema must be read.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from quicksilver.text.chat import Message, Tool, ToolCall
from quicksilver.training.rows import ChatRow
from quicksilver.training.synthesis.banks import (
    AMOUNTS,
    CITIES,
    COMPANIES,
    DATES,
    PEOPLE,
    PLAIN_QA,
    PRODUCTS,
    TIMES,
    TOPICS,
)

Draw = Callable[[random.Random], Any]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A typed parameter and how a request words it."""

    names: tuple[str, ...]
    kind: str
    description: str
    draw: Draw
    # Phrase with {} for the value.
    phrase: str
    # The question to ask if a request omits the parameter.
    ask: str = ""


@dataclass(frozen=True, slots=True)
class ToolFunction:
    """A kind of tool: alternative names, and requests that call it."""

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    requests: tuple[str, ...]
    needed: tuple[Parameter, ...]
    optional: tuple[Parameter, ...] = ()


def _pick(bank: tuple[str, ...]) -> Draw:
    return lambda rng: rng.choice(bank)


def _number(low: int, high: int) -> Draw:
    return lambda rng: rng.randint(low, high)


CITY = Parameter(("city", "location", "place"), "string", "Name of the city", _pick(CITIES), "in {}", "Which city?")
DAY = Parameter(("date", "day"), "string", "Date as YYYY-MM-DD", _pick(DATES), "on {}", "For which date?")
HOUR = Parameter(("time", "at"), "string", "Time as HH:MM", _pick(TIMES), "at {}", "At what time?")
PERSON = Parameter(("name", "person", "contact"), "string", "Name of the person", _pick(PEOPLE), "for {}", "For whom?")
TO = Parameter(("to", "recipient"), "string", "Who receives it", _pick(PEOPLE), "to {}", "Who should receive it?")
TOPIC = Parameter(("query", "topic", "subject"), "string", "What to look for", _pick(TOPICS), "about {}", "About what?")
COUNT = Parameter(("count", "limit", "max_results"), "integer", "How many", _number(1, 20), "with at most {} results")
GUESTS = Parameter(
    ("guests", "party_size"), "integer", "Number of people", _number(1, 12), "for {} people", "How many people?"
)
AMOUNT = Parameter(("amount", "value"), "number", "The amount", lambda r: r.choice(AMOUNTS), "of {}", "What amount?")
PRODUCT = Parameter(("product", "item"), "string", "Product name", _pick(PRODUCTS), "of {}", "Which product?")
COMPANY = Parameter(("company", "ticker", "symbol"), "string", "Company", _pick(COMPANIES), "of {}", "Which company?")
UNITS = Parameter(("unit", "units"), "string", "celsius or fahrenheit", _pick(("celsius", "fahrenheit")), "in {}")
LOUD = Parameter(("volume", "level"), "integer", "0 to 100", _number(0, 100), "to {}", "To what level?")
MINUTES = Parameter(
    ("minutes", "duration"), "integer", "Length in minutes", _number(5, 120), "for {} minutes", "For how long?"
)
LANGUAGE = Parameter(
    ("language", "target_language"),
    "string",
    "Language",
    _pick(("French", "German", "Spanish", "Italian", "Polish")),
    "into {}",
    "Into which language?",
)
TEXT = Parameter(
    ("text", "message", "body"),
    "string",
    "The text",
    _pick(
        (
            "See you soon",
            "The report is ready",
            "Happy birthday",
            "I am running late",
            "Call me back",
            "Thank you for your help",
        )
    ),
    'saying "{}"',
    "What should it say?",
)
SIDE_A = Parameter(("a", "width", "base"), "number", "First number", _number(1, 99), "{}", "What is the first number?")
SIDE_B = Parameter(
    ("b", "height", "exponent"), "number", "Second number", _number(1, 99), "and {}", "What is the second number?"
)

FUNCTIONS: tuple[ToolFunction, ...] = (
    ToolFunction(
        ("get_weather", "weather_lookup", "currentWeather", "fetch_forecast"),
        ("Get the weather of a city", "Returns current weather"),
        (
            "What is the weather like {0}?",
            "Tell me the weather {0}",
            "How warm is it {0} right now?",
            "Do I need an umbrella {0}?",
        ),
        (CITY,),
        (UNITS, DAY),
    ),
    ToolFunction(
        ("book_table", "reserve_restaurant", "make_reservation"),
        ("Reserve a table at a restaurant",),
        ("Book a table {0} {1} {2}", "Please reserve a restaurant table {0} {1} {2}"),
        (CITY, DAY, GUESTS),
        (HOUR,),
    ),
    ToolFunction(
        ("send_message", "send_email", "notify", "send_sms"),
        ("Send a message to somebody",),
        ("Send a message {0} {1}", "Write {0} {1}", "Text {0} {1}"),
        (TO, TEXT),
    ),
    ToolFunction(
        ("search_web", "web_search", "find_articles", "search_news"),
        ("Search for documents",),
        ("Find articles {0}", "Search {0}", "Look up something {0}", "What is new {0}?"),
        (TOPIC,),
        (COUNT,),
    ),
    ToolFunction(
        ("get_stock_price", "stock_quote", "share_price"),
        ("Latest share price of a company",),
        ("What is the share price {0}?", "Get me the stock price {0}"),
        (COMPANY,),
    ),
    ToolFunction(
        ("create_event", "add_calendar_event", "schedule_meeting"),
        ("Put an event into the calendar",),
        ("Schedule a meeting {0} {1} {2}", "Add an appointment {0} {1} {2} to my calendar"),
        (PERSON, DAY, HOUR),
        (MINUTES,),
    ),
    ToolFunction(
        ("set_volume", "change_volume"),
        ("Set the loudness of the player",),
        ("Set the volume {0}", "Turn the sound {0}"),
        (LOUD,),
    ),
    ToolFunction(
        ("start_timer", "set_timer", "countdown"),
        ("Start a timer",),
        ("Set a timer {0}", "Start a countdown {0}"),
        (MINUTES,),
    ),
    ToolFunction(
        ("translate_text", "translate"),
        ("Translate text into another language",),
        ("Translate a note {0} {1}", "I need a text {0} put {1}"),
        (TEXT, LANGUAGE),
    ),
    ToolFunction(
        ("order_product", "place_order", "buy_item"),
        ("Order a product",),
        ("Order one unit {0}", "I want to buy a piece {0}"),
        (PRODUCT,),
        (COUNT,),
    ),
    ToolFunction(
        ("transfer_money", "pay_person", "send_payment"),
        ("Transfer money to a person",),
        ("Send an amount {0} {1}", "Pay a sum {0} {1}", "Transfer money, a total {0} {1}"),
        (AMOUNT, TO),
    ),
    ToolFunction(
        ("find_hotels", "search_hotels", "hotel_search"),
        ("Find hotels in a city",),
        ("Find a hotel {0} {1}", "I need a place to sleep {0} {1}"),
        (CITY, DAY),
        (GUESTS,),
    ),
    ToolFunction(
        ("add_numbers", "calculate_sum", "sum_of"),
        ("Add two numbers",),
        ("Add {0} {1}", "What do {0} {1} give together?"),
        (SIDE_A, SIDE_B),
    ),
    ToolFunction(
        ("rectangle_area", "compute_area"),
        ("Area of a rectangle",),
        ("What is the area of a rectangle with sides {0} {1}?",),
        (SIDE_A, SIDE_B),
    ),
    ToolFunction(
        ("check_inventory", "stock_level", "get_availability"),
        ("How many of a product are in stock",),
        ("Check the stock {0}", "How many pieces {0} do we have?"),
        (PRODUCT,),
    ),
    ToolFunction(
        ("find_trains", "search_trains", "train_times"),
        ("Find train connections to a city",),
        ("Find a train to a stop {0} {1}", "Which trains run to a station {0} {1}?"),
        (CITY, DAY),
        (HOUR,),
    ),
)


@dataclass(frozen=True, slots=True)
class _Offer:
    """A function as offered in one row: the chosen names, the tool, and the parameters by chosen name."""

    function: ToolFunction
    tool: Tool
    names: tuple[str, ...]


def tool_rows(count: int, rng: random.Random) -> Iterator[ChatRow]:
    for _ in range(count):
        draw = rng.random()
        offers = [_offer(f, rng) for f in rng.sample(FUNCTIONS, rng.choice((1, 1, 2, 3, 4)))]
        if draw < 0.50:
            yield _called(offers, 1, rng)
        elif draw < 0.64:
            yield _called(offers, 2, rng)
        elif draw < 0.76:
            yield _missing(offers, rng)
        elif draw < 0.88:
            yield _unneeded(offers, rng)
        else:
            yield _answered(offers, rng)


def _offer(function: ToolFunction, rng: random.Random) -> _Offer:
    optional = tuple(p for p in function.optional if rng.random() < 0.6)
    names = tuple(rng.choice(p.names) for p in (*function.needed, *optional))
    properties = {
        name: {"type": p.kind, "description": p.description}
        for name, p in zip(names, (*function.needed, *optional), strict=True)
    }
    schema = {"type": "object", "properties": properties, "required": list(names[: len(function.needed)])}
    return _Offer(function, Tool(rng.choice(function.names), rng.choice(function.descriptions), schema), names)


def _request(offer: _Offer, rng: random.Random) -> tuple[str, ToolCall]:
    """A sentence and the call that it requires."""
    values = [p.draw(rng) for p in offer.function.needed]
    phrases = [p.phrase.format(v) for p, v in zip(offer.function.needed, values, strict=True)]
    text = rng.choice(offer.function.requests).format(*phrases)
    arguments = dict(zip(offer.names, values, strict=False))
    chosen = offer.names[len(values) :]
    for name, parameter in zip(chosen, _optional_of(offer), strict=True):
        if rng.random() < 0.5:
            value = parameter.draw(rng)
            arguments[name] = value
            text = text.rstrip("?.") + f", {parameter.phrase.format(value)}" + ("?" if text.endswith("?") else "")
    return text, ToolCall(offer.tool.name, json.dumps(arguments, ensure_ascii=False))


def _optional_of(offer: _Offer) -> list[Parameter]:
    wanted = offer.names[len(offer.function.needed) :]
    return [next(p for p in offer.function.optional if name in p.names) for name in wanted]


def _tools(offers: list[_Offer], rng: random.Random) -> tuple[Tool, ...]:
    tools = {o.tool.name: o.tool for o in offers}
    return tuple(rng.sample(list(tools.values()), len(tools)))


def _called(offers: list[_Offer], num_calls: int, rng: random.Random) -> ChatRow:
    pairs = [_request(rng.choice(offers), rng) for _ in range(num_calls)]
    joint = rng.choice((" And ", " Also: ", " Then "))
    text = joint.join(text if i == 0 else text[0].lower() + text[1:] for i, (text, _) in enumerate(pairs))
    calls = tuple(call for _, call in pairs)
    return ChatRow((Message("user", text), Message("assistant", tool_calls=calls)), _tools(offers, rng), domain="tools")


def _missing(offers: list[_Offer], rng: random.Random) -> ChatRow:
    offer = offers[0]
    askable = [i for i, p in enumerate(offer.function.needed) if p.ask]
    left_out = rng.choice(askable)
    phrases = [p.phrase.format(p.draw(rng)) for p in offer.function.needed]
    phrases[left_out] = ""
    text = " ".join(rng.choice(offer.function.requests).format(*phrases).split()).replace(" ?", "?")
    question = offer.function.needed[left_out].ask
    return ChatRow((Message("user", text), Message("assistant", question)), _tools(offers, rng), domain="tools")


def _unneeded(offers: list[_Offer], rng: random.Random) -> ChatRow:
    question, answer = rng.choice(PLAIN_QA)
    return ChatRow((Message("user", question), Message("assistant", answer)), _tools(offers, rng), domain="tools")


def _answered(offers: list[_Offer], rng: random.Random) -> ChatRow:
    text, call = _request(offers[0], rng)
    result, answer = _outcome(rng)
    turns = (
        Message("user", text),
        Message("assistant", tool_calls=(call,)),
        Message("tool", json.dumps(result), name=call.name),
        Message("assistant", answer),
    )
    return ChatRow(turns, _tools(offers, rng), domain="tools")


def _outcome(rng: random.Random) -> tuple[dict[str, Any], str]:
    number = rng.randint(2, 400)
    return rng.choice(
        (
            ({"status": "ok", "id": number}, f"Done. The reference number is {number}."),
            ({"success": True}, "That is done."),
            ({"error": "not available"}, "I am sorry, that is not available."),
            ({"result": number}, f"The result is {number}."),
            ({"temperature": number % 40, "sky": "clear"}, f"It is {number % 40} degrees with a clear sky."),
        )
    )
