"""`model: "auto"` through the whole server: cascade, fallback, consent, charges and idempotency."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from quicksilver.core import Delta, FinishReason, Request, ScoreRequest, Scores
from quicksilver.errors import EngineDied, EngineUnavailable
from quicksilver.server.http.metrics import render
from tests.server.asgi import Call
from tests.server.conftest import Served, chat, content_of, events, says
from tests.server.hybrid.conftest import SURE, UNSURE, HybridServed, answers, consent, legs_of, rows_of
from tests.support.bank import PRICE, Bank
from tests.support.fake_engine import FakeEngine, Step
from tests.support.fake_upstream import Answer, Fault

PATH = "/v1/chat/completions"
UPSTREAM_COST = 5 * 3_000_000 + 2 * 1_000_000 + 5 * 15_000_000


async def ask(hybrid: HybridServed, headers: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    response = await hybrid.served.post(PATH, chat(**{"model": "auto", **fields}), headers)
    assert response.status_code == 200, response.text
    return {**response.json(), "headers": response.headers}


def text_of(reply: dict[str, Any]) -> str:
    return str(reply["choices"][0]["message"]["content"])


async def test_a_sure_answer_stays_here(hybrid: HybridServed) -> None:
    hybrid.served.engine.script = answers("Paris", SURE)
    reply = await ask(hybrid)
    assert (text_of(reply), reply["model"]) == ("Paris", "auto")
    assert legs_of(reply) == [("nano", "answered")]
    assert reply["headers"]["x-quicksilver-route"] == "rule=cascade; nano=answered"
    evidence = reply["usage"]["quicksilver"]["legs"][0]["evidence"]
    assert evidence == {"complete": True, "mean_logprob": -0.1, "min_logprob": -0.1, "acceptance": 0.8}
    assert reply["choices"][0]["logprobs"] is None
    assert not hybrid.upstream.bodies


async def test_an_unsure_answer_is_escalated(hybrid: HybridServed) -> None:
    hybrid.served.engine.script = answers("London", UNSURE)
    reply = await ask(hybrid)
    assert text_of(reply) == "Paris, says the upstream."
    assert legs_of(reply) == [("nano", "escalated"), ("strong", "answered")]
    assert reply["usage"]["prompt_tokens"] == 7
    assert reply["system_fingerprint"] == "upstream-strong"
    assert "-2.000 is below -1" in reply["usage"]["quicksilver"]["legs"][0]["reason"]


async def test_a_stream_is_escalated_before_its_first_byte(hybrid: HybridServed) -> None:
    hybrid.served.engine.script = answers("London", UNSURE)
    body = chat(model="auto", stream=True, stream_options={"include_usage": True})
    response = await hybrid.served.post(PATH, body)
    chunks = events(response)
    assert content_of(chunks) == "Paris, says the upstream."
    assert legs_of(chunks[-1]) == [("nano", "escalated"), ("strong", "answered")]
    assert response.headers["x-quicksilver-route"] == "rule=cascade; nano=escalated; strong=answered"


async def test_targets_are_counted_by_outcome(hybrid: HybridServed) -> None:
    hybrid.served.engine.script = answers("London", UNSURE)
    for _ in range(2):
        await ask(hybrid)
    text = render(hybrid.served.services.metrics, []).decode()
    assert 'quicksilver_hybrid_legs_total{outcome="escalated",target="nano"} 2.0' in text
    assert 'quicksilver_hybrid_legs_total{outcome="answered",target="strong"} 2.0' in text


async def test_a_default_model_that_cannot_be_loaded_is_a_failed_target(hybrid: HybridServed) -> None:
    class Unloadable(FakeEngine):
        is_loaded = False

        async def load(self) -> None:
            raise EngineUnavailable("the model is not loaded in time")

    hybrid.served.engine = Unloadable(says("never"))
    hybrid.served.rebuild(hybrid.served.services.config)
    await hybrid.apply()
    assert legs_of(await ask(hybrid)) == [("nano", "failed"), ("strong", "answered")]


async def test_a_sure_answer_is_streamed_with_all_its_text(hybrid: HybridServed) -> None:
    hybrid.served.engine.script = answers("Paris", SURE)
    response = await hybrid.served.post(PATH, chat(model="auto", stream=True))
    assert content_of(events(response)) == "Paris"


@pytest.mark.parametrize("fault", [fault for fault in Fault if fault is not Fault.NONE])
@pytest.mark.parametrize("stream", [False, True])
async def test_if_the_upstream_fails_the_unsure_answer_is_delivered(
    hybrid: HybridServed, fault: Fault, stream: bool
) -> None:
    hybrid.served.engine.script = answers("London", UNSURE)
    hybrid.upstream.script = lambda body: Answer(fault=fault)
    response = await hybrid.served.post(PATH, chat(model="auto", stream=stream))
    assert response.status_code == 200
    if fault is Fault.CUT and stream:
        # The last target streams: its first words were sent before it was cut off.
        assert '"code":"upstream_failed"' in response.text
        return
    found = content_of(events(response)) if stream else text_of(response.json())
    assert found == "London"
    assert response.headers["x-quicksilver-route"] == "rule=cascade; nano=answered; strong=failed"


async def test_the_best_profile_asks_the_last_target_first(hybrid: HybridServed) -> None:
    reply = await ask(hybrid, model="auto:best")
    assert legs_of(reply) == [("strong", "answered")]
    assert not hybrid.served.engine.seen
    hybrid.upstream.script = lambda body: Answer(fault=Fault.BROKEN)
    hybrid.served.engine.script = says("local")
    assert legs_of(await ask(hybrid, model="auto:best")) == [("strong", "failed"), ("nano", "answered")]


async def test_the_cheap_profile_has_no_gate(hybrid: HybridServed) -> None:
    hybrid.served.engine.script = answers("London", UNSURE)
    assert legs_of(await ask(hybrid, model="auto:cheap")) == [("nano", "answered")]
    hybrid.served.engine.is_ready = False
    assert legs_of(await ask(hybrid, model="auto:cheap")) == [("nano", "failed"), ("strong", "answered")]


async def test_a_cascade_of_two_models_of_this_server(hybrid: HybridServed) -> None:
    await hybrid.apply(rules=[{"name": "own", "to": ["nano", "coder"], "gate": {"acceptance": 0.5}}])
    hybrid.served.engine.script = answers("London", accepted=2)
    reply = await ask(hybrid)
    assert text_of(reply) == "from the coder"
    assert legs_of(reply) == [("nano", "escalated"), ("coder", "answered")]
    assert hybrid.served.engine.seen[0].params.logprobs is None, "acceptance needs no log-probabilities"
    assert not hybrid.upstream.bodies


async def test_an_answer_may_be_the_draft_of_the_next_target(hybrid: HybridServed) -> None:
    rule = {"name": "own", "to": ["nano", "coder", "strong"], "gate": {"acceptance": 0.9}, "prediction": True}
    await hybrid.apply(rules=[rule])
    hybrid.served.engine.script = answers("London", accepted=2)
    hybrid.coder.script = answers("Berlin", accepted=2)
    reply = await ask(hybrid)
    assert [outcome for _, outcome in legs_of(reply)] == ["escalated", "escalated", "answered"]
    tokenizer = hybrid.served.services.tokenizer
    assert hybrid.coder.seen[0].prediction == tuple(tokenizer.encode("London"))
    assert hybrid.upstream.bodies[0]["prediction"] == {"type": "content", "content": "Berlin"}


async def test_an_answer_that_was_cut_off_is_escalated(hybrid: HybridServed) -> None:
    await hybrid.apply(rules=[{"name": "r", "to": ["nano", "coder"], "gate": {}}])
    hybrid.served.engine.script = answers("London", finish=FinishReason.LENGTH)
    assert legs_of(await ask(hybrid)) == [("nano", "escalated"), ("coder", "answered")]


async def test_a_dead_end_of_a_grammar_is_escalated(hybrid: HybridServed) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    hybrid.upstream.script = lambda body: Answer(text='{"a": 1}')

    def dead_end(request: Request) -> list[Step]:
        return [Delta(request.id, finish=FinishReason.ERROR, error="row_failed: no token is legal here")]

    for script in (dead_end, says('{"a": "no number"}')):
        hybrid.served.engine.script = script
        reply = await ask(hybrid, response_format=form)
        assert (text_of(reply), legs_of(reply)) == ('{"a": 1}', [("nano", "failed"), ("strong", "answered")])


async def test_a_prompt_that_is_too_long_here_goes_to_the_next_target(hybrid: HybridServed) -> None:
    reply = await ask(hybrid, text="word " * 5000)
    assert legs_of(reply) == [("nano", "failed"), ("strong", "answered")]


async def test_a_question_decides(hybrid: HybridServed) -> None:
    gate = {"question": "Is the answer complete?", "question_probability": 0.6}
    await hybrid.apply(rules=[{"name": "r", "to": ["nano", "coder"], "gate": gate}])
    hybrid.served.engine.script = answers("London")
    yes = [-1.0, -1.0]

    def score(request: ScoreRequest) -> Scores:
        return Scores((tuple(yes),))

    hybrid.served.engine.scorer = score
    assert legs_of(await ask(hybrid))[0] == ("nano", "escalated")
    yes[:] = [-0.001, -9.0]
    assert legs_of(await ask(hybrid)) == [("nano", "answered")]
    asked = hybrid.served.engine.scored[-1]
    prompt = hybrid.served.services.tokenizer.decode(asked.prompt_ids)
    assert "user: Hi\nassistant: London" in prompt


async def test_labels_are_gated_by_their_probability(hybrid: HybridServed) -> None:
    await hybrid.apply(rules=[{"name": "r", "to": ["nano", "coder"], "gate": {"mean_logprob": -0.001}}])
    reply = await ask(hybrid, choice=["yes", "no"])
    assert legs_of(reply) == [("nano", "escalated"), ("coder", "answered")]


async def test_an_invalid_request_is_refused_once(hybrid: HybridServed) -> None:
    response = await hybrid.served.post(PATH, chat(model="auto", tool_choice="required"))
    assert (response.status_code, response.json()["error"]["param"]) == (400, "tool_choice")
    assert not hybrid.upstream.bodies


async def test_if_every_target_fails_the_last_error_is_the_reply(hybrid: HybridServed) -> None:
    hybrid.upstream.script = lambda body: Answer(fault=Fault.BROKEN)

    def dies(request: Request) -> list[Step]:
        return [EngineDied("the engine died")]

    hybrid.served.engine.script = dies
    response = await hybrid.served.post(PATH, chat(model="auto:best"))
    assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_died")
    assert response.headers["x-quicksilver-route"] == "rule=cascade; strong=failed; nano=failed"


async def test_without_a_policy_auto_is_no_model(served: Served) -> None:
    response = await served.post(PATH, chat(model="auto"))
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


async def test_other_routes_use_the_default_model(hybrid: HybridServed) -> None:
    response = await hybrid.served.post("/v1/completions", {"model": "auto", "prompt": "Hi"})
    assert response.status_code == 200
    assert not hybrid.upstream.bodies


async def test_no_address_comes_from_a_request(hybrid: HybridServed) -> None:
    body = chat(model="auto:best", base_url="http://127.0.0.1:1/v1", api_base="http://127.0.0.1:1", upstream="evil")
    headers = {"x-upstream": "http://127.0.0.1:1", "x-secret": "mine"}
    response = await hybrid.served.post(PATH, body, headers)
    assert response.status_code == 200
    sent = bytes(hybrid.upstream.received)
    assert len(hybrid.upstream.bodies) == 1
    assert b"evil" not in sent
    assert b"x-secret" not in sent


async def test_without_consent_nothing_leaves(hybrid: HybridServed, bank: Bank) -> None:
    key = await bank.key()
    await hybrid.apply()
    hybrid.served.engine.script = answers("London", UNSURE)
    reply = await ask(hybrid, key)
    assert legs_of(reply) == [("strong", "skipped"), ("nano", "answered")]
    assert not hybrid.upstream.received


async def test_consent_that_is_withdrawn_during_a_request_counts(hybrid: HybridServed, bank: Bank) -> None:
    key = await bank.key()
    await consent(bank)
    await hybrid.apply()

    async def withdraw() -> None:
        await consent(bank, may_leave=False)

    hybrid.served.engine.script = lambda request: [withdraw, *answers("London", UNSURE)(request)]
    reply = await ask(hybrid, key)
    assert legs_of(reply) == [("nano", "answered"), ("strong", "skipped")]
    assert not hybrid.upstream.received
    assert await bank.spent() > 0


async def test_each_leg_is_charged_at_its_own_price(hybrid: HybridServed, bank: Bank) -> None:
    key = await bank.key()
    await consent(bank)
    await hybrid.apply()
    hybrid.served.engine.script = answers("London", UNSURE)
    reply = await ask(hybrid, key)
    local, strong = await rows_of(bank)
    nano = reply["usage"]["quicksilver"]["legs"][0]
    assert (local.model, local.state) == ("nano", "settled")
    assert local.cost == (nano["prompt_tokens"] + nano["completion_tokens"]) * PRICE
    assert (strong.model, strong.state, strong.cost) == ("strong", "settled", UPSTREAM_COST)
    assert (strong.input_tokens, strong.cached_tokens, strong.output_tokens) == (7, 2, 5)
    assert await bank.spent() * PRICE == local.cost + strong.cost


async def test_a_failed_leg_is_free(hybrid: HybridServed, bank: Bank) -> None:
    key = await bank.key()
    await consent(bank)
    await hybrid.apply()
    hybrid.served.engine.script = answers("London", UNSURE)
    hybrid.upstream.script = lambda body: Answer(fault=Fault.CUT)
    assert text_of(await ask(hybrid, key)) == "London"
    local, strong = await rows_of(bank)
    assert (local.state, strong.state, strong.cost) == ("settled", "released", 0)
    assert await bank.spent() * PRICE == local.cost > 0


async def test_a_key_at_its_limit_of_one_request_in_flight_can_escalate(hybrid: HybridServed, bank: Bank) -> None:
    from quicksilver.accounts.records import Limits

    key = await bank.key(limits=Limits(concurrency=1))
    await consent(bank)
    await hybrid.apply()
    hybrid.served.engine.script = answers("London", UNSURE)
    assert legs_of(await ask(hybrid, key)) == [("nano", "escalated"), ("strong", "answered")]


async def test_without_money_for_the_upstream_the_unsure_answer_is_delivered(hybrid: HybridServed, bank: Bank) -> None:
    key = await bank.key(credits=2000)
    await consent(bank)
    await hybrid.apply()
    hybrid.served.engine.script = answers("London", UNSURE)
    reply = await ask(hybrid, key, max_tokens=200)
    assert legs_of(reply) == [("nano", "answered"), ("strong", "failed")]
    (row,) = await rows_of(bank)
    assert (row.model, row.state) == ("nano", "settled")
    assert not hybrid.upstream.received


async def test_a_key_that_may_not_use_a_target_skips_it(hybrid: HybridServed, bank: Bank) -> None:
    key = await bank.key(models=frozenset({"nano"}))
    await consent(bank)
    await hybrid.apply()
    hybrid.served.engine.script = answers("London", UNSURE)
    assert legs_of(await ask(hybrid, key)) == [("nano", "answered"), ("strong", "skipped")]
    assert not hybrid.upstream.received


@pytest.mark.parametrize("fault", [Fault.NONE, Fault.BROKEN])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_repeated_request_is_replayed_and_charged_once(
    hybrid: HybridServed, bank: Bank, fault: Fault, stream: bool
) -> None:
    key = {**await bank.key(), "idempotency-key": "once"}
    await consent(bank)
    await hybrid.apply()
    hybrid.served.engine.script = answers("London", UNSURE)
    hybrid.upstream.script = lambda body: Answer(fault=fault)
    body = chat(model="auto", stream=stream)
    first = await hybrid.served.post(PATH, body, key)
    spent = await bank.spent()
    again = await hybrid.served.post(PATH, body, key)
    assert first.content == again.content
    assert again.headers["idempotent-replayed"] == "true"
    assert (await bank.spent(), len(hybrid.served.engine.seen)) == (spent, 1)


async def test_an_equal_request_waits_for_the_whole_cascade(hybrid: HybridServed, bank: Bank) -> None:
    """The claim of the Idempotency-Key passes from leg to leg without a gap."""
    key = {**await bank.key(), "idempotency-key": "once"}
    await consent(bank)
    await hybrid.change_upstream(idle_s=5)
    hybrid.served.engine.script = answers("London", UNSURE)
    hybrid.upstream.script = lambda body: Answer(fault=Fault.TIMEOUT)
    body = json.dumps(chat(model="auto")).encode()
    first = Call(hybrid.served.app, PATH, body, key)
    first.start()
    while not hybrid.upstream.bodies:
        await asyncio.sleep(0.01)
    second = await hybrid.served.post(PATH, body, key)
    assert second.status_code == 409
    first.hang_up()
    await first.finish()
    assert [row.state for row in await rows_of(bank)] == ["settled", "released"]
    await bank.spent()


async def test_a_client_that_leaves_during_the_gate_pays_the_finished_leg_only(
    hybrid: HybridServed, bank: Bank
) -> None:
    key = await bank.key()
    await consent(bank)
    await hybrid.change_upstream(idle_s=5)
    hybrid.served.engine.script = answers("London", UNSURE)
    hybrid.upstream.script = lambda body: Answer(fault=Fault.TIMEOUT)
    call = Call(hybrid.served.app, PATH, chat(model="auto", stream=True), key)
    call.start()
    while not hybrid.upstream.bodies:
        await asyncio.sleep(0.01)
    call.hang_up()
    await call.finish()
    local, strong = await rows_of(bank)
    assert (local.state, strong.state) == ("settled", "released")
    assert await bank.spent() * PRICE == local.cost


async def test_an_engine_that_is_not_ready_is_no_error_while_another_target_answers(hybrid: HybridServed) -> None:
    def busy(request: Request) -> list[Step]:
        return [EngineUnavailable("the queue is full")]

    hybrid.served.engine.script = busy
    assert legs_of(await ask(hybrid)) == [("nano", "failed"), ("strong", "answered")]


async def test_tool_calls_of_an_upstream_have_the_usual_form(hybrid: HybridServed) -> None:
    call = {"index": 0, "id": "a", "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}}
    hybrid.upstream.script = lambda body: Answer(deltas=({"tool_calls": [call]},), finish="tool_calls")
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    reply = await ask(hybrid, model="auto:best", tools=[tool])
    (made,) = reply["choices"][0]["message"]["tool_calls"]
    assert made["function"] == {"name": "look", "arguments": '{"x": 1}'}
    assert reply["choices"][0]["finish_reason"] == "tool_calls"
