"""Chat calls of one decoder with their cost, and the comparison that each example prints.

`compare` runs an example with `verify`, the default decoder, and with `ar`, which computes one token per forward. The
prompts are the same. An earlier run fills the prompt cache, so that both measured runs find the same cached prompts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from openai import OpenAI
from openai.types.chat import ChatCompletion, ChatCompletionMessage

Result = TypeVar("Result")


@dataclass
class Chat:
    """Chat completions at temperature 0. `replies` is in the order of their arrival."""

    client: OpenAI
    model: str = "nano"
    decoder: str = "verify"
    replies: list[ChatCompletion] = field(default_factory=list)

    def ask(self, messages: Iterable[dict[str, Any]] | str, **options: Any) -> ChatCompletionMessage:
        asked = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        reply = self.client.chat.completions.create(
            model=self.model, messages=asked, temperature=0, extra_body={"decoder": {"name": self.decoder}}, **options
        )
        self.replies.append(reply)
        return reply.choices[0].message

    def total(self, name: str) -> int:
        """The sum of a figure of `usage.quicksilver`, such as rounds or forwards."""
        return sum(reply.usage.model_extra["quicksilver"][name] for reply in self.replies)

    @property
    def tokens(self) -> int:
        return sum(reply.usage.completion_tokens for reply in self.replies)

    def texts(self) -> list[str]:
        """The answers without their ids, sorted, since parallel calls end in any order."""
        messages = [reply.choices[0].message for reply in self.replies]
        calls = [[(c.function.name, c.function.arguments) for c in m.tool_calls or []] for m in messages]
        return sorted(f"{m.content}{c}" for m, c in zip(messages, calls, strict=True))


def compare(chat: Chat, run: Callable[[Chat], Result]) -> Result:
    """Run with `verify`, print a line for `ar` and one for `verify`, and return the result of the first run."""
    result = run(chat)
    seconds, runs = {}, {}
    for decoder in ("ar", "verify"):
        runs[decoder] = Chat(chat.client, chat.model, decoder)
        start = time.perf_counter()
        run(runs[decoder])
        seconds[decoder] = time.perf_counter() - start
    for decoder, done in runs.items():
        forwards = done.total("forwards")
        print(
            f"{decoder:6} {len(done.replies):3} calls {done.tokens:5} tokens {done.total('rounds'):5} rounds "
            f"{forwards:5} forwards {done.tokens / forwards:5.2f} tokens/forward {seconds[decoder]:6.2f} s"
        )
    is_equal = runs["ar"].texts() == runs["verify"].texts()
    print(f"time ar / verify: {seconds['ar'] / seconds['verify']:.2f}; same answers: {'yes' if is_equal else 'no'}")
    return result


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that every example has."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--url", default="http://127.0.0.1:8480", help="address of a running server")
    options.add_argument("--model", default="nano")
    options.add_argument("--key", default="none", help="API key, if the server has accounts")
    return options


def connect(options: argparse.Namespace) -> Chat:
    return Chat(OpenAI(base_url=f"{options.url}/v1", api_key=options.key, timeout=600), options.model)
