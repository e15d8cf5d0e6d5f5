"""Counts of the engine before and after a run, and the comparison of `ar` and `verify` that each example prints.

The counts come from `/metrics` on the admin listener, so they include everything that a framework sends by itself. They
are meaningful if nothing else uses the server.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import httpx

Result = TypeVar("Result")
COUNTS = (
    "engine_steps_total",
    "generation_tokens_total",
    "prompt_tokens_total",
    "cached_tokens_total",
    "drafted_tokens_total",
    "accepted_tokens_total",
)


def read(admin_url: str, *names: str, key: str = "") -> dict[str, float]:
    """Figures of `/metrics` by name, without the prefix, summed over models."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    text = httpx.get(f"{admin_url}/metrics", headers=headers, timeout=30).raise_for_status().text
    return {name: sum(map(float, re.findall(rf"^quicksilver_{name}{{[^}}]*}} (\S+)$", text, re.M))) for name in names}


async def compare(admin_url: str, run: Callable[[str], Awaitable[Result]], key: str = "") -> Result:
    """Call `run` with the name of a decoder: once to fill the prompt cache, then measured with `ar` and `verify`.
    Returns the result of the first call."""
    result = await run("verify")
    seconds = {}
    for decoder in ("ar", "verify"):
        before, start = read(admin_url, *COUNTS, key=key), time.perf_counter()
        await run(decoder)
        seconds[decoder] = time.perf_counter() - start
        after = read(admin_url, *COUNTS, key=key)
        steps, tokens, prompt, cached, drafted, accepted = (after[name] - before[name] for name in COUNTS)
        print(
            f"{decoder:6} {tokens:5.0f} tokens {steps:5.0f} forwards {tokens / max(steps, 1):5.2f} tokens/forward "
            f"{accepted / max(drafted, 1):4.0%} of {drafted:.0f} drafted tokens accepted "
            f"{cached / max(prompt, 1):4.0%} of the prompts cached {seconds[decoder]:6.2f} s"
        )
    print(f"time ar / verify: {seconds['ar'] / seconds['verify']:.2f}")
    return result


def parser(description: str | None) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=description)
    options.add_argument("--url", default="http://127.0.0.1:8480", help="address of a running server")
    options.add_argument("--admin-url", default="http://127.0.0.1:8481", help="its admin listener")
    options.add_argument("--model", default="nano")
    options.add_argument("--key", default="none", help="API key, if the server has accounts")
    options.add_argument("--metrics-key", default="", help="key with scope metrics, if the server has accounts")
    return options


def with_decoder(decoder: str) -> dict[str, dict[str, str]]:
    """The field of a request that chooses the decoder."""
    return {"decoder": {"name": decoder}}
