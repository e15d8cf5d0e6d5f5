"""The applications in `examples/` against one live server with nano: form, loop and exactness, not quality."""

from __future__ import annotations

import ast
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from openai import OpenAI
from openai.types.chat import ChatCompletion

from benchmarks.example_costs import EXAMPLES, read_costs
from examples import agent_loop, coding_agent, compact, helpers, invoices, rag, summary
from examples.frameworks import counters
from examples.measure import Chat, compare
from tests.support.live import free_port, serving
from tests.support.weights import nano

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/guides/examples.md"
PROGRAMS = sorted(p for p in (ROOT / "examples").glob("*.py") if p.name not in ("__init__.py", "measure.py"))
# `tests/contract/clients/frameworks` runs them, in the environment of the frameworks.
WITH_FRAMEWORKS = sorted(
    p for p in (ROOT / "examples/frameworks").glob("*.py") if p.name not in ("__init__.py", "counters.py")
)


ADMIN_PORT = free_port()
NUM_CANCELLED = 200


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    nano()
    log = tmp_path_factory.mktemp("examples") / "server.log"
    with serving(log, "--admin-port", str(ADMIN_PORT)) as url:
        yield url


@pytest.fixture
def chat(url: str) -> Iterator[Chat]:
    with OpenAI(base_url=f"{url}/v1", api_key="none", timeout=300) as client:
        yield Chat(client)


@pytest.mark.parametrize("path", [*PROGRAMS, *WITH_FRAMEWORKS], ids=lambda path: path.stem)
def test_an_example_is_short_and_on_its_page(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 150
    assert ast.get_docstring(ast.parse(path.read_text()))
    module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    assert f"python -m {module}" in PAGE.read_text()


@pytest.mark.contract
@pytest.mark.timeout(600)
class TestLive:
    def test_agent_loop_calls_a_tool_in_every_step_from_a_cached_prompt(self, chat: Chat) -> None:
        shop = agent_loop.run(chat)
        assert len(shop.called) == 50
        assert {reply.choices[0].finish_reason for reply in chat.replies} == {"tool_calls"}
        assert agent_loop.cached_share(chat) >= 0.8

    def test_cancelled_turns_give_their_pages_back(self, url: str) -> None:
        """As a voice application cancels a turn when the user speaks: the stream is closed after its first text."""
        turn = {"role": "user", "content": "Tell me a long story about a lighthouse."}
        body = {"model": "nano", "messages": [turn], "stream": True, "temperature": 0, "max_tokens": 200}
        cancel_after_first_text(url, body)
        before = when_idle()
        for _ in range(NUM_CANCELLED):
            cancel_after_first_text(url, body)
        after = when_idle()
        assert after["kv_pages_free"] == before["kv_pages_free"]
        assert after["aborts_total"] - before["aborts_total"] >= 0.9 * NUM_CANCELLED

    def test_compare_prints_the_cost_of_both_decoders_with_the_same_answers(
        self, chat: Chat, capsys: pytest.CaptureFixture[str]
    ) -> None:
        right = compare(chat, lambda chat: invoices.run(chat, count=1))
        assert right.keys() == invoices.PROPERTIES.keys()
        costs = read_costs("invoices", capsys.readouterr().out)
        assert costs["is_same"]
        assert costs["ar"]["rounds"] == 0
        assert costs["verify"]["rounds"] > 0
        assert costs["verify"]["tokens"] == costs["ar"]["tokens"]

    def test_answers_cite_a_passage_that_was_shown(self, chat: Chat) -> None:
        cited = rag.answer(chat, "How long does the battery last?")
        assert len(cited.candidates) == 3
        assert "battery" in cited.candidates
        assert cited.passage in cited.candidates

    def test_the_compacted_log_has_the_form_and_only_paths_of_the_log(self, chat: Chat) -> None:
        log = compact.make_log(12)
        state = compact.compact(chat, log)
        assert state.keys() == {"files", "decisions", "open_points"}
        assert set(state["files"]) <= set(compact.PATH.findall(log))
        usage = chat.replies[0].usage
        assert usage is not None
        assert usage.completion_tokens < usage.prompt_tokens

    def test_a_prediction_changes_the_rounds_and_not_the_text(self, url: str) -> None:
        """By the command that the page shows."""
        command = "-m examples.transcript"
        assert f"\n.venv/bin/python {command}\n" in PAGE.read_text()
        words = [sys.executable, *command.split(), "--url", url]
        printed = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT).stdout
        assert read_costs(command, printed)["is_same"]
        rounds = re.findall(r"rounds (\d+) without, (\d+) with the prediction", printed)
        assert printed.count("same text without the prediction") == len(rounds) > 0
        assert sum(map(int, re.findall(r"(\d+) predicted tokens accepted", printed))) > 0
        assert sum(int(predicted) for _, predicted in rounds) < sum(int(plain) for plain, _ in rounds)

    def test_every_part_is_summarised_before_the_whole(self, chat: Chat) -> None:
        document = "\n\n".join(f"Room {i} is {colour}." for i, colour in enumerate(("red", "blue", "green")))
        found = summary.run(chat, document, num_chars=20)
        assert len(found.parts) == 3
        assert len(chat.replies) == 4
        assert found.text

    def test_the_coding_agent_repairs_every_function(self, chat: Chat) -> None:
        tried = coding_agent.run(chat)
        assert tried.keys() == coding_agent.TESTS.keys()
        assert tried["is_even"][-1].after.strip() == "return number % 2 == 0"
        assert len(chat.replies) == sum(map(len, tried.values()))
        assert all(len(set(edits)) == len(edits) for edits in tried.values())

    def test_helpers_share_a_cached_prefix_and_answer_as_alone(self, chat: Chat) -> None:
        together = helpers.run(chat)
        assert together == helpers.run(chat, num_parallel=1)
        usages = [reply.usage for reply in chat.replies[len(together) :]]
        assert all(u.prompt_tokens_details.cached_tokens > 0.8 * u.prompt_tokens for u in usages)


