from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.rescore import rescore
from quicksilver.core import CommitRule, ConstraintSpec, DecoderName, DecoderParams, Delta, FinishReason, Request
from quicksilver.errors import InvalidRequest, RowFailed
from quicksilver.evals import catalogue
from quicksilver.evals.prompt_builder import PromptBuilder
from quicksilver.evals.report import Report
from quicksilver.evals.run import EvalSettings, choose_items, collect, decoder_label, run_evals
from quicksilver.evals.task import Answer, Generate, Likelihood, Metrics, Task
from quicksilver.text.conversation import ToolCall
from tests.evals.build import likes_shortest, speaking, write_pack
from tests.support.fake_engine import FakeEngine, Step, spoken
from tests.support.fakes import tiny_tokenizer

VERIFY = DecoderParams(DecoderName.VERIFY, canvas_len=5)
AR = DecoderParams(DecoderName.AR)


def _load(data: Path) -> Iterable[str]:
    return [f"item {i}" for i in range(20)]


def _ask(item: str, writer: PromptBuilder) -> Generate:
    return Generate(writer.text(item), max_new_tokens=40)


def _score(item: str, answer: Answer) -> Metrics:
    return {"same": float(answer.text == item), "len": float(len(answer.text))}


ECHO = Task("echo", "chat", ("same",), _load, _ask, _score, limit=6)


@pytest.fixture(autouse=True)
def _only_echo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(catalogue.ALL, "echo", ECHO)


async def _run(client: FakeEngine, settings: EvalSettings) -> Report:
    from quicksilver.text.chat import ChatTemplate

    tokenizer = tiny_tokenizer()
    return await run_evals(client, tokenizer, ChatTemplate.own(tokenizer), settings)


async def test_every_decoder_gets_a_cell_with_scores_and_costs(tmp_path: Path) -> None:
    settings = EvalSettings(tmp_path, ("echo",), decoders=(AR, VERIFY), concurrency=3)
    report = await _run(speaking(lambda prompt: prompt), settings)
    assert [(cell.decoder, cell.value, cell.num_items) for cell in report.cells] == [
        ("ar", 1.0, 6),
        ("verify K=5", 1.0, 6),
    ]
    speed = report.cells[1].speed
    assert (speed.answers, speed.tokens) == (6, sum(len(record.text) + 1 for record in report.cells[1].records))
    assert speed.forwards > 0
    assert speed.rounds >= 6
    assert report.cells[0].speed.rounds == 0


async def test_no_more_items_are_in_flight_than_allowed(tmp_path: Path) -> None:
    client = speaking(lambda prompt: prompt)
    most = 0
    plain = client.stream

    async def watched(request: Request):  # type: ignore[no-untyped-def]
        nonlocal most
        async for event in plain(request):
            most = max(most, client.num_open)
            yield event

    client.stream = watched  # type: ignore[method-assign]
    await _run(client, EvalSettings(tmp_path, ("echo",), decoders=(AR,), concurrency=2))
    assert most == 2
    assert client.num_open == 0


