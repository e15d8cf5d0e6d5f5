"""The prompts of the coder measurements by domain. They come from the evaluation tasks, plus chat.

The selection depends only on the task name. Long prompts are excluded, so that the times measure the answers.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from quicksilver.evals.catalogue import pick_tasks
from quicksilver.evals.prompt_builder import PromptBuilder
from quicksilver.evals.task import Generate

# Domain -> task; the ones that are asked unless others are named.
DOMAINS = {
    "humaneval": "humaneval", "mbpp": "mbpp", "gsm8k": "gsm8k", "chat": "", "tools": "sgd_dev", "json": "json_schema",
    "instructions": "instructions",
}  # fmt: skip
MORE_DOMAINS = {"fim": "fim_python_1000", "edit": "next_edit"}
CHAT = (
    "What is the difference between a process and a thread?",
    "Give me a plan for learning to play the guitar in three months.",
    "Explain to a ten year old why the sky is blue.",
    "My team argues about tabs and spaces. What would you tell them?",
    "Summarise the causes of the French Revolution in a few sentences.",
    "How do I keep a sourdough starter alive?",
    "Write a short poem about a lighthouse in winter.",
    "What should I look at when buying a used bicycle?",
    "Describe how a hash table works and when it is a bad choice.",
    "Write a polite email that asks for a refund of a cancelled train ticket.",
    "Which habits help against forgetting names?",
    "Compare REST and GraphQL for a small web shop.",
    "Tell me a story about a robot that learns to cook, in about a hundred words.",
    "What does an index in a database cost, and what does it bring?",
    "How is cheese made?",
    "Suggest five names for a bakery and say why each fits.",
    "Why do leap years exist?",
    "Explain the idea behind binary search without code.",
    "What would change if the moon were twice as far away?",
    "List the steps to publish a Python package.",
    "How can I sleep better when I work at night?",
    "What is a good way to give feedback to a colleague?",
    "Explain the difference between supervised and unsupervised learning.",
    "Describe a day in the life of a beekeeper.",
)
LONGEST_PROMPT = 1200


def domain_asks(domain: str, data: Path, writer: PromptBuilder, count: int, max_new_tokens: int) -> list[Generate]:
    """Up to `count` prompts with at most `max_new_tokens` answer tokens."""
    asks = (
        _chat_asks(writer) if domain == "chat" else task_asks((DOMAINS | MORE_DOMAINS)[domain], data, writer, 4 * count)
    )
    asks = [replace(ask, max_new_tokens=max_new_tokens) for ask in asks if len(ask.prompt_ids) <= LONGEST_PROMPT]
    return asks[:count]


def mixed_asks(
    data: Path, writer: PromptBuilder, count: int, max_new_tokens: int, domains: Iterable[str] = tuple(DOMAINS)
) -> list[Generate]:
    """Prompts of all domains, interleaved."""
    names = tuple(domains)
    each = -(-count // len(names))
    lists = [domain_asks(domain, data, writer, each, max_new_tokens) for domain in names]
    mixed = [asks[i % len(asks)] for i in range(each) for asks in lists if asks]
    return mixed[:count]


def task_asks(name: str, data: Path, writer: PromptBuilder, count: int) -> list[Generate]:
    return [ask for _, _, ask in task_items(name, data, writer, count)]


def task_items(name: str, data: Path, writer: PromptBuilder, count: int) -> list[tuple[int, Any, Generate]]:
    """Place, item and question of up to `count` items of a task, shuffled the same way every time."""
    (task,) = pick_tasks((name,))
    items = list(enumerate(task.load(data)))
    random.Random(f"0/{name}").shuffle(items)
    found = []
    for index, item in items[:count]:
        ask = task.ask(item, writer)
        assert isinstance(ask, Generate)
        found.append((index, item, ask))
    return found


def _chat_asks(writer: PromptBuilder) -> list[Generate]:
    prompts = [writer.chat(question) for question in CHAT]
    return [Generate(prompt.ids, 192, prompt.stop, prompt.stop_ids) for prompt in prompts]