def cancel_after_first_text(url: str, body: dict[str, Any]) -> None:
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=300) as reply:
        assert reply.status_code == 200
        assert any(re.search(r'"content": ?"[^"]', line) for line in reply.iter_lines())


def when_idle() -> dict[str, float]:
    """Figures of the engine as soon as no request is left."""
    names = ("num_requests_running", "num_requests_waiting", "aborts_total", "kv_pages_free")
    deadline = time.monotonic() + 120
    while True:
        figures = counters.read(f"http://127.0.0.1:{ADMIN_PORT}", *names)
        if not figures["num_requests_running"] and not figures["num_requests_waiting"]:
            return figures
        assert time.monotonic() < deadline, "a cancelled turn kept its slot"
        time.sleep(0.1)


def test_parts_of_a_document_are_whole_paragraphs() -> None:
    paragraphs = ["a" * 30, "b" * 30, "c" * 200, "d" * 5]
    parts = summary.split("\n\n".join(paragraphs), num_chars=70)
    assert parts == ["a" * 30 + "\n\n" + "b" * 30, "c" * 200, "d" * 5]


def test_the_repository_of_the_coding_agent_has_one_bug_in_every_function(tmp_path: Path) -> None:
    repository = coding_agent.Repository(tmp_path)
    repository.path.write_text(coding_agent.CODE)
    assert repository.failing() == list(coding_agent.TESTS)
    for name in coding_agent.TESTS:
        assert coding_agent.candidates(repository.function(name))


def test_bm25_finds_the_passage_of_every_question() -> None:
    found = {question: rag.bm25(question, 5) for question in rag.QUESTIONS}
    assert all(rag.QUESTIONS[question] in names for question, names in found.items())


def test_invoices_are_made_by_rule_with_their_fields_in_the_text() -> None:
    text, invoice = invoices.make(random.Random(3))
    assert all(str(getattr(invoice, name)) in text for name in invoices.PROPERTIES)


def answering(texts: dict[str, str]) -> Any:
    """A client whose answer, tokens and forwards depend on the decoder."""

    def create(extra_body: dict[str, Any], **_: object) -> ChatCompletion:
        name = extra_body["decoder"]["name"]
        figures = {"forwards": 6, "rounds": 0} if name == "ar" else {"forwards": 4, "rounds": 2}
        usage = {"completion_tokens": 5, "prompt_tokens": 3, "total_tokens": 8, "quicksilver": figures}
        message = {"role": "assistant", "content": texts[name]}
        choices = [{"index": 0, "finish_reason": "stop", "message": message}]
        reply = {
            "id": "1",
            "choices": choices,
            "created": 0,
            "model": "nano",
            "object": "chat.completion",
            "usage": usage,
        }
        return ChatCompletion.model_validate(reply)

    return SimpleNamespace(chat=SimpleNamespace(completions=SimpleNamespace(create=create)))


@pytest.mark.parametrize(("plain", "is_same"), [("Paris", True), ("Rome", False)])
def test_printed_costs_are_those_of_the_replies(plain: str, is_same: bool, capsys: pytest.CaptureFixture[str]) -> None:
    chat = Chat(answering({"verify": "Paris", "ar": plain}))
    assert compare(chat, lambda chat: [chat.ask("a").content, chat.ask("b").content]) == ["Paris", "Paris"]
    costs = read_costs("two calls", capsys.readouterr().out)
    assert costs["is_same"] is is_same
    expected = {"ar": (2, 10, 0, 12), "verify": (2, 10, 4, 8)}
    names = ("calls", "tokens", "rounds", "forwards")
    assert {decoder: tuple(costs[decoder][name] for name in names) for decoder in expected} == expected


def test_every_example_has_its_costs_measured() -> None:
    assert sorted(example.split()[0] for example in EXAMPLES) == [path.stem for path in PROGRAMS]
    with pytest.raises(SystemExit, match="printed no costs"):
        read_costs("rag", "nothing")


async def test_counters_read_metrics_with_the_key_and_print_their_growth(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    growth = dict(zip(counters.COUNTS, (4, 10, 20, 5, 16, 8), strict=True))
    runs: list[str] = []

    def metrics(url: str, headers: dict[str, str], timeout: float) -> httpx.Response:
        assert headers == {"authorization": "Bearer qs-metrics"}
        text = "".join(f'quicksilver_{name}{{model="nano"}} {by * len(runs)}\n' for name, by in growth.items())
        return httpx.Response(200, text=text, request=httpx.Request("GET", url))

    async def run(decoder: str) -> str:
        runs.append(decoder)
        return decoder

    monkeypatch.setattr(httpx, "get", metrics)
    assert await counters.compare("http://127.0.0.1:1", run, "qs-metrics") == "verify"
    assert runs == ["verify", "ar", "verify"]
    shown = capsys.readouterr().out
    assert shown.count("10 tokens     4 forwards  2.50 tokens/forward") == 2
    assert shown.count("50% of 16 drafted tokens accepted  25% of the prompts cached") == 2