async def test_failed_item_is_counted_and_left_out(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()

    def script(request: Request) -> list[Step]:
        text = tokenizer.decode(request.prompt_ids)
        if text == "item 3":
            return [Delta(request.id, finish=FinishReason.ERROR, error="row_failed: broken")]
        return spoken(request, tokenizer.encode(text))

    report = await _run(FakeEngine(script), EvalSettings(tmp_path, ("echo",), limit=20, decoders=(AR,)))
    (cell,) = report.cells
    assert (cell.value, cell.num_items, cell.num_failed) == (1.0, 19, 1)
    assert [record.error for record in cell.records if record.error] == ["row_failed: broken"]


async def test_time_limit_keeps_what_is_done_and_aborts_the_rest(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer()

    def script(request: Request) -> list[Step]:
        text = tokenizer.decode(request.prompt_ids)
        if text == "item 1":
            return [asyncio.Event().wait]
        return spoken(request, tokenizer.encode(text))

    client = FakeEngine(script)
    settings = EvalSettings(tmp_path, ("echo",), limit=20, decoders=(AR,), concurrency=2, seconds=1.0)
    (cell,) = (await _run(client, settings)).cells
    assert cell.is_cut
    assert 0 < cell.num_items < 20
    assert (client.num_open, client.num_finished) == (0, cell.num_items)


async def test_error_that_is_no_items_own_is_raised(tmp_path: Path) -> None:
    client = FakeEngine(lambda request: [ZeroDivisionError("a bug")])
    with pytest.raises(ZeroDivisionError):
        await _run(client, EvalSettings(tmp_path, ("echo",), decoders=(AR,)))


async def test_likelihood_tasks_run_once_whatever_the_decoders(tmp_path: Path) -> None:
    rows = [{"task": "arc_easy", "q": "Question: one?\nAnswer:", "c": ["a long wrong one", "no"], "g": 1}]
    settings = EvalSettings(write_pack(tmp_path, rows), ("arc_easy",), decoders=(AR, VERIFY))
    report = await _run(speaking(str), settings)
    assert [(cell.decoder, cell.value) for cell in report.cells] == [("likelihood", 1.0)]
    assert report.average() == 1.0


def test_same_seed_chooses_the_same_items(tmp_path: Path) -> None:
    settings = EvalSettings(tmp_path, limit=5, seed=1)
    chosen = choose_items(ECHO, settings)
    assert chosen == choose_items(ECHO, settings)
    assert chosen != choose_items(ECHO, replace(settings, seed=2))
    assert [index for index, _ in chosen] == sorted(index for index, _ in chosen)


def test_windows_are_taken_from_the_start(tmp_path: Path) -> None:
    chosen = choose_items(replace(ECHO, takes_first=True), EvalSettings(tmp_path, limit=3))
    assert chosen == [(0, "item 0"), (1, "item 1"), (2, "item 2")]


async def test_rescoring_repeats_the_scores_without_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = await _run(speaking(lambda prompt: prompt[:-1]), EvalSettings(tmp_path, ("echo",), decoders=(AR,)))
    assert report.cells[0].value == 0.0

    def lenient(item: str, answer: Answer) -> Metrics:
        return {"same": float(item.startswith(answer.text))}

    monkeypatch.setitem(catalogue.ALL, "echo", replace(ECHO, score=lenient))
    again = rescore(report, tmp_path)
    assert (again.cells[0].value, again.cells[0].speed) == (1.0, report.cells[0].speed)


def test_unknown_task_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidRequest, match="hellaswag"):
        catalogue.pick_tasks(("helaswag",))


def test_groups_name_tasks_that_exist() -> None:
    assert {name for names in catalogue.GROUPS.values() for name in names} <= set(catalogue.ALL)
    picked = [task.name for task in catalogue.pick_tasks(("skills", "sanity"))]
    assert len(picked) == len(set(picked))


def test_tasks_that_read_likelihoods_are_refused_for_a_server() -> None:
    kinds = {name: inspect.signature(task.ask).return_annotation for name, task in catalogue.ALL.items()}
    generating = {*catalogue.GROUPS["generating"], *catalogue.GROUPS["fim_by_context"], "echo"}
    assert generating == {name for name, kind in kinds.items() if kind == "Generate"}
    catalogue.refuse_likelihoods(("generating", "lambada"))
    with pytest.raises(InvalidRequest, match="wikitext2: likelihoods need the engine"):
        catalogue.refuse_likelihoods(("wikitext2", "sanity"))


def test_decoders_are_labelled_by_what_sets_them_apart() -> None:
    confidence = DecoderParams(DecoderName.CONFIDENCE, 16, CommitRule.THRESHOLD, 0.7)
    assert [decoder_label(d) for d in (AR, VERIFY, confidence)] == [
        "ar",
        "verify K=5",
        "confidence K=16 threshold 0.7",
    ]


TOKENIZER = tiny_tokenizer()
DECODER = DecoderParams()


async def test_answer_has_text_tokens_and_usage() -> None:
    client = speaking(lambda prompt: "hello there")
    answer = await collect(client, TOKENIZER, "one", Generate((20, 21), stop_ids=(2,)), DECODER)
    assert (answer.text, len(answer.token_ids), answer.finish) == ("hello there", 11, FinishReason.STOP)
    assert answer.usage is not None
    assert (client.seen[0].params.stop_ids, client.seen[0].params.decoder) == ((2,), DECODER)


async def test_stop_string_cuts_the_answer_and_frees_the_request() -> None:
    client = speaking(lambda prompt: "code\n```\nand more and more")
    answer = await collect(client, TOKENIZER, "one", Generate((20,), stop=("\n```",)), DECODER)
    assert (answer.text, answer.usage) == ("code", None)
    assert (client.num_open, client.num_aborted) == (0, 1)


async def test_thoughts_are_not_the_answer_and_calls_are_parsed() -> None:
    roles = TOKENIZER.roles
    assert None not in (roles.think_open, roles.think_close, roles.tool_open, roles.tool_close)
    call = TOKENIZER.encode('{"name": "find", "arguments": {"to": "Rome"}}')
    ids = [roles.think_open, *TOKENIZER.encode("hm"), roles.think_close, *TOKENIZER.encode("Sure.")]
    ids += [roles.tool_open, *call, roles.tool_close]

    def script(request: Request) -> list[Step]:
        return spoken(request, [i for i in ids if i is not None])

    ask = Generate((20,), tool_names=frozenset({"find"}))
    answer = await collect(FakeEngine(script), TOKENIZER, "one", ask, DECODER)
    assert (answer.text, answer.calls) == ("Sure.", (ToolCall("find", '{"to": "Rome"}'),))


async def test_failed_request_raises_its_own_code() -> None:
    client = FakeEngine(lambda request: [Delta(request.id, finish=FinishReason.ERROR, error="too_odd: broken rows")])
    with pytest.raises(RowFailed, match=r"^broken rows$") as caught:
        await collect(client, TOKENIZER, "one", Generate((20,)), DECODER)
    assert caught.value.code == "too_odd"


async def test_given_tokens_are_left_out_of_scores() -> None:
    client = FakeEngine(lambda request: [], likes_shortest)
    answer = await collect(client, TOKENIZER, "one", Likelihood((20,), ((1, 2, 3), (4, 5)), (2, 1)), DECODER)
    assert answer.logprobs == ((-1.0,), (-1.0,))


async def test_what_an_answer_must_begin_with_is_asked_for_and_left_out() -> None:
    client = speaking(lambda prompt: " compute(x)")
    answer = await collect(client, TOKENIZER, "one", Generate((20,), lead=" comp"), DECODER)
    assert (answer.text, client.seen[0].constraint) == ("ute(x)", ConstraintSpec(lead=" comp"))


async def test_space_is_left_out_but_not_asked_for() -> None:
    client = speaking(lambda prompt: " x" if len(prompt) == 1 else "x")
    for prompt in ((20,), (20, 21)):
        assert (await collect(client, TOKENIZER, "one", Generate(prompt, lead=" "), DECODER)).text == "x"
    assert [request.constraint for request in client.seen] == [None, None]
