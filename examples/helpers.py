"""Eight helpers on one shared prefix: parallel requests that differ only in their last lines.

The brief is computed once and cached. The helpers run in one batch, and each answer equals that of the same request
sent alone.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from examples.measure import Chat, compare, connect, parser

BRIEF = (
    "You are one of several helpers of a small web shop that sells tea. The shop ships within Europe. An order above "
    "40 euros has free shipping. Orders before noon leave on the same day. Opened tea cannot be returned. The support "
    "team answers on weekdays. The shop has green, black and herbal tea, in bags of 50, 100 and 250 grams. Write one "
    "short and friendly sentence for your task. Use only facts of this brief."
)
TASKS = (
    "Greet a new customer.",
    "Explain free shipping.",
    "Say when an order leaves.",
    "Explain why opened tea cannot be returned.",
    "Say when the support team answers.",
    "Name the kinds of tea.",
    "Name the sizes of the bags.",
    "Say where the shop ships to.",
)


def help_with(chat: Chat, task: str) -> str:
    messages = [{"role": "system", "content": BRIEF}, {"role": "user", "content": task}]
    return chat.ask(messages, max_tokens=40).content or ""


def run(chat: Chat, num_parallel: int = len(TASKS)) -> list[str]:
    with ThreadPoolExecutor(num_parallel) as pool:
        return list(pool.map(lambda task: help_with(chat, task), TASKS))


def seconds(chat: Chat, num_parallel: int) -> float:
    start = time.perf_counter()
    run(chat, num_parallel)
    return time.perf_counter() - start


def main() -> None:
    chat = connect(parser(__doc__).parse_args())
    together = compare(chat, run)
    alone = run(chat, num_parallel=1)
    for task, text in zip(TASKS, together, strict=True):
        print(f"{task} {text}")
    print(f"answers equal to those of requests sent alone: {sum(map(str.__eq__, together, alone))} of {len(TASKS)}")
    one_by_one, parallel = seconds(chat, 1), seconds(chat, len(TASKS))
    print(f"one after another {one_by_one:.2f} s, in parallel {parallel:.2f} s")
    cached = [reply.usage.prompt_tokens_details.cached_tokens for reply in chat.replies]
    print(f"cached prompt tokens of the last helper: {cached[-1]} of {chat.replies[-1].usage.prompt_tokens}")


if __name__ == "__main__":
    main()
