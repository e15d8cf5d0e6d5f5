"""Speed of a running server in the form of public leaderboards, with the work and the quality behind it.

    quicksilver serve --model nano --yarn 2 --context-len 16384
    python -m benchmarks.speed_report --url http://127.0.0.1:8480 --model nano [--levels 1000x1 1000x10]

One row for each decoder and level, which is a prompt length and a number of parallel requests. Every prompt is
different, so nothing comes from the prompt cache. A row has the median over its requests of

- the time to the first chunk,
- the output speed: tokens per second after the first chunk,
- the time to 500 tokens, measured,

the tokens per forward, and the share of right answers to the questions of `quicksilver eval --task sanity` under the
same decoder. Answers go on to `--max-tokens`. A prompt that exceeds the context of the server is reported as such.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from benchmarks.rescore import read_reports
from quicksilver.evals.report import machine_facts

GOAL = 500
LEVELS = [(1000, 1), (1000, 10), (10000, 1), (10000, 10)]
WORDS = ("river", "stone", "market", "winter", "engine", "garden", "letter", "window", "bridge", "summer", "paper")


@dataclass(frozen=True, slots=True)
class Arrival:
    """A chunk: when it came, and how many tokens the answer had then."""

    seconds: float
    num_tokens: int


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    arrivals: tuple[Arrival, ...]
    prompt_tokens: int
    cached_tokens: int
    forwards: int

    @property
    def first_s(self) -> float:
        return self.arrivals[0].seconds

    @property
    def num_tokens(self) -> int:
        return self.arrivals[-1].num_tokens

    @property
    def output_speed(self) -> float | None:
        """Tokens per second after the first chunk; None for an answer of one chunk."""
        first, last = self.arrivals[0], self.arrivals[-1]
        passed = last.seconds - first.seconds
        return (last.num_tokens - first.num_tokens) / passed if passed > 0 else None

    def seconds_to(self, num_tokens: int) -> float | None:
        """The time of the chunk with this token; None for a shorter answer."""
        return next((one.seconds for one in self.arrivals if one.num_tokens >= num_tokens), None)


def make_prompt(rng: random.Random, num_words: int) -> str:
    text = " ".join(rng.choice(WORDS) for _ in range(num_words))
    return f"Note {rng.randrange(10**9)}: {text}.\n\nWrite a long story with these words."


async def prompt_of(client: httpx.AsyncClient, model: str, rng: random.Random, num_tokens: int) -> str:
    """A prompt of about `num_tokens` tokens, by the server's own count."""
    sample = make_prompt(rng, 200)
    counted = await client.post("/v1/tokenize", json={"model": model, "prompt": sample})
    counted.raise_for_status()
    return make_prompt(rng, max(1, round(200 * num_tokens / counted.json()["count"])))


async def chunks_of(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line[6:])


async def answer(client: httpx.AsyncClient, body: dict[str, Any]) -> TimedAnswer:
    start, arrivals, usage = time.perf_counter(), list[Arrival](), dict[str, Any]()
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        if response.status_code != 200:
            raise RuntimeError((await response.aread()).decode())
        async with aclosing(chunks_of(response)) as chunks:
            async for chunk in chunks:
                if "error" in chunk:
                    raise RuntimeError(json.dumps(chunk["error"]))
                usage = chunk.get("usage") or usage
                count = usage.get("completion_tokens", 0)
                if count > (arrivals[-1].num_tokens if arrivals else 0):
                    arrivals.append(Arrival(time.perf_counter() - start, count))
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return TimedAnswer(tuple(arrivals), usage["prompt_tokens"], cached, usage["quicksilver"]["forwards"])


