"""Short questions with short correct answers: the model's identity, small facts, sums, translations, code.

They teach a plain style of answering more than knowledge. Short reasoning rows use the thinking channel at three
efforts: a higher effort writes more of the working.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from quicksilver.text.chat import Message
from quicksilver.training.rows import ChatRow, exchange
from quicksilver.training.synthesis.banks import (
    CAPITALS,
    MADE_BY,
    OPPOSITES,
    PEOPLE,
    PLAIN_QA,
    PLURALS,
    PRODUCTS,
    PYTHON_TASKS,
    TRANSLATIONS,
)

IDENTITY: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("Who are you?", "What is your name?", "What are you called?", "Tell me your name.", "Introduce yourself."),
        "I am quicksilver nano, a small diffusion language model that runs on your own machine.",
    ),
    (
        ("Who made you?", "Who created you?", "Where do you come from?", "Who trained you?"),
        "I am quicksilver nano, made by the open quicksilver project.",
    ),
    (
        ("What can you do?", "How can you help me?", "What are you good at?"),
        "I can answer short questions, complete and edit code, follow a JSON schema and call tools.",
    ),
    (
        ("Are you ChatGPT?", "Are you SmolLM?", "Are you GPT-4?", "Are you a human?", "Are you Claude?"),
        "No, I am quicksilver nano, a small open language model.",
    ),
    (
        ("How do you work?", "What is a diffusion language model?", "What makes you fast?"),
        "I draft several words at once on a canvas and keep those that prove right, "
        "instead of writing one word at a time.",
    ),
    (("Hi", "Hello there!", "Hey", "Good morning!", "Good evening"), "Hello! How can I help you?"),
    (("Thanks!", "Thank you very much.", "Thanks a lot"), "You are welcome!"),
    (("Bye", "Goodbye!", "See you later"), "Goodbye! Have a good day."),
)


def identity_rows(count: int, rng: random.Random) -> Iterator[ChatRow]:
    for _ in range(count):
        questions, answer = rng.choice(IDENTITY)
        yield exchange(rng.choice(questions), answer)


def fact_rows(count: int, rng: random.Random) -> Iterator[ChatRow]:
    kinds = (
        _capital,
        _sum,
        _sum,
        _translation,
        _translation,
        _opposite,
        _plural,
        _plain,
        _plain,
        _python,
        _python,
        _spelling,
        _maker,
    )
    for _ in range(count):
        question, answer = rng.choice(kinds)(rng)
        yield exchange(question, answer)


def _capital(rng: random.Random) -> tuple[str, str]:
    country, city = rng.choice(sorted(CAPITALS.items()))
    if rng.random() < 0.2:
        return f"{city} is the capital of which country?", f"{city} is the capital of {country}."
    ask = rng.choice(
        (
            "What is the capital of {}?",
            "Which city is the capital of {}?",
            "Name the capital of {}.",
            "What is the capital of {}? Explain briefly.",
        )
    )
    return ask.format(country), f"The capital of {country} is {city}."


def _sum(rng: random.Random) -> tuple[str, str]:
    a, b = rng.randint(1, 60), rng.randint(1, 60)
    sign, value = rng.choice((("+", a + b), ("-", a - b), ("*", (a % 12) * (b % 12))))
    if sign == "*":
        a, b = a % 12, b % 12
    if (a, sign, b) == (2, "+", 2):
        a, value = 3, 5
    ask = rng.choice(("What is {} {} {}?", "Calculate {} {} {}.", "{} {} {} =", "How much is {} {} {}?"))
    return ask.format(a, sign, b), rng.choice((f"{a} {sign} {b} = {value}", str(value), f"The answer is {value}."))


def _translation(rng: random.Random) -> tuple[str, str]:
    language = rng.choice(sorted(TRANSLATIONS))
    word, other = rng.choice(sorted(TRANSLATIONS[language].items()))
    ask = rng.choice(
        (
            'Translate "{w}" to {l}.',
            'How do you say "{w}" in {l}?',
            "What is the {l} word for {w}?",
            "Translate {w} into {l}.",
        )
    )
    return ask.format(w=word, l=language), rng.choice((other, f'"{word}" in {language} is "{other}".'))


def _opposite(rng: random.Random) -> tuple[str, str]:
    word, other = rng.choice(sorted(OPPOSITES.items()))
    return f"What is the opposite of {word}?", f"The opposite of {word} is {other}."


def _plural(rng: random.Random) -> tuple[str, str]:
    word, other = rng.choice(sorted(PLURALS.items()))
    return f"What is the plural of {word}?", f"The plural of {word} is {other}."


def _plain(rng: random.Random) -> tuple[str, str]:
    return rng.choice(PLAIN_QA)


def _maker(rng: random.Random) -> tuple[str, str]:
    thing, maker = rng.choice(sorted(MADE_BY.items()))
    return (
        f"Who or what makes {thing}?",
        f"{thing[0].upper()}{thing[1:]} is made by {maker}." if thing != "eggs" else "Eggs are laid by hens.",
    )


def _python(rng: random.Random) -> tuple[str, str]:
    task, code = rng.choice(PYTHON_TASKS)
    ask = rng.choice(
        (
            "Write a Python function that {}.",
            "Show me a Python function that {}.",
            "I need Python code: a function that {}.",
        )
    )
    return ask.format(task), f"```python\n{code}\n```"


def _spelling(rng: random.Random) -> tuple[str, str]:
    word = rng.choice((*OPPOSITES, *PLURALS))
    return rng.choice(
        (
            (f'How many letters are in the word "{word}"?', f'The word "{word}" has {len(word)} letters.'),
            (f'What is the first letter of "{word}"?', word[0].upper()),
            (f'Spell the word "{word}".', "-".join(word.upper())),
        )
    )


def thinking_rows(count: int, rng: random.Random) -> Iterator[ChatRow]:
    """Small sums and word problems, worked in the thinking channel."""
    for _ in range(count):
        question, steps, answer = rng.choice((_purchase, _shared, _chain, _compared))(rng)
        effort = rng.choice(("low", "medium", "high"))
        yield thought(question, worked(steps, effort), answer, effort)


def thought(question: str, reasoning: str, answer: str, effort: str) -> ChatRow:
    turns = (Message("user", question), Message("assistant", answer, reasoning=reasoning))
    return ChatRow(turns, effort=effort, domain="think")


def worked(steps: list[str], effort: str) -> str:
    """Low: the last step. Medium: all steps. High: all steps and a check."""
    if effort == "low":
        return steps[-1]
    return "\n".join(steps if effort == "medium" else [*steps, f"Check: {steps[-1]} This is consistent."])


def _purchase(rng: random.Random) -> tuple[str, list[str], str]:
    who, thing, num, price = rng.choice(PEOPLE[:20]), rng.choice(PRODUCTS), rng.randint(2, 12), rng.randint(2, 30)
    paid = num * price + rng.randint(1, 50)
    question = f"{who} buys {num} units of {thing} for ${price} each and pays with ${paid}. How much change is due?"
    steps = [
        f"{num} units at ${price} cost {num} * {price} = ${num * price}.",
        f"Change: {paid} - {num * price} = {paid - num * price}.",
    ]
    return question, steps, f"The change is ${paid - num * price}."


def _shared(rng: random.Random) -> tuple[str, list[str], str]:
    people, each, left = rng.randint(2, 9), rng.randint(2, 15), rng.randint(0, 1)
    total = people * each + left
    story = f"{total} apples are shared equally among {people} children."
    question = f"{story} How many does each child get, and how many are left?"
    steps = [
        f"{total} / {people} = {each} with {left} left, because {people} * {each} = {people * each}.",
        f"Each child gets {each}; left over: {left}.",
    ]
    return question, steps, f"Each child gets {each} apples and {left} {'is' if left == 1 else 'are'} left."


def _chain(rng: random.Random) -> tuple[str, list[str], str]:
    a, b, c = (rng.randint(2, 20) for _ in range(3))
    return (
        f"What is ({a} + {b}) * {c}?",
        [f"First {a} + {b} = {a + b}.", f"Then {a + b} * {c} = {(a + b) * c}."],
        f"{(a + b) * c}",
    )


def _compared(rng: random.Random) -> tuple[str, list[str], str]:
    (p, q), (a, b) = rng.sample(PEOPLE[:20], 2), (rng.randint(3, 40), rng.randint(3, 40))
    b += a == b
    more, less, gap = (p, q, a - b) if a > b else (q, p, b - a)
    question = f"{p} has {a} coins and {q} has {b} coins. Who has more, and by how many?"
    steps = [f"{p} has {a}, {q} has {b}.", f"{max(a, b)} - {min(a, b)} = {gap}, so {more} has {gap} more than {less}."]
    return question, steps, f"{more} has {gap} more."
