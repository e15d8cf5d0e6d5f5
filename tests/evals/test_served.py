"""Evaluations over HTTP give the same answers and costs as in process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest

from quicksilver.accounts.identity import OPERATOR
from quicksilver.accounts.records import KeyDraft
from quicksilver.accounts.service import Accounts, AdminService
from quicksilver.core import DecodeParams, DecoderName, DecoderParams, Delta, EngineClient, Request, ScoreRequest
from quicksilver.errors import (
    AuthenticationFailed,
    ContextTooLong,
    EngineDied,
    InvalidRequest,
    ModelNotFound,
    NotFound,
    RowFailed,
)
from quicksilver.evals.http_link import Link
from quicksilver.evals.report import Report
from quicksilver.evals.run import EvalSettings, collect, run_evals
from quicksilver.evals.served import ServedEngine, connect
from quicksilver.evals.task import Generate
from quicksilver.server.config import ServerConfig
from quicksilver.text.chat import ChatTemplate
from quicksilver.text.conversation import ToolCall
from tests.evals.build import HELD_OUT, speaking, write_rows
from tests.evals.serving import MODEL, foreign_app, listening, serving
from tests.evals.test_engine import FILE, tiny_engine
from tests.support.fake_engine import FakeEngine, Step, spoken
from tests.support.fakes import tiny_tokenizer
from tests.support.small_tokenizer import small_tokenizer

TOKENIZER = tiny_tokenizer()
TEMPLATE = ChatTemplate.own(TOKENIZER)


@asynccontextmanager
async def connected(url: str, key: str = "", model: str = MODEL) -> AsyncIterator[ServedEngine]:
    async with aclosing(Link(url, key)) as link:
        yield await connect(link, model, TOKENIZER, TEMPLATE)


@asynccontextmanager
async def served(engine: EngineClient, home: Path) -> AsyncIterator[ServedEngine]:
    async with serving(engine, home) as url, connected(url) as client:
        yield client


async def refused(url: str, key: str = "", model: str = MODEL) -> None:
    async with connected(url, key, model):
        pytest.fail("the request was not refused")


async def _report(client: EngineClient, data: Path) -> Report:
    decoders = (DecoderParams(DecoderName.AR), DecoderParams(DecoderName.VERIFY, canvas_len=4))
    settings = EvalSettings(data, ("sanity", "instructions", "fim_python"), limit=2, decoders=decoders, concurrency=1)
    return await run_evals(client, TOKENIZER, TEMPLATE, settings)


async def test_answers_and_costs_are_those_of_the_engine_in_process(tmp_path: Path) -> None:
    write_rows(tmp_path / "train" / "code_python.jsonl.xz", [{"p": HELD_OUT, "f": "a.py", "t": FILE}])
    # One engine each, because cached pages of the first run would save forwards in the second.
    near, far = tiny_engine(), tiny_engine()
    inside = await _report(near, tmp_path)
    async with served(far, tmp_path) as client:
        outside = await _report(client, tmp_path)
    await near.close()
    await far.close()
    assert len(outside.cells) == len(inside.cells) == 6
    for ours, theirs in zip(inside.cells, outside.cells, strict=True):
        assert (ours.num_failed, theirs.num_failed) == (0, 0)
        assert (theirs.records, theirs.speed) == (ours.records, ours.speed)
    assert outside.cells[1].speed.rounds > 0
    assert (outside.model, outside.engine["fingerprint"]) == (MODEL, inside.engine["fingerprint"])


async def test_special_tokens_and_numbers_survive_the_way(tmp_path: Path) -> None:
    roles = TOKENIZER.roles
    call = TOKENIZER.encode('{"name": "find", "arguments": {"to": "Rome"}}')
    ids = [i for i in (roles.tool_open, *call, roles.tool_close) if i is not None]
    engine = FakeEngine(lambda request: spoken(request, ids))
    decoder = DecoderParams(DecoderName.CONFIDENCE, canvas_len=8, threshold=0.7)
    prompt = TEMPLATE.render([]).ids + TOKENIZER.eos_ids
    ask = Generate(prompt, 99, stop_ids=(2, 5), tool_names=frozenset({"find"}), logit_bias={3: 1.5})
    async with served(engine, tmp_path) as client:
        answer = await collect(client, TOKENIZER, "one", ask, decoder)
    assert (answer.calls, answer.token_ids) == ((ToolCall("find", '{"to": "Rome"}'),), tuple(ids))
    wanted = DecodeParams(max_new_tokens=99, stop_ids=(2, 5), logit_bias={3: 1.5}, decoder=decoder)
    assert (engine.seen[-1].prompt_ids, engine.seen[-1].params) == (prompt, wanted)


async def test_stop_string_cuts_the_answer_and_frees_the_servers_request(tmp_path: Path) -> None:
    engine = speaking(lambda prompt: "code\n```\n" + "and more " * 200)
    async with served(engine, tmp_path) as client:
        answer = await collect(client, TOKENIZER, "one", Generate((20,), 2000, stop=("\n```",)), DecoderParams())
    assert (answer.text, answer.usage) == ("code", None)
    assert engine.num_open == 0


async def test_failures_of_one_answer_are_its_own(tmp_path: Path) -> None:
    def script(request: Request) -> list[Step]:
        is_probe = request.params.max_new_tokens == 1
        return spoken(request, [30]) if is_probe else [Delta(request.id, (30,)), EngineDied("the worker died")]

    async with served(FakeEngine(script), tmp_path) as client:
        with pytest.raises(RowFailed, match="the worker died") as caught:
            await collect(client, TOKENIZER, "one", Generate((20,)), DecoderParams())
        assert caught.value.code == "engine_died"
        with pytest.raises(InvalidRequest, match="canvas_len"):
            await collect(client, TOKENIZER, "two", Generate((20,)), DecoderParams(canvas_len=1000))
        with pytest.raises(ContextTooLong):
            await collect(client, TOKENIZER, "three", Generate((20,), 4096), DecoderParams())


async def test_likelihoods_are_refused(tmp_path: Path) -> None:
    async with served(speaking(str), tmp_path) as client:
        with pytest.raises(InvalidRequest, match="in this process"):
            await client.score(ScoreRequest("one", (1,), ((2,),)))


def _make_key(admin: AdminService) -> str:
    org = admin.organizations.create_org(OPERATOR, "org")
    project = admin.organizations.create_project(OPERATOR, org.id, "project")
    return admin.keys.create_key(OPERATOR, KeyDraft("key", project.id)).secret


async def test_keys_are_sent_and_a_wrong_one_is_said(tmp_path: Path) -> None:
    accounts = await Accounts.open(f"sqlite:///{tmp_path}/books.db")
    key = await accounts.admin(_make_key)
    async with serving(speaking(lambda prompt: "yes"), tmp_path, accounts) as url:
        async with connected(url, key) as client:
            answer = await collect(client, TOKENIZER, "one", Generate((20,)), DecoderParams())
        for wrong in ("", "qs-wrong"):
            with pytest.raises(AuthenticationFailed, match=f"{url} refused"):
                await refused(url, key=wrong)
    await accounts.close()
    assert answer.text == "yes"


async def test_an_unknown_model_is_said(tmp_path: Path) -> None:
    async with serving(speaking(str), tmp_path) as url:
        with pytest.raises(ModelNotFound, match="did you mean `tiny`"):
            await refused(url, model="tinny")


async def test_another_tokenizer_than_the_servers_is_refused(tmp_path: Path) -> None:
    other = small_tokenizer()
    async with serving(speaking(str), tmp_path) as url, aclosing(Link(url)) as link:
        with pytest.raises(InvalidRequest, match="another tokenizer"):
            await connect(link, MODEL, other, ChatTemplate.own(other))


async def test_a_server_that_is_not_ours_is_said(tmp_path: Path) -> None:
    async with listening(foreign_app(), ServerConfig(home=tmp_path)) as url:
        for address in (url, url.removesuffix("/v1")):
            with pytest.raises(NotFound, match="as a quicksilver server does"):
                await refused(address)
