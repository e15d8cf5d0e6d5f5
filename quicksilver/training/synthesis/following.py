"""Format-following rows by rule: counted lists, casing, one word, yes or no, JSON only, sentence counts.

The content is simple on purpose. The rows teach that the requested form determines the answer.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from quicksilver.training.rows import ChatRow, exchange
from quicksilver.training.synthesis.banks import CAPITALS, CATEGORIES, PLAIN_QA, TOPICS, YES_NO

_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def following_rows(count: int, rng: random.Random) -> Iterator[ChatRow]:
    kinds = (_list, _list, _list, _casing, _casing, _yes_no, _only_json, _one_word, _sentences, _wrap, _repeat, _joined)
    for _ in range(count):
        question, answer = rng.choice(kinds)(rng)
        yield exchange(question, answer, "chat")


def _list(rng: random.Random) -> tuple[str, str]:
    category = rng.choice(sorted(CATEGORIES))
    # Excludes "three fruits", which an evaluation asks for.
    num = rng.randint(4 if category == "fruits" else 2, min(8, len(CATEGORIES[category])))
    items = rng.sample(CATEGORIES[category], num)
    amount = rng.choice((str(num), _NUMBERS[num]))
    ask = rng.choice(("List {n} {c}", "Name {n} {c}", "Give me {n} {c}", "Write down {n} {c}", "Can you name {n} {c}?"))
    form, lay_out = rng.choice(_LAYOUTS)
    asked = ask.format(n=amount, c=category)
    joint = " " if asked.endswith("?") else (". " if form else "")
    return (asked + joint + form).strip() + ("" if asked.endswith("?") or form else "."), lay_out(items)


_LAYOUTS = (
    ("Use a numbered list.", lambda items: "\n".join(f"{i}. {item}" for i, item in enumerate(items, 1))),
    ("Use bullet points.", lambda items: "\n".join(f"- {item}" for item in items)),
    ("Separate them with commas.", lambda items: ", ".join(items)),
    ("One per line, nothing else.", lambda items: "\n".join(items)),
    ("", lambda items: "\n".join(f"{i}. {item}" for i, item in enumerate(items, 1))),
    ("Answer as a JSON array.", lambda items: json.dumps(items)),
)


def _casing(rng: random.Random) -> tuple[str, str]:
    question, answer = rng.choice(PLAIN_QA)
    form, change = rng.choice(
        (
            ("Answer in all capital letters.", str.upper),
            ("Your entire response should be in uppercase.", str.upper),
            ("Use only lowercase letters.", str.lower),
            ("Write everything in lowercase, no capital letters.", str.lower),
        )
    )
    return f"{question} {form}", change(answer)


def _yes_no(rng: random.Random) -> tuple[str, str]:
    form = rng.choice(("Answer yes or no.", "Reply with yes or no only.", "Just say yes or no."))
    answer = rng.choice(("Yes", "No"))
    if rng.random() < 0.5:
        return f"{rng.choice(YES_NO[answer])} {form}", answer
    category, other = rng.sample(sorted(CATEGORIES), 2)
    item = rng.choice(CATEGORIES[category if answer == "Yes" else other])
    # Some words occur in two lists.
    return f"Is {item} one of the {category}? {form}", "Yes" if item in CATEGORIES[category] else "No"


def _only_json(rng: random.Random) -> tuple[str, str]:
    country = rng.choice(sorted(CAPITALS))
    form = rng.choice(
        ("Reply with JSON only.", "Answer only with a JSON object.", "Output valid JSON and nothing else.")
    )
    question = f'What is the capital of {country}? {form} Use the keys "country" and "capital".'
    return question, json.dumps({"country": country.removeprefix("the "), "capital": CAPITALS[country]})


def _one_word(rng: random.Random) -> tuple[str, str]:
    country = rng.choice([c for c, city in CAPITALS.items() if " " not in city])
    form = rng.choice(("Answer with one word.", "One word only.", "Give just the name."))
    return f"What is the capital of {country}? {form}", CAPITALS[country]


_SENTENCES = (
    "{T} is an interesting subject.",
    "Many people like to read about {t}.",
    "There is always more to learn about {t}.",
    "Some people study {t} for years.",
    "It is worth a closer look.",
    "A good book on it can be found in most libraries.",
)


def _sentences(rng: random.Random) -> tuple[str, str]:
    topic, num = rng.choice(TOPICS), rng.randint(1, 4)
    form = rng.choice(("Write {n} sentences about {t}.", "Tell me about {t} in exactly {n} sentences."))
    form = "Write one sentence about {t}." if num == 1 else form
    picked = [_SENTENCES[0], *rng.sample(_SENTENCES[1:], num - 1)]
    answer = " ".join(picked).format(t=topic, T=topic[0].upper() + topic[1:])
    return form.format(n=_NUMBERS[num], t=topic), answer


def _wrap(rng: random.Random) -> tuple[str, str]:
    question, answer = rng.choice(PLAIN_QA)
    form, change = rng.choice(
        (
            ("Wrap your whole answer in double quotation marks.", lambda a: f'"{a}"'),
            ('End your answer with the words "That is all."', lambda a: f"{a} That is all."),
            ('Start your answer with "Sure:"', lambda a: f"Sure: {a}"),
            ("Do not use any commas.", lambda a: a.replace(",", "")),
            ("Finish with a P.S. line.", lambda a: f"{a}\n\nP.S. I hope this helps."),
            ("Put the answer in bold markdown.", lambda a: f"**{a}**"),
            ("Add a title in double angular brackets first.", lambda a: f"<<Answer>>\n{a}"),
        )
    )
    return f"{question} {form}", change(answer)


def _repeat(rng: random.Random) -> tuple[str, str]:
    word = rng.choice(CATEGORIES[rng.choice(sorted(CATEGORIES))])
    num = rng.randint(2, 6)
    return f'Repeat the word "{word}" {_NUMBERS[num]} times, separated by spaces.', " ".join([word] * num)


def _joined(rng: random.Random) -> tuple[str, str]:
    items = rng.sample(CATEGORIES[rng.choice(sorted(CATEGORIES))], rng.randint(3, 5))
    listed = ", ".join(items)
    question, answer = rng.choice(
        (
            ("Sort these words alphabetically: {}.", ", ".join(sorted(items, key=str.lower))),
            ("How many words are in this list: {}? Answer with a number.", str(len(items))),
            ("What is the first word in this list: {}?", items[0]),
            ("What is the last word in this list: {}?", items[-1]),
            ("Write these words in capital letters: {}.", listed.upper()),
            ("Turn this into a bulleted list: {}.", "\n".join(f"- {item}" for item in items)),
        )
    )
    return question.format(listed), answer
