"""Search with cited passages: BM25 finds candidates, one decision request ranks them, and the answer must cite one.

The question and its candidates are the input of one decision request, computed once. Each candidate is a short question
after it that repeats the passage, because small models do not find a passage by its id. The JSON Schema of the answer
allows only the ids of the passages that were shown.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass

from examples.measure import Chat, compare, connect, parser

PASSAGES = {
    "battery": "The battery lasts 14 hours. A full charge takes 2 hours with the supplied adapter.",
    "warranty": "The warranty covers defects for 24 months after the purchase. Damage by water is not covered.",
    "reset": "To reset the device, hold the power button for 10 seconds until the light turns red.",
    "weight": "The device weighs 310 grams without its case and 390 grams with it.",
    "returns": "Unused devices can be returned within 30 days. The shop refunds the price without the shipping cost.",
    "wireless": "The device connects to 2.4 GHz and 5 GHz networks. Hold the button for 3 seconds to pair it.",
    "cleaning": "Clean the screen with a dry cloth. Alcohol and water damage the coating.",
    "update": "Updates are installed at night while the device is connected to its adapter.",
}
QUESTIONS = {
    "How long does the battery last?": "battery",
    "How do I reset the device?": "reset",
    "How many months does the warranty cover?": "warranty",
    "How heavy is the device?": "weight",
}


@dataclass(frozen=True)
class Cited:
    question: str
    candidates: list[str]
    answer: str
    passage: str


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def bm25(question: str, count: int) -> list[str]:
    """The ids of the best passages under BM25 with k1 = 1.5 and b = 0.75."""
    bags = {name: Counter(words(text)) for name, text in PASSAGES.items()}
    mean_length = sum(bag.total() for bag in bags.values()) / len(bags)
    scores = dict.fromkeys(bags, 0.0)
    for word in set(words(question)):
        num_with = sum(word in bag for bag in bags.values())
        rarity = math.log(1 + (len(bags) - num_with + 0.5) / (num_with + 0.5))
        for name, bag in bags.items():
            norm = 1.5 * (0.25 + 0.75 * bag.total() / mean_length)
            scores[name] += rarity * bag[word] * 2.5 / (bag[word] + norm)
    return sorted(scores, key=lambda name: -scores[name])[:count]


def rank(chat: Chat, question: str, names: list[str]) -> list[str]:
    """The passages by the probability that they answer the question, in one request."""
    asked = [
        {"type": "predicate", "name": name, "instructions": f"{PASSAGES[name]} Does this answer the question?"}
        for name in names
    ]
    text = f"{show(names)}\n\nQuestion: {question}"
    reply = chat.client.decisions.create(model=chat.model, input=text, questions=asked)
    probability = {result.name: result.probability for result in reply.answers}
    return sorted(names, key=lambda name: -probability[name])


def show(names: list[str]) -> str:
    return "\n".join(f"[{name}] {PASSAGES[name]}" for name in names)


def answer(chat: Chat, question: str, num_shown: int = 3) -> Cited:
    candidates = rank(chat, question, bm25(question, 5))[:num_shown]
    properties = {"passage": {"enum": candidates}, "answer": {"type": "string", "maxLength": 120}}
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    prompt = f"{show(candidates)}\n\nAnswer from the passages, in JSON with the id of the passage. {question}"
    message = chat.ask(
        prompt,
        max_tokens=96,
        response_format={"type": "json_schema", "json_schema": {"name": "cited", "schema": schema}},
    )
    told = json.loads(message.content)
    return Cited(question, candidates, told["answer"], told["passage"])


def run(chat: Chat) -> list[Cited]:
    return [answer(chat, question) for question in QUESTIONS]


def main() -> None:
    answers = compare(connect(parser(__doc__).parse_args()), run)
    for cited in answers:
        print(f"{cited.question} {cited.answer} [{cited.passage}]")
    right = sum(cited.passage == QUESTIONS[cited.question] for cited in answers)
    found = sum(QUESTIONS[cited.question] in cited.candidates for cited in answers)
    print(f"right passage cited: {right} of {len(answers)}; among the candidates: {found}")


if __name__ == "__main__":
    main()
