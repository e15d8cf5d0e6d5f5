from __future__ import annotations

import pytest

from quicksilver.core import ConstraintSpec, DecoderParams, Delta, FinishReason, Request
from quicksilver.errors import RowFailed
from quicksilver.evals.collect import collect
from quicksilver.evals.task import Generate, Likelihood
from quicksilver.text.conversation import ToolCall
from tests.evals.build import likes_shortest, speaking
from tests.support.fake_engine import FakeEngine, Step, spoken
from tests.support.fakes import tiny_tokenizer

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
