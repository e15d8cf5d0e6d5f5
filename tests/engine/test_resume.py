"""A request that is continued after any of its Deltas ends with the same tokens as an undisturbed one."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from quicksilver.constrain.compile.response_format import compile_response_format
from quicksilver.constrain.runtime.matcher import Grammars
from quicksilver.constrain.source import FormatKind, ResponseFormat
from quicksilver.core import Delta, Request, ResumePoint, ThinkBudget
from quicksilver.engine.config import EngineConfig
from quicksilver.engine.engine import Engine
from quicksilver.worker import protocol
from tests.support.fakes import ByteTokenizer
from tests.support.tiny import answers, decode_params, finish_all, tiny_engine, tiny_model

PROMPT = tuple(range(20, 50))
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "kind": {"enum": ["alpha", "beta"]}},
    "required": ["name", "kind"],
    "additionalProperties": False,
}
JSON = compile_response_format(ResponseFormat(FormatKind.JSON_SCHEMA, SCHEMA))
DECODERS: dict[str, dict[str, object]] = {
    "ar": {},
    "verify": {"canvas_len": 8},
    "confidence": {"canvas_len": 8, "threshold": 0.3},
    "confidence static": {"canvas_len": 8, "rule": "static", "steps": 4},
    "edit": {"canvas_len": 8, "threshold": 0.3, "edit_threshold": 0.3, "edit_passes": 4},
}
SAMPLED = {"temperature": 1.0, "top_p": 0.9, "seed": 7, "presence_penalty": 0.5, "frequency_penalty": 0.3}
CASES = {
    "greedy": Request("x", PROMPT),
    "sampled": Request("x", PROMPT),
    "logprobs": Request("x", PROMPT),
    "thinking": Request("x", PROMPT, think=ThinkBudget((90, 91), max_tokens=9)),
    "json": Request("x", PROMPT, constraint=JSON),
    "json in little room": Request("x", PROMPT, constraint=JSON),
}


def request_of(decoder: str, case: str) -> Request:
    options = {**DECODERS[decoder], "max_new_tokens": 31 if "room" in case else 40}
    options |= SAMPLED if case in ("sampled", "json") else {}
    options |= {"logprobs": 2} if case == "logprobs" else {}
    return replace(CASES[case], params=decode_params(decoder.split()[0], **options))


def engine() -> Engine:
    tokenizer = ByteTokenizer()
    made = tiny_engine(model=tiny_model(vocab_size=273))
    made.constraints = Grammars(tokenizer.to_json(), tokenizer.eos_ids, 273).constraint
    return made


def run(request: Request) -> list[Delta]:
    started = engine()
    started.add(request)
    return finish_all(started)["x"]


def point_after(deltas: list[Delta]) -> ResumePoint:
    """The state after `deltas`, as it arrives from a worker."""
    reply = protocol.reply_decoder.decode(msgspec.msgpack.encode(protocol.GotEvents([deltas[-1]])))
    assert isinstance(reply, protocol.GotEvents)
    (last,) = reply.deltas
    assert last == deltas[-1]
    assert last.usage is not None
    tokens = tuple(token for delta in deltas for token in delta.token_ids)
    return ResumePoint(tokens, last.canvas, replace(last.usage, migrated=1))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("decoder", DECODERS)
def test_a_continued_request_makes_the_same_text(decoder: str, case: str) -> None:
    request = request_of(decoder, case)
    whole = run(request)
    assert len(whole) > 1
    step = max(len(whole) // 4, 1)
    for cut in range(1, len(whole), step):
        rest = run(replace(request, resume=point_after(whole[:cut]), runs_alone=cut % 2 == 0))
        parts = [*whole[:cut], *rest]
        assert answers({"x": parts}) == answers({"x": whole}), (cut, len(whole))
        assert [lp for delta in parts for lp in delta.logprobs] == [lp for delta in whole for lp in delta.logprobs]
        assert rest[-1].finish is whole[-1].finish
        assert rest[-1].usage is not None
        assert whole[-1].usage is not None
        assert rest[-1].usage.completion_tokens == whole[-1].usage.completion_tokens
        assert rest[-1].usage.prompt_tokens == len(PROMPT)
        assert rest[-1].usage.migrated == 1


def test_a_request_without_a_delta_begins_again() -> None:
    request = request_of("verify", "json")
    first = run(request)
    again = run(replace(request, resume=ResumePoint()))
    assert answers({"x": again}) == answers({"x": first})


def test_a_continued_request_keeps_the_cached_tokens_that_it_was_told() -> None:
    request = request_of("ar", "greedy")
    running = engine()
    for _ in range(2):
        running.add(request)
        deltas = finish_all(running)["x"]
    assert deltas[0].usage is not None
    assert deltas[0].usage.cached_tokens == 16
    last = run(replace(request, resume=point_after(deltas[:3])))[-1]
    assert last.usage is not None
    assert last.usage.cached_tokens == 16


def test_a_continued_request_keeps_its_wait_and_adds_to_its_time() -> None:
    request = request_of("ar", "greedy")
    deltas = run(request)
    point = point_after(deltas[:3])
    assert point.usage.queued_s > 0
    before = replace(point.usage, queued_s=5.0, engine_s=7.0)
    last = run(replace(request, resume=replace(point, usage=before)))[-1].usage
    assert last is not None
    assert last.queued_s == 5.0
    assert last.engine_s > 7.0


def test_a_request_that_runs_alone_shares_no_step_until_its_first_delta() -> None:
    running = engine()
    steps: list[list[str]] = []
    running.on_step = lambda ids: steps.append(list(ids))
    params = decode_params("ar", max_new_tokens=4)
    for name in "abcd":
        running.add(Request(name, (ord(name), *PROMPT), params, runs_alone=name in "bc"))
    deltas = finish_all(running)
    forwards = [sorted(ids) for ids in steps if ids]
    assert forwards[:3] == [["b"], ["a", "b", "d"], ["c"]], "others run between two requests that run alone"
    assert forwards[3] == ["a", "b", "c", "d"]
    assert all(parts[-1].finish is not None for parts in deltas.values())


def test_others_run_while_a_long_prompt_runs_alone() -> None:
    """A prompt of thousands of tokens takes minutes on a CPU."""
    running = tiny_engine(EngineConfig(num_pages=64, max_rows=8))
    steps: list[list[str]] = []
    running.on_step = lambda ids: steps.append(list(ids))
    params = decode_params("ar", canvas_len=1, max_new_tokens=4)
    running.add(Request("long", tuple(range(1, 90)), params, runs_alone=True))
    running.add(Request("short", PROMPT, params))
    running.add(Request("later", tuple(range(2, 90)), params, runs_alone=True))
    first_delta = {}
    while running.has_work:
        for event in running.step():
            first_delta.setdefault(event.request_id, len([ids for ids in steps if ids]))
    assert list(first_delta) == ["short", "long", "later"]
    before = [ids for ids in steps if ids][: first_delta["long"]]
    assert all(ids == ["long"] for ids in before if "long" in ids)


def test_requests_that_run_alone_share_the_prefix_that_the_first_one_computed() -> None:
    """All requests of a fatal step run alone, one after another; without the cache each computes the same prompt."""
    running = tiny_engine(EngineConfig(num_pages=64, max_rows=8, page_size=16))
    params = decode_params("ar", canvas_len=1, max_new_tokens=4)
    for name in "abc":
        running.add(Request(name, (*range(1, 81), ord(name) - ord("a")), params, runs_alone=True))
    deltas = finish_all(running)
    usages = [deltas[name][-1].usage for name in "abc"]
    assert [usage.cached_tokens for usage in usages if usage is not None] == [0, 80, 80]


def test_tokens_that_the_grammar_determines_do_not_end_a_run_alone() -> None:
    """They are known before the first forward, which may be the fatal one."""
    running = engine()
    steps: list[list[str]] = []
    running.on_step = lambda ids: steps.append(list(ids))
    running.add(Request("other", PROMPT, decode_params("ar", max_new_tokens=4)))
    running.add(replace(request_of("ar", "json"), runs_alone=True))
    deltas = finish_all(running)
    assert deltas["x"][0].num_forced == len(deltas["x"][0].token_ids) > 0
    assert next(ids for ids in steps if ids) == ["x"]
