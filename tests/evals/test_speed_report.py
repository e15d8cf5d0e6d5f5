"""`benchmarks/speed_report.py`: times and speeds from the arrivals of chunks, and a level against a scripted server."""

from __future__ import annotations

import json
import random
from typing import Any

import httpx
import pytest

from benchmarks import speed_report
from benchmarks.speed_report import Arrival, TimedAnswer


def timed(*arrivals: tuple[float, int], forwards: int = 100) -> TimedAnswer:
    return TimedAnswer(tuple(Arrival(*one) for one in arrivals), 1000, 0, forwards)


def test_the_output_speed_leaves_out_the_first_chunk() -> None:
    answer = timed((2.0, 20), (3.0, 120), (7.0, 520))
    assert answer.first_s == 2.0
    assert answer.output_speed == 100.0
    assert (answer.seconds_to(500), answer.seconds_to(120), answer.seconds_to(521)) == (7.0, 3.0, None)
    assert timed((1.0, 5)).output_speed is None


def test_a_row_has_medians_and_tokens_per_forward() -> None:
    row = speed_report.summary([timed((1.0, 10), (2.0, 110)), timed((3.0, 10), (4.0, 510), forwards=210)])
    assert (row["first_chunk_s"], row["output_tokens_per_s"], row["seconds_to_500"]) == (2.0, 300.0, 4.0)
    assert row["tokens_per_forward"] == 2.0
    assert speed_report.summary([timed((1.0, 10))])["seconds_to_500"] is None


class Scripted:
    """A server with one token a word, whose context is 50 tokens."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        body: dict[str, Any] = json.loads(request.content)
        if request.url.path == "/v1/tokenize":
            return httpx.Response(200, json={"count": len(body["prompt"].split())})
        prompt = body["messages"][0]["content"]
        self.prompts.append(prompt)
        if len(prompt.split()) > 50:
            return httpx.Response(400, json={"error": {"code": "context_length_exceeded"}})
        usages = [
            {
                "completion_tokens": count,
                "prompt_tokens": len(prompt.split()),
                "prompt_tokens_details": {"cached_tokens": 0},
                "quicksilver": {"forwards": count // 2},
            }
            for count in (0, 4, 8)
        ]
        lines = [f"data: {json.dumps({'usage': usage})}\n\n" for usage in usages]
        return httpx.Response(200, text=": comment\n\n" + "".join(lines) + "data: [DONE]\n\n")


async def test_a_level_sends_different_prompts_of_the_wanted_length() -> None:
    server = Scripted()
    options = speed_report.parser().parse_args(["--max-tokens", "8"])
    async with httpx.AsyncClient(transport=httpx.MockTransport(server), base_url="http://server") as client:
        row = await speed_report.level(client, options, "verify", 30, 3)
        skipped = await speed_report.level(client, options, "verify", 300, 1)
    assert len(set(server.prompts)) == 4
    assert row["prompt_tokens"] == pytest.approx(30, abs=15)
    assert (row["tokens"], row["tokens_per_forward"]) == (24, 2.0)
    assert "context" in skipped["skipped"]


def test_prompts_depend_on_their_seed_alone() -> None:
    made = [speed_report.make_prompt(random.Random(seed), 20) for seed in (1, 1, 2)]
    assert made[0] == made[1] != made[2]


def test_levels_are_read_from_words() -> None:
    assert speed_report.parser().parse_args(["--levels", "1000x1", "50x3"]).levels == [(1000, 1), (50, 3)]
    assert speed_report.parser().parse_args([]).levels == [(1000, 1), (1000, 10), (10000, 1), (10000, 10)]