def body_of(options: argparse.Namespace, decoder: str, prompt: str) -> dict[str, Any]:
    return {
        "model": options.model,
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0,
        "max_tokens": options.max_tokens,
        "ignore_eos": True,
        "decoder": {"name": decoder},
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


async def level(
    client: httpx.AsyncClient, options: argparse.Namespace, decoder: str, num_tokens: int, parallel: int
) -> dict[str, Any]:
    rng = random.Random(f"{options.seed}/{num_tokens}/{parallel}/{decoder}")
    prompts = [await prompt_of(client, options.model, rng, num_tokens) for _ in range(parallel)]
    row: dict[str, Any] = {"decoder": decoder, "prompt": num_tokens, "parallel": parallel}
    try:
        answers = await asyncio.gather(*(answer(client, body_of(options, decoder, prompt)) for prompt in prompts))
    except RuntimeError as error:
        if "context_length_exceeded" not in str(error):
            raise
        return {**row, "skipped": "longer than the context of the server"}
    return {**row, **summary(answers)}


def summary(answers: Sequence[TimedAnswer]) -> dict[str, Any]:
    """Medians over the requests of one level; a value is None if no answer has it."""
    speeds = [speed for one in answers if (speed := one.output_speed) is not None]
    goals = [seconds for one in answers if (seconds := one.seconds_to(GOAL)) is not None]
    forwards = sum(one.forwards for one in answers)
    return {
        "prompt_tokens": round(median(one.prompt_tokens for one in answers)),
        "cached_tokens": max(one.cached_tokens for one in answers),
        "tokens": sum(one.num_tokens for one in answers),
        "first_chunk_s": round(median(one.first_s for one in answers), 3),
        "output_tokens_per_s": round(median(speeds), 1) if speeds else None,
        "seconds_to_500": round(median(goals), 2) if goals else None,
        "tokens_per_forward": round(sum(one.num_tokens for one in answers) / forwards, 2) if forwards else None,
    }


def quality(options: argparse.Namespace, decoder: str) -> float | None:
    """The share of right answers of the sanity task, by the evaluation of this package."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "sanity.json"
        program = [sys.executable, "-c", "from quicksilver.cli import main; main()", "eval", "--task", "sanity"]
        target = ["--url", f"{options.url}/v1", "--model", options.model, "--data", folder]
        done = subprocess.run([*program, *target, "--decoder", decoder, "--out", str(out)], check=False)
        return read_reports(out)[0].cells[0].value if done.returncode == 0 else None


async def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    limits = httpx.Timeout(600, connect=10)
    # Ten long prompts take longer to start than a request waits by default.
    headers = {"X-Quicksilver-Start-Within": "3600"}
    async with httpx.AsyncClient(base_url=options.url, timeout=limits, headers=headers) as client:
        rows = []
        for decoder in options.decoders:
            share = None if options.no_quality else await asyncio.to_thread(quality, options, decoder)
            for num_tokens, parallel in options.levels:
                row = await level(client, options, decoder, num_tokens, parallel)
                rows.append({**row, "quality": share})
                print(json.dumps(rows[-1]), flush=True)
    return rows


def read_level(text: str) -> tuple[int, int]:
    num_tokens, _, parallel = text.partition("x")
    return int(num_tokens), int(parallel)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--url", default="http://127.0.0.1:8480")
    made.add_argument("--model", default="nano")
    made.add_argument("--levels", type=read_level, nargs="+", default=LEVELS, help="prompt tokens x parallel requests")
    made.add_argument("--decoders", nargs="+", default=["ar", "verify"])
    made.add_argument("--max-tokens", type=int, default=512)
    made.add_argument("--seed", type=int, help="of the prompts; a seed that was used before finds them in the cache")
    made.add_argument("--hardware", default="", help="text for the report, such as '2 CPU cores, shared'")
    made.add_argument("--no-quality", action="store_true")
    made.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    return made


def main() -> None:
    options = parser().parse_args()
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(2**32)
    rows = asyncio.run(run(options))
    facts = {"hardware": options.hardware, "model": options.model, "seed": options.seed}
    report = {**machine_facts(), **facts, "rows": rows}
    (options.out / f"speed-report-{report['date'][:10]}.json").write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
